//! The verdict on a pod without a network in its sandbox, by the message of the kubelet.

use serde_json::json;

use super::evidence::evidence_of;
use super::finding::Finding;
use super::kubelet::{Unattached, container_of, k8s, kubelet, pod};
use tracer_attempts::correlate::node::Node;
use tracer_model::event::{Pod, SandboxCause, SandboxFailure};
use tracer_model::record::{Cause, Remediation};

/// Whether the failure concerns this pod. The kubelet reports a runtime without network for every pod that it syncs,
/// also for running pods that have their network.
pub fn concerns(failure: &SandboxFailure, node: &Node) -> bool {
    let has_network = |pod: &Pod| !pod.addrs.is_empty() || pod.netns.is_some();
    let of_all = failure.words.starts_with("network is not ready");
    !(of_all && pod(&failure.pod, node).is_some_and(has_network))
}

/// The verdict on a pod without network.
pub fn verdict(failure: &SandboxFailure, node: &Node) -> (Finding, Unattached) {
    let (why, fix): (_, Remediation) = match failure.cause {
        SandboxCause::SubnetFile => (
            "flannel has not written its subnet file yet",
            "Check that flannel runs on this node and reaches the API server: it writes /run/flannel/subnet.env. A pod that must outlive this at start needs a startupProbe".into(),
        ),
        SandboxCause::NoConfig => (
            "the runtime has no CNI configuration yet",
            "Check that the CNI's agent runs on this node: it writes /etc/cni/net.d. Then check the order: nothing that the agent itself needs may wait for a pod's network".into(),
        ),
        SandboxCause::NoPlugin => (
            "the program of the CNI plugin is missing",
            "Install the CNI plugins into /opt/cni/bin (or where the runtime's bin_dir points)".into(),
        ),
        SandboxCause::Plugin => ("the CNI plugin failed", Cause::CniNotReady.fix()),
    };
    let k8s = k8s(&failure.pod, None, node);
    let summary = format!("the sandbox{} has no network: {why}", container_of(&k8s));
    let text = format!("the kubelet could not make the sandbox: {}", failure.words);
    let evidence = evidence_of("kubelet", failure.written_boot_ns, text, json!({ "cause": failure.cause }));
    let named = Unattached { probe: None, k8s, process: kubelet(failure.pid) };
    (Finding::likely(Cause::CniNotReady, vec![evidence], summary, fix), named)
}
