//! Probes that, by their specs alone, will fail on a healthy container.

use super::Check;
use super::finding::{Draft, Finding, Fix, Unread};
use tracer_model::event::{Container, Handler, Pod, ProbeSpec, ProbeType};

pub(super) const CHECK: Check = Check {
    name: "probe_budgets",
    why: "a liveness probe that gives up before the network is ready restarts a healthy container repeatedly. A tcpSocket probe of a TLS port does not test the server and fills its log",
    expected: || {
        format!(
            "a startupProbe, or at least {BUDGET_S} s until a liveness probe restarts; a timeout over 1 s for TLS; no tcpSocket probe of a TLS port"
        )
    },
    run: |view| {
        let pods = view.options.pods.as_ref();
        pods.map(|pods| judge(pods)).ok_or_else(|| Unread::without_pods("no probe specs were given", CHECK.name))
    },
};

/// Seconds. After an upgrade a CNI can take 45 s; probes with a smaller budget than this failed (docs/doctor.md).
const BUDGET_S: u32 = 30;
const MAX_LISTED: usize = 200;

fn judge(pods: &[Pod]) -> Vec<Finding> {
    let mut found: Vec<Finding> = pods.iter().flat_map(of_pod).collect();
    if found.is_empty() {
        let probes: usize = pods.iter().flat_map(|pod| &pod.containers).map(|it| it.probes.len()).sum();
        return vec![CHECK.draft().ok(format!("{probes} network probes of {} pods", pods.len()))];
    }
    let more = found.len().saturating_sub(MAX_LISTED);
    if more > 0 {
        found.truncate(MAX_LISTED);
        found.push(CHECK.draft().warn(format!("{more} more like these"), Fix::lasting("fix the listed ones first")));
    }
    found
}

fn of_pod(pod: &Pod) -> Vec<Finding> {
    let tls: Vec<u16> = probes(pod).filter(|probe| is_https(probe)).map(|probe| probe.port).collect();
    pod.containers.iter().flat_map(|container| of_container(pod, container, &tls)).collect()
}

fn probes(pod: &Pod) -> impl Iterator<Item = &ProbeSpec> {
    pod.containers.iter().flat_map(|container| &container.probes)
}

fn is_https(probe: &ProbeSpec) -> bool {
    probe.scheme.as_deref() == Some("https")
}

fn of_container(pod: &Pod, container: &Container, tls: &[u16]) -> Vec<Finding> {
    let by_command = container.exec.iter().any(|probe| probe.probe_type == ProbeType::Startup);
    let started = by_command || container.probes.iter().any(|probe| probe.probe_type == ProbeType::Startup);
    let mut found = Vec::new();
    for probe in &container.probes {
        let ProbeSpec { probe_type, port, timeout_s, .. } = probe;
        let mut warn = |draft: Draft, problem: String, fix: &str| {
            found.push(draft.warn(format!("{}: {problem}", name(pod, container)), Fix::lasting(fix)));
        };
        let begun = || draft(pod, container, probe);
        let (is_liveness, budget) = (*probe_type == ProbeType::Liveness, probe.budget_s());
        if is_liveness && !started && budget < BUDGET_S {
            let problem = format!(
                "liveness probe of port {port} gives up after {} to {budget} s ({} + {} × {}), and the container has no startupProbe",
                probe.earliest_restart_s(),
                probe.initial_delay_s,
                probe.period_s,
                probe.failure_threshold
            );
            let fix =
                "add a startupProbe like the liveness probe with periodSeconds: 2 and failureThreshold: 60 (120 s)";
            warn(begun().with("budget_s", budget), problem, fix);
        }
        if is_liveness && probe.failure_threshold == 1 && *timeout_s <= 1 {
            let ends = if container.never_restarted { "ends" } else { "restarts" };
            let problem =
                format!("liveness probe of port {port} {ends} the container after one answer that takes {timeout_s} s");
            warn(begun(), problem, "set failureThreshold: 3 and timeoutSeconds: 5");
        }
        if is_https(probe) && *timeout_s <= 1 {
            let problem =
                format!("{probe_type} probe of port {port} allows {timeout_s} s for the TLS handshake and the answer");
            let fix = "set timeoutSeconds: 5 (a TLS answer takes 50 to 200 ms, and over 1 s under load)";
            warn(begun(), problem, fix);
        }
        if probe.handler == Handler::Tcp && tls.contains(port) {
            let problem = format!(
                "{probe_type} probe only opens a TCP connection to port {port}, which speaks TLS, as another probe of this pod shows"
            );
            warn(begun(), problem, "make it httpGet with scheme: HTTPS, or grpc");
        }
    }
    found
}

