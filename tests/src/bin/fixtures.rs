//! `cargo xtask fixtures`: makes a fixture for each cell of cause, Service proxy and address family.
//!
//! A fixture is `tests/fixtures/CAUSE/PROXY-FAMILY/` with the observations of one scenario. tracer recorded it on a
//! real kernel, and this program removes what the verdicts do not need. `--test recordings` has the decisions as
//! snapshots.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::Value;
use tracer_testbed::helper::Programs;
use tracer_testbed::scenario::all;
use tracer_tests::cells::cells;
use tracer_tests::recording::{Replayer, file, pack, shrink, unpacked};

#[derive(Parser)]
struct Args {
    /// Instead: compress what `scenarios --record FOLDER --json ROWS` left into the folder TO, where it lacks it
    #[arg(long, num_args = 3, value_names = ["FOLDER", "ROWS", "TO"])]
    keep: Option<Vec<PathBuf>>,
    /// Where to; default: tests/fixtures
    #[arg(long, value_name = "DIRECTORY", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures"), hide_default_value = true)]
    to: PathBuf,
    /// Only cells with this prefix, as `firewall_drop/any-v6`; repeatable
    #[arg(long, value_name = "CELL")]
    only: Vec<String>,
    /// Also those that are there already, and remove those that no scenario has any more
    #[arg(long)]
    all: bool,
    /// A folder of tests/recordings; repeatable: the first that has the scenario counts
    #[arg(long = "kernel", value_name = "KERNEL", default_values = ["6.18", "6.1"])]
    kernels: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let replayer = Replayer::new(Programs::beside()?.tracer())?;
    if let Some([records, rows, to]) = args.keep.as_deref() {
        return keep(&replayer, records, rows, to).map(|()| ExitCode::SUCCESS);
    }
    let cells = cells(&all());
    let mut failed = 0;
    for (cell, scenario) in cells.iter().filter(|(cell, _)| is_wanted(&args, cell)) {
        let made = cut(&args, &replayer, cell, scenario);
        failed += u8::from(made.is_err());
        println!("{cell:44} {}", made.unwrap_or_else(|error| format!("FAILED: {error:#}")));
    }
    if args.all && args.only.is_empty() {
        let is_known = |name: &str| cells.iter().any(|(cell, _)| cell == name);
        remove_others(&args.to, &args.to, &is_known)?;
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn is_wanted(args: &Args, cell: &str) -> bool {
    let named = args.only.is_empty() || args.only.iter().any(|only| cell.starts_with(only.as_str()));
    named && (args.all || !args.to.join(cell).join("observations.ndjson").is_file())
}

/// Makes one fixture, and returns a text about its size.
fn cut(args: &Args, replayer: &Replayer, cell: &str, scenario: &str) -> Result<String> {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings");
    let mut sources = args.kernels.iter().map(|kernel| file(&recordings.join(kernel), scenario));
    let source = sources
        .find(|source| source.is_file())
        .with_context(|| format!("no recording: cargo xtask test --host-only --record --only {scenario}"))?;
    let text = unpacked(&source)?;
    let made = shrink::shrink(&text, replayer)?;
    fs::create_dir_all(args.to.join(cell))?;
    fs::write(args.to.join(cell).join("observations.ndjson"), &made)?;
    let (before, after) = (text.len() / 1024, made.len() / 1024);
    Ok(format!("{scenario} ({before} KiB recorded, {after} KiB kept)"))
}

/// Removes fixtures without a cell.
fn remove_others(place: &Path, folder: &Path, is_known: &dyn Fn(&str) -> bool) -> Result<()> {
    for path in fs::read_dir(folder)?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        remove_others(place, &path, is_known)?;
        let name = path.strip_prefix(place)?.display().to_string();
        if path.join("observations.ndjson").is_file() && !is_known(&name) {
            println!("{name:44} removed: no scenario has it");
            fs::remove_file(path.join("observations.ndjson"))?;
            // Fails for a folder with other files, which stays.
            let _ = fs::remove_dir(&path);
        }
    }
    Ok(())
}

/// Keeps recordings of scenarios that passed and have no recording yet.
fn keep(replayer: &Replayer, records: &Path, rows: &Path, to: &Path) -> Result<()> {
    let text = fs::read_to_string(rows).with_context(|| format!("read {}", rows.display()))?;
    fs::create_dir_all(to)?;
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).with_context(|| format!("not a row: {line}"))?;
        let scenario = row["scenario"].as_str().with_context(|| format!("a row without a scenario: {line}"))?;
        let kept = file(to, scenario);
        if row["result"] != "pass" {
            continue;
        }
        if kept.is_file() {
            eprintln!("{scenario}: not recorded, {} exists; delete it first if it is to change", kept.display());
        } else {
            let source = records.join(format!("{scenario}.observations.ndjson"));
            let recording = fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
            let tidied = shrink::tidied(&recording, replayer).with_context(|| scenario.to_owned())?;
            pack(&tidied, &kept)?;
        }
    }
    Ok(fs::remove_dir_all(records)?)
}
