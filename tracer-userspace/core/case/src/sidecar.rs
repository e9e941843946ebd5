//! A proxy in the pod may have answered instead of the application: the status is proven, but not who sent it.

use crate::finding::Finding;
use crate::phrases::of_family;
use crate::pod_sockets::{FRESH_NS, detour, is_of_this, last_reading};
use crate::services::{external_service, node_ports_at};
use crate::{Case, kubectl};
use tracer_model::event::{Acceptor, Container, Pod, PodSockets, ProbeSpec, ProxyMode};
use tracer_model::record::{Cause, Command, Confidence, K8s, Remediation};

/// Istio rewrites httpGet, tcpSocket and grpc probes to paths of its agent, `/app-health/CONTAINER/readyz`. The agent
/// asks the application, and answers 500 if it cannot (`handleAppProbe`, pilot/cmd/pilot-agent/status). Lifecycle
/// handlers have paths below `/app-lifecycle/`.
const PILOT_AGENT: &str = "/app-health/";
/// What follows the container in such a path (`FormatProberURL`, pkg/kube/inject in Istio).
const AGENT_ENDS: &[&str] = &["livez", "readyz", "startupz"];
const ISTIO_PROXY: &str = "istio-proxy";
/// Containers of proxies through which connections from outside may go.
const PROXIES: &[&str] = &[ISTIO_PROXY, "linkerd-proxy", QUEUE_PROXY];
/// Knative's proxy: the readiness probe is its own, and asks the application.
const QUEUE_PROXY: &str = "queue-proxy";

/// The process that may have answered, and where to check it.
struct Answerer {
    text: String,
    check: String,
    commands: Vec<Command>,
}

/// Notes that a proxy may have sent the answer. The finding is likely at most then.
pub fn add(case: &Case<'_>, status: Option<u16>, finding: Finding) -> Finding {
    let named = || by_proxy(case, status?);
    let agent = status.and_then(|_| by_pilot_agent(case));
    match agent.or_else(|| by_detour(case)).or_else(|| by_node_port(case)).or_else(named) {
        // What a proxy answers does not show which protocol the application speaks.
        Some(answerer) => Finding { cause: Cause::AppStatusFailure, ..answerer.note_in(finding) },
        None if service_with_port(case).is_some() => Finding { cause: Cause::AppStatusFailure, ..finding },
        None => finding,
    }
}

/// Notes that an endpoint of a Service may have got the connection instead of the probed pod.
pub fn add_node_port(case: &Case<'_>, finding: Finding) -> Finding {
    match by_node_port(case) {
        Some(answerer) => answerer.note_in(finding),
        None => finding,
    }
}

/// Notes that a proxy may have closed. The confidence stays: either way, the end of the server closed.
pub fn add_close(case: &Case<'_>, finding: Finding) -> Finding {
    let Some(proxy) = proxy_of(case) else { return add_node_port(case, finding) };
    let summary = format!("{}; {proxy} may have closed it without reaching the application", finding.summary);
    let check = format!("Check whether {proxy} reached the application");
    Finding { summary, remediation: if_reached(check, vec![logs(case, proxy)], finding.remediation), ..finding }
}

impl Answerer {
    fn note_in(self, finding: Finding) -> Finding {
        Finding {
            confidence: finding.confidence.min(Confidence::Likely),
            summary: format!("{}; {}", finding.summary, self.text),
            remediation: if_reached(self.check, self.commands, finding.remediation),
            ..finding
        }
    }
}

fn by_pilot_agent(case: &Case<'_>) -> Option<Answerer> {
    let container = asked_by_pilot_agent(case)?;
    Some(Answerer {
        text: format!(
            "pilot-agent (container istio-proxy) answered for container {container}, and may not have reached it"
        ),
        check: "Check whether pilot-agent reached the application (\"Request to probe app failed\": it did not)"
            .to_owned(),
        commands: vec![logs(case, ISTIO_PROXY)],
    })
}

/// A clause if the silent process is Istio's agent, which waits for the application itself.
pub fn waits_for(case: &Case<'_>) -> Option<String> {
    let container = asked_by_pilot_agent(case)?;
    Some(format!("as Istio's agent it asks container {container}, and waits for its answer"))
}

