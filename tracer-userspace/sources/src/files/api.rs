//! The fields of the Kubernetes API's objects that tracer reads, with the API's names. All other fields are skipped:
//! the types of the whole API cost megabytes of code.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// Some writers print an empty field as `null`.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(input: D) -> Result<T, D::Error> {
    Option::deserialize(input).map(Option::unwrap_or_default)
}

/// Defines objects of which every field may be absent or `null`. It needs [`or_default`] in scope.
#[macro_export]
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $name {
            $($(#[$attr])* #[serde(default, deserialize_with = "or_default")] pub(crate) $field: $kind,)*
        }
    )*};
}

objects! {
    Metadata {
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<String>,
        labels: BTreeMap<String, String>,
        annotations: Annotations,
        owner_references: Vec<OwnerReference>,
    }
    OwnerReference { kind: String, name: String, controller: bool, }
    Annotations { #[serde(rename = "kubernetes.io/config.mirror")] mirror: Option<String>, }

    Pod { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    PodSpec {
        node_name: Option<String>,
        host_network: bool,
        restart_policy: Option<String>,
        termination_grace_period_seconds: Option<i64>,
        init_containers: Vec<Container>,
        containers: Vec<Container>,
    }
    PodStatus {
        phase: Option<String>,
        #[serde(rename = "podIP")] pod_ip: Option<String>,
        #[serde(rename = "podIPs")] pod_ips: Vec<Ip>,
        #[serde(rename = "hostIP")] host_ip: Option<String>,
        #[serde(rename = "hostIPs")] host_ips: Vec<Ip>,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
    }
    Ip { ip: String, }
    ContainerStatus {
        name: String,
        #[serde(rename = "containerID")] container_id: Option<String>,
        restart_count: i32,
        state: ContainerState,
        last_state: ContainerState,
        started: Option<bool>,
    }
    ContainerState { running: Option<Running>, waiting: Option<Waiting>, terminated: Option<Terminated>, }
    Running { started_at: Option<String>, }
    Waiting { reason: Option<String>, message: Option<String>, }
    Terminated {
        exit_code: i32,
        reason: Option<String>,
        started_at: Option<String>,
        finished_at: Option<String>,
        #[serde(rename = "containerID")] container_id: Option<String>,
    }
    Container {
        name: String,
        ports: Vec<ContainerPort>,
        restart_policy: Option<String>,
        restart_policy_rules: Vec<IgnoredAny>,
        liveness_probe: Option<Probe>,
        readiness_probe: Option<Probe>,
        startup_probe: Option<Probe>,
        lifecycle: Lifecycle,
    }
    Lifecycle { post_start: LifecycleHandler, pre_stop: LifecycleHandler, }
    LifecycleHandler { exec: Option<Exec>, http_get: Option<HttpGet>, }
    ContainerPort { name: Option<String>, container_port: i32, }
    Probe {
        timeout_seconds: Option<i32>,
        period_seconds: Option<i32>,
        failure_threshold: Option<i32>,
        initial_delay_seconds: Option<i32>,
        termination_grace_period_seconds: Option<i64>,
        http_get: Option<HttpGet>,
        tcp_socket: Option<TcpSocket>,
        grpc: Option<Grpc>,
        exec: Option<Exec>,
    }
    HttpGet {
        path: Option<String>,
        scheme: Option<String>,
        host: Option<String>,
        port: Port,
        protocol: Option<String>,
        #[serde(flatten)] others: BTreeMap<String, IgnoredAny>,
    }
    TcpSocket { host: Option<String>, port: Port, }
    Grpc {
        port: i32,
        mode: Option<String>,
        #[serde(flatten)] others: BTreeMap<String, IgnoredAny>,
    }
    Exec {}

    Service { metadata: Metadata, spec: ServiceSpec, status: ServiceStatus, }
    ServiceSpec {
        #[serde(rename = "clusterIP")] cluster_ip: Option<String>,
        #[serde(rename = "clusterIPs")] cluster_ips: Vec<String>,
        #[serde(rename = "externalIPs")] external_ips: Vec<String>,
        ports: Vec<ServicePort>,
    }
    ServiceStatus { load_balancer: LoadBalancer, }
    LoadBalancer { ingress: Vec<Ip>, }
    ServicePort { name: Option<String>, protocol: Option<String>, port: i32, node_port: Option<i32>, }

    EndpointSlice { metadata: Metadata, endpoints: Vec<Endpoint>, }
    Endpoint { addresses: Vec<String>, conditions: Conditions, }
    Conditions { ready: Option<bool>, }

    Event {
        metadata: Metadata,
        involved_object: ObjectReference,
        reason: String,
        message: String,
        source: EventSource,
        reporting_instance: Option<String>,
        last_timestamp: Option<String>,
        event_time: Option<String>,
        count: i32,
        series: EventSeries,
    }
    ObjectReference {
        kind: String,
        namespace: Option<String>,
        name: Option<String>,
        uid: Option<String>,
        field_path: Option<String>,
    }
    EventSource { host: Option<String>, }
    EventSeries { count: i32, last_observed_time: Option<String>, }
}

/// The API's `IntOrString`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Port {
    Number(i32),
    /// The name of a container's port, or a number in quotes.
    Name(String),
}

impl Default for Port {
    fn default() -> Self {
        Self::Number(0)
    }
}
