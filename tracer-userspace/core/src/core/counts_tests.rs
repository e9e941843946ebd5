//! Tests of what is counted against what is told.

use super::*;
use crate::core::Core;
use crate::testing::Stream;
use tracer_model::event::{AnswerKind, Fact, Observation, ProbeSays, TcpState};
use tracer_model::record::{Confidence, Status};

const SECOND: u64 = 1_000_000_000;

/// The count of failures of the readiness probe of the pod in the last 20 s, and the time to compare it.
fn counted(stream: &mut Stream, failures: u64) {
    counted_of(stream, failures, 20);
}

fn counted_of(stream: &mut Stream, failures: u64, window_s: u64) {
    let to = stream.now();
    let pod = PodRef { namespace: Some("default".into()), name: Some("web".into()), uid: Some("u".into()) };
    let count = FailureCount { pod, container: "app".into(), probe_type: ProbeType::Readiness, failures };
    let from_boot_ns = to.saturating_sub(window_s * SECOND);
    stream.push(Fact::ProbeCounts(Box::new(ProbeCounts { from_boot_ns, to_boot_ns: to, failed: vec![count] })));
    stream.wait_ms(11_000).push(Fact::Tick);
}

/// The kubelet's counters are read, for half a minute.
fn followed() -> Stream {
    let mut stream = Stream::new();
    let now = stream.now();
    stream.push(Fact::ProbeCounts(Box::new(ProbeCounts { from_boot_ns: now, to_boot_ns: now, failed: Vec::new() })));
    stream.wait_ms(30_000);
    stream
}

#[test]
fn a_command_that_nobody_else_tells_of_is_told_by_its_count() {
    let mut stream = followed();
    stream.exec_readiness().wait_ms(5_000);
    counted(&mut stream, 2);
    let verdicts = stream.verdicts();
    assert_eq!(stream.causes(), ["unexplained"]);
    let verdict = &verdicts[0].verdict;
    assert_eq!(verdict.confidence, Confidence::Possible);
    assert!(verdict.summary.contains("counted 2 failures") && verdict.summary.contains("20 s"), "{}", verdict.summary);
    assert_eq!(verdict.evidence[0].fields["failures"], 2);
    assert_eq!(verdicts[0].k8s.as_ref().and_then(|it| it.container_name.as_deref()), Some("app"));
    assert!(stream.findings().is_empty());
}

#[test]
fn what_the_kubelet_ignores_is_none_of_what_it_counted() {
    let mut stream = followed();
    stream.exec_readiness().kubelet_error(ProbeType::Readiness, ProbeSays::CommandNotRun, "x").wait_ms(5_000);
    counted(&mut stream, 1);
    assert_eq!(stream.causes(), ["exec_failed", "unexplained"]);
}

/// Whichever of the two comes first, for each failure.
#[test]
fn what_the_kubelet_s_words_tell_is_not_told_again() {
    let mut first = followed();
    first.exec_readiness().kubelet(ProbeSays::Other).wait_ms(4_000).kubelet(ProbeSays::CommandTimeout).wait_ms(1_000);
    counted(&mut first, 2);
    assert_eq!(first.causes(), ["exec_failed", "exec_timeout"]);
    // One of three has no word.
    counted(&mut first, 1);
    assert_eq!(first.causes(), ["exec_failed", "exec_timeout", "unexplained"]);
    let mut late = followed();
    late.exec_readiness().wait_ms(5_000);
    counted(&mut late, 1);
    late.kubelet_event(ProbeSays::Other, 13_000);
    assert_eq!(late.causes(), ["unexplained"], "an Event of a failure that was counted");
    late.kubelet(ProbeSays::Other);
    assert_eq!(late.causes(), ["unexplained", "exec_failed"], "the next failure");
}

#[test]
fn words_that_come_a_moment_after_the_count_are_waited_for() {
    let mut stream = followed();
    stream.exec_readiness().wait_ms(5_000);
    let at = stream.now();
    let pod = PodRef { namespace: Some("default".into()), name: Some("web".into()), uid: None };
    let count = FailureCount { pod, container: "app".into(), probe_type: ProbeType::Readiness, failures: 1 };
    let failed = vec![count];
    stream.push(Fact::ProbeCounts(Box::new(ProbeCounts { from_boot_ns: at - SECOND, to_boot_ns: at, failed })));
    stream.wait_ms(3_000).kubelet(ProbeSays::Other).wait_ms(20_000).push(Fact::Tick);
    assert_eq!(stream.causes(), ["exec_failed"]);
}

