use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::*;
use crate::sink::cluster::ClusterSink;
use tracer_model::event::{Ancestor, ConnId, Handler, ProbeType};
use tracer_model::record::{
    AttemptBody, Cause, Confidence, Culprit, Endpoint, Evidence, K8s, Phases, Probe, Process, Subject, Verdict,
    VerdictBody,
};
use tracer_testing::Scratch;

pub(crate) fn verdict(cause: Cause) -> Body {
    Body::Verdict(Box::new(verdict_body(cause)))
}

/// A verdict about a pod `shop/cart`, container `web`.
pub(crate) fn verdict_body(cause: Cause) -> VerdictBody {
    let evidence = Evidence {
        hook: "tcp_connect".into(),
        time_boot_ns: 999_788_860,
        text: "kubelet connects".into(),
        fields: BTreeMap::new(),
    };
    VerdictBody {
        subject: Subject::Probe,
        attempt_id: Some("1".into()),
        severity: cause.severity(),
        scope: cause.scope(),
        verdict: Verdict {
            cause,
            outcome: Outcome::Failure,
            confidence: Confidence::Proven,
            summary: "nobody listens on 10.0.0.9:80".into(),
            remediation: "check containerPort".into(),
            evidence: vec![evidence],
            also: vec![],
            lost_events: 0,
            missing_hooks: vec![],
        },
        probe: Some(Probe {
            probe_type: Some(ProbeType::Readiness),
            handler: Some(Handler::Http),
            scheme: Some("http".into()),
            port: Some(80),
            path: Some("/".into()),
            ..Probe::default()
        }),
        k8s: Some(k8s()),
        src: None,
        dst: Some(Endpoint { addr: "10.0.0.9".parse().unwrap(), port: Some(80) }),
        process: Some(Process { pid: 812, comm: "kubelet".into() }),
        netns: None,
        culprit: None,
        kubelet: None,
        timing: None,
        revises: None,
        repeated: None,
    }
}

/// The process that set a link down.
pub(crate) fn culprit() -> Culprit {
    Culprit {
        pid: 5029,
        comm: "loopback".into(),
        exe: Some("/opt/cni/bin/loopback".into()),
        ancestors: vec![Ancestor { pid: 1, comm: "crio".into() }],
        op: "link_down".into(),
        netns_path: Some("/proc/5029/ns/net".into()),
        netns: None,
        time_boot_ns: None,
    }
}

pub(crate) fn k8s() -> K8s {
    K8s {
        namespace: Some("shop".into()),
        pod_name: Some("cart".into()),
        pod_uid: None,
        container_name: Some("web".into()),
        workload: None,
    }
}

/// The record of this number, about something that happened a second after the start of the machine.
pub(crate) fn recorded(seq: u64, body: Body) -> Record {
    let time = "2026-01-02T03:04:05.678901234Z".into();
    Record { schema: SCHEMA.into(), body, time, time_boot_ns: 1_000_000_000, seq, node_name: "n1".into() }
}

fn success() -> Body {
    attempt(Subject::Probe, Outcome::Success)
}

pub(crate) fn attempt(subject: Subject, outcome: Outcome) -> Body {
    Body::Attempt(Box::new(AttemptBody {
        subject,
        attempt_id: "1".into(),
        outcome: Some(outcome),
        probe: None,
        k8s: Some(k8s()),
        src: None,
        dst: Endpoint { addr: "10.0.0.9".parse().unwrap(), port: Some(80) },
        process: Process { pid: 812, comm: "kubelet".into() },
        http_status: None,
        phases_ms: Phases::default(),
        cause: None,
    }))
}

struct Written(Scratch);

impl Written {
    fn by(edit: impl FnOnce(&mut SinkConfig)) -> (Sink, Self) {
        let written = Self(Scratch::new());
        let mut config = SinkConfig::new(Format::Ndjson, Some(written.0.path("out")));
        edit(&mut config);
        (Sink::open(&config, true).unwrap(), written)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.0.path("out")).unwrap()
    }

    fn records(&self) -> Vec<serde_json::Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn printed(edit: impl FnOnce(&mut SinkConfig), decisions: Vec<Decision>) -> Vec<serde_json::Value> {
    let (mut sink, written) = Written::by(edit);
    sink.boot_to_wall_ns = 1_700_000_000_000_000_000;
    for decision in decisions {
        sink.emit(decision, Some(1_002_345_678));
    }
    sink.stop(2_000_000_000, "signal", 5, 0);
    written.records()
}

