//! Two pods of this node have the target's address: nothing shows which of them was reached.

use super::Case;
use super::finding::Finding;
use super::phrases::run_in;
use super::pod_sockets::last_reading;
use tracer_model::event::{Netns, Pod};
use tracer_model::record::{Command, Confidence, Outcome, Remediation};
use tracer_model::shell;

/// What to do after one of the two pods is deleted.
pub(super) const FIX: &str =
    "and check the CNI's address management, which assigned the address twice (host-local: /var/lib/cni/networks)";

/// Notes it in a failure, which is likely at most then: nothing is proven of either pod.
pub(super) fn add(case: &Case<'_>, finding: &mut Finding) {
    let addr = case.attempt.flow.dst.ip();
    let found = if finding.outcome == Outcome::Failure { listed(case).or_else(|| read(case, finding)) } else { None };
    let Some((who, first)) = found else { return };
    finding.confidence = finding.confidence.min(Confidence::Likely);
    finding.summary += &format!("; {who} both have {addr}: either may be the one that was reached");
    finding.change_fix(|fix| first.reword(|text| format!("{text}, {FIX}")).then("Otherwise", fix));
}

/// Two pods of the list, and what to do.
fn listed(case: &Case<'_>) -> Option<(String, Remediation)> {
    let [first, second, ..] = &holders(case)[..] else { return None };
    let [one, other] = [first, second].map(|pod| pod.full_name().unwrap_or_default());
    let fix = Remediation::from("Delete one of the two pods").run([delete(second)]);
    Some((format!("pods {one} and {other}"), fix))
}

/// Two namespaces in which the address was read since the attempt began, if no address translation led it elsewhere. A
/// refusal or a drop names its own namespace.
fn read(case: &Case<'_>, finding: &Finding) -> Option<(String, Remediation)> {
    let (_, reading) = last_reading(case, 0)?;
    let [first, second, ..] = reading.holders[..] else { return None };
    if !finding.rests_on_acceptor() || reading.acceptor.is_some() || reading.redirect.is_some() {
        return None;
    }
    let name = |netns: Netns| match case.node.pods.in_netns(netns).and_then(Pod::full_name) {
        Some(pod) => format!("pod {pod}"),
        None => format!("network namespace {}", netns.0),
    };
    let (addr, from) = (case.attempt.flow.dst.ip(), case.attempt.netns);
    let show = [first, second].map(|netns| run_in(case, Some(netns), format!("ip addr show to {addr}")));
    let fix = Remediation::from("Delete the pod that should not have the address, or take it away from that one")
        .run([run_in(case, from, format!("ip neigh show {addr}"))])
        .run(show);
    Some((format!("{} and {}", name(first), name(second)), fix))
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

fn delete(pod: &Pod) -> Command {
    let [namespace, name] = [&pod.namespace, &pod.name].map(|it| shell::word(it.as_deref()));
    Command::in_cluster(format!("kubectl delete pod -n {} {}", namespace.unwrap_or("NAMESPACE"), name.unwrap_or("POD")))
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
        assert_starts(&both.remediation.commands[0].run, "kubectl delete pod -n ");
        assert_has(&both.remediation, &[". Otherwise: Let the process listen on 8080"]);
    }

    /// The probe is that of a pod that is only listed. The other one is on the node and has no probe there.
    #[test]
    fn a_verdict_names_the_pod_that_was_found_beside_the_one_with_the_probe() {
        let found = reported(|pod| pod.netns = Some(POD), false);
        assert_eq!(found.confidence, Confidence::Likely);
        assert_has(&found.summary, &["; pods new and default/web both have 10.88.0.2: either may be the one"]);
        assert_ends(&found.remediation.commands[0].run, "-n default web");
        let mut stream = Stream::new().http_readiness().pod_in(POD).pod_without_specs("10.88.0.2").clone();
        let listed = stream.connect().reset_sent(SYN, true, None).verdict();
        assert_eq!(listed.confidence, Confidence::Proven, "the other one may be gone");
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
