//! Runs the debug build of tracer for its output.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::sh;

pub(crate) fn build() -> Result<()> {
    let build = ["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"];
    sh::step("building tracer", || sh::run(&mut sh::cargo(&build)))
}

/// tracer with an empty environment, so that no variable changes its output.
pub(crate) fn command() -> Command {
    let mut tracer = sh::command(sh::debug_bin("tracer"));
    tracer.env_clear();
    tracer
}

pub(crate) fn output(args: &[&str]) -> Result<String> {
    sh::capture(command().args(args))
}

pub(crate) fn unpacked(recording: &Path) -> Result<String> {
    sh::capture(sh::command("gzip").args(["--decompress", "--stdout"]).arg(recording))
}