/// Nobody listens where Istio's agent answers probes: its container is down, and the probed one may be well.
pub fn agent_is_down(case: &Case<'_>, place: &str) -> Option<(String, Remediation)> {
    let container = asked_by_pilot_agent(case)?;
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "nobody listens on {dst}{place}, where Istio's agent (container {ISTIO_PROXY}) answers the probes of container {container}: the kernel answered the SYN with a RST"
    );
    let text = format!("Find why container {ISTIO_PROXY} does not run or listen. Container {container} may be well");
    let log = logs(case, ISTIO_PROXY);
    let previous = Command::in_cluster(format!("{} --previous", log.run));
    let pod = kubectl::pod(&case.matched.name().k8s.unwrap_or_default());
    let state = Command::in_cluster(format!("kubectl describe pod {pod}"));
    Some((summary, Remediation::from(text).run([log, previous, state])))
}

/// The process that accepts the probe only asks another container: Istio's agent, or Knative's proxy for its own probe.
pub fn asks_another(case: &Case<'_>) -> bool {
    let probed = case.matched.probed_container();
    asked_by_pilot_agent(case).is_some() || probed.is_some_and(|(_, it)| is_named(it, QUEUE_PROXY))
}

/// The container of Istio's agent, if it answers this probe.
pub(crate) fn agent_of<'a>(case: &Case<'a>) -> Option<&'a Container> {
    asked_by_pilot_agent(case)?;
    let (pod, _) = case.matched.probed_container()?;
    pod.containers.iter().find(|it| is_named(it, ISTIO_PROXY))
}

/// The container that Istio's agent asks for this probe.
pub fn asked_by_pilot_agent(case: &Case<'_>) -> Option<String> {
    let asked = |(pod, spec)| asked_in(pod, spec);
    let mut containers: Vec<&str> = case.matched.possible_probes_of_pods().filter_map(asked).collect();
    containers.sort_unstable();
    containers.dedup();
    (!containers.is_empty()).then(|| containers.join(" or "))
}

/// The container in the path of such a probe. An application without Istio's agent may use the same path.
fn asked_in<'a>(pod: &Pod, spec: &'a ProbeSpec) -> Option<&'a str> {
    let (container, end) = spec.path.as_deref()?.strip_prefix(PILOT_AGENT)?.split_once('/')?;
    (AGENT_ENDS.contains(&end) && has(pod, container) && has(pod, ISTIO_PROXY)).then_some(container)
}

/// The address translation of the pod sent the probe to another process, which answered for itself or the application.
fn by_detour(case: &Case<'_>) -> Option<Answerer> {
    let detour = detour(case, FRESH_NS)?;
    let (server, app, earlier) = (detour.server(), detour.passed_over(), detour.of_earlier());
    let port = case.attempt.flow.dst.port();
    Some(Answerer {
        text: format!(
            "{server} answered: the pod's own address translation sends that port to it; {app}, which listens on port {port}, may not have got the request{earlier}"
        ),
        check: format!("Check whether {server} reached the application, or refused the probe itself"),
        commands: detour.commands(case).into(),
    })
}

/// An endpoint of a Service may have got the connection. Not if it was read who accepted it.
fn by_node_port(case: &Case<'_>) -> Option<Answerer> {
    let ((what, service), dst) = (service_with_port(case)?, case.attempt.flow.dst);
    let accepts = |it: &Acceptor| it.to.is_some() || !it.processes.is_empty();
    let is_read =
        |(time, it): (u64, &PodSockets)| it.acceptor.as_ref().is_some_and(accepts) && is_of_this(case, time, it);
    if last_reading(case, FRESH_NS).is_some_and(is_read) {
        return None;
    }
    Some(Answerer {
        text: format!(
            "{what} of {service}: kube-proxy may have sent the connection to an endpoint of it, and not to the process that listens on the node"
        ),
        check: "Give the pod or the Service another port. Or check whether the pod got the connection (the source of the answer in its conntrack entry)".to_owned(),
        commands: vec![Command::on_node(of_family(case, format!("conntrack -L -p tcp --dport {}", dst.port())))],
    })
}

