//! The links of namespaces, and the processes that set them up or down.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use tracer_model::event::{LinkChange, LinkState, Links, Netns, Prefix};
use tracer_model::recent::Recent;

/// How many namespaces are kept: a prober that restarts in new namespaces must not fill the memory.
const MAX_TABLES: usize = 256;
/// How many links are kept with their last change.
const MAX_CHANGES: usize = 512;

/// How many changes of one namespace are kept that took routes with them, as many of ports that left a bridge, and for
/// how many namespaces. A pod that sets its link down again and again must not push out those of the node.
const MAX_LOST_ROUTES: usize = 16;
const MAX_LOSERS: usize = 64;
/// How many reached targets are kept of each.
const MAX_REACHED: usize = 512;

/// tracer observes that a link is set down before its flag is off. In between, `__dev_close_many` (net/core/dev.c)
/// waits for an RCU grace period. A reading so soon after may have the old flag.
pub const FLAG_LAG_NS: u64 = 500_000_000;

/// The number of every namespace's own loopback device (include/net/flow.h, `LOOPBACK_IFINDEX`).
pub const LOOPBACK: u32 = 1;

/// When each target was reached first.
type Reached = BTreeMap<IpAddr, u64>;

/// The links of namespaces.
#[derive(Debug, Default)]
pub struct KnownLinks {
    tables: Recent<Netns, Vec<LinkState>, MAX_TABLES>,
    /// The last change of each link, by its number. CNI plugins give the name of a link to the next one, and rename links.
    changes: Recent<(Netns, u32), (u64, LinkChange), MAX_CHANGES>,
    /// The IPv6 subnets that a link had when it went down. The kernel removes them then (`addrconf_ifdown`,
    /// net/ipv6/addrconf.c).
    lost: Recent<(Netns, u32), Vec<Prefix>, MAX_CHANGES>,
    /// What took routes, each with the targets that were reached later, and when: for these it was repaired, or it did no harm.
    lost_routes: Recent<Netns, VecDeque<(LostRoutes, Reached)>, MAX_LOSERS>,
    /// The addresses that no link of a namespace has any more, and when that was read first.
    lost_addrs: Recent<(Netns, IpAddr), u64, MAX_CHANGES>,
}

/// The routes over a link went or lead nowhere: it was set down, has lost an address, or has left its bridge.
#[derive(Clone, Debug)]
pub struct LostRoutes {
    pub time: u64,
    pub netns: Netns,
    pub ifindex: u32,
    pub why: LostBy,
}

impl LostRoutes {
    /// The bridge that it has left.
    const fn bridge(&self) -> Option<u32> {
        match self.why {
            LostBy::Bridge(bridge) => Some(bridge),
            LostBy::SetDown(_) | LostBy::Addresses(_) => None,
        }
    }
}

/// Why a link has lost routes.
#[derive(Clone, Debug)]
pub enum LostBy {
    /// It was set down. It may be up again: only the route of its own subnet comes back with it.
    SetDown(Box<LinkChange>),
    /// It is up, and no longer has these addresses.
    Addresses(Vec<Prefix>),
    /// It is there, and no longer a port of the bridge with this index.
    Bridge(u32),
}

impl KnownLinks {
    pub(super) fn observe(&mut self, time: u64, links: &Links) {
        for link in &links.links {
            self.observe_lost(time, links.netns, link);
            self.observe_lost_addresses(time, links.netns, link);
            self.observe_lost_bridge(time, links.netns, link);
        }
        // Pods come and go with their links: those must not push out the links that stay. Without its bridge, a port has
        // nothing to be attached to again.
        let stays = |ifindex| links.links.iter().any(|link| link.ifindex == ifindex);
        if let Some(lost) = self.lost_routes.get_mut(&links.netns) {
            lost.retain(|(it, _)| stays(it.ifindex) && it.bridge().is_none_or(stays));
        }
        self.observe_addresses(time, links);
        self.tables.insert(links.netns, links.links.clone());
    }

    fn observe_addresses(&mut self, time: u64, now: &Links) {
        let there: BTreeSet<IpAddr> = now.links.iter().flat_map(|link| link.addrs.iter().copied()).collect();
        for link in self.tables.get(&now.netns).into_iter().flatten() {
            for addr in link.addrs.iter().filter(|addr| !there.contains(addr)) {
                self.lost_addrs.insert((now.netns, *addr), time);
            }
        }
        self.lost_addrs.retain(|(netns, addr), _| *netns != now.netns || !there.contains(addr));
    }

