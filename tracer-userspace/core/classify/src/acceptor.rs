//! Another process than the probed container's accepted the connection: then its answer, its silence or its close says
//! nothing about the application.

use serde_json::json;

use super::case::{Case, holds_target};
use super::evidence::evidence_of;
use super::finding::Finding;
use super::kubectl::{and_log, with_logs};
use super::phrases::run_in;
use super::pod_sockets::{FRESH_NS, detour, is_of_this, last_reading};
use super::rules::refusal::{listed, own_address};
use super::serving::connection;
use tracer_attempts::enrich::is_pod;
use tracer_model::event::{AcceptingProcess, Acceptor, Container, Pod, PodSockets, ResetSent};
use tracer_model::record::{Cause, Confidence, K8s, Remediation, Scope, Stage};

/// Who accepted instead of the probed container.
struct Other {
    /// The cause, if it is another one.
    cause: Option<Cause>,
    /// Who has to act.
    scope: Scope,
    /// A clause that names it.
    words: String,
    fix: Remediation,
}

/// Notes who accepted, if that was not the probed container; returns whether it was not. The finding is likely at most
/// then, and has another fix.
pub(super) fn add(case: &Case<'_>, finding: &mut Finding) -> bool {
    if case.attempt.established.is_none() || !finding.rests_on_acceptor() {
        return false;
    }
    let last = last_reading(case, FRESH_NS);
    let read = last.and_then(|(time, reading)| Some((time, accepts(case, time, reading)?)));
    let earlier = last.is_some_and(|(time, reading)| !is_of_this(case, time, reading));
    let acceptor = read.map(|(_, it)| it);
    let other = elsewhere(case, acceptor, earlier, &finding.remediation).or_else(|| beside(case, acceptor?));
    let Some(other) = other else {
        finding.scope = detour(case, FRESH_NS).map(|it| it.scope()).or(finding.scope);
        let has_holders = |time, it: &PodSockets| time >= case.attempt.started && !it.holders.is_empty();
        let is_read =
            acceptor.is_some() || last.is_some_and(|(time, it)| it.redirect.is_some() || has_holders(time, it));
        finding.lacks_acceptor = !is_read && must_be_read(case, finding);
        let shared = shared_by_pods(case, acceptor);
        if let Some((_, first)) = &shared {
            finding.remediation.text.insert_str(0, first);
        }
        let words = shared
            .map(|(words, _)| words)
            .or_else(|| unknown_on_node(case, acceptor))
            .or_else(|| shared_port(case, acceptor));
        if let Some(words) = words {
            finding.confidence = finding.confidence.min(Confidence::Likely);
            finding.summary += &format!("; {words}");
        }
        return false;
    };
    finding.cause = other.cause.unwrap_or(finding.cause);
    finding.scope = Some(other.scope);
    finding.confidence = finding.confidence.min(Confidence::Likely);
    finding.summary += &format!("; {}", other.words);
    finding.remediation = other.fix;
    finding.evidence.extend(read.filter(|(_, it)| !it.processes.is_empty()).map(|(time, it)| {
        let at = it.to.unwrap_or(case.attempt.flow.dst);
        let text = format!("connections to {} are accepted on {at} by {}", case.attempt.flow.dst, names(case, it));
        let pids: Vec<u32> = it.processes.iter().map(|it| it.server.pid).collect();
        evidence_of("sock_diag", time, text, json!({ "pids": pids, "netns": it.netns, "to": it.to }))
    }));
    true
}

/// Only a reading would show that the pod accepted: no inspection found the connection in its namespace, and no RST came
/// from there.
fn must_be_read(case: &Case<'_>, finding: &Finding) -> bool {
    let dst = case.attempt.flow.dst;
    let by_pod = |it: &ResetSent| it.flow.src == dst && it.netns.is_some_and(|netns| holds_target(case, netns));
    let is_seen = || connection(case).is_some() || case.attempt.resets_sent().any(|(_, it)| by_pod(it));
    let at_pod = case.attempt.prober && case.node.has_pod(dst.ip());
    let in_handshake = finding.cause.stage() == Stage::Handshake;
    at_pod && !in_handshake && finding.confidence == Confidence::Proven && !is_seen()
}

