//! Where the node's rules of routing send what goes to a pod, if that is not to the pod's own device.

use std::io;
use std::net::IpAddr;

use netlink_sys::protocols::NETLINK_ROUTE;

use super::links;
use super::netlink::{Netlink, attribute, consistent, field};
use tracer_model::event::{LinkState, RoutingRule, StrayRoute};

const RTM_GETROUTE: u16 = 26;
const RTM_GETRULE: u16 = 34;
/// `struct rtmsg`: family, lengths of the prefixes, tos, table, protocol, scope, type, flags.
const RTMSG: usize = 12;
/// `RTM_F_LOOKUP_TABLE`: the answer has the table in which the route was found.
const LOOKUP_TABLE: u32 = 0x1000;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
/// `struct fib_rule_hdr`: family, lengths of the prefixes, tos, table, two reserved, action, flags.
const RULE: usize = 12;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
/// `RT_TABLE_DEFAULT`, `RT_TABLE_MAIN`, `RT_TABLE_LOCAL`: those of every node.
const USUAL: std::ops::RangeInclusive<u32> = 253..=255;

/// The route of the calling thread's namespace to an address of a pod that is behind this link of its own; `None` if it leads
/// to that link's other end, or no rule of the node's decides it.
pub(super) fn stray_route(source: IpAddr, target: IpAddr, link: &LinkState) -> Option<StrayRoute> {
    let end = links::by_index(link.peer_ifindex?).ok()??;
    // The two ends of a veth pair name each other. What names another is behind no device of this namespace.
    if end.state.peer_ifindex != Some(link.ifindex) {
        return None;
    }
    let (device, table) = route(source, target).ok()??;
    if device == end.state.ifindex || Some(device) == end.master || USUAL.contains(&table) {
        return None;
    }
    let name = links::by_index(device).ok()??.state.name;
    let pod_device = end.state.name;
    Some(StrayRoute { device: name, pod_device, table, rule: rule(source, target, table).ok().flatten() })
}

/// The device of the route, and the table in which it was found.
fn route(source: IpAddr, target: IpAddr) -> io::Result<Option<(u32, u32)>> {
    let (from, to) = (octets(source), octets(target));
    let mut request = vec![0; RTMSG];
    (request[0], request[1], request[2]) = (family_of(target), bits(&to), bits(&from));
    request[8..].copy_from_slice(&LOOKUP_TABLE.to_ne_bytes());
    for (number, bytes) in [(RTA_DST, to), (RTA_SRC, from)] {
        request.extend_from_slice(&(4 + bytes.len() as u16).to_ne_bytes());
        request.extend_from_slice(&number.to_ne_bytes());
        request.extend_from_slice(&bytes);
    }
    let mut found = None;
    Netlink::open(NETLINK_ROUTE)?.ask(RTM_GETROUTE, &request, |message| found = parse_route(message))?;
    Ok(found)
}

fn parse_route(message: &[u8]) -> Option<(u32, u32)> {
    let rest = message.get(RTMSG..)?;
    let value = |number| attribute(rest, number).and_then(|value| field(value, 0)).map(u32::from_ne_bytes);
    Some((value(RTA_OIF)?, value(RTA_TABLE).or_else(|| message.get(4).copied().map(u32::from))?))
}

/// The first rule that sends packets from and to these addresses to this table.
fn rule(source: IpAddr, target: IpAddr, table: u32) -> io::Result<Option<RoutingRule>> {
    consistent(|| {
        let mut first: Option<RoutingRule> = None;
        let mut request = [0; RULE];
        request[0] = family_of(target);
        Netlink::open(NETLINK_ROUTE)?.dump(RTM_GETRULE, &request, |message| {
            let found = parse_rule(message, source, target, table);
            first = [first.take(), found].into_iter().flatten().min_by_key(|it| it.priority);
        })?;
        Ok(first)
    })
}

/// Of one with a condition that is not known here, nothing.
fn parse_rule(message: &[u8], source: IpAddr, target: IpAddr, table: u32) -> Option<RoutingRule> {
    let rest = message.get(RULE..)?;
    let value = |number| attribute(rest, number).and_then(|value| field(value, 0)).map(u32::from_ne_bytes);
    let prefix = |number, length: usize| {
        let prefix = attribute(rest, number).and_then(address).zip(message.get(length).copied());
        prefix.filter(|(_, length)| *length > 0)
    };
    let (to, from) = (prefix(FRA_DST, 1), prefix(FRA_SRC, 2));
    let holds = |prefix: Option<(IpAddr, u8)>, it: IpAddr| {
        prefix.is_none_or(|(net, length)| tracer_model::event::same_subnet(net, it, length))
    };
    let marked = value(FRA_FWMARK).is_some_and(|mark| mark != 0) || attribute(rest, FRA_IIFNAME).is_some();
    let words = |(net, length): (IpAddr, u8)| {
        let whole = if net.is_ipv4() { 32 } else { 128 };
        if length == whole { net.to_string() } else { format!("{net}/{length}") }
    };
    let fits = value(FRA_TABLE) == Some(table) && holds(from, source) && holds(to, target) && !marked;
    fits.then(|| RoutingRule {
        priority: value(FRA_PRIORITY).unwrap_or_default(),
        from: from.map(words),
        to: to.map(words),
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(field::<4>(bytes, 0)?.into()),
        16 => Some(field::<16>(bytes, 0)?.into()),
        _ => None,
    }
}

const fn family_of(addr: IpAddr) -> u8 {
    (if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(addr: IpAddr) -> Vec<u8> {
    match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    }
}

const fn bits(bytes: &[u8]) -> u8 {
    bytes.len() as u8 * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_route_to_ourselves_is_in_a_usual_table() {
        let own = IpAddr::from([127, 0, 0, 1]);
        let table = route(own, own).expect("rtnetlink").map(|(_, table)| table);
        // Without a rule of its own the kernel keeps both in one (`fib_trie_unmerge`, net/ipv4/fib_trie.c).
        assert!(table.is_some_and(|table| USUAL.contains(&table)), "{table:?}");
    }

    #[test]
    fn a_rule_is_understood_as_far_as_its_addresses_go() {
        let message = |source: [u8; 4], length: u8, more: &[(u16, [u8; 4])]| {
            let mut bytes = vec![libc::AF_INET as u8, 0, length, 0, 101, 0, 0, 1, 0, 0, 0, 0];
            let fields = [(FRA_SRC, source), (FRA_TABLE, 101_u32.to_ne_bytes()), (FRA_PRIORITY, 7_u32.to_ne_bytes())];
            for (number, value) in fields.iter().chain(more) {
                bytes.extend_from_slice(&8_u16.to_ne_bytes());
                bytes.extend_from_slice(&number.to_ne_bytes());
                bytes.extend_from_slice(value);
            }
            bytes
        };
        let (source, target) = (IpAddr::from([10, 0, 1, 5]), IpAddr::from([10, 88, 0, 2]));
        let read = |bytes: &[u8], table| parse_rule(bytes, source, target, table).map(|it| (it.priority, it.from));
        let rule = message([10, 0, 1, 0], 24, &[]);
        assert_eq!(read(&rule, 101), Some((7, Some("10.0.1.0/24".to_owned()))));
        assert_eq!((read(&rule, 102), read(&message([10, 0, 2, 5], 32, &[]), 101)), (None, None));
        let marked = message([10, 0, 1, 5], 32, &[(FRA_FWMARK, 1_u32.to_ne_bytes())]);
        assert_eq!(read(&marked, 101), None, "what the kubelet sends has no mark");
    }
}
