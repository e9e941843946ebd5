//! Makes records of decisions.

use super::verdicts::Decided;
use crate::kubelet::Unattached;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::{Matched, Named};
use tracer_case::evidence::of_state;
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::{Answer, ConnId, KubeletProbe, Loss};
use tracer_model::record::{
    AttemptBody, Body, Cause, Confidence, Evidence, FindingBody, KubeletOutcome, LossBody, Outcome, Phases, Probe,
    Remediation, Subject, Timing, Verdict, VerdictBody,
};

/// The record of an attempt that is over, or still open at the end of the stream.
pub(super) fn attempt_record(
    attempt: &Attempt,
    node: &Node,
    now: u64,
    outcome: Option<Outcome>,
    cause: Option<Cause>,
) -> Decision {
    let named = Matched::new(attempt, node).name();
    let body = AttemptBody {
        subject: named.subject,
        attempt_id: attempt.conn.to_string(),
        outcome,
        probe: named.probe,
        k8s: named.k8s,
        src: named.src,
        dst: named.dst,
        process: named.process,
        http_status: attempt.status(),
        phases_ms: phases(attempt),
        cause,
    };
    let time_boot_ns = attempt.ended.map_or(now, |(end, _)| end);
    Decision::new(time_boot_ns, Some(attempt.conn), Body::Attempt(Box::new(body)))
}

/// Replaces a failure if its attempt was connected later and did not fail. Without an HTTP status in the answer, tracer
/// does not know that the probe succeeded. `held`: the verdict that it replaces, if that was not emitted.
pub(super) fn recovery(attempt: &Attempt, before: Decided, held: Option<&Verdict>) -> (Finding, Vec<Cause>) {
    let ended = attempt.ended.map_or(attempt.started, |(time, _)| time);
    let is_success = attempt.carried_no_data() || attempt.status().is_some();
    let (what, confidence) = match is_success {
        true => ("succeeded after all", Confidence::Proven),
        false => ("was answered after all, with a status that tracer cannot read", Confidence::Likely),
    };
    let confidence = held.map_or(confidence, |it| confidence.min(it.confidence));
    let connected = attempt.established.unwrap_or(ended);
    let after_ms = connected.saturating_sub(attempt.started) as f64 / 1e6;
    let how = match attempt.syns_sent_again().any(|at| at <= connected) {
        true => format!("a retransmitted SYN got through {after_ms:.1} ms after the first"),
        false => format!("it was connected {after_ms:.1} ms after the first SYN"),
    };
    let summary = format!("the attempt to {} {what}: {how}", attempt.flow.dst);
    let found = match held {
        Some(it) => {
            let summary = format!("{summary}; before that, {}", it.summary);
            Finding::failure(before.cause, it.evidence.clone(), summary, it.remediation.clone())
        }
        None => Finding::failure(before.cause, Vec::new(), summary, before.cause.fix()),
    };
    (Finding { outcome: Outcome::Noise, decided_at: ended, ..found.with_confidence(confidence) }, Vec::new())
}

/// Replaces a failure that did not count: the prober tried again and was connected.
pub(super) fn withdraw(before: Decided, connected: &Attempt, summary: String, fix: impl Into<Remediation>) -> Finding {
    let ended = connected.ended.map_or(connected.started, |(time, _)| time);
    let was_connected = format!("{} was connected", connected.flow.dst);
    let reading = connected.last.as_ref().map(|state| Evidence { text: was_connected, ..of_state(ended, state) });
    let found = Finding::failure(before.cause, reading.into_iter().collect(), summary, fix);
    Finding { outcome: Outcome::Noise, decided_at: ended, ..found.with_confidence(Confidence::Likely) }
}

pub(super) fn verdict_record(
    conn: ConnId,
    finding: Finding,
    also: Vec<Cause>,
    named: Named,
    count: Option<u32>,
    kubelet: Option<KubeletOutcome>,
) -> Decision {
    let decided_at = finding.decided_at;
    let body = VerdictBody {
        attempt_id: Some(conn.to_string()),
        probe: named.probe.map(|probe| Probe { consecutive_failures: count, ..probe }),
        k8s: named.k8s,
        src: named.src,
        dst: Some(named.dst),
        process: Some(named.process),
        netns: named.netns,
        ..verdict_body(named.subject, finding, also, kubelet)
    };
    Decision::new(decided_at, Some(conn), Body::Verdict(Box::new(body)))
}

