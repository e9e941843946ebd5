//! Another process than the probed container's accepted the connection: then its answer, its silence or its close says
//! nothing about the application. The same goes for a process with a full accept queue.

mod beside;
mod doubts;
mod elsewhere;

pub(super) use self::elsewhere::{fix_translation, on_its_network};

use serde_json::json;

use self::beside::beside;
use self::doubts::{held_beside, led_past, shared_by_pods, shared_port, unknown_on_node};
use self::elsewhere::elsewhere;
use tracer_attempts::enrich::is_pod;
use tracer_case::case::{Case, holds_target};
use tracer_case::evidence::{evidence_of, of_state};
use tracer_case::finding::Finding;
use tracer_case::kubectl::with_logs;
use tracer_case::phrases::run_in;
use tracer_case::pod_sockets::{FRESH_NS, detour, is_of_this, last_reading};
use tracer_case::reset::destroyer;
use tracer_case::serving::{connection, container_of_process, readings};
use tracer_model::event::{
    AcceptingProcess, Acceptor, Flow, Observation, ObservationKind, Pod, PodSockets, ResetSent, TcpState, process_name,
};
use tracer_model::record::{Cause, Confidence, Remediation, Scope, Stage};

/// Who accepted instead of the probed container.
struct Other {
    /// The cause, if it is another one.
    cause: Option<Cause>,
    /// Who has to act.
    scope: Scope,
    /// A clause that names it, and its place in the summary.
    words: String,
    place: Place,
    fix: Remediation,
}

/// What has the cause comes first.
enum Place {
    Only,
    First,
    Last,
}

