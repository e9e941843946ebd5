//! Probes that still succeed but use most of their timeout. A finding is emitted when this begins and when it ends.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::json;

use super::probe_key::{ProbeKey, about, place};
use super::starts::Starts;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Named;
use tracer_case::finding::Finding;
use tracer_model::recent::Recent;
use tracer_model::record::{FindingBody, Status};

/// How many of a probe's latest answers the quantiles are computed from.
const MAX_LATENCIES: usize = 64;
/// The quantiles are computed after this many new answers.
const ANSWERS_PER_CHECK: usize = 32;
const MAX_PROBES: usize = 4096;
/// The latency is tight once p95 is above this share of the timeout, until p95 is below the second share.
const TIGHT: (f64, f64) = (0.5, 0.35);

#[derive(Debug, Default)]
pub(super) struct Budgets {
    latencies: Recent<ProbeKey, Latencies, MAX_PROBES>,
    starts: Starts,
}

/// The latest answers of a probe, in microseconds.
#[derive(Debug, Default)]
struct Latencies {
    micros: VecDeque<u64>,
    since_check: usize,
    tight: bool,
}

/// Quantiles of the latest answers, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Quantiles {
    p50: f64,
    p95: f64,
    max: f64,
}

impl Budgets {
    /// The first verdict on an attempt was emitted.
    pub(super) fn failed(&mut self, attempt: &Attempt, node: &Node, finding: &Finding) {
        self.starts.failed(attempt, node, finding);
    }

    /// An attempt succeeded.
    pub(super) fn answered(&mut self, attempt: &Attempt, named: &Named, node: &Node) -> Vec<FindingBody> {
        let latency = self.latency(attempt, named);
        latency.into_iter().chain(self.starts.answered(attempt, named, node)).collect()
    }

    fn latency(&mut self, attempt: &Attempt, named: &Named) -> Option<FindingBody> {
        let timeout_s = named.probe.as_ref()?.timeout_s.filter(|s| *s > 0)?;
        let (ended, _) = attempt.ended?;
        let latencies = self.latencies.or_default(ProbeKey::of(attempt.flow.dst, named)?);
        let quantiles = latencies.add(ended.saturating_sub(attempt.started) / 1000)?;
        let tight = latencies.change_tight(quantiles.p95 / (f64::from(timeout_s) * 1e3))?;
        Some(latency_finding(attempt.flow.dst, named, timeout_s, quantiles, tight))
    }
}

impl Latencies {
    /// Adds an answer; returns the quantiles after every [`ANSWERS_PER_CHECK`] answers.
    fn add(&mut self, micros: u64) -> Option<Quantiles> {
        if self.micros.len() == MAX_LATENCIES {
            self.micros.pop_front();
        }
        self.micros.push_back(micros);
        self.since_check += 1;
        if self.since_check < ANSWERS_PER_CHECK {
            return None;
        }
        self.since_check = 0;
        let mut sorted: Vec<u64> = self.micros.iter().copied().collect();
        sorted.sort_unstable();
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100) - 1).map(|us| *us as f64 / 1e3);
        Some(Quantiles { p50: at(50)?, p95: at(95)?, max: at(100)? })
    }

    /// Whether the latency is tight now; `None` if that did not change.
    fn change_tight(&mut self, share: f64) -> Option<bool> {
        let tight = share > if self.tight { TIGHT.1 } else { TIGHT.0 };
        let changed = tight != self.tight;
        self.tight = tight;
        changed.then_some(tight)
    }
}

fn latency_finding(dst: SocketAddr, named: &Named, timeout_s: u32, quantiles: Quantiles, tight: bool) -> FindingBody {
    let Quantiles { p50, p95, max } = quantiles;
    let mut body = about(dst, named, "probe_latency");
    body.observed = format!(
        "{} of {}: half of the last answers came within {p50:.1} ms, 95 % within {p95:.1} ms, the slowest took {max:.1} ms; timeoutSeconds is {timeout_s}",
        probe_words(named),
        place(dst, named)
    );
    body.expected = format!("95 % of the answers within half of timeoutSeconds ({} ms)", timeout_s * 500);
    body.why = "a late answer is a failure, even of a healthy process; a little more load can be enough".into();
    if tight {
        body.status = Status::Warn;
        let enough = (max * 3.0 / 1e3).ceil().max(f64::from(timeout_s) + 1.0);
        let fix = format!(
            "set timeoutSeconds: {enough:.0} for this probe, or find what its handler waits for (a CPU limit, a database)"
        );
        body.remediation = Some(fix.into());
    }
    let numbers =
        [("timeout_s", json!(timeout_s)), ("p50_ms", json!(p50)), ("p95_ms", json!(p95)), ("max_ms", json!(max))];
    body.fields.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
    body
}

/// "readiness probe"
fn probe_words(named: &Named) -> String {
    let kind = named.probe.as_ref().and_then(|probe| probe.probe_type);
    kind.map_or_else(|| "probe".to_owned(), |kind| format!("{kind} probe"))
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn answer(stream: &mut Stream, conn: u64, ms: u64) {
        stream.again(conn).connect().established().wait_ms(ms).answers(200).wait_ms(10_000);
    }

    /// The findings about a probe with a timeout of one second that is answered after these times.
    fn findings(times_ms: &[u64]) -> Vec<Status> {
        let mut stream = Stream::new().http_readiness().clone();
        for (conn, ms) in (100..).zip(times_ms) {
            answer(&mut stream, conn, *ms);
        }
        stream.findings().iter().map(|finding| finding.status).collect()
    }

    #[test]
    fn slow_answers_are_reported_once_when_they_begin_and_once_when_they_end() {
        let (slow, quick) = (vec![800; 48], vec![5; 96]);
        assert_eq!(findings(&slow), [Status::Warn]);
        assert_eq!(findings(&[slow, quick].concat()), [Status::Warn, Status::Ok]);
    }

    #[test]
    fn a_few_slow_answers_are_not_reported() {
        let times: Vec<u64> = (0..200).map(|n| if n % 40 == 0 { 900 } else { 10 }).collect();
        assert!(findings(&times).is_empty());
        assert!(findings(&[900; 31]).is_empty(), "too few to judge by");
    }

    #[test]
    fn the_answers_of_the_next_pod_with_the_address_are_counted_apart() {
        let mut stream = Stream::new().http_readiness().clone();
        (100..131).for_each(|conn| answer(&mut stream, conn, 800));
        stream.http_readiness_of("other");
        (131..162).for_each(|conn| answer(&mut stream, conn, 800));
        assert!(stream.findings().is_empty(), "31 of each");
    }
}
