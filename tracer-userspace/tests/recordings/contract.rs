//! The contract of every record: unknown values are absent, the first keys have a fixed order, and `seq` has no gaps.
//! Evidence is in the order of time, and a revision names a printed verdict.

use std::collections::BTreeSet;

use serde_json::Value;
use tracer_model::record::Record;

const FIRST: [&str; 6] = ["schema", "type", "time", "time_boot_ns", "seq", "node_name"];

#[track_caller]
pub(crate) fn check(lines: &[String], run: &str) {
    let mut printed = BTreeSet::new();
    for (seq, line) in lines.iter().enumerate() {
        let place = format!("{run}: {line}");
        check_head(line, seq as u64, &place);
        let value: Value = serde_json::from_str(line).unwrap();
        check_absent("", &value, &place);
        // The schema is generated from this type, so the type must have each field of the line.
        let record: Record = serde_json::from_str(line).expect(&place);
        assert_eq!(serde_json::to_value(&record).unwrap(), value, "{place}");
        if value["type"] == "verdict" {
            check_verdict(&value, &printed, &place);
            printed.insert(seq as u64);
        }
    }
    let count = |kind: &str| lines.iter().filter(|line| line.contains(&format!(r#""type":"{kind}""#))).count();
    assert_eq!((count("start"), count("stop")), (1, 1), "{run}");
    assert!(lines.first().unwrap().contains(r#""type":"start""#), "{run}");
    assert!(lines.last().unwrap().contains(r#""type":"stop""#), "{run}");
}

/// Checks the first keys of a record and their order. The time is UTC with nine decimals.
fn check_head(line: &str, seq: u64, place: &str) {
    let mut rest = line;
    for key in FIRST {
        let at = rest.find(&format!("\"{key}\":")).expect(place);
        assert!(at <= 1, "{key} is not next: {place}");
        let after = &rest[at..];
        let value = after.split_once(',').expect(place).0.split_once(':').unwrap().1.to_owned();
        match key {
            "seq" => assert_eq!(value, seq.to_string(), "{place}"),
            "time" => assert!(is_time(value.trim_matches('"')), "{place}"),
            _ => assert!(!value.is_empty() && value != "0" && value != "\"\"", "{place}"),
        }
        rest = after.split_once(',').unwrap().1;
    }
}

/// `2026-01-02T03:04:05.123456789Z`
fn is_time(text: &str) -> bool {
    let shape = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c });
    shape.collect::<String>() == "0000-00-00T00:00:00.000000000Z"
}

/// Checks that there is no null and no empty string, names are snake case, and 64-bit cookies are strings.
fn check_absent(name: &str, value: &Value, place: &str) {
    match value {
        Value::Null => assert!(!value.is_null(), "{name} is null: {place}"),
        Value::String(text) => assert!(!text.is_empty(), "{name} is empty: {place}"),
        Value::Array(items) => items.iter().for_each(|item| check_absent(name, item, place)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(name.chars().all(plain), "{name}: {place}");
                assert!(!name.ends_with("cookie") || value.is_string(), "{name}: {place}");
                check_absent(name, value, place);
            }
        }
        Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_verdict(record: &Value, printed: &BTreeSet<u64>, place: &str) {
    let verdict = &record["verdict"];
    let times: Vec<u64> =
        verdict["evidence"].as_array().unwrap().iter().map(|seen| seen["time_boot_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{place}");
    let also = verdict["also"].as_array().unwrap();
    assert!(!also.contains(&verdict["cause"]), "{place}");
    assert!(verdict["outcome"] == "failure" || verdict["outcome"] == "noise", "{place}");
    if let Some(revises) = record.get("revises") {
        assert!(printed.contains(&revises.as_u64().unwrap()), "{place}");
    }
    let weak = !verdict["missing_hooks"].as_array().unwrap().is_empty() || verdict["lost_events"] != 0;
    assert!(!weak || verdict["confidence"] != "proven", "{place}");
    let by_kernel = verdict["evidence"].as_array().unwrap().iter().any(|seen| !NOT_OF_THE_KERNEL.contains(&hook(seen)));
    assert!(by_kernel || verdict["confidence"] != "proven", "no event of the kernel: {place}");
}

/// Sources of evidence that is no event of the kernel: tracer read it or asked for it, or another program reported it.
const NOT_OF_THE_KERNEL: &[&str] = &[
    "cluster_api",
    "container_status",
    "cpu.stat",
    "doctor",
    "inspection",
    "ip_vs",
    "kubelet",
    "namespaces",
    "netfilter",
    "netns",
    "nf_conntrack",
    "pod_status",
    "pods",
    "rtnetlink",
    "sock_diag",
];

fn hook(seen: &Value) -> &str {
    seen["hook"].as_str().unwrap()
}
