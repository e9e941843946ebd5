//! Facts of the cluster: pods with their probes, Services.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Netns, Runs};

/// Pods and their probes; replaces what was known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pods {
    pub pods: Vec<Pod>,
}

/// Services; replaces what was known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Services {
    pub services: Vec<Service>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Kubernetes namespace; absent if only the uid is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Name; absent if only the uid is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<String>,
    /// The uid by which the kubelet and the cgroups know it, where the API has another: a static pod's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kubelet_uid: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// What made it; absent for a pod of its own or a static pod.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub workload: Option<Workload>,
    /// Its network namespace, if a process of it was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// Shares the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// Somebody deletes it: its containers are asked to end.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub deleting: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub containers: Vec<Container>,
}

/// The object with the template of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// As the API has it: `Deployment`, `DaemonSet`, `StatefulSet`, `Job`.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

impl Workload {
    /// The kind of a workload by what `kubectl` takes for it: `deploy`, `daemonsets`, `statefulset.apps`.
    pub fn kind_as_typed(word: &str) -> Option<&'static str> {
        const KINDS: &[(&str, &str)] = &[
            ("Deployment", "deploy"),
            ("DaemonSet", "ds"),
            ("StatefulSet", "sts"),
            ("ReplicaSet", "rs"),
            ("Job", "job"),
        ];
        let word = word.to_lowercase();
        let word = word.split_once('.').map_or(word.as_str(), |(word, _group)| word);
        let names = |(kind, short): &&(&str, &str)| {
            let kind = kind.to_lowercase();
            word == *short || word == kind || word.strip_suffix('s') == Some(&kind)
        };
        KINDS.iter().find(names).map(|(kind, _)| *kind)
    }
}

impl Pod {
    /// "default/web", or the uid if that is all that is known.
    pub fn full_name(&self) -> Option<String> {
        full_name(self.namespace.as_deref(), self.name.as_deref().or(self.uid.as_deref()))
    }

    /// The API or the kubelet knows it by this uid.
    pub fn has_uid(&self, uid: &str) -> bool {
        [&self.uid, &self.kubelet_uid].into_iter().flatten().any(|own| own == uid)
    }

    /// Its probes or lifecycle handlers are known, and not only its name.
    pub fn has_specs(&self) -> bool {
        self.containers.iter().any(|container| !container.probes.is_empty() || !container.lifecycle.is_empty())
    }
}

/// "default/web"
pub(crate) fn full_name(namespace: Option<&str>, name: Option<&str>) -> Option<String> {
    let name = name?;
    Some(namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}")))
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Name; absent if only the id is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Its network probes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub probes: Vec<ProbeSpec>,
    /// Its probes that run a command.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub exec: Vec<ExecSpec>,
    /// Its lifecycle handlers that ask over HTTP.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lifecycle: Vec<LifecycleHandler>,
    /// Its starts and ends; absent where nobody lists them, or what was listed is of another run than the node's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub runs: Option<Runs>,
}

impl Container {
    /// The network probe that ends a start that takes too long: the startup probe, without one the liveness probe. `None`
    /// if that is a command, or there is none.
    pub fn start_probe(&self) -> Option<&ProbeSpec> {
        let of = |kind| self.probes.iter().find(|spec| spec.probe_type == kind);
        let by_command = self.exec.iter().any(|spec| spec.probe_type == ProbeType::Startup);
        of(ProbeType::Startup).or_else(|| of(ProbeType::Liveness).filter(|_| !by_command))
    }
}

/// One probe of a container that runs a command in it, defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    #[serde(rename = "type")]
    pub probe_type: ProbeType,
    /// Seconds until the kubelet gives up.
    pub timeout_s: u32,
    pub period_s: u32,
    /// Failures in a row until it counts.
    pub failure_threshold: u32,
}

/// A lifecycle handler of a container that asks over HTTP, named ports resolved. No other uses the network: a `tcpSocket` fails
/// without a connection (`handlerRunner.Run`, pkg/kubelet/lifecycle/handlers.go).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleHandler {
    #[serde(rename = "type")]
    pub event: LifecycleEvent,
    /// `http` or `https`.
    pub scheme: String,
    pub port: u16,
    /// Address dialled, where it is not the pod's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
    /// Path, without the query.
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifecycleEvent {
    /// As soon as the container is started.
    PostStart,
    /// Before the container is ended: its pod is deleted or evicted, its liveness or startup probe failed.
    PreStop,
}

impl LifecycleEvent {
    /// The field of the pod's spec.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::PreStop => "preStop",
        }
    }
}

/// One network probe of a container, defaults applied and named ports resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ProbeSpec {
    /// What it decides.
    #[serde(rename = "type")]
    pub probe_type: ProbeType,
    /// How it asks.
    pub handler: Handler,
    /// `http` or `https`, for HTTP probes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheme: Option<String>,
    /// What it speaks, where handler and scheme do not say it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub speaks: Option<ProbeProtocol>,
    /// Port dialled.
    pub port: u16,
    /// Address dialled, where it is not the pod's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
    /// Path, for HTTP probes; without the query.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// Seconds until the kubelet gives up.
    pub timeout_s: u32,
    /// Seconds between attempts.
    pub period_s: u32,
    /// Failures in a row until it counts.
    pub failure_threshold: u32,
    /// Seconds before the first attempt.
    #[serde(default)]
    pub initial_delay_s: u32,
}

impl ProbeSpec {
    /// Seconds until the failures in a row are too many.
    pub const fn budget_s(&self) -> u32 {
        self.initial_delay_s.saturating_add(self.period_s.saturating_mul(self.failure_threshold))
    }

    /// Seconds after which they can be too many at the earliest: the first attempt comes anywhere in the first period.
    pub const fn earliest_restart_s(&self) -> u32 {
        let periods = self.failure_threshold.saturating_sub(1);
        self.initial_delay_s.saturating_add(self.period_s.saturating_mul(periods))
    }
}

/// What a probe speaks by a field that its handler did not always have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeProtocol {
    /// HTTP/2 from the first byte on (`httpGet.protocol: HTTP2`, Kubernetes 1.37).
    Http2,
    /// TLS (`grpc.mode: TLS`, Kubernetes 1.37).
    Tls,
    /// The handler has a field or a value that is not known here: any protocol.
    Unknown,
}

/// What a probe decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeType {
    /// Restarts the container.
    Liveness,
    /// Takes the pod out of its Services.
    Readiness,
    /// Holds the other two back.
    Startup,
}

impl ProbeType {
    /// As records and sentences have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
            Self::Startup => "startup",
        }
    }

    /// By the word that the kubelet's log, Events and metrics have for it.
    pub fn from_kubelet(word: &str) -> Option<Self> {
        match word {
            "Liveness" => Some(Self::Liveness),
            "Readiness" => Some(Self::Readiness),
            "Startup" => Some(Self::Startup),
            _ => None,
        }
    }
}

/// How a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handler {
    /// `httpGet`
    Http,
    /// `tcpSocket`
    Tcp,
    /// `grpc`
    Grpc,
    /// `exec`: a command, no connection.
    Exec,
}

impl Handler {
    /// As records have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
            Self::Exec => "exec",
        }
    }
}

/// A Service, as far as verdicts need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub cluster_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// Ready endpoint addresses; absent if no EndpointSlice was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ready_endpoints: Option<Vec<IpAddr>>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_ready_endpoints: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    pub port: u16,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_port: Option<u16>,
}
