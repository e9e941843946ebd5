//! A process removed rules or routes in bulk.

use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::netns_ref;
use tracer_case::flushed;
use tracer_model::decision::Decision;
use tracer_model::event::{BULK, FlushedRules, RemovedRoute, RulesFlushed};
use tracer_model::record::{Body, NodeBody};

/// Whether the removal is an event of its own, and not just the end of pods.
pub(crate) fn is_event(flush: &RulesFlushed, node: &Node) -> bool {
    // A single address is of a pod. Its routes go with the pod, those of many pods at once when a node is drained.
    let stays = |it: &&RemovedRoute| it.only_address().is_none_or(|addr| node.has_pod(addr));
    let is_routing = !matches!(flush.rules, FlushedRules::Nftables { .. });
    !is_routing || flush.rules.of_routing().iter().filter(stays).count() >= BULK
}

/// The process and the kind of what it removes, in words: a routing daemon withdraws routes all the time.
pub(crate) fn kind(flush: &RulesFlushed) -> String {
    flushed::sentence(&RulesFlushed { count: 0, incomplete: false, ..flush.clone() })
}

pub(crate) fn record(time: u64, flush: &RulesFlushed, node: &Node) -> Decision {
    let body = NodeBody {
        event: "rules_flushed".to_owned(),
        summary: flushed::sentence(flush),
        culprit: flushed::culprit(flush, node),
        netns: Some(netns_ref(flush.netns, node)),
        ..NodeBody::default()
    };
    Decision::new(time, None, Body::Node(Box::new(body)))
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn addresses(of: &[&str]) -> Vec<RemovedRoute> {
        of.iter().map(|addr| Stream::removed_to(addr, 32)).collect()
    }

    #[test]
    fn the_process_and_what_it_removed_are_reported() {
        let mut stream = Stream::new();
        stream.flushed(FlushedRules::Rules((0..14).map(|_| Stream::removed_to("10.88.0.0", 16)).collect()));
        let table = |replaced| FlushedRules::Nftables { family: "ip".into(), table: "nat".into(), replaced };
        stream.flushed(table(true)).flushed(table(false));
        let events = stream.node_events();
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

    /// When a node is drained, an agent removes the routes of all its pods.
    #[test]
    fn the_routes_of_ended_pods_are_no_event() {
        let gone = addresses(&["10.88.0.5", "10.88.0.6", "10.88.0.7"]);
        assert!(Stream::new().flushed(FlushedRules::Routes(gone)).node_events().is_empty());
        let mut living = Stream::new();
        living.http_readiness().flushed(FlushedRules::Routes(addresses(&["10.88.0.2"; 3])));
        assert_eq!(living.node_events().len(), 1);
    }

    /// The first removal is reported at once, the others of its minute as one.
    #[test]
    fn a_daemon_that_keeps_removing_is_reported_once_a_minute() {
        let mut stream = Stream::new();
        for _ in 0..100 {
            stream.flushed(FlushedRules::Routes((0..20).map(|_| Stream::removed_to("10.77.0.0", 24)).collect()));
            stream.wait_ms(1_300);
        }
        stream.flushed(FlushedRules::Rules((0..3).map(|_| Stream::removed_to("10.88.0.0", 16)).collect()));
        let summaries: Vec<String> = stream.node_events().into_iter().map(|it| it.summary).collect();
        let routes = |count: u32| format!("systemd-network (pid 412) removed {count} routes");
        let rules = "systemd-network (pid 412) removed 3 ip rules".to_owned();
        assert_eq!(summaries, [routes(20), routes(920), routes(920), rules, routes(140)]);
    }
}
