//! The pod's own connects get no answer: perhaps its probe fails because a dependency is unreachable. Goes to `also`.

use super::super::pod_sockets;
use super::super::services::service_named;
use super::*;
use tracer_model::event::UnansweredConnect;
use tracer_model::shell::word;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (time, reading) = pod_sockets::last_reading(case, pod_sockets::FRESH_NS)?;
    let first = reading.unanswered.first()?;
    if !may_explain(case) {
        return None;
    }
    let dst = first.dst;
    let service = service_named(case, dst).map(|name| format!(" (Service {name})")).unwrap_or_default();
    let before = case.attempt.started.saturating_sub(time) / 1_000_000_000;
    let before = if before > 0 { format!(" (read {before} s before)") } else { String::new() };
    let text = format!(
        "{} of the pod to {dst}{service}: no answer, though the SYN was sent again {}",
        counted(u64::from(first.sockets), "connect"),
        counted(u64::from(first.retransmits), "time")
    );
    let others = match reading.unanswered.len() - 1 {
        0 => String::new(),
        more => format!(", nor from {}", counted(more as u64, "other destination")),
    };
    let summary = format!("perhaps because the pod itself gets no answer from {dst}{service}{others}{before}");
    let fields = json!({ "dst": dst, "sockets": first.sockets, "retransmits": first.retransmits });
    let evidence = vec![evidence_of("sock_diag", time, text, fields)];
    Some(Finding::likely(Cause::DependencyUnreachable, evidence, summary, fix(case, first)))
}

/// The attempt failed as if the application waits for another one: it does not listen yet, hangs, or answers a failure.
fn may_explain(case: &Case<'_>) -> bool {
    let failures = [
        app_status_failure::find,
        slow_response::find,
        connection_refused::find,
        not_listening_yet::find,
        startup_budget_exceeded::find,
        closed_without_answer::find,
    ];
    failures.iter().any(|find| find(case).is_some_and(|it| it.confidence > Confidence::Possible))
}

fn fix(case: &Case<'_>, first: &UnansweredConnect) -> Remediation {
    let dst = first.dst;
    let text = format!(
        "If the application needs {dst}, see why the pod gets no answer from there: a NetworkPolicy for egress, a firewall, a route, or a peer that is gone"
    );
    let k8s = case.matched.name().k8s;
    let namespace = k8s.as_ref().and_then(|it| word(it.namespace.as_deref()));
    let policies = format!("kubectl get networkpolicy -n {}", namespace.unwrap_or("NAMESPACE"));
    Remediation::from(text).run([Command::in_cluster(policies)])
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn silent(sockets: u32, retransmits: u8) -> Vec<UnansweredConnect> {
        let dst = address("10.96.0.1:443");
        vec![UnansweredConnect { dst, sockets, retransmits }]
    }

    fn unavailable(stream: &mut Stream) -> &mut Stream {
        stream.connect().established().answers(503)
    }

    /// The last verdict of two failures, the pod's sockets read between them.
    fn second(unanswered: Vec<UnansweredConnect>, wait_ms: u64, fail: fn(&mut Stream) -> &mut Stream) -> Verdict {
        let mut stream = Stream::new().http_readiness().clone();
        fail(&mut stream).pod_sockets(|reading| reading.unanswered = unanswered).wait_ms(wait_ms).again(8);
        fail(&mut stream);
        stream.verdicts().pop().expect("a verdict").verdict
    }

    #[test]
    fn it_is_added_to_the_failure_of_a_waiting_application() {
        for (fail, cause) in [
            (unavailable as fn(&mut Stream) -> &mut Stream, Cause::AppStatusFailure),
            (|stream| stream.connect().refused(), Cause::ConnectionRefused),
        ] {
            let verdict = second(silent(2, 3), 10_000, fail);
            assert_eq!((verdict.cause, verdict.also.as_slice()), (cause, [Cause::DependencyUnreachable].as_slice()));
            let words = "; perhaps because the pod itself gets no answer from 10.96.0.1:443 (read 10 s before)";
            assert_has(&verdict.summary, &[words]);
            let fix = verdict.remediation.to_string();
            assert_has(&fix, &[". If the application needs 10.96.0.1:443, see why"]);
        }
    }

    #[test]
    fn without_a_recent_unanswered_connect_it_is_not_added() {
        for verdict in [second(Vec::new(), 10_000, unavailable), second(silent(1, 1), 61_000, unavailable)] {
            assert!(verdict.also.is_empty() && !verdict.summary.contains("the pod itself"), "{}", verdict.summary);
        }
    }

    /// A packet to the pod is dropped on its way, so the pod's dependency is not the reason.
    #[test]
    fn it_does_not_explain_what_never_reached_the_pod() {
        let verdict =
            second(silent(1, 3), 10_000, |stream| stream.connect().filtered(SYN, tracer_core::testing::POD).gives_up());
        assert_eq!((verdict.cause, verdict.also.as_slice()), (Cause::FirewallDrop, [].as_slice()));
    }

    #[test]
    fn without_a_failed_attempt_it_is_no_cause() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_sockets(|reading| reading.unanswered = silent(1, 3)).connect().established();
        stream.answers(200);
        assert!(stream.causes().is_empty());
    }
}
