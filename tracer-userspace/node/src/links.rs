//! Links and addresses of the node's network namespace, from rtnetlink. rtnetlink does not say which process changed
//! them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

use libc::{
    AF_INET, IFA_ADDRESS, IFA_LOCAL, IFLA_ADDRESS, IFLA_AF_SPEC, IFLA_EXT_MASK, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK,
    IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_QDISC, IFLA_XDP, RTEXT_FILTER_SKIP_STATS, RTM_GETADDR,
    RTM_GETLINK, RTM_GETNSID, RTM_NEWLINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_IFADDR,
    RTNLGRP_LINK, SO_NETNS_COOKIE,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::{getsockopt_impl, sockopt_impl};

use super::enter::NetnsError;
use super::netlink::{Message, Netlink, address, attribute, attributes, consistent, field, number, push, text};
use super::procfs::NodeNetns;
use tracer_common::link::{IFF_LOOPBACK, IFF_UP};
use tracer_model::event::{LinkState, Links, MOST_LINKS, ParentLink};
use tracer_terminal::error::os_message;

/// kube-proxy's device with the addresses of all Services in IPVS mode (pkg/proxy/ipvs, `defaultDummyDevice`).
pub(super) const IPVS_DEVICE: &str = "kube-ipvs0";

const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// `struct ifinfomsg`: family, type, index, flags, change.
const IFINFOMSG: usize = 16;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
const IFADDRMSG: usize = 8;
const IFF_RUNNING: u32 = 0x40;
/// `IFLA_XDP_DRV_PROG_ID` to `IFLA_XDP_HW_PROG_ID`: the program of each mode (include/uapi/linux/if_link.h).
const IFLA_XDP_PROG_IDS: RangeInclusive<u16> = 5..=7;
/// linux/if_link.h
const IFLA_INET_CONF: u16 = 1;
/// The position of `IPV4_DEVCONF_RP_FILTER` (linux/ip.h) among the settings of a link; they are counted from 1.
const RP_FILTER: usize = 8 - 1;
/// How many addresses of a target's namespace are kept, besides the target's own.
const MOST_ADDRESSES: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("cannot read the links of the node over rtnetlink: {}", os_message(.0))]
    Dump(#[source] io::Error),
    #[error("cannot subscribe to link changes of the node over rtnetlink: {}; they are read every 10 s instead", os_message(.0))]
    Subscribe(#[source] io::Error),
    #[error("cannot subscribe to routes and routing rules of the node over rtnetlink: {}; tracer does not see who removes them", os_message(.0))]
    Flushes(#[source] io::Error),
}

/// A link with what the observation does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub state: LinkState,
    /// `dummy`, `veth`, `bridge`; absent for hardware and `lo`.
    pub kind: Option<String>,
    pub lladdr: Option<Lladdr>,
    /// Index of the device under it, such as that of a VLAN.
    pub lower: Option<u32>,
}

impl Link {
    /// Whether it is the link to which kube-proxy binds all Service addresses in IPVS mode.
    pub fn holds_service_addresses(&self) -> bool {
        self.state.name == IPVS_DEVICE
    }

    /// Whether its addresses need not be the node's own, as with kube-ipvs0, node-local DNS and kube-router.
    pub fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some("dummy") || self.holds_service_addresses()
    }
}

/// All links of the node, by index.
pub fn read(node: &NodeNetns) -> Result<Vec<Link>, LinkError> {
    node.enter(|| consistent(dump))?.map_err(LinkError::Dump)
}

/// The links as an observation. It skips the addresses of kube-proxy's link: they can be thousands, and they are not
/// the node's.
pub fn to_observation(node: &NodeNetns, links: &[Link]) -> Links {
    let state = |link: &Link| {
        let state = link.state.clone();
        if link.holds_service_addresses() {
            LinkState { addrs: Vec::new(), prefixes: Vec::new(), ..state }
        } else {
            state
        }
    };
    let cookie = node.enter(net_cookie).ok().flatten();
    Links { netns: node.netns, cookie, links: links.iter().map(state).collect() }
}

sockopt_impl!(
    /// The cookie of the namespace that a socket is in (5.14).
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// The cookie of the calling thread's namespace.
pub(super) fn net_cookie() -> Option<u64> {
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).ok()?;
    getsockopt(&socket, NetnsCookie).ok()
}

