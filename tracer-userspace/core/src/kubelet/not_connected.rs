//! The kubelet reports that a probe failed before it connected. No hook sees that, so the message alone decides.

use super::{Unattached, container_of, spec};
use tracer_attempts::correlate::node::Node;
use tracer_case::evidence::of_outcome;
use tracer_case::finding::Finding;
use tracer_case::kubectl;
use tracer_model::event::{KubeletProbe, ProbeOutput};
use tracer_model::record::{Cause, Command, Remediation};
use tracer_model::shell::word;

/// Why the kubelet could not connect to the pod, in its own words: for a proxy, the look-up of a name (`dial tcp:
/// lookup: …`) or the socket (`dial tcp ADDRESS: socket: …`). A TCP connection to a resolver has an attempt of its own.
pub(crate) fn not_connected(probe: &KubeletProbe) -> Option<&str> {
    if probe.reason == ProbeOutput::NoSuchPort {
        return probe.output.as_deref();
    }
    let words = probe.output.as_deref().filter(|_| probe.is_counted())?;
    // Go's client begins an error of a proxy from its environment like this (net/http, `dialConn`).
    if let (true, Some(at)) = (words.starts_with("Get \""), words.find("\": proxyconnect tcp: ")) {
        return words.get(at + 3..);
    }
    let (_, dial) = Some(words).filter(|_| probe.reason == ProbeOutput::Network)?.split_once("dial tcp")?;
    let (address, why) = dial.split_once(": ")?;
    let begins: &[&str] = if address.is_empty() { &["lookup"] } else { &["socket", "bind"] };
    let what = why.split(": ").next()?;
    (begins.contains(&what) && !why.contains("dial tcp ")).then_some(why)
}

/// The verdict on such a message. `None` without a spec: a command may print the same words.
pub(crate) fn verdict(probe: &KubeletProbe, node: &Node) -> Option<(Finding, Unattached)> {
    let why = not_connected(probe)?;
    if probe.reason == ProbeOutput::NoSuchPort {
        return Some(no_such_port(probe, node));
    }
    let (spec, named) = (spec(probe, node)?, Unattached::of(probe, node));
    let (kind, container_of) = (probe.probe_type, container_of(&named.k8s));
    let summary =
        format!("the {kind} probe{container_of} failed before it made a connection, as the kubelet reports: {why}");
    let fix = fix(why, spec.host.as_deref(), probe.pid);
    Some((Finding::likely(Cause::KubeletClientError, vec![of_outcome(probe)], summary, fix), named))
}

/// The port of the probe is a name that no port has. No spec is needed: a command cannot cause this error. tracer keeps
/// no spec of a probe without a port number.
fn no_such_port(probe: &KubeletProbe, node: &Node) -> (Finding, Unattached) {
    let named = Unattached::of(probe, node);
    let (kind, container_of) = (probe.probe_type, container_of(&named.k8s));
    let summary = format!(
        "the {kind} probe{container_of} never runs: its port is a name that no port of the container has, as the kubelet reports"
    );
    let fix = Remediation::from(
        "Give that name to a port of the same container (ports[].name), or set the port of the probe to a number",
    )
    .run([Command::in_cluster(format!("kubectl get pod {} -o yaml", kubectl::pod(&named.k8s)))]);
    (Finding::likely(Cause::ProbeMisconfigured, vec![of_outcome(probe)], summary, fix), named)
}

/// The verdict on a probe for which the kubelet connected, but not to the pod: to a proxy, for example.
pub(crate) fn untried(probe: &KubeletProbe, node: &Node) -> (Finding, Unattached) {
    let named = Unattached::of(probe, node);
    let (kind, container_of) = (probe.probe_type, container_of(&named.k8s));
    let words = probe.output.as_deref().unwrap_or_default();
    let summary = format!(
        "the {kind} probe{container_of} failed, as the kubelet reports: {words}; no connection to the pod was tried"
    );
    let fix = fix("proxyconnect", None, probe.pid);
    (Finding::likely(Cause::KubeletClientError, vec![of_outcome(probe)], summary, fix), named)
}

