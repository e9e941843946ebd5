//! The answer to a probe in words, and what to do about it.

use std::net::SocketAddr;

use crate::case::Case;
use crate::kubectl::with_log;
use tracer_model::event::{KubeletProbe, ProbeOutput};
use tracer_model::record::{Command, Remediation};

const HANDLER: &str = "The network from the kubelet to the pod works. Find what the health handler checks: it may depend on something that the pod cannot reach. Read the application's log of that moment";
const NO_SUCH_PATH: &str = "The network from the kubelet to the pod works, and the application does not serve what the probe asks for: correct the probe's path or its Host header, or let the application serve that path. Read the application's log of that moment";
/// Django's ALLOWED_HOSTS, and servers that know their hosts only.
pub const BAD_REQUEST: &str = "The network from the kubelet to the pod works, and the application rejects the request itself. It may not accept the pod's address as Host: set httpGet.httpHeaders of the probe to a Host that it serves, {name: Host, value: NAME}. Or correct the probe's path or port. Read the application's log of that moment";
/// The same where the probe is not known. Servers of plain HTTP answer a ClientHello, or the preface of HTTP/2, with 400.
pub const BAD_REQUEST_OR_PROTOCOL: &str = "The network from the kubelet to the pod works, and the application rejects the request itself. If the probe uses HTTPS, set its scheme to HTTP, since the port answers in plain HTTP; for gRPC, set its port to one that speaks gRPC. If it uses HTTP, the application may not accept the pod's address as Host: set httpGet.httpHeaders of the probe to a Host that it serves, {name: Host, value: NAME}. Or correct the probe's path or port. Read the application's log of that moment";
/// 401 and 403.
const NOT_ALLOWED: &str = "The network from the kubelet to the pod works, and the application does not allow the probe's request: the kubelet sends no credentials. Let it serve the health path without them, or set httpGet.httpHeaders of the probe to what it accepts. Read the application's log of that moment";
/// 405.
const NO_GET: &str = "The network from the kubelet to the pod works, and the application does not allow GET on the probe's path: the kubelet has no other method. Correct the probe's path, or let the application answer GET there. Read the application's log of that moment";
/// 426.
const UPGRADE_REQUIRED: &str = "The network from the kubelet to the pod works, and the application wants another protocol than HTTP/1.1 on the probe's path; its answer names it in Upgrade. For TLS, set the probe's scheme to HTTPS. For WebSocket or HTTP/2, correct the probe's path or port, or use tcpSocket. Read the application's log of that moment";
/// 429.
const RATE_LIMITED: &str = "The network from the kubelet to the pod works, and the application limits the rate of requests: exempt the health path from the limit, or raise the limit or the probe's periodSeconds. Read the application's log of that moment";
/// 431.
const LARGE_HEADER: &str = "The network from the kubelet to the pod works, and the header fields of the probe's request are too large for the application: shorten httpGet.httpHeaders of the probe, or raise the server's limit. Read the application's log of that moment";
/// 505.
const NO_SUCH_VERSION: &str = "The network from the kubelet to the pod works, and the application does not accept HTTP/1.1, which the kubelet uses: let it accept that version, correct the probe's port, or use tcpSocket. Read the application's log of that moment";
/// The fix of a malformed status line.
pub const BAD_STATUS_LINE: &str = "Let the server begin its answer with a valid status line, as \"HTTP/1.1 200 OK\". Or correct the probe's port, or use tcpSocket";
/// The fix where a probe of plain HTTP got something else.
pub const NO_HTTP: &str = "The probe uses HTTP, and the port speaks something else: correct the probe's port or scheme, or use tcpSocket or grpc";
const NO_HTTPS: &str = "The probe uses HTTPS, and the port speaks something else: set its scheme to HTTP if the port speaks plain HTTP, correct the port, or use tcpSocket or grpc";
/// A TLS alert in words.
pub const REFUSAL: &str = "a fatal alert that refuses the TLS handshake";
/// The kubelet offers the defaults of Go (crypto/tls), without a certificate.
pub const TLS_REFUSED: &str = "The server's log says why. Let the server accept what the kubelet offers: TLS 1.2 and 1.3, Go's secure ciphers, no server name for an address, no client certificate. Or probe another port, or use tcpSocket or exec";
const NO_HEALTH_SERVICE: &str =
    "Register the gRPC health service (grpc.health.v1.Health) in the server, or use tcpSocket";
const WITHOUT_GRPC: &str = "Set the port of the probe to one that speaks gRPC: this one answers in HTTP/2 without gRPC. Or use httpGet, if an HTTP server is to be probed. If a proxy in front of the server answers, let it pass on the health rpc";
const NOT_FOUND: &str = "Set the probe's grpc.service to a name that the server's health service knows (empty: the whole server), or register that name there";
const DENIED: &str = "Let the server answer grpc.health.v1.Health/Check without credentials: the kubelet's gRPC probes carry none. Or use tcpSocket, or exec with a client that has credentials";
/// The fix of a gRPC health rpc that ended with an error.
pub const RPC_FAILED: &str = "The network from the kubelet to the pod works. Find what ends the health rpc with this status: the server's Check handler, an interceptor, or a server that shuts down. Or the port speaks HTTP/2 without gRPC. Read the application's log of that moment";
const STREAM_RESET: &str = "The network from the kubelet to the pod works. Find what resets the stream of the request: a handler that fails, a proxy in front of it, a limit of streams or of their rate, or a server that shuts down. The kubelet's message has the code. Read the application's log of that moment";
const NOT_ACCEPTED: &str = "Correct what the kubelet's message names in the answer. Go's HTTP client, which the kubelet uses, rejects it; other clients may accept it";

