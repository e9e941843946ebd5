//! Runs the `scenarios` program on this kernel and in virtual machines, and reads the rows it leaves.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{Args, Tally};
use crate::sh;
use crate::vm::{self, HUNG, Job, Release};

/// How a scenario went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The failure happened and the verdict was right.
    Pass,
    /// It did not happen, or the verdict was wrong.
    Fail,
    /// This kernel lacks what the scenario needs.
    Cannot,
    /// There is no scenario for it.
    Absent,
}

/// Attempts that were made to fail (or not) in one way, and of which the same was said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Said {
    /// The label that they must get, or `none`.
    pub(crate) made: String,
    /// The label they got, or `none`.
    pub(crate) said: String,
    /// How many.
    pub(crate) attempts: u32,
}

/// One scenario on one kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Its name.
    pub(crate) scenario: String,
    /// The label it is about; none: nothing is wrong.
    pub(crate) label: Option<String>,
    /// The Service proxy in its story; `any`: none.
    pub(crate) proxy: String,
    /// `v4` or `v6`.
    pub(crate) family: String,
    /// How it went.
    pub(crate) result: Outcome,
    /// Why, unless it passed.
    pub(crate) reason: Option<String>,
    /// What was said of its attempts.
    #[serde(default)]
    pub(crate) said: Vec<Said>,
}

/// How the reason of a row begins that passed in a second run only.
const SECOND_RUN: &str = "passed in a second run; the first: ";

impl Row {
    /// Of a scenario for which there was no time.
    fn unplayed(scenario: String, why: &anyhow::Error) -> Self {
        let reason = Some(format!("not played: {why:#}"));
        let [proxy, family] = ["any", "v4"].map(str::to_owned);
        Self { scenario, label: None, proxy, family, result: Outcome::Fail, reason, said: Vec::new() }
    }

    fn is_of_a_second_run(&self) -> bool {
        self.result == Outcome::Pass && self.reason.as_ref().is_some_and(|why| why.starts_with(SECOND_RUN))
    }
}

/// All scenarios on one kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The heading of its column.
    pub(crate) kernel: String,
    /// What was done.
    pub(crate) rows: Vec<Row>,
    /// Why there are no rows.
    pub(crate) broken: Option<String>,
}

impl Run {
    /// The results; a run that broke is a failure.
    pub(crate) fn tally(&self) -> Tally {
        let count = |result| self.rows.iter().filter(|row| row.result == result).count();
        Tally {
            passed: count(Outcome::Pass),
            failed: count(Outcome::Fail) + usize::from(self.broken.is_some()),
            second: self.rows.iter().filter(|row| row.is_of_a_second_run()).count(),
        }
    }

    /// The same with one more.
    pub(super) fn and(mut self, row: Row) -> Self {
        self.rows.push(row);
        self
    }

    pub(super) fn new(kernel: String, result: Result<Vec<Row>>) -> Self {
        match result {
            Ok(rows) => Self { kernel, rows, broken: None },
            Err(error) => Self { kernel, rows: Vec::new(), broken: Some(format!("{error:#}")) },
        }
    }
}

/// How many scenarios no kernel could play: what they need must be somewhere.
pub(super) fn shown_nowhere(runs: &[Run]) -> usize {
    let with = |result: fn(Outcome) -> bool| -> BTreeSet<&str> {
        let rows = runs.iter().flat_map(|run| &run.rows);
        rows.filter(|row| result(row.result)).map(|row| row.scenario.as_str()).collect()
    };
    let played = with(|result| matches!(result, Outcome::Pass | Outcome::Fail));
    let lacking = with(|result| result == Outcome::Cannot);
    let nowhere = lacking.difference(&played).inspect(|name| println!("FAIL   {name}: no kernel could play it"));
    nowhere.count()
}

/// The heading of the column of this kernel.
pub(super) fn this_kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!("{} (here)", release.split(['-', '+']).next().unwrap_or_default().trim()))
}

/// The scenarios on this kernel.
pub(crate) fn on_host(args: &Args) -> Result<Run> {
    let name = this_kernel()?;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("xtask: scenarios on this kernel need root: left out");
        return Ok(Run { kernel: name, rows: Vec::new(), broken: None });
    }
    let rows = sh::target().join("scenarios.ndjson");
    let play = |only: Only<'_>| {
        let _ = fs::remove_file(&rows);
        let words = command_for(args, &rows, only);
        let status = sh::command(&words[0]).args(&words[1..]).status().context("cannot start the scenarios")?;
        read(&rows, status.code().unwrap_or(-1))
    };
    let result = sh::step("scenarios on this kernel", || {
        play(Only::Beginning(&args.only)).map(|rows| second_chance(rows, |names| play(Only::Named(names))))
    });
    Ok(Run::new(name, result))
}

