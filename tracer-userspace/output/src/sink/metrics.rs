//! Prometheus metrics of a daemon. They are counted from decisions, and once a second from the counters of the source. So
//! an event costs only one addition, where it is decoded.
//!
//! The names are in the contract and in `docs/metrics.md`; they are never reused.

mod pods;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use self::pods::{Of, Pods};
use tracer_model::decision::Decision;
use tracer_model::event::Loss;
use tracer_model::record::{AttemptBody, Body, Cause, FindingBody, K8s, Outcome, Probe, Severity, Status, VerdictBody};

/// Names and values of one series.
type Labels = Vec<(&'static str, Cow<'static, str>)>;
type Counters = Family<Labels, Counter>;

/// Upper bounds of the latency's buckets, seconds. The target is 5 ms; a verdict that waits for firewall rules takes up to
/// 1 s.
const LATENCY: [f64; 11] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Counters of one hook since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HookCount {
    pub hook: &'static str,
    pub attached: bool,
    pub events: u64,
    /// Runs of its programs and the seconds they took; absent where the kernel does not count them
    /// (`kernel.bpf_stats_enabled`) and never did.
    pub runs: Option<(u64, f64)>,
}

#[derive(Debug)]
pub struct Metrics {
    verdicts: Counters,
    attempts: Counters,
    events: Counters,
    lost: Counters,
    attached: Family<Labels, Gauge>,
    latency: Histogram,
    run_seconds: Family<Labels, Counter<f64, AtomicU64>>,
    runs: Counters,
    dropped: Counters,
    findings: Family<Labels, Gauge>,
    pods: Option<Pods>,
}

impl Metrics {
    /// New metrics of a process that started at this time, and the registry that prints them. `pod_labels` adds
    /// `namespace` and `pod` to verdicts and attempts.
    pub fn new(pod_labels: bool, start: SystemTime) -> (Self, Arc<Registry>) {
        let mut registry = Registry::with_prefix("tracer");
        let r = &mut registry;
        let verdicts = "Verdicts on failures and on successes that mislead, by cause; a revision counts where it changes the cause";
        let lost = "Kernel events lost, and reported failures without a verdict, by place";
        let latency = "From the kernel event that decided a verdict to its record";
        let seconds = "Time in kernel programs; with kernel.bpf_stats_enabled only";
        let runs = "Runs of kernel programs; with kernel.bpf_stats_enabled only";
        let finding = "1 for the status that a check of the node has; a check that was never other than ok is absent";
        let metrics = Self {
            verdicts: add(r, "verdicts", verdicts, Family::default()),
            attempts: add(r, "attempts", "Attempts that ended, by outcome", Family::default()),
            events: add(r, "events", "Kernel events read, by the hook that wrote them", Family::default()),
            lost: add(r, "events_lost", lost, Family::default()),
            attached: add(r, "hook_attached", "1 if a program is attached at this hook", Family::default()),
            latency: add(r, "verdict_latency_seconds", latency, Histogram::new(LATENCY)),
            run_seconds: add(r, "program_run_seconds", seconds, Family::default()),
            runs: add(r, "program_runs", runs, Family::default()),
            dropped: add(r, "sink_dropped", "Records that could not be written", Family::default()),
            findings: add(r, "doctor_finding", finding, Family::default()),
            pods: pod_labels.then(Pods::default),
        };
        let build: Family<Labels, Gauge> =
            add(r, "build_info", "Always 1, with the version of tracer", Family::default());
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").into())]).set(1);
        let started: Gauge = add(r, "start_time_seconds", "When tracer started, in Unix time", Gauge::default());
        started.set(unix_seconds(start));
        for place in Loss::PLACES {
            let _ = metrics.lost.get_or_create(&vec![("where", place.into())]);
        }
        (metrics, Arc::new(registry))
    }

    /// Counts a decision, printed or not. `now_boot_ns` is for the latency.
    pub(super) fn count(&mut self, decision: &Decision, now_boot_ns: Option<u64>) {
        match &decision.body {
            Body::Verdict(verdict) => self.count_verdict(decision, verdict, now_boot_ns),
            Body::Attempt(attempt) => self.count_attempt(attempt),
            Body::Loss(loss) => {
                self.lost.get_or_create(&vec![("where", loss.where_.clone().into())]).inc_by(loss.count);
            }
            Body::Finding(finding) if !finding.is_of_a_probe() => self.set_finding(finding),
            Body::Finding(_) | Body::Start(_) | Body::Stop(_) | Body::Node(_) => {}
        }
    }

