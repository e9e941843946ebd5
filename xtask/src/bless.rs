//! `cargo xtask bless`: makes the generated files again; `--check` says which are out of date.
//!
//! They are the list of the causes (`docs/causes/README.md`), the schema of the records (`docs/schema.json`), the incidents
//! (`docs/incidents.md`) the picture of README (`docs/attach.svg`) and a page of `tracer report`
//! (`docs/report-example.html`), which come out of the tracer itself,
//! and the plain manifest (`deploy/daemonset.yaml`). The snapshots of tests are not among them: `cargo insta` has those.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{deploy, picture, report, sh, transcripts};

/// What to do with the generated files.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Change nothing; fail if a file is out of date
    #[arg(long)]
    check: bool,
}

/// Contents of generated files; none: the file must not be.
type Files = BTreeMap<PathBuf, Option<String>>;

/// The command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.check { check() } else { bless() }
}

/// Fails if a generated file is not what the tracer makes now.
pub(crate) fn check() -> Result<()> {
    let stale = stale()?;
    if stale.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = stale.keys().map(|path| shown(path)).collect();
    bail!("generated files are out of date, run `cargo xtask bless` and look at the changes: {}", names.join(", "))
}

fn bless() -> Result<()> {
    for (path, content) in stale()? {
        println!("{}", shown(&path));
        if let Some(content) = content {
            fs::create_dir_all(path.parent().unwrap_or(sh::root()))?;
            fs::write(&path, content)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    path.strip_prefix(sh::root()).unwrap_or(path).display().to_string()
}

/// Those files that are not as they should be.
fn stale() -> Result<Files> {
    let build = ["build", "--quiet", "-p", "tracer-userspace", "--bin", "tracer"];
    sh::step("building the tracer that makes the files", || sh::run(&mut sh::cargo(&build)))?;
    let mut files = Files::new();
    files.insert(sh::root().join("docs/causes/README.md"), Some(tracer(&["explain", "--markdown"])?));
    files.insert(sh::root().join("docs/schema.json"), Some(tracer(&["schema"])?));
    let page = sh::root().join("docs/incidents.md");
    let told = transcripts::told(&fs::read_to_string(&page)?, &sh::debug_bin("tracer"))?;
    files.insert(page, Some(told));
    files.insert(sh::root().join("docs/report-example.html"), Some(report::example(&sh::debug_bin("tracer"))?));
    files.insert(sh::root().join("docs/attach.svg"), Some(picture::drawn(&sh::debug_bin("tracer"))?));
    files.extend(deploy::generated()?);
    files.retain(|path, content| fs::read_to_string(path).ok() != *content);
    Ok(files)
}

/// The folders with a recording, sorted.
pub(crate) fn cases(place: &Path) -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for folder in fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if folder.join("observations.ndjson").is_file() {
            cases.push(folder.clone());
        }
        if folder.is_dir() {
            cases.extend(self::cases(&folder));
        }
    }
    cases.sort();
    cases
}

/// The verdicts of a replay. The number of a record counts those before it that are no verdicts.
pub(crate) fn golden(program: &Path, observations: &Path) -> Result<String> {
    let input = observations.to_str().context("the name of a fixture is not UTF-8")?;
    verdicts(&tracer_at(program, &["replay", input, "--output", "ndjson"])?)
}

/// The verdicts among the records: the others tell of the run, such as the version.
fn verdicts(text: &str) -> Result<String> {
    let records = sh::records(text)?;
    let verdicts = text.lines().zip(records).filter(|(_, record)| record["type"] == "verdict");
    Ok(verdicts.map(|(line, _)| format!("{line}\n")).collect())
}

/// What the tracer prints; its environment must not change it.
fn tracer(args: &[&str]) -> Result<String> {
    tracer_at(&sh::debug_bin("tracer"), args)
}

fn tracer_at(program: &Path, args: &[&str]) -> Result<String> {
    let mut tracer = sh::command(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TRACER_") {
            tracer.env_remove(name);
        }
    }
    sh::capture(tracer.args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verdicts_are_golden() {
        let records = "{\"type\":\"start\"}\n{\"type\":\"verdict\",\"seq\":1}\n{\"type\":\"stop\"}\n";
        assert_eq!(verdicts(records).ok().as_deref(), Some("{\"type\":\"verdict\",\"seq\":1}\n"));
        assert!(verdicts("nonsense").is_err());
    }
}
