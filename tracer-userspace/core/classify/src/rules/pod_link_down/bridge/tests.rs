use super::super::tests::{cni0, eth0};
use tracer_core::testing::*;

#[test]
fn a_bridge_without_a_port_is_reported_when_nothing_nearer_is() {
    let stream = Stream::new().connect().drop(SYN, "NO_TX_TARGET", NODE).clone();
    assert!(stream.causes().is_empty(), "an inspection of the target may name the link");
    let mut stream = Stream::new().connect().drop_on(SYN, "NO_TX_TARGET", NODE, Some(device(3, "cni0"))).clone();
    assert_eq!(stream.gives_up().causes(), ["pod_link_down"]);
}

/// Seen at high load: the inspection came after the attempt.
#[test]
fn a_bridge_without_a_port_is_no_cause_where_the_pods_link_was_set_down() {
    let blamed = |ms_before: u64| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        stream.link_set(POD, 2, "eth0", false).wait_ms(ms_before).connect();
        stream.drop_on(SYN, "NO_TX_TARGET", NODE, Some(device(3, "cni0")));
        let found = stream.gives_up().verdicts().remove(0);
        (found.verdict.summary.starts_with("eth0 in "), found.culprit.is_some())
    };
    assert_eq!(blamed(100), (true, true));
    assert_eq!(blamed(60_000), (false, false), "it may be another link of the pod");
}

/// A port that neither learns nor floods is up.
#[test]
fn a_bridge_with_the_pods_link_up_is_not_reported_without_ports() {
    let reported = |up: bool| {
        let mut stream = Stream::new();
        stream.connect().drop_on(SYN, "NO_TX_TARGET", NODE, Some(device(3, "cni0"))).wait_ms(200);
        stream.inspection(|reading| reading.links = if up { vec![eth0(true, true)] } else { vec![] });
        let verdict = stream.gives_up().verdict();
        assert_eq!(verdict.cause.name(), "pod_link_down");
        format!("{} {}", verdict.summary, verdict.remediation)
    };
    assert_has(&reported(true), &["has no port that takes it", "learning on flood on", "bridge -d link show"]);
    assert_has(&reported(false), &["has no port that is up"]);
}

/// The bridge is up already. A mark set in the table mangle chose a route over another bridge.
#[test]
fn a_bridge_with_other_addresses_is_no_link_of_the_pod() {
    let noted = |addr: &str| {
        let mut stream = Stream::new();
        let link = LinkState { prefixes: vec![24], ..link(3, "br0", &[addr]) };
        stream.node_links(vec![link]).http_readiness();
        stream.connect().drop_on(SYN, "NO_TX_TARGET", NODE, Some(device(3, "br0"))).gives_up().verdict()
    };
    let (own, other) = (noted("10.88.0.1"), noted("10.89.0.1"));
    assert_eq!((own.cause.name(), other.cause.name()), ("pod_link_down", "unexplained"));
    assert_has(&own.remediation, &["Attach the pod's link to br0 again", "ip link show master br0"]);
    assert_has(&other.summary, &["that device has other addresses"]);
    assert_has(&other.remediation, &["ip route get 10.88.0.2 from 10.88.0.1"]);
}

/// Found on a node where the pod's neighbour entry for the node was wrong.
#[test]
fn an_answer_to_an_unknown_link_layer_address_is_not_link_down() {
    let mut stream = Stream::new().connect().drop_on(SYN_ACK, "NO_TX_TARGET", NODE, Some(device(3, "v3"))).clone();
    assert_eq!(stream.gives_up().causes(), ["unexplained"]);
}

/// The pod is behind br1, which a veth joins with cni0.
#[test]
fn the_port_to_a_second_bridge_is_named_if_it_is_down() {
    let verdict = |down: u32, dropped: bool| {
        let port = |ifindex, name, master, peer| LinkState {
            up: ifindex != down,
            master: Some(master),
            peer_ifindex: Some(peer),
            ..link(ifindex, name, &[])
        };
        let mut stream = Stream::new();
        // In the namespace of the pod behind veth9, 8 is another link.
        let others = [port(8, "eth1", 6, 99), port(9, "veth9", 3, 8)];
        let ports = [port(4, "j1", 6, 5), port(5, "j0", 3, 4), port(7, "veth7", 6, 2)];
        let ports = others.into_iter().chain(ports);
        stream.node_links([cni0(true), link(6, "br1", &[])].into_iter().chain(ports).collect());
        stream.connect();
        if dropped {
            stream.drop_on(SYN, "NO_TX_TARGET", NODE, Some(device(3, "cni0")));
        }
        stream.wait_ms(200).inspection(|it| {
            it.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, true) }];
            it.neighbour = (!dropped).then(|| NeighbourState { ifindex: 3, ..neighbour("incomplete") });
        });
        stream.gives_up().verdict()
    };
    for (ifindex, name) in [(5, "j0"), (4, "j1")] {
        for dropped in [true, false] {
            let down = verdict(ifindex, dropped);
            assert_starts(&down.summary, &format!("{name} on the node is down: "));
            assert_ends(&down.remediation, &format!(": ip link set {name} up"));
        }
    }
    assert_starts(&verdict(0, true).summary, "cni0 on the node has no port that takes it");
    assert_eq!(verdict(0, false).cause.name(), "neighbour_failure");
}

