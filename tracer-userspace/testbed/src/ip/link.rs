//! Links: made, joined, set up and down.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use super::{Ip, Mac, index};

impl Ip {
    /// Makes a bridge, with a link-layer address of its own or not.
    pub fn bridge(&mut self, name: &str, mac: Option<Mac>) -> Result<()> {
        let mac = mac.map(|mac| LinkAttribute::Address(mac.to_vec()));
        self.make(name, vec![LinkInfo::Kind(InfoKind::Bridge)], mac)
    }

    /// Makes a link that goes nowhere.
    pub fn dummy(&mut self, name: &str) -> Result<()> {
        self.make(name, vec![LinkInfo::Kind(InfoKind::Dummy)], None)
    }

    /// Makes a pair of links, the second of which is in another namespace.
    pub fn veth(&mut self, name: &str, peer: &str, namespace: BorrowedFd<'_>) -> Result<()> {
        let mut other = LinkMessage::default();
        other.attributes = vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(namespace.as_raw_fd())];
        let data = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other)));
        self.make(name, vec![LinkInfo::Kind(InfoKind::Veth), data], None)
    }

    fn make(&mut self, name: &str, info: Vec<LinkInfo>, mac: Option<LinkAttribute>) -> Result<()> {
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(info)];
        link.attributes.extend(mac);
        self.send(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link).with_context(|| format!("make link {name}"))
    }

    /// Sets it up.
    pub fn up(&mut self, device: &str) -> Result<()> {
        self.flags(device, LinkFlags::Up, LinkFlags::Up)
    }

    /// Sets it down.
    pub fn down(&mut self, device: &str) -> Result<()> {
        self.flags(device, LinkFlags::empty(), LinkFlags::Up)
    }

    /// No ARP on it from now on.
    pub fn arp_off(&mut self, device: &str) -> Result<()> {
        self.flags(device, LinkFlags::Noarp, LinkFlags::Noarp)
    }

    fn flags(&mut self, device: &str, flags: LinkFlags, mask: LinkFlags) -> Result<()> {
        let mut link = existing(device)?;
        link.header.flags = flags;
        link.header.change_mask = mask;
        self.send(libc::RTM_NEWLINK, 0, &link).with_context(|| format!("flags of {device}"))
    }

    /// Makes it a port of a bridge.
    pub fn master(&mut self, device: &str, bridge: &str) -> Result<()> {
        self.set(device, LinkAttribute::Controller(index(bridge)?))
    }

    /// Changes its link-layer address.
    pub fn mac(&mut self, device: &str, mac: Mac) -> Result<()> {
        self.set(device, LinkAttribute::Address(mac.to_vec()))
    }

    /// Changes its MTU.
    pub fn mtu(&mut self, device: &str, mtu: u16) -> Result<()> {
        self.set(device, LinkAttribute::Mtu(mtu.into()))
    }

    fn set(&mut self, device: &str, attribute: LinkAttribute) -> Result<()> {
        let mut link = existing(device)?;
        link.attributes = vec![attribute];
        self.send(libc::RTM_NEWLINK, 0, &link).with_context(|| format!("change {device}"))
    }

    /// Removes it.
    pub fn delete(&mut self, device: &str) -> Result<()> {
        self.send(libc::RTM_DELLINK, 0, &existing(device)?).with_context(|| format!("remove {device}"))
    }
}

fn existing(device: &str) -> Result<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index(device)?;
    Ok(link)
}
