//! Pods of `--pods FILE` and the cluster API, with their network probes. The API's defaults are applied and named ports
//! are resolved.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::api::{self, PodStatus, Port, Probe};
use super::runs::{container_id, runs_of};
use super::{Document, FileError, Source, Taken, addresses};
use tracer_model::event::{
    Container, ExecSpec, Handler, LifecycleEvent, LifecycleHandler, Pod, ProbeProtocol, ProbeSpec, ProbeType, Workload,
};
use tracer_node::clock;

const FLAG: &str = "--pods";
const EXPECTED: &str = "a PodList, a List of Pods or a Pod";

/// Converts each pod while the list is read, so that only one pod exists in the API's large form at a time.
#[derive(Deserialize)]
#[serde(from = "api::Pod")]
struct ListedPod(Pod);

impl From<api::Pod> for ListedPod {
    fn from(pod: api::Pod) -> Self {
        Self(pod_of(pod))
    }
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
enum PodOrOther {
    Pod(Box<ListedPod>),
    #[serde(other)]
    Other,
}

pub fn read_pods(path: &Path) -> Result<Vec<Pod>, FileError> {
    let pods = pods_of(&Source::read(FLAG, path)?)?;
    if pods.is_empty() {
        // kubectl prints an empty list for the name of a node that does not exist.
        let hint = "use the node's name as `kubectl get nodes` has it";
        tracing::warn!("{FLAG} {}: names no pod: {hint}", path.display());
    }
    Ok(pods)
}

pub(super) fn pods_of(source: &Source<'_>) -> Result<Vec<Pod>, FileError> {
    let mut pods = Vec::new();
    source.each_document(EXPECTED, |document| add_document(document, &mut pods))?;
    Ok(each_once(pods))
}

/// Keeps the last of equal pods. If a pod were listed twice, two pods would claim its address, and none would get it.
fn each_once(pods: Vec<Pod>) -> Vec<Pod> {
    let mut seen = HashSet::new();
    let identity = |pod: &Pod| (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
    let mut is_new = |pod: &Pod| pod.uid.is_none() && pod.name.is_none() || seen.insert(identity(pod));
    let mut kept: Vec<Pod> = pods.into_iter().rev().filter(|pod| is_new(pod)).collect();
    kept.reverse();
    kept
}

fn add_document(document: &Document<'_>, pods: &mut Vec<Pod>) -> Result<Taken, FileError> {
    let kind = document.kind()?;
    match kind.as_deref() {
        Some("PodList") => pods.extend(document.items::<ListedPod>()?.into_iter().map(|item| item.0)),
        Some("Pod") => pods.push(document.decode::<ListedPod>()?.0),
        Some("List") => return add_list(document, pods),
        _ => return Ok(Taken::Other(kind)),
    }
    Ok(Taken::Used)
}

fn add_list(document: &Document<'_>, pods: &mut Vec<Pod>) -> Result<Taken, FileError> {
    let items = document.items::<PodOrOther>()?;
    let (given, before) = (items.len(), pods.len());
    let pod = |item| match item {
        PodOrOther::Pod(item) => Some(item.0),
        PodOrOther::Other => None,
    };
    pods.extend(items.into_iter().filter_map(pod));
    let is_other = given > 0 && pods.len() == before;
    Ok(if is_other { Taken::Other(Some("List without a Pod".into())) } else { Taken::Used })
}

/// Reduces a pod to what tracer needs.
pub(crate) fn pod_of(pod: api::Pod) -> Pod {
    let (spec, status) = (pod.spec, pod.status);
    let host_network = spec.host_network;
    let finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    // Init containers that keep running (sidecars) are probed, too.
    let sidecars = spec.init_containers.into_iter().filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let (policy, grace) = (spec.restart_policy.as_deref(), spec.termination_grace_period_seconds);
    let containers = sidecars.chain(spec.containers).map(|it| container(it, policy, grace, &status));
    let not_connected = |it| Container { probes: Vec::new(), lifecycle: Vec::new(), ..it };
    let containers = containers.map(|it| if finished { not_connected(it) } else { it }).collect();
    Pod {
        workload: workload(&pod.metadata),
        namespace: pod.metadata.namespace.or_else(|| Some("default".into())),
        name: pod.metadata.name,
        uid: pod.metadata.uid,
        // The API gives the mirror of a static pod its own uid. The kubelet's uid is the hash in this annotation
        // (`CreateMirrorPod`, pkg/kubelet/pod/mirror_client.go).
        kubelet_uid: non_empty(pod.metadata.annotations.mirror.as_ref()),
        // A finished pod keeps its address in the API, while another pod may have it on the node. Nobody probes it.
        addrs: if finished { Vec::new() } else { addresses_of(&status, host_network) },
        netns: None,
        host_network,
        deleting: pod.metadata.deletion_timestamp.is_some(),
        containers,
    }
}

/// The owner of the pod. The name of a ReplicaSet is its Deployment's name and a hash, which its pods have as a label
/// (`getNewReplicaSet`, pkg/controller/deployment/sync.go). So tracer need not read ReplicaSets.
fn workload(metadata: &api::Metadata) -> Option<Workload> {
    const HASH: &str = "pod-template-hash";
    // The owner of a static pod's mirror is its node.
    let mut owners = metadata.owner_references.iter().filter(|it| it.controller && it.kind != "Node");
    let owner = owners.next()?;
    let deployment = metadata.labels.get(HASH).filter(|_| owner.kind == "ReplicaSet");
    let deployment = deployment.and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    Some(match deployment {
        Some(name) => Workload { kind: "Deployment".into(), name: name.into() },
        None => Workload { kind: owner.kind.clone(), name: owner.name.clone() },
    })
}

fn addresses_of(status: &PodStatus, host_network: bool) -> Vec<IpAddr> {
    let own = addresses(status.pod_ips.iter().map(|it| &it.ip).chain(&status.pod_ip));
    if !own.is_empty() || !host_network {
        return own;
    }
    addresses(status.host_ips.iter().map(|it| &it.ip).chain(&status.host_ip))
}

/// `policy` and `grace`: the pod's restart policy and `terminationGracePeriodSeconds`.
fn container(container: api::Container, policy: Option<&str>, grace: Option<i64>, status: &PodStatus) -> Container {
    let probes = [
        (ProbeType::Liveness, &container.liveness_probe),
        (ProbeType::Readiness, &container.readiness_probe),
        (ProbeType::Startup, &container.startup_probe),
    ];
    let spec = |(probe_type, probe): &(_, &Option<Probe>)| probe_spec(*probe_type, probe.as_ref()?, grace, &container);
    let exec = |(probe_type, probe): &(_, &Option<Probe>)| exec_spec(*probe_type, probe.as_ref()?);
    let (exec, probes) = (probes.iter().filter_map(exec).collect(), probes.iter().filter_map(spec).collect());
    let lifecycle = lifecycle(&container);
    let post_start_command = container.lifecycle.post_start.exec.is_some();
    let mut statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let status = statuses.find(|it| it.name == container.name);
    let id = status.and_then(|it| container_id(it.container_id.as_deref()));
    let runs = status.map(|it| runs_of(it, clock::steady_boot_to_wall_ns()));
    // A rule may restart the container by its exit code (Kubernetes 1.34).
    let has_rules = !container.restart_policy_rules.is_empty();
    let never_restarted = !has_rules && container.restart_policy.as_deref().or(policy) == Some("Never");
    Container { name: Some(container.name), id, probes, exec, lifecycle, post_start_command, never_restarted, runs }
}

/// The hooks of the container's lifecycle. A handler with a command runs that command.
fn lifecycle(container: &api::Container) -> Vec<LifecycleHandler> {
    let api::Lifecycle { post_start, pre_stop } = &container.lifecycle;
    let handlers = [(LifecycleEvent::PostStart, post_start), (LifecycleEvent::PreStop, pre_stop)];
    let http = |(event, handler): (_, &api::LifecycleHandler)| {
        let http = handler.http_get.as_ref().filter(|_| handler.exec.is_none())?;
        let Target { scheme, port, host, path, .. } = http_target(http, container)?;
        Some(LifecycleHandler { event, scheme: scheme?, port, host, path: path? })
    };
    handlers.into_iter().filter_map(http).collect()
}

fn exec_spec(probe_type: ProbeType, probe: &Probe) -> Option<ExecSpec> {
    probe.exec.as_ref()?;
    Some(ExecSpec {
        probe_type,
        timeout_s: at_least_one(probe.timeout_seconds, 1),
        period_s: at_least_one(probe.period_seconds, 10),
        failure_threshold: at_least_one(probe.failure_threshold, 3),
    })
}

fn seconds(value: Option<i32>, default: u32) -> u32 {
    value.and_then(|it| u32::try_from(it).ok()).unwrap_or(default)
}

fn at_least_one(value: Option<i32>, default: u32) -> u32 {
    Some(seconds(value, default)).filter(|it| *it > 0).unwrap_or(default)
}

/// The settings of a network probe. An exec probe has none. Nor has one with a port name that no port of the container
/// has, because the kubelet fails it without a connection.
fn probe_spec(
    probe_type: ProbeType,
    probe: &Probe,
    grace: Option<i64>,
    container: &api::Container,
) -> Option<ProbeSpec> {
    let target = target(probe, container)?;
    let grace_s = probe.termination_grace_period_seconds.or(grace).and_then(|s| u32::try_from(s).ok());
    Some(ProbeSpec {
        probe_type,
        timeout_s: at_least_one(probe.timeout_seconds, 1),
        period_s: at_least_one(probe.period_seconds, 10),
        failure_threshold: at_least_one(probe.failure_threshold, 3),
        initial_delay_s: seconds(probe.initial_delay_seconds, 0),
        grace_s: grace_s.filter(|it| *it != ProbeSpec::DEFAULT_GRACE_S && probe_type != ProbeType::Readiness),
        handler: target.handler,
        scheme: target.scheme,
        speaks: target.speaks,
        port: target.port,
        host: target.host,
        path: target.path,
    })
}

struct Target {
    handler: Handler,
    scheme: Option<String>,
    speaks: Option<ProbeProtocol>,
    port: u16,
    host: Option<String>,
    path: Option<String>,
}

fn target(probe: &Probe, container: &api::Container) -> Option<Target> {
    if let Some(http) = &probe.http_get {
        http_target(http, container)
    } else if let Some(tcp) = &probe.tcp_socket {
        tcp_target(tcp, container)
    } else {
        let grpc = probe.grpc.as_ref()?;
        let (port, speaks) = (number(grpc.port)?, grpc_protocol(grpc));
        Some(Target { handler: Handler::Grpc, scheme: None, speaks, port, host: None, path: None })
    }
}

fn http_target(http: &api::HttpGet, container: &api::Container) -> Option<Target> {
    let path = http.path.as_deref().unwrap_or_default().split(['?', '#']).next().unwrap_or_default();
    Some(Target {
        handler: Handler::Http,
        scheme: Some(http.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase()),
        speaks: http_protocol(http),
        port: port(&http.port, container)?,
        host: non_empty(http.host.as_ref()),
        path: Some(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }),
    })
}

fn tcp_target(tcp: &api::TcpSocket, container: &api::Container) -> Option<Target> {
    let port = port(&tcp.port, container)?;
    let host = non_empty(tcp.host.as_ref());
    Some(Target { handler: Handler::Tcp, scheme: None, speaks: None, port, host, path: None })
}

/// `mode` came with Kubernetes 1.37. A later field or value may ask for any protocol, so the protocol is then unknown.
fn grpc_protocol(grpc: &api::Grpc) -> Option<ProbeProtocol> {
    match grpc.mode.as_deref().unwrap_or_default() {
        _ if has_others(&grpc.others, "service") => Some(ProbeProtocol::Unknown),
        "" => None,
        mode if mode.eq_ignore_ascii_case("tls") => Some(ProbeProtocol::Tls),
        mode if mode.eq_ignore_ascii_case("plaintext") => None,
        _ => Some(ProbeProtocol::Unknown),
    }
}

/// Whether there are fields other than this one, which does not change the protocol.
fn has_others(fields: &BTreeMap<String, IgnoredAny>, known: &str) -> bool {
    fields.keys().any(|field| field != known)
}

/// The same for the field `protocol`. Over TLS both of its values are TLS.
fn http_protocol(http: &api::HttpGet) -> Option<ProbeProtocol> {
    let scheme = http.scheme.as_deref().unwrap_or("HTTP");
    let is_known = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    match http.protocol.as_deref().unwrap_or_default() {
        _ if !is_known || has_others(&http.others, "httpHeaders") => Some(ProbeProtocol::Unknown),
        "" => None,
        protocol if protocol.eq_ignore_ascii_case("http2") => Some(ProbeProtocol::Http2),
        protocol if protocol.eq_ignore_ascii_case("http1") => None,
        _ => Some(ProbeProtocol::Unknown),
    }
}

fn non_empty(text: Option<&String>) -> Option<String> {
    text.filter(|it| !it.is_empty()).cloned()
}

/// Resolves a port as the kubelet does: by name, otherwise as a number in text.
fn port(port: &Port, container: &api::Container) -> Option<u16> {
    let name = match port {
        Port::Number(port) => return number(*port),
        Port::Name(name) => name,
    };
    let mut ports = container.ports.iter();
    match ports.find(|it| it.name.as_ref() == Some(name)) {
        Some(named) => number(named.container_port),
        None => number(name.parse().ok()?),
    }
}

/// The port, unless it is 0, which nobody connects to.
fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|it| *it > 0)
}

#[cfg(test)]
mod tests;
