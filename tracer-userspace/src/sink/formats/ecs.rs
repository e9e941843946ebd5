//! Elastic Common Schema.

use serde_json::{Value, json};

use super::{Row, Shape, put, row};

/// The version whose names these are.
const VERSION: &str = "8.17.0";

/// The format.
pub(super) const SHAPE: Shape = Shape { rows: ROWS, rest: "tracer", add };

/// One row for each field.
pub(super) const ROWS: &[Row] = &[
    row("time", "@timestamp"),
    row("type", "event/action"),
    row("seq", "event/sequence"),
    row("summary", "message"),
    row("verdict.summary", "message"),
    row("verdict.cause", "event/reason"),
    row("node_name", "host/name"),
    row("k8s.namespace", "orchestrator/namespace"),
    row("k8s.pod_name", "orchestrator/resource/name"),
    row("k8s.pod_uid", "orchestrator/resource/id"),
    row("k8s.container_name", "container/name"),
    row("src.addr", "source/ip"),
    row("src.port", "source/port"),
    row("dst.addr", "destination/ip"),
    row("dst.port", "destination/port"),
    row("process.pid", "process/pid"),
    row("process.comm", "process/name"),
];

/// What every event of this schema has, and what follows from the record.
fn add(record: &Value, out: &mut Value) {
    put(out, "ecs/version", VERSION.into());
    put(out, "event/kind", "event".into());
    if let Some(outcome) = outcome(record) {
        put(out, "event/outcome", outcome.into());
    }
    if record.get("k8s").is_some() {
        put(out, "orchestrator/type", "kubernetes".into());
        put(out, "orchestrator/resource", json!({"type": "pod"}));
    }
}

/// `noise` is a success that leaves a trace which misleads, or what the kubelet ignores: a probe that was not made. Our own
/// word stays under `tracer`.
pub(super) fn outcome(record: &Value) -> Option<&'static str> {
    let ours = record.get("outcome").or_else(|| record.get("verdict")?.get("outcome"))?;
    let is_ignored = record.pointer("/kubelet/result").is_some_and(|it| it == "error");
    Some(match ours.as_str()? {
        "failure" => "failure",
        "noise" if is_ignored => "unknown",
        "success" | "noise" => "success",
        _ => "unknown",
    })
}
