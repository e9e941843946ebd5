//! Messages of the kubelet: failed probes, and sandboxes that it could not make.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::ProbeType;

/// Names of processes that contain a kubelet. rke2 and k0s run it as a process of its own. k3s, `MicroK8s`, `MicroShift`
/// and `KubeEdge` link it in, and k3s renames itself.
pub const KNOWN_PROBERS: &[&str] =
    &["kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "microshift", "edgecore", "hyperkube"];

/// Whether this is the name of a process with a kubelet. `--prober` can add other names.
pub fn is_kubelet_name(comm: &str) -> bool {
    KNOWN_PROBERS.contains(&comm)
}

/// Names of processes that may contain an API server, too.
pub const WITH_API_SERVER: &[&str] = &["kubelite", "k3s", "k3s-server", "rke2", "microshift", "hyperkube"];

/// The pod of a message, as far as the message names it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub uid: Option<String>,
}

/// Whether the API can have an object of this name (RFC 1123). A name in a kubelet message can be any text.
pub fn is_object_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    name.len() <= 253 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits)
}

impl PodRef {
    /// The names are possible names of a pod.
    pub fn is_nameable(&self) -> bool {
        [&self.namespace, &self.name].into_iter().flatten().all(|it| is_object_name(it))
    }

    /// The same pod: by uid, if both are known. The next pod of a StatefulSet has the same name.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |left: &Option<String>, right: &Option<String>| left.is_some() && left == right;
        match (&self.uid, &other.uid) {
            (Some(left), Some(right)) => left == right,
            _ => same(&self.name, &other.name) && same(&self.namespace, &other.namespace),
        }
    }
}

/// A probe failed, as the kubelet saw it (`pkg/kubelet/prober/prober.go`).
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletProbe {
    pub pod: PodRef,
    pub container: Option<String>,
    pub probe_type: ProbeType,
    pub result: KubeletResult,
    /// What its output says of the failure. `says` in recordings.
    #[serde(rename = "says")]
    pub reason: ProbeOutput,
    /// The kubelet's own text; absent if it may be text of the pod.
    pub output: Option<String>,
    /// The prober's end of the connection, if the text names it.
    pub src: Option<SocketAddr>,
    /// The target, if the text names it.
    pub dst: Option<SocketAddr>,
    /// When the kubelet wrote it, CLOCK_BOOTTIME nanoseconds. For an Event: the beginning of that second.
    pub written_boot_ns: u64,
    /// Process id of the kubelet, if the line names it.
    pub pid: Option<u32>,
    /// For an Event of the cluster API: how many failures it counts; absent for a line of the log.
    pub event_count: Option<u32>,
}

/// The health service does not know the service of the probe (`grpc.health.v1`, `Check`). The client itself never makes
/// this code.
const NOT_FOUND: &str = "error: health rpc probe failed: rpc error: code = NotFound";

/// The server refuses the rpc without credentials. The kubelet's client has none, and makes neither code itself.
const DENIED: [&str; 2] = [
    "error: health rpc probe failed: rpc error: code = Unauthenticated",
    "error: health rpc probe failed: rpc error: code = PermissionDenied",
];

/// The health rpc ended with a status of gRPC.
const RPC_FAILED: &str = "error: health rpc probe failed: rpc error: code = ";

/// The server reset the stream of the request (HTTP/2: RST_STREAM), in the words of golang.org/x/net/http2 and grpc-go.
const STREAM_RESET: [&str; 2] = ["; received from peer", " desc = stream terminated by RST_STREAM with error code"];
/// The server ended the connection in order (HTTP/2: GOAWAY), in the words of golang.org/x/net/http2.
const GOES_AWAY: &str = ": http2: server sent GOAWAY";

/// Go's client does not accept the HTTP answer (net/http, net/textproto). The texts are as `redact.rs` writes them.
const NOT_TAKEN: [&str; 10] = [
    "malformed MIME header",
    "malformed chunked encoding",
    "invalid byte in chunk length",
    "failed to parse Location header",
    "bad Content-Length",
    "multiple Content-Length headers",
    "unsupported transfer encoding",
    "too many transfer encodings",
    "server response headers exceeded the limit",
    "too many 1xx informational responses",
];

