//! The liveness or startup budget ended before the container listened.

use serde_json::json;

use super::super::evidence::evidence;
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
    let young = case.node.netns_made(netns);
    // A process that listens elsewhere has started: its port is wrong, not its start slow.
    let listeners = case.node.listeners();
    if listeners.knows(netns, case.attempt.flow.dst.port()) || (young.is_none() && listeners.any_in(netns)) {
        return None;
    }
    let found = finding(case, seen, spec, netns, young, streak.since, at);
    Some(if young.is_some() { found } else { found.with_confidence(Confidence::Likely) })
}

fn finding(
    case: &Case<'_>,
    mut seen: Vec<Evidence>,
    spec: &ProbeSpec,
    netns: Netns,
    made: Option<u64>,
    since: u64,
    at: u64,
) -> Finding {
    let budget = spec.budget_s();
    let waited = at.saturating_sub(made.unwrap_or(since)) as f64 / 1e9;
    if let Some(made) = made {
        let says = format!("network namespace {} was made", netns.0);
        seen.insert(0, evidence("netns", made, says, json!({ "netns": netns })));
    }
    let kind = if spec.probe_type == ProbeType::Startup { "startup" } else { "liveness" };
    let summary = format!(
        "{} is not listening after {waited:.1} s{}, and its {kind} probe allows {budget} s (initialDelaySeconds {} + periodSeconds {} x failureThreshold {}): the kubelet restarts it now",
        case.attempt.flow.dst,
        in_namespace(case, Some(netns)),
        spec.initial_delay_s,
        spec.period_s,
        spec.failure_threshold
    );
    Finding::failure(Label::StartupBudgetExceeded, seen, summary, mend(case, spec, waited))
}

/// The probe that would have passed, to paste: twice what was seen, in the same grid.
fn mend(case: &Case<'_>, spec: &ProbeSpec, waited: f64) -> String {
    let period = spec.period_s.max(1);
    let threshold = ((waited * 2.0) / f64::from(period)).ceil().max(f64::from(spec.failure_threshold) * 2.0) as u32;
    let port = case.attempt.flow.dst.port();
    let handler = match spec.handler {
        crate::event::Handler::Http => {
            format!("httpGet: {{path: {}, port: {port}}}", spec.path.as_deref().unwrap_or("/"))
        }
        crate::event::Handler::Tcp => format!("tcpSocket: {{port: {port}}}"),
        crate::event::Handler::Exec => "exec: {command: [...]}".to_owned(),
        crate::event::Handler::Grpc => format!("grpc: {{port: {port}}}"),
    };
    format!(
        "add a startupProbe that covers the start: startupProbe: {{{handler}, periodSeconds: {period}, failureThreshold: {threshold}}} (allows {} s)",
        period.saturating_mul(threshold)
    )
}

#[cfg(test)]
mod tests {
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
}
