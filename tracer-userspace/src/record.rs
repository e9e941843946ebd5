//! Records: what leaves the process, one JSON object a line, schema `tracer/1`.
//!
//! The JSON Schema (`tracer schema`) is generated from these types. What is unknown is absent,
//! never a zero or an empty string; durations carry their unit in the name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::event::{FindingBody, Status};

use crate::classify::label::Label;
use crate::event::{Ancestor, HookStatus, MissingHook, Netns, ProbeSpec};

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

/// What this run works with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StartBody {
    /// Version of the tracer.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Hooks in force.
    pub hooks: Vec<HookStatus>,
    /// Hooks that are missing, why, and what cannot be told without them.
    pub missing_hooks: Vec<MissingHook>,
    /// Sources of facts in use.
    pub sources: Vec<String>,
    /// Process names whose connections are probe attempts.
    pub probers: Vec<String>,
    /// Process ids of the probers that were running at the start; empty: none was found (yet).
    pub prober_pids: Vec<u32>,
    /// Pods known at the start.
    pub pods: usize,
}

/// Totals of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopBody {
    /// Attempts that ended.
    pub attempts: u64,
    /// Verdicts by label.
    pub verdicts: BTreeMap<String, u64>,
    /// Kernel events read.
    pub events: u64,
    /// Kernel events lost.
    pub lost_events: u64,
    /// Attempts that were open at the end.
    pub open_attempts: u64,
    /// Why the run ended: `signal`, `duration`, `until_failure`, `output_closed` (nobody reads), `end_of_stream`.
    pub reason: String,
}

/// Whether the verdict is about a probe or some other connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Matched to a probe spec or, lacking specs, made by the prober to an address of this node's pods.
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
    /// It succeeded, and left a trace that misleads.
    Noise,
    /// It succeeded.
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
    #[must_use]
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
    pub kubelet: Option<KubeletSaid>,
    /// When it was known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timing: Option<Timing>,
    /// `seq` of the earlier verdict on the same attempt that this one replaces.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub revises: Option<u64>,
}

/// What the kubelet made of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KubeletSaid {
    /// How it counted it.
    pub result: crate::event::KubeletResult,
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
    pub label: Label,
    /// `failure` or `noise`.
    pub outcome: Outcome,
    /// How sure.
    pub confidence: Confidence,
    /// One sentence with the names and numbers of this case.
    pub summary: String,
    /// The command or setting that mends it.
    pub remediation: String,
    /// What decided it, in the order of time.
    pub evidence: Vec<Evidence>,
    /// Other labels whose conditions held.
    pub also: Vec<Label>,
    /// Events lost inside the attempt's window.
    pub lost_events: u64,
    /// Hooks whose absence weakens this verdict.
    pub missing_hooks: Vec<String>,
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The hook or source it was seen by. `container_status`: what the pod's status says of how its container ran, with
    /// the fields `container`, `restarts`, `exit_code`, `reason`, `ran_s`, `ended_s_before` (the attempt), `waiting`.
    pub hook: String,
    /// When, on CLOCK_BOOTTIME.
    pub time_boot_ns: u64,
    /// In words.
    pub says: String,
    /// In numbers.
    pub fields: BTreeMap<String, Value>,
}

/// A probe as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// `liveness`, `readiness`, `startup`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none", default)]
    pub probe_type: Option<crate::event::ProbeType>,
    /// `http`, `tcp`, `grpc`, `exec`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handler: Option<crate::event::Handler>,
    /// `http`, `https`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheme: Option<String>,
    /// Port dialled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<u16>,
    /// Path without the query.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub timeout_s: Option<u32>,
    /// Seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub period_s: Option<u32>,
    /// Failures in a row until it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure_threshold: Option<u32>,
    /// Failures in a row seen so far, this one included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub consecutive_failures: Option<u32>,
}

impl Probe {
    /// What all of these specs agree on. `None` for no spec.
    #[must_use]
    pub fn agreed(specs: &[&ProbeSpec]) -> Option<Self> {
        fn same<T: PartialEq + Clone>(specs: &[&ProbeSpec], get: impl Fn(&ProbeSpec) -> Option<T>) -> Option<T> {
            let first = get(specs.first()?)?;
            specs.iter().all(|s| get(s).as_ref() == Some(&first)).then_some(first)
        }
        specs.first()?;
        Some(Self {
            probe_type: same(specs, |s| Some(s.probe_type)),
            handler: same(specs, |s| Some(s.handler)),
            scheme: same(specs, |s| s.scheme.clone()),
            port: same(specs, |s| Some(s.port)),
            path: same(specs, |s| s.path.clone()),
            timeout_s: same(specs, |s| Some(s.timeout_s)),
            period_s: same(specs, |s| Some(s.period_s)),
            failure_threshold: same(specs, |s| Some(s.failure_threshold)),
            consecutive_failures: None,
        })
    }
}

