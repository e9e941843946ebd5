//! Records: what leaves the process, one JSON object a line, schema `tracer/1`.
//!
//! The JSON Schema (`tracer schema`) is generated from these types. What is unknown is absent,
//! never a zero or an empty string; durations carry their unit in the name.

mod cause;
mod names;
mod node;
mod page;
mod remediation;
mod sentence;
mod verdict;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::event::{FindingBody, Status, Workload};
pub use cause::{Cause, Scope, Severity, Stage, Trait};
pub use names::{Culprit, Endpoint, K8s, NetnsRef, Probe, Process};
pub use node::{LinkRef, NodeBody, NodePortRef, NodePortsBody, PortUserBody, PortsBody};
pub use page::{Block, Section};
pub use remediation::{Command, Place, Remediation};
pub use verdict::{
    AttemptBody, Confidence, Evidence, KubeletOutcome, Outcome, Phases, Repeated, Subject, Timing, Verdict, VerdictBody,
};

use crate::event::{HookStatus, MissingHook};

/// Name and version of the record format.
pub const SCHEMA: &str = "tracer/1";

/// One line of output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Always `tracer/1`.
    pub schema: String,
    /// What kind of record, and what it carries.
    #[serde(flatten)]
    pub body: Body,
    /// RFC 3339, UTC, nine decimals: when it happened.
    pub time: String,
    /// The same on CLOCK_BOOTTIME, nanoseconds.
    pub time_boot_ns: u64,
    /// Number of the record in this run, from 0, without gaps.
    pub seq: u64,
    /// Name of the node.
    pub node_name: String,
}

/// What a record carries, by `type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Body {
    /// Once, when every hook is attached and the first event can be seen.
    Start(StartBody),
    /// Once, at the end.
    Stop(StopBody),
    /// The answer for one failed (or misleading) attempt or connection.
    Verdict(Box<VerdictBody>),
    /// With `--attempts`: one attempt, whatever its outcome.
    Attempt(Box<AttemptBody>),
    /// An event of the node by itself.
    Node(Box<NodeBody>),
    /// Events were lost.
    Loss(LossBody),
    /// A check of the node.
    Finding(Box<FindingBody>),
}

impl Body {
    pub const TYPES: [&str; 7] = ["start", "stop", "verdict", "attempt", "node", "loss", "finding"];
}

/// What this run works with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartBody {
    /// Version of the tracer.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Hooks attached.
    pub hooks: Vec<HookStatus>,
    /// Hooks that are missing, why, and what cannot be known without them.
    pub missing_hooks: Vec<MissingHook>,
    /// Sources of facts in use.
    pub sources: Vec<String>,
    /// Names of processes: their connections are probe attempts.
    pub probers: Vec<String>,
    /// Process ids of the probers that were running at the start; empty: none was found (yet).
    pub prober_pids: Vec<u32>,
    /// Pods known at the start.
    pub pods: usize,
}

/// Totals of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopBody {
    /// Attempts that ended: all of them, whatever `--namespace`, `--pod`, `--container` and `--cause` let through.
    pub attempts: u64,
    /// Verdicts by cause, of those that these flags let through.
    pub verdicts: BTreeMap<String, u64>,
    /// Kernel events read.
    pub events: u64,
    /// Kernel events lost.
    pub lost_events: u64,
    /// Attempts that were open at the end.
    pub open_attempts: u64,
    /// Why the run ended: `signal`, `duration`, `until_failure`, `output_closed` (nobody reads), `end_of_stream`,
    /// `panic` (a defect of tracer); of a recording that could not be read to its end `cut_at_line_N` or `unreadable_at_line_N`.
    pub reason: String,
}

/// The body of a `loss` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossBody {
    /// `ring` (it was full), `map` (a map of the kernel had no room for a connection), `program` (the kernel skipped a run),
    /// `listen` (one cgroup opened and closed listeners too often to report each), `namespace` (the same for entering
    /// network namespaces, or the kernel skipped a run), `attempts` (too many were open at once: the oldest got no verdict),
    /// `output` (nobody read the records, or their file could not be written), `events` (the cluster API did not take
    /// explanations) or `otlp` (the endpoint did not take records).
    #[serde(rename = "where")]
    pub where_: String,
    /// How many events.
    pub count: u64,
    /// First moment at which one may have been lost.
    pub from_boot_ns: u64,
    /// Last moment.
    pub to_boot_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_name() {
        let error = serde_json::from_str::<Body>(r#"{"type":"x"}"#).expect_err("an unknown type").to_string();
        let names = Body::TYPES.map(|name| format!("`{name}`")).join(", ");
        assert!(error.contains(&format!("unknown variant `x`, expected one of {names}")), "{error}");
    }
}
