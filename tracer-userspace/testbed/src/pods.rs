//! The PodList for `--pods`: the pods of the test node as the API server would list them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::node::{Family, NODE, NODE6, OUTSIDE, PODS, pod_ip};

/// Port of the HTTP servers.
pub const HTTP: u16 = 8080;
/// Port of the TLS servers.
pub const TLS: u16 = 8443;
/// Port of TLS servers that are only probed by tcpSocket.
pub const UNLISTED_TLS: u16 = 9443;
/// Port of a container with a liveness probe of a short budget.
pub const SLOW_START: u16 = 7070;
const SLOW: &str = "slow";
/// The same port of a container of which the PodList has no status.
pub const UNKNOWN_START: u16 = 7071;
pub const SLOW_START_PERIOD_S: u64 = 1;
/// The number of failures that restart the container.
pub const SLOW_START_THRESHOLD: u32 = 3;
/// Port of a container with a long probe timeout, so that packets are retransmitted several times.
pub const PATIENT: u16 = 6060;
/// SYNs are retransmitted after 1, 3, 7 and 15 seconds. Since 6.5 the first retransmissions are one second apart
/// (`tcp_syn_linear_timeouts`).
pub const PATIENT_TIMEOUT_S: u64 = 30;
/// Address and port of a Service that is the target of its own pod's readiness probe.
pub const CIRCULAR: ([u8; 4], u16) = ([10, 96, 0, 33], 80);
/// Address of that pod.
const CIRCULAR_POD: [u8; 4] = [10, 88, 0, 200];
/// Address outside of the node, and port, that the probe of a pod names.
pub const ELSEWHERE: (Ipv4Addr, u16) = (OUTSIDE, 8383);
/// Address of that pod.
const ELSEWHERE_POD: [u8; 4] = [10, 88, 0, 201];
/// Port of a gRPC probe of the first pod.
pub const GRPC: u16 = 50051;
/// Port of a probe of the first pod, which has a loopback address as its host.
pub const LOOPBACK_HOST: u16 = 9191;
/// Port of the hostNetwork server.
pub const HOST: u16 = 10256;
/// Port of another container of that pod. A Service has it, too, with the node's address as an external one.
pub const EXTERNAL: u16 = 9100;
/// The ClusterIP of that Service, with its port.
pub const EXPORTER: ([u8; 4], u16) = ([10, 96, 0, 34], EXTERNAL);
/// Address and port that the probe of another hostNetwork pod names.
pub const NODE_LOCAL: ([u8; 4], u16) = ([169, 254, 20, 10], 8181);

/// Port of a container that ends by itself, again and again.
pub const CRASHING: u16 = 7072;
const CRASHES: &str = "crash";

/// The name of the container without a status.
const WITHOUT_STATUS: &str = "new";

const STARTED: &str = "2026-11-20T15:48:08Z";
/// The same in nanoseconds since 1970.
pub const STARTED_WALL_NS: i64 = 1_795_189_688_000_000_000;

#[derive(Clone, Debug)]
pub struct PodSpec {
    pub name: String,
    pub ips: Vec<String>,
    pub host_network: bool,
    /// Containers with their probes.
    pub containers: Vec<Value>,
}

/// A pod for each possible number, two hostNetwork pods, and two that probe another address: the one of their Service,
/// and one outside of the node.
pub fn plan(timeout: Duration) -> Value {
    let seconds = timeout.as_secs().max(1);
    let mut pods: Vec<PodSpec> = PODS.map(|index| planned(index, seconds)).collect();
    let (probe, local) = (http_probe(HOST, "HTTP", seconds), probe_of((Ipv4Addr::LOCALHOST, HOST), seconds));
    let agent = json!({"name": "agent", "ports": [{"containerPort": HOST}], "livenessProbe": probe,
                       "readinessProbe": local});
    let exporter = json!({"name": "exporter", "readinessProbe": http_probe(EXTERNAL, "HTTP", seconds)});
    pods.push(host_pod("node-agent-9x2lq", vec![agent, exporter]));
    pods.push(pod_with_host("circle-0", CIRCULAR_POD, CIRCULAR, seconds));
    pods.push(pod_with_host("elsewhere-0", ELSEWHERE_POD, ELSEWHERE, seconds));
    let node_cache = json!({"name": "node-cache", "livenessProbe": probe_of(NODE_LOCAL, seconds)});
    pods.push(host_pod("node-local-dns-7d4kz", vec![node_cache]));
    list(&pods)
}

