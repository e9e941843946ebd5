//! Changes of the node itself: links, processes that enter its namespace, firewall hooks that begin to drop, NodePorts,
//! ephemeral ports, and rules or routes that were removed in bulk.

pub(crate) mod findings;
pub(crate) mod firewall_drop;
pub(crate) mod links_read;
mod node_ports;
mod port_pressure;
pub(crate) mod rules_flushed;

use crate::kubelet::not_run::ClockStep;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_case::culprit::{BY_KERNEL, culprit_of, is_elsewhere, is_plugin};
use tracer_model::decision::Decision;
use tracer_model::event::{LinkChange, LinkState, NetnsOp, NetnsOpKind, Observation, ObservationKind, process_name};
use tracer_model::record::{Body, Culprit, LinkRef, NodeBody};

/// The node events that this observation shows; `node` is what was known before it.
#[must_use]
pub fn decide(observation: &Observation, node: &Node) -> Vec<Decision> {
    let bodies = match &observation.kind {
        ObservationKind::LinkChange(change) => Vec::from_iter(link_changed(observation.time_boot_ns, change, node)),
        ObservationKind::NetnsOp(op) => Vec::from_iter(entered(observation.time_boot_ns, op, node)),
        ObservationKind::NodePorts(ports) => Vec::from_iter(node_ports::changed(ports, node)),
        ObservationKind::PortPressure(pressure) => Vec::from_iter(port_pressure::record_of(pressure, node)),
        _ => Vec::new(),
    };
    let decision = |body| Decision::new(observation.time_boot_ns, None, Body::Node(Box::new(body)));
    bodies.into_iter().map(decision).collect()
}

fn event_name(up: bool) -> &'static str {
    if up { "link_up" } else { "link_down" }
}