fn fix(why: &str, host: Option<&str>, pid: Option<u32>) -> Remediation {
    let pid = pid.map_or_else(|| "$(pidof kubelet)".to_owned(), |pid| pid.to_string());
    if why.starts_with("proxyconnect") {
        let proxy = format!("tr '\\0' '\\n' </proc/{pid}/environ | grep -i proxy");
        Remediation::from("If the kubelet has a proxy in its environment, add the addresses of pods and node to NO_PROXY of its unit, or remove the proxy. Then restart it")
            .run([Command::on_node(proxy)])
    } else if why.contains("too many open files in system") {
        Remediation::from(
            "The node cannot open any more files: raise fs.file-max, and find the processes that hold them",
        )
        .run([Command::on_node("cat /proc/sys/fs/file-nr")])
    } else if why.contains("too many open files") {
        let held = [
            format!("ls /proc/{pid}/fd | wc -l"),
            format!("grep 'open files' /proc/{pid}/limits"),
            format!("ls -l /proc/{pid}/fd"),
        ];
        Remediation::from(
            "The kubelet has no file descriptor left: find what it holds, raise LimitNOFILE of its unit and restart it",
        )
        .run(held.map(Command::on_node))
    } else if why.starts_with("lookup") {
        let name = format!("getent hosts {}", word(host).unwrap_or("NAME"));
        Remediation::from("Remove host from the probe: then the kubelet uses the pod's address. The host is a name that the node's resolver does not know; it does not ask the cluster's DNS")
            .run([Command::on_node(name), Command::on_node("cat /etc/resolv.conf")])
    } else {
        let checks = [format!("cat /proc/{pid}/limits"), "dmesg".to_owned(), "ausearch -m avc".to_owned()];
        Remediation::from("The kubelet could not make a socket: check its limits, the node's memory and what a security module refuses")
            .run(checks.map(Command::on_node))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const NO_FILES: &str = r#"Get "http://10.88.0.2:8080": dial tcp 10.88.0.2:8080: socket: too many open files"#;
    const PROXY: &str =
        r#"Get "http://10.88.0.2:8080": proxyconnect tcp: dial tcp 10.0.0.9:3128: connect: connection refused"#;
    const NO_NAME: &str = r#"Get "http://web.shop:8080": dial tcp: lookup: no such host"#;

    fn reported(stream: &Stream) -> Vec<(&'static str, Option<String>)> {
        let words = |it: VerdictBody| (it.verdict.cause.name(), it.kubelet.and_then(|it| it.output));
        stream.verdicts().into_iter().map(words).collect()
    }

    #[test]
    fn a_probe_that_never_connected_is_reported_by_the_kubelets_message() {
        for (words, summary, fix) in [
            (NO_FILES, "as the kubelet reports: socket: too many open files", "restart it: ls /proc/100/fd"),
            (NO_NAME, "as the kubelet reports: lookup: no such host", "getent hosts NAME"),
            ("dial tcp [fd00::5]:80: socket: permission denied", ": socket: permission denied", "ausearch"),
            (PROXY, ": proxyconnect tcp: dial tcp 10.0.0.9:3128: connect: connection refused", "NO_PROXY"),
        ] {
            let stream = Stream::new().http_readiness().kubelet_messages(ProbeType::Readiness, words).clone();
            assert_eq!(reported(&stream), [("kubelet_client_error", Some(words.to_owned()))]);
            let verdict = stream.verdict();
            assert_eq!(verdict.confidence, Confidence::Likely);
            let begin = "the readiness probe of container app of pod default/web failed before it made a connection";
            assert_starts(&verdict.summary, begin);
            assert_ends(&verdict.summary, summary);
            assert_has(&verdict.remediation, &[fix]);
        }
    }

    /// The named port belongs to another container, or to none.
    #[test]
    fn a_port_name_that_no_container_has_is_a_misconfigured_probe() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().answers(200).wait_ms(10);
        stream.kubelet_error(ProbeType::Readiness, ProbeOutput::NoSuchPort, "strconv.Atoi: invalid syntax");
        assert_eq!(reported(&stream).len(), 1);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("probe_misconfigured", Confidence::Likely));
        assert_has(&verdict.summary, &["the readiness probe of container app of pod default/web never runs"]);
        assert_has(&verdict.remediation, &["ports[].name", "kubectl get pod -n default web -o yaml"]);
    }

    /// Each message has a verdict, and the successful attempts around it have none.
    #[test]
    fn a_message_about_no_connection_is_joined_to_no_attempt() {
        let mut stream = Stream::new().http_readiness().connect().established().answers(200).wait_ms(10).clone();
        stream.kubelet_messages(ProbeType::Readiness, NO_FILES).wait_ms(900);
        stream.kubelet_messages(ProbeType::Readiness, NO_FILES).wait_ms(10).again(9).connect().established();
        assert_eq!(reported(&stream).len(), 2, "{:?}", reported(&stream));
    }

    #[test]
    fn words_of_a_command_and_errors_of_a_connect_are_no_client_error() {
        let mut unknown = Stream::new();
        unknown.kubelet_messages(ProbeType::Readiness, "dial tcp 10.0.0.5:5432: socket: too many open files");
        assert_eq!(reported(&unknown).len(), 1);
        assert!(!unknown.verdict().remediation.to_string().contains("file descriptor"), "it may be a command's");
        let command = Stream::new().exec_readiness().kubelet_messages(ProbeType::Readiness, NO_NAME).clone();
        assert_eq!(reported(&command), [("exec_failed", None)]);
        for words in [
            "dial tcp 10.88.0.2:8080: connect: connection refused",
            "dial tcp: lookup: dial tcp 10.96.0.10:53: connect: connection refused",
        ] {
            let stream = Stream::new().http_readiness().kubelet_messages(ProbeType::Readiness, words).clone();
            let verdict = stream.verdict();
            assert_eq!(verdict.cause.name(), "unexplained", "{words}");
            let fix = verdict.remediation;
            assert!(!fix.to_string().contains("/proc/"), "{words}: {fix}");
        }
    }

    /// The kubelet reports the error of the first of two addresses; the attempt to the second has its verdict.
    #[test]
    fn an_attempt_to_another_address_has_the_only_verdict() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0)).wait_ms(10);
        let attempt = reported(&stream);
        stream.kubelet_messages(ProbeType::Readiness, "dial tcp [::1]:8080: socket: too many open files");
        assert!(attempt.len() == 1 && reported(&stream) == attempt, "{:?}", reported(&stream));
    }
}
