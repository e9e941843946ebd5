//! Ports of the node's own daemons in the range of ephemeral ports.

use std::collections::BTreeSet;

use super::Check;
use super::finding::{Finding, Unread};
use super::port_range::PortRange;
use super::reserved::{reserve, wanted_by_node_ports};
use super::sockets;
use super::view::View;
use tracer_model::plural::counted;

pub(super) const CHECK: Check = Check {
    name: "listener_overlap",
    why: "while such a daemon restarts, a connect can take its port. The daemon then cannot listen (address already in use) until that connection ends",
    expected: || "no port of a node daemon in net.ipv4.ip_local_port_range less ip_local_reserved_ports".into(),
    run: |view| Ok(vec![check(view)?]),
};

/// Default ports of Kubernetes and of common agents on nodes.
const KNOWN: &[(u16, &str)] = &[
    (2379, "etcd"),
    (2380, "etcd"),
    (6443, "kube-apiserver"),
    (9099, "calico-node"),
    (9100, "node-exporter"),
    (9345, "rke2"),
    (9878, "cilium-envoy"),
    (9879, "cilium-agent"),
    (10248, "kubelet"),
    (10249, "kube-proxy"),
    (10250, "kubelet"),
    (10256, "kube-proxy"),
    (10257, "kube-controller-manager"),
    (10259, "kube-scheduler"),
    (16443, "MicroK8s"),
    (61678, "aws-node"),
    (61679, "aws-node"),
];

fn check(view: &View) -> Result<Finding, Unread> {
    let range = PortRange::read(view)?;
    let ports = listeners(&sockets::read(view)?);
    // `port_overlap` gives a command for the same setting.
    let node_ports = if known(&range, &ports).is_empty() { Vec::new() } else { wanted_by_node_ports(view, &range) };
    Ok(judge(&range, &ports, node_ports))
}

pub(super) fn to_reserve(view: &View, range: &PortRange) -> Vec<(u16, u16)> {
    let ports = sockets::read(view).map(|lists| listeners(&lists)).unwrap_or_default();
    known(range, &ports).iter().map(|(port, _)| (*port, *port)).collect()
}

/// Known ports with a listener that connect() may take.
fn known(range: &PortRange, listeners: &BTreeSet<u16>) -> Vec<(u16, &'static str)> {
    KNOWN.iter().copied().filter(|(port, _)| listeners.contains(port) && range.holds(*port)).collect()
}

pub(super) fn listeners(lists: &[String]) -> BTreeSet<u16> {
    sockets::parse(lists).filter(|socket| socket.state == sockets::LISTEN).map(|socket| socket.port).collect()
}

/// Listeners on other ports are only counted: most of them listen on a port that the kernel chose. `node_ports`: ports that
/// the same command reserves.
fn judge(range: &PortRange, listeners: &BTreeSet<u16>, node_ports: Vec<(u16, u16)>) -> Finding {
    let inside: Vec<u16> = listeners.iter().copied().filter(|port| range.holds(*port)).collect();
    let known = known(range, listeners);
    let draft = CHECK.draft().with("listeners_in_range", inside.len());
    let count = counted(inside.len() as u64, "listener");
    if known.is_empty() {
        return draft.ok(format!("{count} in {range}, none on a known port of a node daemon"));
    }
    let names: Vec<String> = known.iter().map(|(port, name)| format!("{port} ({name})")).collect();
    let ports: Vec<u16> = known.iter().map(|(port, _)| *port).collect();
    let own: Vec<(u16, u16)> = ports.iter().map(|port| (*port, *port)).collect();
    let observed = format!("{count} in {range}, among them {}", names.join(", "));
    draft.with("ports", ports).warn(observed, reserve(range, &[own, node_ports].concat()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::fix;
    use super::*;
    use crate::Status;

    #[test]
    fn a_kubelet_port_in_the_range_is_a_warning() {
        let text = "head\n 0: 00000000:280A 00000000:0000 0A 0:0\n 1: 0100007F:9C40 00000000:0000 0A 0:0\n 2: 0100007F:1A0B 0100007F:9C40 01 0:0\n";
        let ports = listeners(&[text.to_owned()]);
        assert_eq!(ports.iter().copied().collect::<Vec<_>>(), [10250, 40000], "listeners only");
        let mut range = PortRange { first: 1024, last: 65000, reserved: vec![(8080, 8080)] };
        let finding = judge(&range, &ports, Vec::new());
        assert_eq!(finding.status, Status::Warn);
        assert_eq!(finding.observed, "2 listeners in 1024-65000, among them 10250 (kubelet)");
        assert_eq!(fix(&finding), "sysctl -w net.ipv4.ip_local_reserved_ports=8080,10250");
        range.first = 32768;
        assert_eq!(judge(&range, &ports, Vec::new()).status, Status::Ok);
    }
}
