//! What the kubelet itself says: how a probe ended, and sandboxes that it could not make.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProbeType;

/// Names of the processes that contain a kubelet. rke2 and k0s run it as a process of its own name;
/// k3s, `MicroK8s` and `MicroShift` link it in, and k3s renames itself.
pub const KNOWN_PROBERS: &[&str] =
    &["kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "microshift", "hyperkube"];

/// Whether this is a kubelet's name. What a user calls a prober beyond them is one wherever it runs.
pub fn is_kubelet_name(comm: &str) -> bool {
    KNOWN_PROBERS.contains(&comm)
}

/// Those that contain an API server as well, or may.
pub const WITH_API_SERVER: &[&str] = &["kubelite", "k3s", "k3s-server", "rke2", "microshift", "hyperkube"];

/// The pod that a line is about, as far as the line names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<String>,
}

/// Whether the API has objects of this name: RFC 1123. What the kubelet's words give as one can be anything.
pub fn is_object_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name.len() <= 253 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits)
}

impl PodRef {
    /// What it names can be a pod's.
    pub fn is_nameable(&self) -> bool {
        [&self.namespace, &self.name].into_iter().flatten().all(|it| is_object_name(it))
    }

    /// The same pod. A static pod's uid in the API is another than in the kubelet's lines.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |left: &Option<String>, right: &Option<String>| left.is_some() && left == right;
        same(&self.uid, &other.uid) || (same(&self.name, &other.name) && same(&self.namespace, &other.namespace))
    }
}

/// A probe failed, as the kubelet saw it (`pkg/kubelet/prober/prober.go`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletProbe {
    pub pod: PodRef,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    pub probe_type: ProbeType,
    pub result: KubeletResult,
    /// What its output means.
    pub says: ProbeOutput,
    /// The kubelet's own words; absent where they are, or may be, the words of the pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<String>,
    /// The prober's end of the connection, where the words name it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub src: Option<SocketAddr>,
    /// The end that was dialled, where the words name it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dst: Option<SocketAddr>,
    /// When the kubelet wrote it, CLOCK_BOOTTIME nanoseconds. Of an Event the beginning of the second in which it did.
    pub written_boot_ns: u64,
    /// Process id of the kubelet, where the line names it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
    /// Where an Event of the cluster API says it, and not the log: how many failures that Event counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub event_count: Option<u32>,
}

/// The health service does not know the service that the probe asks about (`grpc.health.v1`, `Check`). The client never makes this code.
const NOT_FOUND: &str = "error: health rpc probe failed: rpc error: code = NotFound";

/// A server refuses the rpc to a caller without credentials. The kubelet's client has none, and makes neither code itself.
const DENIED: [&str; 2] = [
    "error: health rpc probe failed: rpc error: code = Unauthenticated",
    "error: health rpc probe failed: rpc error: code = PermissionDenied",
];

/// An answer in HTTP that Go's client does not take (net/http), as `redact.rs` writes it.
const NOT_TAKEN: [&str; 7] = [
    "failed to parse Location header",
    "bad Content-Length",
    "multiple Content-Length headers",
    "unsupported transfer encoding",
    "too many transfer encodings",
    "server response headers exceeded the limit",
    "too many 1xx informational responses",
];

/// The kubelet's gRPC client had no connection in time.
const NOT_CONNECTED: &str = "timeout: failed to connect service ";
/// Where the time is written in minutes.
const LONGEST_CONNECT_S: u64 = 60;

/// The times of an Event are whole seconds, nanoseconds.
const EVENT_RESOLUTION_NS: u64 = 1_000_000_000;

impl KubeletProbe {
    /// It is a failure by the kubelet's own words. Every kubelet counts an answer as one if its body cannot be read to
    /// the end (`DoHTTPProbe`, pkg/probe/http). Older recordings call it an error.
    pub const fn is_counted(&self) -> bool {
        matches!(self.result, KubeletResult::Failure) || matches!(self.says, ProbeOutput::TimeoutInBody)
    }

    /// The same, with the meaning that a recording of an older version does not give to the same words.
    #[must_use]
    pub fn understood(mut self) -> Self {
        let words = self.output.as_deref().filter(|_| self.says == ProbeOutput::Network).unwrap_or_default();
        if words.starts_with(NOT_FOUND) {
            self.says = ProbeOutput::HealthNotFound;
        } else if DENIED.iter().any(|denied| words.starts_with(denied)) {
            self.says = ProbeOutput::RpcDenied;
        } else if NOT_TAKEN.iter().any(|why| words.ends_with(why)) {
            self.says = ProbeOutput::InvalidAnswer;
        }
        self
    }

