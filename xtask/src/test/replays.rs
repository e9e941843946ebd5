//! Records the scenarios, those that this kernel cannot play in one virtual machine, and replays each recording here as a
//! user without privileges: the verdicts must be the same.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Args, Outcome, Tally};
use crate::recordings::Recorder;
use crate::sh;

/// The kernel of the recordings that this one cannot make: it has IPVS.
const MACHINE: &str = "6.1";
/// `nobody`.
const NOBODY: u32 = 65534;

/// Records and replays.
pub(crate) fn run(args: &Args) -> Result<Tally> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("xtask: recordings of this kernel need root: left out");
        return Ok(Tally::default());
    }
    let place = sh::target().join("records");
    record(args, &place)?;
    sh::step("replaying the recordings without privileges", || replay_all(&place))
}

/// What fails here is in the tally of the live run or of the replays: the recordings are what counts.
fn record(args: &Args, place: &Path) -> Result<()> {
    let recorder = Recorder {
        programs: sh::target().join("trial"),
        names: args.only.clone(),
        exact: false,
        machine: super::releases(args).into_iter().find(|release| release.name == MACHINE),
    };
    for row in recorder.record(place)?.iter().filter(|row| row.result == Outcome::Fail) {
        eprintln!("xtask: recording: {}: {}", row.scenario, row.reason.as_deref().unwrap_or("failed"));
    }
    Ok(())
}

fn replay_all(place: &Path) -> Result<Tally> {
    let stage = Stage::new()?;
    let mut tally = Tally::default();
    for observations in recordings(place)? {
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

/// The recordings of a directory, sorted.
fn recordings(place: &Path) -> Result<Vec<PathBuf>> {
    let files = fs::read_dir(place).with_context(|| format!("no recordings in {}", place.display()))?;
    let is_recording = |path: &PathBuf| path.to_string_lossy().ends_with(".observations.ndjson");
    let mut recordings: Vec<_> = files.flatten().map(|file| file.path()).filter(is_recording).collect();
    recordings.sort();
    Ok(recordings)
}

/// One replay by `nobody`, compared with the records of the live run.
fn replay(stage: &Stage, observations: &Path) -> Result<()> {
    let records = observations.to_string_lossy().replace(".observations.", ".records.");
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
        stage.copy(&sh::trial_bin("tracer"), "tracer", 0o755)?;
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
