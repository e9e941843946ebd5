//! A verdict as the note on a pod.

use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, is_object_name};
use tracer_model::record::{Body, Cause, Confidence, K8s, Outcome, Subject, VerdictBody};

/// The API's limit of an Event's note, bytes.
pub(super) const MESSAGE_MAX: usize = 1024;

/// The container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FailedPod {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    pub(super) container: Option<String>,
}

/// What is to be reported of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) about: FailedPod,
    pub(super) attempt: Option<ConnId>,
    /// Absent: what was reported of the attempt does not hold any more.
    pub(super) says: Option<(Cause, String)>,
}

/// Of a verdict on a probe of a pod with a known name.
pub(super) fn of(decision: &Decision) -> Option<Note> {
    let Body::Verdict(verdict) = &decision.body else { return None };
    let about = about(verdict.k8s.as_ref()?)?;
    let worth = verdict.verdict.outcome == Outcome::Failure && verdict.verdict.confidence >= Confidence::Likely;
    let says = worth.then(|| (verdict.verdict.cause, message(verdict)));
    let of_use = verdict.subject == Subject::Probe && (says.is_some() || decision.attempt.is_some());
    of_use.then_some(Note { about, attempt: decision.attempt, says })
}

/// Names become parts of the path of a request.
fn about(k8s: &K8s) -> Option<FailedPod> {
    let name = |name: &Option<String>| name.clone().filter(|it| is_object_name(it));
    Some(FailedPod {
        namespace: name(&k8s.namespace)?,
        pod: name(&k8s.pod_name)?,
        uid: k8s.pod_uid.clone(),
        container: k8s.container_name.clone(),
    })
}

fn message(verdict: &VerdictBody) -> String {
    let sure = match verdict.verdict.confidence {
        Confidence::Proven => "",
        Confidence::Likely => " (likely)",
        Confidence::Possible => " (possible)",
    };
    let verdict = &verdict.verdict;
    shortened(format!("{}{sure}: {}. Fix: {}", verdict.cause.name(), verdict.summary, verdict.remediation))
}

/// As long as a note may be.
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

    #[test]
    fn what_is_no_pods_name_is_reported_nothing() {
        let of = |namespace: &str, pod: &str| {
            about(&K8s { namespace: Some(namespace.into()), pod_name: Some(pod.into()), ..K8s::default() }).is_some()
        };
        assert!(of("shop", "cart-7d9.x"));
        for (namespace, pod) in [("shop/events", "cart"), ("..", "cart"), ("shop", "cart?x"), ("shop", "../cart")] {
            assert!(!of(namespace, pod), "{namespace} {pod}");
        }
    }
}
