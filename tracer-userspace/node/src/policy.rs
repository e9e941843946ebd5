//! Finds routes and routing rules of the node that send packets for a pod to another device than the pod's.

use std::io;
use std::net::{IpAddr, SocketAddr};

use libc::{RTA_DST, RTA_GATEWAY, RTA_OIF, RTA_SRC, RTA_TABLE, RTM_GETROUTE, RTM_GETRULE};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::links::{self, Link};
use super::netlink::{Netlink, address, attribute, attributes, consistent, family, field, number, octets, push, text};
use tracer_model::event::{LinkState, Prefix, RoutingRule, StrayRoute};

/// `struct rtmsg`: family, lengths of the prefixes, tos, table, protocol, scope, type, flags.
pub(super) const RTMSG: usize = 12;
/// libc lacks it for musl.
const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
const RTA_VIA: u16 = 18;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
/// `struct fib_rule_hdr`: family, lengths of the prefixes, tos, table, two reserved, action, flags.
const RULE: usize = 12;
pub(super) const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
pub(super) const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
pub(super) const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_UID_RANGE: u16 = 20;
const FRA_PROTOCOL: u16 = 21;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;
/// The conditions on what a connection is, beside its addresses.
const OF_CONNECTION: [u16; 4] = [FRA_UID_RANGE, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE];
/// `FRA_SPORT_MASK` and `FRA_DPORT_MASK`, 6.15: a single port has the whole mask.
const PORT_MASKS: [u16; 2] = [28, 29];
const WHOLE: [u8; 2] = [u8::MAX; 2];
/// tracer understands a rule only if it has no other attributes than these.
const UNDERSTOOD: [u16; 7] = [FRA_DST, FRA_SRC, FRA_PRIORITY, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_PAD, FRA_PROTOCOL];
/// `FIB_RULE_INVERT`: the rule holds where its conditions do not.
const INVERT: u32 = 2;

/// The route of the calling thread's namespace from `source` to `target`, if it leads to another device than the pod's.
/// `link` is the pod's own link with the target's address.
pub(super) fn stray_route(source: SocketAddr, target: SocketAddr, link: &LinkState) -> Option<StrayRoute> {
    let end = links::other_end(link)?;
    let Route { ifindex: device, table, .. } = route(source, target).ok()??;
    if device == end.state.ifindex || Some(device) == end.state.master {
        return None;
    }
    let device = links::by_index(device).ok()??;
    let master = end.state.master.and_then(|master| links::by_index(master).ok()?);
    if leads_to(&device, &end, master.as_ref()) {
        return None;
    }
    let is_of = |link: &Link, kind| link.kind.as_deref() == Some(kind);
    let detached = end.state.master.is_none() && is_of(&device, "bridge");
    // Open vSwitch's own device is a master that is always down.
    let pod_bridge = master.filter(|master| is_of(master, "bridge")).map(|master| master.state.ifindex);
    let pod_device = end.state.name;
    let stray = StrayRoute { device: device.state.name, pod_device, pod_bridge, detached, table, rule: None };
    let rule = if stray.is_by_rule() { rule(source, target, table).ok().flatten() } else { None };
    Some(StrayRoute { rule, ..stray })
}

/// What the device sends gets to that link, too: it is a VLAN of that link's bridge, or a bridge that a veth joins with it.
/// `master` is that of the link. Flows of Open vSwitch join its own devices with its ports: antrea-gw0, ovn-k8s-mp0, tun0.
fn leads_to(device: &Link, end: &Link, master: Option<&Link>) -> bool {
    let is_over = |ifindex| device.lower == Some(ifindex);
    let joined = |bridge| links::are_joined(bridge, device.state.ifindex).unwrap_or_default();
    let is_switch = |link: &Link| link.kind.as_deref() == Some("openvswitch");
    is_over(end.state.ifindex)
        || is_switch(device) && master.is_some_and(is_switch)
        || end.state.master.is_some_and(|bridge| is_over(bridge) || joined(bridge))
}

