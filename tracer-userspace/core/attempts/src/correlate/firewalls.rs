//! The firewalls of namespaces. tracer reads one when netfilter drops a packet, and keeps it for the next drop.

use tracer_model::event::{Backend, Conntrack, Firewall, FirewallRule, Netns};
use tracer_model::recent::Recent;

const MAX_NAMESPACES: usize = 32;
/// After a reading, the namespace is not read again for this many times its duration. So readings cost at most a
/// twentieth of a CPU.
const AGAIN_TIMES: u64 = 20;
/// The waiting time up to which readings need not wait, so that a few drops in a row are read at once.
const BURST_NS: u64 = 200_000_000;
/// A reading up to this long before a packet shows the counters just before it: a few periods of a probe.
const JUST_BEFORE_NS: u64 = 30_000_000_000;
/// A query without an answer is issued again after this time.
const GIVE_UP_NS: u64 = 5_000_000_000;

/// The firewalls, by namespace.
#[derive(Debug, Default)]
pub struct Firewalls(Recent<Netns, Entry, MAX_NAMESPACES>);

#[derive(Debug, Default)]
struct Entry {
    queried_at: u64,
    /// When the next query is issued, if none is on its way.
    due: u64,
    /// No query is on its way or waiting.
    answered: bool,
    /// The earliest time of the next query.
    again: u64,
    /// Until when the time for readings is used up.
    spent: u64,
    reading: Option<Reading>,
}

/// When to issue a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Now; the caller must issue it.
    Now,
    /// At this time, because the last answer came a short time ago.
    At(u64),
    /// Not at all: a query is scheduled already.
    Due,
    /// When the answer to the query on its way has come, if that answer is too old.
    AfterAnswer,
}

impl Entry {
    /// When to issue a query before the earliest time of the next one.
    fn query_later(&mut self, now: u64) -> Next {
        match (std::mem::replace(&mut self.answered, false), now <= self.queried_at.max(self.due)) {
            (true, _) => {
                self.due = self.again;
                Next::At(self.again)
            }
            (false, true) => Next::Due,
            (false, false) => Next::AfterAnswer,
        }
    }
}

/// One reading of a firewall.
#[derive(Debug)]
pub struct Reading {
    /// When the reading began. It contains all packets before.
    pub began: u64,
    /// When the answer came. It may contain packets between the two times.
    pub at: u64,
    /// The answer.
    pub firewall: Firewall,
    /// The counters of the reading before.
    pub before: Option<Before>,
    /// For each rule, when the first answer with it came, if the answer before had no such rule.
    written: Vec<Option<u64>>,
    /// The latest time in `written`, also of earlier readings.
    rewritten: Option<u64>,
}

/// The counters of the reading before.
#[derive(Debug)]
pub struct Before {
    /// When its answer came. It contains no packets after that.
    pub at: u64,
    /// The packets of each rule of the reading after it. Absent where it had no such rule or no counter of it.
    packets: Vec<Option<u64>>,
    /// The counters of the connection table.
    pub conntrack: Option<Conntrack>,
}

impl Reading {
    /// The reading contains what happened at that time.
    pub const fn covers(&self, time: u64) -> bool {
        self.began >= time
    }

    /// The rule at this place in the list took no packet at that time: it never counted one, or none since the reading
    /// before.
    ///
    /// A rule of nftables that is written again has another handle. If that was after the packet, its counter shows nothing
    /// of the rule before. The other rules keep their handles and counters. A rule of the legacy ip_tables keeps its number,
    /// and its counter begins at zero again (`iptables-restore` without `--counters`). For a short time even an
    /// unchanged rule shows zero. So a legacy rule took no packet only if it counted nothing in both readings.
    pub fn took_none(&self, rule: usize, time: u64) -> bool {
        let Some(of) = self.firewall.rules.get(rule).filter(|_| self.covers(time)) else { return false };
        let legacy = of.backend == Backend::IptablesLegacy;
        let before = self.before_that(time);
        match (of.packets, before.map(|before| before.packets.get(rule).copied().flatten())) {
            (Some(now), Some(Some(then))) => now == then && (now == 0 || !legacy),
            (Some(0), None) => !legacy && self.written.get(rule).copied().flatten().is_none_or(|at| at < time),
            _ => false,
        }
    }

    /// The rule at this place in the list counted packets between a reading before that time and one after it. The
    /// first reading must not be old, or the rule may have counted other packets.
    pub fn took_some(&self, rule: usize, time: u64) -> bool {
        let now = self.firewall.rules.get(rule).and_then(|rule| rule.packets);
        let before = self.before_that(time).filter(|before| time - before.at <= JUST_BEFORE_NS);
        let then = before.and_then(|before| before.packets.get(rule).copied().flatten());
        self.covers(time) && now.zip(then).is_some_and(|(now, then)| now > then)
    }

