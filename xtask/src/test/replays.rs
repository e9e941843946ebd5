//! Records the scenarios, those that this kernel cannot play in one virtual machine, and replays each recording here as a
//! user without privileges: the verdicts must be the same.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::scenarios::Run;
use super::{Args, Outcome, Row, Tally};
use crate::recordings::Recorder;
use crate::sh;

/// The kernel of the recordings that this one cannot make: it has IPVS.
const MACHINE: &str = "6.1";
/// `nobody`.
const NOBODY: u32 = 65534;

/// Records and replays.
pub(crate) fn run(args: &Args, here: &[Row]) -> Result<Tally> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("xtask: recordings of this kernel need root: left out");
        return Ok(Tally::default());
    }
    let place = sh::target().join("records");
    let rows = record(args, here, &place)?;
    let mut tally = sh::step("replaying the recordings without privileges", || replay_all(&place, &rows))?;
    let recorded = Run::new("recorded".to_owned(), Ok(rows));
    let Tally { failed, second, .. } = recorded.tally();
    (tally.failed, tally.second) = (tally.failed + failed, tally.second + second);
    Ok(tally)
}

/// Each scenario once more, now by `tracer record`: its verdicts must be right, too.
fn record(args: &Args, here: &[Row], place: &Path) -> Result<Vec<Row>> {
    let recorder = Recorder {
        programs: sh::target().join("debug"),
        names: if args.few_recordings { one_of_each(here) } else { args.only.clone() },
        exact: args.few_recordings,
        machine: super::releases(args).into_iter().find(|release| release.name == MACHINE),
    };
    let rows = recorder.record(place)?;
    for row in rows.iter().filter(|row| matches!(row.result, Outcome::Pass | Outcome::Fail)) {
        if let Some(why) = &row.reason {
            println!(
                "{:6} recording of {}: {why}",
                if row.result == Outcome::Fail { "FAIL" } else { "pass" },
                row.scenario
            );
        }
    }
    Ok(rows)
}

/// The first scenario of each label, proxy and family that this kernel could play.
fn one_of_each(here: &[Row]) -> Vec<String> {
    let mut had = BTreeSet::new();
    let played = here.iter().filter(|row| matches!(row.result, Outcome::Pass | Outcome::Fail));
    let first = played.filter(|row| had.insert((&row.label, &row.proxy, &row.family)));
    first.map(|row| row.scenario.clone()).collect()
}

/// The recordings of the scenarios that passed.
fn replay_all(place: &Path, rows: &[Row]) -> Result<Tally> {
    let stage = Stage::new()?;
    let mut tally = Tally::default();
    for row in rows.iter().filter(|row| row.result == Outcome::Pass) {
        let observations = place.join(format!("{}.observations.ndjson", row.scenario));
        match replay(&stage, &observations) {
            Ok(()) => tally.passed += 1,
            Err(error) => {
                tally.failed += 1;
                println!("FAIL   replay of {}: {error:#}", observations.display());
            }
        }
    }
    if tally == Tally::default() {
        println!("FAIL   there is no recording in {}", place.display());
        tally.failed = 1;
    }
    println!("{} recordings replayed alike, {} not", tally.passed, tally.failed);
    Ok(tally)
}

/// One replay by `nobody`, compared with the records of the live run.
fn replay(stage: &Stage, observations: &Path) -> Result<()> {
    let records = observations.to_string_lossy().replace(".observations.", ".live.");
    let input = stage.copy(observations, "observations.ndjson", 0o644)?;
    let expected = stage.copy(Path::new(&records), "records.ndjson", 0o644)?;
    let mut tracer = Command::new(stage.0.join("tracer"));
    tracer.env_clear().current_dir("/").uid(NOBODY).gid(NOBODY).arg("replay").arg(input);
    tracer.args(["-o", "ndjson", "--compare"]).arg(expected);
    sh::capture(&mut tracer).map(drop)
}

/// A directory that `nobody` can read, with the tracer in it; gone at the end.
struct Stage(PathBuf);

impl Stage {
    fn new() -> Result<Self> {
        let place = std::env::temp_dir().join(format!("tracer-replay-{}", std::process::id()));
        fs::create_dir_all(&place)?;
        fs::set_permissions(&place, Permissions::from_mode(0o755))?;
        let stage = Self(place);
        stage.copy(&sh::debug_bin("tracer"), "tracer", 0o755)?;
        Ok(stage)
    }

    fn copy(&self, from: &Path, name: &str, mode: u32) -> Result<PathBuf> {
        let to = self.0.join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        fs::set_permissions(&to, Permissions::from_mode(mode))?;
        Ok(to)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_scenario_of_each_kind_is_recorded() {
        let row = |scenario: &str, label: Option<&str>, family: &str, result| Row {
            scenario: scenario.to_owned(),
            label: label.map(str::to_owned),
            proxy: "any".to_owned(),
            family: family.to_owned(),
            result,
            reason: None,
            said: Vec::new(),
        };
        let rows = [
            row("healthy", None, "v4", Outcome::Pass),
            row("ipvs", Some("firewall_drop"), "v4", Outcome::Cannot),
            row("drop", Some("firewall_drop"), "v4", Outcome::Pass),
            row("drop_again", Some("firewall_drop"), "v4", Outcome::Pass),
            row("drop_v6", Some("firewall_drop"), "v6", Outcome::Fail),
        ];
        assert_eq!(one_of_each(&rows), ["healthy", "drop", "drop_v6"]);
    }
}
