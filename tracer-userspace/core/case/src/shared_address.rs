//! Two pods of this node have the target's address: the probed one may not be the one that was reached.

use crate::case::{Case, inspected};
use crate::finding::Finding;
use crate::phrases::run_in;
use crate::pod_sockets::{FRESH_NS, last_reading};
use crate::refusal::pod_elsewhere;
use crate::serving::connection;
use tracer_model::event::{Netns, Pod};
use tracer_model::record::{Command, Confidence, Outcome, Remediation};

/// What to do after one of the two pods is deleted.
pub const FIX: &str =
    "and check the CNI's address management, which assigned the address twice (host-local: /var/lib/cni/networks)";

/// Notes it in a failure, which is likely at most then: nothing is proven of the probed pod.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    let addr = case.attempt.flow.dst.ip();
    let found = if finding.outcome == Outcome::Failure { listed(case).or_else(|| read(case, finding)) } else { None };
    let Some((who, reached, first)) = found else { return };
    finding.confidence = finding.confidence.min(Confidence::Likely);
    finding.summary += &format!("; {who} both have {addr}: {reached} the one that was reached");
    finding.change_fix(|fix| first.reword(|text| format!("{text}, {FIX}")).then("Otherwise", fix));
}

const EITHER: &str = "either may be";

/// Two pods of the list, which of them was reached, and what to do. Nothing, if that was the probed one.
fn listed(case: &Case<'_>) -> Option<(String, String, Remediation)> {
    let [first, second, ..] = &holders(case)[..] else { return None };
    let reached = match reached(case)?.and_then(|netns| case.node.pods.in_netns(netns)) {
        Some(pod) if case.matched.possible_pods().iter().all(|probed| std::ptr::eq(*probed, pod)) => return None,
        Some(pod) => format!("pod {} is", pod.full_name()?),
        None => EITHER.to_owned(),
    };
    let [one, other] = [first, second].map(|pod| pod.full_name().unwrap_or_default());
    let addr = case.attempt.flow.dst.ip();
    let show = format!("kubectl get pods -A -o wide --field-selector status.podIP={addr}");
    let fix = Remediation::from("Delete the pod that should not have the address").run([Command::in_cluster(show)]);
    Some((format!("pods {one} and {other}"), reached, fix))
}

/// Whether the target was reached, and in which namespace, if something shows that.
fn reached(case: &Case<'_>) -> Option<Option<Netns>> {
    let attempt = case.attempt;
    let refused =
        attempt.resets_sent().find(|(_, it)| it.flow.src.ip() == attempt.flow.dst.ip()).and_then(|(_, it)| it.netns);
    let accepted = || connection(case).and_then(|_| inspected(case)?.1.netns);
    // What was lost in a namespace with a pod had come there.
    let mut lost = attempt.drops().filter_map(|(_, it)| it.netns).chain(attempt.icmp().filter_map(|(_, it)| it.netns));
    let lost = lost.find(|netns| Some(*netns) != attempt.netns && case.node.pods.in_netns(*netns).is_some());
    let at = refused.or(lost);
    let is_reached = attempt.established.is_some() || attempt.reset_received().is_some() || at.is_some();
    is_reached.then(|| at.or_else(accepted))
}

/// Two namespaces in which the address was read a moment ago, if no address translation led it elsewhere. A
/// refusal or a drop names its own namespace.
fn read(case: &Case<'_>, finding: &Finding) -> Option<(String, String, Remediation)> {
    let (_, reading) = last_reading(case, FRESH_NS)?;
    let [first, second, ..] = reading.holders[..] else { return None };
    // A refusal in another namespace than the pod's is that of its own rule, which names both.
    let mut refusals = case.attempt.resets_sent().filter(|(_, it)| it.no_socket).filter_map(|(_, it)| it.netns);
    if refusals.any(|netns| pod_elsewhere(case, netns).is_some()) {
        return None;
    }
    if !finding.rests_on_acceptor() || reading.acceptor.is_some() || reading.redirect.is_some() {
        return None;
    }
    let name = |netns: Netns| match case.node.pods.in_netns(netns).and_then(Pod::full_name) {
        Some(pod) => format!("pod {pod}"),
        None => format!("a network namespace without a known pod ({})", netns.0),
    };
    let (addr, from) = (case.attempt.flow.dst.ip(), case.attempt.netns);
    let show = [first, second].map(|netns| run_in(case, Some(netns), format!("ip addr show to {addr}")));
    let fix = Remediation::from("Delete the pod that should not have the address, or take it away from that one")
        .run([run_in(case, from, format!("ip neigh show {addr}"))])
        .run(show);
    Some((format!("{} and {}", name(first), name(second)), EITHER.to_owned(), fix))
}

