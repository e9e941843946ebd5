//! The decision of a record as a line of text: all fields except sentences and fields of the run.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Fields with sentences. The snapshots of texts have them.
const PROSE: &[&str] = &["expected", "lost", "observed", "persist", "reason", "remediation", "summary", "text", "why"];
/// Fields of the run, or of the format of a record.
const OF_THE_RUN: &[&str] =
    &["schema", "time", "time_boot_ns", "seq", "node_name", "version", "kernel", "timing", "type"];
/// Fields that are shown first and without a name.
const FIRST: &[&str] = &["event", "check", "status", "cause", "outcome", "confidence", "subject", "src", "dst"];
/// Fields that are the same on each kernel, or differ in each recording. Only the snapshots of fixtures have them.
const OF_ONE_RECORDING: &[&str] =
    &["ancestors", "exe", "fields", "netns", "netns_path", "pid", "pod_uid", "process", "timeout_s", "period_s"];

/// A line for each record except attempts, and the number of attempts for each outcome.
pub(crate) fn brief(records: &[Value]) -> Vec<String> {
    let other = records.iter().filter(|record| record["type"] != "start" && record["type"] != "attempt");
    let mut lines: Vec<String> = other.map(|record| line(record, records, OF_ONE_RECORDING)).collect();
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for attempt in records.iter().filter(|record| record["type"] == "attempt") {
        let cause = attempt["cause"].as_str().map(|cause| format!(" {cause}")).unwrap_or_default();
        *ends.entry(format!("{}{cause}", attempt["outcome"].as_str().unwrap_or("unknown"))).or_default() += 1;
    }
    lines.extend(ends.into_iter().map(|(end, count)| format!("attempts {end}: {count}")));
    lines
}

/// A line for each record, with all fields.
pub(crate) fn whole(records: &[Value]) -> Vec<String> {
    records.iter().map(|record| line(record, records, &[])).collect()
}

/// `verdict +0.504123s connection_refused failure proven probe 10.0.0.1:52322 -> 10.0.0.2:8080 evidence=[…] …`
fn line(record: &Value, records: &[Value], without: &[&str]) -> String {
    let time = record["time_boot_ns"].as_u64().unwrap();
    let start = records[0]["time_boot_ns"].as_u64().unwrap();
    let mut fields = record.as_object().unwrap().clone();
    if let Some(Value::Object(verdict)) = fields.remove("verdict") {
        fields.extend(verdict);
    }
    fields.retain(|name, _| !OF_THE_RUN.contains(&name.as_str()));
    let reason = fields.get("reason").filter(|_| record["type"] == "stop").cloned();
    without_prose(&mut fields);
    // On a slow machine, a record may be about an event before the last hook was attached.
    let sign = if time < start { "-" } else { "+" };
    let mut line = format!("{} {sign}{}s", record["type"].as_str().unwrap(), seconds(time.abs_diff(start)));
    let show = Show { time, without };
    for name in FIRST {
        if let Some(value) = fields.remove(*name) {
            line += if *name == "dst" { " -> " } else { " " };
            line += &show.value(&value);
        }
    }
    if let Some(seq) = fields.remove("revises") {
        let replaced = records.iter().find(|earlier| earlier["seq"] == seq).expect("a verdict that was printed");
        let before = show.field("time_boot_ns", &replaced["time_boot_ns"]);
        line += &format!(" replaces={}{before}", replaced["verdict"]["cause"].as_str().unwrap());
    }
    // The reason of a stop record is no sentence.
    if let Some(reason) = reason {
        line += &format!(" {}", show.value(&reason));
    }
    format!("{line}{}", show.fields(&fields))
}

/// Removes sentences, but keeps the `fields` of evidence and findings.
fn without_prose(fields: &mut Map<String, Value>) {
    fields.retain(|name, _| !PROSE.contains(&name.as_str()));
    for (_, value) in fields.iter_mut().filter(|(name, _)| *name != "fields") {
        match value {
            Value::Object(fields) => without_prose(fields),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(without_prose),
            _ => {}
        }
    }
}

/// Seconds with up to nine decimals, without trailing zeros.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// How the parts of one record are shown.
struct Show<'a> {
    /// When the record happened: other times are shown relative to it.
    time: u64,
    without: &'a [&'a str],
}

impl Show<'_> {
    /// ` name=value` for each field that is not empty, sorted by name.
    fn fields(&self, fields: &Map<String, Value>) -> String {
        let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
        let kept = |name: &str| !self.without.contains(&name);
        let shown = sorted.into_iter().filter(|(name, value)| kept(name) && !is_empty(value));
        shown.map(|(name, value)| format!(" {name}={}", self.field(name, value))).collect()
    }

    fn field(&self, name: &str, value: &Value) -> String {
        match value.as_u64().filter(|_| name.ends_with("_boot_ns")) {
            Some(at) if at > self.time => format!("+{}s", seconds(at - self.time)),
            Some(at) => format!("-{}s", seconds(self.time - at)),
            None => self.value(value),
        }
    }

    fn value(&self, value: &Value) -> String {
        match value {
            Value::String(text) if !text.contains([' ', '"', ',', ']', '}', '\n']) => text.clone(),
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| self.value(item)).collect::<Vec<_>>().join(", "))
            }
            Value::Object(fields) => self.object(fields),
            other => other.to_string(),
        }
    }

    /// An endpoint as `ADDRESS:PORT`. Evidence starts with the name of its hook.
    fn object(&self, fields: &Map<String, Value>) -> String {
        match (fields.get("addr"), fields.get("hook")) {
            (Some(Value::String(addr)), _) => {
                let port = fields.get("port").map(|port| format!(":{port}")).unwrap_or_default();
                format!("{addr}{port}")
            }
            (_, Some(Value::String(hook))) => {
                let mut rest = fields.clone();
                rest.remove("hook");
                let at = rest.remove("time_boot_ns").map(|at| self.field("time_boot_ns", &at)).unwrap_or_default();
                format!("{hook}{at}{}", self.fields(&rest))
            }
            _ => format!("{{{}}}", self.fields(fields).trim_start()),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}
