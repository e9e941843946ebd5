//! The results of a run: one row for each scenario.

use serde::Serialize;
use tracer_model::record::{Cause, Record};

use crate::check::{AttemptVerdicts, Done, Proof};
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
    /// The node was too busy: the failure may be none of tracer.
    #[serde(skip)]
    pub(crate) was_busy: bool,
    #[serde(skip)]
    pub proof: Option<Proof>,
    #[serde(skip)]
    pub(crate) done: Done,
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
            was_busy: false,
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