fn name(pod: &Pod, container: &Container) -> String {
    let namespace = pod.namespace.as_deref().unwrap_or("default");
    let name = pod.name.as_deref().or(pod.uid.as_deref()).unwrap_or("?");
    format!("{namespace}/{name} {}", container.name.as_deref().unwrap_or("?"))
}

fn draft(pod: &Pod, container: &Container, probe: &ProbeSpec) -> Draft {
    let mut draft = CHECK
        .draft()
        .with("probe", probe.probe_type.to_string())
        .with("port", probe.port)
        .with("timeout_s", probe.timeout_s);
    for (name, value) in [("namespace", &pod.namespace), ("pod_name", &pod.name), ("container_name", &container.name)] {
        if let Some(value) = value {
            draft = draft.with(name, value.clone());
        }
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use tracer_model::event::ExecSpec;
    use tracer_testing::assert_has;

    fn probe(probe_type: ProbeType, handler: Handler, scheme: Option<&str>) -> ProbeSpec {
        ProbeSpec {
            probe_type,
            handler,
            scheme: scheme.map(str::to_owned),
            speaks: None,
            port: 9502,
            host: None,
            path: None,
            timeout_s: 5,
            period_s: 10,
            failure_threshold: 3,
            initial_delay_s: 0,
            grace_s: None,
        }
    }

    fn pod(probes: Vec<ProbeSpec>) -> Vec<Pod> {
        let container = Container { name: Some("main".into()), probes, ..Container::default() };
        vec![Pod {
            namespace: Some("shop".into()),
            name: Some("cart".into()),
            containers: vec![container],
            ..Pod::default()
        }]
    }

    #[test]
    fn a_liveness_budget_of_17_s_warns_unless_there_is_a_startup_probe() {
        let mut liveness = probe(ProbeType::Liveness, Handler::Tcp, None);
        (liveness.initial_delay_s, liveness.period_s) = (2, 5);
        let findings = judge(&pod(vec![liveness.clone()]));
        assert_eq!((findings.len(), findings[0].status), (1, Status::Warn));
        let words = "shop/cart main: liveness probe of port 9502 gives up after 12 to 17 s (2 + 5 × 3)";
        assert_has(&findings[0].observed, &[words]);
        let startup = probe(ProbeType::Startup, Handler::Tcp, None);
        assert_eq!(judge(&pod(vec![liveness.clone(), startup]))[0].status, Status::Ok);
        let mut pods = pod(vec![liveness]);
        let probe_type = ProbeType::Startup;
        pods[0].containers[0].exec = vec![ExecSpec { probe_type, timeout_s: 1, period_s: 1, failure_threshold: 60 }];
        assert_eq!(judge(&pods)[0].status, Status::Ok, "a command");
    }

    #[test]
    fn a_restart_after_one_slow_answer_is_a_warning() {
        let mut liveness = probe(ProbeType::Liveness, Handler::Http, Some("http"));
        (liveness.period_s, liveness.failure_threshold, liveness.timeout_s) = (60, 1, 1);
        let findings = judge(&pod(vec![liveness]));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_has(&findings[0].observed, &["after one answer that takes 1 s"]);
    }

    #[test]
    fn a_timeout_of_1_s_for_tls_is_a_warning() {
        let mut readiness = probe(ProbeType::Readiness, Handler::Http, Some("https"));
        assert_eq!(judge(&pod(vec![readiness.clone()]))[0].status, Status::Ok);
        readiness.timeout_s = 1;
        assert_eq!(judge(&pod(vec![readiness]))[0].status, Status::Warn);
    }

    #[test]
    fn a_tcp_probe_of_a_tls_port_is_a_warning() {
        let tcp = probe(ProbeType::Startup, Handler::Tcp, None);
        let https = probe(ProbeType::Readiness, Handler::Http, Some("https"));
        let findings = judge(&pod(vec![tcp.clone(), https]));
        assert!(findings.len() == 1 && findings[0].observed.contains("only opens a TCP connection"), "{findings:?}");
        assert_eq!(judge(&pod(vec![tcp]))[0].status, Status::Ok);
    }
}