/// The bridge floods the SYN to its other ports.
#[test]
fn a_link_that_is_not_attached_to_its_bridge_is_named() {
    let reported = |detached: bool, len: u8, own: &[&str]| {
        let mut stream = Stream::new();
        stream.node_links(vec![cni0(true), link(7, "veth7", own)]).connect().drop(SYN, "OTHERHOST", Netns(900));
        stream.wait_ms(200).inspection(|reading| {
            reading.stray_route = Some(StrayRoute { detached, ..stray("cni0", "veth7", 254) });
            reading.links = vec![LinkState { prefixes: vec![len], ..eth0(true, true) }];
        });
        stream.gives_up().verdict()
    };
    let verdict = reported(true, 24, &["fe80::1"]);
    assert_eq!((verdict.cause.name(), verdict.confidence), ("pod_link_down", Confidence::Likely));
    assert_has(&verdict.summary, &["veth7 on the node, behind which the pod is, is not attached to cni0"]);
    assert_ends(&verdict.remediation, "ip link set veth7 master cni0 up");
    let others = [(false, 24, &["fe80::1"] as &[_]), (true, 32, &[]), (true, 24, &["10.88.0.3"])];
    for (detached, len, own) in others {
        assert_eq!(reported(detached, len, own).cause.name(), "unexplained", "{detached} {len} {own:?}");
    }
}

/// A port that was moved: the other bridge may be joined to the first one, so only a port that left it counts.
#[test]
fn a_link_that_left_its_bridge_is_named_with_the_time() {
    let reported = |before: Option<u32>, now: Option<u32>, reached: bool| {
        let port = |master| vec![cni0(true), link(4, "br1", &[]), LinkState { master, ..link(7, "veth7", &[]) }];
        let mut stream = Stream::new();
        stream.node_links(port(before)).wait_ms(50).node_links(port(now)).wait_ms(9_000);
        if reached {
            stream.connect().established().answers(200).wait_ms(1_000).again(8);
        }
        stream.connect().wait_ms(200).inspection(|reading| {
            let detached = now.is_none();
            reading.stray_route = Some(StrayRoute { detached, pod_bridge: now, ..stray("cni0", "veth7", 254) });
            reading.links = vec![LinkState { prefixes: vec![24], ..eth0(true, true) }];
        });
        let (before, flow) = (stream.gives_up().settles().last_verdict(), stream.flow());
        // The port is back, and the SYN that had waited for the link-layer address leaves. Its answer comes too late.
        stream.wait_ms(50).again(9).connect().established().answers(200).back_to(if reached { 8 } else { 7 });
        stream.reset_sent_on(flow, SYN_ACK, true, None).last_reset_sent().netns = Some(NODE);
        assert_eq!(stream.settles().last_verdict(), before);
        before
    };
    let moved = reported(Some(3), Some(4), false);
    assert_eq!((moved.cause.name(), moved.confidence), ("pod_link_down", Confidence::Likely));
    assert_has(
        &moved.summary,
        &["is not attached to cni0", "it left cni0 9 s before the attempt, and is a port of br1 now"],
    );
    assert_has(&moved.evidence[0].text, &["veth7 has left cni0"]);
    assert_ends(&moved.remediation, "ip link set veth7 master cni0 up");
    assert_ends(&reported(Some(3), None, false).summary, "; it left cni0 9 s before the attempt");
    // A veth joins the bridges, and the route leads to the other one.
    let joined = reported(Some(4), None, false);
    assert_has(&joined.summary, &["is not attached to br1", "; it left br1 9 s before the attempt"]);
    assert_has(&joined.evidence[1].text, &["is not attached to br1, and the route to 10.88.0.2 leads to cni0"]);
    assert_ends(&joined.remediation, "ip link set veth7 master br1 up");
    assert_lacks(&reported(None, None, false).summary, &["it left"]);
    for (before, now, reached) in [(Some(4), Some(4), false), (None, Some(4), false), (Some(3), Some(4), true)] {
        assert_eq!(reported(before, now, reached).cause.name(), "unexplained", "{before:?} {now:?} {reached}");
    }
}

/// The target's answer is held, and the node's end of its link leaves the bridge at the end of the wait.
fn leaves_while_it_waits(before: impl FnOnce(&mut Stream)) -> Verdict {
    let port = |master| vec![cni0(true), LinkState { master, ..link(7, "veth7", &[]) }];
    let mut stream = Stream::new();
    stream.node_links(port(Some(3))).http_readiness().connect().established().wait_ms(300);
    before(&mut stream);
    stream.wait_ms(400).inspection(|reading| {
        let connection = Some(ServedConnection { unacknowledged: Some(42), ..served(0, true) });
        reading.serving = Some(Box::new(Serving { connection, ..Serving::default() }));
        reading.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, true) }];
    });
    stream.wait_ms(100).node_links(port(None)).wait_ms(200).closes((100, 101, 0)).settles().last_verdict()
}

#[test]
fn a_port_that_leaves_its_bridge_while_the_prober_waits_is_named() {
    let left = leaves_while_it_waits(|_| ());
    assert_eq!((left.cause.name(), left.confidence), ("pod_link_down", Confidence::Likely));
    assert_has(&left.summary, &["veth7 on the node, behind which the pod is, left cni0 while "]);
    let again = leaves_while_it_waits(|stream| _ = stream.sent_again(42, true));
    assert_ne!(again.cause.name(), "pod_link_down", "the answer was lost before");
}

#[test]
fn a_port_that_leaves_after_a_firewall_dropped_the_answer_is_no_cause() {
    let dropped = leaves_while_it_waits(|stream| {
        stream.drop_with(TcpFlags(0x18), NODE, |drop| {
            (drop.reason, drop.location) = (Some("NETFILTER_DROP".into()), Some("nft_do_chain".into()));
            drop.flow = drop.flow.reversed();
        });
    });
    assert_ne!(dropped.cause.name(), "pod_link_down", "{}", dropped.summary);
}