/// Who accepts, as this reading shows. An older one counts if no process began or stopped to listen there since.
fn accepts<'a>(case: &Case<'a>, time: u64, reading: &'a PodSockets) -> Option<&'a Acceptor> {
    let acceptor = reading.acceptor.as_ref()?;
    let at = acceptor.to.unwrap_or(case.attempt.flow.dst);
    let is_current = time >= case.attempt.started || !case.node.listeners.changed_since(acceptor.netns, at, time);
    is_current.then_some(acceptor)
}

/// The connection arrived in another namespace than the pod's: in the node's own, or in that of another pod. `earlier`:
/// the translation that was read is of an earlier connection. `own`: the finding's own fix.
fn elsewhere(case: &Case<'_>, read: Option<&Acceptor>, earlier: bool, own: &Remediation) -> Option<Other> {
    let (addr, from) = (case.attempt.flow.dst.ip(), case.attempt.netns?);
    let on_node = case.matched.may_be_on_node();
    let pod = if on_node { on_its_network(case) } else { Some(listed(case)?) };
    let owns = || case.attempt.prober && case.node.is_to_itself(case.attempt);
    let netns = read.map(|it| it.netns).or_else(|| owns().then_some(from))?;
    let is_other = |pod: &Pod| !pod.host_network && pod.netns != Some(netns);
    let led_away = || read.is_some_and(|it| leads_away(case, pod, it));
    if !(if on_node { led_away() } else { case.node.pods.at(addr).all(is_other) }) {
        return None;
    }
    let holder = case.node.pods.in_netns(netns).and_then(Pod::full_name);
    let who = match read.map(|it| names(case, it)).filter(|names| !names.is_empty()) {
        Some(names) => names,
        None if netns == from => "a process of the node".to_owned(),
        None => match holder.as_deref() {
            Some(holder) => format!("a process of pod {holder}"),
            None if on_node => format!("a process in network namespace {}", netns.0),
            None => return None,
        },
    };
    let pod = pod.and_then(Pod::full_name);
    let instead = pod.as_ref().map(|pod| format!(", and not pod {pod}")).unwrap_or_default();
    let accepted = format!("{who} accepted the connection{instead}");
    let other = |scope, words, fix| Some(Other { cause: None, scope, words, fix });
    if let Some(to) = read.and_then(|it| it.to) {
        let missed = pod.as_ref().map(|pod| format!(". The process in pod {pod} did not get the request"));
        let missed = missed.unwrap_or_default();
        let probed = pod.as_ref().map(|pod| format!("Give pod {pod}"));
        let probed = probed.unwrap_or_else(|| "If a pod on the node's network is probed: give it".to_owned());
        let fix = Remediation::from(match on_node {
            true => format!(
                "{probed} another port, or change the rule of the node that sends port {} of the node to {to}, such as that of a hostPort (chain OUTPUT of table nat){missed}",
                case.attempt.flow.dst.port()
            ),
            false => format!(
                "Find the rule of the node that translates the destination to {to} (chain OUTPUT), and exempt the kubelet's connections to pods from it{missed}"
            ),
        });
        let show = ["iptables-save -t nat", "nft list ruleset"].map(|show| run_in(case, Some(from), show));
        let fix = fix.run(show);
        let accepted = if earlier { format!("{who} accepted an earlier connection{instead}") } else { accepted };
        // If the probed pod is not known, the translation may lead to it.
        let fix = if earlier || pod.is_none() { fix.then("Otherwise", own.clone()) } else { fix };
        return other(Scope::Node, format!("{accepted}: the node's own address translation sent it to {to}"), fix);
    }
    let pod = pod?;
    if netns == from {
        let (device, fix) = own_address(case, netns);
        let words = format!("{accepted}: the node itself has {addr}, too{device}, so no packet left it");
        return other(Scope::Node, words, fix);
    }
    let holder = holder?;
    let fix = Remediation::from(format!(
        "Delete pod {holder}, or take {addr} away from it. The process in pod {pod} did not get the request"
    ));
    let show = [run_in(case, Some(netns), format!("ip addr show to {addr}"))];
    other(Scope::Network, format!("{accepted}: pod {holder} has {addr}, too"), fix.run(show))
}

/// The pod on the node's network that was probed, as far as it is known.
fn on_its_network<'a>(case: &Case<'a>) -> Option<&'a Pod> {
    case.matched.probed_pod().or_else(|| case.matched.reported_on_node())
}

