//! Slow starts: the container became ready shortly before the kubelet would have restarted it. Reported once for each
//! start.
//!
//! tracer compares two times after the start: the last failed attempt of the startup or liveness probe, and the
//! earliest possible restart. Neither the whole seconds of the status nor the period of the probe can make that wrong.
//! A long initialDelaySeconds alone is no slow start.

use std::net::SocketAddr;

use serde_json::json;

use super::probe_key::{about, place};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::{Matched, Named};
use tracer_case::finding::Finding;
use tracer_case::startup_probe;
use tracer_model::event::{ProbeSpec, ProbeType};
use tracer_model::recent::Recent;
use tracer_model::record::{FindingBody, Outcome, Status, Trait};

const MAX_KEPT: usize = 4096;
/// A start is reported if an attempt fails after this share of the time to the earliest restart.
const NARROW: f64 = 0.7;
/// The status of a container has times in whole seconds.
const RESOLUTION_NS: u64 = 1_000_000_000;

/// The starts of containers.
#[derive(Debug, Default)]
pub(super) struct Starts {
    runs: Recent<ContainerKey, Option<Run>, MAX_KEPT>,
}

/// Pod and container.
type ContainerKey = (Option<String>, Option<String>);

/// What was observed of the current run of a container.
#[derive(Clone, Copy, Debug)]
struct Run {
    began: u64,
    /// When the last failed attempt before the first success began.
    failed: Option<u64>,
    /// When the first attempt that succeeded began, and its target.
    answered: Option<(u64, SocketAddr)>,
    reported: bool,
}

impl Starts {
    /// The first verdict on an attempt was emitted.
    pub(super) fn failed(&mut self, attempt: &Attempt, node: &Node, finding: &Finding) {
        let matched = Matched::new(attempt, node);
        let is_of_start = matched.start_probe().is_some();
        if finding.outcome != Outcome::Failure || !finding.cause.has(Trait::NotReady) || !is_of_start {
            return;
        }
        // An answer to a readiness probe alone does not count. If no process listens, each probe fails.
        let kind = matched.probe_type();
        if attempt.established.is_some() && !matches!(kind, Some(ProbeType::Startup | ProbeType::Liveness)) {
            return;
        }
        if let Some(run) = self.run(attempt, node).filter(|run| run.answered.is_none()) {
            run.failed = Some(attempt.started);
        }
    }

    /// An attempt succeeded. A start is reported at the second success of any probe: the status may show a restart
    /// late, but shows it by then.
    pub(super) fn answered(&mut self, attempt: &Attempt, named: &Named, node: &Node) -> Option<FindingBody> {
        let run = self.run(attempt, node)?;
        let Some((answered, dst)) = run.answered else {
            let is_of_start = Matched::new(attempt, node).start_probe().is_some();
            run.answered = is_of_start.then_some((attempt.started, attempt.flow.dst));
            return None;
        };
        let reported = std::mem::replace(&mut run.reported, true);
        let (began, failed) = (run.began, run.failed.filter(|_| !reported)?);
        let (_, container) = Matched::new(attempt, node).probed_container()?;
        let spec = container.start_probe().filter(|spec| is_narrow(spec, failed.saturating_sub(began)))?;
        let start = ReportedStart { dst, restarts: container.runs.as_ref()?.restarts, began, failed, answered };
        (node.lost_between(began, answered) == 0).then(|| start.finding(named, spec))
    }

    /// The current run of the container, if tracer was there when it began.
    fn run(&mut self, attempt: &Attempt, node: &Node) -> Option<&mut Run> {
        let matched = Matched::new(attempt, node);
        let began = matched.run_began(attempt.started)?;
        let (pod, container) = matched.probed_container()?;
        let key = (pod.uid.clone().or_else(|| pod.name.clone()), container.name.clone());
        let run = self.runs.or_default(key);
        if run.is_some_and(|run| run.began != began) {
            *run = None;
        }
        Some(run.get_or_insert(Run { began, failed: None, answered: None, reported: false }))
    }
}