/// Go's client does not accept what the server sent in the TLS handshake (crypto/tls). Texts as in `redact.rs`.
const TLS_NOT_TAKEN: [&str; 5] = [
    ": tls: server selected unsupported protocol version",
    ": tls: server chose an unconfigured cipher suite",
    ": tls: failed to parse certificate from server",
    ": tls: invalid signature by the server certificate",
    ": tls: server sent certificate containing too large an RSA key",
];

/// The kubelet's gRPC client had no connection in time.
const NOT_CONNECTED: &str = "timeout: failed to connect service ";
/// The time if the kubelet writes it in minutes.
const LONGEST_CONNECT_S: u64 = 60;

/// The times of an Event are whole seconds, nanoseconds.
const EVENT_RESOLUTION_NS: u64 = 1_000_000_000;

impl KubeletProbe {
    /// The kubelet counts it as a failure.
    pub const fn is_counted(&self) -> bool {
        matches!(self.result, KubeletResult::Failure)
    }

    /// The same outcome, with newer meanings of its text: a recording of an older version does not have these.
    #[must_use]
    pub fn understood(mut self) -> Self {
        let words = self.output.as_deref().filter(|_| self.reason == ProbeOutput::Network).unwrap_or_default();
        if STREAM_RESET.iter().any(|why| words.contains(why)) {
            self.reason = ProbeOutput::StreamReset;
        } else if words.starts_with(NOT_FOUND) {
            self.reason = ProbeOutput::HealthNotFound;
        } else if DENIED.iter().any(|denied| words.starts_with(denied)) {
            self.reason = ProbeOutput::RpcDenied;
        } else if NOT_TAKEN.iter().any(|why| words.ends_with(why)) {
            self.reason = ProbeOutput::InvalidAnswer;
        } else if TLS_NOT_TAKEN.iter().any(|why| words.ends_with(why)) {
            self.reason = ProbeOutput::InvalidTls;
        } else if self.reason == ProbeOutput::TimeoutInBody {
            self.result = KubeletResult::Error;
        }
        self
    }

    /// The scheme of the last URL that the kubelet requested. After a redirect it may not be the probe's own.
    pub fn scheme(&self) -> Option<&'static str> {
        let url = self.output.as_deref()?.strip_prefix("Get ")?.trim_start_matches('"');
        ["https", "http"].into_iter().find(|scheme| url.starts_with(&format!("{scheme}://")))
    }

    /// The kubelet's gRPC probe was connected and had no answer to its request (`pkg/probe/grpc`).
    pub fn is_rpc_timeout(&self) -> bool {
        self.output.as_deref().is_some_and(|it| it.starts_with("timeout: health rpc did not complete"))
    }

    /// A server of gRPC answered, if only the handshake of HTTP/2.
    pub fn is_answered_in_grpc(&self) -> bool {
        use ProbeOutput::{HealthNotFound, NoHealthService, NotServing, RpcDenied};
        matches!(self.reason, NotServing | NoHealthService | HealthNotFound | RpcDenied) || self.is_rpc_timeout()
    }

    /// The server had announced that it ends the connection.
    pub fn is_goaway(&self) -> bool {
        self.output.as_deref().is_some_and(|it| it.contains(GOES_AWAY))
    }

    /// The gRPC status with which the health rpc ended. It may be the client's own, after a lost connection, unless it
    /// says how the client gave up.
    pub fn rpc_status(&self) -> Option<&str> {
        let status = self.output.as_deref()?.strip_prefix(RPC_FAILED)?;
        (!matches!(status, "" | "DeadlineExceeded" | "Canceled")).then_some(status)
    }

    /// How long the kubelet's gRPC client tried to connect (`pkg/probe/grpc`). Its attempts failed within that
    /// time, not at its end. The text of `grpc_health_probe` has no error after the time.
    pub fn connecting_for_ns(&self) -> Option<u64> {
        let (_, rest) = self.output.as_deref()?.strip_prefix(NOT_CONNECTED)?.split_once(" within ")?;
        let (seconds, _) = rest.split_once("s:")?;
        Some(seconds.parse().unwrap_or(LONGEST_CONNECT_S).saturating_mul(1_000_000_000))
    }

    /// It comes from an Event, not from the log.
    pub const fn is_event(&self) -> bool {
        self.event_count.is_some()
    }

    /// When the kubelet wrote it at the latest, CLOCK_BOOTTIME nanoseconds.
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
    /// It ended in an error: it counts as neither success nor failure. The kubelet ignores it whatever state it names
    /// (`errored and resulted in failure state`: an HTTP answer that it could not read to the end).
    Error,
}