/// Sets the time of a verdict on an attempt, and how long the attempt took to fail.
pub(super) fn set_time(record: &mut Decision, time: u64, attempt: &Attempt) {
    record.time_boot_ns = time;
    if let Body::Verdict(body) = &mut record.body {
        let failed = body.verdict.outcome == Outcome::Failure;
        let failed_after_ms = failed.then(|| Timing::ms(attempt.started, time));
        body.timing = failed_after_ms.map(|_| Timing { failed_after_ms, ..Timing::default() });
    }
}

/// A verdict without attempt, probe, pod and addresses.
fn verdict_body(
    subject: Subject,
    mut finding: Finding,
    also: Vec<Cause>,
    kubelet: Option<KubeletOutcome>,
) -> VerdictBody {
    finding.evidence.sort_by_key(|reading| reading.time_boot_ns);
    let verdict = Verdict {
        cause: finding.cause,
        outcome: finding.outcome,
        confidence: finding.confidence,
        summary: finding.summary,
        remediation: finding.remediation,
        evidence: finding.evidence,
        also,
        lost_events: finding.lost_events,
        missing_hooks: finding.missing_hooks.iter().map(|hook| hook.name().to_owned()).collect(),
    };
    VerdictBody {
        subject,
        attempt_id: None,
        severity: verdict.severity(),
        scope: finding.scope.or(verdict.cause.scope()),
        verdict,
        probe: None,
        k8s: None,
        src: None,
        dst: None,
        process: None,
        netns: None,
        culprit: finding.culprit,
        kubelet,
        timing: None,
        revises: None,
        repeated: None,
    }
}

pub(super) fn kubelet_outcome(probe: &KubeletProbe) -> KubeletOutcome {
    KubeletOutcome { result: probe.result, output: probe.output.clone(), event_count: probe.event_count }
}

/// The record of a verdict without a connection.
pub(super) fn unattached(
    finding: Finding,
    also: Vec<Cause>,
    named: Unattached,
    kubelet: Option<KubeletOutcome>,
) -> Decision {
    let time_boot_ns = finding.decided_at;
    let body = VerdictBody {
        probe: named.probe,
        k8s: Some(named.k8s),
        process: named.process,
        ..verdict_body(Subject::Probe, finding, also, kubelet)
    };
    Decision::new(time_boot_ns, None, Body::Verdict(Box::new(body)))
}

pub(super) fn finding_record(time_boot_ns: u64, finding: FindingBody) -> Decision {
    Decision::new(time_boot_ns, None, Body::Finding(Box::new(finding)))
}

pub(super) fn loss_record(time_boot_ns: u64, loss: &Loss) -> Decision {
    let body = LossBody {
        where_: loss.where_.clone(),
        count: loss.count,
        from_boot_ns: loss.from_boot_ns,
        to_boot_ns: loss.to_boot_ns,
    };
    Decision::new(time_boot_ns, None, Body::Loss(body))
}

fn phases(attempt: &Attempt) -> Phases {
    let ms = |from: u64, to: u64| ((to.saturating_sub(from)) as f64 / 1e3).round() / 1e3;
    let answer_of = |tls: bool| attempt.answer().filter(|(_, answer)| answer.kind.is_tls() == tls);
    let until =
        |answer: Option<(u64, &Answer)>| attempt.established_at().zip(answer).map(|(at, (byte, _))| ms(at, byte));
    Phases {
        connect: attempt.established_at().map(|at| ms(attempt.started, at)),
        tls: until(answer_of(true)),
        first_byte: until(answer_of(false)),
        // tracer sees a connect() that failed at once only when it returns, so its duration is not known.
        total: attempt.ended.filter(|(end, _)| *end > attempt.started).map(|(end, _)| ms(attempt.started, end)),
    }
}
