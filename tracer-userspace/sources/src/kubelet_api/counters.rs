//! `/metrics/probes`: the kubelet's counters of probe results, and what was added to them between two readings.
//!
//! The kubelet counts one result of a worker (`prober_probe_total{result}`, `pkg/kubelet/prober/worker.go`), in Prometheus'
//! text format. A probe that could not be made at all (`err`) is counted by newer kubelets only.

use std::collections::BTreeMap;

use super::super::cluster::Failure;
use tracer_model::event::{FailureCount, PodRef, ProbeCounts, ProbeType};

const NAME: &str = "prober_probe_total{";
/// Probes that are remembered: 5,000 pods with three probes in each of three containers.
const MAX_SERIES: usize = 50_000;
/// Probes told of in one reading.
const MAX_FAILED: usize = 4096;

/// A probe of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    probe_type: ProbeType,
}

/// One reading, while it arrives.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Failures by probe.
    failures: BTreeMap<Series, u64>,
}

impl Reading {
    /// Takes a line of the answer in.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let text = std::str::from_utf8(line).map(str::trim).unwrap_or_default();
        if let Some(sample) = text.strip_prefix(NAME) {
            let Some((series, result, value)) = sample_of(sample) else { return Err(garbage(line)) };
            self.add(series, &result, value);
            return Ok(());
        }
        if text.starts_with('#') || is_sample(text) { Ok(()) } else { Err(garbage(line)) }
    }

    fn add(&mut self, series: Series, result: &str, value: u64) {
        if result == "successful" || self.failures.len() >= MAX_SERIES && !self.failures.contains_key(&series) {
            return;
        }
        let failures = self.failures.entry(series).or_default();
        *failures = failures.saturating_add(value);
    }
}

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// When it was asked for, CLOCK_BOOTTIME nanoseconds, and what it was.
    last: Option<(u64, Reading)>,
}

impl Counters {
    /// What a reading adds to the one before; the first begins the count. `asked` and `answered`: CLOCK_BOOTTIME
    /// nanoseconds.
    pub(super) fn take(&mut self, reading: Reading, asked: u64, answered: u64) -> Option<ProbeCounts> {
        let Some((from, before)) = self.last.replace((asked, reading)) else {
            return Some(ProbeCounts { from_boot_ns: answered, to_boot_ns: answered, failed: Vec::new() });
        };
        let (_, now) = self.last.as_ref()?;
        let failed: Vec<FailureCount> =
            now.failures.iter().filter_map(|it| added(it, &before)).take(MAX_FAILED).collect();
        (!failed.is_empty()).then_some(ProbeCounts { from_boot_ns: from, to_boot_ns: answered, failed })
    }
}

/// A counter that is lower than before began again: with the kubelet, or with the pod.
fn added((series, now): (&Series, &u64), before: &Reading) -> Option<FailureCount> {
    let before = before.failures.get(series).copied().filter(|before| before <= now).unwrap_or_default();
    let failures = now.saturating_sub(before);
    let Series { namespace, pod, uid, container, probe_type } = series.clone();
    let some = |text: String| Some(text).filter(|it| !it.is_empty());
    let pod = PodRef { namespace: some(namespace), name: some(pod), uid: some(uid) };
    (failures > 0).then_some(FailureCount { pod, container, probe_type, failures })
}

/// What follows the `{`: labels, `}`, value.
fn sample_of(text: &str) -> Option<(Series, String, u64)> {
    let (labels, value) = labels(text)?;
    let get = |name: &str| labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.clone());
    let series = Series {
        namespace: get("namespace")?,
        pod: get("pod")?,
        uid: get("pod_uid").unwrap_or_default(),
        container: get("container")?,
        probe_type: ProbeType::from_kubelet(&get("probe_type")?)?,
    };
    // Large ones are written as 1.5e+06.
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then_some((series, get("result")?, value as u64))
}

/// `a="x",b="y"} rest`
fn labels(mut text: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.push((name.trim(), value));
        text = rest;
    }
}

/// Up to the closing quote, escapes resolved.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

/// A line of another metric: `name value` or `name{…} value`.
fn is_sample(text: &str) -> bool {
    let named = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':');
    named && text.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok())
}