/// The container still failed this long after its start, and the kubelet could have restarted it soon after.
fn is_narrow(spec: &ProbeSpec, failed_after_ns: u64) -> bool {
    let surely = failed_after_ns.saturating_sub(RESOLUTION_NS) as f64 / 1e9;
    let earliest = f64::from(spec.earliest_restart_s());
    earliest > 0.0 && surely >= earliest * NARROW
}

/// A start to report. Times are CLOCK_BOOTTIME nanoseconds.
struct ReportedStart {
    dst: SocketAddr,
    restarts: u32,
    began: u64,
    failed: u64,
    answered: u64,
}

impl ReportedStart {
    fn finding(&self, named: &Named, spec: &ProbeSpec) -> FindingBody {
        let after = |time: u64| time.saturating_sub(self.began) as f64 / 1e9;
        let (took_s, failed_s) = (after(self.answered), after(self.failed));
        let (kind, earliest, budget) = (spec.probe_type, spec.earliest_restart_s(), spec.budget_s());
        let mut body = about(self.dst, named, "probe_start");
        body.status = Status::Warn;
        body.observed = format!(
            "{} failed its {kind} probe until {failed_s:.0} s after its container was started, and answered it after {took_s:.0} s; the kubelet ends it after {earliest} to {budget} s (initialDelaySeconds {} + periodSeconds {} x failureThreshold {})",
            place(self.dst, named),
            spec.initial_delay_s,
            spec.period_s,
            spec.failure_threshold
        );
        body.expected = format!("the last failed attempt of a start within {:.0} % of {earliest} s", NARROW * 100.0);
        body.why = "a start that takes a little longer, on a busy node or after an upgrade, is ended by the kubelet, again and again".into();
        body.remediation = Some(fix(spec, took_s).into());
        let numbers = [
            ("probe", json!(kind)),
            ("took_s", json!(took_s)),
            ("last_failed_s", json!(failed_s)),
            ("earliest_restart_s", json!(earliest)),
            ("budget_s", json!(budget)),
            ("restarts", json!(self.restarts)),
        ];
        body.fields.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
        body
    }
}

