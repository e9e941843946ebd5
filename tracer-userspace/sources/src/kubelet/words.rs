//! Parses the output of a failed probe: what it means, and how much of it may be printed.
//!
//! tracer keeps the text of the kubelet (`pkg/probe/{http,tcp,grpc,exec}`, Go's net/http and net), and drops data that
//! a pod sent or a command printed. It keeps only the origin of a URL: after a redirect the pod chooses the rest.

use std::net::SocketAddr;

use super::redact;
use tracer_model::event::{KubeletResult, ProbeOutput};

/// How much text is kept, in bytes.
const MAX_TEXT: usize = 512;

/// The kubelet's text for `codes.Unimplemented` (pkg/probe/grpc); the server's message follows.
const NO_HEALTH_SERVICE: &str =
    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)";

/// grpc-go's own message for an answer that is HTTP/2 without gRPC (`operateHeaders`, internal/transport). It makes
/// `Unimplemented` of a 404.
const OTHER_STATUS: &str = ": unexpected HTTP status code received from server: ";

/// `Get "/loop": stopped after 10 redirects` (`RedirectChecker`, pkg/probe/http); the pod chooses the URL.
const TOO_MANY_REDIRECTS: &str = "\": stopped after 10 redirects";

/// The kubelet looks for a named port among the container's ports, and then parses the name as a number
/// (`ResolveContainerPort`, pkg/probe).
const NO_SUCH_PORT: &str = "strconv.Atoi: parsing \"";

/// The meaning of an output, its printable text, and the addresses in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) reason: ProbeOutput,
    pub(super) text: Option<String>,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: Option<SocketAddr>,
}

pub(super) fn understand(output: &str, result: KubeletResult) -> Words {
    let output = output.lines().next().unwrap_or_default().trim();
    let reason = meaning(output, result);
    let text = publishable(output, reason, result);
    // Only in the printable text: received data, or the output of a command, may look like an address.
    let (src, dst) = text.as_deref().filter(|_| is_network(output, result)).map_or((None, None), ends);
    let text = text.filter(|it| !it.is_empty()).map(|it| it[..it.floor_char_boundary(MAX_TEXT)].to_owned());
    Words { reason, text, src, dst }
}

fn meaning(output: &str, result: KubeletResult) -> ProbeOutput {
    if output.is_empty() {
        return ProbeOutput::Nothing;
    }
    if let Some(status) = output.strip_prefix("HTTP probe failed with statuscode: ") {
        return status.trim().parse().map_or(ProbeOutput::NotHttp, ProbeOutput::Status);
    }
    if output.starts_with("service unhealthy (responded with ") {
        return ProbeOutput::NotServing;
    }
    if output.starts_with(NO_HEALTH_SERVICE) {
        return ProbeOutput::NoHealthService;
    }
    if output.starts_with("Get \"") && output.ends_with(TOO_MANY_REDIRECTS) {
        return ProbeOutput::TooManyRedirects;
    }
    if is_command_timeout(output) {
        return ProbeOutput::CommandTimeout;
    }
    if result == KubeletResult::Error && output.starts_with(NO_SUCH_PORT) && output.ends_with("\": invalid syntax") {
        return ProbeOutput::NoSuchPort;
    }
    if result == KubeletResult::Error && is_container_end(by_runtime(output)) {
        return ProbeOutput::ContainerEnds;
    }
    if output.starts_with("rpc error: code = ") && names_exec(by_runtime(output)) {
        return ProbeOutput::CommandNotRun;
    }
    if is_network(output, result) { of_network(&redact::redacted(output)) } else { ProbeOutput::Other }
}

/// CRI-O answers a command that timed out with these words as its output, and with exit code -1 (`ExecSyncContainer`,
/// internal/oci/runtime_oci.go).
const TIMED_OUT_IN_CRIO: &str = "command timed out";

