//! Routing rules and routes of the node that a process removes in bulk, from rtnetlink.
//!
//! The kernel reports each removal to all listeners, with the netlink port of the socket that requested it
//! (`rtmsg_fib`, net/ipv4/fib_semantics.c; `notify_rule_change`, net/core/fib_rules.c). The port is 0 if the kernel
//! removes by itself.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use libc::{
    RTA_DST, RTA_PRIORITY, RTA_TABLE, RTM_DELROUTE, RTM_DELRULE, RTM_F_CLONED, RTM_NEWROUTE, RTM_NEWRULE, RTN_UNICAST,
    RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE,
};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::clock::boot_ns;
use super::links::LinkError;
use super::netlink::{Message, Netlink, attribute, field, messages, number};
use super::policy::{RTMSG, Rule, prefix, table};
use super::procfs::NodeNetns;
use super::removers::of_port;
use tracer_model::event::{BULK, FlushedRules, Netns, RemovedRoute, Remover, RulesFlushed};

/// How many removals are remembered at once, and how many of them each flush reports.
const MOST_REMOVED: usize = 4096;
const MOST_KEPT: usize = 256;
/// A process that replaces rules removes the old ones first. It has this long to add them again.
const QUIET: Duration = Duration::from_secs(1);
/// A flush that goes on is reported after this time.
const LONGEST: Duration = Duration::from_secs(5);

/// A series of removals that follow each other closely.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    began: Instant,
    last: Instant,
    /// When it began, CLOCK_BOOTTIME nanoseconds.
    pub since_boot_ns: u64,
}

impl Burst {
    #[must_use]
    pub fn begin(now: Instant) -> Self {
        Self { began: now, last: now, since_boot_ns: boot_ns() }
    }

    pub const fn extend(&mut self, now: Instant) {
        self.last = now;
    }

    pub fn due(&self) -> Instant {
        (self.last + QUIET).min(self.began + LONGEST)
    }
}

/// Listens for changes of the routing rules and routes of a namespace.
pub struct RoutingWatch {
    socket: Netlink,
    removals: Removals,
}

impl RoutingWatch {
    /// Subscribes inside the node's namespace.
    pub fn open(node: &NodeNetns) -> Result<Self, LinkError> {
        let groups = [RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE];
        let socket = node.enter(|| Netlink::subscribe(NETLINK_ROUTE, &groups))?.map_err(LinkError::Flushes)?;
        Ok(Self { socket, removals: Removals::default() })
    }

    /// Reads the reports that have arrived in the namespace of this node. Never blocks.
    pub fn read_reports(&mut self, node: &NodeNetns) {
        let now = Instant::now();
        self.socket.drain(|message| self.removals.see(message, now, |port| of_port(port, node)));
    }

    /// When the next flush can be [taken](Self::take).
    pub fn due(&self) -> Option<Instant> {
        self.removals.bursts.values().map(|removal| removal.burst.due()).min()
    }

    /// The rules and routes that were removed in bulk and not added again.
    pub fn take(&mut self, node: &NodeNetns) -> Vec<RulesFlushed> {
        self.removals.take(node.netns, Instant::now())
    }

    /// For `poll(2)`.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether it is a rule (else a route), and whether it is of IPv6.
type Kind = (bool, bool);

#[derive(Default)]
struct Removals {
    bursts: BTreeMap<Kind, Removal>,
}

struct Removal {
    burst: Burst,
    /// The removed rules or routes by their identity, each with the port of the socket that removed it.
    gone: BTreeMap<Vec<u8>, (RemovedRoute, u32)>,
    /// The process of each port, if it was found.
    by: BTreeMap<u32, Option<Remover>>,
}

impl Removals {
    /// Adds a report. `None`: reports were lost. They may have shown that rules were added again, so all bursts end
    /// unreported.
    fn see(&mut self, message: Option<Message<'_>>, now: Instant, by: impl FnOnce(u32) -> Option<Remover>) {
        let Some(message) = message else { return self.bursts.clear() };
        let is_rule = matches!(message.kind, RTM_NEWRULE | RTM_DELRULE);
        let parsed = if is_rule { rule(message.payload) } else { route(message.payload) };
        let Some((name, route)) = parsed else { return };
        let kind = (is_rule, route.v6);
        match message.kind {
            RTM_DELRULE | RTM_DELROUTE if message.port != 0 => {
                let begun = || Removal { burst: Burst::begin(now), gone: BTreeMap::new(), by: BTreeMap::new() };
                let removal = self.bursts.entry(kind).or_insert_with(begun);
                removal.burst.extend(now);
                if removal.gone.len() < MOST_REMOVED {
                    removal.gone.insert(name, (route, message.port));
                    removal.by.entry(message.port).or_insert_with(|| by(message.port));
                }
            }
            RTM_NEWRULE | RTM_NEWROUTE => {
                if let Some(removal) = self.bursts.get_mut(&kind) {
                    removal.gone.remove(&name);
                }
            }
            _ => {}
        }
    }

