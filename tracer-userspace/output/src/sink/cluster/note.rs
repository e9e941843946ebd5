//! What an Event says about a pod, made from a verdict.

use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, is_object_name};
use tracer_model::record::{Body, Cause, Confidence, K8s, Outcome, Subject, VerdictBody};

/// The API's limit of an Event's note, bytes.
pub(super) const MESSAGE_MAX: usize = 1024;

/// A pod, and its container where that is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedPod {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) container: Option<String>,
}

/// What to report about an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) about: FailedPod,
    pub(super) attempt: Option<ConnId>,
    /// Cause and message. Absent: an earlier note about the attempt is not true any more.
    pub(super) says: Option<(Cause, String)>,
}

/// The note of a verdict about a probe, if the pod's name is known.
pub(super) fn of(decision: &Decision) -> Option<Note> {
    let Body::Verdict(verdict) = &decision.body else { return None };
    let about = about(verdict.k8s.as_ref()?)?;
    let is_reported = verdict.verdict.outcome == Outcome::Failure && verdict.verdict.confidence >= Confidence::Likely;
    let says = is_reported.then(|| (verdict.verdict.cause, message(verdict)));
    let is_useful = verdict.subject == Subject::Probe && (says.is_some() || decision.attempt.is_some());
    is_useful.then_some(Note { about, attempt: decision.attempt, says })
}

/// Checks the names, because they become parts of the path of a request.
fn about(k8s: &K8s) -> Option<FailedPod> {
    let name = |name: &Option<String>| name.clone().filter(|it| is_object_name(it));
    Some(FailedPod {
        namespace: name(&k8s.namespace)?,
        pod: name(&k8s.pod_name)?,
        uid: k8s.pod_uid.clone(),
        container: k8s.container_name.clone(),
    })
}

/// The text of a proven or likely verdict.
fn message(verdict: &VerdictBody) -> String {
    let verdict = &verdict.verdict;
    let confidence = if verdict.confidence == Confidence::Proven { "" } else { " (likely)" };
    let fix = &verdict.remediation;
    let text = format!("{}{confidence}: {}. Fix: {}", verdict.cause.name(), verdict.summary, fix.text);
    let commands: String =
        fix.commands.iter().map(|it| format!("; {} {}", it.place.instruction(None), it.run)).collect();
    let whole = text.trim_end_matches('.').to_owned() + &commands;
    // A command that is cut may do something else.
    let too_long = !commands.is_empty() && whole.len() > MESSAGE_MAX;
    shortened(if too_long { text } else { whole })
}

/// Cuts a text to [`MESSAGE_MAX`].
pub(super) fn shortened(mut text: String) -> String {
    const MORE: &str = "…";
    if text.len() > MESSAGE_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_MAX - MORE.len()));
        text += MORE;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::verdict_body;
    use tracer_model::record::{Command, Remediation};

    #[test]
    fn commands_are_in_a_note_with_their_places_or_not_at_all() {
        let of = |run: &str| {
            let mut body = verdict_body(Cause::LoopbackDown);
            body.verdict.remediation =
                Remediation::on_node("Set lo up.", "ip link show").run([Command::in_cluster(run)]);
            message(&body)
        };
        let text = "loopback_down: nobody listens on 10.0.0.9:80. Fix: Set lo up";
        let short = format!("{text}; run on the node: ip link show; run in the cluster: kubectl get pods");
        assert_eq!(of("kubectl get pods"), short);
        assert_eq!(of(&"x".repeat(MESSAGE_MAX)), format!("{text}."));
    }

    #[test]
    fn a_pod_with_an_invalid_name_gets_no_note() {
        let of = |namespace: &str, pod: &str| {
            about(&K8s { namespace: Some(namespace.into()), pod_name: Some(pod.into()), ..K8s::default() }).is_some()
        };
        assert!(of("shop", "cart-7d9.x"));
        for (namespace, pod) in [("shop/events", "cart"), ("..", "cart"), ("shop", "cart?x"), ("shop", "../cart")] {
            assert!(!of(namespace, pod), "{namespace} {pod}");
        }
    }
}