/// Whether the command of an exec probe timed out. Two forms are the kubelet's, up to 1.30 and after it
/// (k8s.io/cri-client, `execSyncV1`), two are those of CRI-O and containerd. A command that uses gRPC itself
/// (grpc_health_probe) prints similar errors, but they do not mention exec.
fn is_command_timeout(output: &str) -> bool {
    let after = || output.strip_prefix("command timed out: \"")?.rsplit_once("\" timed out after ");
    output == TIMED_OUT_IN_CRIO
        || output.starts_with("command \"") && output.ends_with("\" timed out")
        || after().is_some_and(|(_, time)| redact::is_duration(time))
        || output.starts_with("rpc error: code = DeadlineExceeded desc = ") && names_exec(output)
}

/// `failed to exec in container: …` (containerd), `ExecSync cmd from runtime service failed` (kubelet), CRI-O's `exec`.
fn names_exec(output: &str) -> bool {
    output.contains("exec ") || output.contains("ExecSync")
}

/// The runtime's own text. CRI-O appends the output of the command: `command error: …, stdout: …, stderr: …, exit code
/// -1`.
fn by_runtime(output: &str) -> &str {
    output.split_once(", stdout: ").map_or(output, |(own, _)| own)
}

/// Whether the command failed because its container ends: the container has stopped or is stopping (texts of
/// containerd, runc, containerd's shim, CRI-O and cri-dockerd, in this order), or the kubelet cancelled the command. Some versions of
/// 1.35 and 1.36 cancel commands of pods that end (kubernetes/kubernetes#140881).
fn is_container_end(error: &str) -> bool {
    const ENDS: &[&str] = &[
        "container is in CONTAINER_EXITED state",
        "no running task found",
        "code = NotFound desc = failed to exec in container: failed to find container ",
        "code = NotFound desc = failed to exec in container: failed to create exec ",
        "cannot exec in a stopped container",
        "cannot exec in a stopped state",
        "cannot exec in a deleted state",
        "container is not created or running",
        "container is stopping",
        "container not running (",
    ];
    let by_runtime = error.starts_with("rpc error: code = ") && ENDS.iter().any(|it| error.contains(it));
    by_runtime || error == "rpc error: code = Canceled desc = context canceled"
}

/// `grpc_health_probe`, which an exec probe may run, could not connect. The kubelet's own texts come from it. But the
/// kubelet adds the error to a timeout, and connects to an address of the pod only (`Probe`, pkg/probe/grpc).
fn is_of_health_probe(output: &str) -> bool {
    let asked = output.split_once(": failed to connect service ").map(|(_, rest)| rest.trim_start_matches("at "));
    let Some((address, rest)) = asked.and_then(|it| it.strip_prefix('"')?.split_once('"')) else { return false };
    let is_of_pod = address.parse::<SocketAddr>().is_ok_and(|it| !it.ip().is_loopback());
    !is_of_pod || rest.strip_prefix(" within ").is_some_and(redact::is_duration)
}

/// Whether it is a network error of Go's client or of the kubelet's probers. If the body of an answer cannot be read,
/// the error has no URL (`DoHTTPProbe`, pkg/probe/http).
fn is_network(output: &str, result: KubeletResult) -> bool {
    if is_of_health_probe(output) {
        return false;
    }
    let client = ["Get \"http", "Get http", "Head \"http"];
    let own = [
        "dial tcp ",
        "dial tcp: lookup ",
        "timeout: failed to connect service",
        "error: failed to connect service at ",
        "timeout: health rpc did not complete",
        "error: health rpc",
    ];
    let of_body = || result == KubeletResult::Error && !output.is_empty() && redact::redacted(output) == output;
    client.iter().chain(&own).any(|prefix| output.starts_with(prefix)) || of_body()
}

fn of_network(output: &str) -> ProbeOutput {
    let has = |words: &[&str]| words.iter().any(|it| output.contains(it));
    // A failed lookup made no connection, so its timeout is no timeout of the target.
    if has(&["dial tcp: lookup"]) {
        ProbeOutput::Network
    } else if has(&["remote error: tls: "]) {
        ProbeOutput::TlsRefused
    } else if has(&[
        "malformed HTTP",
        "server gave HTTP response to HTTPS client",
        "first record does not look like a TLS handshake",
    ]) {
        ProbeOutput::NotHttp
    } else if has(&["while reading body"]) {
        ProbeOutput::TimeoutInBody
    } else if has(&["deadline exceeded", "i/o timeout", "Client.Timeout", "TLS handshake timeout"])
        || output.starts_with("timeout: ")
    {
        ProbeOutput::Timeout
    } else {
        ProbeOutput::Network
    }
}

