//! Problems with the cluster API. Each is one line that says what failed, and what to do.

use std::time::Duration;

use kube::core::Status;
use tracer_sources::cluster::{Failure, one_line};
use tracer_terminal::error::Error;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
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
    /// Any other problem that the command found, such as a kubeconfig that cannot be used.
    #[error("{0}")]
    Found(String),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Found(error.to_string())
    }
}

/// The right that a request needs, in the terms of RBAC.
#[derive(Clone, Debug)]
pub(super) struct Right<'a> {
    pub(super) verb: &'static str,
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
}

impl Problem {
    /// The problem of a request without a whole answer, each part of which had to come within `patience`.
    pub(super) fn of_failure(failure: Failure, patience: Duration) -> Self {
        match failure {
            Failure::Unreachable(why) => Self::Unreachable(why),
            Failure::Late(_) | Failure::Cut => Self::Late(patience),
            Failure::Garbage(why) => Self::Garbage(why),
            Failure::NotSignedIn(why) => Self::Found(why),
            other => Self::Found(other.to_string()),
        }
    }

    /// The problem of a refused request. `what` names the requested object.
    pub(super) fn of_answer(code: u16, body: &[u8], right: &Right<'_>, what: &str) -> Self {
        let message = serde_json::from_slice::<Status>(body)
            .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |status| status.message);
        let message = one_line(&message);
        match code {
            401 => Self::Unauthenticated,
            403 if message.is_empty() || is_of_rbac(&message) => Self::Forbidden(missing(&message, right)),
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

/// `pods "x" is forbidden: User "jane" cannot get resource …`. Admission refuses with the same code and other words, such
/// as `violates PodSecurity`, or what the author of a webhook wrote.
fn is_of_rbac(message: &str) -> bool {
    let refused =
        message.split_once("forbidden: User \"").filter(|(before, _)| !before.contains(" denied the request"));
    refused.is_some_and(|(_, rest)| rest.contains("\" cannot "))
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
    use crate::testing::*;
    use serde_json::json;

    const LOGS: Right<'_> = Right { verb: "get", resource: "pods/log", namespace: "tracer" };

    #[test]
    fn a_refusal_by_admission_is_no_missing_right() {
        let body =
            br#"{"message":"pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces"}"#;
        let problem = Problem::of_answer(403, body, &LOGS, "pod x");
        assert_eq!(problem.exit_code(), 2);
        assert!(problem.to_string().contains("violates PodSecurity"), "{problem}");
        let body =
            br#"{"message":"admission webhook \"policy\" denied the request: a pod cannot use the host's network"}"#;
        let problem = Problem::of_answer(403, body, &LOGS, "pod x");
        assert!(problem.exit_code() == 2 && problem.to_string().contains("host's network"), "{problem}");
    }

    #[test]
    fn a_long_message_of_a_server_becomes_one_short_line() {
        let text = Problem::of_answer(502, "<html>\n".repeat(1000).as_bytes(), &LOGS, "pod x").to_string();
        assert!(text.len() < 350 && !text.contains('\n'), "{text}");
    }

    #[tokio::test]
    async fn bad_input_is_one_line_and_an_exit_code() {
        let mut waiting = pod("shop", "waits", "", false);
        waiting["status"]["conditions"] =
            json!([{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]);
        let mut replies = cluster(
            &[pod("shop", "cart-0", "n1", false), pod("shop", "far", "n9", false), waiting],
            &[("n1", record("verdict", 1, "n1", &now(), json!({})).replace("tracer/1", "tracer/2"))],
        );
        replies.insert("GET /api/v1/namespaces/shop/pods/late".into(), Reply::Silence);
        replies.insert("GET /api/v1/namespaces/shop/pods/expired".into(), status(401, "Unauthorized"));
        let fake = Fake::serve(replies).await;
        for (words, part) in [
            (&["why", "none"][..], "pod shop/none not found"),
            (&["why", "waits"], "shop/waits is not scheduled, so no node probes it: 0/3 nodes are available"),
            (
                &["why", "far"],
                "is there (--daemonset-namespace, --daemonset-selector); `kubectl tracer attach n9` runs it",
            ),
            (
                &["why", "cart-0"],
                "the log of tracer/tracer-n1 on n1 has records of tracer/2, and this plugin reads tracer/1",
            ),
            (&["why", "late"], "no answer within 500 ms"),
            (&["why", "expired"], "refuses the credentials (401)"),
            (&["why", "deploy/none"], "deployment shop/none not found"),
            (&["why", "cart-0", "--context", "none"], "kubeconfig"),
        ] {
            let (code, problem) = ran(&fake, words).await.problem();
            assert!(code == 2 && problem.contains(part) && !problem.contains('\n'), "{words:?}: {code} {problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[tokio::test]
    async fn each_missing_right_is_named() {
        let all = || cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", String::new())]);
        let forbidden =
            r#"x is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "shop""#;
        for (path, right) in [
            ("GET /api/v1/namespaces/shop/pods/cart-0", "verb `get` on `pods` in namespace `shop`"),
            (PODS, "verb `list` on `pods` in namespace `tracer`"),
            (&log_of("n1"), "verb `get` on `pods/log` in namespace `tracer`"),
        ] {
            let mut replies = all();
            replies.insert(path.into(), status(403, forbidden));
            let (code, problem) = ran(&Fake::serve(replies).await, &["why", "cart-0"]).await.problem();
            assert!(code == 3 && problem.contains(&format!("`jane` needs {right}")), "{path}: {code} {problem}");
        }
        let mut replies = all();
        replies.insert(log_of("n1"), status(403, forbidden));
        let (code, problem) = ran(&Fake::serve(replies).await, &["top"]).await.problem();
        assert!(code == 3 && problem.contains("`pods/log`"), "{code} {problem}");
    }

    #[tokio::test]
    async fn a_server_that_is_down_is_named() {
        let fake = Fake { addr: ([127, 0, 0, 1], 1).into(), ..Fake::serve(Replies::new()).await };
        let (code, problem) = ran(&fake, &["why", "cart-0"]).await.problem();
        assert!(code == 2 && problem.contains("does not answer: http://127.0.0.1:1: Connection refused"), "{problem}");
    }
}
