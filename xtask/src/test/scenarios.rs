//! Runs the doctor's check of the hooks and the `scenarios` program on one kernel, and reads their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::rows::{Outcome, Row, Run, complete};
use super::{TestArgs, hooks};
use crate::sh;
use crate::vm::{HUNG, Place};

/// The exit code of coreutils' `timeout` if it has killed the command.
const TIMED_OUT: i32 = 124;

pub(super) struct Scenarios<'a> {
    pub(super) place: Place,
    /// A value of `scenarios --suite`.
    pub(super) suite: &'static str,
    pub(super) args: &'a TestArgs,
}

impl Scenarios<'_> {
    pub(super) fn run(&self) -> Result<Run> {
        let begun = Instant::now();
        let kernel = self.place.heading()?;
        eprintln!("xtask: kernel {kernel}: scenarios begin, other files in {}", self.place.directory()?.display());
        let hooks = self.file("hooks.ndjson")?;
        let ran = self.play(Some(&hooks), &[]).and_then(|(code, rows)| match code {
            TIMED_OUT => read_any(&rows, code),
            // The machine may have hung before the first row, or while it wrote a row.
            HUNG => Ok(read_any(&rows, code).unwrap_or_default()),
            code => read(&rows, code),
        });
        let mut run = Run::new(kernel, ran);
        hooks::add(&hooks, &mut run);
        let (passed, failed) = (run.count(Outcome::Pass), run.count(Outcome::Fail));
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("xtask: kernel {}: {passed} passed, {failed} failed after {seconds:.0} s", run.kernel);
        Ok(run)
    }

    /// Retries failed scenarios, and runs those that were not reached. Does nothing for a broken run.
    pub(super) fn complete(&self, run: Run) -> Result<Run> {
        let all = if run.broken.is_some() { Vec::new() } else { self.names()? };
        Ok(Run { rows: complete(run.rows, &all, |names| self.again(names)), ..run })
    }

    fn again(&self, names: &[String]) -> Result<Vec<Row>> {
        let (code, rows) = self.play(None, names)?;
        read(&rows, code)
    }

    /// The path for a file of a program. Removes the file of an earlier run.
    fn file(&self, name: &str) -> Result<PathBuf> {
        let file = self.place.directory()?.join(name);
        let _ = fs::remove_file(&file);
        Ok(file)
    }

    /// Runs these scenarios, or the suite if there are none. Returns the exit code, and the file with the rows.
    fn play(&self, hooks: Option<&Path>, names: &[String]) -> Result<(i32, PathBuf)> {
        let rows = self.file("scenarios.ndjson")?;
        let mut commands: Vec<Vec<String>> = hooks.map(hooks::command).into_iter().collect();
        let mut words = self.words(&rows, names);
        if let Some(records) = self.records()? {
            let _ = fs::remove_dir_all(&records);
            fs::create_dir_all(&records)?;
            words.extend(["--record".into(), records.display().to_string()]);
        }
        commands.push(words);
        let code = self.place.run(commands, Duration::from_secs(self.args.minutes * 60), false)?;
        if let Some(records) = self.records()?.filter(|_| rows.is_file()) {
            let to = sh::root().join("tests/recordings").join(self.place.kernel()?);
            sh::run(sh::command(sh::debug_bin("keep")).args([&records, &rows, &to]))?;
        }
        Ok((code, rows))
    }

    fn records(&self) -> Result<Option<PathBuf>> {
        self.args.record.then(|| Ok(self.place.directory()?.join("recordings"))).transpose()
    }

    pub(super) fn names(&self) -> Result<Vec<String>> {
        let words = self.words(Path::new("-"), &[]);
        let list = sh::capture(sh::command(&words[0]).args(&words[1..]).arg("--list"))?;
        Ok(list.lines().map(str::to_owned).collect())
    }

    fn words(&self, rows: &Path, names: &[String]) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let (scenarios, tracer) = (path(&sh::debug_bin("scenarios")), path(&sh::debug_bin("tracer")));
        let mut words = vec![scenarios, "--tracer".into(), tracer, "--json".into(), path(rows)];
        match (names, self.args.only.as_slice()) {
            ([], []) => words.extend(["--suite".into(), self.suite.into()]),
            ([], only) => words.extend(std::iter::once("--only".into()).chain(only.iter().cloned())),
            (names, _) => words.extend(["--exact".into(), "--only".into()].into_iter().chain(names.iter().cloned())),
        }
        words
    }
}

/// The rows of a run with any exit code.
fn read_any(path: &Path, code: i32) -> Result<Vec<Row>> {
    let text = fs::read_to_string(path).with_context(|| format!("the scenarios ended with {code} and left no rows"))?;
    let rows: Vec<Row> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("a row of the scenarios")?;
    anyhow::ensure!(!rows.is_empty(), "the scenarios ended with {code} and ran none");
    Ok(rows)
}

/// The rows of a run. Fails if the exit code does not fit the rows.
fn read(path: &Path, code: i32) -> Result<Vec<Row>> {
    let rows = read_any(path, code)?;
    let failed = rows.iter().any(|row| row.result == Outcome::Fail);
    // Any other exit code means that the run was killed, so rows are missing.
    anyhow::ensure!(code == i32::from(failed), "the scenarios ended with {code}, their rows say otherwise");
    Ok(rows)
}
