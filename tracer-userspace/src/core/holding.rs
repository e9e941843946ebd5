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

/// How long an attempt is kept whose verdict was said without the answer: a refusal ends it at once, and an emulated
/// processor reads the rules of kube-proxy for seconds.
const LATE_NS: u64 = 5_000_000_000;

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
                    self.correlator.keep(conn, now.saturating_add(LATE_NS));
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

#[cfg(test)]
mod tests {
    use crate::event::{Fact, FirewallRule, RuleVerdict, TcpState};
    use crate::testing::{NODE, SYN, Stream, firewall, rule};

    /// kube-proxy refuses a connect to a Service without endpoints, and its rules are read so late.
    fn refused_and_read_after(ms: u64) -> Vec<&'static str> {
        let comment = Some("shop/cart:http has no endpoints".to_owned());
        let rules = vec![FirewallRule { comment, ..rule("KUBE-SERVICES", RuleVerdict::Reject) }];
        let mut stream = Stream::to("10.96.0.9:80");
        stream.connect().icmp_in(NODE, 3, 3).drop(SYN, "NETFILTER_DROP", NODE);
        stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
        // Other events come meanwhile: an attempt is forgotten when one does.
        (0..ms / 500).for_each(|_| _ = stream.wait_ms(500).push(Fact::Tick));
        stream.push(firewall(NODE, rules)).labels()
    }

    #[test]
    fn an_answer_long_after_the_refusal_still_names_the_cause() {
        assert_eq!(refused_and_read_after(0), ["service_no_endpoints"]);
        assert_eq!(refused_and_read_after(3_000), ["firewall_reject", "service_no_endpoints"]);
        assert_eq!(refused_and_read_after(5_500), ["firewall_reject", "service_no_endpoints"]);
        assert_eq!(refused_and_read_after(9_000), ["firewall_reject"], "it is not waited for for ever");
    }
}