/// The text without data that a pod sent or a command printed.
fn publishable(output: &str, reason: ProbeOutput, result: KubeletResult) -> Option<String> {
    match reason {
        // With an error the text is the runtime's; with a failure it is the output of the command.
        _ if result == KubeletResult::Error && output.starts_with("rpc error: code = ") => {
            Some(by_runtime(output).to_owned())
        }
        ProbeOutput::Other | ProbeOutput::Nothing => None,
        ProbeOutput::Status(status) => Some(format!("HTTP probe failed with statuscode: {status}")),
        ProbeOutput::NoSuchPort => Some("strconv.Atoi: invalid syntax".to_owned()),
        ProbeOutput::NotServing => Some(not_serving(output).to_owned()),
        ProbeOutput::NoHealthService => Some(match status_without_grpc(output) {
            Some(status) => format!("{NO_HEALTH_SERVICE}{OTHER_STATUS}{status}"),
            None => NO_HEALTH_SERVICE.to_owned(),
        }),
        ProbeOutput::TooManyRedirects => Some(TOO_MANY_REDIRECTS.trim_start_matches("\": ").to_owned()),
        ProbeOutput::CommandTimeout if output.starts_with("command ") => Some("command timed out".to_owned()),
        _ => Some(redact::redacted(output)),
    }
}

/// The status of an answer without gRPC.
fn status_without_grpc(output: &str) -> Option<u16> {
    let message = output.strip_prefix(NO_HEALTH_SERVICE)?.strip_prefix(OTHER_STATUS)?;
    message.split_once(' ')?.0.parse().ok().filter(|status| (100..1000).contains(status))
}

/// Keeps the known states of `grpc.health.v1.HealthCheckResponse`. Go prints an unknown state as a number.
fn not_serving(output: &str) -> &str {
    let state = output.strip_prefix("service unhealthy (responded with \"").and_then(|it| it.strip_suffix("\")"));
    let is_known = state.is_some_and(|it| ["UNKNOWN", "NOT_SERVING", "SERVICE_UNKNOWN"].contains(&it));
    if is_known { output } else { "service unhealthy" }
}

/// The source and destination address in the text: `read tcp A->B:`, `dial tcp B:`, `failed to connect service "B"`,
/// `Get "http://B/…`.
fn ends(output: &str) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let after = |mark: &str| output.split_once(mark).map(|(_, rest)| rest);
    for mark in ["read tcp ", "write tcp "] {
        let pair = after(mark).and_then(|rest| rest.split_once(": ")?.0.split_once("->"));
        if let Some((src, dst)) = pair {
            return (src.parse().ok(), dst.parse().ok());
        }
    }
    let dialled = after("dial tcp ").and_then(|rest| rest.split_once(": "));
    let dialled = dialled.or_else(|| after("failed to connect service \"").and_then(|rest| rest.split_once('"')));
    let host = |rest: &str, port: u16| address(rest.split(['/', '"', '?']).next().unwrap_or_default(), port);
    let url = || after("\"http://").and_then(|rest| host(rest, 80)).or_else(|| host(after("\"https://")?, 443));
    (None, dialled.and_then(|(dst, _)| dst.parse().ok()).or_else(url))
}

fn address(host: &str, port: u16) -> Option<SocketAddr> {
    let alone = || Some(SocketAddr::new(host.trim_matches(['[', ']']).parse().ok()?, port));
    host.parse().ok().or_else(alone)
}

#[cfg(test)]
mod tests {
    use super::{KubeletResult, ProbeOutput, Words};

    fn understand(output: &str) -> Words {
        super::understand(output, KubeletResult::Failure)
    }

    fn understood(output: &str) -> (ProbeOutput, Option<String>) {
        let words = understand(output);
        (words.reason, words.text)
    }

