//! The processes that use up ephemeral ports, and how likely the next connect takes a live NodePort.

use std::collections::BTreeSet;

use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_model::event::port_ranges::preferred;
use tracer_model::event::{PortPressure, PortUser, ProxyMode};
use tracer_model::plural::counted;
use tracer_model::record::{NodeBody, PortUserBody, PortsBody};

/// With fewer connects a second than this, and a smaller share of the ports, the end of a run reports nothing.
const FEW_CONNECTS_PER_S: f64 = 10.0;
const FEW_PORTS: f64 = 0.01;
/// How long a port stays in TIME_WAIT (`TCP_TIMEWAIT_LEN`), seconds.
const TIME_WAIT_S: f64 = 60.0;

/// The record of a whole window, if a process connected out of the namespace of the node in it.
pub(super) fn record_of(pressure: &PortPressure, node: &Node) -> Option<NodeBody> {
    if pressure.partial {
        return None;
    }
    let ports = body(pressure, node);
    if ports.users.is_empty() || !pressure.regular && is_little(&ports) {
        return None;
    }
    Some(NodeBody {
        event: "port_pressure".to_owned(),
        summary: summary(&ports),
        netns: node.netns().map(|netns| netns_ref(netns, node)),
        ports: Some(ports),
        ..NodeBody::default()
    })
}

/// Few connects a second, and few ports in use. If the number of ports is unknown, only the connects count.
fn is_little(ports: &PortsBody) -> bool {
    let connects = ports.users.iter().map(|user| user.connects).sum::<u64>() as f64;
    let per_s = connects / ports.window_s.max(0.001);
    let held = connects.min(per_s * TIME_WAIT_S) + ports.time_wait.unwrap_or(0) as f64;
    let is_part = |usable: u32| held >= FEW_PORTS * f64::from(usable);
    per_s < FEW_CONNECTS_PER_S && !ports.usable.is_some_and(is_part)
}

/// Each namespace has its own ports: a process in another namespace uses none of these.
fn uses_these(user: &PortUser, node: &Node) -> bool {
    user.netns.is_none() || node.netns().is_none() || user.netns == node.netns()
}

fn body(pressure: &PortPressure, node: &Node) -> PortsBody {
    let window_s = pressure.window_ns as f64 / 1e9;
    let range = node.settings.local_port_range;
    let count = range.map(|range| preferred(range, &node.settings.reserved_ports));
    let hit = count.and_then(|_| usable_node_ports(node));
    let users = pressure.users.iter().filter(|user| uses_these(user, node));
    PortsBody {
        window_s: rounded(window_s, 1000.0),
        range: range.map(|(first, last)| [first, last]),
        usable: count,
        in_use: pressure.in_use,
        time_wait: pressure.time_wait,
        node_ports_in_range: hit,
        chance_next_connect_hits: hit.zip(count).map(|(hit, of)| rounded(f64::from(hit) / f64::from(of.max(1)), 1e6)),
        users: users.map(|user| named(user, window_s, node)).collect(),
    }
}

fn usable_node_ports(node: &Node) -> Option<u32> {
    let table = node.node_ports.of(ProxyMode::Ipvs)?;
    let ports: BTreeSet<u16> = table.ports.iter().filter(|port| !port.listened).map(|port| port.port).collect();
    Some(ports.into_iter().filter(|port| node.settings.is_preferred(*port)).count() as u32)
}

fn named(user: &PortUser, window_s: f64, node: &Node) -> PortUserBody {
    PortUserBody {
        pid: user.pid,
        comm: user.comm.clone(),
        processes: Some(user.processes).filter(|processes| *processes > 1),
        pod: pod(user, node),
        netns: user.netns.map(|netns| netns_ref(netns, node)),
        connects: user.connects,
        connects_per_s: rounded(user.connects as f64 / window_s.max(0.001), 10.0),
        distinct_destinations: user.destinations,
        self_connections: user.to_itself,
        time_wait_left: user.time_wait_left,
    }
}

/// The pod of the cgroup, which also works for a pod on the host's network; else the pod of the namespace.
fn pod(user: &PortUser, node: &Node) -> Option<String> {
    let by_uid = user.pod_uid.as_ref().and_then(|uid| node.pods.iter().find(|pod| pod.uid.as_ref() == Some(uid)));
    let by_netns = || user.netns.and_then(|netns| node.pods.in_netns(netns));
    let pod = by_uid.or_else(by_netns);
    let name =
        pod.and_then(|pod| Some(format!("{}/{}", pod.namespace.as_deref().unwrap_or("default"), pod.name.as_deref()?)));
    name.or_else(|| user.pod_uid.as_ref().map(|uid| format!("pod {uid}")))
}

fn rounded(value: f64, by: f64) -> f64 {
    (value * by).round() / by
}

fn summary(ports: &PortsBody) -> String {
    let digits = usize::from(ports.window_s < 10.0);
    let mut text = format!("ephemeral ports, {:.digits$} s: ", ports.window_s);
    let users: Vec<String> = ports.users.iter().take(3).map(describe).collect();
    text.push_str(&users.join("; "));
    if let (Some(waiting), Some(usable)) = (ports.time_wait, ports.usable) {
        text.push_str(&format!(
            "; {} in TIME_WAIT, {} for each destination",
            counted(waiting, "socket"),
            counted(usable.into(), "port")
        ));
    }
    if let (Some(hit @ 1..), Some(usable)) = (ports.node_ports_in_range, ports.usable) {
        text.push_str(&format!(
            ", {} among them: a connect takes one in {hit} of {usable} cases",
            counted(hit.into(), "live NodePort")
        ));
    }
    text
}