/// The node's own address translation sent a connection to the node's address to another namespace, or to a process that
/// is not the pod's. A hostPort of another pod does that.
fn leads_away(case: &Case<'_>, pod: Option<&Pod>, read: &Acceptor) -> bool {
    let processes = &read.processes;
    let is_others = |pod| !processes.is_empty() && processes.iter().all(|it| is_foreign(case, pod, it));
    let is_led = read.to.is_some() && !is_reported(case, read);
    is_led && (case.attempt.netns != Some(read.netns) || pod.is_some_and(is_others))
}

/// The pod that the kubelet names accepted. The `host` of its probe can be an address of the node, which a hostPort
/// leads to the pod.
fn is_reported(case: &Case<'_>, read: &Acceptor) -> bool {
    let Some((_, reported)) = case.attempt.kubelet() else { return false };
    let by_uid = |it: &AcceptingProcess| it.pod_uid.is_some() && it.pod_uid == reported.pod.uid;
    let in_netns = || case.node.pods.in_netns(read.netns).is_some_and(|pod| is_pod(pod, &reported.pod));
    read.processes.iter().any(by_uid) || in_netns()
}

/// Any process of the node may have the port of a pod on its network, and it is not known that it is the pod's.
fn unknown_on_node(case: &Case<'_>, read: Option<&Acceptor>) -> Option<String> {
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

/// Several pods on the node's network have a probe on this port, which usually the server of only one of them can have.
/// Which probe failed is not known before the kubelet outcome. Returns a clause, and what to do before the finding's own
/// fix.
fn shared_by_pods(case: &Case<'_>, read: Option<&Acceptor>) -> Option<(String, String)> {
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

/// The pods with a probe that it can be, if all of them are on the node's network.
fn pods_on_node<'a>(case: &Case<'a>) -> Vec<&'a Pod> {
    let pods = case.matched.possible_pods();
    let on_node = case.matched.may_be_on_node() && pods.iter().all(|pod| pod.host_network && pod.name.is_some());
    if on_node { pods } else { Vec::new() }
}

/// "default/web and default/api"
fn names_of(pods: &[&Pod], and: &str) -> String {
    pods.iter().filter_map(|pod| pod.full_name()).collect::<Vec<_>>().join(and)
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

/// A process with the right address accepted, and is not the probed container's.
fn beside(case: &Case<'_>, acceptor: &Acceptor) -> Option<Other> {
    // The answer is that of the probed container.
    if super::sidecar::asks_another(case) {
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
    let has_port = format!("{who} has port {port} and accepted the connection, and not {this}pod {name}");
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
        return Some(Other { cause: None, scope: Scope::Pod, words: has_port, fix });
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
    Some(Other { cause: Some(Cause::PortTaken), scope, words, fix })
}

/// Several containers of the pod have a probe on this port, which only one of them can serve. Which probe
/// failed is not known before the kubelet outcome, nor who answered before the first reading.
fn shared_port(case: &Case<'_>, read: Option<&Acceptor>) -> Option<String> {
    let (pod, port) = (case.matched.probed_pod()?, case.attempt.flow.dst.port());
    let asks = |it: &&Container| it.probes.iter().any(|spec| spec.port == port && spec.host.is_none());
    let count = pod.containers.iter().filter(asks).count();
    if count < 2 || super::sidecar::asks_another(case) {
        return None;
    }
    let both = format!("{count} containers of the pod have a probe on port {port}");
    let is_unanswered = case.attempt.answer().is_none() && case.attempt.received() == Some(0);
    match (read.filter(|it| !it.processes.is_empty()), case.matched.probed_container()) {
        (Some(_), Some(_)) => None,
        (Some(read), None) => {
            Some(format!("{both}, and {} accepts: which probe failed is not known", names(case, read)))
        }
        (None, _) if is_unanswered => Some(format!("{both}: which of them listens is not known")),
        (None, _) => Some(format!("{both}: who answered is not known")),
    }
}

/// Another container of the probed pod, if the process is in it.
fn sidecar<'a>(pod: &'a Pod, probed: &Container, process: &AcceptingProcess) -> Option<&'a Container> {
    let (uid, id) = (process.pod_uid.as_deref()?, process.container.as_deref()?);
    let other = pod.containers.iter().find(|it| it.id.as_deref() == Some(id))?;
    (pod.has_uid(uid) && other.name != probed.name).then_some(other)
}

