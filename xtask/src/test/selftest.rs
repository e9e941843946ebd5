//! `tracer selftest` as a user runs it: its rows as a table of their own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::Args;
use super::rows::{Outcome, Row, Run, retry};
use crate::sh;
use crate::vm::Place;

/// What is read of a `finding` record.
#[derive(Deserialize)]
struct Finding {
    check: String,
    status: String,
    observed: String,
    #[serde(default)]
    fields: Fields,
}

#[derive(Default, Deserialize)]
struct Fields {
    #[serde(default)]
    scenario: String,
}

/// On one kernel; what failed is played once more.
pub(super) fn run(args: &Args, place: Place) -> Result<Run> {
    let kernel = place.heading()?;
    let again = |failed: &[&Row]| {
        let causes: Vec<String> = failed.iter().filter_map(|row| row.cause.clone()).collect();
        play(args, place, &causes)
    };
    let work = || play(args, place, &[]).map(|rows| retry(rows, again));
    let result = sh::step(&format!("tracer selftest on kernel {kernel}"), work);
    Ok(Run::new(kernel, result))
}

/// The self-test of these causes; of all if there are none.
fn play(args: &Args, place: Place, causes: &[String]) -> Result<Vec<Row>> {
    let records = place.directory()?.join("selftest.ndjson");
    let _ = fs::remove_file(&records);
    let path = |path: &Path| path.display().to_string();
    let words = ["selftest", "-o", "json", "--output-file"].map(str::to_owned);
    let causes = causes.iter().flat_map(|cause| ["--cause".to_owned(), cause.clone()]);
    let start = [path(&sh::debug_bin("tracer"))].into_iter().chain(words);
    let command = start.chain([path(&records)]).chain(causes).collect();
    read(&records, place.run(vec![command], Duration::from_secs(args.minutes * 60), false)?)
}

/// The rows of a self-test that ended with that code.
fn read(path: &Path, code: i32) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("the self-test ended with {code} and left no rows"))?;
    let rows = rows(&text)?;
    let failed = rows.iter().any(|row| row.result == Outcome::Fail);
    anyhow::ensure!(code == i32::from(failed), "the self-test ended with {code}, its rows say otherwise");
    anyhow::ensure!(rows.iter().any(|row| row.result == Outcome::Pass), "the self-test showed nothing");
    Ok(rows)
}

/// Of two rows about the same, the last one counts: a wrong verdict may come late.
fn rows(text: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let row = row(line).context("a row of the self-test")?;
        rows.retain(|earlier| (&earlier.scenario, &earlier.cause) != (&row.scenario, &row.cause));
        rows.push(row);
    }
    Ok(rows)
}

fn row(line: &str) -> Result<Row> {
    let finding: Finding = serde_json::from_str(line)?;
    let cause = finding.check.strip_prefix("selftest/").context("not a row of a self-test")?;
    let result = match finding.status.as_str() {
        "ok" => Outcome::Pass,
        "unknown" => Outcome::Cannot,
        _ => Outcome::Fail,
    };
    let scenario = if finding.fields.scenario.is_empty() { cause } else { &finding.fields.scenario };
    let reason = (result != Outcome::Pass).then_some(finding.observed);
    let about = (cause != "healthy").then(|| cause.to_owned());
    Ok(Row { result, reason, ..Row::failed(scenario, about, "") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_row_takes_back_an_earlier_one() {
        let line = |status: &str| {
            format!(
                r#"{{"check":"selftest/rp_filter_drop","status":"{status}","observed":"","fields":{{"scenario":"x"}}}}"#
            )
        };
        let rows = rows(&[line("ok"), line("fail")].join("\n")).expect("rows");
        assert_eq!(rows.iter().map(|row| row.result).collect::<Vec<_>>(), [Outcome::Fail]);
    }

    #[test]
    fn a_finding_is_a_row() {
        let line = |status: &str| {
            format!(r#"{{"check":"selftest/loopback_down","status":"{status}","observed":"no such device","seq":3}}"#)
        };
        let results = ["ok", "unknown", "fail"].map(|status| row(&line(status)).expect("a row"));
        assert_eq!(results.each_ref().map(|row| row.result), [Outcome::Pass, Outcome::Cannot, Outcome::Fail]);
        assert_eq!(results[0].cause.as_deref(), Some("loopback_down"));
        assert_eq!((results[0].reason.as_deref(), results[1].reason.as_deref()), (None, Some("no such device")));
        assert!(row(r#"{"check":"rp_filter","status":"ok","observed":""}"#).is_err(), "a row of `doctor`");
    }
}