/// `node-cache (pid 812, kube-system/node-local-dns): 60 connects (1.0/s) to 1 destination, 60 of them to its own address, 60 left in TIME_WAIT`
fn describe(user: &PortUserBody) -> String {
    let pod = user.pod.as_ref().map(|pod| format!(", {pod}")).unwrap_or_default();
    let many = user.processes.map(|n| format!(" and {} more", n - 1)).unwrap_or_default();
    // In less than a second.
    let is_short = user.connects_per_s > user.connects as f64;
    let rate = if is_short { String::new() } else { format!(" ({}/s)", user.connects_per_s) };
    let mut text = format!(
        "{} (pid {}{many}{pod}): {}{rate} to {}",
        user.comm,
        user.pid,
        counted(user.connects, "connect"),
        counted(user.distinct_destinations, "destination")
    );
    if user.self_connections > 0 {
        text.push_str(&format!(", {} of them to its own address", user.self_connections));
    }
    if user.time_wait_left > 0 {
        text.push_str(&format!(", {} left in TIME_WAIT", user.time_wait_left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::{Netns, NodePort, NodePorts, Observation, ObservationKind};

    fn user(comm: &str, connects: u64) -> PortUser {
        PortUser {
            pid: 812,
            comm: comm.into(),
            processes: 1,
            netns: Some(Netns(1)),
            pod_uid: None,
            connects,
            destinations: 1,
            to_itself: connects,
            time_wait_left: connects,
        }
    }

    fn node(reserved: Vec<(u16, u16)>) -> Node {
        let mut node = Node::default();
        node.settings.local_port_range = Some((1024, 65000));
        node.settings.reserved_ports = reserved;
        let port = |port| NodePort { port, ..NodePort::default() };
        let ports = NodePorts::new(Netns(1), ProxyMode::Ipvs, vec![port(36704), port(36705)]);
        node.observe(&Observation { time_boot_ns: 1, kind: ObservationKind::NodePorts(ports) });
        node
    }

    fn pressure(users: Vec<PortUser>) -> PortPressure {
        PortPressure { window_ns: 60_000_000_000, users, ..PortPressure::default() }
    }

    fn body_of(node: &Node) -> NodeBody {
        let pressure = PortPressure { time_wait: Some(849), ..pressure(vec![user("node-cache", 60)]) };
        record_of(&pressure, node).expect("a record")
    }

    #[test]
    fn the_user_of_ports_and_the_chance_to_take_a_node_port_are_reported() {
        let body = body_of(&node(Vec::new()));
        let ports = body.ports.expect("ports");
        assert_eq!((ports.usable, ports.node_ports_in_range), (Some(31989), Some(1)), "an odd NodePort is never taken");
        assert_eq!(
            body.summary,
            "ephemeral ports, 60 s: node-cache (pid 812): 60 connects (1/s) to 1 destination, 60 of them to its own address, 60 left in TIME_WAIT; 849 sockets in TIME_WAIT, 31989 ports for each destination, 1 live NodePort among them: a connect takes one in 1 of 31989 cases"
        );
    }

    /// kube-proxy before kubernetes#108496 holds a socket open on each NodePort.
    #[test]
    fn a_node_port_with_a_listener_is_not_taken() {
        let mut node = node(Vec::new());
        let port = NodePort { port: 36704, listened: true, ..NodePort::default() };
        let ports = NodePorts::new(Netns(1), ProxyMode::Ipvs, vec![port]);
        node.observe(&Observation { time_boot_ns: 2, kind: ObservationKind::NodePorts(ports) });
        assert_eq!(body_of(&node).ports.expect("ports").node_ports_in_range, Some(0));
    }

    #[test]
    fn a_process_of_another_namespace_is_not_reported() {
        let mut node = node(Vec::new());
        let links = tracer_model::event::Links { netns: Netns(1), cookie: None, links: Vec::new() };
        node.observe(&Observation { time_boot_ns: 2, kind: ObservationKind::Links(links) });
        let pod = PortUser { netns: Some(Netns(2)), ..user("in-a-pod", 9000) };
        let both = pressure(vec![pod.clone(), user("node-cache", 900)]);
        let body = record_of(&both, &node).expect("a record");
        assert!(body.summary.contains("node-cache") && !body.summary.contains("in-a-pod"), "{}", body.summary);
        assert_eq!(body.ports.expect("ports").users.len(), 1);
        assert_eq!(record_of(&PortPressure { users: vec![pod], ..both }, &node), None, "nobody connected from here");
    }

    #[test]
    fn the_end_of_a_run_reports_no_small_use() {
        let node = node(Vec::new());
        let body_of = |connects, time_wait, regular| {
            let pressure = pressure(vec![user("kubelet", connects)]);
            record_of(&PortPressure { regular, time_wait: Some(time_wait), ..pressure }, &node).is_some()
        };
        assert!(!body_of(120, 50, false), "2/s, and half a percent of the ports");
        assert!(body_of(120, 50, true), "a daemon reports it each minute");
        assert!(body_of(120, 300, false) && body_of(600, 0, false));
    }

    #[test]
    fn reserved_ports_are_not_taken() {
        let ports = body_of(&node(vec![(30000, 40000)])).ports.expect("ports");
        assert_eq!((ports.node_ports_in_range, ports.chance_next_connect_hits), (Some(0), Some(0.0)));
        assert!(record_of(&PortPressure::default(), &Node::default()).is_none(), "nobody connected");
    }
}
