//! The schema that `tracer schema` prints, against the records of fixtures: each of them is valid, and what the contract
//! excludes is not.
#![allow(clippy::unwrap_used, reason = "a test ends at the line that failed")]

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn printed(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tracer")).args(args).env_clear().output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&printed(&["schema"])).unwrap()
}

/// Why a value is not what a part of the schema says: the words of JSON Schema that schemars writes.
fn fault(root: &Value, part: &Value, value: &Value) -> Option<String> {
    let wrong = |what: &str| Some(format!("{value} is not {what}"));
    if let Some(name) = part["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).unwrap();
        if let Some(fault) = fault(root, target, value) {
            return Some(fault);
        }
    }
    if part.get("const").is_some_and(|only| only != value) {
        return wrong(&part["const"].to_string());
    }
    if part["enum"].as_array().is_some_and(|known| !known.contains(value)) {
        return wrong(&part["enum"].to_string());
    }
    if part.get("type").is_some_and(|kind| !is_of(kind, value)) {
        return wrong(&part["type"].to_string());
    }
    for alternatives in ["anyOf", "oneOf"] {
        let fits = |kinds: &Vec<Value>| kinds.iter().any(|kind| fault(root, kind, value).is_none());
        if part[alternatives].as_array().is_some_and(|kinds| !fits(kinds)) {
            return wrong("any of the alternatives");
        }
    }
    fault_inside(root, part, value)
}

fn is_of(kind: &Value, value: &Value) -> bool {
    let one = |kind: &Value| match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => unreachable!("a type {other}"),
    };
    kind.as_array().map_or_else(|| one(kind), |kinds| kinds.iter().any(one))
}

fn fault_inside(root: &Value, part: &Value, value: &Value) -> Option<String> {
    let required = part["required"].as_array().into_iter().flatten();
    let absent = required.map(|name| name.as_str().unwrap()).find(|name| value.get(name).is_none());
    if let Some(name) = absent.filter(|_| value.is_object()) {
        return Some(format!("{name} is not there"));
    }
    let fields = part["properties"].as_object().into_iter().flatten();
    let mut faults = fields.filter_map(|(name, part)| Some((name, fault(root, part, value.get(name)?)?)));
    if let Some((name, fault)) = faults.next() {
        return Some(format!("{name}: {fault}"));
    }
    let items = value.as_array().filter(|_| part.get("items").is_some()).into_iter().flatten();
    items.filter_map(|item| fault(root, &part["items"], item)).next()
}

/// Records of a fixture, every attempt's included.
fn records(fixture: &str) -> Vec<Value> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(fixture);
    let text = printed(&["replay", "--attempts", "-o", "ndjson", place.to_str().unwrap()]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn fixtures() -> Vec<String> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut found = Vec::new();
    let mut places = vec![place.clone()];
    while let Some(here) = places.pop() {
        for path in std::fs::read_dir(here).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                places.push(path);
            } else if path.ends_with("observations.ndjson") {
                found.push(path.strip_prefix(&place).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn records_are_what_the_schema_says() {
    let schema = schema();
    let (mut seen, fixtures) = (0, fixtures());
    assert!(fixtures.len() > 20, "{fixtures:?}");
    for fixture in fixtures {
        for record in records(&fixture) {
            assert_eq!(fault(&schema, &schema, &record), None, "{fixture}: {record}");
            seen += 1;
        }
    }
    assert!(seen > 100);
}

#[test]
fn what_the_contract_excludes_is_no_record() {
    let schema = schema();
    let fixture = fixtures().remove(0);
    let start = records(&fixture).remove(0);
    assert_eq!(start["type"], "start");
    for (place, wrong) in
        [("/version", Value::Null), ("/seq", json!("1")), ("/hooks/0/form", json!("uprobe")), ("/type", json!("tick"))]
    {
        let mut record = start.clone();
        *record.pointer_mut(place).unwrap() = wrong;
        assert!(fault(&schema, &schema, &record).is_some(), "{place}");
    }
    let verdicts: Vec<_> = fixtures()
        .iter()
        .flat_map(|fixture| records(fixture))
        .filter(|record| record["type"] == "verdict")
        .take(1)
        .collect();
    let mut verdict = verdicts[0].clone();
    verdict["revises"] = Value::Null;
    assert!(fault(&schema, &schema, &verdict).is_some(), "an optional field is absent, never null");
}
