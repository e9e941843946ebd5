//! OpenTelemetry: the fields of its log data model, attributes by its semantic conventions.

use serde_json::Value;

use super::{Row, Shape, row};

/// The format.
pub(super) const SHAPE: Shape = Shape { rows: ROWS, rest: "Attributes/tracer", add };

/// One row for each field.
pub(super) const ROWS: &[Row] = &[
    row("time", "Timestamp"),
    row("type", "EventName"),
    row("summary", "Body"),
    row("verdict.summary", "Body"),
    row("node_name", "Resource/k8s.node.name"),
    row("k8s.namespace", "Attributes/k8s.namespace.name"),
    row("k8s.pod_name", "Attributes/k8s.pod.name"),
    row("k8s.pod_uid", "Attributes/k8s.pod.uid"),
    row("k8s.container_name", "Attributes/k8s.container.name"),
    row("src.addr", "Attributes/source.address"),
    row("src.port", "Attributes/source.port"),
    row("dst.addr", "Attributes/destination.address"),
    row("dst.port", "Attributes/destination.port"),
    row("process.pid", "Attributes/process.pid"),
    row("process.comm", "Attributes/process.executable.name"),
];

/// Nothing is asked for.
fn add(_record: &Value, _out: &mut Value) {}
