//! What is kept of the records while they are read: counts, and a bounded number of examples.

mod ends;
mod events;
mod pods;
mod run_verdicts;
mod scale;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher as _;

pub(crate) use self::ends::Ends;
pub(crate) use self::events::{Event, Events, Losses};
use self::pods::CountedVerdict;
pub(crate) use self::pods::{Example, Lane, Pod, Pods};
use self::run_verdicts::RunVerdicts;
pub(crate) use self::scale::Scale;
use super::line::{Fields, Line};
use tracer_model::record::{Body, Confidence, FindingBody, Outcome, Record, Repeated, StartBody, StopBody};
use tracer_output::sink::filter::{Filter, FilterHits};

/// Nodes, and checks of nodes, that are counted apart.
const NODES: usize = 4096;
/// How many of the first runs, and of the last runs, are kept.
pub(crate) const RUNS: usize = 20;

/// Records that are remembered, because another file may have them again: 9 MiB.
const REMEMBERED: usize = 900_000;

#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) node: String,
    /// When it began, µs.
    pub(crate) us: i64,
    pub(crate) start: StartBody,
    /// The totals, if the run ended.
    pub(crate) stop: Option<StopBody>,
}

/// The state after the lines read so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The time in view.
    pub(crate) scale: Scale,
    pub(crate) pods: Pods,
    pub(crate) events: Events,
    /// Times in which events were lost.
    pub(crate) losses: Losses,
    /// The newest finding of each node and check.
    pub(crate) findings: BTreeMap<(String, String), FindingBody>,
    /// Findings that there was no room for.
    pub(crate) findings_left_out: u64,
    pub(crate) runs: Ends<Run, RUNS>,
    pub(crate) attempts_by_record: u64,
    pub(crate) attempts_by_stop: u64,
    pub(crate) stops: u64,
    /// Verdicts that were replaced by later ones.
    pub(crate) revised: u64,
    /// Revisions of verdicts that were too long ago to be found: both are counted.
    pub(crate) unmatched: u64,
    /// Failures that did not pass the filter.
    filtered: u64,
    /// What is counted.
    hits: FilterHits,
    pub(crate) records: u64,
    nodes: HashMap<String, RunVerdicts>,
    /// Hashes of the first records.
    seen: HashSet<u64>,
}

impl Tally {
    /// Counts the records that pass this filter.
    pub(crate) fn new(filter: Filter) -> Self {
        Self { hits: FilterHits::new(filter), ..Self::default() }
    }

    /// Counts a record, unless it was counted before: two files may hold the same one.
    pub(crate) fn push(&mut self, line: Line<'_>, bytes: &[u8]) {
        self.records += 1;
        let hash = self.seen.hasher().hash_one(bytes);
        if self.seen.contains(&hash) {
            return;
        }
        if self.seen.len() < REMEMBERED {
            self.seen.insert(hash);
        }
        match line {
            Line::Attempt(fields, us) => {
                self.run_verdicts(&fields.node_name).see(fields.seq, false);
                match fields.verdict {
                    Some(_) => self.verdict(&fields, us, bytes),
                    None => self.attempt(&fields, us),
                }
            }
            Line::Other(record, us) => {
                let is_start = matches!(record.body, Body::Start(_));
                self.run_verdicts(&record.node_name).see(record.seq, is_start);
                self.other(*record, us);
            }
        }
    }

    /// How many failures passed the filter, and why none did; absent without a filter.
    pub(crate) fn shown(&self) -> Option<String> {
        let shown = self.pods.failures();
        self.hits.shown(shown, shown + self.filtered)
    }

    /// The same text, but only if no failure passed the filter.
    pub(crate) fn nothing_shown(&self) -> Option<String> {
        self.shown().filter(|_| self.pods.failures() == 0)
    }

    pub(crate) fn nodes(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.nodes.keys().map(String::as_str).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        names
    }

    /// The number of all attempts, if it is known.
    pub(crate) fn attempts(&self) -> Option<u64> {
        let is_counted = self.stops > 0 && self.stops == self.runs.total && !self.hits.filter.is_set();
        Some(self.attempts_by_record)
            .filter(|&attempts| attempts > 0)
            .or_else(|| is_counted.then_some(self.attempts_by_stop))
    }

