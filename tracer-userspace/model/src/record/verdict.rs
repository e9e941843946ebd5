//! Records about an attempt: the verdict with its evidence, and the attempt itself.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::{Cause, Culprit, Endpoint, K8s, NetnsRef, Probe, Process, Remediation, Scope, Severity};
use crate::event::KubeletResult;

/// Whether the verdict is about a probe or some other connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A probe spec fits, or the kubelet reported the attempt. Without specs: the prober connects to a pod of this node, or
    /// an address of the node itself. The latter not on ports that a kubelet uses as a client of the control plane.
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
    /// It looks like a failure and is none: it succeeded, or could not be made because its container or pod ends.
    Noise,
    /// It succeeded, as far as hooks can see: a connect where no request was due, or an answer without an HTTP status
    /// of a failure (`http_status`; in TLS tracer cannot see it).
    Success,
    /// It was not over when the run ended.
    Open,
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The state of the node explains the failure, but nothing ties it to this attempt.
    Possible,
    /// All conditions are met, but one of them only by address and time.
    Likely,
    /// A kernel event that carries this attempt's own socket or flow shows the cause.
    Proven,
}

display_as_serialized!(Subject, Outcome, Confidence);

impl Confidence {
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
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerdictBody {
    /// Probe or connection.
    pub subject: Subject,
    /// The attempt, unique on this node until the next boot; the `attempt` record and revisions have the same. Absent
    /// if no connection is known to be the attempt's (exec probes, sandboxes, an outcome that fits none).
    pub attempt_id: Option<String>,
    /// `error`: an attempt failed. `warning`: a start within its budget. `info`: outcome `noise`.
    pub severity: Severity,
    /// Who has to act, by the cause, or by the process that accepted the connection; absent if the cause does not tell.
    pub scope: Option<Scope>,
    /// The cause, with its evidence.
    pub verdict: Verdict,
    /// The probe, if a spec is known; fields in which several specs that fit differ are absent.
    pub probe: Option<Probe>,
    /// The pod.
    pub k8s: Option<K8s>,
    /// The client's end; absent if the attempt failed before a source was chosen.
    pub src: Option<Endpoint>,
    /// The server's end; absent if there was no connection (exec probes, sandboxes).
    pub dst: Option<Endpoint>,
    /// The process that connects or runs the probe, if known.
    pub process: Option<Process>,
    /// The namespace of the client.
    pub netns: Option<NetnsRef>,
    /// The process that caused it, if tracer saw that.
    pub culprit: Option<Culprit>,
    /// The kubelet outcome, if a source has it.
    pub kubelet: Option<KubeletOutcome>,
    /// How long tracer took.
    pub timing: Option<Timing>,
    /// `seq` of the earlier verdict on the same attempt that this one replaces.
    pub revises: Option<u64>,
    /// The record stands for several equal verdicts, each on an attempt of its own.
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
    /// How many verdicts a record with this field stands for. It is limited to 32 bits, so that sums cannot overflow.
    pub fn count_of(repeated: Option<&Self>) -> u64 {
        repeated.map_or(1, |it| it.count.clamp(1, u32::MAX.into()))
    }
}

/// The kubelet's own result of an attempt.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubeletOutcome {
    /// How the kubelet counted it.
    pub result: KubeletResult,
    /// The kubelet's own text; absent if it may be the output of a command.
    pub output: Option<String>,
    /// How many failures the Event counts; absent if it comes from the kubelet's log.
    pub event_count: Option<u32>,
}

/// The cause of an attempt's failure, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// `failure` or `noise`.
    pub outcome: Outcome,
    /// How sure the cause is.
    pub confidence: Confidence,
    /// One sentence with the names and numbers of this case.
    pub summary: String,
    /// The fix.
    pub remediation: Remediation,
    /// The observations that decided it, in the order of time.
    pub evidence: Vec<Evidence>,
    /// Other causes that met their conditions.
    pub also: Vec<Cause>,
    /// Events lost during the attempt.
    pub lost_events: u64,
    /// Missing hooks that would make this verdict stronger.
    pub missing_hooks: Vec<String>,
}

impl Verdict {
    pub fn severity(&self) -> Severity {
        if self.outcome == Outcome::Failure { self.cause.severity() } else { Severity::Info }
    }
}

/// One observation that decided the verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The hook or source of the observation. `container_status`: the runs of the container in the pod's status, with
    /// the fields `container`, `restarts`, `exit_code`, `reason`, `ran_s`, `ended_s_before` (the attempt), `waiting`.
    /// `pod_status`: the pod is being deleted.
    pub hook: String,
    /// When, on CLOCK_BOOTTIME.
    pub time_boot_ns: u64,
    /// One sentence.
    pub text: String,
    /// The numbers and names of the sentence.
    pub fields: BTreeMap<String, Value>,
}

/// How long the attempt and tracer took.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timing {
    /// From the start of the attempt until it had failed; absent without an attempt, and if it did not fail.
    pub failed_after_ms: Option<f64>,
    /// From the kernel event that decided it to the record; absent in a replay.
    pub detected_after_ms: Option<f64>,
}

impl Timing {
    /// Milliseconds between two times, three decimals.
    #[expect(clippy::cast_precision_loss, reason = "it is far below 2^52 ns")]
    pub fn ms(from_ns: u64, to_ns: u64) -> f64 {
        (to_ns.saturating_sub(from_ns) as f64 / 1_000.0).round() / 1_000.0
    }
}

/// The body of an `attempt` record.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptBody {
    /// Probe or connection.
    pub subject: Subject,
    /// The attempt, unique on this node until the next boot.
    pub attempt_id: String,
    /// How it ended; absent: nothing shows a failure or a success, as for an answer that no hook read.
    pub outcome: Option<Outcome>,
    /// The probe, if a spec is known.
    pub probe: Option<Probe>,
    /// The pod.
    pub k8s: Option<K8s>,
    /// The client's end.
    pub src: Option<Endpoint>,
    /// The server's end.
    pub dst: Endpoint,
    /// The process that connects.
    pub process: Process,
    /// The HTTP status of the answer; absent: there was none, or no hook saw it (as always in TLS).
    pub http_status: Option<u16>,
    /// How long its parts took.
    pub phases_ms: Phases,
    /// The verdict's cause, if there was one.
    pub cause: Option<Cause>,
}

/// How long the parts of an attempt took, milliseconds; absent: that part was not reached or could not be seen.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phases {
    /// From connect to established.
    pub connect: Option<f64>,
    /// From established to the server's first TLS record: its part of the handshake (RFC 8446; before TLS 1.3 another
    /// round trip follows).
    pub tls: Option<f64>,
    /// From established to the first byte of the answer; in TLS it cannot be distinguished from the handshake.
    pub first_byte: Option<f64>,
    /// From connect to the end.
    pub total: Option<f64>,
}
