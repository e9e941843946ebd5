//! Keeps recordings of scenarios that passed and have no recording yet. `cargo xtask test --record` runs it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::Value;
use tracer_testbed::helper::Programs;
use tracer_tests::recording::{Replayer, file, pack, shrink};

#[derive(Parser)]
struct Args {
    /// The folder of `scenarios --record`. It is removed.
    records: PathBuf,
    /// The file of `scenarios --json`.
    rows: PathBuf,
    /// Where to: a folder of tests/recordings.
    to: PathBuf,
}

fn main() -> Result<()> {
    let Args { records, rows, to } = Args::parse();
    let replayer = Replayer::new(Programs::beside()?.tracer())?;
    let text = fs::read_to_string(&rows).with_context(|| format!("read {}", rows.display()))?;
    fs::create_dir_all(&to)?;
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).with_context(|| format!("not a row: {line}"))?;
        let scenario = row["scenario"].as_str().with_context(|| format!("a row without a scenario: {line}"))?;
        let kept = file(&to, scenario);
        if row["result"] != "pass" {
            continue;
        }
        if kept.is_file() {
            eprintln!("{scenario}: not recorded, {} exists; delete it first if it is to change", kept.display());
        } else {
            let source = records.join(format!("{scenario}.observations.ndjson"));
            let recording = fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
            let tidied = shrink::tidied(&recording, &replayer).with_context(|| scenario.to_owned())?;
            pack(&tidied, &kept)?;
        }
    }
    Ok(fs::remove_dir_all(records)?)
}