    /// Counts a verdict. A verdict that it replaces is no longer counted, even if the new one does not pass the filter.
    fn verdict(&mut self, fields: &Fields<'_>, us: i64, bytes: &[u8]) {
        let Some(answer) = &fields.verdict else { return };
        let was_counted = fields.revises.is_some_and(|seq| self.revise(&fields.node_name, seq));
        let is_first = fields.revises.is_none();
        let count = Repeated::count_of(fields.repeated.as_ref());
        if !self.hits.attempt(fields.k8s.as_ref(), Some(answer.cause), &answer.also) {
            self.filtered += if !answer.group().noise && (is_first || was_counted) { count } else { 0 };
            return;
        }
        if !is_first && !was_counted {
            self.filtered = self.filtered.saturating_sub(1);
        }
        self.scale.see(us);
        let reported = CountedVerdict { us, count, group: answer.group(), confidence: answer.confidence, line: bytes };
        let counted = self.pods.count(fields.pod(), &reported, &self.scale);
        self.run_verdicts(&fields.node_name).put(fields.seq, counted);
    }

    /// Takes back the replaced verdict. Gives whether it was counted.
    fn revise(&mut self, node: &str, seq: u64) -> bool {
        let verdicts = self.run_verdicts(node);
        let (counted, reached) = (verdicts.take(seq), verdicts.reaches(seq));
        if let Some(counted) = counted {
            self.revised += 1;
            self.pods.retract(counted, &self.scale);
        } else if !reached {
            self.unmatched += 1;
        }
        counted.is_some()
    }

    /// Counts an attempt. A failed attempt also has a verdict, which counts the failure.
    fn attempt(&mut self, fields: &Fields<'_>, us: i64) {
        if !self.hits.attempt(fields.k8s.as_ref(), fields.cause, &[]) {
            return;
        }
        self.scale.see(us);
        // One that was open when tracer ended is no attempt of which all are reported.
        self.attempts_by_record += u64::from(fields.outcome != Some(Outcome::Open));
        if fields.outcome == Some(Outcome::Success) {
            self.pods.pass(fields.pod(), us, &self.scale);
        }
    }

    fn other(&mut self, record: Record, us: i64) {
        self.scale.see(us);
        let node = record.node_name;
        match record.body {
            Body::Start(start) => self.runs.push(Run { node, us, start, stop: None }),
            Body::Stop(stop) => self.stop(&node, stop),
            Body::Node(body) => self.events.push(Event { node, us, body: *body }, &self.scale),
            Body::Loss(loss) => self.losses.push(&loss, record.time_boot_ns, us),
            Body::Finding(finding) => self.finding(node, *finding),
            Body::Verdict(_) | Body::Attempt(_) => {}
        }
    }

    fn stop(&mut self, node: &str, stop: StopBody) {
        self.stops += 1;
        self.attempts_by_stop = self.attempts_by_stop.saturating_add(stop.attempts);
        // Records of several nodes may be mixed.
        if let Some(run) = self.runs.newest_mut(|run| run.node == node) {
            run.stop = Some(stop);
        }
    }

    fn finding(&mut self, node: String, finding: FindingBody) {
        let key = (node, finding.check.clone());
        if self.findings.len() < NODES || self.findings.contains_key(&key) {
            self.findings.insert(key, finding);
        } else {
            self.findings_left_out += 1;
        }
    }

    /// The verdicts of the node's run. Nodes beyond the limit share one entry.
    fn run_verdicts(&mut self, node: &str) -> &mut RunVerdicts {
        let known = self.nodes.contains_key(node) || self.nodes.len() < NODES;
        self.nodes.entry(if known { node } else { "" }.to_owned()).or_default()
    }
}

/// Confidences in the order of [`Lane::confidences`].
pub(crate) const SURE: [Confidence; 3] = [Confidence::Possible, Confidence::Likely, Confidence::Proven];

#[cfg(test)]
mod tests;
