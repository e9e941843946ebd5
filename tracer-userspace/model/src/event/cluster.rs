//! Observations of the cluster: pods with their probes, Services.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::kubelet::is_object_name;
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

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Kubernetes namespace; absent if only the uid is known.
    pub namespace: Option<String>,
    /// Name; absent if only the uid is known.
    pub name: Option<String>,
    pub uid: Option<String>,
    /// The uid in the kubelet and the cgroups, if it differs from the API's: of a static pod.
    pub kubelet_uid: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// The object that made it; absent for a pod without an owner or a static pod.
    pub workload: Option<Workload>,
    /// Its network namespace, if one of its processes was found.
    pub netns: Option<Netns>,
    /// Shares the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// The pod is being deleted: the kubelet ends its containers.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub deleting: bool,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub containers: Vec<Container>,
}

/// The object with the template of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// The kind in the API: `Deployment`, `DaemonSet`, `StatefulSet`, `Job`.
    pub kind: String,
    /// Its name, in the pod's namespace.
    pub name: String,
}

impl Workload {
    /// The kind of a workload by a name that `kubectl` accepts: `deploy`, `daemonsets`, `statefulset.apps`.
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
    /// "default/web", or the uid if the name is not known.
    pub fn full_name(&self) -> Option<String> {
        full_name(self.namespace.as_deref(), self.name.as_deref().or(self.uid.as_deref()))
    }

    /// The pod has this uid in the API or in the kubelet.
    pub fn has_uid(&self, uid: &str) -> bool {
        [&self.uid, &self.kubelet_uid].into_iter().flatten().any(|own| own == uid)
    }

    /// The uid in the cgroups of its processes.
    pub fn cgroup_uid(&self) -> Option<&str> {
        self.kubelet_uid.as_deref().or(self.uid.as_deref())
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

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Name; absent if only the id is known.
    pub name: Option<String>,
    pub id: Option<String>,
    /// Its network probes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub probes: Vec<ProbeSpec>,
    /// Its probes that run a command.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub exec: Vec<ExecSpec>,
    /// Its lifecycle handlers that send an HTTP request.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lifecycle: Vec<LifecycleHandler>,
    /// It has a postStart handler that runs a command.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub post_start_command: bool,
    /// The kubelet does not start it again (`restartPolicy: Never`).
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub never_restarted: bool,
    /// Its starts and ends; absent if no source has them, or if they are of another boot of the node.
    pub runs: Option<Runs>,
}

impl Container {
    /// The kubelet kills the container if its postStart handler fails.
    pub fn has_post_start(&self) -> bool {
        self.post_start_command || self.lifecycle.iter().any(|it| it.event == LifecycleEvent::PostStart)
    }

    /// The network probe that restarts the container if its start takes too long: the startup probe, or else the
    /// liveness probe. `None` if that is a command, or there is none.
    pub fn start_probe(&self) -> Option<&ProbeSpec> {
        let of = |kind| self.probes.iter().find(|spec| spec.probe_type == kind);
        let by_command = self.exec.iter().any(|spec| spec.probe_type == ProbeType::Startup);
        of(ProbeType::Startup).or_else(|| of(ProbeType::Liveness).filter(|_| !by_command))
    }
}

/// One exec probe of a container, defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    #[serde(rename = "type")]
    pub probe_type: ProbeType,
    /// Seconds until the kubelet gives up.
    pub timeout_s: u32,
    pub period_s: u32,
    /// Failures in a row until the probe counts as failed.
    pub failure_threshold: u32,
}

/// A lifecycle handler of a container that sends an HTTP request, named ports resolved. Other handlers do not use the
/// network: a `tcpSocket` handler fails without a connection (`handlerRunner.Run`, pkg/kubelet/lifecycle/handlers.go).
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleHandler {
    #[serde(rename = "type")]
    pub event: LifecycleEvent,
    /// `http` or `https`.
    pub scheme: String,
    pub port: u16,
    /// The target address, if it is not the pod's.
    pub host: Option<String>,
    /// Path, without the query.
    pub path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LifecycleEvent {
    /// Right after the start of the container.
    PostStart,
    /// Before the kubelet ends the container: its pod is deleted or evicted, or its liveness or startup probe failed.
    PreStop,
}

impl LifecycleEvent {
    /// The field in the pod's spec.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PostStart => "postStart",
            Self::PreStop => "preStop",
        }
    }
}