    /// Sets the status of a check to that of its last finding.
    fn set_finding(&self, finding: &FindingBody) {
        for status in Status::ALL {
            let labels = vec![("check", finding.check.clone().into()), ("status", status.to_string().into())];
            self.findings.get_or_create(&labels).set((status == finding.status).into());
        }
    }

    /// Takes over the counters of the source.
    pub fn set_kernel(&self, counts: &[HookCount]) {
        for count in counts {
            let labels = vec![("hook", count.hook.into())];
            self.attached.get_or_create(&labels).set(count.attached.into());
            self.events.get_or_create(&labels).inner().store(count.events, Ordering::Relaxed);
            if let Some((runs, seconds)) = count.runs {
                self.runs.get_or_create(&labels).inner().store(runs, Ordering::Relaxed);
                // The counter stores the bits of a float.
                self.run_seconds.get_or_create(&labels).inner().store(seconds.to_bits(), Ordering::Relaxed);
            }
        }
    }

    /// Takes over how many records this sink could not write so far.
    pub fn set_dropped(&self, sink: &'static str, records: u64) {
        self.dropped.get_or_create(&vec![("sink", sink.into())]).inner().store(records, Ordering::Relaxed);
    }

    fn count_verdict(&mut self, decision: &Decision, verdict: &VerdictBody, now_boot_ns: Option<u64>) {
        let (cause, outcome) = (verdict.verdict.cause, verdict.verdict.outcome);
        let was_counted = decision.replaces.is_some_and(|before| before.0 == cause && is_counted(before));
        if was_counted || !is_counted((cause, outcome)) {
            return;
        }
        let mut labels: Labels = vec![("cause", cause.name().into()), ("subject", verdict.subject.to_string().into())];
        labels.extend(probe(verdict.probe.as_ref()));
        labels.push(("confidence", verdict.verdict.confidence.to_string().into()));
        self.inc(Of::Verdicts, labels, verdict.k8s.as_ref());
        if let Some(now) = now_boot_ns {
            self.latency.observe(seconds(now.saturating_sub(decision.time_boot_ns)));
        }
    }

    fn count_attempt(&mut self, attempt: &AttemptBody) {
        if attempt.outcome == Some(Outcome::Open) {
            return;
        }
        let outcome = attempt.outcome.map_or_else(|| "unknown".to_owned(), |outcome| outcome.to_string());
        let mut labels: Labels = vec![("outcome", outcome.into())];
        labels.extend(probe(attempt.probe.as_ref()));
        self.inc(Of::Attempts, labels, attempt.k8s.as_ref());
    }

    /// Adds one to this series. With pod labels, that is the pod's own series.
    fn inc(&mut self, of: Of, mut labels: Labels, k8s: Option<&K8s>) {
        let gone = self.pods.as_mut().map(|pods| pods.label(of, &mut labels, k8s)).unwrap_or_default();
        for (of, old) in gone {
            self.family(of).remove(&old);
        }
        self.family(of).get_or_create(&labels).inc();
    }

    const fn family(&self, of: Of) -> &Counters {
        match of {
            Of::Verdicts => &self.verdicts,
            Of::Attempts => &self.attempts,
        }
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn unix_seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// A failure, or a success that misleads. A failure that was no failure in the end has the cause of one, and no alert may
/// take it for one.
fn is_counted((cause, outcome): (Cause, Outcome)) -> bool {
    outcome == Outcome::Failure || cause.severity() == Severity::Info
}

/// `probe_type` and `handler`. They are empty if no spec is known, or if several different ones fit.
fn probe(probe: Option<&Probe>) -> [(&'static str, Cow<'static, str>); 2] {
    let kind = probe.and_then(|p| p.probe_type).map(|kind| kind.to_string()).unwrap_or_default();
    let handler = probe.and_then(|p| p.handler).map(|handler| handler.to_string()).unwrap_or_default();
    [("probe_type", kind.into()), ("handler", handler.into())]
}

#[expect(clippy::cast_precision_loss, reason = "a latency is far below 2^52 ns")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The metrics as text: the Prometheus text format 0.0.4, which every scraper reads.
pub fn text(registry: &Registry) -> String {
    let mut open_metrics = String::new();
    // Writing to a string does not fail.
    let _ = encoding::text::encode(&mut open_metrics, registry);
    classic(&open_metrics)
}

/// Converts OpenMetrics. It names a counter's family without `_total`, and ends with `# EOF`. The older format gives the
/// family the name of its samples, and has no end mark.
fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + 256);
    let mut help = None;
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            help = line.strip_prefix("# HELP ");
            continue;
        }
        let suffix = if line.ends_with(" counter") { "_total" } else { "" };
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if let Some((_, says)) = help.take().and_then(|help| help.split_once(' ')) {
                out.push_str(&format!("# HELP {name}{suffix} {says}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests;
