use std::time::Duration;

use super::*;
use crate::sink::tests::{attempt, decided, k8s, verdict, verdict_body};
use tracer_model::record::{Cause, LossBody, Subject};

#[track_caller]
fn value(text: &str, series: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).to_owned()
}

const REFUSED: &str = r#"tracer_verdicts_total{cause="connection_refused",subject="probe",probe_type="readiness",handler="http",confidence="proven"}"#;

#[test]
fn a_verdict_is_counted_by_its_cause_once() {
    let (mut metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH);
    let mut replaces = None;
    for cause in [Cause::ConnectionRefused, Cause::ConnectionRefused, Cause::NotListeningYet] {
        metrics.count(&Decision { replaces, ..decided(1, verdict(cause)) }, Some(1_002_000_000));
        replaces = Some((cause, Outcome::Failure));
    }
    metrics.count(&decided(2, verdict(Cause::ConnectionRefused)), None);
    let text = text(&registry);
    assert_eq!(value(&text, REFUSED), "2");
    assert_eq!(value(&text, &REFUSED.replace("connection_refused", "not_listening_yet")), "1");
    assert_eq!(value(&text, "tracer_verdict_latency_seconds_count"), "2");
    assert_eq!(value(&text, r#"tracer_verdict_latency_seconds_bucket{le="0.001"}"#), "0");
    assert_eq!(value(&text, r#"tracer_verdict_latency_seconds_bucket{le="0.0025"}"#), "2");
    assert!(!text.contains("pod="), "{text}");
}

#[test]
fn an_attempt_without_an_outcome_is_unknown() {
    let (mut metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH);
    let Body::Attempt(mut body) = attempt(Subject::Probe, Outcome::Success) else { unreachable!() };
    body.outcome = None;
    metrics.count(&decided(1, Body::Attempt(body)), None);
    assert_eq!(value(&text(&registry), r#"tracer_attempts_total{outcome="unknown",probe_type="",handler=""}"#), "1");
}

/// The first SYN was lost and the second one got through: the verdict names the cause, and no alert may count it.
#[test]
fn a_verdict_on_an_attempt_that_recovered_is_not_counted() {
    let (mut metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH);
    let mut count = |cause, outcome, replaces| {
        let mut body = verdict_body(cause);
        body.verdict.outcome = outcome;
        metrics.count(&Decision { replaces, ..decided(1, Body::Verdict(body.into())) }, None);
    };
    count(Cause::LoopbackDown, Outcome::Noise, None);
    count(Cause::TlsEofNoise, Outcome::Noise, None);
    let text = || text(&registry);
    assert!(!text().contains("loopback_down"), "{}", text());
    assert_eq!(value(&text(), &REFUSED.replace("connection_refused", "tls_eof_noise")), "1");
    count(Cause::LoopbackDown, Outcome::Failure, Some((Cause::LoopbackDown, Outcome::Noise)));
    assert_eq!(value(&text(), &REFUSED.replace("connection_refused", "loopback_down")), "1");
}

/// What has a value is in the snapshot of the metrics.
#[test]
fn metrics_without_a_value_are_zero_or_absent() {
    let (mut metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH + Duration::from_millis(1_500));
    metrics.set_kernel(&[HookCount { hook: "icmp_send", ..HookCount::default() }]);
    let now = text(&registry);
    assert_eq!(value(&now, r#"tracer_hook_attached{hook="icmp_send"}"#), "0");
    assert_eq!(value(&now, r#"tracer_events_lost_total{where="ring"}"#), "0");
    assert_eq!(value(&now, "tracer_start_time_seconds"), "1");
    assert!(!now.contains("tracer_program_run"), "{now}");
    for events in [7, 9] {
        metrics.set_kernel(&[HookCount { hook: "kfree_skb", attached: true, events, runs: Some((3, 0.25)) }]);
    }
    let loss = LossBody { where_: "ring".into(), count: 5, from_boot_ns: 0, to_boot_ns: 1 };
    metrics.count(&decided(0, Body::Loss(loss)), None);
    metrics.set_dropped("stdout", 4);
    let now = text(&registry);
    assert_eq!(value(&now, r#"tracer_events_total{hook="kfree_skb"}"#), "9");
    assert_eq!(value(&now, r#"tracer_events_lost_total{where="ring"}"#), "5");
    assert_eq!(value(&now, r#"tracer_sink_dropped_total{sink="stdout"}"#), "4");
}

fn about(pod: &str) -> Body {
    let k8s = Some(K8s { pod_name: Some(pod.into()), ..k8s() });
    Body::Verdict(Box::new(VerdictBody { k8s, ..verdict_body(Cause::ConnectionRefused) }))
}

#[test]
fn the_number_of_pods_with_labels_is_bounded() {
    let (mut metrics, registry) = Metrics::new(true, SystemTime::UNIX_EPOCH);
    for n in 0..=pods::MAX as u64 {
        metrics.count(&decided(n, about(&format!("cart-{n}"))), None);
    }
    let text = text(&registry);
    assert!(text.contains(r#"namespace="shop",pod="cart-512"} 1"#), "{text}");
    assert!(!text.contains(r#"pod="cart-0""#) && text.contains(r#"pod="cart-1""#), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("tracer_verdicts_total")).count(), pods::MAX);
}

#[test]
fn every_metric_has_a_row_in_its_docs() {
    let docs = include_str!("../../../../../docs/metrics.md");
    let (mut metrics, registry) = Metrics::new(true, SystemTime::UNIX_EPOCH);
    metrics.count(&decided(1, about("a")), Some(2));
    let hooks = [HookCount { hook: "kfree_skb", attached: true, events: 1, runs: Some((1, 1.0)) }];
    metrics.set_kernel(&hooks);
    metrics.set_dropped("stdout", 1);
    let text = text(&registry);
    let names: Vec<_> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    assert!(names.len() >= 9, "{text}");
    for (name, kind) in names {
        let row = docs.lines().find(|line| line.starts_with(&format!("| `{name}`")));
        assert!(row.is_some_and(|row| row.contains(kind)), "{name} {kind}");
    }
}