/// One network probe of a container, defaults applied and named ports resolved.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ProbeSpec {
    /// The kind of the probe.
    #[serde(rename = "type")]
    pub probe_type: ProbeType,
    /// How it probes.
    pub handler: Handler,
    /// `http` or `https`, for HTTP probes.
    pub scheme: Option<String>,
    /// The protocol, if handler and scheme do not determine it.
    pub speaks: Option<ProbeProtocol>,
    /// The target port.
    pub port: u16,
    /// The target address, if it is not the pod's.
    pub host: Option<String>,
    /// Path, for HTTP probes; without the query.
    pub path: Option<String>,
    /// Seconds until the kubelet gives up.
    pub timeout_s: u32,
    /// Seconds between attempts.
    pub period_s: u32,
    /// Failures in a row until the probe counts as failed.
    pub failure_threshold: u32,
    /// Seconds before the first attempt.
    #[serde(default)]
    pub initial_delay_s: u32,
    /// Seconds from SIGTERM to SIGKILL when the kubelet restarts the container for this probe; absent: the default.
    pub grace_s: Option<u32>,
}

impl ProbeSpec {
    /// The API's default of `terminationGracePeriodSeconds`.
    pub const DEFAULT_GRACE_S: u32 = 30;

    /// How long the container may take to end after this probe has failed.
    pub fn grace_ns(&self) -> u64 {
        u64::from(self.grace_s.unwrap_or(Self::DEFAULT_GRACE_S)) * 1_000_000_000
    }

    /// Seconds after which the kubelet restarts the container at the latest.
    pub const fn budget_s(&self) -> u32 {
        self.initial_delay_s.saturating_add(self.period_s.saturating_mul(self.failure_threshold))
    }

    /// Seconds after which the kubelet restarts the container at the earliest: the first attempt comes anywhere in the
    /// first period.
    pub const fn earliest_restart_s(&self) -> u32 {
        let periods = self.failure_threshold.saturating_sub(1);
        self.initial_delay_s.saturating_add(self.period_s.saturating_mul(periods))
    }
}

/// The protocol of a probe, from a newer field of its handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeProtocol {
    /// HTTP/2 from the first byte on (`httpGet.protocol: HTTP2`, Kubernetes 1.37).
    Http2,
    /// TLS (`grpc.mode: TLS`, Kubernetes 1.37).
    Tls,
    /// The handler has a field or value that tracer does not know, so the protocol can be any.
    Unknown,
}

/// The kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeType {
    /// Restarts the container.
    Liveness,
    /// Removes the pod from its Services.
    Readiness,
    /// Delays the other two.
    Startup,
}

display_as_serialized!(ProbeType, Handler);

impl ProbeType {
    /// The kind by its name in the kubelet's log, Events and metrics.
    pub fn from_kubelet(word: &str) -> Option<Self> {
        match word {
            "Liveness" => Some(Self::Liveness),
            "Readiness" => Some(Self::Readiness),
            "Startup" => Some(Self::Startup),
            _ => None,
        }
    }
}

/// The handler of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handler {
    /// `httpGet`
    Http,
    /// `tcpSocket`
    Tcp,
    /// `grpc`
    Grpc,
    /// `exec`: a command, without a connection.
    Exec,
}

/// A Service, as far as verdicts need it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`, and the addresses of its load balancer. They can be the node's own.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub external_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// Ready endpoint addresses; absent if no EndpointSlices were read.
    pub ready_endpoints: Option<Vec<IpAddr>>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub not_ready_endpoints: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    pub namespace: String,
    pub name: String,
}

impl ServiceName {
    /// The Service of `shop/cart` or of its port `shop/cart:http`. `None` if the API can have no such name.
    pub fn of_port(port: &str) -> Option<Self> {
        let (namespace, rest) = port.split_once('/')?;
        let name = rest.split_once(':').map_or(rest, |(name, _)| name);
        let is_nameable = is_object_name(namespace) && is_object_name(name);
        is_nameable.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl Service {
    /// A Service of which nothing but its name is known.
    pub fn named(ServiceName { namespace, name }: ServiceName) -> Self {
        Self { namespace, name, ..Self::default() }
    }

    /// One of its ClusterIPs or external addresses.
    pub fn has_addr(&self, addr: IpAddr) -> bool {
        self.cluster_ips.contains(&addr) || self.external_ips.contains(&addr)
    }
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    pub name: Option<String>,
    pub port: u16,
    pub node_port: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_service_is_taken_from_that_of_its_port() {
        let parts = |port| ServiceName::of_port(port).map(|it| format!("{} {}", it.namespace, it.name));
        assert_eq!(["shop/cart", "shop/cart:http"].map(parts), [Some("shop cart".into()), Some("shop cart".into())]);
        assert_eq!(
            ["cart", "shop/", "../cart:http", "shop/a/b", "shop/cart&watch=true"].map(parts),
            [const { None }; 5]
        );
    }
}
