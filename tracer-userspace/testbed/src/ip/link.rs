//! Makes, changes and removes links.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Context, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::link::{
    InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoVeth, IpVlanMode, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    MacVlanMode,
};

use super::{Ip, Mac, index};

/// The kind of a link that uses another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// With its own link-layer address.
    Macvlan,
    /// With the link-layer address of the device.
    Ipvlan,
}

impl Ip {
    /// Makes a bridge. Without `mac`, it takes the lowest link-layer address of its ports.
    pub fn bridge(&mut self, name: &str, mac: Option<Mac>) -> Result<()> {
        let mac = mac.map(|mac| LinkAttribute::Address(mac.to_vec()));
        self.make(name, vec![LinkInfo::Kind(InfoKind::Bridge)], mac)
    }

    pub fn dummy(&mut self, name: &str) -> Result<()> {
        self.make(name, vec![LinkInfo::Kind(InfoKind::Dummy)], None)
    }

    /// Makes a veth pair, with the peer in another namespace.
    pub fn veth(&mut self, name: &str, peer: &str, namespace: BorrowedFd<'_>) -> Result<()> {
        let mut other = LinkMessage::default();
        other.attributes = vec![LinkAttribute::IfName(peer.to_owned()), LinkAttribute::NetNsFd(namespace.as_raw_fd())];
        let data = LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other)));
        self.make(name, vec![LinkInfo::Kind(InfoKind::Veth), data], None)
    }

    /// Makes a macvlan or ipvlan link of this device in another namespace.
    pub fn part_of(&mut self, device: &str, kind: Part, name: &str, namespace: BorrowedFd<'_>) -> Result<()> {
        let (kind, data) = match kind {
            Part::Macvlan => (InfoKind::MacVlan, InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)])),
            Part::Ipvlan => (InfoKind::IpVlan, InfoData::IpVlan(vec![InfoIpVlan::Mode(IpVlanMode::L2)])),
        };
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Link(index(device)?),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)]),
        ];
        let made = self.send(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link);
        made.with_context(|| format!("make {name} of {device}"))
    }

    fn make(&mut self, name: &str, info: Vec<LinkInfo>, mac: Option<LinkAttribute>) -> Result<()> {
        let mut link = LinkMessage::default();
        link.attributes = vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(info)];
        link.attributes.extend(mac);
        self.send(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link).with_context(|| format!("make link {name}"))
    }

    pub fn up(&mut self, device: &str) -> Result<()> {
        self.set_flags(device, LinkFlags::Up, LinkFlags::Up)
    }

    pub fn down(&mut self, device: &str) -> Result<()> {
        self.set_flags(device, LinkFlags::empty(), LinkFlags::Up)
    }

    pub fn disable_arp(&mut self, device: &str) -> Result<()> {
        self.set_flags(device, LinkFlags::Noarp, LinkFlags::Noarp)
    }

    fn set_flags(&mut self, device: &str, flags: LinkFlags, mask: LinkFlags) -> Result<()> {
        let mut link = existing(device)?;
        link.header.flags = flags;
        link.header.change_mask = mask;
        self.send(libc::RTM_NEWLINK, 0, &link).with_context(|| format!("flags of {device}"))
    }

    /// Makes the device a port of a bridge.
    pub fn set_master(&mut self, device: &str, bridge: &str) -> Result<()> {
        self.set(device, LinkAttribute::Controller(index(bridge)?))
    }

    /// Takes the device from its bridge.
    pub fn detach(&mut self, device: &str) -> Result<()> {
        self.set(device, LinkAttribute::Controller(0))
    }

    pub fn set_mac(&mut self, device: &str, mac: Mac) -> Result<()> {
        self.set(device, LinkAttribute::Address(mac.to_vec()))
    }

    pub fn rename(&mut self, device: &str, name: &str) -> Result<()> {
        self.set(device, LinkAttribute::IfName(name.to_owned()))
    }

    pub fn set_mtu(&mut self, device: &str, mtu: u16) -> Result<()> {
        self.set(device, LinkAttribute::Mtu(mtu.into()))
    }

    fn set(&mut self, device: &str, attribute: LinkAttribute) -> Result<()> {
        let mut link = existing(device)?;
        link.attributes = vec![attribute];
        self.send(libc::RTM_NEWLINK, 0, &link).with_context(|| format!("change {device}"))
    }

    pub fn delete(&mut self, device: &str) -> Result<()> {
        self.send(libc::RTM_DELLINK, 0, &existing(device)?).with_context(|| format!("remove {device}"))
    }
}

fn existing(device: &str) -> Result<LinkMessage> {
    let mut link = LinkMessage::default();
    link.header.index = index(device)?;
    Ok(link)
}