    #[test]
    fn outputs_of_the_kubelet_are_understood() {
        let hang = "Get \"http://10.88.0.5:8081/ready?x=1\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        let (meaning, text) = understood(hang);
        assert_eq!(meaning, ProbeOutput::Timeout);
        assert_eq!(text, Some(hang.replace("/ready?x=1", "")));
        assert_eq!(understand(hang).dst, "10.88.0.5:8081".parse().ok());
        assert_eq!(understood("HTTP probe failed with statuscode: 503").0, ProbeOutput::Status(503));
        assert_eq!(understood("dial tcp 10.88.0.5:8082: i/o timeout").0, ProbeOutput::Timeout);
        let refused = "dial tcp [fd00::5]:8082: connect: connection refused";
        assert_eq!(understand(refused).dst, "[fd00::5]:8082".parse().ok());
        for lookup in ["no such host", "read udp 10.88.0.1:5353->10.96.0.10:53: i/o timeout"] {
            let words = understand(&format!("dial tcp: lookup web.shop on 10.96.0.10:53: {lookup}"));
            let text = Some(format!("dial tcp: lookup: {lookup}"));
            assert_eq!(words, Words { reason: ProbeOutput::Network, text, src: None, dst: None });
        }
        let refused = "Get \"https://10.88.0.5:8443\": remote error: tls: handshake failure";
        assert_eq!(understood(refused), (ProbeOutput::TlsRefused, Some(refused.into())));
        let no_files = "dial tcp 10.88.0.5:8082: socket: too many open files";
        assert_eq!(understood(no_files), (ProbeOutput::Network, Some(no_files.into())));
        let unhealthy = "service unhealthy (responded with \"NOT_SERVING\")";
        assert_eq!(understood(unhealthy), (ProbeOutput::NotServing, Some(unhealthy.into())));
        assert_eq!(understood("timeout: health rpc did not complete within 1s").0, ProbeOutput::Timeout);
        let grpc = "timeout: failed to connect service \"10.88.0.5:50051\" within 1s: context deadline exceeded";
        assert_eq!(understand(grpc).dst, "10.88.0.5:50051".parse().ok());
        assert_eq!(understand("Get \"https://[fd00::5]/live\": EOF").dst, "[fd00::5]:443".parse().ok());
    }

    #[test]
    fn a_grpc_server_without_the_health_service_is_understood() {
        let unimplemented = "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service of mine";
        let (meaning, text) = understood(unimplemented);
        assert_eq!(meaning, ProbeOutput::NoHealthService);
        assert!(text.is_some_and(|it| it.ends_with("(grpc.health.v1.Health)")), "the rest is the server's");
        let other = ": unexpected HTTP status code received from server: 404";
        let text =
            understood(&unimplemented.replace(": unknown service of mine", &format!("{other} (Not Found); x"))).1;
        assert!(text.is_some_and(|it| it.ends_with(&format!("(grpc.health.v1.Health){other}"))));
        let no_connection = "error: failed to connect service at \"10.88.0.5:50051\": context canceled";
        assert_eq!(understood(no_connection).0, ProbeOutput::Network);
    }

    /// The output of a command: the kubelet adds the error, and connects to no other address than the pod's.
    #[test]
    fn what_grpc_health_probe_prints_is_of_a_command() {
        for printed in [
            "timeout: failed to connect service \"127.0.0.1:8080\" within 1s",
            "timeout: failed to connect service \"10.88.0.5:8080\" within 1s",
            "timeout: failed to connect service \"localhost:8080\" within 1s: context deadline exceeded",
            "error: failed to connect service at \":8080\": context deadline exceeded",
            "error: failed to connect service at \"[::1]:8080\": context canceled",
        ] {
            assert_eq!(understood(printed), (ProbeOutput::Other, None), "{printed}");
            assert_eq!(understand(printed).dst, None);
        }
        let own = "timeout: failed to connect service \"[fd00::5]:8080\" within 1m0s: context deadline exceeded";
        assert_eq!(understood(own), (ProbeOutput::Timeout, Some(own.into())));
    }