fn host_pod(name: &str, containers: Vec<Value>) -> PodSpec {
    let ips = vec![NODE.to_string(), NODE6.to_string()];
    PodSpec { name: name.to_owned(), ips, host_network: true, containers }
}

fn uid_of(number: usize) -> String {
    format!("7d1c0f52-0000-4000-8000-{number:012}")
}

/// The uid of the pod with [`HOST`]. It follows those of [`PODS`].
pub fn host_uid() -> String {
    uid_of(PODS.count())
}

/// The same pods without their probes.
pub fn without_probes(mut list: Value) -> Value {
    let items = list["items"].as_array_mut().into_iter().flatten();
    let containers = items.filter_map(|pod| pod["spec"]["containers"].as_array_mut()).flatten();
    for container in containers.filter_map(Value::as_object_mut) {
        container.retain(|field, _| !field.ends_with("Probe"));
    }
    list
}

/// A pod with a readiness probe that connects to another address.
fn pod_with_host(name: &str, ip: [u8; 4], host: (impl Into<IpAddr>, u16), seconds: u64) -> PodSpec {
    let probe = probe_of(host, seconds);
    PodSpec {
        name: name.to_owned(),
        ips: vec![IpAddr::from(ip).to_string()],
        host_network: false,
        containers: vec![json!({"name": "app", "ports": [{"containerPort": HTTP}], "readinessProbe": probe})],
    }
}

/// The Services and EndpointSlices for `--services`.
pub fn services() -> Value {
    let ip = IpAddr::from(CIRCULAR.0);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "circle", "namespace": "default"},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": CIRCULAR.1, "protocol": "TCP"}]},
    });
    let external = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "exporter", "namespace": "default"},
        "spec": {"clusterIP": IpAddr::from(EXPORTER.0), "externalIPs": [NODE.to_string()],
                 "ports": [{"port": EXTERNAL, "protocol": "TCP"}]},
    });
    let exporter = slice_of("exporter", pod_ip(*PODS.start(), Family::V4), true);
    json!({"apiVersion": "v1", "kind": "List", "items": [service, slice(), external, exporter]})
}

/// The EndpointSlices of the circular pod's Service, as the cluster API lists them.
pub fn slices() -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSliceList", "metadata": {"resourceVersion": "7"},
           "items": [slice()]})
}

fn slice() -> Value {
    slice_of("circle", CIRCULAR_POD.into(), false)
}

fn slice_of(service: &str, endpoint: IpAddr, ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("{service}-1"), "namespace": "default", "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": [{"addresses": [endpoint], "conditions": {"ready": ready}}],
    })
}

