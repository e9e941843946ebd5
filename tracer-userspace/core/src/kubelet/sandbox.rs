//! The verdict on a pod without a network in its sandbox, by the message of the kubelet.

use serde_json::json;

use super::{Unattached, container_of, k8s, kubelet, pod};
use tracer_attempts::correlate::node::Node;
use tracer_case::evidence::evidence_of;
use tracer_case::finding::Finding;
use tracer_model::event::{Pod, SandboxCause, SandboxFailure};
use tracer_model::record::{Cause, Command, Remediation};

/// Whether the failure concerns this pod. The kubelet reports a runtime without network for every pod that it syncs,
/// also for running pods that have their network.
pub(crate) fn concerns(failure: &SandboxFailure, node: &Node) -> bool {
    let has_network = |pod: &Pod| !pod.addrs.is_empty() || pod.netns.is_some();
    let of_all = failure.words.starts_with("network is not ready");
    !(of_all && pod(&failure.pod, node).is_some_and(has_network))
}

/// Why a plugin failed that is there, and what to do. Each plugin has words of its own for the same failure.
const PLUGIN_FAILURES: &[(&[&str], &str, &str, &[&str])] = &[
    (
        &[
            "no ip addresses available",
            "failed to assign an ip address",
            "no available ip",
            "no more free affine blocks",
            "range is full",
            "could not allocate ip in range",
        ],
        "the CNI plugin has no free address",
        "Compare the pods of this node with the addresses that the plugin has. Free those that no pod has: files of ended pods in /var/lib/cni/networks. Or enlarge the range: the pod CIDR, the subnet, the addresses of the instance type. Or lower max-pods of the kubelet",
        &["ls /var/lib/cni/networks"],
    ),
    (
        &["unauthorized"],
        "the API server refuses the token of the CNI plugin",
        "Restart the CNI's agent on this node: it writes a new token for the plugin. Then check its ServiceAccount, and the clock of the node",
        &["ls -l /etc/cni/net.d"],
    ),
    (
        &["already has an ip address different from"],
        "the bridge of the CNI plugin has an address of another pod CIDR",
        "The bridge is left over from an earlier configuration. Drain the node and delete the bridge that the message names: the plugin makes it with the address of the current pod CIDR",
        &["ip addr show type bridge"],
    ),
    (
        &["iptables: resource temporarily unavailable", "xtables lock"],
        "the CNI plugin did not get the lock of iptables",
        "Nothing, if it stays at one failure: the kubelet tries again. Otherwise find the process that holds /run/xtables.lock for long",
        &["fuser -v /run/xtables.lock"],
    ),
];

fn plugin_failure(words: &str) -> (&'static str, Remediation) {
    let words = words.to_lowercase();
    let known = PLUGIN_FAILURES.iter().find(|(parts, ..)| parts.iter().any(|part| words.contains(part)));
    match known {
        Some((_, why, fix, commands)) => {
            (why, Remediation::from(*fix).run(commands.iter().copied().map(Command::on_node)))
        }
        None => ("the CNI plugin failed", Cause::CniNotReady.fix()),
    }
}

/// What the plugin itself wrote, up to a length that a line can have.
fn words_of_plugin(failure: &SandboxFailure) -> Option<String> {
    const MOST_CHARS: usize = 120;
    let (_, words) = failure.words.split_once(" failed (add): ").filter(|_| failure.cause == SandboxCause::Plugin)?;
    let line = words.lines().next()?;
    let rest = if line.chars().count() > MOST_CHARS { "…" } else { "" };
    Some(line.chars().take(MOST_CHARS).collect::<String>() + rest)
}

/// The verdict on a pod without network.
pub(crate) fn verdict(failure: &SandboxFailure, node: &Node) -> (Finding, Unattached) {
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
        SandboxCause::Plugin => plugin_failure(&failure.words),
    };
    let k8s = k8s(&failure.pod, None, node);
    let quoted = words_of_plugin(failure).map(|words| format!(": {words}")).unwrap_or_default();
    let summary = format!("the sandbox{} has no network: {why}{quoted}", container_of(&k8s));
    let text = format!("the kubelet could not make the sandbox: {}", failure.words);
    let evidence = evidence_of("kubelet", failure.written_boot_ns, text, json!({ "cause": failure.cause }));
    let named = Unattached { probe: None, k8s, process: kubelet(failure.pid) };
    (Finding::likely(Cause::CniNotReady, vec![evidence], summary, fix), named)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of host-local, aws-cni, Calico, the bridge plugin and portmap.
    #[test]
    fn a_plugin_that_is_ready_and_fails_is_quoted() {
        for (plugin, words, why, fix) in [
            (
                "bridge",
                "failed to allocate for range 0: no IP addresses available in range set: 10.244.1.1-10.244.1.254",
                "has no free address",
                "/var/lib/cni/networks",
            ),
            ("aws-cni", "add cmd: failed to assign an IP address to container", "has no free address", "max-pods"),
            (
                "calico",
                "error getting ClusterInformation: connection is unauthorized: Unauthorized",
                "refuses the token",
                "Restart the CNI's agent",
            ),
            (
                "bridge",
                "failed to set bridge addr: \"cni0\" already has an IP address different from 10.244.1.1/24",
                "of another pod CIDR",
                "delete the bridge",
            ),
            (
                "portmap",
                "running [/usr/sbin/iptables -t nat]: exit status 4: iptables: Resource temporarily unavailable.",
                "did not get the lock",
                "/run/xtables.lock",
            ),
            ("x", "something else", "the CNI plugin failed", "Check that the CNI's agent runs"),
        ] {
            let failure = SandboxFailure {
                pod: Default::default(),
                cause: SandboxCause::Plugin,
                words: format!(
                    "failed to setup network for sandbox \"0a\": plugin type=\"{plugin}\" failed (add): {words}"
                ),
                written_boot_ns: 1,
                pid: None,
            };
            let (found, _) = verdict(&failure, &Node::default());
            assert!(found.summary.contains(why) && found.summary.ends_with(words), "{}", found.summary);
            assert!(found.remediation.text.contains(fix), "{}", found.remediation.text);
        }
    }
}
