//! The doctor's check of the hooks on a kernel of the tests: the program types. The verifier may refuse no program:
//! tracer would use another program type instead, and nobody would notice its higher cost.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::rows::{Outcome, Row, Run};
use crate::sh;

/// The line in the table.
const LINE: &str = "(hooks: none refused by the verifier)";

pub(super) fn command(records: &Path) -> Vec<String> {
    let words = ["doctor", "--check", "tracer_hooks", "-o", "json", "--output-file"].map(str::to_owned);
    let [tracer, records] = [&sh::debug_bin("tracer"), records].map(|path| path.display().to_string());
    [tracer].into_iter().chain(words).chain([records]).collect()
}

/// Adds the records to a run: the program types, and a row.
pub(super) fn add(records: &Path, run: &mut Run) {
    let read = std::fs::read_to_string(records).context("the check left no record").and_then(|text| types(&text));
    let row = Row::failed("hooks", Some(LINE.to_owned()), "");
    run.rows.push(match &read {
        Ok(_) => Row { result: Outcome::Pass, reason: None, ..row },
        Err(error) => Row { reason: Some(format!("{error:#}")), ..row },
    });
    run.programs = read.unwrap_or_default();
}

/// The number of hooks of each program type.
fn types(text: &str) -> Result<String> {
    let mut types: BTreeMap<String, usize> = BTreeMap::new();
    for line in text.lines() {
        let finding: Value = serde_json::from_str(line).with_context(|| format!("not a record: {line}"))?;
        let hooks = finding["fields"]["hooks"].as_array();
        for hook in hooks.with_context(|| format!("no hooks: {}", finding["observed"]))? {
            for tried in hook["tried"].as_array().context("a hook without `tried`")? {
                if tried["reason"].as_str().context("a refusal without a reason")?.contains("verifier") {
                    bail!("{} as {}: {}", hook["hook"], tried["program_type"], tried["reason"]);
                }
            }
            if let Some(program_type) = hook["program_type"].as_str() {
                *types.entry(program_type.to_owned()).or_default() += 1;
            }
        }
    }
    ensure!(!types.is_empty(), "the check named no hook");
    Ok(types.iter().map(|(program_type, hooks)| format!("{program_type} {hooks}")).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_counted_and_a_refusal_by_the_verifier_is_an_error() {
        let hook = |name: &str, reason: &str| serde_json::json!({"program_type": name, "tried": [{"program_type": "fentry", "reason": reason}]});
        let finding = |hooks: &[Value]| serde_json::json!({"fields": {"hooks": hooks}}).to_string();
        assert!(types(&finding(&[hook("kprobe", "tcp_connect: the kernel's verifier refuses the program")])).is_err());
        let hooks = ["kprobe", "cgroup", "kprobe"].map(|name| hook(name, "no such function in this kernel"));
        assert_eq!(types(&finding(&hooks)).ok().as_deref(), Some("cgroup 1, kprobe 2"));
        assert!(types("").is_err());
    }
}
