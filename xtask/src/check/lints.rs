//! rustfmt, clippy and cargo-deny, for the workspace and for the eBPF programs, which are outside of it;
//! promtool, actionlint and zizmor for alerts and workflows.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::deploy::place;
use crate::{packages, setup, sh};

const EBPF: &str = "tracer-ebpf/Cargo.toml";
const TARGET: &str = "bpfel-unknown-none";
/// The features of each form of the programs.
const FORMS: [&str; 2] = ["", "typed-loads"];

pub(crate) fn format() -> Result<()> {
    sh::run(&mut sh::cargo(&["fmt", "--all", "--check"]))?;
    sh::run(&mut sh::cargo(&["fmt", "--manifest-path", EBPF, "--check"]))
}

/// Checks each crate by the rules of deny.toml. Advisories are skipped, because they need a download.
pub(crate) fn licences() -> Result<()> {
    let Some(programs) = packages::programs()? else { return Ok(()) };
    for manifest in ["Cargo.toml", EBPF] {
        let mut deny = sh::command(programs.join("cargo-deny"));
        deny.args(["--log-level", "error", "--locked", "--manifest-path", manifest, "--config", "deny.toml"]);
        // deny.toml is for both manifests, and one of them need not have each allowed licence.
        deny.args(["check", "--hide-inclusion-graph", "--allow", "license-not-encountered"]);
        sh::run(deny.args(["licenses", "bans", "sources"]))?;
    }
    Ok(())
}

/// Checks the workflows: actionlint finds errors, zizmor finds security problems.
pub(crate) fn workflows() -> Result<()> {
    let Some(programs) = packages::programs()? else { return Ok(()) };
    sh::run(&mut sh::command(programs.join("actionlint")))?;
    sh::run(sh::command(programs.join("zizmor")).args(["--offline", "--no-progress", "--quiet", ".github"]))
}

/// Checks the alert rules with promtool, and runs their tests.
pub(crate) fn alerts() -> Result<()> {
    let Some(promtool) = packages::find("usr/bin/promtool", "prometheus")? else { return Ok(()) };
    for (action, file) in [("check", "tracer.rules.yaml"), ("test", "tracer.test.yaml")] {
        sh::capture(sh::command(&promtool).args([action, "rules"]).arg(place().join("alerts").join(file)))
            .context(file)?;
    }
    Ok(())
}

pub(crate) fn workspace() -> Result<()> {
    let args = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    sh::run(&mut sh::cargo(&args))
}

/// Runs clippy on the eBPF programs for their own target.
pub(crate) fn ebpf() -> Result<()> {
    match setup::rustup_toolchain() {
        Some(toolchain) => FORMS.iter().try_for_each(|features| sh::run(&mut by_rustup(&toolchain, features))),
        None if Path::new("/usr/bin/clippy-driver").is_file() => {
            FORMS.iter().try_for_each(|features| sh::run(&mut by_debian(features)))
        }
        None => Err(sh::missing(format!("no clippy for the BPF target: install rust-web-clippy{}", setup::hint()))),
    }
}

/// clippy of a rustup toolchain. It compiles `core` for BPF from its sources.
fn by_rustup(toolchain: &str, features: &str) -> Command {
    let mut cargo = sh::command("rustup");
    cargo.args(["run", toolchain, "cargo", "clippy", "-Zbuild-std=core"]);
    cargo.args(["--quiet", "--manifest-path", EBPF, "--release", "--target", TARGET, "--bin", "tracer"]);
    settings(&mut cargo, features);
    cargo.args(["--", "-D", "warnings"]);
    cargo
}

/// Debian's clippy with its compiled `core` for BPF. Debian's compiler has no cargo, so the current cargo calls it.
fn by_debian(features: &str) -> Command {
    let mut cargo = sh::cargo(&["check", "--quiet", "--manifest-path", EBPF, "--release", "--target", TARGET]);
    cargo.args(["--bin", "tracer"]);
    settings(&mut cargo, features);
    cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_WORKSPACE_WRAPPER", "/usr/bin/clippy-driver");
    cargo.env("CLIPPY_ARGS", "-Dwarnings");
    cargo
}

fn settings(cargo: &mut Command, features: &str) {
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", r#"--cfg=bpf_target_arch="x86_64""#);
    cargo.arg("--target-dir").arg(sh::target().join("ebpf-clippy")).args(["--features", features]);
}
