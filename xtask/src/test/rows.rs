//! The result of a scenario on a kernel, and of a run of all scenarios.

use std::fmt::{self, Write as _};

use anyhow::Result;
use serde::Deserialize;

use super::report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The failure happened and the verdict was right.
    Pass,
    /// It did not happen, or the verdict was wrong.
    Fail,
    /// This kernel lacks what the scenario needs.
    Cannot,
}

/// Attempts with the same expected cause and the same verdict.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct AttemptVerdicts {
    /// The expected cause, or `none`.
    pub(crate) made: String,
    /// The reported cause, or `none`.
    pub(crate) reported: String,
    pub(crate) attempts: u32,
}

impl AttemptVerdicts {
    /// Whether the reported cause is wrong. `unexplained` and no verdict are not wrong.
    fn is_wrong(&self) -> bool {
        self.made != self.reported && !["none", "unexplained"].contains(&self.reported.as_str())
    }
}

/// One scenario on one kernel.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    /// The cause of the scenario. `None` if nothing is wrong.
    pub(crate) cause: Option<String>,
    /// The Service proxy that it needs, or `any`.
    pub(crate) proxy: String,
    /// `v4` or `v6`.
    pub(crate) family: String,
    pub(crate) result: Outcome,
    /// Why, unless it passed.
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) reported: Vec<AttemptVerdicts>,
    /// It failed first, and passed in a retry.
    #[serde(skip)]
    pub(crate) flaky: bool,
}

impl Row {
    /// A failed row without proxy and address family.
    pub(crate) fn failed(scenario: &str, cause: Option<String>, why: impl fmt::Display) -> Self {
        let [proxy, family] = [String::new(), String::new()];
        let (scenario, reason) = (scenario.to_owned(), Some(why.to_string()));
        Self { scenario, cause, proxy, family, result: Outcome::Fail, reason, reported: Vec::new(), flaky: false }
    }
}

/// The scenarios on one kernel.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The heading of its column.
    pub(crate) kernel: String,
    /// The program types of the hooks there, with the number of hooks of each.
    pub(crate) programs: String,
    pub(crate) rows: Vec<Row>,
    /// Why there are no rows.
    pub(crate) broken: Option<String>,
}

