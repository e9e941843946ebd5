//! The field of the probe that is wrong, by the answer of the server.

use super::Case;
use super::rules::app_status_failure::status_of;
use tracer_model::event::AnswerKind;
use tracer_model::record::Confidence;

/// A field of the probe, by the status of the answer.
pub(super) struct Field {
    pub text: &'static str,
    pub fix: &'static str,
    pub confidence: Confidence,
}

const HOST: Field = Field {
    text: "the server does not serve the host that the probe asks for: this is the pod's address and port, unless the probe has httpHeaders",
    fix: "Set httpGet.httpHeaders of the probe to a Host that the server serves, {name: Host, value: NAME}, or have the server answer the health path for any host",
    confidence: Confidence::Proven,
};

/// Only a few words of the answer decide: an application on a plain port may write them, too.
pub(super) const SCHEME: Field = Field {
    text: "the server says that the port speaks TLS, and the probe uses plain HTTP",
    fix: "Set httpGet.scheme of the probe to HTTPS, or its port to one that speaks plain HTTP",
    confidence: Confidence::Likely,
};

/// The length of the answer of Go's server to plain HTTP on a TLS port: "HTTP/1.0 400 Bad Request", an empty line,
/// "Client sent an HTTP request to an HTTPS server." (net/http, `conn.serve`).
const GO_ANSWER: u64 = 76;

/// The field that the answer itself shows to be wrong.
pub(super) fn wrong_field(case: &Case<'_>) -> Option<Field> {
    let attempt = case.attempt;
    let answer = attempt.answer().map(|(_, answer)| answer).filter(|answer| answer.kind == AnswerKind::Http);
    let in_plain = case.matched.expects_http() != Some(false);
    match status_of(case)? {
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