/// The route of the calling thread's namespace from `own` back to `peer`, if it leads out of another link than `link`,
/// which has the address `own`.
pub(super) fn stray_way_back(own: SocketAddr, peer: SocketAddr, link: &LinkState) -> Option<StrayRoute> {
    let Route { ifindex: device, table, .. } = route(own, peer).ok()??;
    if device == link.ifindex {
        return None;
    }
    let device = links::by_index(device).ok()??.state.name;
    Some(StrayRoute { device, pod_device: link.name.clone(), pod_bridge: None, detached: false, table, rule: None })
}

/// The route of the packets of a connection. For a look-up that fails, the kernel drops a RST of that flow
/// (`inet_rtm_getroute_build_skb`, net/ipv4/route.c), which would look like a packet of the attempt. So the first look-up
/// has no ports.
pub(super) fn route(source: SocketAddr, target: SocketAddr) -> io::Result<Option<Route>> {
    let mut netlink = Netlink::open(NETLINK_ROUTE)?;
    let without_ports = route_request(Some((source.ip(), 0).into()), (target.ip(), 0).into());
    netlink.ask(RTM_GETROUTE, &without_ports, |_| Some(()))?;
    netlink.ask(RTM_GETROUTE, &route_request(Some(source), target), parse_route)
}

/// The route to an address, from any source.
pub(super) fn route_to(target: SocketAddr) -> io::Result<Option<Route>> {
    Netlink::open(NETLINK_ROUTE)?.ask(RTM_GETROUTE, &route_request(None, target), parse_route)
}

/// Rules can match the protocol and the ports. Without a protocol the kernel takes UDP (`inet_rtm_getroute`,
/// net/ipv4/route.c).
fn route_request(source: Option<SocketAddr>, target: SocketAddr) -> Vec<u8> {
    let (mut request, to) = (vec![0; RTMSG], octets(target.ip()));
    (request[0], request[1]) = (family(target.ip()), to.len() as u8 * 8);
    push(&mut request, RTA_DST, &to);
    let Some(source) = source else { return request };
    let from = octets(source.ip());
    request[2] = from.len() as u8 * 8;
    request[8..RTMSG].copy_from_slice(&RTM_F_LOOKUP_TABLE.to_ne_bytes());
    push(&mut request, RTA_SRC, &from);
    push(&mut request, RTA_IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    push(&mut request, RTA_SPORT, &source.port().to_be_bytes());
    push(&mut request, RTA_DPORT, &target.port().to_be_bytes());
    request
}

/// A route of the calling thread's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Its device.
    pub(super) ifindex: u32,
    pub(super) gateway: Option<IpAddr>,
    /// It is of type local: the packets stay in the namespace.
    pub(super) is_local: bool,
    /// The table in which it was found.
    table: u32,
}

/// `None` if the kernel's answer names no device.
fn parse_route(message: &[u8]) -> Option<Route> {
    let rest = message.get(RTMSG..)?;
    // A gateway of the other family comes after two bytes with the family (`struct rtvia`).
    let gateway = attribute(rest, RTA_GATEWAY).or_else(|| attribute(rest, RTA_VIA)?.get(2..)).and_then(address);
    let is_local = message.get(7) == Some(&libc::RTN_LOCAL);
    Some(Route { ifindex: number(rest, RTA_OIF)?, gateway, is_local, table: table(message, RTA_TABLE)? })
}

/// The table of a route or a rule: their headers are alike, and have no room for numbers above 255.
pub(super) fn table(message: &[u8], attr: u16) -> Option<u32> {
    number(message.get(RTMSG..)?, attr).or_else(|| message.get(4).copied().map(u32::from))
}

/// The prefix in an attribute, with its length from the header. `None`: all addresses.
pub(super) fn prefix(attributes: &[u8], number: u16, len: u8) -> Option<Prefix> {
    attribute(attributes, number).and_then(address).filter(|_| len > 0).map(|addr| Prefix { addr, len })
}

pub(super) struct Rule {
    pub(super) from: Option<Prefix>,
    pub(super) to: Option<Prefix>,
    pub(super) table: u32,
    pub(super) priority: u32,
    inverted: bool,
    /// It has no condition but addresses and what the connection is.
    is_understood: bool,
    /// It sends all packets with its addresses to each route of its table.
    pub(super) is_plain: bool,
}

