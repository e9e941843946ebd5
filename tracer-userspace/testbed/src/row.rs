//! The results of a run, one row for each scenario: what was done, how it went, and what was reported of each attempt.

use std::collections::BTreeMap;

use serde::Serialize;
use tracer_model::record::{Body, Cause, Confidence, Record, VerdictBody};

use crate::check::{self, Attempt, Claim, Standing, judge};
use crate::options::kernel;
use crate::scenario::Scenario;

/// How a scenario went, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowOutcome {
    /// The failure happened and the verdict was right.
    Pass,
    /// It did not happen, or the verdict was wrong.
    Fail,
    /// This machine lacks what the scenario needs.
    Cannot,
    /// No scenario covers this.
    Absent,
}

/// How a scenario went.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scenario; that of a gap is empty.
    pub scenario: String,
    /// The cause it is about; absent: healthy.
    pub cause: Option<&'static str>,
    /// The Service proxy in it; `any`: none has a part in it.
    pub proxy: &'static str,
    /// `v4` or `v6`.
    pub family: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// How it went, in a word.
    pub result: RowOutcome,
    /// Why, unless it passed.
    pub reason: Option<String>,
    /// How long it took.
    pub ms: u64,
    /// What was reported of its attempts.
    pub reported: Vec<AttemptVerdicts>,
    /// What showed the cause.
    #[serde(skip)]
    pub proof: Option<Proof>,
    #[serde(skip)]
    pub(crate) done: Done,
}

/// What the verdict on a failing attempt rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// How sure it is.
    pub confidence: Confidence,
    /// The hooks and sources of its evidence, each once.
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

/// Attempts that were made to fail (or not) in one way, and of which the same was reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptVerdicts {
    /// The cause that the attempt must get, or `none`.
    pub made: &'static str,
    /// The cause of the last verdict on it, or `none`.
    pub reported: &'static str,
    /// How many.
    pub attempts: u32,
}

impl Row {
    /// A row of a scenario that is about to be played.
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

    /// What the tracer has reported up to now.
    pub(crate) fn hear(&mut self, records: &[Record]) {
        self.reported = self.done.reported(records);
        self.proof = self.done.proof(records);
    }

    pub(crate) fn fail(&mut self, why: String) {
        self.result = RowOutcome::Fail;
        self.reason = Some(why);
    }
}

/// What was done to the attempts of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) attempts: Vec<Attempt>,
    /// Many at once, none of which may get a verdict; and how many.
    pub(crate) quiet: Vec<(Attempt, u32)>,
    /// Events were lost, and the tracer must say so.
    pub(crate) loss: bool,
    /// Nobody may be reported to have entered the node's namespace.
    pub(crate) forbids_entry: bool,
    /// What was measured.
    pub(crate) measured: Vec<String>,
}

impl Done {
    /// The first claim that the records do not meet.
    pub(crate) fn fault(&self, records: &[Record]) -> Option<String> {
        let unmet = self.attempts.iter().find_map(|a| match judge(records, a) {
            Standing::Met => None,
            Standing::Unmet(why) => Some(why),
        });
        let noise = || self.quiet.iter().find_map(|(a, _)| check::disturbance(records, a));
        let idle = self.attempts.is_empty() && self.quiet.is_empty();
        let silent = self.loss && !records.iter().any(|r| matches!(r.body, Body::Loss(_)));
        let reported = |wrong: bool, why: &str| wrong.then(|| why.to_owned());
        reported(idle, "no attempt was made")
            .or(unmet)
            .or_else(noise)
            .or_else(|| reported(silent, "events were lost, and no record says so"))
            .or_else(|| check::entry(records).filter(|_| self.forbids_entry))
    }

    /// The verdict on the last attempt that had to get one: those before it may have set the scene.
    pub(crate) fn proof(&self, records: &[Record]) -> Option<Proof> {
        let owed = |attempt: &&Attempt| matches!(attempt.claim, Claim::Verdict(_));
        self.attempts.iter().rev().find(owed).and_then(|attempt| check::last(records, attempt)).map(Proof::from)
    }

    /// What the records say of each.
    pub(crate) fn reported(&self, records: &[Record]) -> Vec<AttemptVerdicts> {
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for attempt in &self.attempts {
            let reported = check::reported(records, attempt);
            *counts.entry((name(made(&attempt.claim, reported)), name(reported))).or_default() += 1;
        }
        for (attempt, count) in &self.quiet {
            let noise = check::disturbances(records, attempt);
            let calm = count.saturating_sub(noise.len() as u32);
            *counts.entry((name(None), name(None))).or_default() += calm;
            for cause in noise {
                *counts.entry((name(None), name(Some(cause)))).or_default() += 1;
            }
        }
        counts.into_iter().map(|((made, reported), attempts)| AttemptVerdicts { made, reported, attempts }).collect()
    }
}

/// The cause that is owed. An attempt that only sets the scene may get its cause or none.
fn made(claim: &Claim, reported: Option<Cause>) -> Option<Cause> {
    match claim {
        Claim::Verdict(expected) => Some(expected.cause),
        Claim::Nothing => None,
        Claim::Perhaps(cause) => reported.and(Some(*cause)),
        // Less is right, too: events of it were lost.
        Claim::AtMost(cause) => {
            Some(reported.filter(|reported| *reported == Cause::Unexplained).unwrap_or(*cause)).and(reported)
        }
    }
}

fn name(cause: Option<Cause>) -> &'static str {
    cause.map_or("none", Cause::name)
}