    /// The scheme of the URL that the kubelet asked last: after a redirect not the probe's own.
    pub fn scheme(&self) -> Option<&'static str> {
        let url = self.output.as_deref()?.strip_prefix("Get ")?.trim_start_matches('"');
        ["https", "http"].into_iter().find(|scheme| url.starts_with(&format!("{scheme}://")))
    }

    /// The kubelet's gRPC probe was connected and had no answer to its request (`pkg/probe/grpc`).
    pub fn is_rpc_timeout(&self) -> bool {
        self.output.as_deref().is_some_and(|it| it.starts_with("timeout: health rpc did not complete"))
    }

    /// How long the kubelet's gRPC client dialled in vain (`pkg/probe/grpc`): its dials failed in that time, and not at its end.
    pub fn connecting_for_ns(&self) -> Option<u64> {
        let (_, rest) = self.output.as_deref()?.strip_prefix(NOT_CONNECTED)?.split_once(" within ")?;
        let seconds = rest.split_once("s:").and_then(|(seconds, _)| seconds.parse::<u64>().ok());
        Some(seconds.unwrap_or(LONGEST_CONNECT_S).saturating_mul(1_000_000_000))
    }

    /// An Event says it, not the log.
    pub const fn is_event(&self) -> bool {
        self.event_count.is_some()
    }

    /// The latest that it can have been written, CLOCK_BOOTTIME nanoseconds.
    pub const fn written_until(&self) -> u64 {
        let resolution = if self.is_event() { EVENT_RESOLUTION_NS } else { 0 };
        self.written_boot_ns.saturating_add(resolution)
    }
}

/// How the kubelet counts a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KubeletResult {
    /// It failed.
    Failure,
    /// It could not be made (`errored and resulted in unknown state`): it counts neither way.
    Error,
}

impl KubeletResult {
    /// Of a probe that errored, by the state in which that resulted; a kubelet that names none throws it away.
    pub fn of_error(state: Option<&str>) -> Self {
        if state == Some("failure") { Self::Failure } else { Self::Error }
    }
}

/// What the output of a failed probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeOutput {
    /// A network probe had no answer in time.
    Timeout,
    /// The answer came in parts: its body was not over in time.
    TimeoutInBody,
    /// An HTTP status that is none of 200 to 399.
    Status(u16),
    /// gRPC health: something other than SERVING.
    NotServing,
    /// The gRPC server answered and has no health service.
    NoHealthService,
    /// The gRPC health service does not know the service that was asked about.
    HealthNotFound,
    /// The gRPC server answered the health rpc to nobody without credentials.
    RpcDenied,
    NotHttp,
    /// The answer was HTTP, in a form that the kubelet's client does not take.
    InvalidAnswer,
    /// The server refused TLS by an alert.
    TlsRefused,
    /// Each answer was a redirect, until the kubelet followed no more.
    TooManyRedirects,
    /// The probe's port is a name, and no port of its container has it: the kubelet dials nobody.
    NoSuchPort,
    /// Another error of the network.
    Network,
    CommandTimeout,
    /// The command could not be run at all.
    CommandNotRun,
    /// The command was not run because its container does not run, or ends; or the kubelet called it off.
    ContainerEnds,
    /// Nothing that the kubelet itself says: what a command printed.
    Other,
    /// Nothing at all: a command that printed nothing, or, before 1.24, one that did not end in time
    /// (kubernetes/kubernetes#106201).
    Nothing,
}

impl ProbeOutput {
    /// It read an answer that is a no.
    pub const fn is_of_answer(self) -> bool {
        matches!(
            self,
            Self::Status(_)
                | Self::NotServing
                | Self::NoHealthService
                | Self::HealthNotFound
                | Self::RpcDenied
                | Self::NotHttp
                | Self::InvalidAnswer
                | Self::TlsRefused
        )
    }

    /// It is about a command, and no connection.
    pub const fn is_of_command(self) -> bool {
        matches!(self, Self::CommandTimeout | Self::CommandNotRun | Self::ContainerEnds)
    }
}

/// The sandbox of a pod could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFailure {
    pub pod: PodRef,
    /// What it waits for, if that is the network.
    pub cause: SandboxCause,
    /// The kubelet's words.
    pub words: String,
    /// When the kubelet wrote it, CLOCK_BOOTTIME nanoseconds.
    pub written_boot_ns: u64,
    /// Process id of the kubelet, where the line names it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
}

/// Why a sandbox has no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxCause {
    /// The runtime has no CNI configuration.
    NoConfig,
    /// flannel has not written its subnet file.
    SubnetFile,
    /// The plugin's program is not there.
    NoPlugin,
    Plugin,
}
