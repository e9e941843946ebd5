//! A target that is a Service: what became of its packets is known only as far as tracer recognizes them.

use super::super::*;
use tracer_case::drop_reason::is_routing;
use tracer_case::services::{by_endpoint, is_hairpin, is_past_proxy, is_sent_back, target_service, untranslated};
use tracer_model::event::PacketDrop;

/// Behind a Service, tracer does not recognize a packet of this attempt after the handshake, or if its source was
/// translated, too.
pub(super) fn describe(case: &Case<'_>) -> Option<String> {
    let name = target_service(case)?;
    Some(match is_hairpin(case) {
        true => format!(
            "; the target is Service {name}, and the client is its only ready endpoint: its packets must come back over the link that they left by (hairpin)"
        ),
        false => format!(
            "; the target is Service {name}: tracer may not see what becomes of a packet on its way to an endpoint"
        ),
    })
}

/// A clause about a packet that a Service had sent back to its own sender.
pub(super) fn describe_drop(case: &Case<'_>, drop: &PacketDrop) -> &'static str {
    if is_sent_back(case, drop) { "; a Service had sent it back to its own sender (hairpin)" } else { "" }
}

/// The Service proxy had not translated the packet when it should have: words that come first, and the fix.
pub(super) fn past_proxy(case: &Case<'_>, drop: &PacketDrop) -> Option<(String, Remediation)> {
    let is_past = came_back(drop) || is_past_proxy(case, drop.netns, is_routing(drop));
    untranslated(case, drop.flow).filter(|_| is_past)
}

/// The packet came back to its sender from a router.
pub(super) fn came_back(drop: &PacketDrop) -> bool {
    drop.reason.as_deref() == Some("IP_LOCAL_SOURCE")
}

/// The fix if the target is a Service, and no packet was lost before it got there.
pub(super) fn fix(case: &Case<'_>, lost: Option<&PacketDrop>) -> Option<Remediation> {
    let dst = case.attempt.flow.dst;
    let is_behind = |drop: &PacketDrop| ![drop.flow.src, drop.flow.dst].contains(&dst);
    target_service(case).filter(|_| lost.is_none_or(is_behind)).map(|name| by_endpoint(case, &name))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_client_that_is_the_only_endpoint_needs_a_hairpin() {
        let verdict = |ready: &[&str]| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| {
                it.cluster_ips = vec![address("10.96.0.9")];
                it.ready_endpoints = Some(ready.iter().map(|addr| address(addr)).collect());
            });
            stream.connect().last_connect().netns = POD;
            stream.gives_up().verdict()
        };
        let own = verdict(&["10.88.0.1", "fd00::1"]);
        assert_has(
            &own.summary,
            &["Service shop/cart, and the client is its only ready endpoint: its packets must come"],
        );
        assert_has(&own.remediation, &["hairpinMode", "bridge -d link"]);
        let mut dropped =
            Stream::to("10.96.0.9:80").service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).clone();
        dropped.connect().last_connect().netns = POD;
        dropped.drop_with(SYN, NODE, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("br_handle_frame_finish".into()));
            drop.flow.dst = address("10.88.0.1:8080");
        });
        let dropped = dropped.gives_up().verdict();
        assert_has(
            &dropped.summary,
            &["in br_handle_frame_finish); a Service had sent it back to its own sender (hairpin)"],
        );
        assert_has(&dropped.remediation, &["hairpinMode"]);
        let other = verdict(&["10.88.0.1", "10.88.0.2"]);
        assert_lacks(&other.summary, &["hairpin"]);
        assert_has(&other.remediation, &["the translation of the answers is lost", "conntrack -L -p tcp -d 10.96.0.9"]);
    }

    /// kube-proxy may have left its IPVS mode, and that link stays.
    #[test]
    fn where_the_ipvs_link_is_what_ipvs_has_is_shown_too() {
        let verdict = |links: Vec<LinkState>| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).node_links(links);
            stream.connect().gives_up().verdict().remediation
        };
        let ipvs = verdict(vec![link(3, "kube-ipvs0", &[])]);
        assert_has(&ipvs, &["ipvsadm -Ln", "ip addr show to 10.96.0.9", "iptables-save -t nat"]);
        assert_lacks(&verdict(vec![link(3, "cni0", &[])]), &["ipvs"]);
    }

    #[test]
    fn a_cluster_ip_that_left_the_node_lacks_the_rules_of_the_proxy() {
        let dropped = |netns, reason: &str, place: Option<&str>| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).connect().drop(SYN, reason, netns);
            stream.last_drop().location = place.map(str::to_owned);
            let verdict = stream.gives_up().verdict();
            assert_eq!(verdict.cause.name(), "unexplained");
            (
                verdict.summary.contains("); no rule of this node translated 10.96.0.9:80, Service shop/cart"),
                verdict.remediation,
            )
        };
        for (netns, reason, place) in [(POD, "NOT_SPECIFIED", Some("ip_error")), (NODE, "IP_LOCAL_SOURCE", None)] {
            let (is_named, fix) = dropped(netns, reason, place);
            assert!(is_named, "{reason}");
            assert_starts(&fix, "Find out why kube-proxy on this node is behind or stands still");
            assert_has(&fix, &["nft list ruleset | grep -F 10.96.0.9"]);
        }
        assert!(!dropped(NODE, "QDISC_DROP", None).0, "before the rules of the node");
    }
}
