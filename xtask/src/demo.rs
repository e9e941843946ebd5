//! `cargo xtask demo`: makes failures in temporary namespaces on this machine, and shows their verdicts.

use anyhow::Result;

use crate::{build, setup, sh};

/// The command.
pub(crate) fn run() -> Result<()> {
    sh::need_root("the demo makes network namespaces and loads eBPF programs")?;
    setup::ensure(setup::Purpose::Demo)?;
    build::programs()?;
    sh::run(sh::command(sh::debug_bin("demo")).arg("--tracer").arg(sh::debug_bin("tracer")))
}
