//! Recordings of the scenarios: of this kernel, and, of those that it cannot play, of a virtual machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::sh;
use crate::test::{Outcome, Row, read_rows, second_chance};
use crate::vm::{self, Job, Release};

/// What is recorded, and by which programs.
pub(crate) struct Recorder {
    /// Where `scenarios` and `tracer` are.
    pub(crate) programs: PathBuf,
    /// Scenarios; all of them if there are none.
    pub(crate) names: Vec<String>,
    /// The names are whole names and not beginnings.
    pub(crate) exact: bool,
    /// For the scenarios that this kernel cannot play.
    pub(crate) machine: Option<&'static Release>,
}

impl Recorder {
    /// Records into a directory; the rows say what became of each scenario.
    pub(crate) fn record(&self, place: &Path) -> Result<Vec<Row>> {
        let _ = fs::remove_dir_all(place);
        fs::create_dir_all(place)?;
        let mut rows =
            sh::step("recording the scenarios on this kernel", || self.here(&self.names, self.exact, place))?;
        rows = second_chance(rows, |failed| self.here(failed, true, place));
        let lacking: Vec<String> =
            rows.iter().filter(|row| row.result == Outcome::Cannot).map(|row| row.scenario.clone()).collect();
        if let Some(release) = self.machine.filter(|_| !lacking.is_empty()) {
            let what = format!("recording {} more on kernel {}", lacking.len(), release.name);
            let more = sh::step(&what, || self.there(release, &lacking, place))?;
            let more = second_chance(more, |failed| self.there(release, failed, place));
            rows.retain(|row| !more.iter().any(|other| other.scenario == row.scenario));
            rows.extend(more);
        }
        Ok(rows)
    }

    fn here(&self, names: &[String], exact: bool, place: &Path) -> Result<Vec<Row>> {
        let rows = sh::target().join("recorded.ndjson");
        let _ = fs::remove_file(&rows);
        let words = self.command(place, &rows, names, exact);
        let status = sh::command(&words[0]).args(&words[1..]).status().context("cannot start the scenarios")?;
        read_rows(&rows, status.code().unwrap_or(-1))
    }

    /// A machine writes into its own directory only: what it leaves there is fetched.
    fn there(&self, release: &'static Release, names: &[String], place: &Path) -> Result<Vec<Row>> {
        let shared = vm::directory(release);
        let (rows, left) = (shared.join("recorded.ndjson"), shared.join("recordings"));
        let _ = (fs::remove_file(&rows), fs::remove_dir_all(&left));
        fs::create_dir_all(&left)?;
        let job = Job {
            release,
            command: self.command(&left, &rows, names, true),
            directory: sh::root().to_owned(),
            limit: Duration::from_secs(30 * 60),
            echo: false,
        };
        let recorded = read_rows(&rows, job.run_to_its_end()?)?;
        for file in fs::read_dir(&left)?.flatten() {
            fs::copy(file.path(), place.join(file.file_name()))?;
        }
        Ok(recorded)
    }

    fn command(&self, place: &Path, rows: &Path, names: &[String], exact: bool) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let programs = [self.programs.join("scenarios"), self.programs.join("tracer")];
        let mut words = vec![path(&programs[0]), "--tracer".into(), path(&programs[1])];
        words.extend(["--record".into(), path(place), "--json".into(), path(rows)]);
        words.extend(exact.then(|| "--exact".into()));
        if !names.is_empty() {
            words.push("--only".into());
            words.extend(names.iter().cloned());
        }
        words
    }
}
