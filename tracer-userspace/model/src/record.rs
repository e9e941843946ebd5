//! Records: the output of the process, one JSON object a line, schema `tracer/1`.
//!
//! The JSON Schema (`tracer schema`) is generated from these types. An unknown value is absent, never a zero or an
//! empty string. Durations have their unit in the name.

mod cause;
mod names;
mod node;
mod page;
mod sentence;
mod verdict;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub use crate::event::{FindingBody, Status, Workload};
pub use crate::remediation::{Command, Place, Remediation};
pub use cause::{Cause, Scope, Severity, Stage, Trait};
pub use names::{Culprit, Endpoint, K8s, NetnsRef, Probe, Process};
pub use node::{LinkRef, NodeBody, NodePortRef, NodePortsBody, PortUserBody, PortsBody};
pub use page::{Block, Section};
pub use verdict::{
    AttemptBody, Confidence, Evidence, KubeletOutcome, Outcome, Phases, Repeated, Subject, Timing, Verdict, VerdictBody,
};

use crate::event::{HookStatus, MissingHook, ProberHooks};

/// Name and version of the record format.
pub const SCHEMA: &str = "tracer/1";

/// One line of output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// Always `tracer/1`.
    pub schema: String,
    /// The kind of record and its content.
    #[serde(flatten)]
    pub body: Body,
    /// RFC 3339, UTC, nine decimals: when it happened.
    pub time: String,
    /// When it happened on CLOCK_BOOTTIME, nanoseconds.
    pub time_boot_ns: u64,
    /// Number of the record in this run, from 0, without gaps.
    pub seq: u64,
    /// Name of the node.
    pub node_name: String,
}

/// The content of a record, by `type`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Body {
    /// Once, when the hooks are attached and the first event can come.
    Start(StartBody),
    /// Once, at the end.
    Stop(StopBody),
    /// The verdict on one failed (or misleading) attempt or connection.
    Verdict(Box<VerdictBody>),
    /// With `--attempts`: one attempt, with any outcome.
    Attempt(Box<AttemptBody>),
    /// An event of the node itself.
    Node(Box<NodeBody>),
    /// Events were lost.
    Loss(LossBody),
    /// A check of the node.
    Finding(Box<FindingBody>),
}

impl Body {
    pub const TYPES: [&str; 7] = ["start", "stop", "verdict", "attempt", "node", "loss", "finding"];
}

/// The conditions of this run.
#[skip_serializing_none]
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
    /// Whether probers are watched at their own cgroups, and why.
    pub prober_hooks: Option<ProberHooks>,
    /// Sources of observations in use.
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
    /// All attempts that ended. `--namespace`, `--pod`, `--container` and `--cause` do not filter them.
    pub attempts: u64,
    /// Verdicts by cause, after the filter of these flags.
    pub verdicts: BTreeMap<String, u64>,
    /// Verdicts that these flags did not let through; absent: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub filtered: u64,
    /// Kernel events read.
    pub events: u64,
    /// Kernel events lost.
    pub lost_events: u64,
    /// Attempts that were open at the end.
    pub open_attempts: u64,
    /// Why the run ended: `signal`, `duration`, `until_failure`, `output_closed` (nobody reads), `end_of_stream`, `error`,
    /// `panic` (a defect of tracer); of a recording that could not be read to its end `cut_at_line_N` or
    /// `unreadable_at_line_N`.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The body of a `loss` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossBody {
    /// `ring` (it was full), `map` (the kernel refused an entry for a connection, or too many connects to one target
    /// began at once), `program` (the kernel skipped a run), `listen` (one cgroup opened and closed listeners too often
    /// to report each), `namespace` (the same for entering network namespaces, or the kernel skipped a run), `prober`
    /// (the same for processes that take the name of a prober), `link` (the same for links that are set up and down),
    /// `connection` (one connection had too many drops, retransmissions, RSTs or errors to report each), `attempts`
    /// (too many were open at once: the oldest got no verdict), `outcomes` (tracer read failures too late, or too many
    /// at once), `output` (nobody read the records, or their file could not be written), or the name of a sink that did
    /// not take them, such as `events` (the cluster API) or `otlp`.
    #[serde(rename = "where")]
    pub where_: String,
    /// How many events.
    pub count: u64,
    /// Earliest time at which an event may have been lost.
    pub from_boot_ns: u64,
    /// Latest time.
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
