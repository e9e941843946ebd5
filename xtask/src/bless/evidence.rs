//! `docs/evidence.md`: the evidence of each cause in the recordings of each kernel, from the snapshots.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};
use tracer_model::record::Cause;

use crate::sh;

const TEXT: &str = "# What proves each cause, by kernel

Each cell has the highest confidence that the recordings of that kernel reach. The evidence of those verdicts follows,
the most frequent first.

- \"note\": the cause was only noted beside the verdict's own cause (`also`).
- \"—\": no recording has that cause there. It may be shown all the same: 6.1, 6.12 and sid have only the scenarios with
  events that can differ by kernel.
- 5.10 is Debian's kernel with fentry and kprobes. 6.18 is a kernel with tracepoints only.
- \"kubelet 1.36\" are pods of a real kubelet on 6.18, \"fixtures\" the recordings in `tests/fixtures`.
  Causes that need no kernel hook are there: they rest on the kubelet's log.

";

/// The place of a confidence for a cause that only `also` has.
const NOTE: &str = "note";

/// For each confidence, or [`NOTE`]: the evidence, and the number of verdicts with it.
type Evidence = BTreeMap<String, BTreeMap<String, usize>>;

pub(super) fn page() -> Result<String> {
    let mut columns = BTreeMap::new();
    for (name, snapshot) in snapshots("kernels")? {
        columns.insert(version_key(&name), (name.replace('-', " "), by_cause(&snapshot)));
    }
    let fixtures = snapshots("decisions")?.into_values().collect::<String>();
    let fixtures = ("fixtures".to_owned(), by_cause(&fixtures));
    Ok(TEXT.to_owned() + &table(&columns.into_values().chain([fixtures]).collect::<Vec<_>>()))
}

fn snapshots(folder: &str) -> Result<BTreeMap<String, String>> {
    let folder = sh::root().join("tracer-userspace/tests/snapshots").join(folder);
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        // A test that fails leaves its results beside the snapshot, as `.snap.new`.
        if let Some(name) = file.strip_suffix(".snap") {
            texts.insert(name.to_owned(), fs::read_to_string(&path)?);
        }
    }
    Ok(texts)
}

/// The sort key of a kernel: 5.10 comes before 6.1.
fn version_key(kernel: &str) -> Vec<u32> {
    kernel.split('.').map(|it| it.parse().unwrap_or(u32::MAX)).collect()
}

fn by_cause(snapshot: &str) -> BTreeMap<String, Evidence> {
    let mut causes: BTreeMap<String, Evidence> = BTreeMap::new();
    for line in snapshot.lines().filter_map(|line| line.split_once("verdict +")) {
        let (Some(cause), Some(confidence)) = (line.1.split(' ').nth(1), line.1.split(' ').nth(3)) else { continue };
        for noted in list(line.1, "also=[") {
            causes.entry(noted.to_owned()).or_default().entry(NOTE.to_owned()).or_default();
        }
        let hooks = causes.entry(cause.to_owned()).or_default().entry(confidence.to_owned()).or_default();
        // What follows a comma within a field has no time.
        for (hook, _) in list(line.1, "evidence=[").filter_map(|item| item.split_once(['-', '+'])) {
            *hooks.entry(hook.to_owned()).or_default() += 1;
        }
    }
    causes
}

/// The items of a list in a line of a snapshot.
fn list<'a>(line: &'a str, start: &str) -> impl Iterator<Item = &'a str> {
    let items = line.split_once(start).and_then(|(_, rest)| rest.split_once(']'));
    items.into_iter().flat_map(|(items, _)| items.split(", "))
}

fn table(kernels: &[(String, BTreeMap<String, Evidence>)]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let names = kernels.iter().map(|(name, _)| name.clone());
    let mut out = row(std::iter::once("cause".to_owned()).chain(names).collect());
    out += &format!("|{}\n", "---|".repeat(kernels.len() + 1));
    for cause in Cause::ALL {
        let cells = kernels.iter().map(|(_, causes)| causes.get(cause.name()).map_or_else(|| "—".to_owned(), cell));
        out += &row(std::iter::once(format!("[`{cause}`](causes/{cause}.md)")).chain(cells).collect());
    }
    out
}

/// The highest confidence and its evidence.
fn cell(seen: &Evidence) -> String {
    let best = ["proven", "likely", "possible", NOTE].into_iter().find_map(|word| Some((word, seen.get(word)?)));
    let Some((word, hooks)) = best else { return "—".to_owned() };
    let mut hooks: Vec<(&String, &usize)> = hooks.iter().collect();
    hooks.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let hooks = hooks.iter().map(|(hook, _)| format!("`{hook}`")).collect::<Vec<_>>().join(", ");
    format!("{word}{}{hooks}", if hooks.is_empty() { "" } else { ": " })
}
