//! The tracer of the tests, for what it prints.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

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

/// What a compressed recording has.
pub(crate) fn unpacked(recording: &Path) -> Result<String> {
    sh::capture(sh::command("gzip").args(["--decompress", "--stdout"]).arg(recording))
}
