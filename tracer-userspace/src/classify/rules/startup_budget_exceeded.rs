//! The liveness or startup budget ended before the container listened.

use serde_json::json;

use super::super::evidence::evidence;
use super::super::{history, startup_probe};
use super::connection_refused::refused;
use super::{Case, Finding, Label, in_namespace};
use crate::enrich;
use crate::event::{Netns, ProbeSpec, ProbeType};
use crate::record::{Confidence, Evidence};

/// Attempts lie on a grid of whole periods; the kubelet jitters its start.
const SLACK_NS: u64 = 500_000_000;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (seen, netns) = refused(case)?;
    let (netns, streak) = (netns?, case.streak?);
    let at = seen.iter().map(|e| e.time_boot_ns).max()?;
    let spec = enrich::restarting_probe(case.attempt, case.node)?;
    let needed = u64::from(spec.failure_threshold.saturating_sub(1)) * u64::from(spec.period_s) * 1_000_000_000;
    let lasted = at.saturating_sub(streak.since);
    if spec.failure_threshold == 0 || lasted + SLACK_NS < needed || streak.count < spec.failure_threshold {
        return None;
    }
    let start = Start { run: history::began(case, at), made: case.node.netns_made(netns) };
    if start.is_over(case, netns) {
        return None;
    }
    let found = finding(case, seen, spec, netns, start, streak.since, at);
    Some(if start.is_seen() { found } else { found.with_confidence(Confidence::Likely) })
}

/// When the start began, as far as the tracer saw it.
#[derive(Clone, Copy)]
struct Start {
    /// This run of the container.
    run: Option<u64>,
    /// The pod's network namespace.
    made: Option<u64>,
}

impl Start {
    const fn is_seen(self) -> bool {
        self.run.is_some() || self.made.is_some()
    }

    /// The port was listened on since. A process that listens elsewhere has started, too: its port is wrong, not its
    /// start slow.
    fn is_over(self, case: &Case<'_>, netns: Netns) -> bool {
        let (listeners, port) = (case.node.listeners(), case.attempt.flow.dst.port());
        let here = match self.run {
            Some(began) => listeners.heard_since(netns, port, began),
            None => listeners.knows(netns, port),
        };
        let elsewhere = || self.run.map_or_else(|| listeners.any_in(netns), |began| listeners.any_since(netns, began));
        here || (self.made.is_none() && elsewhere())
    }
}

fn finding(
    case: &Case<'_>,
    mut seen: Vec<Evidence>,
    spec: &ProbeSpec,
    netns: Netns,
    start: Start,
    since: u64,
    at: u64,
) -> Finding {
    let budget = spec.budget_s();
    let waited = at.saturating_sub(start.run.or(start.made).unwrap_or(since)) as f64 / 1e9;
    // A run is known by whole seconds.
    let after = if start.run.is_some() { format!("{waited:.0} s") } else { format!("{waited:.1} s") };
    if let Some(began) = start.run {
        seen.insert(0, history::of_start(case, began));
    } else if let Some(made) = start.made {
        let says = format!("network namespace {} was made", netns.0);
        seen.insert(0, evidence("netns", made, says, json!({ "netns": netns })));
    }
    let kind = if spec.probe_type == ProbeType::Startup { "startup" } else { "liveness" };
    let summary = format!(
        "{} is not listening after {after}{}, and its {kind} probe allows {budget} s (initialDelaySeconds {} + periodSeconds {} x failureThreshold {}): the kubelet restarts it now{}",
        case.attempt.flow.dst,
        in_namespace(case, Some(netns)),
        spec.initial_delay_s,
        spec.period_s,
        spec.failure_threshold,
        history::and_before(case).unwrap_or_default()
    );
    Finding::failure(Label::StartupBudgetExceeded, seen, summary, mend(spec, waited))
}

/// The probe that would have passed, to paste: twice what was seen, in the same grid.
fn mend(spec: &ProbeSpec, waited: f64) -> String {
    let probe = startup_probe::that_allows(waited * 2.0, spec);
    format!("add a startupProbe that covers the start: {probe}")
}

#[cfg(test)]
mod tests {
    use crate::event::{Ended, Runs};
    use crate::record::Confidence;
    use crate::testing::{POD, SYN, Stream};

    /// Refused attempts, one each second, of a pod whose only probe is a liveness probe with threshold 3.
    fn refusals(count: u64) -> Stream {
        let mut stream = Stream::new();
        stream.liveness(1, 3).netns_made(POD);
        for number in 0..count {
            stream.again(100 + number).connect().reset_sent(SYN, true, None).wait_ms(1000);
        }
        stream
    }