/// Living pods at this address, each with a network of its own, those found on the node first. A pod on the node without
/// a name may be one of the list. If a pod was found on the node, one that is only listed may be gone (the list is a
/// file, or late): it does not count, unless its probes are those that the verdict names.
fn holders<'a>(case: &Case<'a>) -> Vec<&'a Pod> {
    let ended = |pod: &Pod| pod.netns.is_some_and(|netns| case.node.has_ended(netns));
    let lives = |pod: &&Pod| pod.name.is_some() && !pod.host_network && !pod.deleting && !ended(pod);
    let mut pods: Vec<_> = case.node.pods.at(case.attempt.flow.dst.ip()).filter(lives).collect();
    let probed = case.matched.probed_pod();
    if pods.iter().any(|pod| pod.netns.is_some()) {
        pods.retain(|pod| pod.netns.is_some() || probed.is_some_and(|it| std::ptr::eq(it, *pod)));
    }
    pods.sort_by_key(|pod| pod.netns.is_none());
    pods
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn reported(other: impl FnOnce(&mut Pod), ends: bool) -> tracer_model::record::Verdict {
        let mut stream = Stream::new().http_readiness().pod_without_specs("10.88.0.2").clone();
        let pods = stream.last_pods();
        other(&mut pods.pods[1]);
        if ends {
            stream.netns_ends(POD);
        }
        stream.connect().reset_sent(SYN, true, None).verdict()
    }

    /// kubernetes#43910: after a restart the same addresses were assigned again.
    #[test]
    fn a_failure_at_an_address_of_two_pods_is_likely_at_most() {
        let both = reported(|_| {}, false);
        assert_eq!((both.cause.name(), both.confidence), ("connection_refused", Confidence::Likely));
        let words = "; pods default/web and new both have 10.88.0.2: either may be the one that was reached";
        assert_has(&both.summary, &[words]);
        assert_has(&both.remediation, &[". Otherwise: Let the process listen on 8080", "status.podIP=10.88.0.2"]);
        let mut silent = Stream::new().http_readiness().pod_without_specs("10.88.0.2").clone();
        assert_lacks(&silent.connect().gives_up().verdict().summary, &["both have"]);
    }

    /// The probe is that of a pod that is only listed. The other one is on the node and has no probe there.
    #[test]
    fn a_verdict_names_the_pod_that_was_found_beside_the_one_with_the_probe() {
        let found = reported(|pod| pod.netns = Some(POD), false);
        assert_eq!(found.confidence, Confidence::Likely);
        let words = "; pods new and default/web both have 10.88.0.2: pod new is the one that was reached";
        assert_has(&found.summary, &[words]);
        let mut stream = Stream::new().http_readiness().pod_in(POD).pod_without_specs("10.88.0.2").clone();
        let listed = stream.connect().reset_sent(SYN, true, None).verdict();
        assert_eq!(listed.confidence, Confidence::Proven, "the other one may be gone");
        let mut both = Stream::new().http_readiness().pod_in(POD).pod_without_specs("10.88.0.2").clone();
        both.last_pods().pods[1].netns = Some(Netns(9));
        let probed = both.connect().reset_sent(SYN, true, None).verdict();
        assert_eq!(probed.confidence, Confidence::Proven, "the RST shows which one was reached");
    }

    #[test]
    fn pods_that_end_or_use_the_host_network_share_no_address() {
        let ended = reported(|pod| pod.netns = Some(POD), true);
        let others: [fn(&mut Pod); 3] =
            [|pod| pod.deleting = true, |pod| pod.host_network = true, |pod| pod.name = None];
        for one in others.map(|fill| reported(fill, false)).into_iter().chain([ended]) {
            assert!(one.confidence == Confidence::Proven && !one.summary.contains("both have"), "{}", one.summary);
        }
    }
}
