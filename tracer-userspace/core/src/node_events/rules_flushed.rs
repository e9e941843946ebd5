//! A process removed rules or routes in bulk.

use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_model::event::{BULK, FlushedRules, RemovedRoute, RulesFlushed};
use tracer_model::record::NodeBody;

use crate::classify::flushed;

/// The record of it; none of what goes with pods that end.
pub(super) fn record_of(seen: &RulesFlushed, node: &Node) -> Option<NodeBody> {
    // A single address belongs to a pod. What is about one that is there no more goes with it, many at once where a node is drained.
    let stays = |it: &&RemovedRoute| it.only_address().is_none_or(|addr| node.has_pod(addr));
    let is_routing = !matches!(seen.rules, FlushedRules::Nftables { .. });
    if is_routing && seen.rules.of_routing().iter().filter(stays).count() < BULK {
        return None;
    }
    Some(NodeBody {
        event: "rules_flushed".to_owned(),
        summary: flushed::sentence(seen),
        culprit: flushed::culprit(seen, node),
        netns: Some(netns_ref(seen.netns, node)),
        link: None,
        ports: None,
        node_ports: None,
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::Stream;
    use tracer_model::event::{FlushedRules, RemovedRoute};
    use tracer_model::record::{Body, NodeBody};

    fn events(stream: &Stream) -> Vec<NodeBody> {
        let of_node = |body| if let Body::Node(node) = body { Some(*node) } else { None };
        stream.decisions().into_iter().filter_map(|it| of_node(it.body)).collect()
    }

    fn addresses(of: &[&str]) -> Vec<RemovedRoute> {
        of.iter().map(|addr| Stream::removed_to(addr, 32)).collect()
    }

    #[test]
    fn who_removed_what_is_reported() {
        let mut stream = Stream::new();
        stream.flushed(FlushedRules::Rules((0..14).map(|_| Stream::removed_to("10.88.0.0", 16)).collect()));
        let table = |replaced| FlushedRules::Nftables { family: "ip".into(), table: "nat".into(), replaced };
        stream.flushed(table(true)).flushed(table(false));
        let events = events(&stream);
        let expected = [
            "systemd-network (pid 412) removed 14 ip rules",
            "systemd-network (pid 412) removed 40 rules and the whole nftables table ip nat",
            "systemd-network (pid 412) removed 40 rules of the nftables table ip nat",
        ];
        assert_eq!(events.iter().map(|it| it.summary.as_str()).collect::<Vec<_>>(), expected);
        assert!(
            events.iter().all(|it| it.event == "rules_flushed" && it.culprit.as_ref().is_some_and(|by| by.pid == 412))
        );
    }

    /// An agent removes the routes of all pods of a node that is drained.
    #[test]
    fn what_goes_with_pods_that_ended_is_none() {
        let gone = addresses(&["10.88.0.5", "10.88.0.6", "10.88.0.7"]);
        let mut drained = Stream::new();
        drained.flushed(FlushedRules::Routes(gone));
        assert!(events(&drained).is_empty());
        let mut living = Stream::new();
        living.http_readiness().flushed(FlushedRules::Routes(addresses(&["10.88.0.2"; 3])));
        assert_eq!(events(&living).len(), 1);
    }
}
