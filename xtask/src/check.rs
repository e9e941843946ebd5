//! `cargo xtask check`: the checks of CI. All of them run, and the end names those that failed.

mod circles;
mod commands;
mod links;
mod lints;
mod manifests;
mod names;
mod privileges;

use anyhow::{Result, bail};
use clap::builder::PossibleValuesParser;

use crate::{bless, setup, sh};

/// What to check.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Only these
    #[arg(value_name = "CHECK", value_parser = PossibleValuesParser::new(CHECKS.iter().map(|(name, _)| *name)))]
    only: Vec<String>,
}

type Check = (&'static str, fn() -> Result<()>);

const CHECKS: &[Check] = &[
    ("format", lints::format),
    ("names", names::check),
    ("licences", lints::licences),
    ("workflows", lints::workflows),
    ("links", links::check),
    ("circles", circles::check),
    ("commands", commands::check),
    ("manifests", manifests::check),
    ("privileges", privileges::check),
    ("alerts", lints::alerts),
    ("lints", lints::workspace),
    ("ebpf-lints", lints::ebpf),
    ("generated", bless::check),
];

pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    setup::ensure(setup::Purpose::Check)?;
    let chosen = CHECKS.iter().filter(|(name, _)| args.only.is_empty() || args.only.iter().any(|only| only == name));
    let mut failed = Vec::new();
    for (name, check) in chosen {
        if let Err(error) = sh::step(name, check) {
            eprintln!("xtask: {name}: {error:#}");
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        bail!("failed checks: {}", failed.join(", "));
    }
    Ok(())
}

/// The pages that are written by hand.
fn pages() -> Result<Vec<String>> {
    let list = [
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        "*.md",
        ":!docs/causes/README.md",
        ":!docs/evidence.md",
    ];
    Ok(sh::capture(sh::command("git").args(list))?.lines().map(str::to_owned).collect())
}