    /// The connection table was full, and its drop counter may have risen at that time. Without that counter, it may have.
    pub fn lacked_room(&self, time: u64) -> bool {
        let before = self.before_that(time).filter(|_| self.covers(time)).and_then(|before| before.conntrack);
        let then = before.and_then(|before| before.drop);
        let rose = |now: Conntrack| now.drop.zip(then).is_none_or(|(now, then)| now != then);
        self.firewall.conntrack.is_some_and(|now| now.is_full() && rose(now))
    }

    fn before_that(&self, time: u64) -> Option<&Before> {
        self.before.as_ref().filter(|before| before.at <= time)
    }
}

impl Firewalls {
    /// When to query the firewall for a packet that is dropped now.
    pub fn query(&mut self, netns: Netns, now: u64) -> Next {
        if let Some(entry) = self.0.get_mut(&netns).filter(|entry| now < entry.again) {
            return entry.query_later(now);
        }
        let (spent, reading) = self.0.remove(&netns).map_or((0, None), |entry| (entry.spent, entry.reading));
        let again = now.saturating_add(GIVE_UP_NS);
        self.0.insert(netns, Entry { queried_at: now, due: now, answered: false, again, spent, reading });
        Next::Now
    }

    /// Takes in an answer.
    pub fn observe(&mut self, now: u64, firewall: &Firewall) {
        // A stream that begins in the middle can have an answer without a query.
        let entry = self.0.or_default(firewall.netns);
        let began = firewall.began_boot_ns.unwrap_or(now);
        let last = entry.reading.take();
        let places = last.as_ref().map_or_else(Vec::new, |last| places(&last.firewall, firewall));
        let written = last.as_ref().map_or_else(Vec::new, |last| written(last, &places, firewall, now));
        let rewritten = last.as_ref().and_then(|last| last.rewritten).max(written.iter().copied().max().flatten());
        let before = last.map(|last| before(&last, &places));
        let used = firewall.took_ns.saturating_mul(AGAIN_TIMES);
        entry.spent = entry.spent.max(now).saturating_add(used);
        entry.again = entry.spent.saturating_sub(BURST_NS);
        entry.answered = true;
        entry.reading = Some(Reading { began, at: now, firewall: firewall.clone(), before, written, rewritten });
    }

    /// The last answer.
    pub fn reading(&self, netns: Netns) -> Option<&Reading> {
        self.0.get(&netns)?.reading.as_ref()
    }

    /// The namespace is gone, or another one has its number now.
    pub fn forget(&mut self, netns: Netns) {
        self.0.remove(&netns);
    }

    /// The last answer contains what happened at that time.
    pub fn covers(&self, netns: Netns, time: u64) -> bool {
        self.reading(netns).is_some_and(|reading| reading.covers(time))
    }

    /// The last answer does not contain what happened at that time, and another answer will come.
    pub fn is_pending(&self, netns: Netns, time: u64) -> bool {
        self.0.get(&netns).is_some_and(|entry| !entry.answered) && !self.covers(netns, time)
    }
}

fn before(last: &Reading, places: &[Option<usize>]) -> Before {
    let packets = |place: &Option<usize>| last.firewall.rules.get((*place)?)?.packets;
    Before { at: last.at, packets: places.iter().map(packets).collect(), conntrack: last.firewall.conntrack }
}

/// When each rule was written. Readings for different flows may have different rules: what the last one lacks may have been
/// written when rules last changed.
fn written(last: &Reading, places: &[Option<usize>], firewall: &Firewall, now: u64) -> Vec<Option<u64>> {
    let is_of_same_flow = last.firewall.only_for == firewall.only_for;
    let new = if is_of_same_flow { Some(now) } else { last.rewritten };
    let when = |place: &Option<usize>| place.map_or(new, |at| last.written.get(at).copied().flatten());
    places.iter().map(when).collect()
}

/// The place in the last reading of each rule, if it is the same rule. Numbers of legacy rules say this only if all legacy
/// rules are the same.
fn places(last: &Firewall, now: &Firewall) -> Vec<Option<usize>> {
    let legacy = |of: &FirewallRule| of.backend == Backend::IptablesLegacy;
    let [then, current] = [last, now].map(|of| of.rules.iter().filter(|rule| legacy(rule)).collect::<Vec<_>>());
    let same_legacy = then.len() == current.len() && then.iter().zip(&current).all(|(l, r)| is_same(l, r));
    let place = |(at, rule): (usize, &FirewallRule)| {
        let is_it = |at: &usize| last.rules.get(*at).is_some_and(|then| is_same(then, rule));
        // Most rules keep their place in the list.
        let found = std::iter::once(at).chain(0..last.rules.len()).find(is_it);
        found.filter(|_| same_legacy || !legacy(rule))
    };
    now.rules.iter().enumerate().map(place).collect()
}