    /// Keeps the IPv6 subnets of a link that is down now, as they were read before.
    fn observe_lost(&mut self, time: u64, netns: Netns, now: &LinkState) {
        let key = (netns, now.ifindex);
        // Where functions cannot be hooked, no event shows that a link is set up again.
        let may_lag = |(at, _): &(u64, LinkChange)| time < at.saturating_add(FLAG_LAG_NS);
        if now.up && !self.down(netns, now.ifindex).is_some_and(may_lag) {
            self.lost.remove(&key);
            return;
        }
        let before = self.get(&netns).and_then(|links| links.iter().find(|link| link.ifindex == now.ifindex));
        let held: Vec<Prefix> =
            before.into_iter().flat_map(LinkState::subnets).filter(|it| it.addr.is_ipv6()).collect();
        if !held.is_empty() {
            self.lost.insert(key, held);
        }
    }

    /// Keeps the addresses that a link had when the links were read before, and no longer has.
    fn observe_lost_addresses(&mut self, time: u64, netns: Netns, now: &LinkState) {
        let before = self.by_index(netns, now.ifindex).filter(|_| now.up && !now.loopback);
        let is_lost = |subnet: &Prefix| !now.subnets().any(|own| own == *subnet);
        let lost: Vec<Prefix> = before.into_iter().flat_map(LinkState::subnets).filter(is_lost).collect();
        if !lost.is_empty() {
            self.keep_lost_routes(LostRoutes { time, netns, ifindex: now.ifindex, why: LostBy::Addresses(lost) });
        }
    }

    fn observe_lost_bridge(&mut self, time: u64, netns: Netns, now: &LinkState) {
        let before = self.by_index(netns, now.ifindex).and_then(|link| link.master);
        if let Some(bridge) = before.filter(|before| now.master != Some(*before)) {
            self.keep_lost_routes(LostRoutes { time, netns, ifindex: now.ifindex, why: LostBy::Bridge(bridge) });
        }
    }

    /// Many ports may leave a bridge at once: they push out only each other.
    fn keep_lost_routes(&mut self, lost: LostRoutes) {
        let kept = self.lost_routes.or_default(lost.netns);
        let is_alike = |(it, _): &(LostRoutes, _)| it.bridge().is_some() == lost.bridge().is_some();
        if kept.iter().filter(|it| is_alike(it)).count() >= MAX_LOST_ROUTES {
            let oldest = kept.iter().position(is_alike);
            oldest.and_then(|at| kept.remove(at));
        }
        kept.push_back((lost, Reached::new()));
    }

    /// A connection from this namespace to this target was established.
    pub fn observe_reached(&mut self, time: u64, netns: Netns, target: IpAddr) {
        let lost = self.lost_routes.get_mut(&netns).into_iter().flatten();
        for (_, reached) in lost.filter(|(_, reached)| reached.len() < MAX_REACHED) {
            reached.entry(target).or_insert(time);
        }
    }

    /// What took routes of a namespace before `time`, and kept packets from the target until `over`; the last one first.
    pub fn lost_routes(
        &self,
        netns: Netns,
        time: u64,
        (target, over): (IpAddr, u64),
    ) -> impl Iterator<Item = &LostRoutes> {
        let all = self.lost_routes.get(&netns).into_iter().flatten().rev();
        let keeps = move |reached: &Reached| reached.get(&target).is_none_or(|at| *at > over);
        all.filter(move |(it, reached)| it.time <= time && keeps(reached)).map(|(it, _)| it)
    }

    /// Keeps a change. Hundreds of pods' links come and go, so a full table drops the node's own loopback last.
    pub(super) fn observe_change(&mut self, time: u64, change: &LinkChange, node: Option<Netns>) {
        let links = self.tables.get_mut(&change.netns).into_iter().flatten();
        if let Some(link) = links.into_iter().find(|link| link.ifindex == change.ifindex) {
            link.up = change.up;
        }
        // A pod that ends sets its links down. Of one that lives they are up again, without the routes.
        let down = match Some(change.netns) == node {
            true => Some((time, change.clone())).filter(|_| !change.up),
            false => self.down(change.netns, change.ifindex).filter(|_| change.up).cloned(),
        };
        if let Some((time, down)) = down.filter(|_| change.ifindex != LOOPBACK) {
            let why = LostBy::SetDown(Box::new(down));
            self.keep_lost_routes(LostRoutes { time, netns: change.netns, ifindex: change.ifindex, why });
        }
        let spared = |(netns, ifindex): &(Netns, u32)| Some(*netns) == node && *ifindex == LOOPBACK;
        self.changes.insert_sparing((change.netns, change.ifindex), (time, change.clone()), spared);
    }