/// The links of the calling thread's namespace, [`MOST_LINKS`] at most: those with the address first. `from` is the
/// number of the prober's namespace.
pub(super) fn around(addr: IpAddr, from: Option<i32>) -> io::Result<Vec<LinkState>> {
    consistent(|| {
        let mut netlink = Netlink::open(NETLINK_ROUTE)?;
        let mut around = LinksFor::of(addr);
        netlink.dump(RTM_GETADDR, &[0; IFADDRMSG], |message| {
            parse_addr(message).into_iter().for_each(|found| around.add_addr(found));
        })?;
        netlink.dump(RTM_GETLINK, &link_request(), |message| {
            if let Some(link) = parse_link(message) {
                let parent = link.kind.as_deref().and_then(|kind| parent(message, kind, from));
                let kind = link.kind.filter(|_| link.state.peer_ifindex.is_none());
                around.add_link(LinkState { parent, kind, ..link.state });
            }
        })?;
        Ok(around.links())
    })
}

/// Collects links for an address: those that have it, then those with the lowest indexes.
struct LinksFor {
    addr: IpAddr,
    addrs: Vec<(u32, IpAddr, u8)>,
    carriers: HashSet<u32>,
    /// By whether the link lacks the address, and by its index: the last links are dropped.
    links: BTreeMap<(bool, u32), LinkState>,
}

impl LinksFor {
    fn of(addr: IpAddr) -> Self {
        Self { addr, addrs: Vec::new(), carriers: HashSet::new(), links: BTreeMap::new() }
    }

    /// Adds an address. All addresses must be added before the links.
    fn add_addr(&mut self, found: (u32, IpAddr, u8)) {
        let carries = found.1 == self.addr;
        self.carriers.extend(carries.then_some(found.0));
        if carries || self.addrs.len() < MOST_ADDRESSES {
            self.addrs.push(found);
        }
    }

    fn add_link(&mut self, link: LinkState) {
        self.links.insert((!self.carriers.contains(&link.ifindex), link.ifindex), link);
        if self.links.len() > MOST_LINKS {
            self.links.pop_last();
        }
    }

    fn links(mut self) -> Vec<LinkState> {
        for (ifindex, addr, prefix) in self.addrs {
            if let Some(link) = self.links.get_mut(&(!self.carriers.contains(&ifindex), ifindex)) {
                link.addrs.push(addr);
                link.prefixes.push(prefix);
            }
        }
        let mut links: Vec<LinkState> = self.links.into_values().collect();
        links.sort_by_key(|link| link.ifindex);
        links
    }
}

/// A link-layer address of Ethernet.
pub type Lladdr = [u8; 6];

/// This attribute, if it is such an address. Links without one have zeros.
pub(super) fn lladdr(attributes: &[u8], number: u16) -> Option<Lladdr> {
    attribute(attributes, number)?.try_into().ok().filter(|lladdr| *lladdr != Lladdr::default())
}

/// The link with this index in the calling thread's namespace.
pub(super) fn by_index(ifindex: u32) -> io::Result<Option<Link>> {
    ask(ifindex, parse_link)
}

/// The other end of a pair, if it is in the calling thread's namespace: the two ends name each other.
pub(super) fn other_end(link: &LinkState) -> Option<Link> {
    let end = by_index(link.peer_ifindex?).ok()??;
    (end.state.peer_ifindex == Some(link.ifindex)).then_some(end)
}

/// Whether a veth joins these two bridges of the calling thread's namespace.
pub(super) fn are_joined(one: u32, other: u32) -> io::Result<bool> {
    let links = consistent(dump)?;
    let of = |bridge| links.iter().map(|link| &link.state).filter(move |link| link.master == Some(bridge));
    // The index of an end in another namespace may be that of another link here.
    let is_pair = |port: &LinkState, end: &LinkState| {
        port.peer_ifindex == Some(end.ifindex) && end.peer_ifindex == Some(port.ifindex)
    };
    Ok(of(one).any(|port| of(other).any(|end| is_pair(port, end))))
}

/// The link-layer addresses of the links of the calling thread's namespace.
pub(super) fn lladdrs() -> io::Result<Vec<Lladdr>> {
    consistent(|| {
        let mut found = Vec::new();
        let mut netlink = Netlink::open(NETLINK_ROUTE)?;
        netlink.dump(RTM_GETLINK, &link_request(), |message| {
            found.extend(message.get(IFINFOMSG..).and_then(|rest| lladdr(rest, IFLA_ADDRESS)));
        })?;
        Ok(found)
    })
}

