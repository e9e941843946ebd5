//! `tracer selftest` as a user runs it, on this kernel and in virtual machines: its rows as a table of their own.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::scenarios::{Outcome, Row, Run, second_chance};
use super::{Args, hooks, scenarios};
use crate::sh;
use crate::vm::{self, Job, Release};

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

/// On this kernel.
pub(super) fn on_host() -> Result<Run> {
    let name = scenarios::this_kernel()?;
    if !nix::unistd::geteuid().is_root() {
        return Ok(Run { kernel: name, rows: Vec::new(), broken: None });
    }
    let rows = sh::target().join("selftest.ndjson");
    let play = |labels: &[String]| {
        let _ = fs::remove_file(&rows);
        let words = command(&rows, labels);
        let status = sh::command(&words[0]).args(&words[1..]).stdout(Stdio::null()).status();
        read(&rows, status.context("cannot start the self-test")?.code().unwrap_or(-1))
    };
    let result = sh::step("tracer selftest on this kernel", || play(&[]).map(|rows| once_more(rows, play)));
    Ok(Run::new(name, result).and(hooks::on_host()))
}

/// In one machine.
pub(super) fn in_machine(args: &Args, release: &'static Release) -> Run {
    Run::new(release.name.to_owned(), play(args, release, &[]))
}

/// The labels that were not shown there, once more.
pub(super) fn again_in_machine(args: &Args, release: &'static Release, run: Run) -> Run {
    Run { rows: once_more(run.rows, |labels| play(args, release, labels)), ..run }
}

fn play(args: &Args, release: &'static Release, labels: &[String]) -> Result<Vec<Row>> {
    let rows = vm::directory(release).join("selftest.ndjson");
    let _ = fs::remove_file(&rows);
    let job = Job {
        release,
        command: command(&rows, labels),
        directory: sh::root().to_owned(),
        limit: Duration::from_secs(args.minutes * 60),
        echo: false,
    };
    read(&rows, job.run_to_its_end()?)
}

/// The labels that were not shown, by themselves; the line of the hooks is not a matter of time.
fn once_more(rows: Vec<Row>, play: impl FnOnce(&[String]) -> Result<Vec<Row>>) -> Vec<Row> {
    let (hooks, rows): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.label.as_deref() == Some(hooks::LINE));
    let labels: Vec<String> =
        rows.iter().filter(|row| row.result == Outcome::Fail).filter_map(|row| row.label.clone()).collect();
    let mut rows = second_chance(rows, |_| play(&labels));
    rows.extend(hooks);
    rows
}

/// The command line for these labels; for all if there are none.
fn command(rows: &Path, labels: &[String]) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let words = ["selftest", "-o", "ndjson", "--output-file"].map(str::to_owned);
    let labels = labels.iter().flat_map(|label| ["--label".to_owned(), label.clone()]);
    [path(&sh::debug_bin("tracer"))].into_iter().chain(words).chain([path(rows)]).chain(labels).collect()
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
        rows.retain(|earlier| (&earlier.scenario, &earlier.label) != (&row.scenario, &row.label));
        rows.push(row);
    }
    Ok(rows)
}

fn row(line: &str) -> Result<Row> {
    let finding: Finding = serde_json::from_str(line)?;
    let label = finding.check.strip_prefix("selftest/").context("not a row of a self-test")?.to_owned();
    let result = match finding.status.as_str() {
        "ok" => Outcome::Pass,
        "unknown" => Outcome::Cannot,
        _ => Outcome::Fail,
    };
    let scenario = if finding.fields.scenario.is_empty() { label.clone() } else { finding.fields.scenario };
    Ok(Row {
        scenario,
        label: (label != "healthy").then_some(label),
        proxy: String::new(),
        family: String::new(),
        result,
        reason: (result != Outcome::Pass).then_some(finding.observed),
        said: Vec::new(),
    })
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
        assert_eq!(results[0].label.as_deref(), Some("loopback_down"));
        assert_eq!((results[0].reason.as_deref(), results[1].reason.as_deref()), (None, Some("no such device")));
        assert!(row(r#"{"check":"rp_filter","status":"ok","observed":""}"#).is_err(), "a row of `doctor`");
    }
}
