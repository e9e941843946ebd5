//! Why it may not be known which process accepted, or which probe it was.

use super::*;
use tracer_case::sidecar;
use tracer_model::event::{Container, LinkState};
use tracer_model::shell;

/// Any process of the node may have the port of a pod on its network, and it is not known that it is the pod's.
pub(super) fn unknown_on_node(case: &Case<'_>, read: Option<&Acceptor>) -> Option<String> {
    let (listed, reported) = (case.matched.probed_pod(), case.attempt.kubelet());
    if !case.matched.may_be_on_node() || (listed.is_none() && reported.is_none()) {
        return None;
    }
    // Without a list of pods, the process must be that of the pod that the kubelet names.
    if listed.is_none() && read.is_some_and(|it| is_reported(case, it)) {
        return None;
    }
    let Some(read) = read.filter(|it| !it.processes.is_empty()) else {
        return Some("tracer could not read which process of the node has that port".to_owned());
    };
    listed.is_none().then(|| format!("{} has that port", names(case, read)))
}

/// The link to the pod was set down, and the prober connected from another address than that link's: over a wider route,
/// such as the default one. A bridge that was down before tracer started may be left over from another CNI.
pub(super) fn led_past(case: &Case<'_>) -> Option<String> {
    let (netns, flow) = (case.attempt.netns?, case.attempt.flow);
    let (dst, links) = (flow.dst.ip(), case.node.links.get(&netns)?);
    let mut covering = links.iter().filter(|link| link.covers(dst) && case.node.has_pod(dst));
    let was_set_down = |link: &LinkState| !link.up && case.node.links.down(netns, link.ifindex).is_some();
    let down = covering.next().filter(|link| was_set_down(link) && !link.addrs.contains(&flow.src.ip()))?;
    let is_other_up = covering.any(|link| link.up);
    (!is_other_up).then(|| {
        let name = &down.name;
        format!("{name}, the link to {dst}, is down: most likely another host answered, over another route (ip link set {} up)", shell::link(name))
    })
}

/// Several pods on the node's network have a probe on this port, which usually the server of only one of them can have.
/// Which probe failed is not known before the kubelet outcome. Returns a clause, and what to do before the finding's own
/// fix.
pub(super) fn shared_by_pods(case: &Case<'_>, read: Option<&Acceptor>) -> Option<(String, String)> {
    let (pods, port) = (pods_on_node(case), case.attempt.flow.dst.port());
    if pods.len() < 2 {
        return None;
    }
    let all = format!("pods {} want port {port} of the node", names_of(&pods, " and "));
    let Some(read) = read.filter(|it| !it.processes.is_empty()) else {
        return Some((format!("{all}, and tracer could not read which process has it"), one_server(&pods)));
    };
    let names = names(case, read);
    let is_of = |pod: &Pod, it: &AcceptingProcess| it.pod_uid.as_ref().is_some_and(|uid| pod.has_uid(uid));
    let have_it = pods.iter().filter(|pod| read.processes.iter().any(|it| is_of(pod, it)));
    Some(if have_it.count() < 2 {
        (format!("{all}, and {names} has it: which probe failed is not known"), one_server(&pods))
    } else {
        let unknown = "which probe failed is not known, nor which process accepted";
        (format!("{all}, and {names} share it (SO_REUSEPORT): {unknown}"), String::new())
    })
}

/// By the last reading, a process of another container of the pod has the connection. The same as of [`shared_by_pods`].
pub(super) fn held_beside(case: &Case<'_>) -> Option<(String, String)> {
    let (pod, probed) = case.matched.probed_container()?;
    let pid = connection(case)?.pid.filter(|_| !sidecar::asks_another(case))?;
    let name = container_of_process(case, pod, pid).filter(|it| it.id != probed.id)?.name.as_deref()?;
    let readings = readings(case);
    let mut processes = readings.iter().rev().flat_map(|(_, reading)| &reading.processes);
    let holder = processes.find(|it| it.pid == pid)?;
    let who = format!("{} of container {name}", process_name(&holder.comm, pid));
    Some((
        format!(
            "{who} has the connection, and not the probed container: it listens there, or is a transparent proxy (TPROXY)"
        ),
        format!("Read the log of container {name} first. If it only passed on what the application did: "),
    ))
}

/// What to do about two pods that want the same port of the node.
fn one_server(pods: &[&Pod]) -> String {
    let fix = match pods.iter().find(|pod| pod.deleting).and_then(|pod| pod.full_name()) {
        Some(old) => format!(
            "Wait until pod {old} has ended. Let an update delete the old pod first (strategy Recreate, or maxSurge 0)"
        ),
        None => "Give one of the pods another port".to_owned(),
    };
    format!("{fix}: two servers cannot have the same port of the node. If the process that has it failed itself: ")
}

