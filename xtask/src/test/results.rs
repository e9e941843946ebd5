//! What a run of the tests leaves behind: `cargo xtask confusion` prints its tables again.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use super::confusion::Table;
use super::matrix;
use super::rows::Run;
use crate::sh;

fn place() -> PathBuf {
    sh::target().join("runs.json")
}

/// Stores the results.
pub(crate) fn keep(runs: &[Run]) -> Result<()> {
    let place = place();
    fs::write(&place, serde_json::to_string(runs)?).with_context(|| format!("write {}", place.display()))
}

/// Prints the confusion table; each wrong cause counts as a failure.
pub(crate) fn confused(runs: &[Run]) -> usize {
    let table = Table::of(runs);
    print!("\n{}", table.text());
    table.wrong()
}

/// The command.
pub(crate) fn confusion() -> Result<()> {
    let place = place();
    let text = fs::read_to_string(&place)
        .with_context(|| format!("no results in {}: run `cargo xtask test` first", place.display()))?;
    let runs: Vec<Run> = serde_json::from_str(&text).with_context(|| format!("the results in {}", place.display()))?;
    matrix::print(matrix::SCENARIOS, &runs);
    match confused(&runs) {
        0 => Ok(()),
        wrong => bail!("{wrong} cells off the diagonal are not empty"),
    }
}