#[test]
fn a_failure_that_a_verdict_tells_of_is_no_disagreement() {
    let mut stream = followed();
    stream.http_readiness().connect().gives_up().wait_ms(1_000);
    counted(&mut stream, 1);
    assert!(stream.findings().is_empty(), "{:?}", stream.findings());
    // It was matched: the next count is about another attempt.
    counted(&mut stream, 1);
    assert_eq!(stream.findings().len(), 1);
}

#[test]
fn a_disagreement_is_said_once_and_names_no_cause() {
    let mut stream = followed();
    stream.https_readiness().wait_ms(1_000);
    for conn in 20..22 {
        stream.again(conn).connect().established();
        stream.state(TcpState::Established, TcpState::FinWait1, 0, (100, 101, 200)).wait_ms(1_000);
        counted(&mut stream, 3);
    }
    assert!(stream.causes().is_empty(), "{:?}", stream.causes());
    let findings = stream.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    let finding = &findings[0];
    assert_eq!((finding.check.as_str(), finding.status), ("probe_counts", Status::Warn));
    assert_eq!((&finding.fields["counted"], &finding.fields["told"]), (&3.into(), &0.into()));
    assert!(finding.observed.contains("went well"), "{}", finding.observed);
    assert!(finding.is_of_a_probe());
}

#[test]
fn that_no_attempt_was_seen_is_said() {
    let mut stream = followed();
    stream.http_readiness();
    counted(&mut stream, 1);
    assert!(stream.findings()[0].observed.contains("no attempt of it was seen"), "{:?}", stream.findings());
}

#[test]
fn what_was_not_seen_is_not_compared() {
    let mut before = Stream::new();
    before.http_readiness().wait_ms(1_000);
    counted(&mut before, 5);
    assert!(before.findings().is_empty(), "it began before the run");
    let mut outage = followed();
    outage.http_readiness().wait_ms(300_000);
    counted_of(&mut outage, 5, 250);
    assert!(outage.findings().is_empty(), "the kubelet did not answer for long");
    let mut lossy = followed();
    lossy.http_readiness().wait_ms(1_000).lost(3);
    counted(&mut lossy, 5);
    assert!(lossy.findings().is_empty(), "a loss record says it");
}

#[test]
fn an_attempt_that_cannot_be_told_apart_counts_for_the_probe() {
    let mut stream = followed();
    // No list of pods: the attempt has no names.
    stream.connect().gives_up().wait_ms(1_000);
    counted(&mut stream, 1);
    assert!(stream.findings().is_empty());
}

/// It cannot reach the API server: that hides no probe.
#[test]
fn what_the_kubelet_dials_besides_counts_for_no_probe() {
    let mut stream = followed();
    stream.http_readiness();
    let mut other = Stream::to("10.96.0.1:443");
    other.connect().gives_up();
    let begun = stream.now();
    for observation in other.observations.into_iter().skip(1) {
        stream.observations.push(Observation { time_boot_ns: begun + observation.time_boot_ns, ..observation });
    }
    stream.wait_ms(10_000);
    counted(&mut stream, 1);
    assert_eq!(stream.findings().len(), 1);
}

#[test]
fn nothing_is_kept_where_the_counters_are_not_read() {
    let mut stream = Stream::new();
    stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(503));
    let mut core = Core::default();
    stream.observations.iter().for_each(|it| core.push(it, &mut Vec::new()));
    assert!(core.counts.tallies.values().next().is_none());
}

#[test]
fn memory_is_bounded() {
    let mut counts = Counts { following: true, ..Counts::default() };
    let key = |n: u64| Key {
        pod: PodRef { uid: Some(n.to_string()), ..PodRef::default() },
        container: None,
        probe_type: None,
    };
    for n in 0..2 * MAX_PROBES as u64 {
        (0..2).for_each(|_| counts.note(key(n), n));
    }
    (0..2 * MAX_TIMES as u64).for_each(|n| counts.note(key(0), n));
    assert_eq!(counts.tallies.values().count(), MAX_PROBES);
    assert!(counts.tallies.values().all(|it| it.failed.len() <= MAX_TIMES));
}
