//! A rule gave a packet of the attempt to a process (NFQUEUE), and that process refused it.

use super::case::Case;
use super::evidence::of_drop;
use super::finding::Finding;
use super::netfilter::is_needed;
use super::phrases::{in_namespace, run_in};
use super::rules::network_policy_drop::list_policies;
use tracer_model::event::{Actor, PacketDrop};
use tracer_model::record::{Cause, Remediation};

/// Processes that enforce network policies in this way: kindnet, and kube-network-policies.
const ENFORCERS: [&str; 2] = ["kindnetd", "netpol"];

/// A drop that a process enforcing policies decided.
pub(super) fn by_policy(case: &Case<'_>, allow: &str) -> Option<Finding> {
    let refused = refused(case).filter(|(.., process)| is_enforcer(process))?;
    let fix = Remediation::from(format!("In the network policies, {allow}")).run([list_policies()]);
    Some(finding(case, refused, Cause::NetworkPolicyDrop, fix))
}

/// A drop that another process decided, such as an intrusion prevention system.
pub(super) fn by_process(case: &Case<'_>) -> Option<Finding> {
    let refused = refused(case).filter(|(.., process)| !is_enforcer(process))?;
    let fix = format!("Find in the rules and the log of {} why it refuses this connection", refused.2.comm);
    Some(finding(case, refused, Cause::FirewallDrop, fix.into()))
}

fn is_enforcer(process: &Actor) -> bool {
    ENFORCERS.contains(&process.comm.as_str())
}

type Refused<'a> = (u64, &'a PacketDrop, &'a Actor);

fn refused<'a>(case: &Case<'a>) -> Option<Refused<'a>> {
    let mut needed = case.attempt.drops().filter(|(time, drop)| is_needed(case, *time, drop));
    needed.find_map(|(time, drop)| Some((time, drop, drop.refused_by.as_ref()?)))
}

/// Likely: a packet that a later rule drops is freed at the same place.
fn finding(case: &Case<'_>, (time, drop, process): Refused<'_>, cause: Cause, fix: Remediation) -> Finding {
    let place = in_namespace(case, drop.netns);
    let summary = format!(
        "a rule{place} gave the {} {} to process {process} (NFQUEUE), which refused it, or a rule after that did",
        drop.flags.name(),
        drop.flow
    );
    let show = ["nft list ruleset", "iptables-save", "cat /proc/net/netfilter/nfnetlink_queue"];
    let fix = fix.run(show.map(|command| run_in(case, drop.netns, command)));
    Finding::likely(cause, vec![of_drop(time, drop)], summary, fix).rests_on_lost_packet()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn refused_by(comm: &str) -> Verdict {
        let mut stream = Stream::new();
        stream.connect().drop_with(SYN, POD, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("nfqnl_reinject".into()));
            drop.refused_by = Some(Actor { comm: comm.into(), ..Stream::new().connect().last_connect().actor.clone() });
        });
        stream.gives_up().verdict()
    }

    #[test]
    fn the_process_behind_a_queue_is_named() {
        for agent in super::ENFORCERS.map(refused_by) {
            assert_eq!((agent.cause.name(), agent.confidence), ("network_policy_drop", Confidence::Likely));
            assert_has(&agent.remediation, &["kubectl get networkpolicy -A"]);
        }
        let other = refused_by("suricata");
        assert_eq!((other.cause.name(), other.confidence), ("firewall_drop", Confidence::Likely));
        assert_has(&other.summary, &["to process suricata (pid ", "(NFQUEUE), which refused it"]);
    }
}
