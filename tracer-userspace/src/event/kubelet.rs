//! What the kubelet itself says: how a probe ended, and sandboxes that it could not make.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ProbeType;

/// The pod that a line is about, as far as the line names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodRef {
    /// Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Uid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<String>,
}

/// A probe failed, as the kubelet saw it (`pkg/kubelet/prober/prober.go`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletProbe {
    /// The pod.
    pub pod: PodRef,
    /// Name of the container.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub container: Option<String>,
    /// Which probe.
    pub probe_type: ProbeType,
    /// `failure` or `error`.
    pub result: KubeletResult,
    /// What its output means.
    pub says: ProbeSays,
    /// The kubelet's own words; absent where they are, or may be, the words of the pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<String>,
    /// The prober's end of the connection, where the words name it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub src: Option<SocketAddr>,
    /// The end that was dialled, where the words name it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dst: Option<SocketAddr>,
    /// When the kubelet wrote it, CLOCK_BOOTTIME nanoseconds.
    pub written_boot_ns: u64,
    /// Process id of the kubelet, where the line names it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pid: Option<u32>,
}

/// How the kubelet counts a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KubeletResult {
    /// It failed.
    Failure,
    /// It could not be made.
    Error,
}

/// What the output of a failed probe means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeSays {
    /// A network probe had no answer in time.
    Timeout,
    /// The answer came in parts: its body was not over in time.
    TimeoutInBody,
    /// An HTTP status that is none of 200 to 399.
    Status(u16),
    /// gRPC health: something other than SERVING.
    NotServing,
    /// The answer was not HTTP.
    NotHttp,
    /// Another error of the network.
    Network,
    /// The command did not end in time.
    CommandTimeout,
    /// The command could not be run at all.
    CommandNotRun,
    /// Nothing that the kubelet itself says: what a command printed.
    Other,
}

/// A pod whose sandbox could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxFailure {
    /// The pod.
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
    /// A plugin said no.
    Plugin,
}
