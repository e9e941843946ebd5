//! Probes that still succeed and soon may not: answers that take most of the timeout. Reported once, and once more when it
//! is over.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::json;

use super::probe_key::{ProbeKey, about, place};
use super::starts::Starts;
use crate::classify::finding::Finding;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Named;
use tracer_model::recent::Recent;
use tracer_model::record::{FindingBody, Status};

/// Answers of a probe that are looked at together.
const KEPT: usize = 64;
/// They are looked at after every so many.
const EVERY: usize = 32;
const MAX_KEPT: usize = 4096;
/// The share of the timeout above which 95 % of the answers are reported, and below which that is over.
const TIGHT: (f64, f64) = (0.5, 0.35);

/// What was observed of each probe, and of starts.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    latencies: Recent<ProbeKey, Latencies, MAX_KEPT>,
    starts: Starts,
}

/// The latest answers of a probe, in microseconds.
#[derive(Debug, Default)]
struct Latencies {
    kept: VecDeque<u64>,
    since_sweep: usize,
    tight: bool,
}

/// What they come to, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Quantiles {
    half: f64,
    most: f64,
    slowest: f64,
}

impl Budgets {
    /// A verdict on an attempt was reported for the first time.
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
        let tight = latencies.turns(quantiles.most / (f64::from(timeout_s) * 1e3))?;
        Some(latency_finding(attempt.flow.dst, named, timeout_s, quantiles, tight))
    }
}

impl Latencies {
    /// One more; the quantiles if it is time to look at them.
    fn add(&mut self, micros: u64) -> Option<Quantiles> {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(micros);
        self.since_sweep += 1;
        if self.since_sweep < EVERY {
            return None;
        }
        self.since_sweep = 0;
        let mut sorted: Vec<u64> = self.kept.iter().copied().collect();
        sorted.sort_unstable();
        let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100) - 1).map(|us| *us as f64 / 1e3);
        Some(Quantiles { half: at(50)?, most: at(95)?, slowest: at(100)? })
    }

    /// Whether it is tight now, if it was not so before, or the other way round.
    fn turns(&mut self, share: f64) -> Option<bool> {
        let tight = share > if self.tight { TIGHT.1 } else { TIGHT.0 };
        let turned = tight != self.tight;
        self.tight = tight;
        turned.then_some(tight)
    }
}

fn latency_finding(dst: SocketAddr, named: &Named, timeout_s: u32, seen: Quantiles, tight: bool) -> FindingBody {
    let Quantiles { half, most, slowest } = seen;
    let mut body = about(dst, named, "probe_latency");
    body.observed = format!(
        "{} of {}: half of the last answers came within {half:.1} ms, 95 % within {most:.1} ms, the slowest took {slowest:.1} ms; timeoutSeconds is {timeout_s}",
        words(named),
        place(dst, named)
    );
    body.expected = format!("95 % of the answers within half of timeoutSeconds ({} ms)", timeout_s * 500);
    body.why = "an answer that comes after the timeout is a failure, however well the process is: a little more load is enough".into();
    if tight {
        body.status = Status::Warn;
        let enough = (slowest * 3.0 / 1e3).ceil().max(f64::from(timeout_s) + 1.0);
        let fix = format!(
            "set timeoutSeconds: {enough:.0} for this probe, or find what its handler waits for (a CPU limit, a database)"
        );
        body.remediation = Some(fix.into());
    }
    let numbers =
        [("timeout_s", json!(timeout_s)), ("p50_ms", json!(half)), ("p95_ms", json!(most)), ("max_ms", json!(slowest))];
    body.fields.extend(numbers.map(|(name, value)| (name.to_owned(), value)));
    body
}

/// "readiness probe"
fn words(named: &Named) -> String {
    let kind = named.probe.as_ref().and_then(|probe| probe.probe_type);
    kind.map_or_else(|| "probe".to_owned(), |kind| format!("{} probe", kind.name()))
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn answer(stream: &mut Stream, conn: u64, ms: u64) {
        stream.again(conn).connect().established().wait_ms(ms).closes((100, 101, 200)).wait_ms(10_000);
    }

    /// Answers of a probe with a timeout of one second.
    fn answers(times_ms: &[u64]) -> Vec<Status> {
        let mut stream = Stream::new().http_readiness().clone();
        for (conn, ms) in (100..).zip(times_ms) {
            answer(&mut stream, conn, *ms);
        }
        stream.findings().iter().map(|finding| finding.status).collect()
    }

    #[test]
    fn answers_near_the_timeout_are_reported_once_and_their_end_once() {
        let (slow, quick) = (vec![800; 48], vec![5; 96]);
        assert_eq!(answers(&slow), [Status::Warn]);
        assert_eq!(answers(&[slow, quick].concat()), [Status::Warn, Status::Ok]);
    }

    #[test]
    fn a_slow_answer_now_and_then_is_no_news() {
        let times: Vec<u64> = (0..200).map(|n| if n % 40 == 0 { 900 } else { 10 }).collect();
        assert!(answers(&times).is_empty());
        assert!(answers(&[900; 31]).is_empty(), "too few to judge by");
    }

    /// The next pod with that address begins again.
    #[test]
    fn another_pods_answers_are_its_own() {
        let mut stream = Stream::new().http_readiness().clone();
        (100..131).for_each(|conn| answer(&mut stream, conn, 800));
        stream.http_readiness_of("other");
        (131..162).for_each(|conn| answer(&mut stream, conn, 800));
        assert!(stream.findings().is_empty(), "31 of each");
    }
}
