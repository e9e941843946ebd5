//! A rule took the packet because connection tracking found it invalid.

use super::super::stopped::stopped;
use super::{Case, Finding, Label};
use crate::event::Tracked;
use crate::record::Confidence;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let stopped = stopped(case)?;
    stopped.drop.filter(|(_, drop)| drop.tracked == Some(Tracked::No))?;
    let blame = stopped.blame.as_ref().filter(|blame| blame.all(|rule| rule.when.invalid))?;
    let confidence = if blame.certain().is_some() { Confidence::Proven } else { Confidence::Likely };
    let summary =
        format!("connection tracking found the packet invalid, and a rule{}{}", stopped.did(case), stopped.words());
    let remediation = format!(
        "let both directions of {} pass the same connection tracking (asymmetric route? notrack?), or sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1 for packets out of window; the rule: {}",
        case.attempt.flow.dst,
        stopped.look(case)
    );
    Some(stopped.finding(case, Label::ConntrackInvalid, summary, remediation).with_confidence(confidence))
}

#[cfg(test)]
mod tests {
    use crate::event::{Fact, FirewallRule, RuleVerdict, Tracked};
    use crate::testing::{NODE, SYN_ACK, Stream, firewall, rule};

    fn labels(tracked: Tracked, rules: Vec<FirewallRule>) -> Vec<&'static str> {
        let mut stream = Stream::new();
        stream.connect().drop(SYN_ACK, "NETFILTER_DROP", NODE);
        if let Some(Fact::Drop(drop)) = stream.observations.last_mut().map(|o| &mut o.fact) {
            drop.tracked = Some(tracked);
        }
        stream.push(firewall(NODE, rules)).wait_ms(5).push(Fact::Tick).labels()
    }

    fn invalid() -> FirewallRule {
        let mut rule = rule("input", RuleVerdict::Drop);
        (rule.when.invalid, rule.exact) = (true, true);
        rule
    }

    #[test]
    fn only_a_packet_without_an_entry_is_invalid() {
        assert_eq!(labels(Tracked::No, vec![invalid()]), ["conntrack_invalid"]);
        assert_eq!(labels(Tracked::Yes, vec![invalid()]), ["firewall_drop"]);
        assert_eq!(labels(Tracked::Untracked, vec![invalid(), rule("input", RuleVerdict::Drop)]), ["firewall_drop"]);
    }

    #[test]
    fn a_rule_that_comes_before_can_have_done_it() {
        assert_eq!(labels(Tracked::No, vec![rule("input", RuleVerdict::Drop), invalid()]), ["firewall_drop"]);
        assert_eq!(labels(Tracked::No, vec![invalid(), rule("input", RuleVerdict::Drop)]), ["conntrack_invalid"]);
    }
}