impl Rule {
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let rest = message.get(RULE..)?;
        let inverted = field(message, 8).map(u32::from_ne_bytes)? & INVERT != 0;
        let suppresses = number(rest, FRA_SUPPRESS_PREFIXLEN).is_some_and(|length| length != u32::MAX);
        let tos = *message.get(3)?;
        let is_whole_port = |number, value: &[u8]| PORT_MASKS.contains(&number) && value == WHOLE;
        let has_only_addresses = attributes(rest).all(|(number, _)| UNDERSTOOD.contains(&number));
        let is_known = |(number, value)| {
            UNDERSTOOD.contains(&number) || OF_CONNECTION.contains(&number) || is_whole_port(number, value)
        };
        let is_understood = !inverted && !suppresses && tos == 0 && attributes(rest).all(is_known);
        Some(Self {
            from: prefix(rest, FRA_SRC, *message.get(2)?),
            to: prefix(rest, FRA_DST, *message.get(1)?),
            table: table(message, FRA_TABLE)?,
            priority: number(rest, FRA_PRIORITY).unwrap_or_default(),
            inverted,
            is_understood,
            is_plain: is_understood && has_only_addresses,
        })
    }
}

/// The first rule that sends packets of this connection to this table; `None` if it has a condition that tracer does not
/// understand.
fn rule(source: SocketAddr, target: SocketAddr, table: u32) -> io::Result<Option<RoutingRule>> {
    consistent(|| {
        let mut first = None;
        let mut request = [0; RULE];
        request[0] = family(target.ip());
        Netlink::open(NETLINK_ROUTE)?.dump(RTM_GETRULE, &request, |message| {
            let found = parse_rule(message, source, target, table);
            first = [first.take(), found].into_iter().flatten().min_by_key(|(priority, _)| *priority);
        })?;
        Ok(first.and_then(|(_, rule)| rule))
    })
}

/// The priority of a rule that may send these packets to this table, and the rule itself if it certainly does.
fn parse_rule(
    message: &[u8],
    source: SocketAddr,
    target: SocketAddr,
    table: u32,
) -> Option<(u32, Option<RoutingRule>)> {
    let (rule, rest) = (Rule::parse(message)?, message.get(RULE..)?);
    let Rule { from, to, priority, .. } = rule;
    let holds = |prefix: Option<Prefix>, addr| prefix.is_none_or(|it| it.holds(addr));
    // For rules, the node's own packets have no mark and come in by `lo` (`fib_rule_match`, net/core/fib_rules.c).
    let matches_other_traffic = number(rest, FRA_FWMARK).is_some_and(|mark| mark != 0)
        || attribute(rest, FRA_IIFNAME).is_some_and(|name| text(name) != "lo");
    let ports = ports(rest, source.port(), target.port());
    let fits = holds(from, source.ip()) && holds(to, target.ip()) && ports.is_some() && !matches_other_traffic;
    if rule.table != table || !(fits || rule.inverted) {
        return None;
    }
    let cidr = |Prefix { addr, len }| {
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        if len == whole { addr.to_string() } else { format!("{addr}/{len}") }
    };
    let ports = ports.filter(|ports| !ports.is_empty());
    let named = RoutingRule { priority, from: from.map(cidr), to: to.map(cidr), ports };
    Some((priority, rule.is_understood.then_some(named)))
}