/// The same work on other kernels, some at a time.
pub(super) fn in_machines<T: Send>(
    args: &Args,
    releases: &[&'static Release],
    work: fn(&Args, &'static Release) -> T,
) -> Vec<T> {
    let queue: Mutex<VecDeque<_>> = Mutex::new(releases.iter().copied().enumerate().collect());
    let results = Mutex::new(Vec::new());
    let worker = || {
        while let Some((place, release)) = next(&queue) {
            let run = work(args, release);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((place, run));
        }
    };
    thread::scope(|scope| {
        for _ in 0..args.jobs.clamp(1, releases.len().max(1)) {
            scope.spawn(worker);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(place, _)| *place);
    results.into_iter().map(|(_, run)| run).collect()
}

fn next<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// What `timeout` of coreutils ends with when it has ended the command.
const TIMED_OUT: i32 = 124;

/// The scenarios on one of them.
pub(super) fn in_machine(args: &Args, release: &'static Release) -> Run {
    let log = vm::directory(release).join("log");
    eprintln!("xtask: kernel {}: scenarios begin, output in {}", release.name, log.display());
    let begun = Instant::now();
    let result = play(args, release, Only::Beginning(&args.only)).and_then(|(code, rows)| {
        if ![TIMED_OUT, HUNG].contains(&code) {
            return read(&rows, code);
        }
        let rest = |names: &[String]| {
            let (code, rows) = play(args, release, Only::Named(names))?;
            read(&rows, code)
        };
        // It may have hung before the first was over, or while a row was written.
        let done = read_any(&rows, code).or_else(|error| if code == HUNG { Ok(Vec::new()) } else { Err(error) })?;
        Ok(go_on(done, &names(args)?, rest))
    });
    let run = Run::new(release.name.to_owned(), result);
    let Tally { passed, failed, .. } = run.tally();
    eprintln!(
        "xtask: kernel {}: {passed} passed, {failed} failed after {:.0} s",
        release.name,
        begun.elapsed().as_secs_f64()
    );
    run
}

/// What failed there, once more.
pub(super) fn again_in_machine(args: &Args, release: &'static Release, run: Run) -> Run {
    let again = |names: &[String]| {
        let (code, rows) = play(args, release, Only::Named(names))?;
        read(&rows, code)
    };
    Run { rows: second_chance(run.rows, again), ..run }
}

/// Plays these in a machine: the exit code, and where the rows are.
fn play(args: &Args, release: &'static Release, only: Only<'_>) -> Result<(i32, PathBuf)> {
    let rows = vm::directory(release).join("scenarios.ndjson");
    let _ = fs::remove_file(&rows);
    let job = Job {
        release,
        command: command_for(args, &rows, only),
        directory: sh::root().to_owned(),
        limit: Duration::from_secs(args.minutes * 60),
        echo: false,
    };
    Ok((job.run()?, rows))
}

/// The names of the scenarios that are to be played.
fn names(args: &Args) -> Result<Vec<String>> {
    let words = command_for(args, Path::new("-"), Only::Beginning(&args.only));
    let listed =
        sh::command(&words[0]).args(&words[1..]).arg("--list").output().context("cannot list the scenarios")?;
    anyhow::ensure!(listed.status.success(), "the scenarios cannot be listed: {}", listed.status);
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

/// A run that was ended in its midst keeps what it has played, and goes on with the others.
fn go_on(mut done: Vec<Row>, all: &[String], rest: impl FnOnce(&[String]) -> Result<Vec<Row>>) -> Vec<Row> {
    let is_missing = |name: &&String| !done.iter().any(|row| row.scenario == **name);
    let missing: Vec<String> = all.iter().filter(is_missing).cloned().collect();
    eprintln!("xtask: {} scenarios were played in time, {} are still to be", done.len(), missing.len());
    if missing.is_empty() {
        return done;
    }
    match rest(&missing) {
        Ok(more) => done.extend(more),
        Err(error) => done.extend(missing.into_iter().map(|name| Row::unplayed(name, &error))),
    }
    done
}

/// Failures that are made a second time at most: more are no accident of a busy machine.
const SECOND_CHANCES: usize = 8;

/// On a busy machine, and under emulation, a wait can be too short. What failed is done once
/// more by itself; one that then passes says so in a footnote.
pub(crate) fn second_chance(mut rows: Vec<Row>, again: impl FnOnce(&[String]) -> Result<Vec<Row>>) -> Vec<Row> {
    let failed: Vec<String> =
        rows.iter().filter(|row| row.result == Outcome::Fail).map(|row| row.scenario.clone()).collect();
    if failed.is_empty() || failed.len() > SECOND_CHANCES {
        return rows;
    }
    eprintln!("xtask: once more: {}", failed.join(", "));
    let second = again(&failed).unwrap_or_else(|error| {
        eprintln!("xtask: the second run broke: {error:#}");
        Vec::new()
    });
    for row in rows.iter_mut().filter(|row| row.result == Outcome::Fail) {
        match second.iter().find(|other| other.scenario == row.scenario) {
            Some(other) if other.result == Outcome::Pass => pass_after_all(row, other),
            other => fail_again(row, other),
        }
    }
    rows
}

/// What the first run lacked is forgiven, a wrong label that it got is not: the confusion table shows it.
fn pass_after_all(row: &mut Row, other: &Row) {
    row.result = Outcome::Pass;
    row.reason = Some(format!("{SECOND_RUN}{}", row.reason.as_deref().unwrap_or("?")));
    row.said.retain(|said| said.said != "none" && said.said != said.made);
    row.said.extend(other.said.iter().cloned());
}

/// Why it failed each time.
fn fail_again(row: &mut Row, other: Option<&Row>) {
    let second = other.map_or("that run broke", |other| other.reason.as_deref().unwrap_or("?"));
    row.reason = Some(format!("{}; in a second run: {second}", row.reason.as_deref().unwrap_or("?")));
}

/// Which scenarios; all of them if there are no names.
#[derive(Clone, Copy)]
enum Only<'a> {
    /// Those whose name begins so.
    Beginning(&'a [String]),
    Named(&'a [String]),
}

/// The command line of a run of these scenarios.
fn command_for(args: &Args, rows: &Path, only: Only<'_>) -> Vec<String> {
    let path = |path: PathBuf| path.display().to_string();
    let mut words = vec![path(sh::debug_bin("scenarios")), "--json".into(), path(rows.to_owned())];
    match args.mechanism_only {
        true => words.push("--mechanism-only".into()),
        false => words.extend(["--tracer".into(), path(sh::debug_bin("tracer"))]),
    }
    let (names, exact) = match only {
        Only::Beginning(names) => (names, false),
        Only::Named(names) => (names, true),
    };
    if !names.is_empty() {
        words.extend(exact.then(|| "--exact".into()));
        words.push("--only".into());
        words.extend(names.iter().cloned());
    }
    words
}

/// The rows that a run left, however it ended.
fn read_any(path: &Path, code: i32) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("the scenarios ended with {code} and left no rows"))?;
    let rows: Vec<Row> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a row of the scenarios")?;
    anyhow::ensure!(!rows.is_empty(), "the scenarios ended with {code} and played none");
    Ok(rows)
}

/// The rows of a run that ended with that code.
pub(crate) fn read(path: &Path, code: i32) -> Result<Vec<Row>> {
    let rows = read_any(path, code)?;
    let failed = rows.iter().any(|row| row.result == Outcome::Fail);
    // Another code than these two: it was ended from outside, and what is missing was not played.
    anyhow::ensure!(code == i32::from(failed), "the scenarios ended with {code}, their rows say otherwise");
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scenario: &str, result: Outcome) -> Row {
        Row { result, reason: None, ..Row::unplayed(scenario.to_owned(), &anyhow::anyhow!("-")) }
    }

    #[test]
    fn what_no_kernel_can_play_is_counted() {
        let run = |rows| Run::new("one".to_owned(), Ok(rows));
        let here = run(vec![row("a", Outcome::Cannot), row("b", Outcome::Cannot), row("c", Outcome::Pass)]);
        let there = run(vec![row("a", Outcome::Pass), row("b", Outcome::Cannot), row("c", Outcome::Cannot)]);
        assert_eq!(shown_nowhere(&[here, there]), 1);
    }

    #[test]
    fn a_run_that_was_ended_goes_on_with_what_it_has_not_played() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let done = || vec![row("a", Outcome::Pass)];
        let results = |rows: Vec<Row>| rows.iter().map(|row| row.result).collect::<Vec<_>>();
        let played = go_on(done(), &names, |missing| {
            assert_eq!(missing, ["b", "c"]);
            Ok(missing.iter().map(|name| row(name, Outcome::Pass)).collect())
        });
        assert_eq!(results(played), [Outcome::Pass; 3]);
        let ended_again = go_on(done(), &names, |_| anyhow::bail!("ended again"));
        assert_eq!(results(ended_again), [Outcome::Pass, Outcome::Fail, Outcome::Fail]);
    }
}