/// What the output of a failed probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeOutput {
    /// A network probe had no answer in time.
    Timeout,
    /// An answer began, but its body was not complete in time.
    TimeoutInBody,
    /// An HTTP status outside of 200 to 399.
    Status(u16),
    /// gRPC health: something other than SERVING.
    NotServing,
    /// The gRPC server answered and has no health service.
    NoHealthService,
    /// The gRPC health service does not know the service of the probe.
    HealthNotFound,
    /// The gRPC server refused the health rpc without credentials.
    RpcDenied,
    /// The server ended the request with an error of HTTP/2.
    StreamReset,
    NotHttp,
    /// The answer was HTTP, in a form that the kubelet's client does not accept.
    InvalidAnswer,
    /// The server refused TLS with an alert.
    TlsRefused,
    /// The kubelet's client rejected the certificate, or another choice of the server in the TLS handshake.
    InvalidTls,
    /// Each answer was a redirect, until the kubelet gave up.
    TooManyRedirects,
    /// The probe's port is a name that no port of its container has: the kubelet does not connect.
    NoSuchPort,
    /// Another error of the network.
    Network,
    CommandTimeout,
    /// The command could not be run at all.
    CommandNotRun,
    /// The command was not run because its container does not run, or ends; or the kubelet cancelled it.
    ContainerEnds,
    /// Text that is not the kubelet's own: what a command printed.
    Other,
    /// No text: a command that printed nothing, or, before 1.24, one that did not end in time
    /// (kubernetes/kubernetes#106201).
    Nothing,
    /// No text, from a kubelet that has a text for a timeout: a command that ended with an error and printed nothing.
    PrintedNothing,
}

impl ProbeOutput {
    /// The status of HTTP that the kubelet read.
    pub const fn status(self) -> Option<u16> {
        if let Self::Status(status) = self { Some(status) } else { None }
    }

    /// The kubelet read an answer, which was a failure.
    pub const fn is_of_answer(self) -> bool {
        matches!(
            self,
            Self::Status(_)
                | Self::NotServing
                | Self::NoHealthService
                | Self::HealthNotFound
                | Self::RpcDenied
                | Self::StreamReset
                | Self::NotHttp
                | Self::InvalidAnswer
                | Self::TlsRefused
                | Self::InvalidTls
        )
    }

    /// A command printed this, or nothing, unless the kubelet has a message that tracer does not know.
    pub const fn may_be_printed(self) -> bool {
        matches!(self, Self::Other | Self::Nothing | Self::PrintedNothing)
    }

    /// It is about a command, not about a connection.
    pub const fn is_of_command(self) -> bool {
        matches!(self, Self::CommandTimeout | Self::CommandNotRun | Self::ContainerEnds)
    }
}

/// The sandbox of a pod could not be made.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFailure {
    pub pod: PodRef,
    /// Why it has no network.
    pub cause: SandboxCause,
    /// The kubelet's text.
    pub words: String,
    /// When the kubelet wrote it, CLOCK_BOOTTIME nanoseconds.
    pub written_boot_ns: u64,
    /// Process id of the kubelet, if the line names it.
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
    /// The plugin's program is missing.
    NoPlugin,
    Plugin,
}