/// Notes who accepted, if that was not the probed container; returns whether it was not. The finding has another fix
/// then, and is likely at most, unless the prober's own socket shows it.
pub(super) fn add(case: &Case<'_>, finding: &mut Finding) -> bool {
    let by_destroyer = || finding.cause == Cause::MidStreamRst && destroyer(case).is_some();
    let is_accepted = case.attempt.established.is_some();
    let is_met = is_accepted || finding.cause == Cause::AcceptQueueOverflow;
    if !is_met || !finding.rests_on_acceptor() || by_destroyer() {
        return false;
    }
    let last = last_reading(case, FRESH_NS);
    let read = last.and_then(|(time, reading)| Some((time, accepts(case, time, reading)?)));
    let earlier = last.is_some_and(|(time, reading)| !is_of_this(case, time, reading));
    let acceptor = read.map(|(_, it)| it);
    let other = itself(case, finding)
        .or_else(|| elsewhere(case, acceptor, earlier, &finding.remediation))
        .or_else(|| beside(case, acceptor?));
    let Some(other) = other else {
        finding.scope = detour(case, FRESH_NS).map(|it| it.scope()).or(finding.scope);
        // Another pod may have got the address since an older reading.
        let shows = |time, it: &PodSockets| {
            time >= case.attempt.started && (it.acceptor.is_some() || it.redirect.is_some() || !it.holders.is_empty())
        };
        finding.lacks_acceptor = !last.is_some_and(|(time, it)| shows(time, it)) && must_be_read(case, finding);
        let shared = shared_by_pods(case, acceptor).or_else(|| {
            let held = held_beside(case)?;
            finding.scope = Some(Scope::Pod);
            Some(held)
        });
        if let Some((_, first)) = &shared {
            finding.remediation.text.insert_str(0, first);
        }
        let words = shared
            .map(|(words, _)| words)
            .or_else(|| led_past(case).filter(|_| is_accepted))
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
    let (summary, words) = (&finding.summary, other.words);
    (finding.confidence, finding.summary) = match other.place {
        Place::Only => (finding.confidence, words),
        Place::First => (finding.confidence.min(Confidence::Likely), format!("{words}; {summary}")),
        Place::Last => (finding.confidence.min(Confidence::Likely), format!("{summary}; {words}")),
    };
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

/// What the process did with the connection: it accepted, or its accept queue is full.
fn done_by(case: &Case<'_>) -> &'static str {
    if case.attempt.established.is_some() { "accepted the connection" } else { "has the full accept queue" }
}

/// The pod that the kubelet names accepted. The `host` of its probe can be an address of the node, which a hostPort
/// leads to the pod.
fn is_reported(case: &Case<'_>, read: &Acceptor) -> bool {
    let Some((_, reported)) = case.attempt.kubelet() else { return false };
    let by_uid = |it: &AcceptingProcess| it.pod_uid.is_some() && it.pod_uid == reported.pod.uid;
    let in_netns = || case.node.pods.in_netns(read.netns).is_some_and(|pod| is_pod(pod, &reported.pod));
    read.processes.iter().any(by_uid) || in_netns()
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

/// Nobody accepted: the kernel chose the target's port as the source. The prober got its own SYN (RFC 9293 3.5,
/// simultaneous open), and then its own request. The kernel never chooses a port with a listener. Go's dialer, and so
/// the kubelet, closes such a connection and tries again, twice.
fn itself(case: &Case<'_>, finding: &mut Finding) -> Option<Other> {
    let Flow { src, dst } = case.attempt.flow;
    let got_syn = |it: &Observation| match &it.kind {
        ObservationKind::State(state) => {
            let is_open = state.old == TcpState::SynSent && state.new == TcpState::SynRecv;
            is_open.then(|| of_state(it.time_boot_ns, state))
        }
        _ => None,
    };
    let opened = case.attempt.observations.iter().filter(|_| src == dst).find_map(got_syn)?;
    finding.evidence.insert(0, opened);
    let words = format!("nobody listens on {dst}: the prober got that port as its own, and read its own request");
    let fix = format!(
        "Let the process listen on {port}, or correct the probe's port. Then keep the port from clients: add {port} to net.ipv4.ip_local_reserved_ports, in addition to its value",
        port = dst.port()
    );
    let show = run_in(case, case.attempt.netns, "sysctl net.ipv4.ip_local_reserved_ports");
    let fix = with_logs(case, Remediation::from(fix).run([show]));
    Some(Other { cause: Some(Cause::ConnectionRefused), scope: Scope::Application, words, place: Place::Only, fix })
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
    let name = |it: &AcceptingProcess| process_name(&it.server.comm, it.server.pid) + &of(it);
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

    pub(super) fn process(comm: &str, pod_uid: Option<&str>, container: Option<&str>) -> AcceptingProcess {
        let server = Listener { pid: 77, comm: comm.into() };
        AcceptingProcess { server, pod_uid: pod_uid.map(Into::into), container: container.map(Into::into) }
    }

    pub(super) fn answered(
        fill: impl FnOnce(&mut Stream),
        netns: Netns,
        to: Option<&str>,
        by: &[AcceptingProcess],
    ) -> Verdict {
        reported(fill, netns, to, by).verdict
    }

    /// tracer reads who accepts, after an attempt before. Then a probe gets status 503.
    pub(super) fn reported(
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

    pub(super) fn host_network(stream: &mut Stream) {
        stream.links(true, &["10.88.0.2"]).http_readiness().on_host_network().container_id("c1");
        let pods = &mut stream.last_pods().pods;
        pods[0].uid = Some("u1".into());
        let other = Container { name: Some("exporter".into()), id: Some("c2".into()), ..Container::default() };
        let containers = vec![other];
        let (name, uid) = (Some("other".into()), Some("u2".into()));
        pods.push(Pod { name, uid, host_network: true, containers, ..Pod::default() });
    }

    #[test]
    fn a_prober_that_read_its_own_request_was_refused() {
        let mut stream = Stream::to("10.88.0.1:40000").links(true, &["10.88.0.1"]).http_readiness_on(40_000).clone();
        stream.on_host_network().connect().state(TcpState::SynSent, TcpState::SynRecv, 0, (0, 0, 0));
        stream.state(TcpState::SynRecv, TcpState::Established, 0, (0, 1, 0)).answer(AnswerKind::Other, None);
        let verdict = stream.closes((100, 101, 100)).wait_ms(5).tick().verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Proven));
        let words = "nobody listens on 10.88.0.1:40000: the prober got that port as its own, and read its own request";
        assert_eq!(verdict.summary, words);
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
}
