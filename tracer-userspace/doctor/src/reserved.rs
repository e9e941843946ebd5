//! The ports that the checks want in `ip_local_reserved_ports`, and the one command that reserves all of them.

use std::collections::BTreeSet;

use super::finding::Fix;
use super::port_range::{NODE_PORTS, PortRange};
use super::view::View;
use tracer_model::event::port_ranges::{DEFAULT_ONLY, merged};
use tracer_model::event::{NodePort, NodePorts, ProxyMode};

/// The ports that `port_overlap` wants reserved.
pub(super) fn wanted_by_node_ports(view: &View, range: &PortRange) -> Vec<(u16, u16)> {
    let live = view.node_ports();
    for_node_ports(range, live.as_deref().map_err(drop))
}

/// Returns the default NodePort range and the live NodePorts of IPVS if connect() may take one of them, else nothing.
pub(super) fn for_node_ports(range: &PortRange, live: Result<&[NodePorts], ()>) -> Vec<(u16, u16)> {
    let live = live.unwrap_or_default();
    let ports = of_ipvs(live, |port| range.holds(port.port));
    let may_become_ipvs = live.is_empty() || live.iter().any(|table| table.mode == ProxyMode::Ipvs);
    if ports.is_empty() && !(may_become_ipvs && range.overlap(NODE_PORTS) > 0) {
        return Vec::new();
    }
    [NODE_PORTS].into_iter().chain(ports.into_iter().map(|port| (port, port))).collect()
}

/// One command that keeps the present ports and adds these. With a command per check, the second command would undo the
/// first one.
pub(super) fn reserve(range: &PortRange, ports: &[(u16, u16)]) -> Fix {
    let all = merged(range.reserved.iter().chain(ports).copied());
    let fix = Fix::sysctl(&[("net.ipv4.ip_local_reserved_ports", all)]);
    if ports.contains(&NODE_PORTS) { fix.reword(|text| format!("{text}. {DEFAULT_ONLY}")) } else { fix }
}

pub(super) fn of_ipvs(live: &[NodePorts], wanted: impl Fn(&NodePort) -> bool) -> BTreeSet<u16> {
    let tables = live.iter().filter(|table| table.mode == ProxyMode::Ipvs);
    tables.flat_map(|table| &table.ports).filter(|port| wanted(port)).map(|port| port.port).collect()
}
