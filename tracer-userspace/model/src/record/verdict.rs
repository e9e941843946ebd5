//! What is reported of an attempt: the verdict with its evidence, and the attempt itself.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cause, Culprit, Endpoint, K8s, NetnsRef, Probe, Process, Remediation, Scope, Severity};
use crate::event::KubeletResult;

/// Whether the verdict is about a probe or some other connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Matched to a probe spec, reported by the kubelet or, lacking specs, made by the prober to an address of this node's pods. On
    /// the node's own addresses these may have any port but those that a kubelet dials as a client of the control plane.
    Probe,
    /// Any other connection.
    Connection,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It failed.
    Failure,
    /// It left a trace that misleads: it succeeded, or could not be made because its container or pod ends, and counts for nothing.
    Noise,
    /// It succeeded, as far as hooks can see: it was answered where it asked, and not with an HTTP status that says no
    /// (`http_status`; in TLS it cannot be seen), or it was a connect that asks nothing.
    Success,
    /// It was not over when the run ended.
    Open,
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The node is in a state that explains it and nothing ties it.
    Possible,
    /// Every condition held, but one link is by address and time.
    Likely,
    /// A kernel event that carries this attempt's own socket or flow shows the cause.
    Proven,
}

impl Confidence {
    /// As records have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Likely => "likely",
            Self::Possible => "possible",
        }
    }

    /// One step weaker.
    #[must_use]
    pub const fn lowered(self) -> Self {
        match self {
            Self::Proven => Self::Likely,
            Self::Likely | Self::Possible => Self::Possible,
        }
    }
}

/// The body of a `verdict` record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerdictBody {
    /// Probe or connection.
    pub subject: Subject,
    /// The attempt, on this node until it boots again; the `attempt` record and revisions have the same. Absent where no
    /// connection is known to be the attempt's (exec probes, sandboxes, an outcome that fits none).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt_id: Option<String>,
    /// `error`: an attempt failed. `warning`: a start within its budget. `info`: outcome `noise`.
    pub severity: Severity,
    /// Who has to act, by the cause; absent where nothing decides it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope: Option<Scope>,
    /// The answer.
    pub verdict: Verdict,
    /// The probe, if a spec is known; fields in which several specs that fit differ are absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe: Option<Probe>,
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub k8s: Option<K8s>,
    /// The client's end; absent if the attempt failed before a source was chosen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub src: Option<Endpoint>,
    /// The server's end; absent where nothing was dialled (exec probes, sandboxes).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dst: Option<Endpoint>,
    /// Who dialled, or ran the probe, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub process: Option<Process>,
    /// Where from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<NetnsRef>,
    /// Who caused it, where that was seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub culprit: Option<Culprit>,
    /// What the kubelet made of the attempt, where a source tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kubelet: Option<KubeletOutcome>,
    /// When it was known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timing: Option<Timing>,
    /// `seq` of the earlier verdict on the same attempt that this one replaces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub revises: Option<u64>,
    /// The record stands for several verdicts, each on an attempt of its own: they differ in nothing that decides.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeated: Option<Repeated>,
}

impl VerdictBody {
    /// How many verdicts the record stands for. A revision takes back one of them.
    pub fn count(&self) -> u64 {
        Repeated::count_of(self.repeated.as_ref())
    }
}

/// Identical verdicts that one record stands for: the record itself is the last of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Repeated {
    /// How many, the record's own included.
    pub count: u64,
    /// Time of the first one: RFC 3339, UTC, nine decimals.
    pub first_time: String,
    /// Time of the last one.
    pub last_time: String,
}

impl Repeated {
    /// How many verdicts a record with this field stands for. A number that no run reaches is cut: sums cannot overflow.
    pub fn count_of(repeated: Option<&Self>) -> u64 {
        repeated.map_or(1, |it| it.count.clamp(1, u32::MAX.into()))
    }
}

/// What the kubelet made of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubeletOutcome {
    /// How it counted it.
    pub result: KubeletResult,
    /// Its own words; absent where they are, or may be, what a command printed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<String>,
    /// How many failures the Event counts that says it; absent where the kubelet's log does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub event_count: Option<u32>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// `failure` or `noise`.
    pub outcome: Outcome,
    /// How sure.
    pub confidence: Confidence,
    /// One sentence with the names and numbers of this case.
    pub summary: String,
    /// What to do about it.
    pub remediation: Remediation,
    /// What decided it, in the order of time.
    pub evidence: Vec<Evidence>,
    /// Other causes that met their conditions.
    pub also: Vec<Cause>,
    /// Events lost inside the attempt's window.
    pub lost_events: u64,
    /// Missing hooks that would make this verdict stronger.
    pub missing_hooks: Vec<String>,
}

impl Verdict {
    pub fn severity(&self) -> Severity {
        if self.outcome == Outcome::Failure { self.cause.severity() } else { Severity::Info }
    }
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The hook or source it was seen by. `container_status`: what the pod's status says of how its container ran, with
    /// the fields `container`, `restarts`, `exit_code`, `reason`, `ran_s`, `ended_s_before` (the attempt), `waiting`.
    /// `pod_status`: the pod is being deleted.
    pub hook: String,
    /// When, on CLOCK_BOOTTIME.
    pub time_boot_ns: u64,
    /// In words.
    pub text: String,
    /// In numbers.
    pub fields: BTreeMap<String, Value>,
}

/// When it was known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// From the kernel event that decided it to the record; absent in a replay.
    pub detected_after_ms: f64,
}

/// The body of an `attempt` record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptBody {
    /// Probe or connection.
    pub subject: Subject,
    /// The attempt, on this node until it boots again.
    pub attempt_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The probe, if a spec is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub probe: Option<Probe>,
    /// The pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub k8s: Option<K8s>,
    /// The client's end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub src: Option<Endpoint>,
    /// The server's end.
    pub dst: Endpoint,
    /// Who dialled.
    pub process: Process,
    /// The HTTP status of the answer; absent: there was none, or no hook saw it (in TLS none does).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub http_status: Option<u16>,
    /// How long its parts took.
    pub phases_ms: Phases,
    /// The verdict's cause, if there was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
}

/// How long the parts of an attempt took, milliseconds; absent: that part was not reached or could not be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phases {
    /// From connect to established.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connect: Option<f64>,
    /// From established to the server's first TLS record: its side of the handshake (RFC 8446; before TLS 1.3 one more round
    /// trip follows).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls: Option<f64>,
    /// From established to the first byte of the answer; in TLS it cannot be distinguished from the handshake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_byte: Option<f64>,
    /// From connect to the end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<f64>,
}
