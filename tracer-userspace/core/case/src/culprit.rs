//! The process that changed a link, and the path by which it entered the link's namespace.

use serde_json::json;

use tracer_attempts::correlate::links::LOOPBACK;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_model::event::{LinkChange, process_name};
use tracer_model::record::{Culprit, Evidence};

/// The process that changed a link; `None` if the kernel did it [by itself](is_by_kernel). The path is the last one by
/// which it, or a process above it, entered the link's namespace. If no open was seen, it is the path that the runtime
/// gave to the plugin. The second end of a veth pair goes down with the first: then the process is in the namespace of
/// the first end, and the path is absent.
pub fn culprit_of(node: &Node, time: u64, change: &LinkChange) -> Option<Culprit> {
    if is_by_kernel(change) {
        return None;
    }
    let mut pids = vec![change.actor.pid];
    pids.extend(change.ancestors.iter().map(|a| a.pid).filter(|&p| p > 1));
    let path = || node.namespaces.path(&pids, change.netns, time).map(str::to_owned);
    let given = || change.cni_netns.clone().filter(|_| !node.namespaces.has_opened_path(&pids, time));
    let op = if change.up { "link_up" } else { "link_down" };
    Some(Culprit {
        exe: change.exe.clone(),
        ancestors: change.ancestors.clone(),
        netns_path: if is_elsewhere(change) { None } else { path().or_else(given) },
        ..Culprit::of(&change.actor, op, Some(netns_ref(change.netns, node)), time)
    })
}

/// "ip (pid 7)"
pub fn name(culprit: Option<&Culprit>) -> String {
    culprit.map_or_else(|| BY_KERNEL.to_owned(), |it| process_name(&it.comm, it.pid))
}

/// Who changed a link if no process did.
pub const BY_KERNEL: &str = "a worker of the kernel";

/// A link was set down, as evidence.
pub fn evidence(time: u64, change: &LinkChange) -> Evidence {
    let LinkChange { name, actor, hook, .. } = change;
    let fields = json!({ "pid": actor.pid, "netns": change.netns });
    super::evidence::evidence_of(hook.name(), time, format!("{name} set down by {actor}"), fields)
}

/// The process is in another namespace than the link.
pub fn is_elsewhere(change: &LinkChange) -> bool {
    change.actor.netns.is_some_and(|netns| netns != change.netns)
}

/// A worker of the kernel changed the link: it removes the namespace, or the driver resets or loses its device.
fn is_by_kernel(change: &LinkChange) -> bool {
    let is_of_kernel = change.ancestors.first().is_some_and(|it| it.comm == "kthreadd");
    is_of_kernel && change.actor.comm.starts_with("kworker/")
}

/// A worker of the kernel removed the link with its namespace, as nothing uses that any more (`cleanup_net`,
/// net/core/net_namespace.c). The end of the namespace was seen, or its `lo` went down in this way, too, which no driver
/// does.
pub fn is_removal(node: &Node, change: &LinkChange) -> bool {
    let lo = || node.links.down(change.netns, LOOPBACK).is_some_and(|(_, lo)| is_by_kernel(lo));
    is_by_kernel(change) && (node.has_ended(change.netns) || lo())
}

/// Network plugins by the name of their process: those of github.com/containernetworking/plugins and of networks in
/// wide use. `bridge` and `firewall` are names of other programs, too: these plugins show by path or environment.
const PLUGINS: &[&str] = &[
    "loopback",
    "ptp",
    "host-device",
    "macvlan",
    "ipvlan",
    "portmap",
    "bandwidth",
    "flannel",
    "calico",
    "cilium-cni",
    "weave-net",
    "multus",
    "multus-shim",
    "antrea",
    "kube-ovn",
    "aws-cni",
    "azure-vnet",
];

/// A network plugin: by environment, by folder (/opt/cni/bin, /usr/libexec/cni, k3s's `cni`), or by name.
pub fn is_plugin(change: &LinkChange) -> bool {
    let in_cni = change.exe.as_deref().is_some_and(|exe| exe.split('/').any(|part| part == "cni"));
    change.cni_netns.is_some() || in_cni || PLUGINS.contains(&change.actor.comm.as_str())
}