/// The pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct K8s {
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Pod name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod_name: Option<String>,
    /// Pod uid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod_uid: Option<String>,
    /// Container name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container_name: Option<String>,
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Address; v4-mapped addresses are printed as IPv4.
    pub addr: IpAddr,
    /// Port; absent while it is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub port: Option<u16>,
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { addr: addr.ip(), port: Some(addr.port()).filter(|&p| p != 0) }
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetnsRef {
    /// Inode number, as `readlink /proc/PID/ns/net` shows it.
    pub inum: Netns,
    /// `net_cookie`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cookie: Option<String>,
    /// `host` for the node's own, else the pod's name where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
}

/// Who caused it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Culprit {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
    /// Executable.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    /// Ancestors, nearest first.
    pub ancestors: Vec<Ancestor>,
    /// What it did: `link_down`, `reset`.
    pub op: String,
    /// Path by which it entered the namespace it hit, where that was seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns_path: Option<String>,
    /// The namespace it hit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<NetnsRef>,
    /// When, on CLOCK_BOOTTIME.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub time_boot_ns: Option<u64>,
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
    /// How long its parts took.
    pub phases_ms: Phases,
    /// The verdict's label, if there was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub label: Option<Label>,
}

/// How long the parts of an attempt took, milliseconds; absent: that part was not reached or could not be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Phases {
    /// From connect to established.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connect: Option<f64>,
    /// From established to the end of the TLS handshake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls: Option<f64>,
    /// From established to the first byte of the answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_byte: Option<f64>,
    /// From connect to the end.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<f64>,
}

/// The body of a `node` record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeBody {
    /// `link_down`, `link_up`, `netns_enter`, `firewall_drop_began` (seen at watched connections; again after five minutes
    /// without), `node_ports_changed`, `port_pressure`.
    pub event: String,
    /// In words.
    pub summary: String,
    /// Who did it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub culprit: Option<Culprit>,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<NetnsRef>,
    /// The link.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub link: Option<LinkRef>,
    /// Who uses up ephemeral ports, and what that means for the next connect.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ports: Option<PortsBody>,
}

/// Ephemeral ports of the node, over a window of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortsBody {
    /// Length of the window, seconds.
    pub window_s: f64,
    /// `net.ipv4.ip_local_port_range`; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub range: Option<[u16; 2]>,
    /// Ports that connect() takes: of the range every second one, less `ip_local_reserved_ports`; for each destination.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub usable: Option<u32>,
    /// TCP sockets of the node's namespace in use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_use: Option<u64>,
    /// Those in TIME_WAIT.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub time_wait: Option<u64>,
    /// NodePorts of IPVS among the usable ports; absent without such a table. With other proxies the coincidence is harmless.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_ports_in_range: Option<u32>,
    /// The chance that the next connect takes one of them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub chance_next_connect_hits: Option<f64>,
    /// Who connected, most connects first; ten at most.
    pub users: Vec<PortUserBody>,
}

/// Processes of one name that use up ephemeral ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortUserBody {
    /// The one of them that connected most.
    pub pid: u32,
    /// Their name.
    pub comm: String,
    /// How many there were in the window, if more than one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub processes: Option<u32>,
    /// `namespace/name` of their pod, or its uid; absent for processes of the node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// Their network namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<NetnsRef>,
    /// Connects in the window.
    pub connects: u64,
    /// The same by second.
    pub connects_per_s: f64,
    /// Destinations (address and port), estimated: a thousand and more look the same.
    pub distinct_destinations: u64,
    /// Connects to the address that they came from.
    pub self_connections: u64,
    /// Connections that they closed first: each leaves its port in TIME_WAIT for a minute.
    pub time_wait_left: u64,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkRef {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Up or down, after the event.
    pub up: bool,
}

/// The body of a `loss` record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LossBody {
    /// `ring` (it was full), `program` (the kernel skipped a run), `output` (nobody read the records, or their file could not be written)
    /// or `events` (explanations that the cluster API did not take).
    #[serde(rename = "where")]
    pub where_: String,
    /// How many events.
    pub count: u64,
    /// First moment at which one may have been lost.
    pub from_boot_ns: u64,
    /// Last moment.
    pub to_boot_ns: u64,
}