/// The process is in another pod of the list, or in no container at all. A pod that is not listed may be this one: of a
/// static pod, the kubelet has another uid than the API.
fn is_foreign(case: &Case<'_>, pod: &Pod, process: &AcceptingProcess) -> bool {
    match &process.pod_uid {
        Some(uid) => !pod.has_uid(uid) && pod_of(case, uid).is_some(),
        None => process.container.is_none(),
    }
}

fn pod_of<'a>(case: &Case<'a>, uid: &str) -> Option<&'a Pod> {
    case.node.pods.iter().find(|pod| pod.has_uid(uid))
}

/// "nginx (pid 7) of pod default/web", "squid (pid 8) of the node"
fn names(case: &Case<'_>, acceptor: &Acceptor) -> String {
    let of = |it: &AcceptingProcess| match it.pod_uid.as_deref() {
        None if Some(acceptor.netns) == case.attempt.netns && it.container.is_none() => " of the node".to_owned(),
        None => {
            let pod = case.node.pods.in_netns(acceptor.netns).and_then(Pod::full_name);
            pod.map(|pod| format!(" of pod {pod}")).unwrap_or_default()
        }
        Some(uid) => match pod_of(case, uid) {
            Some(pod) => format!(" of {}pod {}", container_of(pod, it), pod.full_name().unwrap_or_default()),
            None => format!(" of pod {uid}"),
        },
    };
    let name = |it: &AcceptingProcess| format!("{} (pid {}){}", it.server.comm, it.server.pid, of(it));
    acceptor.processes.iter().map(name).collect::<Vec<_>>().join(" and ")
}

