//! A host whose kernel has no address: a process answers on the wire, as a middlebox or a stack in
//! user space does. It resets every SYN, or swallows it. Its RST comes from no kernel's TCP.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

use super::frame;

/// Answers for `own` on `device` for ever; says so on stdout once it can.
pub fn run(device: &str, own: Ipv4Addr, resets: bool) -> Result<()> {
    let mac = read_mac(device)?;
    let socket = packet_socket(device)?;
    println!("listening {own}");
    let mut buffer = [0; 2048];
    loop {
        let frame = receive(&socket, &mut buffer)?;
        let reset = || frame::syn_reset(frame, own, mac).filter(|_| resets);
        if let Some(reply) = frame::arp_reply(frame, own, mac).or_else(reset) {
            send(&socket, &reply)?;
        }
    }
}

fn read_mac(device: &str) -> Result<[u8; 6]> {
    let fd = OwnedFd::from(std::net::UdpSocket::bind("0.0.0.0:0")?);
    // SAFETY: ifreq is plain old data; zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open and the request lives through the call.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFHWADDR as libc::Ioctl, &mut request) } != 0 {
        bail!("address of {device}: {}", io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFHWADDR has filled this member of the union.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|i| data[i] as u8))
}

fn packet_socket(device: &str) -> Result<OwnedFd> {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: plain numbers in, a descriptor or -1 out.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol)) };
    if raw < 0 {
        bail!("packet socket: {}", io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let name = CString::new(device).context("device name")?;
    // SAFETY: sockaddr_ll is plain old data; zero is a valid value of every field.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    // SAFETY: the name is a NUL-terminated string.
    address.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as i32;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives through the call and `size` is its size.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
        bail!("bind to {device}: {}", io::Error::last_os_error());
    }
    Ok(fd)
}

fn receive<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error()).context("receive a frame")?;
    Ok(&buffer[..n])
}

fn send(fd: &OwnedFd, frame: &[u8]) -> Result<()> {
    // SAFETY: the frame is valid for its length.
    let n = unsafe { libc::send(fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    if n < 0 {
        bail!("send a frame: {}", io::Error::last_os_error());
    }
    Ok(())
}
