//! What can drop packets, by namespace: asked for when netfilter dropped one, kept for the next.

use std::collections::BTreeMap;

use crate::event::{Conntrack, Firewall, FirewallRule, Netns};

/// Namespaces kept.
const MAX_NAMESPACES: usize = 32;
/// Each reading of a namespace uses up this many times what it took: all of them cost at most a twentieth of a CPU.
const AGAIN_TIMES: u64 = 20;
/// So much may be used up ahead of time: a few drops in a row need not wait for each other.
const BURST_NS: u64 = 200_000_000;
/// What was never answered is asked again after this, and what was answered, however long that took.
const GIVE_UP_NS: u64 = 5_000_000_000;

/// What can drop packets, by namespace.
#[derive(Debug, Default)]
pub struct Firewalls(BTreeMap<Netns, Entry>);

#[derive(Debug)]
struct Entry {
    asked: u64,
    /// Nothing is on its way, and nothing is to be asked.
    answered: bool,
    again: u64,
    /// Until when the time for readings is used up.
    spent: u64,
    reading: Option<Reading>,
}

/// What one reading gave.
#[derive(Debug)]
pub struct Reading {
    /// When the answer came.
    pub at: u64,
    /// The answer.
    pub firewall: Firewall,
    /// An earlier reading of the same rules.
    pub before: Option<Before>,
}

/// What had been counted at an earlier reading.
#[derive(Debug)]
pub struct Before {
    /// When it was asked for; it may lack what was counted later.
    pub at: u64,
    /// Of each rule.
    packets: Vec<Option<u64>>,
    /// Of the connection table.
    pub conntrack: Option<Conntrack>,
}

impl Reading {
    /// The rule, by its place in the list, counted nothing between the two readings.
    #[must_use]
    pub fn stood_still(&self, rule: usize, since: u64) -> bool {
        let before = self.before.as_ref().filter(|before| before.at <= since && since <= self.at);
        let counted = before.and_then(|before| *before.packets.get(rule)?);
        counted.is_some() && counted == self.firewall.rules.get(rule).and_then(|rule| rule.packets)
    }
}

impl Firewalls {
    /// When to ask for what a packet dropped now makes one want to know: now, which is then taken as done; later,
    /// because the last answer is a moment old; or not at all, because an answer is on its way.
    pub fn ask(&mut self, netns: Netns, now: u64) -> Option<u64> {
        if let Some(entry) = self.0.get_mut(&netns).filter(|entry| now < entry.again) {
            let later = std::mem::replace(&mut entry.answered, false);
            return later.then_some(entry.again);
        }
        if self.0.len() >= MAX_NAMESPACES && !self.0.contains_key(&netns) {
            self.forget_oldest();
        }
        let (spent, reading) = self.0.remove(&netns).map_or((0, None), |entry| (entry.spent, entry.reading));
        let again = now.saturating_add(GIVE_UP_NS);
        self.0.insert(netns, Entry { asked: now, answered: false, again, spent, reading });
        Some(now)
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.0.iter().min_by_key(|(_, entry)| entry.asked).map(|(netns, _)| *netns) {
            self.0.remove(&oldest);
        }
    }

    /// Takes in an answer.
    pub fn see(&mut self, now: u64, firewall: &Firewall) {
        // What nobody asked for is a stream that begins in the middle.
        let asked = self.0.get(&firewall.netns).map_or(now, |entry| entry.asked);
        self.0.entry(firewall.netns).or_insert(Entry { asked, answered: true, again: 0, spent: 0, reading: None });
        let Some(entry) = self.0.get_mut(&firewall.netns) else { return };
        let before = entry.reading.take().filter(|last| same_rules(&last.firewall, firewall)).map(before);
        let used = firewall.took_ns.saturating_mul(AGAIN_TIMES).min(GIVE_UP_NS);
        entry.spent = entry.spent.max(now).saturating_add(used);
        entry.again = entry.spent.saturating_sub(BURST_NS);
        entry.answered = true;
        entry.reading = Some(Reading { at: now, firewall: firewall.clone(), before });
    }

    /// The last answer.
    #[must_use]
    pub fn reading(&self, netns: Netns) -> Option<&Reading> {
        self.0.get(&netns)?.reading.as_ref()
    }

    /// An answer is on its way.
    #[must_use]
    pub fn is_pending(&self, netns: Netns) -> bool {
        self.0.get(&netns).is_some_and(|entry| !entry.answered)
    }
}

fn before(reading: Reading) -> Before {
    let packets = reading.firewall.rules.iter().map(|rule| rule.packets).collect();
    Before { at: reading.at, packets, conntrack: reading.firewall.conntrack }
}

fn same_rules(left: &Firewall, right: &Firewall) -> bool {
    let same = |left: &FirewallRule, right: &FirewallRule| {
        let place = |rule: &FirewallRule| (rule.backend, rule.policy, rule.handle, rule.when);
        place(left) == place(right) && left.chain == right.chain && left.table == right.table
    };
    left.rules.len() == right.rules.len() && left.rules.iter().zip(&right.rules).all(|(l, r)| same(l, r))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firewall(netns: u32) -> Firewall {
        Firewall {
            netns: Netns(netns),
            rules: Vec::new(),
            truncated: false,
            only_for: None,
            conntrack: None,
            took_ns: 50_000_000,
            problems: Vec::new(),
        }
    }

    #[test]
    fn a_slow_answer_is_asked_for_less_often() {
        let mut firewalls = Firewalls::default();
        assert_eq!(firewalls.ask(Netns(1), 0), Some(0));
        assert_eq!(firewalls.ask(Netns(1), 1_000_000), None, "it is on its way");
        assert!(firewalls.is_pending(Netns(1)));
        firewalls.see(50_000_000, &firewall(1));
        assert!(!firewalls.is_pending(Netns(1)));
        assert_eq!(firewalls.ask(Netns(1), 700_000_000), Some(850_000_000), "later");
        assert!(firewalls.is_pending(Netns(1)), "what was read is older than the drop");
        assert_eq!(firewalls.ask(Netns(1), 850_000_000), Some(850_000_000));
    }

    /// Drops of one namespace follow each other: the first do not wait, and all together cost a twentieth of the time.
    #[test]
    fn quick_answers_are_asked_for_at_once_until_their_time_is_used_up() {
        let quick = Firewall { took_ns: 1_000_000, ..firewall(1) };
        let mut firewalls = Firewalls::default();
        let (mut now, mut at_once, mut asked) = (0_u64, 0, 0_u64);
        while now < 1_000_000_000 {
            let due = firewalls.ask(Netns(1), now).unwrap_or(now);
            at_once += u64::from(due == now && asked == at_once);
            now = due.max(now);
            let _ = firewalls.ask(Netns(1), now);
            firewalls.see(now, &quick);
            (asked, now) = (asked + 1, now + 1_000_000);
        }
        assert!((8..=12).contains(&at_once), "{at_once}");
        assert!((50..=62).contains(&asked), "{asked}");
    }

    #[test]
    fn many_namespaces_are_not_kept_for_ever() {
        let mut firewalls = Firewalls::default();
        for netns in 0..1000_u32 {
            assert_eq!(firewalls.ask(Netns(netns), netns.into()), Some(netns.into()));
            firewalls.see(netns.into(), &firewall(netns));
        }
        assert_eq!(firewalls.0.len(), MAX_NAMESPACES);
        assert!(firewalls.reading(Netns(999)).is_some());
    }
}
