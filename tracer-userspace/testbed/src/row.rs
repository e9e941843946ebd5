//! The results of a run: one row for each scenario.

use std::collections::BTreeMap;

use serde::Serialize;
use tracer_model::record::{Body, Cause, Confidence, Record, VerdictBody};

use crate::check::{self, Attempt, Claim};
use crate::options::kernel;
use crate::scenario::Scenario;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowOutcome {
    /// The failure happened and the verdict was right.
    Pass,
    /// The failure did not happen, or the verdict was wrong.
    Fail,
    /// This machine lacks what the scenario needs.
    Cannot,
}

/// The result of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the scenario.
    pub scenario: String,
    /// The expected cause; absent for a healthy scenario.
    pub cause: Option<&'static str>,
    /// The Service proxy; `any` if none is involved.
    pub proxy: &'static str,
    /// `v4` or `v6`.
    pub family: &'static str,
    /// Kernel release.
    pub kernel: String,
    pub result: RowOutcome,
    /// Why it did not pass, or what was measured.
    pub reason: Option<String>,
    /// How long it took.
    pub ms: u64,
    pub reported: Vec<AttemptVerdicts>,
    #[serde(skip)]
    pub proof: Option<Proof>,
    #[serde(skip)]
    pub(crate) done: Done,
}

/// What proves the verdict about a failing attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub confidence: Confidence,
    /// The hooks and sources of the evidence, without duplicates.
    pub hooks: Vec<String>,
}

impl From<&VerdictBody> for Proof {
    fn from(body: &VerdictBody) -> Self {
        let mut hooks: Vec<String> = Vec::new();
        for evidence in &body.verdict.evidence {
            if !hooks.contains(&evidence.hook) {
                hooks.push(evidence.hook.clone());
            }
        }
        Self { confidence: body.verdict.confidence, hooks }
    }
}

/// The number of attempts with the same expected and the same reported cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptVerdicts {
    /// The expected cause, or `none`.
    pub made: &'static str,
    /// The cause of the last verdict, or `none`.
    pub reported: &'static str,
    pub attempts: u32,
}

impl Row {
    /// The row of a scenario that is about to run.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: scenario.name.to_owned(),
            cause: scenario.cause.map(Cause::name),
            proxy: scenario.proxy.name(),
            family: scenario.family.name(),
            kernel: kernel(),
            result: RowOutcome::Pass,
            reason: None,
            ms: 0,
            reported: Vec::new(),
            proof: None,
            done: Done::default(),
        }
    }

    /// Takes the verdicts and the proof from the records.
    pub(crate) fn update(&mut self, records: &[Record]) {
        self.reported = self.done.reported(records);
        self.proof = self.done.proof(records);
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.result = RowOutcome::Fail;
        self.reason = Some(why);
    }
}

/// What a scenario did, and what it expects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) attempts: Vec<Attempt>,
    /// Groups of attempts that must get no verdict, with their number.
    pub(crate) quiet: Vec<(Attempt, u32)>,
    /// The tracer must report lost events.
    pub(crate) loss: bool,
    /// The tracer must not report that a process entered the node's namespace.
    pub(crate) forbids_entry: bool,
    /// Measurements for the row.
    pub(crate) measured: Vec<String>,
}

impl Done {
    /// The first expectation that the records do not meet.
    pub(crate) fn fault(&self, records: &[Record]) -> Option<String> {
        let unmet = self.attempts.iter().find_map(|a| check::unmet(records, a));
        let noise = || self.quiet.iter().find_map(|(a, _)| check::unexpected_verdict(records, a));
        let idle = self.attempts.is_empty() && self.quiet.is_empty();
        let silent = self.loss && !records.iter().any(|r| matches!(r.body, Body::Loss(_)));
        let reported = |wrong: bool, why: &str| wrong.then(|| why.to_owned());
        reported(idle, "no attempt was made")
            .or(unmet)
            .or_else(noise)
            .or_else(|| reported(silent, "events were lost, and no record says so"))
            .or_else(|| check::unexpected_entry(records).filter(|_| self.forbids_entry))
    }

    /// The proof of the last attempt that must get a verdict. Earlier ones may be part of the setup.
    pub(crate) fn proof(&self, records: &[Record]) -> Option<Proof> {
        let must_fail = |attempt: &&Attempt| matches!(attempt.claim, Claim::Verdict(_));
        self.attempts.iter().rev().find(must_fail).and_then(|attempt| check::last(records, attempt)).map(Proof::from)
    }

    /// Counts the attempts by expected and reported cause.
    pub(crate) fn reported(&self, records: &[Record]) -> Vec<AttemptVerdicts> {
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for attempt in &self.attempts {
            let reported = check::reported(records, attempt);
            *counts.entry((name(expected_cause(&attempt.claim, reported)), name(reported))).or_default() += 1;
        }
        for (attempt, count) in &self.quiet {
            let unexpected = check::unexpected_causes(records, attempt);
            let without_verdict = count.saturating_sub(unexpected.len() as u32);
            *counts.entry((name(None), name(None))).or_default() += without_verdict;
            for cause in unexpected {
                *counts.entry((name(None), name(Some(cause)))).or_default() += 1;
            }
        }
        counts.into_iter().map(|((made, reported), attempts)| AttemptVerdicts { made, reported, attempts }).collect()
    }
}

/// The expected cause. If a claim allows several results, it is the reported one of them.
fn expected_cause(claim: &Claim, reported: Option<Cause>) -> Option<Cause> {
    match claim {
        Claim::Verdict(expected) => Some(expected.cause),
        Claim::Nothing => None,
        Claim::Perhaps(cause) => reported.and(Some(*cause)),
        Claim::AtMost(cause) => {
            Some(reported.filter(|reported| *reported == Cause::Unexplained).unwrap_or(*cause)).and(reported)
        }
    }
}

fn name(cause: Option<Cause>) -> &'static str {
    cause.map_or("none", Cause::name)
}