    /// Another namespace has this number now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.tables.remove(&netns);
        self.changes.retain(|(of, _), _| *of != netns);
        self.lost.retain(|(of, _), _| *of != netns);
        self.lost_routes.remove(&netns);
        self.lost_addrs.retain(|(of, _), _| *of != netns);
    }

    /// The links of a namespace, if it was read.
    pub fn get(&self, netns: &Netns) -> Option<&[LinkState]> {
        self.tables.get(netns).map(Vec::as_slice)
    }

    /// The link of a namespace that has this number.
    pub fn by_index(&self, netns: Netns, ifindex: u32) -> Option<&LinkState> {
        self.get(&netns)?.iter().find(|link| link.ifindex == ifindex)
    }

    /// The length of the prefix of the link's smallest subnet that contains the address. What the link lost when it went
    /// down counts, too.
    pub fn prefix_of(&self, netns: Netns, link: &LinkState, addr: IpAddr) -> Option<u8> {
        let lost = self.lost.get(&(netns, link.ifindex)).into_iter().flatten().filter(|subnet| subnet.holds(addr));
        link.prefix_of(addr).or_else(|| lost.map(|subnet| subnet.len).max())
    }

    /// The IPv6 addresses that a link has lost as it went down, or is about to lose. The link-local one comes back.
    pub fn lost_addresses(&self, netns: Netns, ifindex: u32) -> impl Iterator<Item = Prefix> {
        let read = self.by_index(netns, ifindex).filter(|link| !link.up).into_iter().flat_map(LinkState::subnets);
        let lost = self.lost.get(&(netns, ifindex)).cloned().unwrap_or_else(|| read.collect());
        let stays = |addr: IpAddr| matches!(addr, IpAddr::V6(addr) if !addr.is_unicast_link_local());
        lost.into_iter().filter(move |it| stays(it.addr))
    }

    pub(super) fn have(&self, netns: Netns, addr: IpAddr) -> bool {
        self.get(&netns).is_some_and(|links| links.iter().any(|link| link.addrs.contains(&addr)))
    }

    /// The loopback device of a namespace, if it was read.
    pub fn loopback(&self, netns: Netns) -> Option<&LinkState> {
        self.get(&netns)?.iter().find(|link| link.loopback)
    }

    /// The last change of a link.
    pub fn changed(&self, netns: Netns, ifindex: u32) -> Option<&(u64, LinkChange)> {
        self.changes.get(&(netns, ifindex))
    }

    /// The last change of a link, if that set it down.
    pub fn down(&self, netns: Netns, ifindex: u32) -> Option<&(u64, LinkChange)> {
        self.changed(netns, ifindex).filter(|(_, change)| !change.up)
    }

    /// When it was read that no link of the namespace has this address any more.
    pub fn lost_address(&self, netns: Netns, addr: IpAddr) -> Option<u64> {
        self.lost_addrs.get(&(netns, addr)).copied()
    }

    /// The link of a namespace, other than its loopback device, that was set down last.
    pub fn last_down(&self, netns: Netns) -> Option<&(u64, LinkChange)> {
        let is_set_down = |it: &LinkChange| it.netns == netns && it.ifindex != LOOPBACK && !it.up;
        self.changes.values().filter(|(_, it)| is_set_down(it)).max_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn change(netns: Netns, up: bool) -> LinkChange {
        link_change(netns, 1, "lo", up)
    }

    fn table(netns: Netns) -> Links {
        let lo = LinkState { loopback: true, ..link(1, "lo", &["127.0.0.1"]) };
        Links { netns, cookie: None, links: vec![lo] }
    }

    #[test]
    fn a_full_table_keeps_the_change_of_the_nodes_loopback() {
        let mut links = KnownLinks::default();
        links.observe_change(0, &change(NODE, false), Some(NODE));
        for number in 1..20_000_u32 {
            links.observe_change(u64::from(number), &change(Netns(1_000 + number), false), Some(NODE));
        }
        assert!(links.down(NODE, LOOPBACK).is_some(), "the node's own stays");
        assert!(links.down(Netns(20_999), LOOPBACK).is_some(), "the newest is taken in");
        let kept = (1_000..21_000).filter(|netns| links.down(Netns(*netns), LOOPBACK).is_some()).count();
        assert_eq!(kept, MAX_CHANGES - 1);
    }

    #[test]
    fn a_pod_that_flaps_its_link_leaves_the_lost_routes_of_the_node() {
        let mut links = KnownLinks::default();
        links.observe_change(1, &link_change(NODE, 3, "cni0", false), Some(NODE));
        for time in 2..2_000 {
            links.observe_change(time, &link_change(POD, 2, "eth0", time % 2 == 1), Some(NODE));
        }
        let count = |netns| links.lost_routes(netns, 2_000, (address("10.88.0.2"), 2_000)).count();
        assert_eq!((count(NODE), count(POD)), (1, MAX_LOST_ROUTES));
    }

    #[test]
    fn a_link_that_leaves_its_bridge_is_kept_until_it_is_gone() {
        let read = |master| LinkState { master, ..link(7, "veth7", &[]) };
        let table = |links: Vec<LinkState>| Links { netns: NODE, cookie: None, links };
        let bridge = || link(3, "cni0", &[]);
        let kept = |last: Option<Vec<LinkState>>| -> Vec<u64> {
            let mut links = KnownLinks::default();
            for (time, master) in [(1, None), (2, Some(3)), (3, Some(3)), (4, Some(4)), (5, Some(4))] {
                links.observe(time, &table(vec![read(master), bridge()]));
            }
            if let Some(last) = last {
                links.observe(6, &table(last));
            }
            links.lost_routes(NODE, 9, (address("10.88.0.2"), 9)).map(|lost| lost.time).collect()
        };
        assert_eq!(kept(None), [4]);
        assert!(kept(Some(vec![bridge()])).is_empty(), "the port is gone");
        assert!(kept(Some(vec![read(Some(4))])).is_empty(), "the bridge is gone");
    }

    #[test]
    fn many_ports_that_leave_push_out_no_other_change() {
        let ports = 100..100 + MAX_LOST_ROUTES as u32 + 4;
        let read = |master| {
            let port = |ifindex| LinkState { master, ..link(ifindex, "veth", &[]) };
            let links = [link(3, "cni0", &[])].into_iter().chain(ports.clone().map(port)).collect();
            Links { netns: NODE, cookie: None, links }
        };
        let mut links = KnownLinks::default();
        links.observe(1, &read(Some(3)));
        links.observe_change(2, &link_change(NODE, 3, "cni0", false), Some(NODE));
        links.observe(3, &read(None));
        let kept: Vec<_> = links.lost_routes(NODE, 9, (address("10.88.0.2"), 9)).collect();
        assert_eq!(kept.len(), MAX_LOST_ROUTES + 1);
        assert!(kept.iter().any(|it| matches!(it.why, LostBy::SetDown(_))));
    }

    #[test]
    fn a_change_updates_the_links_that_were_read() {
        let mut links = KnownLinks::default();
        links.observe(7, &table(NODE));
        links.observe_change(7, &change(NODE, false), Some(NODE));
        assert!(links.loopback(NODE).is_some_and(|lo| !lo.up));
        assert_eq!(links.down(NODE, LOOPBACK).map(|(time, _)| *time), Some(7));
        links.observe_change(8, &change(NODE, true), Some(NODE));
        assert!(links.loopback(NODE).is_some_and(|lo| lo.up));
        assert!(links.down(NODE, LOOPBACK).is_none(), "it is up again");
        links.forget(NODE);
        assert!(links.get(&NODE).is_none());
    }

    /// A StatefulSet's pod gets the same name of its link again, and its namespace the number of an older one.
    #[test]
    fn a_change_of_an_older_link_or_namespace_does_not_count() {
        let mut links = KnownLinks::default();
        links.observe_change(7, &link_change(NODE, 7, "cali1234", false), Some(NODE));
        assert!(links.down(NODE, 7).is_some() && links.down(NODE, 9).is_none());
        links.forget(NODE);
        assert!(links.down(NODE, 7).is_none());
    }

    /// The address is gone when the links are read again.
    #[test]
    fn a_link_that_is_down_keeps_its_lost_ipv6_subnets() {
        let read = |up: bool, addrs: &[&str]| {
            let prefixes = vec![64; addrs.len()];
            Links { netns: NODE, cookie: None, links: vec![LinkState { up, prefixes, ..link(3, "cni0", addrs) }] }
        };
        let prefix = |links: &KnownLinks, addr| links.prefix_of(NODE, &links.get(&NODE)?[0], address(addr));
        let mut links = KnownLinks::default();
        links.observe(7, &read(true, &["fd00::1", "10.88.0.1"]));
        links.observe_change(7, &link_change(NODE, 3, "cni0", false), Some(NODE));
        for up in [true, false, false] {
            links.observe(7, &read(up, &[]));
            assert_eq!(prefix(&links, "fd00::2"), Some(64), "the flag is off a moment later");
        }
        assert_eq!((prefix(&links, "10.88.0.1"), prefix(&links, "fd01::2")), (None, None));
        links.observe(7 + FLAG_LAG_NS, &read(true, &[]));
        assert_eq!(prefix(&links, "fd00::2"), None, "it is up, and has not got its address back");
    }
}
