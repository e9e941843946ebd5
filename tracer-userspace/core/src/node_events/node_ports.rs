//! The set of NodePorts of one table changed.

use std::collections::BTreeMap;

use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_model::event::NodePorts;
use tracer_model::record::{NodeBody, NodePortRef, NodePortsBody};

/// How many ports of each kind are named; the others are counted.
const NAMED: usize = 5;

/// Port to the Service's name.
type Named<'a> = BTreeMap<u16, Option<&'a str>>;

/// The record of a change. The first table, or the first of a namespace, is no change.
pub(super) fn changed(now: &NodePorts, node: &Node) -> Option<NodeBody> {
    let before = node.node_ports.of(now.mode).filter(|before| before.netns == now.netns)?;
    let (old, new) = (named(before), named(now));
    let (added, removed) = (only_in(&new, &old), only_in(&old, &new));
    if added.is_empty() && removed.is_empty() {
        return None;
    }
    Some(NodeBody {
        event: "node_ports_changed".to_owned(),
        summary: format!("NodePorts: {} added, {} removed, {} in all", counted(&added), counted(&removed), new.len()),
        netns: Some(netns_ref(now.netns, node)),
        node_ports: Some(NodePortsBody {
            proxy_mode: now.mode,
            added_count: added.len(),
            added: first(added),
            removed_count: removed.len(),
            removed: first(removed),
            count: new.len(),
        }),
        ..NodeBody::default()
    })
}

fn named(table: &NodePorts) -> Named<'_> {
    table.ports.iter().map(|port| (port.port, port.service.as_deref())).collect()
}

/// The ports of `one` that `other` does not have.
fn only_in(one: &Named<'_>, other: &Named<'_>) -> Vec<NodePortRef> {
    let reference =
        |(port, service): (&u16, &Option<&str>)| NodePortRef { port: *port, service: service.map(Into::into) };
    one.iter().filter(|(port, _)| !other.contains_key(port)).map(reference).collect()
}

fn first(mut ports: Vec<NodePortRef>) -> Vec<NodePortRef> {
    ports.truncate(NAMED);
    ports
}

/// `0`, or `2 (30080 of shop/web:http, 30443)`.
fn counted(ports: &[NodePortRef]) -> String {
    let mut names: Vec<String> = ports.iter().take(NAMED).map(name).collect();
    if ports.len() > NAMED {
        names.push(format!("{} more", ports.len() - NAMED));
    }
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    format!("{}{names}", ports.len())
}

fn name(port: &NodePortRef) -> String {
    port.service.as_ref().map_or_else(|| port.port.to_string(), |service| format!("{} of {service}", port.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn table(netns: u32, ports: &[(u16, Option<&str>)]) -> NodePorts {
        let port = |(port, service): &(u16, Option<&str>)| NodePort {
            port: *port,
            service: service.map(Into::into),
            ..NodePort::default()
        };
        NodePorts::new(Netns(netns), ProxyMode::Nftables, ports.iter().map(port).collect())
    }

    fn change(before: NodePorts, now: &NodePorts) -> Option<NodeBody> {
        let mut node = Node::default();
        node.observe(&Observation { time_boot_ns: 1, kind: ObservationKind::NodePorts(before) });
        changed(now, &node)
    }

    #[test]
    fn the_ports_that_came_and_went_are_named() {
        let before = table(1, &[(30001, None), (30002, None)]);
        let now = table(1, &[(30002, None), (30080, Some("shop/web:http"))]);
        let body = change(before, &now).expect("a record");
        assert_eq!(body.summary, "NodePorts: 1 (30080 of shop/web:http) added, 1 (30001) removed, 2 in all");
        let ports = body.node_ports.expect("ports");
        assert_eq!((ports.added[0].port, ports.removed[0].port, ports.count), (30080, 30001, 2));
    }

    #[test]
    fn the_first_port_and_the_end_of_the_last_are_changes() {
        let one = table(1, &[(30080, None)]);
        let body = change(table(1, &[]), &one).expect("a record");
        assert_eq!(body.summary, "NodePorts: 1 (30080) added, 0 removed, 1 in all");
        let body = change(one, &table(1, &[])).expect("a record");
        assert_eq!(body.summary, "NodePorts: 0 added, 1 (30080) removed, 0 in all");
    }

    #[test]
    fn many_ports_are_counted() {
        let many: Vec<_> = (30001..31001).map(|port| (port, None)).collect();
        let body = change(table(1, &[]), &table(1, &many)).expect("a record");
        assert_has(&body.summary, &["1000 (30001, 30002, 30003, 30004, 30005, 995 more) added"]);
        let ports = body.node_ports.expect("ports");
        assert_eq!((ports.added.len(), ports.added_count), (5, 1000));
    }

    #[test]
    fn another_namespace_or_another_backend_is_no_change() {
        let one = table(1, &[(30080, None)]);
        assert_eq!(change(one.clone(), &table(2, &[(30081, None)])), None);
        assert_eq!(change(one, &table(1, &[(30080, Some("shop/web"))])), None);
    }
}