/// "container app of "
fn container_of(pod: &Pod, process: &AcceptingProcess) -> String {
    let found = pod.containers.iter().find(|it| it.id.is_some() && it.id == process.container);
    found.and_then(|it| it.name.as_deref()).map(|name| format!("container {name} of ")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn process(comm: &str, pod_uid: Option<&str>, container: Option<&str>) -> AcceptingProcess {
        let server = Listener { pid: 77, comm: comm.into() };
        AcceptingProcess { server, pod_uid: pod_uid.map(Into::into), container: container.map(Into::into) }
    }

    fn answered(fill: impl FnOnce(&mut Stream), netns: Netns, to: Option<&str>, by: &[AcceptingProcess]) -> Verdict {
        reported(fill, netns, to, by).verdict
    }

    /// tracer reads who accepts, after an attempt before. Then a probe gets status 503.
    fn reported(
        fill: impl FnOnce(&mut Stream),
        netns: Netns,
        to: Option<&str>,
        by: &[AcceptingProcess],
    ) -> VerdictBody {
        let mut stream = Stream::new();
        fill(&mut stream);
        let acceptor = Acceptor { to: to.map(address), netns, processes: by.to_vec() };
        stream.pod_sockets(|reading| reading.acceptor = Some(acceptor)).wait_ms(5_000);
        stream.connect().established().answer(AnswerKind::Http, Some(503)).closes((100, 101, 200));
        let mut verdicts = stream.wait_ms(5).verdicts();
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        verdicts.remove(0)
    }

    fn host_network(stream: &mut Stream) {
        stream.links(true, &["10.88.0.2"]).http_readiness().on_host_network().container_id("c1");
        let pods = &mut stream.last_pods().pods;
        pods[0].uid = Some("u1".into());
        let other = Container { name: Some("exporter".into()), id: Some("c2".into()), ..Container::default() };
        let containers = vec![other];
        let (name, uid) = (Some("other".into()), Some("u2".into()));
        pods.push(Pod { name, uid, host_network: true, containers, ..Pod::default() });
    }

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
            assert_has(&verdict.summary, &["HTTP status 503; ", name, "bind() of its server would fail"]);
            assert_has(&verdict.remediation, &["ss -ltnp 'sport = :8080'"]);
            assert_lacks(&verdict.remediation, &["The network from the kubelet to the pod works"]);
        }
    }

    /// The CNI's hostPort of another pod has the port of a pod on the node's network.
    #[test]
    fn a_translation_of_the_node_takes_the_port_of_a_host_network_pod() {
        let to = Some("10.88.0.7:8080");
        let known = |stream: &mut Stream| {
            host_network(stream);
            stream.last_pods().pods.iter_mut().for_each(|pod| pod.netns = Some(NODE));
            let (name, uid) = (Some("hostport".into()), Some("u7".into()));
            let addrs = vec![address("10.88.0.7")];
            stream.last_pods().pods.push(Pod { name, uid, addrs, netns: Some(POD), ..Pod::default() });
        };
        for by in [&[process("nginx", Some("u7"), None)][..], &[]] {
            let record = reported(known, POD, to, by);
            assert_eq!((record.verdict.confidence, record.scope), (Confidence::Likely, Some(Scope::Node)));
            let words = "of pod hostport accepted an earlier connection, and not pod default/web: the node's own address translation sent it to 10.88.0.7:8080";
            assert_has(&record.verdict.summary, &[words]);
            let fix = "Give pod default/web another port, or change the rule of the node that sends port 8080";
            assert_has(&record.verdict.remediation, &[fix]);
        }
        let of_node = answered(host_network, NODE, Some("127.0.0.1:3128"), &[process("squid", None, None)]);
        assert_eq!((of_node.cause, of_node.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        let own = answered(host_network, NODE, Some("127.0.0.1:3128"), &[process("app", Some("u1"), Some("c1"))]);
        assert_eq!((own.cause, own.confidence), (Cause::AppStatusFailure, Confidence::Proven), "it got to the pod");
    }

    /// No list of pods, and no kubelet log.
    #[test]
    fn without_pods_a_translation_of_the_nodes_own_address_is_named() {
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.2"]).connect().established().answers(404).wait_ms(5).tick();
        let acceptor = |processes| Acceptor { to: Some(address("10.88.0.7:8080")), netns: POD, processes };
        let mut by_nginx = stream.clone();
        let nginx = vec![process("nginx", Some("u7"), None)];
        by_nginx.pod_sockets(|reading| reading.acceptor = Some(acceptor(nginx)));
        let verdict = by_nginx.wait_ms(5).tick().verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
        assert_has(
            &verdict.summary,
            &["nginx (pid 77) of pod u7 accepted", "address translation sent it to 10.88.0.7"],
        );
        assert_lacks(&verdict.summary, &["and not pod"]);
        let fix = ["If a pod on the node's network is probed: give it another port", ". Otherwise: The network"];
        assert_has(&verdict.remediation, &fix);
        stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to: None, netns: NODE, processes: vec![] }));
        assert_eq!(stream.wait_ms(5).tick().verdict().confidence, Confidence::Proven, "no translation");
    }

    /// The `host` of the probe is an address of the node. The kubelet names the pod, by its uid or by the name of the pod
    /// that has the namespace.
    #[test]
    fn a_host_port_of_the_pod_that_the_kubelet_names_leads_to_it() {
        let decided = |named: &str, by: &[AcceptingProcess], is_found: bool| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).clone();
            if is_found {
                stream.http_readiness();
                let (uid, addrs) = (Some("u7".into()), vec![address("10.88.0.7")]);
                let pod = &mut stream.last_pods().pods[0];
                *pod = Pod { uid, addrs, netns: Some(POD), ..Pod::default() };
            }
            stream.connect().established().answers(503).wait_ms(5).tick();
            let (to, processes) = (Some(address("10.88.0.7:8080")), by.to_vec());
            stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to, netns: POD, processes }));
            let dst = is_found.then(|| address("10.88.0.2:8080"));
            stream.kubelet_with(ProbeOutput::Status(503), |probe| {
                (probe.pod.uid, probe.dst) = (Some(named.into()), dst);
            });
            let record = stream.wait_ms(600).tick().verdicts().pop().expect("a verdict");
            assert_eq!(record.verdict.cause, Cause::AppStatusFailure);
            (record.verdict.confidence, record.scope)
        };
        let nginx = [process("nginx", Some("u7"), None)];
        for (by, is_found) in [(&nginx[..], false), (&nginx, true), (&[], true)] {
            assert_eq!(decided("u7", by, is_found), (Confidence::Proven, Some(Scope::Application)), "{is_found}");
        }
        assert_eq!(decided("u1", &nginx, false), (Confidence::Likely, Some(Scope::Node)));
    }

    /// The translation of another connection says nothing about it.
    #[test]
    fn a_connection_between_processes_of_the_node_is_no_probe_of_a_pod() {
        let is_led_away = |by: fn(&mut Stream)| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).unread().clone();
            let (to, processes) = (Some(address("10.88.0.7:8080")), vec![process("nginx", Some("u7"), None)]);
            stream.pod_sockets(|reading| reading.acceptor = Some(Acceptor { to, netns: POD, processes }));
            by(stream.wait_ms(5_000).connect());
            stream.established().reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
            let verdict = stream.wait_ms(600).tick().verdict();
            assert_eq!(verdict.cause, Cause::MidStreamRst);
            verdict.summary.contains("the node's own address translation")
        };
        assert_eq!([is_led_away(|_| ()), is_led_away(|stream| _ = stream.by_other_process())], [true, false]);
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

    #[test]
    fn a_process_of_the_node_that_has_the_pods_address_is_not_the_pod() {
        let on_lo = |stream: &mut Stream| _ = stream.links(true, &["10.88.0.2"]).http_readiness().pod_in(POD);
        for by in [&[process("nginx", None, None)][..], &[]] {
            let record = reported(on_lo, NODE, None, by);
            assert_eq!(record.scope, Some(Scope::Node));
            let verdict = record.verdict;
            assert_eq!((verdict.cause, verdict.confidence), (Cause::AppStatusFailure, Confidence::Likely));
            assert_has(&verdict.summary, &["of the node accepted the connection, and not pod default/web"]);
            assert_has(&verdict.remediation, &["ip addr del 10.88.0.2 dev lo"]);
            assert_lacks(&verdict.remediation, &["network from the kubelet to the pod works", "kubectl logs"]);
        }
    }

    /// Without a reading the addresses decide.
    #[test]
    fn a_connection_to_the_own_address_is_not_the_pods() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_in(POD).connect();
        let own = stream.last_connect().flow.dst.ip();
        stream.last_connect().flow.src.set_ip(own);
        let verdict = stream.established().wait_ms(1_000).closes((100, 101, 0)).verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::SlowResponse, Confidence::Likely));
        assert_has(&verdict.summary, &["a process of the node accepted the connection, and not pod default/web"]);
    }

    /// A proxy in the pod, to which the pod's own address translation led an earlier connection.
    #[test]
    fn a_proxy_of_the_pod_is_for_the_author_of_the_pod() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_in(POD).pod_sockets(|reading| reading.redirect = Some(redirect(7, 8)));
        let record = stream.wait_ms(5_000).connect().established().answers(503).verdicts().remove(0);
        assert_eq!((record.verdict.cause, record.scope), (Cause::AppStatusFailure, Some(Scope::Pod)));
        assert_has(
            &record.verdict.summary,
            &["may not have got the request; tracer read that of an earlier connection"],
        );
    }

    /// A transparent proxy on the node, and a rule that leads to another pod. The rule may be gone since the earlier
    /// connection that went there.
    #[test]
    fn what_a_translation_of_the_node_leads_to_is_named() {
        let listed = |stream: &mut Stream| _ = stream.http_readiness().pod_in(POD);
        let squid = || process("squid", None, None);
        let record = reported(listed, NODE, Some("127.0.0.1:3128"), &[squid()]);
        assert_eq!((record.verdict.confidence, record.scope), (Confidence::Likely, Some(Scope::Node)));
        let words = "squid (pid 77) of the node accepted an earlier connection, and not pod default/web: the node's own address translation sent it to 127.0.0.1:3128";
        assert_has(&record.verdict.summary, &[words]);
        let both =
            ["exempt the kubelet's connections", ". Otherwise: The network", "iptables-save -t nat", "kubectl logs"];
        assert_has(&record.verdict.remediation, &both);
        let same = answered(listed, POD, Some("10.88.0.2:8081"), &[process("app", None, None)]);
        assert_eq!(same.confidence, Confidence::Proven, "it got to the pod");
        // The reading comes with the answer's status, and the verdict at the end of the attempt.
        let of = |peer: &str| {
            let mut stream = Stream::new();
            listed(&mut stream);
            stream.connect().established().wait_ms(900).pod_sockets(|reading| {
                let processes = vec![squid()];
                reading.acceptor = Some(Acceptor { to: Some(address("127.0.0.1:3128")), netns: NODE, processes });
                reading.peer = Some(address(peer));
            });
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let own = of("10.88.0.1:40000");
        assert_has(&own.summary, &["squid (pid 77) of the node accepted the connection, and not pod default/web: the"]);
        assert_lacks(&own.remediation, &["Otherwise"]);
        assert_has(&of("10.88.0.1:40001").summary, &["accepted an earlier connection"]);
    }
}
