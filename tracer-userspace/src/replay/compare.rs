//! `replay --compare FILE` compares the verdicts with those of an earlier run.
//!
//! It skips what belongs to the run: the number of a record and when it was printed. Of a revision it compares only that it is
//! one, not the number of the record that it revises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::Value;

use tracer_model::record::Record;
use tracer_output::sink::filter::Filter;
use tracer_output::sink::ndjson;
use tracer_terminal::error::{Error, json_problem};

/// Fields that differ between runs.
const RUN_SPECIFIC: &[&str] = &["seq", "time", "timing"];

/// The verdicts of an earlier run.
#[derive(Debug)]
pub(super) struct Expected {
    path: PathBuf,
    /// Verdicts with the numbers of their lines.
    verdicts: Vec<(usize, Value)>,
}

impl Expected {
    /// Reads those verdicts of an earlier run that pass the filter of this one.
    pub(super) fn read(path: &Path, filter: &Filter) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::file("--compare", path, error))?;
        let (mut verdicts, mut kept) = (Vec::new(), BTreeSet::new());
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let refused = |why: &str| Error::Input {
                file: path.display().to_string(),
                line: at + 1,
                problem: format!("not a record: {why} (--compare takes the NDJSON of an earlier run)"),
            };
            let value: Value = serde_json::from_str(line).map_err(|error| refused(&json_problem(&error)))?;
            match value["type"].as_str() {
                Some("verdict") if is_filtered(&value, filter, &mut kept) => {}
                Some("verdict") => verdicts.push((at + 1, comparable(value))),
                Some(_) => {}
                None => return Err(refused("it has no `type`, as a recording")),
            }
        }
        Ok(Self { path: path.to_owned(), verdicts })
    }

    pub(super) fn first_difference(&self, records: &[Record]) -> Option<String> {
        let file = self.path.display();
        let ours = records.iter().map(|record| serde_json::from_slice(&ndjson::line(record)).unwrap_or_default());
        let ours: Vec<Value> = ours.map(comparable).collect();
        for (n, ((line, theirs), ours)) in self.verdicts.iter().zip(&ours).enumerate() {
            if let Some((place, theirs, ours)) = difference(String::new(), theirs, ours) {
                return Some(format!("{file}:{line}: verdict {}: {place}: {theirs} there, {ours} here", n + 1));
            }
        }
        let both = self.verdicts.len().min(ours.len());
        if let Some((line, verdict)) = self.verdicts.get(both) {
            return Some(format!("{file}:{line}: verdict {}: {} there, missing here", both + 1, name(verdict)));
        }
        ours.get(both).map(|verdict| format!("{file}: has {both} verdicts; here is one more: {}", name(verdict)))
    }
}

/// Whether a run with this filter does not print the verdict. It prints each revision of a printed one.
fn is_filtered(verdict: &Value, filter: &Filter, kept: &mut BTreeSet<u64>) -> bool {
    let passes = Record::deserialize(verdict).map_or(true, |record| filter.passes(&record.body));
    let revises_kept = verdict["revises"].as_u64().is_some_and(|seq| kept.contains(&seq));
    if passes || revises_kept {
        kept.extend(verdict["seq"].as_u64());
    }
    !passes && !revises_kept
}

/// Removes the fields that differ between runs.
fn comparable(mut value: Value) -> Value {
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !RUN_SPECIFIC.contains(&name.as_str()));
        if let Some(revises) = fields.get_mut("revises") {
            *revises = Value::Bool(true);
        }
    }
    value
}

/// The place of the first difference, and both values there.
fn difference(place: String, theirs: &Value, ours: &Value) -> Option<(String, String, String)> {
    match (theirs, ours) {
        _ if theirs == ours => None,
        (Value::Object(a), Value::Object(b)) => {
            let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let dot = if place.is_empty() { "" } else { "." };
                let side = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned().unwrap_or(Value::Null);
                difference(format!("{place}{dot}{name}"), &side(a), &side(b))
            })
        }
        (Value::Array(a), Value::Array(b)) => (0..a.len().max(b.len())).find_map(|i| {
            let side = |items: &[Value]| items.get(i).cloned().unwrap_or(Value::Null);
            difference(format!("{place}[{i}]"), &side(a), &side(b))
        }),
        _ => Some((place, short(theirs), short(ours))),
    }
}

/// A value as text for a message.
fn short(value: &Value) -> String {
    const MAX: usize = 120;
    let text = if value.is_null() { "nothing".to_owned() } else { value.to_string() };
    if text.chars().count() <= MAX { text } else { text.chars().take(MAX).chain("…".chars()).collect() }
}

/// A verdict as text for a message.
fn name(verdict: &Value) -> String {
    format!(
        "{} ({})",
        verdict["verdict"]["cause"].as_str().unwrap_or("?"),
        verdict["verdict"]["summary"].as_str().unwrap_or("?")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_place_of_a_difference_is_named() {
        let theirs = json!({"verdict": {"evidence": [{"text": "a"}]}});
        let ours = json!({"verdict": {"evidence": [{"text": "b"}]}});
        let found = difference(String::new(), &theirs, &ours);
        assert_eq!(found, Some(("verdict.evidence[0].text".into(), "\"a\"".into(), "\"b\"".into())));
    }

    #[test]
    fn fields_of_the_run_are_not_compared() {
        let a = json!({"seq": 1, "time": "a", "timing": {}, "revises": 3, "type": "verdict"});
        let b = json!({"seq": 2, "time": "b", "revises": 7, "type": "verdict"});
        assert_eq!(comparable(a), comparable(b));
        assert_ne!(comparable(json!({"revises": 3})), comparable(json!({})));
    }
}
