//! The messages of the kubelet's Pods service, with the fields of `k8s.io/api/core/v1/generated.proto` that
//! `files/api.rs` reads from the API's JSON. serde makes that JSON of them.

use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// `ListPodsResponse`: each pod is a message of its own.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodsResponse {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) pods: Vec<Bytes>,
}

/// Defines messages of which every field may be absent.
macro_rules! messages {
    ($($name:ident { $($(#[$serde:meta])* $tag:literal $field:ident: $kind:ty => [$($prost:tt)*],)* })*) => {$(
        #[derive(Clone, PartialEq, Message, Serialize)]
        #[serde(rename_all = "camelCase")]
        pub(super) struct $name {
            $(#[prost($($prost)*, tag = $tag)] $(#[$serde])* $field: $kind,)*
        }
    )*};
}

type Text = Option<String>;
type Map = std::collections::BTreeMap<String, String>;

messages! {
    Pod {
        "1" metadata: Option<Metadata> => [message, optional],
        "2" spec: Option<PodSpec> => [message, optional],
        "3" status: Option<PodStatus> => [message, optional],
    }
    Metadata {
        "1" name: Text => [string, optional],
        "3" namespace: Text => [string, optional],
        "5" uid: Text => [string, optional],
        "9" deletion_timestamp: Option<Time> => [message, optional],
        "11" labels: Map => [btree_map = "string, string"],
        "12" annotations: Map => [btree_map = "string, string"],
        "13" owner_references: Vec<OwnerReference> => [message, repeated],
    }
    OwnerReference {
        "1" kind: Text => [string, optional],
        "3" name: Text => [string, optional],
        "6" controller: Option<bool> => [bool, optional],
    }
    PodSpec {
        "2" containers: Vec<Container> => [message, repeated],
        "3" restart_policy: Text => [string, optional],
        "4" termination_grace_period_seconds: Option<i64> => [int64, optional],
        "10" node_name: Text => [string, optional],
        "11" host_network: Option<bool> => [bool, optional],
        "20" init_containers: Vec<Container> => [message, repeated],
    }
    PodStatus {
        "1" phase: Text => [string, optional],
        #[serde(rename = "hostIP")] "5" host_ip: Text => [string, optional],
        #[serde(rename = "podIP")] "6" pod_ip: Text => [string, optional],
        "8" container_statuses: Vec<ContainerStatus> => [message, repeated],
        "10" init_container_statuses: Vec<ContainerStatus> => [message, repeated],
        #[serde(rename = "podIPs")] "12" pod_ips: Vec<Ip> => [message, repeated],
        #[serde(rename = "hostIPs")] "16" host_ips: Vec<Ip> => [message, repeated],
    }
    Ip { "1" ip: Text => [string, optional], }
    ContainerStatus {
        "1" name: Text => [string, optional],
        "2" state: Option<ContainerState> => [message, optional],
        "3" last_state: Option<ContainerState> => [message, optional],
        "5" restart_count: Option<i32> => [int32, optional],
        #[serde(rename = "containerID")] "8" container_id: Text => [string, optional],
        "9" started: Option<bool> => [bool, optional],
    }
    ContainerState {
        "1" waiting: Option<Waiting> => [message, optional],
        "2" running: Option<Running> => [message, optional],
        "3" terminated: Option<Terminated> => [message, optional],
    }
    Waiting {
        "1" reason: Text => [string, optional],
        "2" message: Text => [string, optional],
    }
    Running { "1" started_at: Option<Time> => [message, optional], }
    Terminated {
        "1" exit_code: Option<i32> => [int32, optional],
        "3" reason: Text => [string, optional],
        "5" started_at: Option<Time> => [message, optional],
        "6" finished_at: Option<Time> => [message, optional],
        #[serde(rename = "containerID")] "7" container_id: Text => [string, optional],
    }
    Container {
        "1" name: Text => [string, optional],
        "6" ports: Vec<ContainerPort> => [message, repeated],
        "10" liveness_probe: Option<Probe> => [message, optional],
        "11" readiness_probe: Option<Probe> => [message, optional],
        "12" lifecycle: Option<Lifecycle> => [message, optional],
        "22" startup_probe: Option<Probe> => [message, optional],
        "24" restart_policy: Text => [string, optional],
        "25" restart_policy_rules: Vec<RestartRule> => [message, repeated],
    }
    RestartRule { "1" action: Text => [string, optional], }
    ContainerPort {
        "1" name: Text => [string, optional],
        "3" container_port: Option<i32> => [int32, optional],
    }
    Probe {
        #[serde(flatten)] "1" handler: Option<Handler> => [message, optional],
        "2" initial_delay_seconds: Option<i32> => [int32, optional],
        "3" timeout_seconds: Option<i32> => [int32, optional],
        "4" period_seconds: Option<i32> => [int32, optional],
        "6" failure_threshold: Option<i32> => [int32, optional],
        "7" termination_grace_period_seconds: Option<i64> => [int64, optional],
    }
    Lifecycle {
        "1" post_start: Option<Handler> => [message, optional],
        "2" pre_stop: Option<Handler> => [message, optional],
    }
    Handler {
        "1" exec: Option<Exec> => [message, optional],
        #[serde(serialize_with = "whole::<HttpGet, _>")] "2" http_get: Option<Bytes> => [bytes = "bytes", optional],
        "3" tcp_socket: Option<TcpSocket> => [message, optional],
        #[serde(serialize_with = "whole::<Grpc, _>")] "4" grpc: Option<Bytes> => [bytes = "bytes", optional],
    }
    Exec {}
    TcpSocket {
        "1" port: Option<IntOrString> => [message, optional],
        "2" host: Text => [string, optional],
    }
    HttpGet {
        "1" path: Text => [string, optional],
        "2" port: Option<IntOrString> => [message, optional],
        "3" host: Text => [string, optional],
        #[serde(skip_serializing_if = "is_blank")] "4" scheme: Text => [string, optional],
        #[serde(skip)] "5" http_headers: Vec<Bytes> => [bytes = "bytes", repeated],
        "6" protocol: Text => [string, optional],
    }
    Grpc {
        "1" port: Option<i32> => [int32, optional],
        #[serde(skip)] "2" service: Text => [string, optional],
        "3" mode: Text => [string, optional],
    }
}

/// Go writes an empty text in protobuf where it writes no field in JSON.
fn is_blank(text: &Text) -> bool {
    text.as_ref().is_none_or(String::is_empty)
}

/// `IntOrString`
#[derive(Clone, PartialEq, Message)]
pub(super) struct IntOrString {
    #[prost(int64, optional, tag = "1")]
    kind: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    number: Option<i32>,
    #[prost(string, optional, tag = "3")]
    name: Option<String>,
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.kind == Some(1) { self.name.serialize(to) } else { self.number.serialize(to) }
    }
}

/// `Time`. Go's zero time is an empty message, and `null` in JSON.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if *self == Self::default() {
            return to.serialize_none();
        }
        Timestamp::new(self.seconds, self.nanos).map_err(S::Error::custom)?.serialize(to)
    }
}

/// A handler, and whether it has a field that is unknown here: such a field may ask for any protocol.
fn whole<M: Message + Default + Serialize, S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
    let Some(bytes) = bytes else { return to.serialize_none() };
    let handler = M::decode(bytes.clone()).map_err(S::Error::custom)?;
    let mut json = serde_json::to_value(&handler).map_err(S::Error::custom)?;
    if handler.encoded_len() != bytes.len() {
        json["unknown"] = Value::Bool(true);
    }
    json.serialize(to)
}
