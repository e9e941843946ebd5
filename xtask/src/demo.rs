//! `cargo xtask demo`: the failures made in throw-away namespaces on this machine, each with its verdict.

use anyhow::Result;

use crate::{build, setup, sh};

/// The command.
pub(crate) fn run() -> Result<()> {
    sh::need_root("the demo makes network namespaces and loads eBPF programs")?;
    setup::ensure(setup::Purpose::Demo)?;
    build::programs()?;
    sh::run(sh::command(sh::debug_bin("demo")).arg("--tracer").arg(sh::debug_bin("tracer")))
}
