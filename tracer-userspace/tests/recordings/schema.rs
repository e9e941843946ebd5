//! Checks records against the schema. Records that the contract excludes are not valid.

use serde_json::{Value, json};
use tracer_output::schema;

/// The schema that `tracer schema` prints.
pub(crate) fn schema() -> Value {
    serde_json::from_str(&schema::text()).unwrap()
}

/// Why a value is not valid for a part of the schema. Knows the keywords of JSON Schema that schemars writes.
pub(crate) fn fault(root: &Value, part: &Value, value: &Value) -> Option<String> {
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

/// Records that the contract excludes, made of a start record and a verdict.
pub(crate) fn excluded(start: &Value, verdict: &Value) -> Vec<Value> {
    let wrong = [
        ("/version", Value::Null),
        ("/seq", json!("1")),
        ("/hooks/0/program_type", json!("uprobe")),
        ("/type", json!("tick")),
    ];
    let spoilt = |(place, wrong): (&str, Value)| {
        let mut record = start.clone();
        *record.pointer_mut(place).unwrap() = wrong;
        record
    };
    let mut records: Vec<Value> = wrong.into_iter().map(spoilt).collect();
    // An optional field is absent, never null.
    let mut revision = verdict.clone();
    revision["revises"] = Value::Null;
    records.push(revision);
    records
}
