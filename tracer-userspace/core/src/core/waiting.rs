//! Attempts that wait to be judged, or to be judged again. A verdict waits for a firewall to be read, so that the first one can
//! name the rule.

use std::collections::{BTreeMap, BTreeSet};

use super::failures::MAX_COUNTERS;
use super::{Core, When};
use crate::classify::SETTLE_NS;
use crate::classify::finding::Finding;
use tracer_attempts::correlate::firewalls::Firewalls;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Netns};
use tracer_model::recent::Recent;

/// How long a verdict waits for a firewall to be read, from when its time had come. The answer comes a few
/// milliseconds after the question, unless the table is very large or the machine very busy; the first drop of a run
/// reaches us only after the kernel's symbols were read.
const HOLD_NS: u64 = 1_000_000_000;
/// How long an attempt is kept if its verdict was reported without the answer. A refusal ends it at once, and an
/// emulated processor reads the rules of kube-proxy for seconds.
const LATE_NS: u64 = 5_000_000_000;
const MAX_HELD: usize = 1024;
const MAX_TIMEOUTS: usize = 8192;
/// Refused attempts kept for one port: a start of two minutes with a probe every two seconds.
const MAX_REFUSED: usize = 64;

/// The attempts that wait, by what they wait for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// For a time: their last event was ambiguous, or their verdict is held so long.
    due_at: BTreeSet<(u64, ConnId)>,
    /// For the time at which their probes are over at the latest.
    timeouts: BTreeSet<(u64, ConnId)>,
    /// For a firewall to be read.
    held: BTreeMap<ConnId, Held>,
    /// For somebody to listen, in that namespace and on that port.
    refused: Recent<(Netns, u16), Vec<ConnId>, MAX_COUNTERS>,
}

/// A verdict that waits for a firewall to be read.
#[derive(Clone, Copy, Debug)]
struct Held {
    netns: Netns,
    /// When it dropped the packet.
    dropped: u64,
    /// Absent while the companions of its last event may still arrive.
    until: Option<u64>,
}

impl Waiting {
    /// An attempt is to be looked at then.
    pub(super) fn schedule(&mut self, time: u64, conn: ConnId) {
        self.due_at.insert((time, conn));
    }

    /// The next attempt that is to be looked at by now.
    pub(super) fn next_due(&mut self, now: u64) -> Option<(u64, ConnId)> {
        take_due(&mut self.due_at, now)
    }

    /// The probe of an attempt is over then at the latest. Says whether there is room for it.
    pub(super) fn time_out_at(&mut self, over: u64, conn: ConnId) -> bool {
        let has_room = self.timeouts.len() < MAX_TIMEOUTS;
        self.timeouts.extend(has_room.then_some((over, conn)));
        has_room
    }

    /// The next attempt of a probe that is over by now.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<(u64, ConnId)> {
        take_due(&mut self.timeouts, now)
    }

    /// It ends by itself.
    pub(super) fn forget_timeout(&mut self, over: u64, conn: ConnId) {
        self.timeouts.remove(&(over, conn));
    }

    /// The run ends: what is still open stays so.
    pub(super) fn forget_timeouts(&mut self) {
        self.timeouts.clear();
    }

    /// When the first of the times has come.
    pub(super) fn due(&self) -> Option<u64> {
        first_due(&self.due_at).into_iter().chain(first_due(&self.timeouts)).min()
    }

    fn hold(&mut self, conn: ConnId, held: Held) {
        if self.held.len() >= MAX_HELD {
            self.held.pop_first();
        }
        self.held.insert(conn, held);
    }

    /// Those that waited for this firewall, and when they are looked at.
    fn take_answered(&mut self, netns: Netns, firewalls: &Firewalls, now: u64) -> Vec<(ConnId, When)> {
        let answered = |held: &Held| held.netns == netns && !firewalls.is_pending(netns, held.dropped);
        let when = |held: Held| if held.until.is_some() { When::Settled(now) } else { When::Seen(now) };
        let taken = self.held.extract_if(.., |_, held| answered(held));
        taken.map(|(conn, held)| (conn, when(held))).collect()
    }

    /// An attempt was refused there: somebody may begin to listen.
    pub(super) fn wait_for_listener(&mut self, netns: Netns, port: u16, conn: ConnId) {
        let waiting = self.refused.or_default((netns, port));
        waiting.truncate(MAX_REFUSED - 1);
        waiting.push(conn);
    }

    /// Somebody begins to listen: those that were refused there.
    pub(super) fn take_refused(&mut self, netns: Netns, port: u16) -> Vec<ConnId> {
        self.refused.remove(&(netns, port)).unwrap_or_default()
    }

    /// Those that were refused there.
    pub(super) fn refused(&self, netns: Netns, port: u16) -> Vec<ConnId> {
        self.refused.get(&(netns, port)).cloned().unwrap_or_default()
    }

    /// The number is another namespace's now.
    pub(super) fn forget_refused(&mut self, netns: Netns) {
        self.refused.retain(|(at, _), _| *at != netns);
    }
}