/// A hostNetwork pod listens on a port that is also a NodePort, or one of a Service with the node's address.
/// kube-proxy's rules come before the pod's socket. What has the port, and the Service.
fn service_with_port(case: &Case<'_>) -> Option<(String, String)> {
    let dst = case.attempt.flow.dst;
    let nftables = case.node.node_ports.of(ProxyMode::Nftables).is_some_and(|table| !table.ports.is_empty());
    let port =
        node_ports_at(case, dst).find(|port| port.is_at(dst.ip())).filter(|_| !nftables || !dst.ip().is_loopback());
    let (what, name) = match port {
        Some(port) => (format!("{} is also the NodePort", port.port), case.node.service_of(port)),
        None => (format!("{dst} is also an external address"), Some(external_service(case, dst)?)),
    };
    Some((what, name.map_or_else(|| "a Service".to_owned(), |name| format!("Service {name}"))))
}

fn by_proxy(case: &Case<'_>, status: u16) -> Option<Answerer> {
    // 403: a policy of the mesh (linkerd's default-inbound-policy, Istio's AuthorizationPolicy) denies it.
    let proxy = matches!(status, 403 | 502..=504).then(|| proxy_of(case))??;
    Some(Answerer {
        text: format!("the answer may be that of {proxy}, which may not have reached the application"),
        check: format!("Check whether {proxy} reached the application"),
        commands: vec![logs(case, proxy)],
    })
}

