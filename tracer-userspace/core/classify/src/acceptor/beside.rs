//! Another process in the right network namespace has the port.

use super::*;
use tracer_case::kubectl::{and_log, with_logs};
use tracer_case::phrases::run_in;
use tracer_model::event::Container;
use tracer_model::record::K8s;

/// A process with the right address accepted, and is not the probed container's.
pub(super) fn beside(case: &Case<'_>, acceptor: &Acceptor) -> Option<Other> {
    // The answer is that of the probed container.
    if tracer_case::sidecar::asks_another(case) {
        return None;
    }
    let probed = case.matched.probed_container().map(|(pod, container)| (pod, Some(container)));
    let several = pods_on_node(case);
    let unknown = || case.matched.reported_on_node().or_else(|| several.first().copied());
    let (pod, container) = probed.or_else(|| Some((unknown()?, None)))?;
    // Which of several pods is probed does not matter, if none of them has the port.
    let pods = if probed.is_none() && !several.is_empty() { several.as_slice() } else { &[pod] };
    let own = if pod.host_network { case.attempt.netns } else { pod.netns };
    if acceptor.processes.is_empty() || own != Some(acceptor.netns) {
        return None;
    }
    let (port, processes) = (case.attempt.flow.dst.port(), &acceptor.processes);
    let who = names(case, acceptor);
    let name = pod.full_name().map(|_| names_of(pods, " or "))?;
    let this = container.and_then(|it| it.name.as_deref()).map(|it| format!("container {it} of ")).unwrap_or_default();
    let has_port = format!("{who} has port {port} and {}, and not {this}pod {name}", done_by(case));
    // A probe may be meant for another container of the pod, such as one that reports for all of them.
    let sidecar = |it: &AcceptingProcess| sidecar(pod, container?, it);
    if processes.iter().all(|it| sidecar(it).is_some()) {
        let sidecar = processes.iter().find_map(sidecar)?;
        let k8s = case.matched.name().k8s.map(|k8s| K8s { container_name: sidecar.name.clone(), ..k8s });
        let fix = Remediation::from(
            "If the probe is meant for the process that answered: find in its log why. Otherwise give one of the two containers another port: bind() of the second server fails (EADDRINUSE), and its log says so",
        );
        let fix = match k8s {
            Some(k8s) => and_log(&k8s, false, fix),
            None => fix,
        };
        let fix = with_logs(case, fix);
        return Some(Other { cause: None, scope: Scope::Pod, words: has_port, place: Place::First, fix });
    }
    let is_none_of_them = |it: &AcceptingProcess| pods.iter().all(|pod| is_foreign(case, pod, it));
    if !pod.host_network || !processes.iter().all(is_none_of_them) {
        return None;
    }
    let fix = Remediation::from(format!(
        "Find out which of the two should have port {port} of the node: stop the other one, or give it another port. Two servers cannot have it"
    ));
    let show = run_in(case, case.attempt.netns, format!("ss -ltnp 'sport = :{port}'"));
    let words = format!("{has_port}: bind() of its server would fail while that process listens (EADDRINUSE)");
    let of_node = processes.iter().all(|it| it.pod_uid.is_none());
    let scope = if of_node { Scope::Node } else { Scope::Pod };
    let fix = with_logs(case, fix.run([show]));
    Some(Other { cause: Some(Cause::PortTaken), scope, words, place: Place::First, fix })
}

/// Another container of the probed pod, if the process is in it.
fn sidecar<'a>(pod: &'a Pod, probed: &Container, process: &AcceptingProcess) -> Option<&'a Container> {
    let (uid, id) = (process.pod_uid.as_deref()?, process.container.as_deref()?);
    let other = pod.containers.iter().find(|it| it.id.as_deref() == Some(id))?;
    (pod.has_uid(uid) && other.name != probed.name).then_some(other)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answered, host_network, process, reported};
    use tracer_core::testing::*;

    /// node-exporter twice on one node, or a process of the node that has the port.
    #[test]
    fn a_listener_of_another_pod_or_of_the_node_takes_the_port_of_a_host_network_pod() {
        let exporter = "exporter (pid 77) of container exporter of pod other has";
        for (by, name, scope) in [
            (process("exporter", Some("u2"), Some("c2")), exporter, Scope::Pod),
            (process("python", None, None), "python (pid 77) of the node has", Scope::Node),
        ] {
            let record = reported(host_network, NODE, None, &[by]);
            assert_eq!(record.scope, Some(scope));
            let verdict = record.verdict;
            assert_eq!((verdict.cause, verdict.confidence), (Cause::PortTaken, Confidence::Likely));
            assert_has(&verdict.summary, &["; 10.88.0.2:8080 was reached", name, "bind() of its server would fail"]);
            assert_has(&verdict.remediation, &["ss -ltnp 'sport = :8080'"]);
            assert_lacks(&verdict.remediation, &["The network from the kubelet to the pod works"]);
        }
    }

    #[test]
    fn a_listener_of_the_pod_or_of_an_unknown_container_is_the_probed_one() {
        for by in [
            &[process("app", Some("u1"), Some("c1"))][..],
            &[process("app", Some("u1"), Some("new"))],
            &[process("app", Some("u3"), Some("c3"))],
            &[process("app", None, Some("c4"))],
            &[process("app", Some("u1"), Some("c1")), process("python", None, None)],
        ] {
            let verdict = answered(host_network, NODE, None, by);
            assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Proven), "{by:?}");
        }
        let unknown = answered(host_network, NODE, None, &[]);
        assert_eq!((unknown.cause, unknown.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        assert_has(&unknown.summary, &["could not read which process of the node"]);
        let in_pod = |stream: &mut Stream| _ = stream.http_readiness().pod_in(POD);
        let verdict = answered(in_pod, POD, None, &[process("python", None, None)]);
        assert_eq!(verdict.confidence, Confidence::Proven, "the namespace is the pod's");
    }

    fn two_containers(stream: &mut Stream) {
        stream.http_readiness().pod_in(POD).container_id("c1").container_too("metrics");
        let pod = &mut stream.last_pods().pods[0];
        (pod.uid, pod.containers[1].id) = (Some("u1".into()), Some("c2".into()));
    }

    /// The CSI drivers' sidecar `liveness-probe` answers the probe of the driver: so the cause stays.
    #[test]
    fn a_listener_of_another_container_of_the_pod_is_named() {
        let record = reported(two_containers, POD, None, &[process("nginx", Some("u1"), Some("c2"))]);
        assert_eq!(record.scope, Some(Scope::Pod));
        let verdict = record.verdict;
        assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        assert_has(&verdict.summary, &["nginx (pid 77) of container metrics of pod default/web has port 8080"]);
        assert_has(&verdict.remediation, &["-c metrics"]);
        let own = reported(two_containers, POD, None, &[process("nginx", Some("u1"), Some("c1"))]);
        assert_eq!((own.verdict.confidence, own.scope), (Confidence::Proven, Some(Scope::Application)));
    }
}
