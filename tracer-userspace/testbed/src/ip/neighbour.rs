//! Neighbour entries: the link-layer addresses of IP addresses.

use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};

use super::{Ip, Mac, index};
use tracer_node::netlink::{address, attribute, field};

/// `struct ndmsg`, linux/neighbour.h
const HEADER: usize = 12;
/// `NDA_DST`, linux/neighbour.h
const DESTINATION: u16 = 1;
/// `NUD_PERMANENT` and `NUD_NOARP`: entries that the kernel did not learn.
const STATIC: u16 = 0x80 | 0x40;

impl Ip {
    /// Adds a permanent entry. It also replaces one that the kernel is still resolving.
    pub fn neighbour(&mut self, address: impl Into<IpAddr>, mac: Mac, device: &str) -> Result<()> {
        let address = address.into();
        let mut entry = message(address, index(device)?);
        entry.header.state = NeighbourState::Permanent;
        entry.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        self.send(libc::RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &entry)
            .with_context(|| format!("neighbour {address} of {device}"))
    }

    /// Removes the learnt entries of this link.
    pub fn forget_neighbours(&mut self, device: &str) -> Result<()> {
        let link = index(device)?;
        for answer in self.dump(libc::RTM_GETNEIGH, &NeighbourMessage::default())? {
            let Some(address) = learnt(&answer, link) else { continue };
            // Fails if the kernel removed the entry meanwhile.
            let _ = self.send(libc::RTM_DELNEIGH, 0, &message(address, link));
        }
        Ok(())
    }
}

fn message(address: IpAddr, link: u32) -> NeighbourMessage {
    let mut entry = NeighbourMessage::default();
    entry.header.family = super::route::family(address);
    entry.header.ifindex = link;
    entry.attributes = vec![NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    })];
    entry
}

/// The address of an entry, if it was learnt on this link.
fn learnt(answer: &[u8], link: u32) -> Option<IpAddr> {
    let on_link = u32::from_ne_bytes(field(answer, 4)?) == link;
    let is_static = u16::from_ne_bytes(field(answer, 8)?) & STATIC != 0;
    let address = address(attribute(answer.get(HEADER..)?, DESTINATION)?)?;
    (on_link && !is_static).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_learnt_entries_of_the_link_are_removed() {
        let entry = |link: u32, state: u16| {
            let mut bytes = vec![2, 0, 0, 0];
            bytes.extend_from_slice(&link.to_ne_bytes());
            bytes.extend_from_slice(&state.to_ne_bytes());
            bytes.extend_from_slice(&[0, 1]);
            bytes.extend_from_slice(&8_u16.to_ne_bytes());
            bytes.extend_from_slice(&DESTINATION.to_ne_bytes());
            bytes.extend_from_slice(&[10, 88, 0, 2]);
            bytes
        };
        assert_eq!(learnt(&entry(3, 0x02), 3), Some([10, 88, 0, 2].into()));
        assert_eq!(learnt(&entry(3, 0x80), 3), None, "permanent");
        assert_eq!(learnt(&entry(4, 0x02), 3), None, "another link");
        assert_eq!(learnt(&[0; 5], 3), None);
    }
}