/// Several containers of the pod have a probe on this port, which only one of them can serve. Which probe
/// failed is not known before the kubelet outcome, nor who answered before the first reading.
pub(super) fn shared_port(case: &Case<'_>, read: Option<&Acceptor>) -> Option<String> {
    let (pod, port) = (case.matched.probed_pod()?, case.attempt.flow.dst.port());
    let asks = |it: &&Container| it.probes.iter().any(|spec| spec.port == port && spec.host.is_none());
    let count = pod.containers.iter().filter(asks).count();
    if count < 2 || tracer_case::sidecar::asks_another(case) {
        return None;
    }
    let both = format!("{count} containers of the pod have a probe on port {port}");
    let is_silent = case.attempt.answer().is_none() && case.attempt.received() == Some(0);
    let is_unanswered = case.attempt.established.is_none() || is_silent;
    match (read.filter(|it| !it.processes.is_empty()), case.matched.probed_container()) {
        (Some(_), Some(_)) => None,
        (Some(read), None) => {
            Some(format!("{both}, and {} accepts: which probe failed is not known", names(case, read)))
        }
        (None, _) if is_unanswered => Some(format!("{both}: which of them listens is not known")),
        (None, _) => Some(format!("{both}: who answered is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answered, host_network, process};
    use tracer_core::testing::*;

    /// Seen beside a real kubelet: the default route takes the packets for the pods, and a proxy behind it answers.
    #[test]
    fn an_answer_over_another_route_is_most_likely_not_the_pods() {
        let decided = |seen: bool, up: bool, addr: &str| {
            let mut stream = Stream::new().http_readiness().clone();
            if seen {
                stream.link_set(NODE, 3, "cni0", up);
            }
            let bridge = LinkState { up, prefixes: vec![16], ..link(3, "cni0", &[addr]) };
            stream.node_links(vec![bridge]).connect().established().answers(404).wait_ms(600).tick();
            let verdict = stream.last_verdict();
            (verdict.confidence, verdict.summary.contains("cni0, the link to 10.88.0.2, is down"))
        };
        assert_eq!(decided(true, false, "10.88.0.254"), (Confidence::Likely, true));
        assert_eq!(decided(true, false, "10.88.0.1"), (Confidence::Proven, false));
        assert_eq!(decided(true, true, "10.88.0.254"), (Confidence::Proven, false));
        assert_eq!(decided(false, false, "10.88.0.254"), (Confidence::Proven, false), "of another CNI");
    }

    /// Seen on 6.18 with TPROXY of nftables: envoy took the connection.
    #[test]
    fn a_silent_proxy_that_has_the_connection_is_not_the_application() {
        let decided = |folder: &str| {
            let mut stream = Stream::new().http_readiness().container_id("c1").clone();
            let proxy = Container { name: Some("istio-proxy".into()), id: Some("c2".into()), ..Container::default() };
            stream.last_pods().pods[0].containers.push(proxy);
            stream.connect().established().wait_ms(500);
            let cpu_cgroup = Some(folder.to_owned());
            let holder = ServerProcess { comm: "envoy".into(), cpu_cgroup, ..server_process(9, 1) };
            let connection = Some(ServedConnection { pid: Some(9), ..served(0, true) });
            stream.serving(Serving { processes: vec![holder], connection, ..Serving::default() });
            stream.wait_ms(500).closes((100, 101, 0)).wait_ms(600).tick().verdicts().pop().unwrap()
        };
        let by_proxy = decided("/kubepods/cri-containerd-c2.scope");
        let scope = by_proxy.scope;
        let by_proxy = by_proxy.verdict;
        assert_eq!((by_proxy.cause, by_proxy.confidence), (Cause::SlowResponse, Confidence::Likely));
        assert_eq!(scope, Some(Scope::Pod));
        assert_has(
            &by_proxy.summary,
            &["envoy (pid 9) of container istio-proxy has the connection, and not the probed container"],
        );
        assert_has(
            &by_proxy.remediation,
            &["Read the log of container istio-proxy first. If it only passed on what the application did: "],
        );
        assert_lacks(&decided("/kubepods/cri-containerd-c1.scope").verdict.summary, &["of container"]);
    }

    /// A rolling update, or two replicas: which of the two was probed is not known.
    #[test]
    fn two_host_network_pods_that_want_one_port_are_both_named() {
        let both = |stream: &mut Stream| {
            host_network(stream);
            let pods = &mut stream.last_pods().pods;
            let second = Pod { name: Some("web-2".into()), uid: Some("u3".into()), ..pods[0].clone() };
            pods.push(second);
        };
        let first = || process("app", Some("u1"), Some("c1"));
        let verdict = answered(both, NODE, None, &[first()]);
        assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        let words = "pods default/web and default/web-2 want port 8080 of the node, and app (pid 77) of container app of pod default/web has it: which probe failed is not known";
        assert_has(&verdict.summary, &[words]);
        assert_has(&verdict.remediation, &["Give one of the pods another port"]);
        let updated = |stream: &mut Stream| {
            both(stream);
            stream.last_pods().pods[0].deleting = true;
        };
        let fix = answered(updated, NODE, None, &[first()]).remediation;
        assert_has(&fix, &["Wait until pod default/web has ended. Let an update delete the old pod first"]);
        assert_lacks(&fix, &["another port"]);
        let shared = answered(both, NODE, None, &[first(), process("app", Some("u3"), Some("c1"))]);
        assert_eq!((shared.cause, shared.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        assert_has(&shared.summary, &["of pod default/web-2 share it (SO_REUSEPORT): which probe failed is not known"]);
        assert_lacks(&shared.remediation, &["another port", "cannot have"]);
        let taken = answered(both, NODE, None, &[process("squid", None, None)]);
        assert_eq!((taken.cause, taken.confidence), (Cause::PortTaken, Confidence::Likely));
        let words = "squid (pid 77) of the node has port 8080 and accepted the connection, and not pod default/web or default/web-2: bind()";
        assert_has(&taken.summary, &[words]);
    }

    /// Only the kubelet's line names the pod. tracer finds the pods themselves by their cgroups.
    #[test]
    fn without_a_list_of_pods_the_listener_must_be_of_the_pod_that_the_kubelet_names() {
        let decided = |by: Option<AcceptingProcess>, found: bool| {
            let mut stream = Stream::new();
            host_network(&mut stream);
            let pods = &mut stream.last_pods().pods;
            pods.truncate(if found { pods.len() } else { 0 });
            pods.iter_mut().for_each(|pod| pod.containers.clear());
            stream.connect().established().answers(404).wait_ms(5).tick();
            if let Some(by) = by {
                let acceptor = Acceptor { to: None, netns: NODE, processes: vec![by] };
                stream.pod_sockets(|reading| reading.acceptor = Some(acceptor));
            }
            stream.kubelet_with(ProbeOutput::Status(404), |probe| probe.pod.uid = Some("u1".into()));
            let verdict = stream.wait_ms(600).tick().last_verdict();
            (verdict.cause, verdict.confidence, verdict.summary)
        };
        let exporter = || Some(process("exporter", Some("u2"), Some("c2")));
        let (cause, confidence, summary) = decided(exporter(), true);
        assert_eq!((cause, confidence), (Cause::PortTaken, Confidence::Likely));
        assert_has(
            &summary,
            &["exporter (pid 77) of pod other has port 8080 and accepted the connection, and not pod"],
        );
        for (by, words) in [(None, "could not read which"), (exporter(), "exporter (pid 77) of pod u2 has that port")] {
            let (cause, confidence, summary) = decided(by, false);
            assert_eq!((cause, confidence), (Cause::AppStatusFailure, Confidence::Likely));
            assert_has(&summary, &[words]);
        }
        for found in [true, false] {
            let (cause, confidence, _) = decided(Some(process("app", Some("u1"), Some("c1"))), found);
            assert_eq!((cause, confidence), (Cause::AppStatusFailure, Confidence::Proven));
        }
    }

    #[test]
    fn it_is_not_known_which_of_two_probes_of_a_port_failed() {
        let both = |stream: &mut Stream| {
            stream.http_readiness().pod_in(POD).container_id("c1").probed_container_too("metrics");
            stream.last_pods().pods[0].uid = Some("u1".into());
        };
        let nginx = process("nginx", Some("u1"), Some("c1"));
        for (by, words) in [(&[nginx][..], ", and nginx (pid 77) of container app"), (&[], ": who answered is not")] {
            let verdict = answered(both, POD, None, by);
            assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
            assert_has(&verdict.summary, &["2 containers of the pod have a probe on port 8080", words]);
        }
        let mut silent = Stream::new();
        both(&mut silent);
        let verdict = silent.connect().established().wait_ms(1_000).closes((100, 101, 0)).wait_ms(600).tick().verdict();
        assert_has(&verdict.summary, &["2 containers of the pod", ": which of them listens is not known"]);
    }
}