fn garbage(line: &[u8]) -> Failure {
    let begins: String = String::from_utf8_lossy(line).trim().chars().take(60).collect();
    Failure::Garbage(format!("not a line of metrics: {begins}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kubelet 1.20's, whole.
    pub(crate) const SAMPLE: &str = include_str!("../../../testdata/kubelet-metrics-probes.txt");

    fn reading(text: &str) -> Result<Reading, Failure> {
        let mut reading = Reading::default();
        text.lines().filter(|line| !line.is_empty()).try_for_each(|line| reading.line(line.as_bytes()))?;
        Ok(reading)
    }

    fn line(pod: &str, result: &str, value: &str) -> String {
        format!(
            "prober_probe_total{{container=\"c\",namespace=\"n\",pod=\"{pod}\",pod_uid=\"u\",probe_type=\"Readiness\",result=\"{result}\"}} {value}\n"
        )
    }

    fn counts(of: &ProbeCounts) -> Vec<(&str, u64)> {
        of.failed.iter().map(|it| (it.pod.name.as_deref().unwrap_or_default(), it.failures)).collect()
    }

    #[test]
    fn the_counters_of_a_kubelet_are_read() {
        let read = reading(SAMPLE).unwrap();
        let found: Vec<_> = read.failures.iter().map(|(it, n)| (it.container.as_str(), it.probe_type, *n)).collect();
        let expected = [
            ("exec", ProbeType::Readiness, 2),
            ("http", ProbeType::Liveness, 8),
            ("http", ProbeType::Readiness, 34),
            ("tcp", ProbeType::Readiness, 12),
            ("web", ProbeType::Liveness, 3),
            ("web", ProbeType::Readiness, 7),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_added_is_told_with_its_time() {
        let mut counters = Counters::default();
        let first = counters.take(reading(SAMPLE).unwrap(), 10, 20).unwrap();
        assert_eq!((first.from_boot_ns, first.to_boot_ns, first.failed.len()), (20, 20, 0), "the count begins");
        assert_eq!(counters.take(reading(SAMPLE).unwrap(), 30, 40), None, "nothing failed");
        let more = SAMPLE.replace("result=\"failed\"} 34", "result=\"failed\"} 37");
        let told = counters.take(reading(&(more + &line("new", "failed", "1.5e+06"))).unwrap(), 50, 60).unwrap();
        assert_eq!((told.from_boot_ns, told.to_boot_ns), (30, 60));
        assert_eq!(counts(&told), [("target-rig-node", 3), ("new", 1_500_000)]);
        assert_eq!(told.failed[0].pod.uid.as_deref(), Some("761c395d27727576796af2646f1186d4"));
    }

    /// A new process counts from zero.
    #[test]
    fn a_counter_that_went_back_began_again() {
        let mut counters = Counters::default();
        counters.take(reading(&line("a", "failed", "9")).unwrap(), 0, 1);
        let told = counters.take(reading(&line("a", "failed", "2")).unwrap(), 2, 3).unwrap();
        assert_eq!(counts(&told), [("a", 2)]);
        counters.take(reading("").unwrap(), 4, 5);
        assert_eq!(
            counters.take(reading(&line("a", "failed", "1")).unwrap(), 6, 7).map(|it| counts(&it).len()),
            Some(1)
        );
    }

    #[test]
    fn failed_and_unknown_are_both_failures() {
        let mut counters = Counters::default();
        counters.take(reading("").unwrap(), 0, 1);
        let text = [line("a", "failed", "1"), line("a", "unknown", "2"), line("a", "successful", "50")].concat();
        assert_eq!(counts(&counters.take(reading(&text).unwrap(), 2, 3).unwrap()), [("a", 3)]);
    }

    #[test]
    fn other_metrics_are_passed_over_and_nonsense_is_refused() {
        let other =
            "# TYPE x histogram\nprober_probe_duration_seconds_bucket{pod=\"a b\",le=\"+Inf\"} 5\nx 1e-05\nx NaN\n";
        assert!(reading(other).is_ok());
        for text in
            ["<html>", "{\"kind\":\"Status\"}", "prober_probe_total{pod=\"a} 1", "prober_probe_total{} 1", "\u{0}\u{1}"]
        {
            assert!(matches!(reading(text), Err(Failure::Garbage(_))), "{text}");
        }
        assert!(Reading::default().line(b"\xff\xfe 1").is_err());
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let escaped = line("a\\\"},\\\\x\\n", "failed", "1");
        let read = reading(escaped.trim_end()).unwrap();
        assert_eq!(read.failures.keys().next().map(|it| it.pod.as_str()), Some("a\"},\\x\n"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut reading = Reading::default();
        for n in 0..MAX_SERIES + 10 {
            reading.line(line(&n.to_string(), "failed", "1").as_bytes()).unwrap();
        }
        assert_eq!(reading.failures.len(), MAX_SERIES);
        let mut counters = Counters::default();
        counters.take(Reading::default(), 0, 1);
        assert_eq!(counters.take(reading, 2, 3).map(|it| it.failed.len()), Some(MAX_FAILED));
    }
}
