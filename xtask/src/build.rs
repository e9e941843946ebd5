//! The binaries of the workspace, and the commands that only start one. `tracer-userspace/bpf/build.rs` chooses the
//! toolchain of the eBPF programs.

use anyhow::Result;

use crate::{setup, sh};

const BINARIES: [&str; 6] = ["build", "-p", "tracer-userspace", "-p", "tracer-tests", "--bins"];

/// Builds tracer and the programs of the tests in the profile that the demo and the tests share.
pub(crate) fn programs() -> Result<()> {
    sh::step("building tracer and the programs of the tests", || sh::run(&mut sh::cargo(&BINARIES)))
}

/// Builds the same programs in the release profile.
pub(crate) fn release() -> Result<()> {
    sh::step("building the release binaries", || sh::run(sh::cargo(&BINARIES).arg("--release")))
}

/// `cargo xtask demo`: makes failures in temporary namespaces on this machine, and shows their verdicts.
pub(crate) fn demo() -> Result<()> {
    sh::need_root("the demo makes network namespaces and loads eBPF programs")?;
    setup::ensure(setup::Purpose::Demo)?;
    programs()?;
    sh::run(sh::command(sh::debug_bin("demo")).arg("--tracer").arg(sh::debug_bin("tracer")))
}

/// `cargo xtask bench`: runs the benchmark in `tests/benches/cost` with the release binaries.
pub(crate) fn bench(options: &[String]) -> Result<()> {
    sh::need_root("bench attaches eBPF programs and makes network namespaces")?;
    release()?;
    sh::run(sh::cargo(&["bench", "--package", "tracer-tests", "--bench", "cost", "--"]).args(options))
}
