//! Neighbour entries: the link-layer addresses of IP addresses.

use std::net::IpAddr;

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, Parseable as _};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};

use super::{Ip, Mac, index};

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
            let entry = NeighbourMessage::parse(answer.as_slice())?;
            if is_learnt(&entry, link) {
                // Fails if the kernel removed the entry meanwhile.
                let _ = self.send(libc::RTM_DELNEIGH, 0, &entry);
            }
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

/// Whether the kernel learnt the entry on this link.
fn is_learnt(entry: &NeighbourMessage, link: u32) -> bool {
    let is_static = matches!(entry.header.state, NeighbourState::Permanent | NeighbourState::Noarp);
    entry.header.ifindex == link && !is_static
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_learnt_entries_of_the_link_are_removed() {
        let is_removed = |link: u32, state| {
            let mut entry = message([10, 88, 0, 2].into(), link);
            entry.header.state = state;
            is_learnt(&entry, 3)
        };
        assert!(is_removed(3, NeighbourState::Reachable) && !is_removed(4, NeighbourState::Reachable));
        assert!(!is_removed(3, NeighbourState::Permanent) && !is_removed(3, NeighbourState::Noarp));
    }
}
