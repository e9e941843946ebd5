//! A rule gave a packet of the attempt to a process (NFQUEUE), and that process refused it, or no process was there.

use crate::case::Case;
use crate::drop_reason::dropped_in;
use crate::evidence::of_drop;
use crate::finding::Finding;
use crate::netfilter::is_needed;
use crate::phrases::{in_namespace, run_in};
use crate::programs::list_policies;
use tracer_model::event::{Actor, PacketDrop};
use tracer_model::record::{Cause, Command, Remediation};

/// Processes that enforce network policies in this way: kindnet, and kube-network-policies.
const ENFORCERS: [&str; 2] = ["kindnetd", "netpol"];

/// A drop that a process enforcing policies decided.
pub fn by_policy(case: &Case<'_>, allow: &str) -> Option<Finding> {
    let refused = refused(case).filter(|(.., process)| is_enforcer(process))?;
    let fix = Remediation::from(format!("In the network policies, {allow}")).run([list_policies()]);
    Some(finding(case, refused, Cause::NetworkPolicyDrop, fix))
}

/// A drop that another process decided, such as an intrusion prevention system.
pub fn by_process(case: &Case<'_>) -> Option<Finding> {
    let refused = refused(case).filter(|(.., process)| !is_enforcer(process))?;
    let fix = format!("Find in the rules and the log of {} why it refuses this connection", refused.2.comm);
    Some(finding(case, refused, Cause::FirewallDrop, fix.into()))
}

/// No process reads the queue, or it is full: `nf_queue` (net/netfilter/nf_queue.c) frees a packet for nothing else.
pub fn without_reader(case: &Case<'_>) -> Option<Finding> {
    let is_refused = |drop: &PacketDrop| dropped_in(drop) == Some("nf_queue");
    let (time, drop) = case.attempt.drops().find(|(time, drop)| is_refused(drop) && is_needed(case, *time, drop))?;
    let summary = format!(
        "a rule{} sends the {} {} to a queue for a process (NFQUEUE), and no process reads that queue, or it is full",
        in_namespace(case, drop.netns),
        drop.flags.name(),
        drop.flow
    );
    let text = "Start the process that reads the queue, or let the rule pass packets without it (bypass)";
    let fix = Remediation::from(text).run(show_queues(case, drop));
    Some(Finding::failure(Cause::FirewallDrop, vec![of_drop(time, drop)], summary, fix).rests_on_lost_packet())
}

fn show_queues(case: &Case<'_>, drop: &PacketDrop) -> [Command; 3] {
    ["nft list ruleset", "iptables-save", "cat /proc/net/netfilter/nfnetlink_queue"]
        .map(|command| run_in(case, drop.netns, command))
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
    let fix = fix.run(show_queues(case, drop));
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

    /// The prober has given up by then.
    #[test]
    fn a_queue_that_refuses_late_is_the_cause() {
        let mut stream = Stream::new().connect().gives_up().wait_ms(200).clone();
        stream.drop_with(SYN, POD, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("nfqnl_reinject".into()));
            drop.refused_by =
                Some(Actor { comm: "suricata".into(), ..Stream::new().connect().last_connect().actor.clone() });
        });
        assert_eq!(stream.settles().last_verdict().cause, Cause::FirewallDrop);
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

    #[test]
    fn a_queue_that_nobody_reads_is_proven_by_the_place() {
        let verdict = |flags, reason: Option<&str>, place: &str| {
            let mut stream = Stream::new();
            stream.connect().drop_with(flags, POD, |drop| {
                (drop.reason, drop.location) = (reason.map(str::to_owned), Some(place.into()));
            });
            stream.gives_up().verdict()
        };
        for reason in [None, Some("NOT_SPECIFIED")] {
            let found = verdict(SYN, reason, "nf_queue");
            assert_eq!((found.cause.name(), found.confidence), ("firewall_drop", Confidence::Proven));
            assert_has(&found.summary, &["(NFQUEUE), and no process reads that queue, or it is full"]);
            assert_has(&found.remediation, &["cat /proc/net/netfilter/nfnetlink_queue"]);
        }
        assert_eq!(verdict(SYN, None, "nf_reinject").cause.name(), "unexplained", "the queue was emptied");
        assert_eq!(verdict(TcpFlags(0x14), None, "nf_queue").cause.name(), "unexplained", "a RST");
    }
}