fn is_same(left: &FirewallRule, right: &FirewallRule) -> bool {
    let place = |rule: &FirewallRule| (rule.handle, rule.backend, rule.policy, rule.when);
    let is_in_same = left.chain == right.chain && left.table == right.table && left.family == right.family;
    place(left) == place(right) && is_in_same
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::RuleVerdict;

    fn firewall(netns: u32) -> Firewall {
        Firewall { took_ns: 50_000_000, ..Firewall::empty(Netns(netns)) }
    }

    #[test]
    fn a_firewall_that_is_slow_to_read_is_read_less_often() {
        let mut firewalls = Firewalls::default();
        assert_eq!(firewalls.query(Netns(1), 0), Next::Now);
        assert!(firewalls.is_pending(Netns(1), 0));
        firewalls.observe(50_000_000, &firewall(1));
        assert!(!firewalls.is_pending(Netns(1), 0));
        assert_eq!(firewalls.query(Netns(1), 700_000_000), Next::At(850_000_000));
        assert_eq!(firewalls.query(Netns(1), 800_000_000), Next::Due);
        assert!(firewalls.is_pending(Netns(1), 700_000_000), "what was read is older than the drop");
        assert!(!firewalls.is_pending(Netns(1), 0), "and newer than that one");
        assert_eq!(firewalls.query(Netns(1), 850_000_000), Next::Now);
    }

    /// The counters may have been read before the packet came, even if the answer came after it.
    #[test]
    fn a_drop_during_a_reading_needs_another_reading() {
        let mut firewalls = Firewalls::default();
        let _ = firewalls.query(Netns(1), 10);
        assert_eq!(firewalls.query(Netns(1), 20), Next::AfterAnswer);
        firewalls.observe(30, &Firewall { began_boot_ns: Some(15), took_ns: 1, ..firewall(1) });
        assert!(firewalls.covers(Netns(1), 15) && !firewalls.covers(Netns(1), 20));
        assert_eq!(firewalls.query(Netns(1), 30), Next::Now);
        assert!(firewalls.is_pending(Netns(1), 20) && !firewalls.is_pending(Netns(1), 10));
    }

    /// kube-proxy, a CNI or `nft -f` wrote the rules again after the drop.
    #[test]
    fn a_rule_that_was_written_again_may_have_taken_the_packet_before() {
        let mut firewalls = Firewalls::default();
        let mut read = |began, handle, packets, dropped| {
            let of = tracer_core::testing::rule("c", RuleVerdict::Drop);
            let rules = vec![FirewallRule { handle, packets: Some(packets), ..of }];
            firewalls.observe(began + 1, &Firewall { rules, began_boot_ns: Some(began), ..firewall(1) });
            firewalls.reading(Netns(1)).expect("a reading").took_none(0, dropped)
        };
        assert!(!read(10, Some(4), 1, 5));
        assert!(!read(20, Some(9), 0, 5));
        assert!(!read(30, Some(9), 0, 5));
        assert!(read(40, Some(9), 0, 25), "it was there at the drop");
    }

    /// kube-proxy or a CNI adds and removes rules of Services and pods all the time.
    #[test]
    fn a_rule_that_stays_is_not_written_again_when_others_change() {
        let mut firewalls = Firewalls::default();
        let mut read = |began, handles: &[u64], dropped| {
            let of = || tracer_core::testing::rule("c", RuleVerdict::Drop);
            let rule = |&handle: &u64| FirewallRule { handle: Some(handle), packets: Some(0), ..of() };
            let rules = handles.iter().map(rule).collect();
            firewalls.observe(began + 1, &Firewall { rules, began_boot_ns: Some(began), ..firewall(1) });
            let reading = firewalls.reading(Netns(1)).expect("a reading");
            (0..handles.len()).map(|rule| reading.took_none(rule, dropped)).collect::<Vec<_>>()
        };
        assert_eq!(read(10, &[4], 5), [true]);
        assert_eq!(read(20, &[7, 4], 15), [false, true], "the reading before had it, at another place");
        assert_eq!(read(30, &[7, 4], 5), [false, true], "the reading before is newer than the drop");
        assert_eq!(read(40, &[4, 9], 5), [true, false]);
        assert_eq!(read(50, &[4, 9], 45), [true, true]);
    }

    #[test]
    fn a_rule_with_an_equal_counter_took_no_packet() {
        let mut firewalls = Firewalls::default();
        let mut read = |began, at, packets: [Option<u64>; 3]| {
            let rules =
                packets.map(|packets| FirewallRule { packets, ..tracer_core::testing::rule("c", RuleVerdict::Drop) });
            let began_boot_ns = Some(began);
            firewalls.observe(at, &Firewall { rules: rules.to_vec(), began_boot_ns, ..firewall(1) });
            let reading = firewalls.reading(Netns(1)).expect("a reading");
            [0, 1, 2].map(|rule| reading.took_none(rule, began))
        };
        assert_eq!(read(10, 11, [Some(0), Some(7), None]), [true, false, false]);
        assert_eq!(read(20, 21, [Some(0), Some(7), None]), [true, true, false]);
        assert_eq!(read(30, 31, [Some(1), Some(8), None]), [false, false, false]);
        let reading = firewalls.reading(Netns(1)).expect("a reading");
        assert!(!reading.took_none(0, 31), "the packet came after the reading began");
    }

    /// `CONFIG_NF_CONNTRACK_PROCFS` is off, and ctnetlink was refused.
    #[test]
    fn a_full_table_without_a_counter_may_have_lacked_room() {
        let lacked_room = |drop: [Option<u64>; 2], count| {
            let mut firewalls = Firewalls::default();
            for (began, drop) in [10, 20].into_iter().zip(drop) {
                let conntrack = Some(Conntrack { count, max: 100, drop, ..Conntrack::default() });
                firewalls.observe(began + 1, &Firewall { conntrack, began_boot_ns: Some(began), ..firewall(1) });
            }
            firewalls.reading(Netns(1)).expect("a reading").lacked_room(15)
        };
        assert!(lacked_room([None, None], 100) && lacked_room([Some(7), None], 100));
        assert!(!lacked_room([None, None], 50));
        assert!(lacked_room([Some(7), Some(8)], 100) && !lacked_room([Some(7), Some(7)], 100));
    }

    /// kube-proxy writes its chains again, with counters that begin at zero, whenever a Service changes.
    #[test]
    fn a_legacy_rule_with_a_reset_counter_may_have_taken_the_packet() {
        let mut firewalls = Firewalls::default();
        let mut read = |began, packets: [u64; 2]| {
            let rule = |packets| FirewallRule {
                backend: Backend::IptablesLegacy,
                packets: Some(packets),
                ..tracer_core::testing::rule("KUBE-SERVICES", RuleVerdict::Reject)
            };
            let (rules, began_boot_ns) = (packets.map(rule).to_vec(), Some(began));
            firewalls.observe(began + 1, &Firewall { rules, began_boot_ns, ..firewall(1) });
            firewalls.reading(Netns(1)).map(|reading| [0, 1].map(|rule| reading.took_none(rule, began)))
        };
        assert_eq!(read(10, [1, 0]), Some([false, false]));
        assert_eq!(read(20, [1, 0]), Some([false, true]));
        assert_eq!(read(30, [0, 0]), Some([false, true]));
    }

    /// With many drops in one namespace, the first are read at once, and all readings take a twentieth of the time.
    #[test]
    fn a_firewall_that_is_quick_to_read_is_read_at_once_until_the_time_is_used_up() {
        let quick = Firewall { took_ns: 1_000_000, ..firewall(1) };
        let mut firewalls = Firewalls::default();
        let (mut now, mut at_once, mut queried_at) = (0_u64, 0, 0_u64);
        while now < 1_000_000_000 {
            match firewalls.query(Netns(1), now) {
                Next::Now => at_once += u64::from(at_once == queried_at),
                Next::At(later) => {
                    now = later;
                    assert_eq!(firewalls.query(Netns(1), now), Next::Now);
                }
                other => panic!("nothing is on its way: {other:?}"),
            }
            firewalls.observe(now, &quick);
            (queried_at, now) = (queried_at + 1, now + 1_000_000);
        }
        assert!((8..=12).contains(&at_once), "{at_once}");
        assert!((50..=62).contains(&queried_at), "{queried_at}");
    }

    /// A pod's own namespace may have a rule set that takes minutes to read.
    #[test]
    fn a_reading_of_minutes_is_not_repeated_for_an_hour() {
        const MINUTE_NS: u64 = 60_000_000_000;
        let mut firewalls = Firewalls::default();
        assert_eq!(firewalls.query(Netns(1), 0), Next::Now);
        firewalls.observe(3 * MINUTE_NS, &Firewall { took_ns: 3 * MINUTE_NS, ..firewall(1) });
        let Next::At(again) = firewalls.query(Netns(1), 4 * MINUTE_NS) else { panic!("its time is used up") };
        assert_eq!(again, 63 * MINUTE_NS - BURST_NS);
    }
}