    fn take(&mut self, netns: Netns, now: Instant) -> Vec<RulesFlushed> {
        let over = self.bursts.extract_if(.., |_, removal| removal.burst.due() <= now);
        over.flat_map(|(kind, removal)| removal.flushed(netns, kind)).collect()
    }
}

/// Reads any bytes as reports, for a fuzz target.
#[doc(hidden)]
pub fn fuzz_reports(bytes: &[u8]) {
    let mut removals = Removals::default();
    messages(Some(bytes), &mut |message| removals.see(message, Instant::now(), |_| None));
    assert!(removals.bursts.values().all(|removal| removal.gone.len() <= MOST_REMOVED));
}

impl Removal {
    /// What each process removed. `ip rule flush` opens a socket for each rule, and the process often ends too early to
    /// be found. Therefore removals without a known process count together.
    fn flushed(self, netns: Netns, (is_rule, _): Kind) -> Vec<RulesFlushed> {
        let mut of_each: Vec<(Option<Remover>, Vec<RemovedRoute>)> = Vec::new();
        for (route, port) in self.gone.into_values() {
            let by = self.by.get(&port).cloned().flatten();
            match of_each.iter_mut().find(|(other, _)| *other == by) {
                Some((_, routes)) => routes.push(route),
                None => of_each.push((by, vec![route])),
            }
        }
        let in_bulk = of_each.into_iter().filter(|(_, routes)| routes.len() >= BULK);
        in_bulk
            .map(|(by, mut routes)| {
                let (count, since_boot_ns) = (routes.len(), self.burst.since_boot_ns);
                routes.truncate(MOST_KEPT);
                let rules = if is_rule { FlushedRules::Rules(routes) } else { FlushedRules::Routes(routes) };
                RulesFlushed { netns, since_boot_ns, count, incomplete: count >= MOST_REMOVED, rules, by }
            })
            .collect()
    }
}

/// The identity of a rule, which is its whole message, and the addresses that it applied to.
fn rule(message: &[u8]) -> Option<(Vec<u8>, RemovedRoute)> {
    let Rule { from, to, table, priority, is_plain, .. } = Rule::parse(message)?;
    let (v6, priority) = (is_v6(message)?, Some(priority));
    Some((message.to_vec(), RemovedRoute { v6, from, to, narrower: !is_plain, table, priority }))
}

/// The identity of a route (subnet, table, priority, type of service), and the addresses that it applied to.
/// Cached entries are skipped, and all types but unicast.
fn route(message: &[u8]) -> Option<(Vec<u8>, RemovedRoute)> {
    let rest = message.get(RTMSG..)?;
    let is_cloned = field(message, 8).map(u32::from_ne_bytes)? & RTM_F_CLONED != 0;
    if *message.get(7)? != RTN_UNICAST || is_cloned {
        return None;
    }
    let to = prefix(rest, RTA_DST, *message.get(1)?);
    let table = table(message, RTA_TABLE)?;
    let priority = number(rest, RTA_PRIORITY).unwrap_or_default();
    let mut name = vec![*message.get(1)?, *message.get(3)?];
    name.extend_from_slice(attribute(rest, RTA_DST).unwrap_or_default());
    name.extend(priority.to_ne_bytes().into_iter().chain(table.to_ne_bytes()));
    let tos = *message.get(3)?;
    Some((name, RemovedRoute { v6: is_v6(message)?, from: None, to, narrower: tos != 0, table, priority: None }))
}

fn is_v6(message: &[u8]) -> Option<bool> {
    match i32::from(*message.first()?) {
        libc::AF_INET => Some(false),
        libc::AF_INET6 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::push;
    use super::super::policy::{FRA_DST, FRA_PRIORITY, FRA_TABLE};
    use super::*;
    use std::net::IpAddr;

    const PID: u32 = 412;

    fn by(pid: u32) -> Option<Remover> {
        (pid == PID).then(|| Remover { pid, comm: "systemd-network".into(), exe: None, ancestors: Vec::new() })
    }

    /// A rule that sends packets to this address to table 101.
    fn a_rule(to: u8) -> Vec<u8> {
        let mut bytes = vec![libc::AF_INET as u8, 32, 0, 0, 101, 0, 0, 1, 0, 0, 0, 0];
        push(&mut bytes, FRA_DST, &[10, 88, 0, to]);
        push(&mut bytes, FRA_TABLE, &101_u32.to_ne_bytes());
        push(&mut bytes, FRA_PRIORITY, &7_u32.to_ne_bytes());
        bytes
    }

    /// A route to this subnet, of this type.
    fn a_route(to: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![libc::AF_INET as u8, 24, 0, 0, 254, 3, 0, kind, 0, 0, 0, 0];
        push(&mut bytes, RTA_DST, &[10, 88, to, 0]);
        push(&mut bytes, RTA_TABLE, &254_u32.to_ne_bytes());
        bytes
    }

    /// The flushes after these messages, each with its kind and its port.
    fn flushed(messages: &[(u16, u32, Vec<u8>)]) -> Vec<RulesFlushed> {
        let (mut removals, now) = (Removals::default(), Instant::now());
        for (kind, port, payload) in messages {
            removals.see(Some(Message { kind: *kind, port: *port, payload }), now, by);
        }
        assert!(removals.take(Netns(1), now).is_empty(), "they may come back");
        removals.take(Netns(1), now + QUIET)
    }

    fn removed(count: u8, port: impl Fn(u8) -> u32) -> Vec<(u16, u32, Vec<u8>)> {
        (1..=count).map(|n| (RTM_DELRULE, port(n), a_rule(n))).collect()
    }

    #[test]
    fn three_rules_that_one_process_removes_are_a_flush() {
        let all = flushed(&removed(3, |_| PID));
        let [RulesFlushed { count: 3, rules: FlushedRules::Rules(gone), by: Some(by), .. }] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert_eq!((by.pid, gone[0].table, gone[0].priority), (PID, 101, Some(7)));
        let [from, to] = ["10.0.0.1", "10.88.0.2"].map(|addr| addr.parse::<IpAddr>().expect("an address"));
        assert_eq!((gone[0].applied_to(from, to), gone[1].applied_to(from, to)), (false, true));
        assert!(flushed(&removed(2, |_| PID)).is_empty(), "a CNI plugin removes two for a pod");
    }

    #[test]
    fn few_removals_each_of_several_processes_are_no_flush_but_those_of_unknown_processes_count_together() {
        let of_plugins = |n: u8| if n < 3 { PID } else { 9 };
        assert!(flushed(&removed(4, of_plugins)).is_empty());
        assert_eq!(flushed(&removed(3, |n| 4_000_000_000 + u32::from(n))).len(), 1, "`ip rule flush`");
    }

    #[test]
    fn rules_added_again_or_removed_by_the_kernel_are_no_flush() {
        let mut back = removed(3, |_| PID);
        back.push((RTM_NEWRULE, 9, a_rule(2)));
        assert!(flushed(&back).is_empty());
        assert!(flushed(&removed(3, |_| 0)).is_empty());
    }

    #[test]
    fn only_unicast_routes_are_a_flush() {
        let routes = |kind| (1..=3).map(|n| (RTM_DELROUTE, PID, a_route(n, kind))).collect::<Vec<_>>();
        let all = flushed(&routes(RTN_UNICAST));
        let [RulesFlushed { count, rules: FlushedRules::Routes(_), by, .. }] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert!(*count == 3 && by.is_some(), "{all:?}");
        assert!(flushed(&routes(libc::RTN_LOCAL)).is_empty());
    }

    /// The lost messages may say that the rules were added again.
    #[test]
    fn a_lost_message_ends_all_bursts_without_a_report() {
        let (mut removals, now) = (Removals::default(), Instant::now());
        for n in 1..=3 {
            removals.see(Some(Message { kind: RTM_DELRULE, port: PID, payload: &a_rule(n) }), now, by);
        }
        removals.see(None, now, by);
        assert!(removals.take(Netns(1), now + LONGEST).is_empty());
    }

    #[test]
    fn truncated_messages_are_skipped() {
        for length in 0..a_rule(1).len() {
            let cut = |mut whole: Vec<u8>| {
                whole.truncate(length);
                whole
            };
            let all = flushed(&[(RTM_DELRULE, PID, cut(a_rule(1))), (RTM_DELROUTE, PID, cut(a_route(1, RTN_UNICAST)))]);
            assert!(all.is_empty());
        }
    }
}
