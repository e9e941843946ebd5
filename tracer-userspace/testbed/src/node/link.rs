//! Waits until a link can be used. The kernel finishes the setup of a link in a worker, after the netlink request
//! returns. A packet sent before that is dropped, and retransmitted after a second.

use std::net::Ipv6Addr;

use anyhow::{Context, Result};
use nix::net::if_::InterfaceFlags;

use crate::ip;
use crate::net::Netns;
use crate::wait::until;

/// Waits until these devices are running.
///
/// `linkwatch_do_dev` first sets the flag, then attaches the queue of the device and the port of a bridge. It holds the
/// rtnetlink lock meanwhile, so a request that changes nothing waits for its end.
pub(super) fn wait_until_running(ns: &Netns, devices: &[&str]) -> Result<()> {
    ns.enter(|| devices.iter().try_for_each(|device| until(&format!("{device} is running"), || is_running(device))))?;
    ns.ip(|ip| devices.iter().try_for_each(|device| ip.up(device)))
}

/// Waits until `eth0` has joined the solicited-node multicast group of this address.
pub(super) fn wait_until_solicitable(ns: &Netns, address: Ipv6Addr) -> Result<()> {
    let last = address.octets();
    let group = format!("ff0200000000000000000001ff{:02x}{:02x}{:02x}", last[13], last[14], last[15]);
    ns.enter(|| {
        until(&format!("{address} can be found"), || {
            let groups = std::fs::read_to_string("/proc/thread-self/net/igmp6").context("multicast groups")?;
            Ok(groups.lines().any(|line| line.contains("eth0") && line.contains(&group)))
        })
    })
}

/// Waits until `eth0` has found another host with this address.
pub(crate) fn wait_until_duplicate(ns: &Netns, address: Ipv6Addr) -> Result<()> {
    let address = format!("{:032x}", address.to_bits());
    ns.enter(|| {
        until(&format!("{address} is a duplicate"), || {
            let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").context("addresses")?;
            let flags =
                table.lines().find(|line| line.starts_with(&address)).and_then(|line| line.split_whitespace().nth(4));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
            Ok(flags.is_some_and(|flags| flags & libc::IFA_F_DADFAILED != 0))
        })
    })
}

fn is_running(device: &str) -> Result<bool> {
    Ok(ip::link(device)?.flags.contains(InterfaceFlags::IFF_RUNNING))
}
