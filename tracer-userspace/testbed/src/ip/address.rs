//! IP addresses of links.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockaddrIn6, SockaddrStorage};

use super::{Ip, index};

impl Ip {
    /// Adds an address to a link, without duplicate address detection.
    pub fn address(&mut self, address: impl Into<IpAddr>, prefix: u8, device: &str) -> Result<()> {
        let address = address.into();
        let flags = if address.is_ipv6() { AddressHeaderFlags::Nodad } else { AddressHeaderFlags::empty() };
        self.add_address(address, prefix, device, flags)
    }

    /// Adds an IPv6 address that the kernel first looks for on the link (RFC 4862 5.4).
    pub fn address_to_detect(&mut self, address: Ipv6Addr, prefix: u8, device: &str) -> Result<()> {
        self.add_address(address.into(), prefix, device, AddressHeaderFlags::empty())
    }

    fn add_address(&mut self, address: IpAddr, prefix: u8, device: &str, flags: AddressHeaderFlags) -> Result<()> {
        let mut message = message(address, prefix, index(device)?);
        message.header.flags = flags;
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
        for found in getifaddrs().context("list the addresses")? {
            let v6 = |it: Option<SockaddrStorage>| it.and_then(|it| it.as_sockaddr_in6().map(SockaddrIn6::ip));
            if let (Some(address), Some(mask)) = (v6(found.address), v6(found.netmask)) {
                self.remove_address(address, mask.to_bits().count_ones() as u8, &found.interface_name)?;
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
