//! The field of the probe that is wrong, by the answer of the server.

use crate::Case;
use tracer_model::event::AnswerKind;
use tracer_model::record::Confidence;

/// A field of the probe, by the status of the answer.
pub struct Field {
    pub text: &'static str,
    pub fix: &'static str,
    pub confidence: Confidence,
}

const HOST: Field = Field {
    text: "the server does not serve the host that the probe asks for: this is the pod's address and port, unless the probe has httpHeaders",
    fix: "Set httpGet.httpHeaders of the probe to a Host that the server serves, {name: Host, value: NAME}, or have the server answer the health path for any host",
    confidence: Confidence::Proven,
};

/// The kubelet connects to an address, and Go sends no server name (SNI) for one. Apache from 2.4.64 on answers 421 if
/// the Host header names another host than the server name.
const HOST_OVER_TLS: Field = Field {
    text: "over HTTPS the kubelet sends no server name (SNI) for an address, and the server may want the Host header to fit it",
    fix: "Remove the Host header from httpGet.httpHeaders of the probe, if it has one. Or let the server answer the health path without a server name (SNI), or probe a port that speaks plain HTTP",
    confidence: Confidence::Likely,
};

/// Only a few words of the answer decide: an application on a plain port may write them, too.
pub const SCHEME: Field = Field {
    text: "the server says that the port speaks TLS, and the probe uses plain HTTP",
    fix: "Set httpGet.scheme of the probe to HTTPS, or its port to one that speaks plain HTTP",
    confidence: Confidence::Likely,
};

/// The length of the answer of Go's server to plain HTTP on a TLS port: "HTTP/1.0 400 Bad Request", an empty line,
/// "Client sent an HTTP request to an HTTPS server." (net/http, `conn.serve`).
const GO_ANSWER: u64 = 76;

/// The field that the answer itself shows to be wrong.
pub fn wrong_field(case: &Case<'_>) -> Option<Field> {
    let attempt = case.attempt;
    let answer = attempt.answer().map(|(_, answer)| answer).filter(|answer| answer.kind == AnswerKind::Http);
    let in_plain = case.matched.expects_http() != Some(false);
    match status_of(case)? {
        421 if case.matched.scheme().as_deref() == Some("https") => Some(HOST_OVER_TLS),
        421 => Some(HOST),
        400 if in_plain => match answer? {
            answer if answer.says_tls => Some(SCHEME),
            // An older recording, from before tracer looked for these words.
            answer if answer.len.is_none() && attempt.received() == Some(GO_ANSWER) => Some(SCHEME),
            _ => None,
        },
        _ => None,
    }
}

/// The status of the answer, as tracer or the kubelet read it.
pub fn status_of(case: &Case<'_>) -> Option<u16> {
    let read = case.attempt.answer().filter(|(_, it)| it.kind == AnswerKind::Http).and_then(|(_, it)| it.status);
    read.or_else(|| case.attempt.kubelet()?.1.reason.status())
}

/// The fix if a gRPC probe meets a port that speaks TLS.
pub const GRPC_IN_PLAIN: &str = "a gRPC probe speaks no TLS (grpc.mode: TLS is alpha in Kubernetes 1.37). Serve the health service on a port without TLS, or use tcpSocket, or exec with a client that speaks TLS (grpc_health_probe -tls)";

/// The fix of a probe with a `host` that is not its pod.
pub const REMOVE_HOST: &str = "Remove `host` from the probe: the kubelet then asks the pod's own address. A virtual host goes into httpGet.httpHeaders, {name: Host, value: NAME}";
