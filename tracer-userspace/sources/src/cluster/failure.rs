//! Failures between this node and the API. Each message says what to do.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use kube::core::Status;

use super::reason::{one_line, reason_of_request};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection, no TLS session, or one that broke.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// The client has no credentials to send: a credential plugin failed, or a token cannot be read.
    #[error("unreachable: {0}")]
    NotSignedIn(String),
    /// No answer began within this time.
    #[error("unreachable: no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// 401
    #[error("refuses the credentials (401): the token or certificate is missing, expired or of another cluster")]
    Unauthenticated,
    /// 403
    #[error(
        "does not permit it (403): grant verb `{verb}` on resource `{resource}`{} in a ClusterRole bound to this account (deploy/kustomize has it)",
        group_text(.group)
    )]
    Forbidden { verb: &'static str, resource: &'static str, group: &'static str },
    /// 404: the server does not have this version of the resource.
    #[error("does not know {0} (404)")]
    Unknown(&'static str),
    /// 410: the server has forgotten this position.
    #[error("has forgotten the position (410)")]
    Gone,
    /// A streaming list is refused, or never ends: the server is too old for it.
    #[error("knows no streaming lists")]
    NotStreaming,
    /// Any other refusal. 429 and 503 have the time that the server asked for.
    #[error("answers {code}{}", colon(.message))]
    Refused {
        code: u16,
        message: String,
        /// `Retry-After`
        after: Option<Duration>,
    },
    /// An answer that is no Kubernetes object.
    #[error("answers what cannot be read: {0}")]
    Garbage(String),
    /// The answer stopped before its end.
    #[error("unreachable: its answer stopped before the end")]
    Cut,
}

/// The request, for the message.
#[derive(Clone, Copy, Debug)]
pub struct ApiRequest {
    /// `list` or `watch`.
    pub verb: &'static str,
    /// As RBAC writes it.
    pub resource: &'static str,
    /// API group; empty for the core's.
    pub group: &'static str,
    /// Whether it had parameters that older servers refuse.
    pub streaming: bool,
}

impl Failure {
    /// A request that got no answer.
    pub(super) fn of_client(error: &kube::Error) -> Self {
        let text = reason_of_request(error);
        let not_signed_in = matches!(error, kube::Error::Auth(_)) || text.contains("credential plugin");
        if not_signed_in { Self::NotSignedIn(text) } else { Self::Unreachable(text) }
    }

    pub(crate) fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8], asked: ApiRequest) -> Self {
        let header = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        match serde_json::from_slice(body) {
            Ok(status) => Self::of_status(status, code.as_u16(), header, asked),
            Err(_) => Self::refused(code.as_u16(), &String::from_utf8_lossy(body), header, asked),
        }
    }

    /// An `ERROR` event within a watch.
    pub(super) fn of_event(status: Status, asked: ApiRequest) -> Self {
        let code = status.code;
        Self::of_status(status, code, None, asked)
    }

    fn of_status(status: Status, code: u16, header: Option<u64>, asked: ApiRequest) -> Self {
        let seconds = status.details.map(|it| u64::from(it.retry_after_seconds)).filter(|seconds| *seconds > 0);
        Self::refused(code, &status.message, header.or(seconds), asked)
    }

    fn refused(code: u16, message: &str, after: Option<u64>, asked: ApiRequest) -> Self {
        match code {
            401 => Self::Unauthenticated,
            // The namespace is being deleted, so nothing can be created in it. No permission is missing.
            403 if !message.contains("being terminated") => {
                Self::Forbidden { verb: asked.verb, resource: asked.resource, group: asked.group }
            }
            404 => Self::Unknown(asked.resource),
            410 => Self::Gone,
            // 1.19 to 1.31 without the WatchList gate: "resourceVersionMatch is forbidden for watch", as Invalid.
            400 | 422 if asked.streaming => Self::NotStreaming,
            _ => Self::Refused { code, message: one_line(message), after: after.map(Duration::from_secs) },
        }
    }

    /// How long the server asks the client to wait.
    pub const fn after(&self) -> Option<Duration> {
        match self {
            Self::Refused { after, .. } => *after,
            _ => None,
        }
    }
}

fn group_text(group: &str) -> String {
    if group.is_empty() { String::new() } else { format!(" of apiGroup `{group}`") }
}

fn colon(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WATCH: ApiRequest = ApiRequest { verb: "watch", resource: "pods", group: "", streaming: false };

    fn answer(code: u16, body: &str) -> Failure {
        let code = StatusCode::from_u16(code).expect("code");
        Failure::of_answer(code, &HeaderMap::new(), body.as_bytes(), WATCH)
    }

    #[test]
    fn the_wait_comes_from_the_header_or_the_status() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "7".parse().expect("header"));
        let code = StatusCode::TOO_MANY_REQUESTS;
        let failure = Failure::of_answer(code, &headers, b"Too many requests", WATCH);
        assert_eq!(failure.after(), Some(Duration::from_secs(7)));
        assert_eq!(failure.to_string(), "answers 429: Too many requests");
        let failure = answer(429, r#"{"kind":"Status","details":{"retryAfterSeconds":3}}"#);
        assert_eq!(failure.after(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn old_servers_refuse_streaming_lists_only_where_one_was_asked_for() {
        let streaming = ApiRequest { streaming: true, ..WATCH };
        let code = StatusCode::UNPROCESSABLE_ENTITY;
        assert_eq!(Failure::of_answer(code, &HeaderMap::new(), b"{}", streaming), Failure::NotStreaming);
        assert!(matches!(answer(422, "{}"), Failure::Refused { code: 422, .. }));
    }

    #[test]
    fn what_a_server_says_stays_one_short_line() {
        let text = answer(500, &"<html>\n".repeat(1000)).to_string();
        assert!(text.len() < 250 && !text.contains('\n'), "{text}");
    }
}