fn verb(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

/// A link of the node's namespace changed, with the process that did it. Links of pods come and go with the pods.
fn link_changed(time: u64, change: &LinkChange, node: &Node) -> Option<NodeBody> {
    if node.netns() != Some(change.netns) || is_end_of_pod(change, node) {
        return None;
    }
    let culprit = culprit_of(node, time, change);
    let by = match &culprit {
        Some(culprit) => {
            let by_path =
                culprit.netns_path.as_ref().map(|path| format!(", which entered the namespace after opening {path}"));
            let elsewhere = is_elsewhere(change).then(|| ", which was in another network namespace".to_owned());
            process_name(&culprit.comm, culprit.pid) + &by_path.or(elsewhere).unwrap_or_default()
        }
        None if !change.up && is_one_of_pair(change, node) => {
            format!("{BY_KERNEL}, perhaps because the network namespace of its other end has ended")
        }
        None => format!("{BY_KERNEL}, such as its driver"),
    };
    Some(NodeBody {
        event: event_name(change.up).to_owned(),
        summary: format!("{} of the node set {} by {by}", change.name, verb(change.up)),
        culprit,
        netns: Some(netns_ref(change.netns, node)),
        link: Some(LinkRef { ifindex: change.ifindex, name: change.name.clone(), up: change.up }),
        ..NodeBody::default()
    })
}

/// A network plugin removes a pod's link from within the pod: the node's end goes with it. So ends each pod. If the pod
/// is still probed, `pod_link_down` names the plugin. A plugin that sets another link of the node down, as `lo`, has
/// gone astray.
fn is_end_of_pod(change: &LinkChange, node: &Node) -> bool {
    let from_pod = change.actor.netns.is_some_and(|netns| !node.is_a_node(netns));
    !change.up && from_pod && is_plugin(change) && is_one_of_pair(change, node)
}

/// The link has another end, as far as is known: a removed link may be gone from the list.
fn is_one_of_pair(change: &LinkChange, node: &Node) -> bool {
    let has_other_end = |link: &LinkState| link.peer_ifindex.is_some();
    node.links.by_index(change.netns, change.ifindex).map_or(change.name != "lo", has_other_end)
}

/// Whether a process of this name works in the namespace of the node: another tracer, or runc and crun for an exec
/// probe of a pod with hostNetwork. If one sets down a link, tracer reports it all the same.
fn is_expected_there(comm: &str) -> bool {
    // The stages of runc have names like `runc:[1:CHILD]` (libcontainer/nsenter/nsexec.c).
    matches!(comm, "tracer" | "crun") || comm.starts_with("runc:[")
}

/// The record of a step of the wall clock.
pub(crate) fn clock_step(step: &ClockStep) -> NodeBody {
    let summary = format!("the wall clock of the node was {}", step.words());
    NodeBody { event: "clock_step".to_owned(), summary, ..NodeBody::default() }
}

/// A process entered the node's namespace by a path that names another process: a stale `/proc/PID/ns/net` shows like
/// this. Plugins that return to the node by their own path are not reported.
fn entered(time: u64, op: &NetnsOp, node: &Node) -> Option<NodeBody> {
    if is_expected_there(&op.actor.comm) {
        return None;
    }
    let enters = matches!(op.op, NetnsOpKind::Setns | NetnsOpKind::Switch) && node.netns() == Some(op.netns);
    let path = node.namespaces.path_of_entry(op, time).filter(|_| enters)?;
    let netns = Some(netns_ref(op.netns, node));
    Some(NodeBody {
        event: "netns_enter".to_owned(),
        summary: format!("{} entered the node's network namespace after opening {path}", op.actor),
        culprit: Some(Culprit {
            ancestors: op.ancestors.clone(),
            netns_path: Some(path.to_owned()),
            ..Culprit::of(&op.actor, "netns_enter", netns.clone(), time)
        }),
        netns,
        ..NodeBody::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    const AWAY: Netns = Netns(99);

    fn actor(comm: &str, netns: Netns) -> Actor {
        Actor { pid: 4242, tid: 4242, comm: comm.to_owned(), netns: Some(netns), ..prober() }
    }

    fn opens(comm: &str, path: &str) -> ObservationKind {
        ObservationKind::NetnsOpen(NetnsOpen { actor: actor(comm, NODE), path: path.to_owned() })
    }

    fn enters(comm: &str, from: Netns, to: Netns) -> ObservationKind {
        let actor = actor(comm, from);
        ObservationKind::NetnsOp(NetnsOp { actor, ancestors: Vec::new(), netns: to, op: NetnsOpKind::Setns })
    }

    fn sets_down(comm: &str, from: Netns, name: &str) -> ObservationKind {
        let cni_netns = Some("/run/netns/cni-1".to_owned());
        let actor = actor(comm, from);
        ObservationKind::LinkChange(LinkChange { actor, cni_netns, ..link_change(NODE, 7, name, false) })
    }

    fn summaries(observed: Vec<ObservationKind>) -> Vec<String> {
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).clone();
        observed.into_iter().for_each(|kind| _ = stream.push(kind));
        stream.node_events().into_iter().map(|it| it.summary).collect()
    }

    /// The events when such a process opens the namespace file of another one and then is in the node's namespace.
    fn events_of(comm: &str) -> Vec<String> {
        summaries(vec![opens(comm, "/proc/77/ns/net"), enters(comm, NODE, NODE)])
    }

    #[test]
    fn a_process_that_enters_the_node_by_the_path_of_another_is_reported() {
        let expected = "loopback (pid 4242) entered the node's network namespace after opening /proc/77/ns/net";
        assert_eq!(events_of("loopback"), [expected]);
    }

    #[test]
    fn a_runtime_a_tracer_or_a_plugin_that_returns_is_not_reported() {
        for comm in ["runc:[1:CHILD]", "crun", "tracer"] {
            assert!(events_of(comm).is_empty(), "{comm}");
        }
        let there = [opens("bridge", "/run/netns/cni-1"), enters("bridge", NODE, AWAY), enters("bridge", AWAY, NODE)];
        assert!(summaries(there.into()).is_empty(), "from a pod");
    }

    #[test]
    fn a_veth_pair_that_is_set_down_from_a_pod_says_so() {
        let mut by_hand = sets_down("ip", AWAY, "veth7");
        if let ObservationKind::LinkChange(change) = &mut by_hand {
            change.cni_netns = None;
        }
        let expected = "veth7 of the node set down by ip (pid 4242), which was in another network namespace";
        assert_eq!(summaries(vec![by_hand]), [expected]);
        let path = || opens("bridge", "/run/netns/cni-1");
        let pair = vec![path(), enters("bridge", NODE, AWAY), sets_down("bridge", AWAY, "veth7")];
        assert!(summaries(pair).is_empty(), "a pod ends");
        for name in ["lo", "eth0"] {
            let links = vec![link(7, "eth0", &["192.0.2.2"])];
            let known = ObservationKind::Links(Links { netns: NODE, cookie: None, links });
            let astray = vec![known, path(), enters("bridge", NODE, AWAY), sets_down("bridge", AWAY, name)];
            let words = "of the node set down by bridge (pid 4242), which was in another network namespace";
            assert_eq!(summaries(astray), [format!("{name} {words}")]);
        }
        let home = vec![
            path(),
            enters("bridge", NODE, AWAY),
            enters("bridge", AWAY, NODE),
            sets_down("bridge", NODE, "veth7"),
        ];
        assert_eq!(summaries(home), ["veth7 of the node set down by bridge (pid 4242)"]);
    }

    #[test]
    fn a_worker_of_the_kernel_is_no_process() {
        let set_down = |peer_ifindex| {
            let mut stream = Stream::new();
            let links = vec![LinkState { peer_ifindex, ..link(7, "eth0", &["192.0.2.2"]) }];
            stream.push(ObservationKind::Links(Links { netns: NODE, cookie: None, links }));
            let event = stream.link_set_by_kernel(NODE, 7, "eth0").node_events().remove(0);
            assert!(event.culprit.is_none());
            event.summary
        };
        let by_kernel = "eth0 of the node set down by a worker of the kernel";
        assert_eq!(set_down(None), format!("{by_kernel}, such as its driver"));
        assert_eq!(
            set_down(Some(2)),
            format!("{by_kernel}, perhaps because the network namespace of its other end has ended")
        );
    }

    #[test]
    fn a_plugin_that_was_led_to_the_node_is_reported_with_its_path() {
        let astray = vec![
            opens("loopback", "/proc/77/ns/net"),
            enters("loopback", NODE, NODE),
            sets_down("loopback", NODE, "lo"),
        ];
        let events_of = summaries(astray);
        assert_eq!(
            events_of[1],
            "lo of the node set down by loopback (pid 4242), which entered the namespace after opening /proc/77/ns/net"
        );
        assert_eq!(events_of.len(), 2, "{events_of:?}");
        let unseen = summaries(vec![sets_down("loopback", NODE, "lo")]);
        assert_eq!(
            unseen,
            [
                "lo of the node set down by loopback (pid 4242), which entered the namespace after opening /run/netns/cni-1"
            ]
        );
    }
}