    #[test]
    fn the_refusal_that_fills_the_threshold_is_the_one() {
        let stream = refusals(3);
        assert_eq!(stream.labels(), ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"]);
        let last = &stream.verdicts()[2].verdict;
        assert!(last.remediation.contains("failureThreshold: 6"), "{}", last.remediation);
    }

    #[test]
    fn a_listener_on_the_port_ends_the_start() {
        let mut stream = refusals(2);
        stream.listens(POD, 8080, true).listens(POD, 8080, false);
        stream.again(200).connect().reset_sent(SYN, true, None);
        assert_eq!(stream.labels().last(), Some(&"connection_refused"));
    }

    /// A container that is restarted again and again, its sandbox older than the tracer, its status known.
    fn restarted(restarts: u32, last: Option<Ended>) -> Stream {
        let mut stream = Stream::new();
        stream.liveness(1, 3).wait_ms(5_000);
        run(&mut stream, restarts, last);
        stream
    }

    /// The container was started just now.
    fn run(stream: &mut Stream, restarts: u32, last: Option<Ended>) {
        let started_boot_ns = Some(stream.seconds_ago(0));
        stream.runs(Runs { restarts, started_boot_ns, last, ..Runs::default() }).wait_ms(200);
    }

    fn refuse(stream: &mut Stream, from: u64, count: u64) {
        for conn in from..from + count {
            stream.again(conn).connect().reset_sent(SYN, true, None).wait_ms(1000);
        }
    }

    fn killed(ran_s: u64, reason: &str, exit_code: i32) -> Ended {
        let (started_boot_ns, finished_boot_ns) = (Some(1_000_000_000), Some((ran_s + 1) * 1_000_000_000));
        Ended { exit_code, reason: Some(reason.into()), started_boot_ns, finished_boot_ns, id: None }
    }

    #[test]
    fn a_start_that_the_status_shows_is_proven_and_begins_there() {
        let mut stream = restarted(4, Some(killed(3, "Error", 137)));
        refuse(&mut stream, 100, 3);
        let verdicts = stream.verdicts();
        let last = &verdicts[2].verdict;
        assert_eq!((last.label.name(), last.confidence), ("startup_budget_exceeded", Confidence::Proven));
        assert!(last.summary.contains("is not listening after 2 s in"), "{}", last.summary);
        assert!(last.summary.contains("so it went with the run before, which ended after 3 s"), "{}", last.summary);
        assert_eq!(last.evidence[0].hook, "container_status");
        assert!(last.remediation.ends_with("failureThreshold: 6} (allows 6 s)"), "{}", last.remediation);
    }

    /// The kernel ended it, or it ended itself, at the time at which its budget was over.
    #[test]
    fn a_run_that_ended_otherwise_is_not_counted_to_the_budget() {
        for last in [killed(3, "OOMKilled", 137), killed(3, "Error", 1)] {
            let mut stream = restarted(4, Some(last));
            refuse(&mut stream, 100, 3);
            let verdicts = stream.verdicts();
            let verdict = &verdicts[2].verdict;
            assert_eq!(verdict.label.name(), "startup_budget_exceeded", "this run is another matter");
            assert!(!verdict.summary.contains("the run before"), "{}", verdict.summary);
        }
    }

    /// Each run has a budget of its own: the first refusal of the next one spends nothing of the last.
    #[test]
    fn a_restart_begins_a_new_count() {
        let mut stream = restarted(4, None);
        refuse(&mut stream, 100, 3);
        run(&mut stream, 5, Some(killed(3, "Error", 137)));
        refuse(&mut stream, 200, 3);
        let run = ["not_listening_yet", "not_listening_yet", "startup_budget_exceeded"];
        assert_eq!(stream.labels(), [run, run].concat());
    }

    #[test]
    fn a_run_that_has_listened_has_started() {
        let mut stream = restarted(4, None);
        stream.listens(POD, 8080, true).listens(POD, 8080, false);
        refuse(&mut stream, 100, 3);
        assert_eq!(stream.labels(), ["connection_refused"; 3]);
        let mut elsewhere = restarted(4, None);
        elsewhere.listens(POD, 9090, true);
        refuse(&mut elsewhere, 100, 3);
        assert_eq!(elsewhere.labels(), ["connection_refused"; 3]);
    }

    /// A run that began before the tracer may have listened then.
    #[test]
    fn a_start_before_the_tracer_is_not_proven() {
        let mut stream = Stream::new();
        stream.liveness(1, 3).runs(Runs { restarts: 4, started_boot_ns: Some(1), ..Runs::default() });
        refuse(&mut stream, 100, 3);
        let last = stream.verdicts().remove(2).verdict;
        assert_eq!((last.label.name(), last.confidence), ("startup_budget_exceeded", Confidence::Likely));
    }
}
