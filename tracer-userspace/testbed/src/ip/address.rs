//! IP addresses of links.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};

use super::{Ip, index};
use tracer_node::netlink::{attribute, field};

/// `struct ifaddrmsg`, linux/if_addr.h
const HEADER: usize = 8;

impl Ip {
    /// Adds an address to a link, without duplicate address detection.
    pub fn address(&mut self, address: impl Into<IpAddr>, prefix: u8, device: &str) -> Result<()> {
        let address = address.into();
        let mut message = message(address, prefix, index(device)?);
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        self.send(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &message)
            .with_context(|| format!("give {device} the address {address}"))
    }

    pub fn remove_address(&mut self, address: impl Into<IpAddr>, prefix: u8, device: &str) -> Result<()> {
        let address = address.into();
        self.send(libc::RTM_DELADDR, 0, &message(address, prefix, index(device)?))
            .with_context(|| format!("take the address {address} from {device}"))
    }

    /// Removes every IPv6 address of every link.
    pub fn remove_ipv6_addresses(&mut self) -> Result<()> {
        let mut all = AddressMessage::default();
        all.header.family = AddressFamily::Inet6;
        for answer in self.dump(libc::RTM_GETADDR, &all)? {
            if let Some((address, prefix, link)) = parse(&answer) {
                self.send(libc::RTM_DELADDR, 0, &message(address.into(), prefix, link))?;
            }
        }
        Ok(())
    }
}

fn message(address: IpAddr, prefix: u8, link: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = super::route::family(address);
    message.header.prefix_len = prefix;
    message.header.index = link;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

/// Address, prefix length and index of the link.
fn parse(answer: &[u8]) -> Option<(Ipv6Addr, u8, u32)> {
    let octets: [u8; 16] = attribute(answer.get(HEADER..)?, libc::IFA_ADDRESS)?.try_into().ok()?;
    Some((octets.into(), *answer.get(1)?, u32::from_ne_bytes(field(answer, 4)?)))
}
