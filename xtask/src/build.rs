//! The binaries that other commands start. `tracer-userspace/bpf/build.rs` chooses the toolchain of the eBPF programs.

use anyhow::Result;

use crate::sh;

const BINARIES: [&str; 6] = ["build", "-p", "tracer-userspace", "-p", "tracer-tests", "--bins"];

/// Builds tracer and the programs of the tests in the profile that the demo and the tests share.
pub(crate) fn programs() -> Result<()> {
    sh::step("building tracer and the programs of the tests", || sh::run(&mut sh::cargo(&BINARIES)))
}

/// Builds the same programs in the release profile.
pub(crate) fn release() -> Result<()> {
    sh::step("building the release binaries", || sh::run(sh::cargo(&BINARIES).arg("--release")))
}
