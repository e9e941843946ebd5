//! Records as OTLP's log records. A field gets the name of OpenTelemetry's conventions if they have one. Each other field
//! keeps its path in the record, below `tracer.`, so a new field needs no change here.

use jiff::Timestamp;
use serde_json::Value;

use super::message::{AnyValue, KeyValue, LogRecord, Request, Resource, ResourceLogs, Scope, ScopeLogs};
use crate::sink::ndjson;
use tracer_model::record::{Body, Record, Severity, Status};

/// Fields of records, and the attributes of OpenTelemetry's conventions for them.
const ATTRIBUTES: &[(&str, &str)] = &[
    ("k8s.namespace", "k8s.namespace.name"),
    ("k8s.pod_name", "k8s.pod.name"),
    ("k8s.pod_uid", "k8s.pod.uid"),
    ("k8s.container_name", "k8s.container.name"),
    ("src.addr", "source.address"),
    ("src.port", "source.port"),
    ("dst.addr", "destination.address"),
    ("dst.port", "destination.port"),
    ("process.pid", "process.pid"),
    ("http_status", "http.response.status_code"),
];

/// Fields of records that become a field of the log record or its resource, not an attribute.
const ELSEWHERE: &[&str] = &["time", "node_name"];

/// A name of OpenTelemetry's severities, and its number.
type OtlpSeverity = (&'static str, i32);
const INFO: OtlpSeverity = ("INFO", 9);
const WARN: OtlpSeverity = ("WARN", 13);
const ERROR: OtlpSeverity = ("ERROR", 17);

pub(super) fn log_record(record: &Record) -> LogRecord {
    let json = ndjson::value(record);
    let text = |pointer| json.pointer(pointer).and_then(Value::as_str);
    let body = ["/verdict/summary", "/summary", "/observed", "/type"].into_iter().find_map(text);
    let (severity_text, severity_number) = severity(&record.body);
    let mut attributes = Vec::new();
    flatten("", &json, &mut attributes);
    attributes.extend(network(&json));
    attributes.extend(workload(&json));
    LogRecord {
        time_unix_nano: unix_nano(&record.time),
        // A record is made at the time of its decision, so the two times are equal.
        observed_time_unix_nano: unix_nano(&record.time),
        severity_number,
        severity_text: severity_text.to_owned(),
        event_name: format!("tracer.{}", text("/type").unwrap_or_default()),
        body: body.map(|text| AnyValue::from(Value::from(text))),
        attributes,
    }
}

/// Records of one node as one request. `instance` identifies the run.
pub(super) fn request(node_name: &str, instance: Option<&str>, log_records: Vec<LogRecord>) -> Request {
    let mut attributes = vec![
        KeyValue::new("service.name", "tracer"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("k8s.node.name", node_name),
    ];
    attributes.extend(instance.map(|instance| KeyValue::new("service.instance.id", instance)));
    let scope = Scope { name: "tracer".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records }];
    Request { resource_logs: vec![ResourceLogs { resource: Some(Resource { attributes }), scope_logs }] }
}

/// Nanoseconds since 1970; OTLP's 0 is an unknown time.
fn unix_nano(time: &str) -> u64 {
    time.parse::<Timestamp>().ok().and_then(|time| time.as_nanosecond().try_into().ok()).unwrap_or(0)
}

/// The severity of a verdict; of another record, it follows from type and status.
fn severity(body: &Body) -> OtlpSeverity {
    match body {
        Body::Verdict(body) if body.severity == Severity::Error => ERROR,
        Body::Verdict(body) if body.severity == Severity::Warning => WARN,
        Body::Finding(body) if body.status == Status::Fail => ERROR,
        Body::Finding(body) if body.status == Status::Warn => WARN,
        Body::Loss(_) => WARN,
        _ => INFO,
    }
}

/// Adds the fields of an object and of its nested objects, named by their path.
fn flatten(path: &str, json: &Value, attributes: &mut Vec<KeyValue>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in
                fields.iter().filter(|(name, _)| !path.is_empty() || !ELSEWHERE.contains(&name.as_str()))
            {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, attributes);
            }
        }
        value => {
            let known = ATTRIBUTES.iter().find(|(field, _)| *field == path).map(|(_, name)| (*name).to_owned());
            attributes.push(KeyValue::new(known.unwrap_or_else(|| format!("tracer.{path}")), value.clone()));
        }
    }
}

/// The protocols of a connection. tracer watches only TCP.
fn network(json: &Value) -> Vec<KeyValue> {
    let Some(address) = json.pointer("/dst/addr").and_then(Value::as_str) else { return Vec::new() };
    let version = if address.contains(':') { "ipv6" } else { "ipv4" };
    vec![KeyValue::new("network.transport", "tcp"), KeyValue::new("network.type", version)]
}

/// The workload under the name that the conventions have for its kind.
fn workload(json: &Value) -> Option<KeyValue> {
    let kind = json.pointer("/k8s/workload/kind")?.as_str()?;
    let known = ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"].contains(&kind);
    let name = json.pointer("/k8s/workload/name")?.clone();
    known.then(|| KeyValue::new(format!("k8s.{}.name", kind.to_lowercase()), name))
}
