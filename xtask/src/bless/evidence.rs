//! `docs/evidence.md`: the evidence of each cause on each kernel with recordings, from the snapshots.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

use crate::sh;

const TEXT: &str = "# What proves each cause, by kernel

Each cell has the highest confidence that the recorded scenarios reach on that kernel. The evidence of those verdicts
follows, the most frequent first. \"—\": no recorded scenario gets that cause there. 5.10 is Debian's kernel with fentry and
kprobes. 6.18 is a kernel with tracepoints only. On the others only scenarios with events that can differ were recorded.

";

/// For each confidence: its evidence, and the number of verdicts with it.
type Seen = BTreeMap<String, BTreeMap<String, usize>>;

/// The page. `index` lists the causes in their order.
pub(super) fn page(index: &str) -> Result<String> {
    let folder = sh::root().join("tracer-userspace/tests/snapshots/kernels");
    let mut kernels = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        // Recordings of a real kubelet are no scenarios.
        if !name.starts_with("kubelet") {
            kernels.insert(version_key(&name), (name, by_cause(&fs::read_to_string(&path)?)));
        }
    }
    Ok(TEXT.to_owned() + &table(index, &kernels.into_values().collect::<Vec<_>>()))
}

/// The sort key of a kernel: 5.10 comes before 6.1.
fn version_key(kernel: &str) -> Vec<u32> {
    kernel.split('.').map(|it| it.parse().unwrap_or(u32::MAX)).collect()
}

fn by_cause(snapshot: &str) -> BTreeMap<String, Seen> {
    let mut causes: BTreeMap<String, Seen> = BTreeMap::new();
    for line in snapshot.lines().filter_map(|line| line.split_once(" | verdict ")) {
        let (Some(cause), Some(confidence)) = (line.1.split(' ').nth(1), line.1.split(' ').nth(3)) else { continue };
        let evidence = line.1.split_once("evidence=[").and_then(|(_, rest)| rest.split_once(']'));
        let hooks = causes.entry(cause.to_owned()).or_default().entry(confidence.to_owned()).or_default();
        for hook in evidence.into_iter().flat_map(|(list, _)| list.split(", ")) {
            *hooks.entry(hook.split(['-', '+']).next().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }
    causes
}

fn table(index: &str, kernels: &[(String, BTreeMap<String, Seen>)]) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let names = kernels.iter().map(|(name, _)| name.clone());
    let mut out = row(std::iter::once("cause".to_owned()).chain(names).collect());
    out += &format!("|{}\n", "---|".repeat(kernels.len() + 1));
    for cause in index.lines().filter_map(|line| line.strip_prefix("| [`")?.split('`').next()) {
        let cells = kernels.iter().map(|(_, causes)| causes.get(cause).map_or_else(|| "—".to_owned(), cell));
        out += &row(std::iter::once(format!("[`{cause}`](causes/{cause}.md)")).chain(cells).collect());
    }
    out
}

/// The highest confidence and its evidence.
fn cell(seen: &Seen) -> String {
    let best = ["proven", "likely", "possible"].into_iter().find_map(|word| Some((word, seen.get(word)?)));
    let Some((word, hooks)) = best else { return "—".to_owned() };
    let mut hooks: Vec<(&String, &usize)> = hooks.iter().collect();
    hooks.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let hooks = hooks.iter().map(|(hook, _)| format!("`{hook}`")).collect::<Vec<_>>().join(", ");
    format!("{word}{}{hooks}", if hooks.is_empty() { "" } else { ": " })
}