pub(crate) fn decided(attempt: u64, body: Body) -> Decision {
    Decision::new(1_000_000_000, Some(ConnId(attempt)), body)
}

#[test]
fn records_are_numbered_and_timed() {
    let records =
        printed(|_| (), vec![decided(1, verdict(Cause::Unexplained)), decided(2, verdict(Cause::LoopbackDown))]);
    assert_eq!(records.iter().map(|r| r["seq"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(records[0]["time"], "2023-11-14T22:13:21.000000000Z");
    assert_eq!(records[0]["timing"]["detected_after_ms"], 2.346);
    assert_eq!(records[2]["verdicts"]["loopback_down"], 1);
    assert_eq!(records[2]["events"], 5);
}

#[test]
fn the_stop_record_is_written_before_waiting_for_the_cluster_api() {
    let (mut sink, written) = Written::by(|_| ());
    let (cluster, runs) = ClusterSink::stuck();
    sink.add(cluster);
    let stopping = std::thread::spawn(move || sink.stop(2_000_000_000, "signal", 5, 0));
    while !written.text().contains(r#""type":"stop""#) {
        assert!(!stopping.is_finished(), "no record");
        std::thread::yield_now();
    }
    runs.send(()).expect("it still waits");
    stopping.join().unwrap();
}

#[test]
fn filtered_records_take_no_number() {
    let decisions =
        vec![decided(1, verdict(Cause::Unexplained)), decided(2, success()), decided(3, verdict(Cause::LoopbackDown))];
    let records = printed(|c| c.filter.causes = vec![Cause::LoopbackDown], decisions);
    assert_eq!(records.len(), 2);
    assert_eq!((records[0]["seq"].as_u64(), records[1]["attempts"].as_u64()), (Some(0), Some(1)));
}

#[test]
fn open_probe_attempts_are_printed_at_the_end() {
    let open = |subject| attempt(subject, Outcome::Open);
    let decisions =
        vec![decided(1, success()), decided(2, open(Subject::Connection)), decided(3, open(Subject::Probe))];
    let records = printed(|_| (), decisions);
    assert_eq!((records.len(), &records[0]["outcome"], &records[0]["subject"]), (2, &"open".into(), &"probe".into()));
    assert_eq!(records[1]["open_attempts"], 2);
}

#[test]
fn a_revision_of_a_printed_verdict_passes_the_filter() {
    let replaces = Some((Cause::Unexplained, Outcome::Failure));
    let revision = Decision { replaces, ..decided(1, verdict(Cause::LoopbackDown)) };
    let decisions = vec![decided(1, verdict(Cause::Unexplained)), revision];
    let records = printed(|c| c.filter.causes = vec![Cause::Unexplained], decisions);
    assert_eq!(records[1]["revises"], 0);
    assert_eq!(records[2]["verdicts"], serde_json::json!({"loopback_down": 1}));
}

#[test]
fn attempts_are_printed_only_when_asked_for() {
    let records = printed(|c| c.attempts = true, vec![decided(1, success())]);
    assert_eq!(records[0]["type"], "attempt");
    assert_eq!(printed(|_| (), vec![decided(1, success())]).len(), 1);
}

/// Counts the records that it gets, and always reports so many dropped ones.
#[derive(Debug)]
struct Counting(Arc<AtomicU64>, u64);

impl Destination for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn take_record(&self, _: &Record) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn dropped(&self) -> u64 {
        0
    }

    fn take_dropped(&mut self) -> u64 {
        self.1
    }

    fn finish(&mut self) -> bool {
        true
    }
}

#[test]
fn what_a_destination_drops_is_reported_once_a_second() {
    let (mut sink, written) = Written::by(|_| ());
    sink.add(Counting(Arc::default(), 1));
    (0..3).for_each(|n| sink.emit(decided(n, verdict(Cause::Unexplained)), None));
    sink.every_second(2_000_000_000, Vec::new);
    sink.output().flush();
    let text = written.text();
    assert_eq!(text.matches(r#""where":"counting""#).count(), 1, "{text}");
}

#[test]
fn records_dropped_by_a_full_disk_are_reported_when_it_has_room_again() {
    let rotation = output::Rotation { max_bytes: 4096, max_files: 1 };
    let (mut sink, written) = Written::by(|it| it.rotation = Some(rotation));
    std::fs::create_dir_all(written.0.path("out.1/inside")).unwrap();
    let (metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH);
    sink.count_into(metrics);
    let delivered = Arc::new(AtomicU64::new(0));
    sink.add(Counting(delivered.clone(), 0));
    let mut long = verdict_body(Cause::Unexplained);
    long.verdict.summary = "x".repeat(200_000);
    for n in 0..60 {
        sink.emit(decided(n, Body::Verdict(long.clone().into())), None);
        sink.output().flush();
    }
    assert_eq!(delivered.load(Ordering::Relaxed), 60, "the disk of the file is full, not that of the collector");
    sink.every_second(2_000_000_000, Vec::new);
    let counted = |series: &str| {
        let text = metrics::text(&registry);
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<u64>().ok())
    };
    let dropped = counted(r#"tracer_sink_dropped_total{sink="output_file"}"#).unwrap();
    assert!((1..30).contains(&dropped), "{dropped}");
    let verdicts = metrics::text(&registry);
    assert!(verdicts.lines().any(|line| line.starts_with("tracer_verdicts_total") && line.ends_with(" 60")));
    std::fs::remove_dir_all(written.0.path("out.1")).unwrap();
    // The first second writes the records that waited, the next reports the dropped ones.
    sink.every_second(3_000_000_000, Vec::new);
    sink.every_second(4_000_000_000, Vec::new);
    sink.output().flush();
    let text = written.text();
    let loss: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&loss["type"], &loss["where"]), (&"loss".into(), &"output".into()));
    assert_eq!((loss["count"].as_u64(), loss["seq"].as_u64()), (Some(dropped), Some(60)), "a gap in the numbers");
}

#[test]
fn an_attempt_that_a_revision_changes_to_noise_is_no_failure() {
    let (mut sink, _written) = Written::by(|_| ());
    for n in [1, 2] {
        sink.emit(decided(n, attempt(Subject::Probe, Outcome::Failure)), None);
    }
    let mut body = verdict_body(Cause::ConnectionRefused);
    for outcome in [Outcome::Failure, Outcome::Noise] {
        body.verdict.outcome = outcome;
        sink.emit(decided(1, Body::Verdict(body.clone().into())), None);
    }
    assert_eq!(sink.counts().failed, 1);
}

#[test]
fn until_failure_prints_nothing_after_the_first_failure() {
    let decisions =
        vec![decided(1, success()), decided(2, verdict(Cause::Unexplained)), decided(3, verdict(Cause::LoopbackDown))];
    let records = printed(|c| c.until_failure = true, decisions);
    assert_eq!(records.len(), 2);
    assert_eq!((&records[0]["verdict"]["cause"], &records[1]["type"]), (&"unexplained".into(), &"stop".into()));
}

/// The records of a run that ends at `until`, of one probe that fails every ten seconds.
fn failing(until: u64, replaced: &[(u64, Cause)], edit: impl FnOnce(&mut SinkConfig)) -> Vec<serde_json::Value> {
    let second = |s: u64| s * 1_000_000_000;
    let (mut sink, written) = Written::by(|config| {
        config.repeat_interval = Duration::from_mins(1);
        edit(config);
    });
    let (metrics, registry) = Metrics::new(false, SystemTime::UNIX_EPOCH);
    sink.count_into(metrics);
    for n in 0..until / 10 {
        sink.advance(second(n * 10));
        let decided = |cause| Decision::new(second(n * 10), Some(ConnId(n)), verdict(cause));
        let revisions = replaced.iter().filter(|(attempt, _)| *attempt == n).map(|(_, cause)| *cause);
        let replaces = Some((Cause::ConnectionRefused, Outcome::Failure));
        let revisions = revisions.map(|cause| Decision { replaces, ..decided(cause) });
        for decision in iter::once(decided(Cause::ConnectionRefused)).chain(revisions) {
            sink.emit(decision, Some(second(n * 10) + 1_000_000));
        }
    }
    sink.stop(second(until), "signal", 0, 0);
    let counted = metrics::text(&registry);
    let counts = counted.lines().filter(|line| line.starts_with("tracer_verdicts_total"));
    let count: u64 = counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(count, until / 10 + replaced.len() as u64, "the metrics count each");
    written.records()
}

/// Each verdict as `cause at second`, with its repetitions and the record that it revises.
fn brief(records: &[serde_json::Value]) -> Vec<String> {
    let verdicts = records.iter().filter(|it| it["type"] == "verdict");
    let brief = |it: &serde_json::Value| {
        let name = |name: &str| it[name].as_u64().map(|seq| format!(" {name} {seq}")).unwrap_or_default();
        let at = it["time_boot_ns"].as_u64().unwrap() / 1_000_000_000;
        let times = it["repeated"]["count"].as_u64().map(|n| format!(" {n} times")).unwrap_or_default();
        format!("{} at {at}{times}{}", it["verdict"]["cause"].as_str().unwrap(), name("revises"))
    };
    verdicts.map(brief).collect()
}

#[test]
fn a_probe_that_keeps_failing_is_printed_once_a_minute_after_the_first() {
    let records = failing(200, &[], |_| ());
    let printed = brief(&records);
    assert_eq!(printed[..6], [0, 10, 20, 30, 40, 50].map(|s| format!("connection_refused at {s}")));
    let rest = ["at 100 5 times", "at 160 6 times", "at 190 3 times"];
    assert_eq!(printed[6..], rest.map(|it| format!("connection_refused {it}")));
    let held = &records[6];
    assert_eq!(held["repeated"]["first_time"], "1970-01-01T00:01:00.000000000Z");
    assert_eq!(held["repeated"]["last_time"], held["time"]);
    assert_eq!(held["timing"]["detected_after_ms"], 1.0, "when it was known, not when it was printed");
    let stop = records.last().unwrap();
    assert_eq!((&stop["verdicts"]["connection_refused"], stop["seq"].as_u64()), (&20.into(), Some(9)));
    assert_eq!(brief(&failing(200, &[], |it| it.repeat_interval = Duration::ZERO)).len(), 20);
}

#[test]
fn a_revision_names_a_printed_record_or_none() {
    let revised = |attempts: &[u64]| {
        let replaced: Vec<_> = attempts.iter().map(|n| (*n, Cause::NotListeningYet)).collect();
        let records = failing(110, &replaced, |_| ());
        let sum: u64 =
            records.last().unwrap()["verdicts"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum();
        assert_eq!(sum, 11, "one verdict for each attempt");
        brief(&records).split_off(6)
    };
    // Only the attempt's own verdict is held, so there is nothing to revise.
    assert_eq!(revised(&[6]), ["not_listening_yet at 60", "connection_refused at 100 4 times"]);
    // The record of the group is about this attempt, so the revision names it.
    let named = ["connection_refused at 80 3 times", "not_listening_yet at 80 revises 6"];
    assert_eq!(revised(&[8]), [&named[..], &["connection_refused at 100 2 times"]].concat());
}

/// The group of the attempts 6 to 8 was printed, and then the kubelet reports two of them.
#[test]
fn a_revision_names_the_group_that_was_printed_with_its_attempt() {
    let (mut sink, written) = Written::by(|it| it.repeat_interval = Duration::from_mins(1));
    let at = |n: u64, cause| Decision::new(n * 10_000_000_000, Some(ConnId(n)), verdict(cause));
    for n in 0..9 {
        sink.emit(at(n, Cause::ConnectionRefused), None);
    }
    sink.advance(110_000_000_000);
    for n in [7, 8] {
        let replaces = Some((Cause::ConnectionRefused, Outcome::Failure));
        sink.emit(Decision { replaces, ..at(n, Cause::NotListeningYet) }, None);
    }
    assert_eq!(sink.counts().verdicts, 9, "one verdict for each attempt");
    sink.stop(111_000_000_000, "signal", 0, 0);
    let expected =
        ["connection_refused at 80 3 times", "not_listening_yet at 70 revises 6", "not_listening_yet at 80 revises 6"];
    assert_eq!(brief(&written.records())[6..], expected);
}

#[test]
fn the_revision_of_a_held_verdict_must_pass_the_filter() {
    let replaced = [(6, Cause::NotListeningYet)];
    let records = failing(70, &replaced, |it| it.filter.causes = vec![Cause::ConnectionRefused]);
    assert_eq!(brief(&records).len(), 6);
}