    /// The pod chooses the URLs of the loop.
    #[test]
    fn a_redirect_loop_is_understood_and_its_url_is_dropped() {
        let words = "stopped after 10 redirects".to_owned();
        for url in ["/loop", "http://10.88.0.10:8085/secret"] {
            let output = format!("Get \"{url}\": {words}");
            assert_eq!(understood(&output), (ProbeOutput::TooManyRedirects, Some(words.clone())));
            assert_eq!(understand(&output).dst, None);
        }
        assert_eq!(understood(&format!("curl: {words}")).0, ProbeOutput::Other);
    }

    #[test]
    fn the_source_address_is_read_if_the_output_has_it() {
        let words = understand(
            "Get \"http://10.88.0.5:8081/live\": read tcp 10.88.0.1:59486->10.88.0.5:8081: read: connection reset by peer",
        );
        assert_eq!((words.src, words.dst), ("10.88.0.1:59486".parse().ok(), "10.88.0.5:8081".parse().ok()));
        assert_eq!(words.reason, ProbeOutput::Network);
    }

    #[test]
    fn data_of_the_pod_is_dropped() {
        let garbage = "Get \"http://10.88.0.5:8081/live\": net/http: HTTP/1.x transport connection broken: malformed HTTP status code \"secret\"";
        let (meaning, text) = understood(garbage);
        assert_eq!(meaning, ProbeOutput::NotHttp);
        assert!(text.is_some_and(|it| !it.contains("secret") && it.ends_with("malformed HTTP answer")));
        let late = (ProbeOutput::CommandTimeout, Some("command timed out"));
        for (output, (reason, text)) in [
            ("", (ProbeOutput::Nothing, None)),
            ("cat: can't open '/tmp/healthy': No such file or directory", (ProbeOutput::Other, None)),
            ("command timed out", late),
            (r#"command "mysql -psecret" timed out"#, late),
            (r#"command timed out: "/bin/sh -c echo \"secret\"; sleep 60" timed out after 10s"#, late),
            (r#"command timed out: "x" timed out after secret"#, (ProbeOutput::Other, None)),
            ("command timed out: secret", (ProbeOutput::Other, None)),
            ("rpc error: code = DeadlineExceeded desc = context deadline exceeded", (ProbeOutput::Other, None)),
            ("HTTP probe failed with statuscode: secret", (ProbeOutput::NotHttp, None)),
            (r#"service unhealthy (responded with "secret")"#, (ProbeOutput::NotServing, Some("service unhealthy"))),
        ] {
            assert_eq!(understood(output), (reason, text.map(str::to_owned)), "{output}");
        }
        let of_a_tool = "error: health rpc failed: rpc error: code = DeadlineExceeded desc = context deadline exceeded";
        assert_ne!(understood(of_a_tool).0, ProbeOutput::CommandTimeout);
        let of_the_runtime =
            "rpc error: code = DeadlineExceeded desc = failed to exec in container: timeout 1s exceeded";
        assert_eq!(understood(of_the_runtime).0, ProbeOutput::CommandTimeout);
    }

    #[test]
    fn output_of_a_command_that_looks_like_the_runtimes_is_dropped() {
        let not_run = "rpc error: code = Unknown desc = failed to exec in container: secret";
        assert_eq!(understood(not_run), (ProbeOutput::CommandNotRun, Some("rpc error: code = Unknown".into())));
        let errored = super::understand(not_run, KubeletResult::Error);
        assert_eq!((errored.reason, errored.text.as_deref()), (ProbeOutput::CommandNotRun, Some(not_run)));
    }

    /// The message may be about another connection or timeout of the server.
    #[test]
    fn the_message_of_a_grpc_status_is_ignored() {
        let failed = "error: health rpc probe failed: rpc error: code = Unavailable";
        for message in [
            "context deadline exceeded",
            "error reading from server: read tcp 10.88.0.5:9000->10.0.0.5:5432: i/o timeout",
            r#"Get \"http://10.0.0.5:80/\": net/http: TLS handshake timeout"#,
        ] {
            let words = understand(&format!("{failed} desc = {message}"));
            let expected = Words { reason: ProbeOutput::Network, text: Some(failed.into()), src: None, dst: None };
            assert_eq!(words, expected, "{message}");
        }
    }

    #[test]
    fn addresses_that_a_command_prints_are_ignored() {
        let printed = understand("cannot reach the database: dial tcp 10.0.0.5:5432: connect: connection refused");
        assert_eq!((printed.reason, printed.src, printed.dst), (ProbeOutput::Other, None, None));
    }

    #[test]
    fn an_error_because_the_container_ends_is_recognised() {
        let error = |output: &str| super::understand(output, KubeletResult::Error);
        for ends in [
            "code = Canceled desc = context canceled",
            "code = Unknown desc = failed to exec in container: container is in CONTAINER_EXITED state",
            "code = NotFound desc = failed to exec in container: failed to load task: no running task found: task a9 not found: not found",
            "code = NotFound desc = failed to exec in container: failed to create exec \"a4\": task a9 not found: not found",
            "code = Unknown desc = failed to exec in container: failed to start exec \"a4\": OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown",
            "code = NotFound desc = container is not created or running: checking if PID of 58 is running failed: container process not found",
            "code = Unknown desc = container not running (4f1e7c)",
        ] {
            let ends = format!("rpc error: {ends}");
            let words = error(&ends);
            assert_eq!((words.reason, words.text.as_deref()), (ProbeOutput::ContainerEnds, Some(ends.as_str())));
            assert_ne!(understand(&ends).reason, ProbeOutput::ContainerEnds, "output of a command: {ends}");
        }
        let missing = r#"rpc error: code = Unknown desc = failed to exec in container: failed to start exec "9": OCI runtime exec failed: exec failed: unable to start container process: exec: "curl": executable file not found in $PATH: unknown"#;
        assert_eq!(error(missing).reason, ProbeOutput::CommandNotRun);
    }

    #[test]
    fn output_of_a_command_after_the_runtimes_text_is_dropped() {
        let of = |why: &str, printed: &str| {
            let error = format!("rpc error: code = Unknown desc = command error: {why}");
            let words =
                super::understand(&format!("{error}, stdout: {printed}, stderr: , exit code -1"), KubeletResult::Error);
            (words.reason, words.text == Some(error))
        };
        let stopping = "cannot register an exec PID: container is stopping";
        assert_eq!(of(stopping, "secret"), (ProbeOutput::ContainerEnds, true));
        assert_eq!(of("exec failed", "container is stopping"), (ProbeOutput::CommandNotRun, true));
    }

    /// The kubelet reports this as an error without a URL.
    #[test]
    fn an_error_while_reading_the_body_is_understood() {
        let error = |output: &str| super::understand(output, KubeletResult::Error);
        let body = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
        assert_eq!(error(body).reason, ProbeOutput::TimeoutInBody);
        assert_eq!(understand(body).reason, ProbeOutput::Other, "printed by a command");
        let reset = error("read tcp 10.88.0.1:59486->10.88.0.5:8081: read: connection reset by peer");
        assert_eq!((reset.reason, reset.dst), (ProbeOutput::Network, "10.88.0.5:8081".parse().ok()));
        assert_eq!(error("couldn't find port: secret").reason, ProbeOutput::Other);
        let port = error("strconv.Atoi: parsing \"web\": invalid syntax");
        assert_eq!((port.reason, port.text), (ProbeOutput::NoSuchPort, Some("strconv.Atoi: invalid syntax".into())));
        assert_eq!(understand("strconv.Atoi: parsing \"x\": invalid syntax").reason, ProbeOutput::Other, "a command's");
    }

    /// A pod can send text that looks like a timeout of another connection.
    #[test]
    fn text_that_a_pod_sent_is_ignored() {
        let forged = "Get \"http://10.88.0.5:8081/\": net/http: HTTP/1.x transport connection broken: malformed MIME header line: read tcp 1.1.1.1:1->2.2.2.2:2: i/o timeout";
        let words = understand(forged);
        assert_eq!((words.reason, words.src, words.dst), (ProbeOutput::Network, None, "10.88.0.5:8081".parse().ok()));
    }
}
