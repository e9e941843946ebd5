//! `cargo xtask build` and `build-ebpf`. The choice of the eBPF toolchain is made by `tracer-userspace/bpf/build.rs`.

use anyhow::Result;

use crate::sh;

/// What to build.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// With optimisation, as it is shipped
    #[arg(long)]
    release: bool,
}

/// Builds everything.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.release {
        return release();
    }
    sh::step("building", || sh::run(&mut sh::cargo(&["build", "--workspace"])))
}

/// The shipped binary and the programs of the tests, optimised.
pub(crate) fn release() -> Result<()> {
    let args = ["build", "--release", "-p", "tracer-userspace", "-p", "tracer-tests", "--bins"];
    sh::step("building the release binaries", || sh::run(&mut sh::cargo(&args)))
}

/// The same for the demo and the tests, in the one profile that they share.
pub(crate) fn programs() -> Result<()> {
    let args = ["build", "-p", "tracer-userspace", "-p", "tracer-tests", "--bins"];
    sh::step("building tracer and the programs of the tests", || sh::run(&mut sh::cargo(&args)))
}

/// The eBPF programs, by the build script that embeds them.
pub(crate) fn ebpf() -> Result<()> {
    let args = ["build", "-p", "tracer-bpf"];
    sh::step("building the eBPF programs", || sh::run(&mut sh::cargo(&args)))
}
