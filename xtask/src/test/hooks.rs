//! `tracer hooks` on a kernel of the tests: the program types there. None of our programs may be refused by the verifier:
//! another type takes its place, and nobody notices what that costs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::rows::{Outcome, Row, Run};
use crate::sh;

/// The line of the table.
const LINE: &str = "(hooks: none refused by the verifier)";

/// What is read of a `finding` record.
#[derive(Deserialize)]
struct Finding {
    check: String,
    fields: Fields,
}

#[derive(Deserialize)]
struct Fields {
    form: Option<String>,
    tried: Vec<Tried>,
}

#[derive(Deserialize)]
struct Tried {
    form: String,
    reason: String,
}

/// The command that leaves its records there.
pub(super) fn command(records: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let words = ["hooks", "--duration", "100ms", "-o", "json", "--output-file"].map(str::to_owned);
    [path(&sh::debug_bin("tracer"))].into_iter().chain(words).chain([path(records)]).collect()
}

/// Adds the records to a run: the program types, and a row.
pub(super) fn add(records: &Path, run: &mut Run) {
    let read = std::fs::read_to_string(records).context("it left no records").and_then(|text| types(&text));
    let mut row = Row::failed("hooks", Some(LINE.to_owned()), "");
    match read {
        Ok(types) => {
            (row.result, row.reason) = (Outcome::Pass, None);
            run.programs = types;
        }
        Err(error) => row.reason = Some(format!("{error:#}")),
    }
    run.rows.push(row);
}

/// How many hooks have which program type.
fn types(text: &str) -> Result<String> {
    let findings: Vec<Finding> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let tried = findings.iter().flat_map(|of| of.fields.tried.iter().map(move |tried| (of, tried)));
    if let Some((of, tried)) = tried.into_iter().find(|(_, tried)| tried.reason.contains("verifier")) {
        bail!("{} as {}: {}", of.check, tried.form, tried.reason);
    }
    let mut types: BTreeMap<&str, usize> = BTreeMap::new();
    for form in findings.iter().filter_map(|finding| finding.fields.form.as_deref()) {
        *types.entry(form).or_default() += 1;
    }
    anyhow::ensure!(!types.is_empty(), "it named no hook");
    Ok(types.iter().map(|(form, hooks)| format!("{form} {hooks}")).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_refuses_nothing_and_the_types_are_counted() {
        let line = |form: &str, reason: &str| {
            format!(
                r#"{{"check":"hooks/tcp_connect","fields":{{"form":"{form}","tried":[{{"form":"fentry","reason":"{reason}"}}]}}}}"#
            )
        };
        assert!(types(&line("kprobe", "tcp_connect: the kernel's verifier refuses the program")).is_err());
        let lines = ["kprobe", "cgroup", "kprobe"].map(|form| line(form, "no such function in this kernel")).join("\n");
        assert_eq!(types(&lines).ok().as_deref(), Some("cgroup 1, kprobe 2"));
        assert!(types("").is_err());
    }
}
