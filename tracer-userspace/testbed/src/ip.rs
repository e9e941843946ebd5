//! Changes links, addresses, routes and neighbours of one network namespace over netlink. The program `ip` is not used,
//! because tracer's image contains no other program.

mod address;
mod link;
mod neighbour;
mod route;

use anyhow::{Context, Result};
use netlink_packet_core::Emitable;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::if_nametoindex;

pub use link::Part;
pub use route::{Route, RouteType, RuleAction, RuleMessage, rule_from, rule_mark, rule_port, rule_refusing, rule_to};

use tracer_node::netlink::Netlink;

/// A link-layer address.
pub type Mac = [u8; 6];

/// A netlink socket in the namespace of the thread that opened it.
pub struct Ip {
    netlink: Netlink,
}

impl Ip {
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE).context("open a netlink socket")?;
        Ok(Self { netlink })
    }

    fn send(&mut self, kind: u16, flags: u16, message: &impl Emitable) -> Result<()> {
        let mut payload = vec![0; message.buffer_len()];
        message.emit(&mut payload);
        Ok(self.netlink.change(kind, flags, &payload)?)
    }

    /// The payloads of all answers to a dump.
    fn dump(&mut self, kind: u16, message: &impl Emitable) -> Result<Vec<Vec<u8>>> {
        let mut payload = vec![0; message.buffer_len()];
        message.emit(&mut payload);
        let mut answers = Vec::new();
        self.netlink.dump(kind, &payload, |answer| answers.push(answer.to_vec()))?;
        Ok(answers)
    }
}

/// Flags, index and link-layer address of a link in the namespace of the calling thread.
pub(super) fn link(device: &str) -> Result<InterfaceAddress> {
    let is_link = |it: &InterfaceAddress| it.address.is_some_and(|address| address.as_link_addr().is_some());
    let mut all = getifaddrs().context("list the links")?;
    all.find(|it| it.interface_name == device && is_link(it)).with_context(|| format!("no device {device}"))
}

fn index(device: &str) -> Result<u32> {
    if_nametoindex(device).with_context(|| format!("no device {device}"))
}