/// The programs of XDP at the link with this index in the calling thread's namespace.
pub(super) fn xdp_programs(ifindex: u32) -> io::Result<Vec<u32>> {
    let found = ask(ifindex, |message| {
        let xdp = attribute(message.get(IFINFOMSG..)?, IFLA_XDP)?;
        Some(IFLA_XDP_PROG_IDS.filter_map(|of_mode| number(xdp, of_mode)).collect())
    });
    Ok(found?.unwrap_or_default())
}

/// The kind of the own queueing discipline of the link with this index in the calling thread's namespace.
pub(super) fn root_qdisc(ifindex: u32) -> io::Result<Option<String>> {
    ask(ifindex, |message| attribute(message.get(IFINFOMSG..)?, IFLA_QDISC).map(text))
}

fn ask<T>(ifindex: u32, parse: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
    let mut request = link_request();
    request[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    Netlink::open(NETLINK_ROUTE)?.ask(RTM_GETLINK, &request, parse)
}

/// The calling thread's namespace's number for another namespace; `None` if none of its devices leads there.
pub(super) fn number_of(netns: &File) -> io::Result<Option<i32>> {
    let mut request = vec![0; 4];
    push(&mut request, NETNSA_FD, &netns.as_raw_fd().to_ne_bytes());
    let known = |message: &[u8]| number(message.get(4..)?, NETNSA_NSID);
    let known = Netlink::open(NETLINK_ROUTE)?.ask(RTM_GETNSID, &request, known)?;
    Ok(known.map(u32::cast_signed).filter(|number| *number >= 0))
}

fn dump() -> io::Result<Vec<Link>> {
    let mut netlink = Netlink::open(NETLINK_ROUTE)?;
    let mut links = Vec::new();
    netlink.dump(RTM_GETLINK, &link_request(), |message| links.extend(parse_link(message)))?;
    let mut addrs: HashMap<u32, (Vec<IpAddr>, Vec<u8>)> = HashMap::new();
    netlink.dump(RTM_GETADDR, &[0; IFADDRMSG], |message| {
        if let Some((ifindex, addr, prefix)) = parse_addr(message) {
            let (all, prefixes) = addrs.entry(ifindex).or_default();
            all.push(addr);
            prefixes.push(prefix);
        }
    })?;
    keep_bridges(&mut links);
    for link in &mut links {
        (link.state.addrs, link.state.prefixes) = addrs.remove(&link.state.ifindex).unwrap_or_default();
    }
    links.sort_by_key(|link| link.state.ifindex);
    Ok(links)
}

/// Open vSwitch, a VRF and a bond are masters, too, and not what a port of a bridge leaves.
fn keep_bridges(links: &mut [Link]) {
    let is_bridge = |link: &&Link| link.kind.as_deref() == Some("bridge");
    let bridges: HashSet<u32> = links.iter().filter(is_bridge).map(|link| link.state.ifindex).collect();
    for link in links {
        link.state.master = link.state.master.filter(|master| bridges.contains(master));
    }
}

fn link_request() -> Vec<u8> {
    let mut bytes = vec![0; IFINFOMSG];
    push(&mut bytes, IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    bytes
}

fn parse_link(message: &[u8]) -> Option<Link> {
    let ifindex = u32::from_ne_bytes(field(message, 4)?);
    let flags = u32::from_ne_bytes(field(message, 8)?);
    let rest = message.get(IFINFOMSG..)?;
    let kind = attribute(rest, IFLA_LINKINFO).and_then(|info| attribute(info, IFLA_INFO_KIND)).map(text);
    let is_pair = kind.as_deref().is_some_and(|kind| PAIRS.contains(&kind));
    let state = LinkState {
        ifindex,
        name: text(attribute(rest, IFLA_IFNAME)?),
        up: flags & IFF_UP != 0,
        loopback: flags & IFF_LOOPBACK != 0,
        running: Some(flags & IFF_RUNNING != 0),
        peer_ifindex: number(rest, IFLA_LINK).filter(|_| is_pair),
        master: number(rest, IFLA_MASTER),
        rp_filter: rp_filter(rest),
        ..LinkState::default()
    };
    let lower = number(rest, IFLA_LINK).filter(|_| !is_pair);
    Some(Link { state, kind, lladdr: lladdr(rest, IFLA_ADDRESS), lower })
}

/// The kernel lists the settings of `/proc/sys/net/ipv4/conf/LINK` as numbers (`inet_fill_link_af`, net/ipv4/devinet.c).
fn rp_filter(attributes: &[u8]) -> Option<u32> {
    let of_ipv4 = attribute(attribute(attributes, IFLA_AF_SPEC)?, AF_INET as u16)?;
    let settings = attribute(of_ipv4, IFLA_INET_CONF)?;
    field(settings, 4 * RP_FILTER).map(u32::from_ne_bytes)
}

/// The parent device of a macvlan or ipvlan. The parent itself cannot reach these links (drivers/net/macvlan.c,
/// drivers/net/ipvlan).
fn parent(message: &[u8], kind: &str, from: Option<i32>) -> Option<ParentLink> {
    let rest = message.get(IFINFOMSG..).filter(|_| KINDS_WITH_PARENT.contains(&kind))?;
    let ifindex = number(rest, IFLA_LINK)?;
    let netns = number(rest, IFLA_LINK_NETNSID).map(u32::cast_signed);
    Some(ParentLink { kind: kind.to_owned(), ifindex, is_of_prober: netns.is_some() && netns == from })
}

/// Kinds of links that have another end. `IFLA_LINK` of any other kind (VLAN, macvlan, tunnel) is the device under it.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// Kinds of links that have a parent device.
const KINDS_WITH_PARENT: [&str; 4] = ["macvlan", "macvtap", "ipvlan", "ipvtap"];

/// Index, address and prefix length. On point-to-point links `IFA_ADDRESS` is the peer's address: `IFA_LOCAL` goes
/// first.
fn parse_addr(message: &[u8]) -> Option<(u32, IpAddr, u8)> {
    let ifindex = u32::from_ne_bytes(field(message, 4)?);
    let (mut local, mut other) = (None, None);
    for (kind, value) in attributes(message.get(IFADDRMSG..)?) {
        match kind {
            IFA_LOCAL => local = address(value),
            IFA_ADDRESS => other = address(value),
            _ => {}
        }
    }
    Some((ifindex, local.or(other)?, *message.get(1)?))
}

/// Reports that links, addresses or settings of links of the node changed.
pub struct LinkWatch(Netlink);

/// What rtnetlink reported about links and addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinksChanged {
    pub any: bool,
    /// A report had a link that is not up, or reports were lost. A link that is up now may have been down before.
    pub down: bool,
}

impl LinksChanged {
    fn add(&mut self, message: Option<Message<'_>>) {
        let is_down = |payload: &[u8]| field(payload, 8).is_none_or(|flags| u32::from_ne_bytes(flags) & IFF_UP == 0);
        self.any = true;
        self.down |= message.is_none_or(|it| it.kind == RTM_NEWLINK && is_down(it.payload));
    }
}

impl LinkWatch {
    /// Subscribes inside the node's namespace.
    pub fn open(node: &NodeNetns) -> Result<Self, LinkError> {
        let groups = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_NETCONF];
        let socket = node.enter(|| Netlink::subscribe(NETLINK_ROUTE, &groups))?;
        socket.map(Self).map_err(LinkError::Subscribe)
    }

    /// The changes since the last call. Never blocks.
    pub fn changed(&self) -> LinksChanged {
        let mut changed = LinksChanged::default();
        self.0.drain(|message| changed.add(message));
        changed
    }

    /// For `poll(2)`.
    pub fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::push_text;
    use super::super::procfs::node_netns;
    use super::*;

    #[test]
    fn a_report_of_a_down_link_or_a_lost_report_sets_down() {
        let link = |flags: u32| [&[0; 8][..], &flags.to_ne_bytes(), &[0; 4]].concat();
        let (up, down) = (link(IFF_UP), link(0));
        let changed_of = |message: Option<(u16, &[u8])>| {
            let mut changed = LinksChanged::default();
            changed.add(message.map(|(kind, payload)| Message { kind, port: 0, payload }));
            (changed.any, changed.down)
        };
        assert_eq!(changed_of(Some((RTM_NEWLINK, up.as_slice()))), (true, false));
        assert_eq!(changed_of(Some((RTM_NEWLINK, down.as_slice()))), (true, true));
        assert_eq!(changed_of(Some((20, down.as_slice()))), (true, false), "RTM_NEWADDR");
        assert_eq!(changed_of(None), (true, true));
    }

    #[test]
    fn only_a_pair_has_another_end() {
        let end_of = |kind: &str| {
            let (mut message, mut info) = (vec![0; IFINFOMSG], Vec::new());
            push_text(&mut info, IFLA_INFO_KIND, kind);
            push_text(&mut message, IFLA_IFNAME, "net1");
            push(&mut message, IFLA_LINK, &7_u32.to_ne_bytes());
            push(&mut message, IFLA_LINKINFO, &info);
            parse_link(&message).expect("a link").state.peer_ifindex
        };
        assert_eq!([end_of("veth"), end_of("netkit")], [Some(7); 2]);
        for kind in ["macvlan", "ipvlan", "vlan", "ipip"] {
            assert_eq!(end_of(kind), None, "{kind}");
        }
    }

    #[test]
    fn only_a_bridge_is_kept_as_master() {
        let link = |ifindex, kind: &str, master| Link {
            state: LinkState { ifindex, master, ..LinkState::default() },
            kind: Some(kind.to_owned()),
            lladdr: None,
            lower: None,
        };
        let masters = [(1, "bridge"), (2, "openvswitch"), (3, "vrf")].map(|(ifindex, kind)| link(ifindex, kind, None));
        let mut links: Vec<Link> =
            masters.into_iter().chain((1..=4).map(|it| link(10 + it, "veth", Some(it)))).collect();
        keep_bridges(&mut links);
        let kept: Vec<_> = links.iter().filter_map(|link| Some((link.state.ifindex, link.state.master?))).collect();
        assert_eq!(kept, [(11, 1)]);
    }

    #[test]
    fn this_node_has_a_loopback() {
        let links = read(&node_netns(&[]).expect("own namespace")).expect("links");
        let lo = links.iter().find(|link| link.state.loopback).expect("lo");
        assert_eq!((lo.state.name.as_str(), lo.state.ifindex), ("lo", 1));
        let filter = std::fs::read_to_string("/proc/sys/net/ipv4/conf/lo/rp_filter").expect("rp_filter");
        assert_eq!(lo.state.rp_filter.map(|it| it.to_string()).as_deref(), Some(filter.trim()));
        assert!(!lo.state.up || lo.state.addrs.contains(&IpAddr::from([127, 0, 0, 1])));
    }

    #[test]
    fn of_many_links_those_that_carry_the_address_are_kept() {
        let addr = IpAddr::from([10, 88, 0, 4]);
        let mut around = LinksFor::of(addr);
        (1..=50_000).for_each(|ifindex| around.add_addr((ifindex, IpAddr::from([10, 9, 0, 1]), 24)));
        [70_000, 90_000].into_iter().for_each(|ifindex| around.add_addr((ifindex, addr, 32)));
        let link = |ifindex| LinkState { ifindex, ..LinkState::default() };
        (1..=100_000).rev().for_each(|ifindex| around.add_link(link(ifindex)));
        let (links, kept) = (around.links.len(), around.addrs.len());
        assert_eq!((links, kept), (MOST_LINKS, MOST_ADDRESSES + 2));
        let links = around.links();
        let indexes: Vec<u32> = links.iter().map(|link| link.ifindex).collect();
        let expected: Vec<u32> = (1..=MOST_LINKS as u32 - 2).chain([70_000, 90_000]).collect();
        assert_eq!(indexes, expected);
        assert!(links[MOST_LINKS - 1].addrs == [addr] && links[0].prefixes == [24]);
    }

    #[test]
    fn a_point_to_point_address_is_the_local_one() {
        let mut message = vec![2, 32, 0, 0, 7, 0, 0, 0];
        for (number, addr) in [(IFA_ADDRESS, [10, 0, 0, 2]), (IFA_LOCAL, [10, 0, 0, 1])] {
            push(&mut message, number, &addr);
        }
        assert_eq!(parse_addr(&message), Some((7, IpAddr::from([10, 0, 0, 1]), 32)));
        assert_eq!(parse_addr(&message[..6]), None);
        assert_eq!(parse_link(&message), None);
    }
}
