//! The parts of API objects that are read. Types for the whole API would add megabytes of code.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;
use serde::Deserialize;
use tracer_sources::{objects, or_default};

objects! {
    PodList { metadata: ListMeta, items: Vec<Pod>, }
    ListMeta { r#continue: String, }
    Metadata {
        namespace: String,
        name: String,
        uid: String,
        annotations: BTreeMap<String, String>,
        creation_timestamp: Option<Timestamp>,
        deletion_timestamp: Option<Timestamp>,
    }
    Pod { metadata: Metadata, spec: PodSpec, status: PodStatus, }
    PodSpec {
        node_name: String,
        restart_policy: String,
        containers: Vec<Container>,
        init_containers: Vec<Container>,
        image_pull_secrets: Vec<SecretRef>,
    }
    Container { name: String, image: String, }
    SecretRef { name: String, }
    PodStatus {
        phase: String,
        message: String,
        start_time: Option<Timestamp>,
        conditions: Vec<Condition>,
        container_statuses: Vec<ContainerStatus>,
        init_container_statuses: Vec<ContainerStatus>,
    }
    Condition { r#type: String, status: String, message: String, }
    ContainerStatus { name: String, ready: bool, restart_count: u32, state: State, last_state: State, }
    State { waiting: Option<Waiting>, running: Option<BTreeMap<String, String>>, terminated: Option<Waiting>, }
    Waiting { reason: String, message: String, exit_code: i32, }

    Node { status: NodeStatus, }
    NodeStatus { node_info: NodeInfo, }
    NodeInfo { kernel_version: String, }

    Workload { spec: WorkloadSpec, }
    WorkloadSpec { selector: LabelSelector, }
}

impl Pod {
    /// `shop/cart-0`
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.r#type == kind)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|it| it.status == "True")
    }

    /// The names of its containers, and of those that run beside them as init containers.
    pub(super) fn containers(&self) -> Vec<&str> {
        self.spec.containers.iter().chain(&self.spec.init_containers).map(|it| it.name.as_str()).collect()
    }

    /// The containers that wait to start, and why.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&ContainerStatus, &Waiting)> {
        let statuses = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        statuses.filter_map(|it| Some((it, it.state.waiting.as_ref()?)))
    }

    /// Whether the pod has ended or is being deleted.
    pub(super) fn is_over(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() || matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the node knows the pod by this uid. For a static pod, that is the hash in an annotation of its mirror pod
    /// (`CreateMirrorPod`, pkg/kubelet/pod/mirror_client.go).
    pub(super) fn has_uid(&self, uid: &str) -> bool {
        let mirrored = self.metadata.annotations.get("kubernetes.io/config.mirror");
        self.metadata.uid == uid || mirrored.is_some_and(|hash| hash == uid)
    }
}

impl Workload {
    /// The selector of its pods; absent if it is empty, because it would select every pod, or has an unknown operator.
    pub(super) fn selector(self) -> Option<Selector> {
        Selector::try_from(self.spec.selector).ok().filter(|it| !it.selects_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_a_query() {
        let of = |json: &str| {
            let selector = serde_json::from_str(json).expect("a selector");
            Workload { spec: WorkloadSpec { selector } }.selector().map(|it| it.to_string())
        };
        let text = r#"{"matchLabels":{"app":"cart"},"matchExpressions":[{"key":"tier","operator":"In","values":["a","b"]},{"key":"old","operator":"DoesNotExist"}]}"#;
        assert_eq!(of(text).as_deref(), Some("app=cart,tier in (a,b),!old"));
        assert_eq!(of(r#"{"matchExpressions":[{"key":"x","operator":"Gt","values":["1"]}]}"#), None);
        assert_eq!(of("{}"), None);
    }
}