/// The first thing that is due.
pub(super) fn take_due<T: Ord>(times: &mut BTreeSet<(u64, T)>, now: u64) -> Option<(u64, T)> {
    times.first().filter(|(time, _)| *time <= now)?;
    times.pop_first()
}

/// When that is.
pub(super) fn first_due<T: Ord>(times: &BTreeSet<(u64, T)>) -> Option<u64> {
    times.first().map(|(time, _)| *time)
}

impl Core {
    /// A firewall was read: asks again for what came while it was, and decides what waited for this answer.
    pub(super) fn release(&mut self, netns: Netns, now: u64, out: &mut Vec<Decision>) {
        self.query_after_answer(netns, now);
        for (conn, when) in self.waiting.take_answered(netns, &self.node.firewalls, now) {
            self.decide(conn, when, out);
        }
    }

    /// Whether the verdict is worth waiting for what a firewall says. The time runs from the moment at which
    /// it would have been reported: an event can reach us long after it happened.
    pub(super) fn holds(&mut self, conn: ConnId, finding: &Finding, when: When) -> bool {
        let before = self.waiting.held.remove(&conn).and_then(|held| held.until);
        let pending = finding.waits_for.filter(|(netns, time)| self.node.firewalls.is_pending(*netns, *time));
        let Some((netns, dropped)) = pending else { return false };
        let (until, look) = match when {
            When::Seen(now) => (before, now.saturating_add(SETTLE_NS)),
            When::Settled(now) => {
                let until = before.unwrap_or_else(|| now.saturating_add(HOLD_NS));
                // Reported without; an answer that comes later can still make it another.
                if now >= until {
                    self.waiting.hold(conn, Held { netns, dropped, until: Some(until) });
                    self.correlator.keep(conn, now.saturating_add(LATE_NS));
                    return false;
                }
                (Some(until), until)
            }
        };
        self.waiting.hold(conn, Held { netns, dropped, until });
        self.waiting.schedule(look, conn);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// kube-proxy refuses a connect to a Service without endpoints, and its rules are read so late.
    fn refused_and_read_after(ms: u64) -> Vec<&'static str> {
        let comment = Some("shop/cart:http has no endpoints".to_owned());
        let rules = vec![FirewallRule { comment, ..rule("KUBE-SERVICES", RuleVerdict::Reject) }];
        let mut stream = Stream::to("10.96.0.9:80").connect().icmp_in(NODE, 3, 3).filtered(SYN, NODE).clone();
        stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
        // Other events come meanwhile: an attempt is forgotten when one does.
        (0..ms / 500).for_each(|_| _ = stream.wait_ms(500).tick());
        stream.push(firewall(NODE, rules)).causes()
    }

    #[test]
    fn an_answer_long_after_the_refusal_still_names_the_cause() {
        assert_eq!(refused_and_read_after(0), ["service_no_endpoints"]);
        assert_eq!(refused_and_read_after(3_000), ["firewall_reject", "service_no_endpoints"]);
        assert_eq!(refused_and_read_after(5_500), ["firewall_reject", "service_no_endpoints"]);
        assert_eq!(refused_and_read_after(9_000), ["firewall_reject"], "it is not waited for forever");
    }
}
