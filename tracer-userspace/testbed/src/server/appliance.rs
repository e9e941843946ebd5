//! A host without an address in its kernel. A process answers frames, as a middlebox or a userspace network stack does.
//!
//! It answers every SYN with a RST or with nothing. No kernel's TCP sends that RST.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, socket};

use super::frame;
use crate::ip;

/// Answers for the address `own` on `device` forever. Prints `listening …` when it is ready.
pub fn run(device: &str, own: Ipv4Addr, resets: bool) -> Result<()> {
    let link = ip::link(device)?.address.and_then(|it| it.as_link_addr().copied());
    let link = link.with_context(|| format!("address of {device}"))?;
    let mac = link.addr().with_context(|| format!("address of {device}"))?;
    let socket = packet_socket(&link).with_context(|| format!("packet socket of {device}"))?;
    println!("listening {own}");
    let mut buffer = [0; 2048];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).context("receive a frame")?;
        let frame = &buffer[..length];
        let reset = || frame::syn_reset(frame, own, mac).filter(|_| resets);
        if let Some(reply) = frame::arp_reply(frame, own, mac).or_else(reset) {
            send(socket.as_raw_fd(), &reply, MsgFlags::empty()).context("send a frame")?;
        }
    }
}

/// Opens a socket that receives every frame of a link.
fn packet_socket(link: &LinkAddr) -> nix::Result<OwnedFd> {
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
    bind(fd.as_raw_fd(), link)?;
    Ok(fd)
}
