//! The tracer of the tests, for what it prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::sh;

/// Builds it.
pub(crate) fn build() -> Result<()> {
    let build = ["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"];
    sh::step("building tracer", || sh::run(&mut sh::cargo(&build)))
}

/// The program, in an environment that does not change what it prints.
pub(crate) fn command() -> Command {
    let mut tracer = sh::command(sh::debug_bin("tracer"));
    tracer.env_clear();
    tracer
}

/// What it prints.
pub(crate) fn output(args: &[&str]) -> Result<String> {
    sh::capture(command().args(args))
}

/// The records of a replay.
pub(crate) fn replay(recording: &Path) -> Result<Vec<Value>> {
    sh::records(&sh::capture(command().arg("replay").arg(recording).args(["-o", "json"]))?)
}

/// The verdicts among them: the others are about the run, such as the version.
pub(crate) fn verdicts(recording: &Path) -> Result<Vec<Value>> {
    let mut records = replay(recording)?;
    records.retain(|record| record["type"] == "verdict");
    Ok(records)
}

/// What a compressed recording has.
pub(crate) fn unpacked(recording: &Path) -> Result<String> {
    sh::capture(sh::command("gzip").args(["--decompress", "--stdout"]).arg(recording))
}

/// The recordings among the fixtures in a folder, sorted.
pub(crate) fn fixtures(place: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(fixtures(&path));
        } else if path.ends_with("observations.ndjson") {
            found.push(path);
        }
    }
    found.sort();
    found
}