/// A plugin sets links of pods down. One that entered a node's namespace by a path was led to another namespace than it
/// meant. Only with the path of process 1 it may have meant the node.
fn went_astray(node: &Node, change: &LinkChange, culprit: &Culprit) -> bool {
    let by_path = culprit.netns_path.as_deref().is_some_and(|path| !path.starts_with("/proc/1/"));
    is_plugin(change) && by_path && node.is_a_node(change.netns)
}

/// What to do if a worker of the kernel set the link down; follows the command that sets it up.
pub const FIX_BY_KERNEL: &str = "; then find out why the kernel set it down: it does so when the network namespace of its other end has ended, and `dmesg` may say that the driver of a network card reset it";

/// What to do about the process that set the link down; follows the command that sets it up.
pub fn fix(node: &Node, change: &LinkChange, culprit: &Culprit) -> String {
    let process = culprit.exe.as_deref().unwrap_or(&culprit.comm);
    if went_astray(node, change, culprit) {
        return format!("; then fix what {process} does: it worked in another network namespace than the one it meant");
    }
    if is_plugin(change) && node.is_a_node(change.netns) {
        return format!(
            "; then find out in the log of the container runtime which namespace (CNI_NETNS) the network plugin {process} got: tracer did not see how it entered this one"
        );
    }
    let parent = culprit.ancestors.first().map(|it| format!(", started by {}", process_name(&it.comm, it.pid)));
    format!("; then find out why {process} (pid {}{}) set it down", culprit.pid, parent.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn change(comm: &str, exe: &str, cni_netns: Option<&str>) -> LinkChange {
        LinkChange {
            actor: Actor { pid: 5, comm: comm.into(), netns: None, ..prober() },
            ancestors: vec![Ancestor { pid: 4, comm: "bash".into() }],
            exe: Some(exe.into()),
            cni_netns: cni_netns.map(str::to_owned),
            ..link_change(Netns(1), 1, "lo", false)
        }
    }

    fn fix_for(change: &LinkChange, path: Option<&str>) -> String {
        let links = ObservationKind::Links(Links { netns: Netns(1), cookie: None, links: Vec::new() });
        let mut node = Node::default();
        node.observe(&Observation { time_boot_ns: 1, kind: links });
        let culprit =
            Culprit { netns_path: path.map(str::to_owned), ..culprit_of(&node, 1, change).expect("a process") };
        fix(&node, change, &culprit)
    }

    #[test]
    fn a_plugin_that_entered_the_node_by_a_path_went_astray() {
        let plugin = change("loopback", "/opt/cni/bin/loopback", None);
        assert_has(&fix_for(&plugin, Some("/proc/5029/ns/net")), &["another network namespace than the one it meant"]);
        let k3s = change("bridge", "/var/lib/rancher/k3s/data/x/bin/cni", Some("/run/netns/cni-1"));
        assert_has(&fix_for(&k3s, Some("/run/netns/cni-1")), &["another network namespace than the one it meant"]);
        assert_has(&fix_for(&plugin, None), &["did not see how it entered this one"]);
        let elsewhere = LinkChange { netns: Netns(2), ..plugin };
        assert!(
            fix_for(&elsewhere, Some("/run/netns/cni-1")).contains("find out why"),
            "a pod's link is a plugin's to set down"
        );
    }

    #[test]
    fn a_process_that_is_no_plugin_is_only_named() {
        let by_hand = change("ip", "/usr/sbin/ip", None);
        let expected = "; then find out why /usr/sbin/ip (pid 5, started by bash (pid 4)) set it down";
        assert_eq!(fix_for(&by_hand, Some("/run/netns/node")), expected);
        assert_eq!(
            fix_for(&change("bridge", "/usr/sbin/bridge", None), None).split_once(" (").map(|it| it.0),
            Some("; then find out why /usr/sbin/bridge")
        );
    }
}