/// Go checks this although the kubelet does not verify who signed the certificate.
const TLS_NOT_ACCEPTED: &str = "Correct what the kubelet's message names: the server's certificate, or its TLS version or cipher. Go's TLS client, which the kubelet uses, rejects it; other clients may accept it. Or use tcpSocket or exec";
/// The fix of an answer that is shorter than any status line.
pub const NO_STATUS_LINE: &str = "If the port speaks no HTTP: correct the probe's port, or use tcpSocket. Else find why the server gave up its answer. Read the application's log of that moment";

/// The application's log shows why.
pub fn names_log(fix: &str) -> bool {
    let of_handler =
        matches!(fix, HANDLER | NO_SUCH_PATH | NOT_ALLOWED | NO_GET | RATE_LIMITED | BAD_STATUS_LINE | NO_STATUS_LINE);
    let of_protocol = matches!(fix, UPGRADE_REQUIRED | LARGE_HEADER | NO_SUCH_VERSION);
    of_handler || of_protocol || matches!(fix, BAD_REQUEST | BAD_REQUEST_OR_PROTOCOL | RPC_FAILED | STREAM_RESET)
}

/// Adds the application's log, unless the port speaks another protocol: the log does not show that.
pub fn with_fix(case: &Case<'_>, fix: &str) -> Remediation {
    match fix {
        _ if names_log(fix) => with_log(case, fix),
        TLS_REFUSED | TLS_NOT_ACCEPTED => with_log(case, fix).run([shows_certificate(case.attempt.flow.dst)]),
        _ => fix.into(),
    }
}

/// The command shows a certificate if the port speaks TLS. A port that speaks none may wait for more, and so does the
/// command.
pub fn shows_certificate(dst: SocketAddr) -> Command {
    tls_client(dst, "")
}

/// The brackets of an IPv6 address are a pattern for zsh.
pub fn tls_client(dst: SocketAddr, flags: &str) -> Command {
    let dst = if dst.is_ipv6() { format!("'{dst}'") } else { dst.to_string() };
    Command::on_node(format!("timeout 5 openssl s_client -connect {dst}{flags} </dev/null"))
}

/// The answer that the kubelet reported, as text, and its fix. grpc-go takes the status 404 of an answer without gRPC for
/// a method that is not implemented.
pub fn reported_answer(reported: &KubeletProbe, scheme: Option<&str>) -> Option<(String, &'static str)> {
    let without_grpc = || {
        let (_, status) =
            reported.output.as_deref()?.split_once("unexpected HTTP status code received from server: ")?;
        Some((format!("an HTTP status {status} without gRPC"), WITHOUT_GRPC))
    };
    let is_unimplemented = reported.reason == ProbeOutput::NoHealthService;
    without_grpc().filter(|_| is_unimplemented).or_else(|| answer_text(reported.reason, scheme))
}

/// The answer by the kubelet outcome, as text, and its fix. `None` if the outcome tells nothing about an answer.
/// With scheme `https`, `NotHttp` means that the port speaks no TLS, or something else than HTTP in it.
fn answer_text(reason: ProbeOutput, scheme: Option<&str>) -> Option<(String, &'static str)> {
    match reason {
        ProbeOutput::Status(status) => Some(status_text(status)),
        ProbeOutput::NotServing => Some(("a health status other than SERVING".to_owned(), HANDLER)),
        ProbeOutput::NoHealthService => Some(("that it has no gRPC health service".to_owned(), NO_HEALTH_SERVICE)),
        ProbeOutput::HealthNotFound => Some(("that it does not know the service asked about".to_owned(), NOT_FOUND)),
        ProbeOutput::RpcDenied => {
            Some(("that it refuses the health rpc to a caller without credentials".to_owned(), DENIED))
        }
        ProbeOutput::StreamReset => {
            Some(("an error of HTTP/2 that ends the request (RST_STREAM)".to_owned(), STREAM_RESET))
        }
        ProbeOutput::InvalidAnswer => Some(("HTTP that the kubelet's client rejects".to_owned(), NOT_ACCEPTED)),
        ProbeOutput::InvalidTls => {
            Some(("a TLS handshake that the kubelet's client rejects".to_owned(), TLS_NOT_ACCEPTED))
        }
        ProbeOutput::TlsRefused => Some((REFUSAL.to_owned(), TLS_REFUSED)),
        ProbeOutput::NotHttp if scheme == Some("https") => {
            Some(("something that is not HTTP over TLS".to_owned(), NO_HTTPS))
        }
        ProbeOutput::NotHttp => Some(("something that is not HTTP".to_owned(), NO_HTTP)),
        _ => None,
    }
}

/// A status as text, and its fix.
pub fn status_text(status: u16) -> (String, &'static str) {
    let fix = match status {
        400 => BAD_REQUEST,
        401 | 403 => NOT_ALLOWED,
        404 => NO_SUCH_PATH,
        405 => NO_GET,
        426 => UPGRADE_REQUIRED,
        429 => RATE_LIMITED,
        431 => LARGE_HEADER,
        505 => NO_SUCH_VERSION,
        _ => HANDLER,
    };
    (format!("HTTP status {status}"), fix)
}

/// By its words, Go's TLS client got something else than TLS. A client that reads no HTTP within TLS says `malformed HTTP`.
pub fn got_no_tls(reported: &KubeletProbe) -> bool {
    const IN_PLAIN: [&str; 2] =
        ["server gave HTTP response to HTTPS client", "first record does not look like a TLS handshake"];
    reported.output.as_deref().is_some_and(|output| IN_PLAIN.iter().any(|words| output.contains(words)))
}