/// The proxy in the pod, unless the probe is for the proxy itself.
fn proxy_of(case: &Case<'_>) -> Option<&'static str> {
    let (attempt, node) = (case.attempt, case.node);
    let probed = case.matched.probed_container().map(|(_, it)| it);
    let pod = case.matched.probed_pod().or_else(|| node.pods.only_at(attempt.flow.dst.ip()))?;
    let asked = |name: &str| name != QUEUE_PROXY && probed.is_some_and(|it| is_named(it, name));
    PROXIES.iter().copied().find(|name| has(pod, name) && !asked(name))
}

fn has(pod: &Pod, name: &str) -> bool {
    pod.containers.iter().any(|it| is_named(it, name))
}

fn is_named(container: &Container, name: &str) -> bool {
    container.name.as_deref() == Some(name)
}

/// The check of the proxy comes first: the other fix helps only if the proxy reached the application.
fn if_reached(check: String, commands: Vec<Command>, fix: Remediation) -> Remediation {
    Remediation::from(check).run(commands).then("If it did", fix)
}

fn logs(case: &Case<'_>, container: &str) -> Command {
    let k8s: K8s = case.matched.name().k8s.unwrap_or_default();
    Command::in_cluster(format!("kubectl logs {} -c {container}", kubectl::pod(&k8s)))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn answered(stream: &mut Stream, status: u16) -> Verdict {
        stream.connect().established().answers(status);
        let verdict = stream.verdict();
        assert_eq!(verdict.cause.name(), "app_status_failure");
        verdict
    }

    #[test]
    fn pilot_agent_may_have_answered_for_the_application() {
        let verdict = answered(Stream::new().asked_by_pilot_agent(), 500);
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(&verdict.summary, &["HTTP status 500; pilot-agent"]);
        assert_ends(&verdict.summary, "answered for container app, and may not have reached it");
        assert_has(&verdict.remediation, &["it did not). If it did: The network from the kubelet to the pod works"]);
    }

    /// `/app-health/shop/readyz` can be a path of the application itself.
    #[test]
    fn only_a_path_as_istio_writes_it_is_of_its_agent() {
        let confidence = |path: &str, other: &str| {
            answered(Stream::new().http_readiness_at(path).container_too(other), 500).confidence
        };
        for path in ["/app-health/app/readyz", "/app-health/istio-proxy/livez", "/app-health/app/startupz"] {
            assert_eq!(confidence(path, "istio-proxy"), Confidence::Likely, "{path}");
            assert_eq!(confidence(path, "sidecar"), Confidence::Proven, "{path} without Istio's agent");
        }
        for path in ["/app-healthz", "/app-health/app", "/app-health/v2/readyz", "/app-health/app/db/readyz"] {
            assert_eq!(confidence(path, "istio-proxy"), Confidence::Proven, "{path}");
        }
    }

    #[test]
    fn an_agent_that_does_not_listen_is_not_the_application() {
        let refused = |stream: &mut Stream| stream.connect().refused().verdict();
        let agent = refused(Stream::new().asked_by_pilot_agent());
        let own = refused(Stream::new().http_readiness_at("/app-health/app/readyz"));
        assert_eq!([agent.cause.name(), own.cause.name()], ["connection_refused"; 2]);
        assert_has(
            &agent.summary,
            &["where Istio's agent (container istio-proxy) answers the probes of container app"],
        );
        assert_has(&agent.remediation, &["-n default web -c istio-proxy --previous"]);
        assert_lacks(&agent.remediation, &["correct the probe's port"]);
        assert_lacks(&own.summary, &["istio-proxy"]);
    }

    #[test]
    fn an_agent_that_is_silent_waits_for_the_application() {
        let mut stream = Stream::new();
        stream.asked_by_pilot_agent().connect().established().wait_ms(500);
        let agent = ServerProcess { comm: "pilot-agent".into(), ..server_process(7, 0) };
        let connection = Some(ServedConnection { pid: Some(7), ..served(0, true) });
        stream.serving(Serving { processes: vec![agent], connection, ..Serving::default() });
        let verdict = stream.wait_ms(500).closes((100, 101, 0)).verdict();
        assert_eq!(verdict.cause.name(), "slow_response");
        let words =
            "; pilot-agent (pid 7) had read it: as Istio's agent it asks container app, and waits for its answer";
        assert_ends(&verdict.summary, words);
    }

    /// linkerd/linkerd2#6027: 502 by linkerd-proxy.
    #[test]
    fn a_proxy_may_have_answered_for_the_application() {
        let verdict_on =
            |proxy: &str, status: u16| answered(Stream::new().http_readiness().container_too(proxy), status);
        for proxy in super::PROXIES {
            for status in [403, 502, 503, 504] {
                let verdict = verdict_on(proxy, status);
                let text = format!("; the answer may be that of {proxy}, which may not have reached the application");
                assert_eq!(verdict.confidence, Confidence::Likely);
                assert!(verdict.summary.ends_with(&text), "{}", verdict.summary);
                assert_has(&verdict.remediation, &[&format!("-n default web -c {proxy}")]);
            }
            assert_eq!(verdict_on(proxy, 500).confidence, Confidence::Proven, "a proxy has other words for it");
        }
        assert_eq!(verdict_on("sidecar", 503).confidence, Confidence::Proven);
    }

    /// The name of the container and the status do not matter.
    #[test]
    fn the_process_that_the_pod_redirects_its_probes_to_has_answered() {
        let verdict_on = |redirect| {
            let mut stream = Stream::new();
            answered(stream.http_readiness().pod_sockets(|reading| reading.redirect = redirect).wait_ms(5_000), 400)
        };
        let verdict = verdict_on(Some(redirect(7, 8)));
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(&verdict.summary, &["; envoy (pid 7) on 10.88.0.2:15006 answered: the pod's own"]);
        assert_starts(&verdict.remediation.commands[0].run, "nsenter -t 8 -n ");
        assert_eq!(verdict_on(Some(redirect(7, 7))).confidence, Confidence::Proven, "it is the application itself");
    }

    /// kubernetes#108496: since 1.24 kube-proxy does not hold the port, so that a hostNetwork pod can listen on it.
    #[test]
    fn an_endpoint_of_a_service_may_have_got_the_probe() {
        let verdict_at = |port| {
            let mut stream = Stream::to("10.88.0.1:10256").links(true, &["10.88.0.1"]).http_readiness().clone();
            answered(stream.on_host_network().node_port(ProxyMode::Nftables, port, &[]), 404)
        };
        let verdict = verdict_at(10256);
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(&verdict.summary, &["; 10256 is also the NodePort of "]);
        assert_starts(&verdict.remediation, "Give the pod or the Service another port.");
        // Which process has the port is not read here.
        assert_lacks(&verdict_at(30080).summary, &["NodePort"]);
    }

    /// k3s gives a Service of type LoadBalancer the node's own address.
    #[test]
    fn an_endpoint_of_a_service_with_the_nodes_address_may_have_got_the_probe() {
        let verdict_of = |addr: &str| {
            let mut stream = Stream::to("10.88.0.1:9100").links(true, &["10.88.0.1"]).http_readiness().clone();
            stream.on_host_network().service(9100, |it| it.external_ips = vec![address(addr)]);
            answered(&mut stream, 404)
        };
        let verdict = verdict_of("10.88.0.1");
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(
            &verdict.summary,
            &["; 10.88.0.1:9100 is also an external address of Service shop/cart: kube-proxy"],
        );
        assert_has(&verdict.remediation, &["conntrack -L -p tcp --dport 9100"]);
        assert_lacks(&verdict_of("203.0.113.11").summary, &["external"]);
    }

    /// The rules of kube-proxy have it, too, so that no list of Services is needed. With both there is one answer.
    #[test]
    fn the_rules_show_a_service_with_the_nodes_address() {
        let verdict_of = |at: &str, listed: bool| {
            let mut stream = Stream::to("10.88.0.1:9100").links(true, &["10.88.0.1"]).http_readiness().clone();
            if listed {
                stream.service(9100, |it| it.external_ips = vec![address("10.88.0.1")]);
            }
            answered(stream.on_host_network().external(at), 404)
        };
        for listed in [false, true] {
            let verdict = verdict_of("10.88.0.1:9100", listed);
            assert_eq!(verdict.confidence, Confidence::Likely);
            let words = "; 10.88.0.1:9100 is also an external address of Service shop/cart:http: kube-proxy";
            assert_has(&verdict.summary, &[words]);
            assert_eq!(verdict.summary.matches("external address").count(), 1);
        }
        assert_lacks(&verdict_of("10.88.0.1:9101", false).summary, &["external"]);
    }

    #[test]
    fn an_endpoint_of_a_service_may_have_been_slow() {
        let summary = |dst: &str| {
            let mut stream = Stream::to(dst).links(true, &["10.88.0.1"]).http_readiness().clone();
            stream
                .node_port(ProxyMode::Nftables, 30080, &[])
                .service(80, |it| it.external_ips = vec![address("203.0.113.11")]);
            let verdict = stream.connect().established().wait_ms(1_000).closes((100, 101, 0)).settles().verdict();
            assert_eq!(verdict.cause, Cause::SlowResponse);
            verdict.summary
        };
        assert_has(&summary("10.88.0.1:30080"), &["; 30080 is also the NodePort of Service kube-system/dashboard"]);
        let words = "; 203.0.113.11:80 is Service shop/cart: one of its endpoints got the connection";
        assert_ends(&summary("203.0.113.11:80"), words);
    }

    #[test]
    fn a_probe_of_istio_proxy_itself_is_proven_and_one_of_queue_proxy_is_not() {
        for (proxy, confidence) in [("istio-proxy", Confidence::Proven), ("queue-proxy", Confidence::Likely)] {
            let verdict = answered(Stream::new().http_readiness().named_container(proxy), 503);
            assert_eq!(verdict.confidence, confidence, "{proxy}");
        }
    }

    /// linkerd/linkerd2#12806: what the proxy closes is not in the application's log.
    #[test]
    fn a_proxy_may_have_closed_for_the_application() {
        let closed = |container: &str| {
            let mut stream = Stream::new().http_readiness().container_too(container).connect().established().clone();
            let verdict = stream.server_closes((100, 101, 1)).verdict();
            (verdict.cause.name(), verdict)
        };
        let (cause, verdict) = closed("linkerd-proxy");
        assert_eq!((cause, verdict.confidence), ("closed_without_answer", Confidence::Proven));
        assert_has(&verdict.summary, &["; linkerd-proxy may have closed it"]);
        assert_has(&verdict.remediation, &["reached the application. If it did: Look at"]);
        assert_lacks(&closed("sidecar").1.summary, &["may have closed it"]);
    }

    /// Only the kubelet can read an answer over HTTPS; such a verdict is likely at most anyway.
    #[test]
    fn a_proxy_is_also_named_for_an_answer_over_https() {
        let mut stream = Stream::new().https_readiness().container_too("istio-proxy").connect().established().clone();
        stream.closes((100, 101, 200)).kubelet(ProbeOutput::Status(503));
        let verdict = stream.verdict();
        assert_ends(
            &verdict.summary,
            "; the answer may be that of istio-proxy, which may not have reached the application",
        );
    }
}
