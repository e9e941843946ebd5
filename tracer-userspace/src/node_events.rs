//! Events of the node by themselves: a link of the node went down or up, a process entered the node's
//! namespace by a path that names another process, a firewall hook began to drop, the set of NodePorts changed, ports
//! are used up.

pub(crate) mod findings;
pub(crate) mod firewall_drop;
mod node_ports;
mod port_pressure;

use crate::classify::culprit_of;
use crate::correlate::node::Node;
use crate::decision::Decision;
use crate::enrich::netns_ref;
use crate::event::{Fact, LinkChange, Links, NetnsOp, NetnsOpKind, Observation};
use crate::record::{Body, Culprit, LinkRef, NodeBody};

/// What this observation says about the node; `node` is what was known before it.
#[must_use]
pub fn decide(observation: &Observation, node: &Node) -> Vec<Decision> {
    let bodies = match &observation.fact {
        Fact::LinkChange(change) => link_changed(observation.time_boot_ns, change, node).into_iter().collect(),
        Fact::Links(links) => links_read(links, node),
        Fact::NetnsOp(op) => entered(observation.time_boot_ns, op, node).into_iter().collect(),
        Fact::NodePorts(ports) => node_ports::changed(ports, node).into_iter().collect(),
        Fact::PortPressure(pressure) => port_pressure::told(pressure, node).into_iter().collect(),
        _ => Vec::new(),
    };
    let decision =
        |body| Decision { time_boot_ns: observation.time_boot_ns, attempt: None, body: Body::Node(Box::new(body)) };
    bodies.into_iter().map(decision).collect()
}

fn event_name(up: bool) -> &'static str {
    if up { "link_up" } else { "link_down" }
}

/// A link of the node's namespace, with the process that did it. Pods' links come and go with the pods.
fn link_changed(time: u64, change: &LinkChange, node: &Node) -> Option<NodeBody> {
    if node.netns() != Some(change.netns) {
        return None;
    }
    let culprit = culprit_of(node, time, change);
    let path = culprit.netns_path.as_ref().map(|p| format!(", which came in through {p}")).unwrap_or_default();
    let verb = if change.up { "up" } else { "down" };
    Some(NodeBody {
        event: event_name(change.up).to_owned(),
        summary: format!("{} of the node set {verb} by {} (pid {}){path}", change.name, culprit.comm, culprit.pid),
        culprit: Some(culprit),
        netns: Some(netns_ref(change.netns, node)),
        link: Some(LinkRef { ifindex: change.ifindex, name: change.name.clone(), up: change.up }),
        ports: None,
        node_ports: None,
    })
}

/// Links that changed without a hook having seen who did it.
fn links_read(links: &Links, node: &Node) -> Vec<NodeBody> {
    let Some(before) = node.links.get(&links.netns).filter(|_| node.netns() == Some(links.netns)) else {
        return Vec::new();
    };
    let changed = |now: &&crate::event::LinkState| {
        before.iter().any(|old| old.ifindex == now.ifindex && old.name == now.name && old.up != now.up)
    };
    let body = |link: &crate::event::LinkState| NodeBody {
        event: event_name(link.up).to_owned(),
        summary: format!(
            "{} of the node is {}; who did it was not seen",
            link.name,
            if link.up { "up" } else { "down" }
        ),
        culprit: None,
        netns: Some(netns_ref(links.netns, node)),
        link: Some(LinkRef { ifindex: link.ifindex, name: link.name.clone(), up: link.up }),
        ports: None,
        node_ports: None,
    };
    links.links.iter().filter(changed).map(body).collect()
}

/// A process entered the node's namespace by a path that names somebody else's: how a stale
/// `/proc/PID/ns/net` shows itself. Plugins that return home by their own path are not reported.
fn entered(time: u64, op: &NetnsOp, node: &Node) -> Option<NodeBody> {
    // Another tracer reads the node's tables there.
    if op.actor.comm == "tracer" {
        return None;
    }
    let enters = matches!(op.op, NetnsOpKind::Setns | NetnsOpKind::Switch) && node.netns() == Some(op.netns);
    let path = node.netns_path(&[op.actor.pid], time).filter(|_| enters)?;
    Some(NodeBody {
        event: "netns_enter".to_owned(),
        summary: format!(
            "{} (pid {}) entered the node's network namespace after opening {path}",
            op.actor.comm, op.actor.pid
        ),
        culprit: Some(Culprit {
            pid: op.actor.pid,
            comm: op.actor.comm.clone(),
            exe: None,
            ancestors: op.ancestors.clone(),
            op: "netns_enter".to_owned(),
            netns_path: Some(path.to_owned()),
            netns: Some(netns_ref(op.netns, node)),
            time_boot_ns: Some(time),
        }),
        netns: Some(netns_ref(op.netns, node)),
        link: None,
        ports: None,
        node_ports: None,
    })
}