/// The conditions of a rule on protocol, ports and uid, as `ip rule` shows them; `None` if a TCP connection of root
/// between these ports does not meet them.
fn ports(rule: &[u8], source: u16, target: u16) -> Option<String> {
    let range = |number, name, own: u16| {
        let ends = attribute(rule, number)?;
        let [first, last] = [0, 2].map(|at| field(ends, at).map(u16::from_ne_bytes).unwrap_or_default());
        let words = if first == last { format!("{name} {first}") } else { format!("{name} {first}-{last}") };
        Some(((first..=last).contains(&own), words))
    };
    let uids = |ends| {
        let [first, last] = [0, 4].map(|at| field(ends, at).map_or(u32::MAX, u32::from_ne_bytes));
        (first == 0, format!("uidrange {first}-{last}"))
    };
    let conditions = [
        attribute(rule, FRA_IP_PROTO).map(|it| (it == [libc::IPPROTO_TCP as u8], "ipproto tcp".to_owned())),
        range(FRA_SPORT_RANGE, "sport", source),
        range(FRA_DPORT_RANGE, "dport", target),
        attribute(rule, FRA_UID_RANGE).map(uids),
    ];
    let (met, words): (Vec<bool>, Vec<String>) = conditions.into_iter().flatten().unzip();
    met.iter().all(|it| *it).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_to_loopback_uses_lo_and_is_in_a_usual_table() {
        for own in ["127.0.0.1:80", "[::1]:80"].map(|own| own.parse::<SocketAddr>().expect("an address")) {
            for route in [route(own, own), route_to(own)] {
                let Ok(Some(route)) = route else {
                    assert!(own.is_ipv6(), "without IPv6 there is no such route: {route:?}");
                    continue;
                };
                assert_eq!((route.ifindex, route.gateway, route.is_local), (1, None, true));
                // Without further rules the kernel keeps the tables local and main in one (`fib_trie_unmerge`,
                // net/ipv4/fib_trie.c).
                assert!((253..=255).contains(&route.table), "{route:?}");
            }
        }
    }

    #[test]
    fn a_device_of_open_vswitch_leads_to_its_ports() {
        let link = |ifindex, kind: &str, master| Link {
            state: LinkState { ifindex, master, ..LinkState::default() },
            kind: Some(kind.to_owned()),
            ..Link::default()
        };
        let of = |device: &str, master: &str| {
            let (gateway, end) = (link(900_007, device, None), link(900_008, "veth", Some(900_009)));
            leads_to(&gateway, &end, Some(&link(900_009, master, None)))
        };
        assert!(of("openvswitch", "openvswitch"));
        assert!(!of("openvswitch", "bridge") && !of("dummy", "openvswitch"));
    }

    #[test]
    fn a_route_has_a_device_and_may_have_a_gateway_of_either_family() {
        let parsed = |gateway: &[u8]| {
            let device = [8, 0, 4, 0, 2, 0, 0, 0];
            let route = parse_route(&[&[0; RTMSG], device.as_slice(), gateway].concat());
            route.map(|it| (it.ifindex, it.gateway, it.is_local))
        };
        let over = |gateway: &str| Some((2, Some(gateway.parse().expect("an address")), false));
        assert_eq!(parsed(&[]), Some((2, None, false)));
        assert_eq!(parsed(&[8, 0, 5, 0, 10, 0, 0, 1]), over("10.0.0.1"));
        let via = [&[22, 0, 18, 0, 10, 0, 0xfe, 0x80], [0; 13].as_slice(), &[1, 0, 0]].concat();
        assert_eq!(parsed(&via), over("fe80::1"));
        assert_eq!(parse_route(&[0; RTMSG]), None);
    }

    #[test]
    fn the_route_is_that_of_a_tcp_connection() {
        let (source, target) = (([10, 0, 1, 5], 40_000).into(), ([10, 88, 0, 2], 8080).into());
        let request = route_request(Some(source), target);
        let value = |number| attribute(&request[RTMSG..], number).map(<[u8]>::to_vec);
        assert_eq!(value(RTA_IP_PROTO), Some(vec![6]));
        assert_eq!(value(RTA_SPORT), Some(40_000_u16.to_be_bytes().to_vec()));
        assert_eq!(value(RTA_DPORT), Some(8080_u16.to_be_bytes().to_vec()));
        assert_eq!((value(RTA_DST), value(RTA_SRC)), (Some(vec![10, 88, 0, 2]), Some(vec![10, 0, 1, 5])));
    }

    const FROM: [u8; 4] = [10, 0, 1, 5];

    /// A rule to table 101 with priority 7, from this network, with these flags and further attributes.
    fn message(source: [u8; 4], length: u8, flags: u8, more: &[(u16, [u8; 4])]) -> Vec<u8> {
        let mut bytes = vec![libc::AF_INET as u8, 0, length, 0, 101, 0, 0, 1];
        bytes.extend_from_slice(&u32::from(flags).to_ne_bytes());
        let fields = [(FRA_SRC, source), (FRA_TABLE, 101_u32.to_ne_bytes()), (FRA_PRIORITY, 7_u32.to_ne_bytes())];
        for (number, value) in fields.iter().chain(more) {
            push(&mut bytes, *number, value);
        }
        bytes
    }

    fn read(bytes: &[u8], table: u32) -> Option<(u32, Option<RoutingRule>)> {
        parse_rule(bytes, (FROM, 40_000).into(), ([10, 88, 0, 2], 8080).into(), table)
    }

    #[test]
    fn a_rule_is_understood_as_far_as_its_addresses_go() {
        let rule = message([10, 0, 1, 0], 24, 0, &[(FRA_SUPPRESS_PREFIXLEN, [255; 4])]);
        let named = RoutingRule { priority: 7, from: Some("10.0.1.0/24".to_owned()), to: None, ports: None };
        assert_eq!(read(&rule, 101), Some((7, Some(named))));
        assert_eq!((read(&rule, 102), read(&message([10, 0, 2, 5], 32, 0, &[]), 101)), (None, None));
        let marked = message(FROM, 32, 0, &[(FRA_FWMARK, 1_u32.to_ne_bytes())]);
        assert_eq!(read(&marked, 101), None, "packets of the kubelet have no mark");
        let (from_lo, from_eth0) = ((FRA_IIFNAME, *b"lo\0\0"), (FRA_IIFNAME, *b"eth0"));
        assert_eq!(read(&message(FROM, 32, 0, &[from_lo]), 101), Some((7, None)));
        assert_eq!(read(&message(FROM, 32, 0, &[from_eth0]), 101), None, "packets of the kubelet come in by no device");
    }

    #[test]
    fn a_rule_for_a_port_is_named_with_it_if_it_is_the_connections() {
        let range = |first: u16, last: u16| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
        let uids = |first: u32, last: u32| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
        let named = |conditions: &[(u16, Vec<u8>)]| {
            let mut rule = message(FROM, 32, 0, &[]);
            conditions.iter().for_each(|(number, value)| push(&mut rule, *number, value));
            read(&rule, 101).map(|(_, rule)| rule.map(|rule| rule.ports))
        };
        let (tcp, port) = ((FRA_IP_PROTO, vec![6]), (FRA_DPORT_RANGE, range(8080, 8080)));
        for (conditions, words) in [
            (vec![tcp.clone(), port.clone(), (29, vec![255, 255])], Some("ipproto tcp dport 8080")),
            (vec![(FRA_SPORT_RANGE, range(32_768, 60_999))], Some("sport 32768-60999")),
            (vec![(FRA_UID_RANGE, uids(0, 0)), tcp.clone()], Some("ipproto tcp uidrange 0-0")),
        ] {
            assert_eq!(named(&conditions), Some(Some(words.map(str::to_owned))), "{conditions:?}");
        }
        assert_eq!(named(&[port, (29, vec![255, 0])]), Some(None), "it is for many ports");
        for conditions in [
            vec![(FRA_IP_PROTO, vec![17])],
            vec![tcp, (FRA_DPORT_RANGE, range(8081, 9000))],
            vec![(FRA_SPORT_RANGE, range(1, 1023))],
            vec![(FRA_UID_RANGE, uids(1000, 1999))],
        ] {
            assert_eq!(named(&conditions), None, "{conditions:?}");
        }
    }

    /// `FRA_OIFNAME`, `FRA_L3MDEV`, `FRA_FLOW`.
    #[test]
    fn a_rule_with_a_condition_that_is_not_understood_is_not_named() {
        for number in [17, 19, 11] {
            assert_eq!(read(&message(FROM, 32, 0, &[(number, [0; 4])]), 101), Some((7, None)), "{number}");
        }
        let suppressing = message(FROM, 32, 0, &[(FRA_SUPPRESS_PREFIXLEN, [0; 4])]);
        assert_eq!(read(&suppressing, 101), Some((7, None)), "it skips some routes of that table");
        let inverted = message([10, 0, 2, 5], 32, INVERT as u8, &[]);
        assert_eq!(read(&inverted, 101), Some((7, None)), "not from 10.0.2.5");
        let mut tos = message(FROM, 32, 0, &[]);
        tos[3] = 0x10;
        assert_eq!(read(&tos, 101), Some((7, None)));
    }
}