impl Run {
    /// A run with these rows, or with the reason why there are none.
    pub(crate) fn new(kernel: String, result: Result<Vec<Row>>) -> Self {
        let (rows, broken) = match result {
            Ok(rows) => (rows, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        Self { kernel, programs: String::new(), rows, broken }
    }

    pub(crate) fn count(&self, result: Outcome) -> usize {
        self.rows.iter().filter(|row| row.result == result).count()
    }

    /// Adds its results to the report. A broken run is a failure.
    pub(crate) fn report(&self, report: &mut Report) {
        report.passed += self.count(Outcome::Pass);
        report.failed += self.count(Outcome::Fail) + usize::from(self.broken.is_some());
        report.skipped += self.count(Outcome::Cannot);
        for row in self.rows.iter().filter(|row| row.flaky) {
            report.add_flaky(format!("{} on {}", row.scenario, self.kernel), row.reason.as_deref().unwrap_or_default());
        }
    }
}

/// The attempts with another cause than expected, and the number of all attempts.
pub(crate) fn confusions(runs: &[Run]) -> String {
    let (mut text, mut judged, mut differ) = (String::new(), 0, 0);
    for (run, row) in runs.iter().flat_map(|run| run.rows.iter().map(move |row| (run, row))) {
        for AttemptVerdicts { made, reported, attempts } in &row.reported {
            judged += attempts;
            if made != reported {
                differ += attempts;
                let _ = writeln!(
                    text,
                    "{made} was called {reported}, {attempts} time(s): {} on {}",
                    row.scenario, run.kernel
                );
            }
        }
    }
    text + &format!("confusion: {judged} attempts judged, {differ} of them called something else\n")
}

/// Maximum number of failures that are retried. More failures do not come from a busy machine.
const RETRIED: usize = 8;

/// Retries failed scenarios, because a wait can be too short on a busy or emulated machine. Also runs the scenarios of
/// `all` that an interrupted run did not reach. A wrong cause is not retried.
pub(crate) fn complete(
    mut rows: Vec<Row>,
    all: &[String],
    again: impl FnOnce(&[String]) -> Result<Vec<Row>>,
) -> Vec<Row> {
    for row in rows.iter_mut().filter(|row| row.reported.iter().any(AttemptVerdicts::is_wrong)) {
        row.result = Outcome::Fail;
        row.reason.get_or_insert_with(|| "a wrong cause".to_owned());
    }
    let is_retried = |row: &&Row| row.result == Outcome::Fail && !row.reported.iter().any(AttemptVerdicts::is_wrong);
    let failed = rows.iter().filter(is_retried).map(|row| row.scenario.clone());
    let failed: Vec<String> = failed.collect();
    let failed = if failed.len() > RETRIED { Vec::new() } else { failed };
    let is_missing = |name: &&String| !rows.iter().any(|row| row.scenario == **name);
    let missing: Vec<String> = all.iter().filter(is_missing).cloned().collect();
    if failed.is_empty() && missing.is_empty() {
        return rows;
    }
    eprintln!("xtask: retrying {failed:?}; running {} that were not reached", missing.len());
    let (second, broken) = match again(&[failed.clone(), missing.clone()].concat()) {
        Ok(rows) => (rows, String::new()),
        Err(error) => (Vec::new(), format!(": {error:#}")),
    };
    let find = |name: &str| second.iter().find(|other| other.scenario == name);
    for row in rows.iter_mut().filter(|row| failed.contains(&row.scenario)) {
        match find(&row.scenario) {
            Some(other) if other.result == Outcome::Pass => {
                *row = Row { flaky: true, reason: row.reason.take(), ..other.clone() };
            }
            other => {
                let why = other.and_then(|other| other.reason.as_deref()).unwrap_or("not run");
                row.reason = Some(format!("{}; in a retry: {why}{broken}", row.reason.as_deref().unwrap_or("?")));
            }
        }
    }
    let not_run = |name: &String| Row::failed(name, None, format!("not run{broken}"));
    rows.extend(missing.iter().map(|name| find(name).cloned().unwrap_or_else(|| not_run(name))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(made: &str, reported: &str) -> AttemptVerdicts {
        AttemptVerdicts { made: made.into(), reported: reported.into(), attempts: 1 }
    }

    #[test]
    fn a_retry_that_passes_is_flaky_and_a_wrong_cause_is_not_retried() {
        let missed = Row { reported: vec![reported("a", "none")], ..Row::failed("one", None, "too slow") };
        let wrong = Row { reported: vec![reported("a", "b")], result: Outcome::Pass, ..Row::failed("two", None, "no") };
        let second = Row { result: Outcome::Pass, reported: vec![reported("a", "a")], ..Row::failed("one", None, "") };
        let rows = complete(vec![missed, wrong], &["one".to_owned()], |names| {
            assert_eq!(names, ["one"]);
            Ok(vec![second])
        });
        let run = Run::new("6.1".into(), Ok(rows));
        let mut report = Report::default();
        run.report(&mut report);
        assert_eq!((report.passed, report.failed), (1, 1));
        assert_eq!(report.flaky, [("one on 6.1".to_owned(), "too slow".to_owned())]);
        let expected = "a was called b, 1 time(s): two on 6.1\n\
                        confusion: 2 attempts judged, 1 of them called something else\n";
        assert_eq!(confusions(&[run]), expected);
    }

    #[test]
    fn a_failed_retry_has_both_reasons() {
        let again = |why: &'static str| move |_: &[String]| Ok(vec![Row::failed("one", None, why)]);
        let rows = complete(vec![Row::failed("one", None, "first")], &[], again("second"));
        assert_eq!(rows[0].reason.as_deref(), Some("first; in a retry: second"));
        let many = vec![Row::failed("one", None, "first"); RETRIED + 1];
        let rows = complete(many, &[], |_| unreachable!("so many are not retried"));
        assert!(rows.iter().all(|row| row.reason.as_deref() == Some("first")));
    }

    #[test]
    fn scenarios_that_an_interrupted_run_did_not_reach_are_run() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let passed = |name: &str| Row { result: Outcome::Pass, ..Row::failed(name, None, "") };
        let results = |rows: Vec<Row>| rows.iter().map(|row| row.result).collect::<Vec<_>>();
        let ran = complete(vec![passed("a")], &names, |missing| {
            assert_eq!(missing, ["b", "c"]);
            Ok(missing.iter().map(|name| passed(name)).collect())
        });
        assert_eq!(results(ran), [Outcome::Pass; 3]);
        let ended_again = complete(vec![passed("a")], &names, |_| anyhow::bail!("ended again"));
        assert_eq!(results(ended_again), [Outcome::Pass, Outcome::Fail, Outcome::Fail]);
    }
}