fn fix(spec: &ProbeSpec, took_s: f64) -> String {
    let probe = startup_probe::that_allows(took_s * 3.0, spec);
    let what = if spec.probe_type == ProbeType::Startup {
        "let its startup probe allow more"
    } else {
        "give it a startup probe"
    };
    format!("{what}: {probe}")
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// A liveness probe with periodSeconds 10 and failureThreshold 3: the kubelet restarts the container after 20 to 30
    /// s. The container starts in the middle of a second.
    fn started() -> Stream {
        let mut stream = Stream::new().liveness(10, 3).wait_ms(5_000).clone();
        start(&mut stream, 0);
        stream
    }

    fn start(stream: &mut Stream, restarts: u32) {
        let started_boot_ns = Some(stream.seconds_ago(0));
        stream.runs(Runs { restarts, started_boot_ns, ..Runs::default() }).wait_ms(500);
    }

    fn refused(stream: &mut Stream, conn: u64) {
        stream.again(conn).connect().refused().wait_ms(10_000);
    }

    fn answer(stream: &mut Stream, conn: u64, status: u16) {
        stream.again(conn).connect().established().answers(status).wait_ms(10_000);
    }

    /// How many starts are reported if two attempts fail so, and the next four succeed.
    fn count(stream: &mut Stream, fails: fn(&mut Stream, u64)) -> usize {
        (100..102).for_each(|conn| fails(stream, conn));
        (200..204).for_each(|conn| answer(stream, conn, 200));
        stream.findings().len()
    }

    /// The findings about a start with its first attempt `first_ms` after the container.
    fn reported(first_ms: u64, failures: u64) -> Vec<FindingBody> {
        let mut stream = started();
        stream.wait_ms(first_ms);
        (0..failures).for_each(|number| refused(&mut stream, 100 + number));
        (0..4).for_each(|number| answer(&mut stream, 200 + number, 200));
        stream.findings()
    }

    #[test]
    fn a_start_that_nearly_took_too_long_is_reported_once_with_a_startup_probe() {
        let reported = reported(7_000, 2);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert_eq!((reported[0].check.as_str(), reported[0].status), ("probe_start", Status::Warn));
        let expected = "default/web app (10.88.0.2:8080) failed its liveness probe until 18 s after its container was started, and answered it after 28 s; the kubelet ends it after 20 to 30 s";
        assert_starts(&reported[0].observed, expected);
        let fix = reported[0].remediation.clone().unwrap_or_default().text;
        assert_eq!(
            fix,
            "give it a startup probe: startupProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 10, failureThreshold: 9} (allows 90 s). Copy httpHeaders and the query of the path from the present probe, if it has them"
        );
        assert_eq!(reported[0].fields["budget_s"], 30);
    }

    /// The period is too long to show a slow start: a container that is ready after 3 s may be probed after 9 s.
    #[test]
    fn a_start_that_may_have_been_quick_is_not_reported() {
        assert!(reported(2_000, 1).is_empty(), "failed at 2.5 s, answered at 12.5");
        assert!(reported(4_000, 2).is_empty(), "failed at 14.5 s, of which one is the clock's");
        assert!(reported(28_000, 0).is_empty(), "never seen to fail: it may have been ready for long");
    }

    #[test]
    fn a_start_before_the_run_of_tracer_is_not_reported() {
        let reported = |runs: Option<u64>| {
            let mut stream = Stream::new();
            stream.liveness(10, 3).runs(Runs { restarts: 2, started_boot_ns: runs, ..Runs::default() }).wait_ms(7_500);
            count(&mut stream, refused)
        };
        assert_eq!(reported(None), 0);
        assert_eq!(reported(Some(900_000_000)), 0, "it began before tracer");
        assert_eq!(reported(Some(1_000_001_000)), 1, "tracer was there when it began");
    }

    #[test]
    fn each_slow_start_is_reported_but_no_later_failure() {
        let mut stream = started();
        stream.wait_ms(7_000);
        (100..102).for_each(|conn| refused(&mut stream, conn));
        (200..203).for_each(|conn| answer(&mut stream, conn, 200));
        // Failures after the start.
        (300..302).for_each(|conn| refused(&mut stream, conn));
        (400..403).for_each(|conn| answer(&mut stream, conn, 200));
        assert_eq!(stream.findings().len(), 1);
        start(&mut stream, 1);
        stream.wait_ms(7_000);
        (500..502).for_each(|conn| refused(&mut stream, conn));
        (600..603).for_each(|conn| answer(&mut stream, conn, 200));
        assert_eq!(stream.findings().len(), 2);
    }

    /// The restart reaches the API only after the first success.
    #[test]
    fn a_restart_that_the_api_shows_late_or_lost_events_make_no_long_start() {
        let count = |meanwhile: fn(&mut Stream)| {
            let mut stream = started();
            stream.wait_ms(7_000);
            (100..102).for_each(|conn| refused(&mut stream, conn));
            meanwhile(&mut stream);
            (201..205).for_each(|conn| answer(&mut stream, conn, 200));
            stream.findings().len()
        };
        let restarts = |stream: &mut Stream| {
            answer(stream, 200, 200);
            start(stream, 1);
        };
        assert_eq!(count(restarts), 0);
        assert_eq!(count(|stream| _ = stream.lost(1)), 0);
    }

    /// A readiness probe on the same port may fail for any time.
    #[test]
    fn a_failure_status_counts_only_if_it_is_surely_of_the_liveness_probe() {
        let failed: fn(&mut Stream, u64) = |stream, conn| answer(stream, conn, 503);
        assert_eq!(count(started().readiness_too().wait_ms(7_000), failed), 0);
        assert_eq!(count(started().wait_ms(7_000), failed), 1);
    }

    #[test]
    fn other_failures_are_no_slow_start() {
        let dropped: fn(&mut Stream, u64) =
            |stream, conn| _ = stream.again(conn).connect().filtered(SYN, POD).gives_up().wait_ms(9_000);
        assert_eq!(count(started().wait_ms(7_000), dropped), 0);
        let after_a_command = count(started().exec_startup_too().wait_ms(60_000), refused);
        assert_eq!(after_a_command, 0, "the liveness probe begins when the startup probe has succeeded");
    }
}
