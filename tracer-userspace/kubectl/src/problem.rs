//! Problems with the cluster API. Each is one line that says what failed, and what to do.

use std::time::Duration;

use serde::Deserialize;
use tracer_sources::cluster::one_line;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// The kubeconfig or the service account cannot be used.
    #[error("{0}")]
    Access(String),
    /// The connection or TLS failed, or the connection broke.
    #[error("the API server does not answer: {0}")]
    Unreachable(String),
    /// The API sent no data within the timeout of a request.
    #[error("no answer within {}", seconds(.0))]
    Late(Duration),
    /// 401
    #[error(
        "the API server refuses the credentials (401): the token or certificate is expired, missing, or of another cluster; sign in again"
    )]
    Unauthenticated,
    /// 403 by RBAC.
    #[error("RBAC does not allow it: {0}; deploy/operators.yaml has the rights that this command needs")]
    Forbidden(String),
    /// 404
    #[error("{0} not found")]
    NotFound(String),
    /// Any other refusal, in the server's words.
    #[error("the API server answers {code}: {message}")]
    Refused { code: u16, message: String },
    /// The answer is no Kubernetes object.
    #[error("the API server's answer cannot be read: {0}")]
    Garbage(String),
    /// Any other problem that the command found.
    #[error("{0}")]
    Found(String),
}

/// The right that a request needs, in the terms of RBAC.
#[derive(Clone, Debug)]
pub(super) struct Right<'a> {
    pub(super) verb: &'static str,
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
}

/// The object that the API answers a refused request with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
}

impl Problem {
    /// The problem of a refused request. `what` names the requested object.
    pub(super) fn of_answer(code: u16, body: &[u8], right: &Right<'_>, what: &str) -> Self {
        let message = serde_json::from_slice::<Status>(body)
            .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |status| status.message);
        let message = one_line(&message);
        match code {
            401 => Self::Unauthenticated,
            // Admission refuses with the same code but another message (Pod Security: "violates PodSecurity").
            403 if message.is_empty() || message.contains(" cannot ") => Self::Forbidden(missing(&message, right)),
            404 => Self::NotFound(what.to_owned()),
            _ => Self::Refused { code, message },
        }
    }

    /// 3 where rights are missing, else 2.
    pub(super) const fn exit_code(&self) -> u8 {
        match self {
            Self::Forbidden(_) => 3,
            _ => 2,
        }
    }
}

/// Names the missing right, and the account if the server names it.
fn missing(message: &str, right: &Right<'_>) -> String {
    let Right { verb, resource, namespace } = right;
    let user = message.split("User \"").nth(1).and_then(|rest| rest.split('"').next());
    let user = user.map_or_else(|| "this account".to_owned(), |user| format!("`{user}`"));
    format!("{user} needs verb `{verb}` on `{resource}` in namespace `{namespace}`")
}

fn seconds(time: &Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{} ms", time.as_millis()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGS: Right<'_> = Right { verb: "get", resource: "pods/log", namespace: "tracer" };

    #[test]
    fn a_missing_right_is_named() {
        let body = br#"{"kind":"Status","reason":"Forbidden","message":"pods \"x\" is forbidden: User \"jane\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"tracer\""}"#;
        let problem = Problem::of_answer(403, body, &LOGS, "pod x");
        let text = problem.to_string();
        assert!(text.contains("`jane` needs verb `get` on `pods/log` in namespace `tracer`"), "{text}");
        assert_eq!(problem.exit_code(), 3);
    }

    #[test]
    fn a_refusal_by_admission_is_no_missing_right() {
        let body =
            br#"{"message":"pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces"}"#;
        let problem = Problem::of_answer(403, body, &LOGS, "pod x");
        assert_eq!(problem.exit_code(), 2);
        assert!(problem.to_string().contains("violates PodSecurity"), "{problem}");
    }

    #[test]
    fn a_long_message_of_a_server_becomes_one_short_line() {
        let text = Problem::of_answer(502, "<html>\n".repeat(1000).as_bytes(), &LOGS, "pod x").to_string();
        assert!(text.len() < 350 && !text.contains('\n'), "{text}");
    }
}