fn planned(index: u16, seconds: u64) -> PodSpec {
    let app = json!({
        "name": "app", "image": "registry.example/app:1", "ports": [{"name": "http", "containerPort": HTTP}],
        "readinessProbe": http_probe(HTTP, "HTTP", seconds), "livenessProbe": tcp_probe(HTTP, seconds),
    });
    let tls = json!({
        "name": "tls", "image": "registry.example/tls:1", "ports": [{"name": "https", "containerPort": TLS}],
        "readinessProbe": http_probe(TLS, "HTTPS", seconds), "livenessProbe": tcp_probe(TLS, seconds),
    });
    let side = json!({
        "name": "side", "image": "registry.example/side:1", "ports": [{"containerPort": UNLISTED_TLS}],
        "livenessProbe": tcp_probe(UNLISTED_TLS, seconds),
    });
    let slow = |name: &str, port: u16| {
        let mut budget = http_probe(port, "HTTP", seconds);
        budget["periodSeconds"] = json!(SLOW_START_PERIOD_S);
        budget["failureThreshold"] = json!(SLOW_START_THRESHOLD);
        json!({
            "name": name, "image": "registry.example/slow:1", "ports": [{"containerPort": port}],
            "livenessProbe": budget,
        })
    };
    let patient = json!({
        "name": "patient", "image": "registry.example/patient:1", "ports": [{"containerPort": PATIENT}],
        "readinessProbe": http_probe(PATIENT, "HTTP", PATIENT_TIMEOUT_S),
    });
    let ips = [Family::V4, Family::V6].map(|f| pod_ip(index, f).to_string()).to_vec();
    let crash = json!({
        "name": CRASHES, "image": "registry.example/crash:1", "ports": [{"containerPort": CRASHING}],
        "readinessProbe": http_probe(CRASHING, "HTTP", seconds),
    });
    let mut containers =
        vec![app, tls, side, slow(SLOW, SLOW_START), slow(WITHOUT_STATUS, UNKNOWN_START), patient, crash];
    if index == *PODS.start() {
        let probe = probe_of((Ipv4Addr::LOCALHOST, LOOPBACK_HOST), seconds);
        containers.push(json!({"name": "local", "image": "registry.example/local:1", "livenessProbe": probe}));
        let grpc =
            json!({"grpc": {"port": GRPC}, "timeoutSeconds": seconds, "periodSeconds": 10, "failureThreshold": 3});
        let image = "registry.example/grpc:1";
        containers.push(json!({"name": "grpc", "image": image, "readinessProbe": grpc}));
    }
    PodSpec { name: format!("pod-{index}"), ips, host_network: false, containers }
}

pub fn http_probe(port: u16, scheme: &str, seconds: u64) -> Value {
    json!({"httpGet": {"path": "/healthz", "port": port, "scheme": scheme},
           "timeoutSeconds": seconds, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
}

fn probe_of((host, port): (impl Into<IpAddr>, u16), seconds: u64) -> Value {
    let mut probe = http_probe(port, "HTTP", seconds);
    probe["httpGet"]["host"] = json!(host.into());
    probe
}

pub fn tcp_probe(port: u16, seconds: u64) -> Value {
    json!({"tcpSocket": {"port": port},
           "timeoutSeconds": seconds, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
}

pub fn list(pods: &[PodSpec]) -> Value {
    let items: Vec<Value> = pods.iter().enumerate().map(|(n, pod)| item(n, pod)).collect();
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}

/// The status of a container that ended by itself, a moment ago, again.
fn crashed() -> Value {
    let ago = |seconds| {
        Timestamp::now().saturating_sub(Duration::from_secs(seconds)).map(|it| it.strftime("%FT%TZ").to_string())
    };
    let ended = json!({"exitCode": 1, "reason": "Error", "startedAt": ago(13).ok(), "finishedAt": ago(10).ok()});
    let waiting = json!({"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container=crash"});
    json!({"name": CRASHES, "ready": false, "restartCount": 4, "image": "", "imageID": "",
           "state": {"waiting": waiting}, "lastState": {"terminated": ended}})
}

/// The id of the container at [`SLOW_START`] of a pod.
pub fn container_id(pod: &str) -> String {
    let digits: String = pod.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits:0>64}")
}

fn item(number: usize, pod: &PodSpec) -> Value {
    let statuses: Vec<Value> = pod
        .containers
        .iter()
        .filter(|c| c["name"] != WITHOUT_STATUS)
        .map(|c| {
            if c["name"] == CRASHES {
                crashed()
            } else {
                let id = (c["name"] == SLOW).then(|| format!("containerd://{}", container_id(&pod.name)));
                json!({"name": c["name"], "ready": true, "restartCount": 0, "image": "", "imageID": "",
                        "containerID": id, "state": {"running": {"startedAt": STARTED}}})
            }
        })
        .collect();
    let ips: Vec<Value> = pod.ips.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": "default", "uid": uid_of(number),
            "creationTimestamp": STARTED,
        },
        "spec": {"nodeName": "node-1", "hostNetwork": pod.host_network, "containers": pod.containers},
        "status": {
            "phase": "Running", "hostIP": NODE.to_string(), "podIP": pod.ips[0], "podIPs": ips,
            "startTime": STARTED, "containerStatuses": statuses,
        },
    })
}
