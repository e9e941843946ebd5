//! Verdicts that wait for a firewall to be read, so that the first one can name the rule.

use super::questions::MAX_ASKED;
use super::{Core, When};
use crate::classify::SETTLE_NS;
use crate::classify::finding::Finding;
use crate::decision::Decision;
use crate::event::{ConnId, Netns};

/// How long a verdict waits for a firewall to be read, from when its time had come. The answer comes a few
/// milliseconds after the question, unless the table is very large or the machine very busy; the first drop of a run
/// reaches us only after the kernel's symbols were read.
const HOLD_NS: u64 = 1_000_000_000;

/// A verdict that waits for a firewall to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    netns: Netns,
    /// When it dropped the packet.
    dropped: u64,
    /// Absent while the companions of its last event may still arrive.
    until: Option<u64>,
}

impl Core {
    /// A firewall was read: asks again for what came while it was, and decides what waited for this answer.
    pub(super) fn release(&mut self, netns: Netns, now: u64, out: &mut Vec<Decision>) {
        if let Some((asked, ask)) = self.after_answer.remove(&netns)
            && !self.node.firewalls.covers(netns, asked)
        {
            self.ask(ask, now);
        }
        let answered = |held: &Held| held.netns == netns && !self.node.firewalls.is_pending(netns, held.dropped);
        let waited: Vec<(ConnId, Held)> =
            self.held.iter().filter(|(_, held)| answered(held)).map(|(conn, held)| (*conn, *held)).collect();
        for (conn, held) in waited {
            self.held.remove(&conn);
            let when = if held.until.is_some() { When::Settled(now) } else { When::Seen(now) };
            self.decide(conn, when, out);
        }
    }

    /// Whether the verdict is worth waiting for what a firewall says. The time runs from the moment at which
    /// it would have been said: an event can reach us long after it happened.
    pub(super) fn holds(&mut self, conn: ConnId, finding: &Finding, when: When) -> bool {
        let before = self.held.remove(&conn).and_then(|held| held.until);
        let pending = finding.waits_for.filter(|(netns, time)| self.node.firewalls.is_pending(*netns, *time));
        let Some((netns, dropped)) = pending else { return false };
        if self.held.len() >= MAX_ASKED {
            self.held.pop_first();
        }
        let (until, look) = match when {
            When::Seen(now) => (before, now.saturating_add(SETTLE_NS)),
            When::Settled(now) => {
                let until = before.unwrap_or_else(|| now.saturating_add(HOLD_NS));
                // Said without; an answer that comes later can still make it another.
                if now >= until {
                    self.held.insert(conn, Held { netns, dropped, until: Some(until) });
                    return false;
                }
                (Some(until), until)
            }
        };
        self.held.insert(conn, Held { netns, dropped, until });
        self.deadlines.insert((look, conn));
        true
    }
}
