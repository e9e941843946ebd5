//! rustfmt, clippy and cargo-deny, for the workspace and for the eBPF programs, which are outside of it;
//! promtool, actionlint and zizmor for alerts and workflows.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::deploy::place;
use crate::{packages, setup, sh};

const EBPF: &str = "tracer-ebpf/Cargo.toml";
const TARGET: &str = "bpfel-unknown-none";

/// Formatted as rustfmt does.
pub(crate) fn format() -> Result<()> {
    sh::run(&mut sh::cargo(&["fmt", "--all", "--check"]))?;
    sh::run(&mut sh::cargo(&["fmt", "--manifest-path", EBPF, "--check"]))
}

/// Every crate may be linked in, by deny.toml. Advisories are left out: they need a database that is downloaded.
pub(crate) fn licences() -> Result<()> {
    let Some(programs) = packages::programs()? else { return Ok(()) };
    for manifest in ["Cargo.toml", EBPF] {
        let mut deny = sh::command(programs.join("cargo-deny"));
        deny.args(["--log-level", "error", "--locked", "--manifest-path", manifest, "--config", "deny.toml"]);
        // An allowed licence that only one of the two has is no fault of the other.
        deny.args(["check", "--hide-inclusion-graph", "--allow", "license-not-encountered"]);
        sh::run(deny.args(["licenses", "bans", "sources"]))?;
    }
    Ok(())
}

/// The workflows: what their host would refuse, and what would let others in.
pub(crate) fn workflows() -> Result<()> {
    let Some(programs) = packages::programs()? else { return Ok(()) };
    sh::run(&mut sh::command(programs.join("actionlint")))?;
    sh::run(sh::command(programs.join("zizmor")).args(["--offline", "--no-progress", "--quiet", ".github"]))
}

/// promtool finds no fault in the alert rules, and their tests pass.
pub(crate) fn alerts() -> Result<()> {
    let Some(promtool) = packages::find("usr/bin/promtool", "prometheus")? else { return Ok(()) };
    for (action, file) in [("check", "tracer.rules.yaml"), ("test", "tracer.test.yaml")] {
        sh::capture(sh::command(&promtool).args([action, "rules"]).arg(place().join("alerts").join(file)))
            .context(file)?;
    }
    Ok(())
}

/// clippy finds nothing.
pub(crate) fn workspace() -> Result<()> {
    let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    sh::run(&mut sh::cargo(&args))
}

/// clippy finds nothing in the eBPF programs, compiled for their own target.
pub(crate) fn ebpf() -> Result<()> {
    match setup::rustup_route() {
        Some(toolchain) => sh::run(&mut by_rustup(&toolchain)),
        None if Path::new("/usr/bin/clippy-driver").is_file() => sh::run(&mut by_debian()),
        None => Err(sh::missing(format!("no clippy for the BPF target: install rust-web-clippy{}", setup::hint()))),
    }
}

/// A toolchain with the sources of `core`, which it compiles for BPF.
fn by_rustup(toolchain: &str) -> Command {
    let mut cargo = sh::command("rustup");
    cargo.args(["run", toolchain, "cargo", "clippy", "-Zbuild-std=core"]);
    cargo.args(["--quiet", "--manifest-path", EBPF, "--release", "--target", TARGET, "--bin", "tracer"]);
    settings(&mut cargo);
    cargo.args(["--", "-D", "warnings"]);
    cargo
}

/// Debian's compiler with its ready `core` for BPF. It has no cargo: ours drives it.
fn by_debian() -> Command {
    let mut cargo = sh::cargo(&["check", "--quiet", "--manifest-path", EBPF, "--release", "--target", TARGET]);
    cargo.args(["--bin", "tracer"]);
    settings(&mut cargo);
    cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_WORKSPACE_WRAPPER", "/usr/bin/clippy-driver");
    cargo.env("CLIPPY_ARGS", "-Dwarnings");
    cargo
}

fn settings(cargo: &mut Command) {
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", r#"--cfg=bpf_target_arch="x86_64""#);
    cargo.arg("--target-dir").arg(sh::target().join("ebpf-clippy"));
}
