use tracer_core::testing::*;

pub(super) fn eth0(up: bool, running: bool) -> LinkState {
    LinkState { up, running: Some(running), ..link(2, "eth0", &["10.88.0.2"]) }
}

/// The causes, if an inspection after these events finds the target in this namespace, with this link.
fn causes_with(link: LinkState, begin: impl FnOnce(&mut Stream), netns: Netns) -> Vec<&'static str> {
    let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
    begin(&mut stream);
    stream.wait_ms(200).inspection(|reading| {
        reading.netns = Some(netns);
        reading.links = vec![link];
    });
    stream.gives_up().causes()
}

/// Before 5.17 a drop has no reason, and only its place shows that the SYN got further than to the link.
#[test]
fn a_syn_that_was_dropped_above_the_link_is_not_lost_on_it() {
    let found = |place: &str| {
        let dropped = |stream: &mut Stream| {
            stream.drop_with(SYN, POD, |drop| (drop.reason, drop.location) = (None, Some(place.into())));
        };
        causes_with(eth0(false, false), dropped, POD).contains(&"pod_link_down")
    };
    assert!(found("kfree_skb_list"), "the queue of a device that is down");
    for place in ["ip_rcv_finish_core.isra.0", "tcp_v4_rcv", "ip_error", "__netif_receive_skb_core"] {
        assert!(!found(place), "{place}");
    }
}

/// Found on 5.10: the link went away a moment after the attempt, with the SYN that waited for the link-layer address.
#[test]
fn a_drop_on_a_device_that_went_down_after_the_end_decides_nothing() {
    let down = Device { up: false, ..device(7, "up3") };
    let mut stream = Stream::new().connect().drop(SYN, "NEIGH_FAILED", NODE).clone();
    stream.state(TcpState::SynSent, TcpState::Close, libc::EHOSTUNREACH, (0, 0, 0));
    assert_eq!(stream.drop_on(SYN, "NEIGH_DEAD", NODE, Some(down)).settles().causes(), ["neighbour_failure"]);
}

/// Calico names a link by its pod: that of a StatefulSet's next pod has the name of the one that a plugin set down.
#[test]
fn who_set_an_older_link_of_that_name_down_is_no_culprit() {
    let blamed = |ifindex| {
        let down = Device { up: false, ..device(ifindex, "veth7") };
        let mut stream = Stream::new().link_set(NODE, 7, "veth7", false).wait_ms(5).connect().clone();
        stream.drop_on(SYN, "NOT_SPECIFIED", NODE, Some(down));
        assert_eq!(stream.decided(), ("pod_link_down", Confidence::Proven));
        stream.verdicts().remove(0).culprit.is_some()
    };
    assert_eq!((blamed(7), blamed(9)), (true, false));
}

#[test]
fn a_pod_is_not_gone_if_somebody_answers_for_its_address() {
    let gone = |state: &str, ambiguous: bool| {
        let mut stream = Stream::new();
        stream.http_readiness().connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.ambiguous = ambiguous;
            reading.neighbour = Some(neighbour(state));
        });
        stream.gives_up().causes()
    };
    assert_eq!(gone("failed", false), ["pod_link_down"]);
    assert_eq!(gone("reachable", false), ["unexplained"]);
    assert_eq!(gone("failed", true), ["neighbour_failure"], "two namespaces have it");
}

/// Seen beside a kubelet: `ip link del eth0` in the pod. The neighbour entry stays reachable for up to 45 s.
#[test]
fn a_pod_that_has_lost_its_link_does_not_answer() {
    let decided = |lost: bool, confirmed_ms_ago: Option<u64>| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        if lost {
            stream.link_set(POD, 2, "eth0", false);
        }
        stream.wait_ms(5_000).connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(NeighbourState { confirmed_ms_ago, ..neighbour("reachable") });
        });
        stream.gives_up().verdict()
    };
    for confirmed in [None, Some(8_000)] {
        let verdict = decided(true, confirmed);
        assert_eq!((verdict.cause.name(), verdict.confidence), ("pod_link_down", Confidence::Likely));
        assert_has(&verdict.summary, &["eth0", "is gone or down, set down by "]);
        assert_has(&verdict.remediation, &["Delete the pod", "then find out why"]);
    }
    assert_eq!(decided(true, Some(100)).cause.name(), "unexplained", "somebody answered since");
    assert_eq!(decided(false, Some(8_000)).cause.name(), "unexplained", "its link is there");
}

/// Each namespace has `lo`: without links, the dump of them failed.
#[test]
fn links_that_were_not_read_are_not_gone() {
    let decided = |links: Vec<LinkState>| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        stream.link_set(POD, 2, "eth0", false).wait_ms(5_000).connect().wait_ms(200).inspection(|reading| {
            reading.links = links;
            reading.neighbour = Some(neighbour("incomplete"));
        });
        stream.gives_up().last_verdict().cause.name()
    };
    let lo = LinkState { loopback: true, ..link(1, "lo", &["127.0.0.1"]) };
    assert_eq!(decided(vec![lo]), "pod_link_down");
    assert_ne!(decided(Vec::new()), "pod_link_down");
}

/// Seen on a node: the pod's last process ended. A worker of the kernel removes the namespace with its `lo`, and is no
/// culprit. A worker may also reset a network card that the pod has.
#[test]
fn a_link_that_the_kernel_set_down_has_no_culprit() {
    let decided = |removed: &[(u32, &str)], ends: bool| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        if ends {
            stream.netns_ends(POD);
        }
        for (ifindex, name) in removed {
            stream.link_set_by_kernel(POD, *ifindex, name);
        }
        stream.wait_ms(5_000).connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(neighbour("incomplete"));
        });
        let record = stream.gives_up().verdicts().remove(0);
        let verdict = record.verdict;
        assert_eq!((verdict.cause.name(), verdict.confidence), ("pod_link_down", Confidence::Likely));
        assert!(record.culprit.is_none());
        (verdict.summary, verdict.remediation)
    };
    let (summary, fix) = decided(&[(2, "eth0"), (1, "lo")], false);
    assert_has(&summary, &["the kernel removed the links in pod default/web, as it does when the last process"]);
    assert_starts(&fix, "Find why the pod ended, if it was not deleted");
    let (summary, _) = decided(&[(2, "eth0")], true);
    assert_has(&summary, &["the network namespace of pod default/web is gone"]);
    let (summary, fix) = decided(&[(2, "eth0")], false);
    assert_has(&summary, &["eth0 in pod default/web is gone or down, set down by a worker of the kernel"]);
    assert_has(&fix, &["Delete the pod, so that its sandbox is made again; then find out why the kernel", "dmesg"]);
}

/// The drop shows that the device is down.
#[test]
fn a_network_card_that_its_driver_reset_is_no_removed_namespace() {
    let mut stream = Stream::new().http_readiness().pod_in(POD).link_set_by_kernel(POD, 2, "eth0").clone();
    stream.connect().drop_on(SYN, "NOT_SPECIFIED", POD, Some(Device { up: false, ..device(2, "eth0") }));
    let record = stream.gives_up().verdicts().remove(0);
    assert_has(&record.verdict.summary, &["is down, set down by a worker of the kernel"]);
    assert_has(
        &record.verdict.remediation,
        &["Delete the pod", "the driver of a network card reset it", "ip link set eth0 up"],
    );
    assert!(record.culprit.is_none());
}

/// A VPN of the pod ends, and something takes the pod's address away.
#[test]
fn a_link_without_the_address_is_not_the_one_that_held_it() {
    let decided = |is_read: bool, has_gone: bool| {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        if is_read {
            stream.inspection(|reading| reading.links = vec![eth0(true, true)]);
        }
        if has_gone {
            stream.link_set(POD, 2, "eth0", false);
        }
        stream.wait_ms(100).link_set(POD, 5, "tun0", false);
        stream.wait_ms(5_000).connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(neighbour("reachable"));
        });
        stream.gives_up().verdict().summary
    };
    assert_has(&decided(true, false), &["nothing that was seen decides why"]);
    assert_starts(&decided(true, true), "eth0");
    assert_starts(&decided(false, false), "tun0");
}

/// The kubelet still runs the readiness probe of a pod when its sandbox is gone.
#[test]
fn a_pod_that_was_deleted_does_not_answer() {
    let decided = |deleting: bool, confirmed_ms_ago: Option<u64>| {
        let mut stream = Stream::new().http_readiness().clone();
        if deleting {
            stream.deleting();
        }
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(NeighbourState { confirmed_ms_ago, ..neighbour("stale") });
        });
        stream.gives_up().causes()
    };
    assert_eq!(decided(true, Some(8_000)), ["pod_link_down"]);
    assert_eq!(decided(true, Some(100)), ["unexplained"], "somebody answered");
    assert_eq!(decided(false, Some(8_000)), ["unexplained"]);
    assert_eq!(decided(true, None), ["unexplained"], "an older recording");
}

#[test]
fn flooded_copies_of_a_bridge_do_not_count() {
    let mut stream = Stream::new();
    stream.connect().drop(SYN, "OTHERHOST", POD).wait_ms(200);
    stream.inspection(|reading| reading.links = vec![eth0(false, false)]).gives_up();
    assert_eq!(stream.causes(), ["pod_link_down"]);
}

/// Needs a permanent neighbour entry: without one the packet waits for the neighbour, and never reaches the queue.
#[test]
fn a_drop_by_a_queue_without_carrier_is_link_down() {
    let at = |running| {
        let port = device(7, "veth7");
        let mut stream = Stream::new();
        stream.connect().drop_on(SYN, "QDISC_DROP", NODE, Some(port)).wait_ms(200);
        stream.inspection(|reading| reading.links = vec![eth0(running, running)]).gives_up().causes()
    };
    assert_eq!((at(false), at(true)), (vec!["pod_link_down"], vec!["unexplained"]));
}

/// The answer was dropped after this device, or the link that holds the target's address, had gone down.
#[test]
fn a_link_that_goes_down_before_the_answer_is_the_cause() {
    let decided = |device: Device, running: bool, received: u64| {
        let mut stream = Stream::new().connect().established().wait_ms(200).clone();
        stream.inspection(|reading| reading.links = vec![eth0(true, running)]);
        stream.wait_ms(100).drop_back(TcpFlags(0x18), "QDISC_DROP");
        (stream.last_drop().netns, stream.last_drop().device) = (Some(POD), Some(device));
        stream.wait_ms(700).closes((100, 101, received)).settles().all_decided()
    };
    let on = |up: bool| Device { up, ..device(2, "eth0") };
    assert_eq!(decided(on(false), true, 0), [("pod_link_down", Confidence::Proven)]);
    assert_eq!(decided(on(true), false, 0), [("pod_link_down", Confidence::Likely)], "no carrier");
    assert_eq!(decided(on(true), true, 0), [("unexplained", Confidence::Possible)], "a full queue");
    assert_eq!(decided(on(false), false, 200), [], "it was sent again");
}

/// Seen on a node: the answer leaves no trace if the pod's route has gone with its link.
#[test]
fn no_answer_comes_over_a_link_that_is_down() {
    let decided = |down_at_ms: u64, noticed: bool| {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        let reads = |stream: &mut Stream, up: bool| {
            stream.inspection(|it| it.links = vec![eth0(up, up)]);
        };
        for ms in [200, 500, 800] {
            if noticed && (ms - 200..ms).contains(&down_at_ms) {
                stream.link_set(POD, 2, "eth0", false);
            }
            stream.wait_ms(if ms == 200 { 200 } else { 300 });
            reads(&mut stream, ms < down_at_ms);
        }
        stream.wait_ms(201).closes((100, 101, 0)).settles().all_decided()
    };
    let (found, slow) = (("pod_link_down", Confidence::Likely), ("slow_response", Confidence::Proven));
    assert_eq!((decided(300, true), decided(300, false)), (vec![found], vec![found]));
    assert_eq!(decided(700, false), [slow], "the handler had most of the time");
    assert_eq!(decided(900, false), [slow]);
}

/// nodelocaldns and a node's own address on a device that is down: both are reached over `lo`.
#[test]
fn the_state_of_the_targets_link_decides_and_a_good_link_does_not() {
    let causes = |up, running| causes_with(eth0(up, running), |_| {}, POD);
    assert_eq!((causes(false, false), causes(true, false)), (vec!["pod_link_down"], vec!["pod_link_down"]));
    assert_eq!(causes(true, true), ["unexplained"]);
    assert_eq!(causes_with(eth0(false, false), |_| {}, NODE), ["unexplained"], "a node's own address");
}

/// Seen on 6.18 with a macvlan: its parent was set down and up again, and then lost its carrier.
#[test]
fn who_set_a_link_down_that_is_up_again_is_no_culprit() {
    let record = |since_ms| {
        let veth = LinkState { running: Some(false), peer_ifindex: Some(2), ..link(7, "veth7", &[]) };
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).link_set(NODE, 7, "veth7", false).clone();
        stream.wait_ms(since_ms).node_links(vec![veth]).connect().wait_ms(200);
        stream.inspection(|reading| reading.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, false) }]);
        stream.gives_up().verdicts().remove(0)
    };
    let (later, at_once) = (record(5_000), record(10));
    assert_starts(&later.verdict.summary, "eth0 in ");
    assert!(later.culprit.is_none() && at_once.culprit.is_some());
}

/// The pod's end is up, and has no carrier.
#[test]
fn the_nodes_end_is_named_if_it_is_down() {
    let noted_beside = |set_down: bool, up: bool, other_end: u32| {
        let veth = LinkState { up, peer_ifindex: Some(other_end), ..link(7, "veth7", &[]) };
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
        if set_down {
            stream.link_set(NODE, 7, "veth7", false);
        }
        stream.node_links(vec![veth]).wait_ms(200);
        stream.inspection(|reading| reading.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, false) }]);
        stream.gives_up().verdict()
    };
    let noted = |set_down, up| noted_beside(set_down, up, 2);
    let set = noted(true, true);
    assert_starts(&set.summary, "veth7 on the node is down, set down by ");
    let unknown = noted(false, true);
    assert_starts(&unknown.summary, "eth0 in ");
    assert_starts(&unknown.remediation, "Set the other end of eth0 up: ");
    assert_ends(&unknown.remediation, " ip link show eth0");
    assert_starts(&noted_beside(false, false, 9).summary, "eth0 in ");
    let verdict = noted(false, false);
    assert_starts(&verdict.summary, "veth7 on the node is down: ");
    assert_ends(&verdict.remediation, ": ip link set veth7 up");
    assert_ends(&verdict.evidence[0].text, "no carrier: its other end is down");
}

/// Calico and the AWS VPC CNI have no bridge: the pod's route goes with the node's end of its link.
#[test]
fn a_pods_own_route_is_given_back_with_the_nodes_end() {
    let fix = |master: Option<u32>, prefix: u8, other: &str| {
        let veth = LinkState { up: false, peer_ifindex: Some(2), master, ..link(7, "cali7", &["fe80::1"]) };
        let mut stream = Stream::new().connect().clone();
        stream.node_links(vec![veth, link(8, other, &["10.88.0.1"])]).wait_ms(200);
        let prefixes = vec![prefix];
        stream.inspection(|it| {
            it.links = vec![LinkState { peer_ifindex: Some(7), prefixes, ..eth0(true, false) }];
        });
        stream.gives_up().verdict().remediation
    };
    let routed = fix(None, 32, "eth0");
    assert_has(&routed.text, &["Set cali7 up on the node, and restore the pod's own route (the last command)"]);
    assert_ends(&routed, ": ip link set cali7 up; ip route replace 10.88.0.2 dev cali7");
    for (master, prefix, other) in
        [(Some(3), 32, "eth0"), (None, 24, "eth0"), (None, 32, "cilium_host"), (None, 32, "ovs-system")]
    {
        assert_ends(&fix(master, prefix, other), ": ip link set cali7 up");
    }
}

/// The SYN was dropped at another link of the node: one of another pod, or one that only has the number of the other
/// end. The AWS VPC CNI keeps the route of a link named so in a table of its VLAN.
#[test]
fn a_pods_own_route_is_given_to_no_other_link() {
    let fix = |(ifindex, name): (u32, &str), peer: Option<u32>| {
        let end = LinkState { up: false, peer_ifindex: peer, ..link(ifindex, name, &["fe80::1"]) };
        let mut stream = Stream::new().connect().clone();
        stream.node_links(vec![end, link(8, "eth0", &["10.88.0.1"])]).wait_ms(200);
        stream.inspection(|it| {
            it.links = vec![LinkState { peer_ifindex: Some(7), prefixes: vec![32], ..eth0(true, true) }];
        });
        let down = Device { up: false, ..device(ifindex, name) };
        stream.drop_on(SYN, "QDISC_DROP", NODE, Some(down)).gives_up().verdict().remediation
    };
    assert_ends(&fix((7, "cali7"), Some(2)), ": ip link set cali7 up; ip route replace 10.88.0.2 dev cali7");
    for (end, peer) in
        [((9, "cali9"), Some(2)), ((7, "cali7"), Some(9)), ((7, "dummy7"), None), ((7, "vlan7"), Some(2))]
    {
        assert_ends(&fix(end, peer), &format!(": ip link set {} up", end.1));
    }
}

/// A macvlan of the node's eth1 has no carrier while that is down. The device under an inner VLAN is the pod's own, and
/// its number says nothing about the node's links.
#[test]
fn the_nodes_parent_of_a_macvlan_is_named_if_it_is_down() {
    let summary = |kind: &str, is_of_prober: bool| {
        let parent = ParentLink { kind: kind.to_owned(), ifindex: 7, is_of_prober };
        let eth1 = LinkState { up: false, ..link(7, "eth1", &[]) };
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).connect().clone();
        stream.node_links(vec![eth1]).wait_ms(200).inspection(|reading| {
            reading.links = vec![LinkState { parent: Some(parent), kind: Some(kind.to_owned()), ..eth0(true, false) }];
        });
        stream.gives_up().verdict().summary
    };
    assert_starts(&summary("macvlan", true), "eth1 on the node is down: ");
    let inner = summary("macvlan", false);
    assert_starts(&inner, "eth0 in ");
    assert_has(&inner, &["has no carrier"]);
    assert_lacks(&inner, &["eth1", "other end"]);
}

/// Seen on a node with a bridge: only a veth has another end.
#[test]
fn a_link_without_another_end_is_named_as_what_it_is() {
    let reported = |kind: Option<&str>| {
        let link = LinkState { kind: kind.map(str::to_owned), ..eth0(true, false) };
        let mut stream = Stream::new().connect().wait_ms(200).clone();
        stream.inspection(|reading| reading.links = vec![link]);
        let verdict = stream.gives_up().verdict();
        assert_lacks(&format!("{} {}", verdict.summary, verdict.remediation), &["other end", "@if"]);
        verdict
    };
    let words = [(Some("bridge"), "a bridge, and none of its ports is up"), (Some("bond"), "a bond, and none of its")];
    for (kind, words) in words {
        let verdict = reported(kind);
        assert_has(&verdict.summary, &[words]);
        assert_ends(&verdict.remediation, " ip link show master eth0");
    }
    for kind in [Some("tun"), None] {
        assert_has(&reported(kind).summary, &["has no carrier: 10.88.0.2:8080 cannot be reached"]);
    }
}

/// Found by the property tests: events of its handshake and its end were lost, and the target was inspected for another
/// attempt.
#[test]
fn an_attempt_that_may_be_over_is_not_judged_by_an_inspection() {
    let down = |reading: &mut Inspection| reading.links = vec![eth0(false, false)];
    let mut over = Stream::new();
    assert_eq!(over.connect().gives_up().wait_ms(500).inspection(down).causes(), ["unexplained"]);
    let mut lossy = Stream::new();
    assert!(lossy.connect().lost(2).wait_ms(200).inspection(down).causes().is_empty());
    assert_eq!(lossy.gives_up().causes(), ["pod_link_down"], "its end was observed: it did wait");
}

#[test]
fn a_syn_that_met_ipvs_or_a_listener_was_not_lost_at_the_link() {
    let down = || eth0(false, false);
    assert_eq!(causes_with(down(), |stream| _ = stream.ipvs(SYN, IpvsOp::Translate), POD), ["unexplained"]);
    let full = |queue| causes_with(down(), |stream| _ = stream.queue_full(queue), POD);
    assert_eq!(full(ListenQueue::Accept), ["accept_queue_overflow"]);
    assert_eq!(full(ListenQueue::HalfOpen), ["syn_backlog_overflow"]);
}

/// The rule is removed, and the link is set down, before the next SYN.
#[test]
fn a_rule_that_dropped_an_earlier_syn_does_not_hide_the_link() {
    let reported = |again: bool| {
        let mut stream = Stream::new().connect().filtered(SYN, POD).wait_ms(1_000).clone();
        if again {
            stream.syn_again();
        }
        stream.wait_ms(200).inspection(|reading| reading.links = vec![eth0(false, false)]).gives_up().causes().pop()
    };
    assert_eq!((reported(true), reported(false)), (Some("pod_link_down"), Some("firewall_drop")));
}

const IPV6: &str = "fd00::2";

/// The links that the verdicts name if eth0 of the pod has lost its IPv6 address. The pod has the fallback devices of
/// every pod of a node that uses IPIP.
fn named_links(begin: impl FnOnce(&mut Stream), up: bool) -> Vec<String> {
    let down = |ifindex, name| LinkState { up: false, ..link(ifindex, name, &[]) };
    let mut stream = Stream::to(&format!("[{IPV6}]:8080"));
    begin(&mut stream);
    stream.connect().wait_ms(200).inspection(|reading| {
        reading.links = vec![down(2, "tunl0"), down(3, "ip6tnl0"), LinkState { up, ..down(4, "eth0") }];
    });
    stream.gives_up();
    let noted = stream.verdicts().into_iter().map(|it| it.verdict);
    noted
        .map(|it| it.summary.split(' ').next().filter(|_| it.cause.name() == "pod_link_down").unwrap_or("-").into())
        .collect()
}

#[test]
fn an_ipv6_address_is_lost_with_the_link_that_held_it() {
    let held = |stream: &mut Stream| {
        stream.inspection(|reading| reading.links = vec![link(4, "", &[IPV6])]);
    };
    assert_eq!(named_links(held, false), ["eth0"]);
    assert_eq!(named_links(held, true), ["eth0"], "the address was removed");
}

/// tracer started when the link was down already.
#[test]
fn an_ipv6_address_is_lost_with_the_only_link() {
    let mut stream = Stream::to(&format!("[{IPV6}]:8080"));
    stream.connect().wait_ms(200).inspection(|reading| reading.links = vec![eth0(false, false)]);
    assert_eq!(stream.gives_up().causes(), ["pod_link_down"]);
}

#[test]
fn an_ipv6_address_is_lost_with_the_link_that_was_set_down() {
    assert_eq!(named_links(|_| {}, false), ["-"], "any of three links");
    assert_eq!(named_links(|stream| _ = stream.link_set(POD, 4, "eth0", false), false), ["eth0"]);
    let both = |stream: &mut Stream| _ = stream.link_set(POD, 4, "eth0", false).link_set(POD, 4, "eth0", true);
    assert_eq!(named_links(both, false), ["-"]);
}

#[test]
fn a_pod_with_a_known_namespace_is_not_gone() {
    let reported = |begin: &dyn Fn(&mut Stream)| {
        let mut stream = Stream::new();
        let addrs = vec![address("10.88.0.2")];
        let pod = Pod { name: Some("web".into()), addrs, netns: Some(POD), ..Pod::default() };
        stream.push(ObservationKind::Pods(Pods { pods: vec![pod] }));
        begin(&mut stream);
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(neighbour("incomplete"));
        });
        stream.gives_up().causes()
    };
    assert_eq!(reported(&|_| {}), ["neighbour_failure"]);
    assert_eq!(reported(&|stream| _ = stream.netns_ends(POD)), ["pod_link_down"]);
    let again = |stream: &mut Stream| _ = stream.netns_ends(POD).netns_made(POD);
    assert_eq!(reported(&again), ["pod_link_down"], "its number may be another pod's");
    assert_eq!(reported(&|stream| (again(stream), _ = stream.pod_in(POD)).1), ["neighbour_failure"]);
}

/// The last reading of the link before the connect has the old flag.
#[test]
fn a_link_that_was_just_set_down_counts_while_its_flag_is_on() {
    let reported = |later_ms: u64| {
        let bridge = LinkState { prefixes: vec![24], ..link(3, "cni0", &["10.88.0.1"]) };
        let mut stream = Stream::new().link_set(NODE, 3, "cni0", false).clone();
        stream.node_links(vec![bridge]).wait_ms(later_ms).connect_failed(libc::ENETUNREACH).causes()
    };
    assert_eq!(reported(4), ["pod_link_down"]);
    assert_eq!(reported(600), ["route_unreachable"], "it was set up again, unobserved");
}

/// The node's cni0, with the pods' subnet.
pub(super) fn cni0(up: bool) -> LinkState {
    LinkState { up, prefixes: vec![24], ..link(3, "cni0", &["10.88.0.1"]) }
}

/// The kernel removes the IPv6 addresses of a link that goes down.
#[test]
fn the_lost_addresses_of_a_bridge_are_given_back() {
    let bridge = |up: bool, addrs: &[&str]| LinkState { up, prefixes: vec![64; addrs.len()], ..link(3, "cni0", addrs) };
    let fix = |read_again: bool| {
        let mut stream = Stream::to("[fd00:10:88::2]:8080");
        stream.node_links(vec![bridge(true, &["fe80::1", "fd00:10:88::1"])]).link_set(NODE, 3, "cni0", false);
        if read_again {
            stream.wait_ms(1_000).node_links(vec![bridge(false, &[])]);
        }
        stream.wait_ms(5).connect_failed(libc::ENETUNREACH).verdict().remediation
    };
    for read_again in [false, true] {
        assert_ends(&fix(read_again), ": ip link set cni0 up; ip addr replace fd00:10:88::1/64 dev cni0");
    }
}

/// The default route takes the packets for the pods.
#[test]
fn a_bridge_that_is_down_counts_beside_a_default_route() {
    let reported = |pod_bridge: Option<u32>, up: bool| {
        let mut stream = Stream::new();
        stream.node_links(vec![cni0(up)]).connect().wait_ms(200).inspection(|reading| {
            reading.stray_route = Some(StrayRoute { pod_bridge, ..stray("eth0", "veth7", 254) });
        });
        stream.gives_up().verdict()
    };
    let verdict = reported(Some(3), false);
    assert_eq!((verdict.cause.name(), verdict.confidence), ("pod_link_down", Confidence::Likely));
    assert_has(&verdict.summary, &["cni0 on the node is down: ", "; the route went with it"]);
    for (pod_bridge, up) in [(Some(3), true), (Some(4), false), (None, false)] {
        assert_eq!(reported(pod_bridge, up).cause.name(), "unexplained", "{pod_bridge:?} {up}");
    }
}

/// Its answer ends the attempt before an inspection.
#[test]
fn a_router_that_refuses_does_not_hide_the_bridge_that_is_down() {
    let cause = |links: Vec<LinkState>, listed: bool| {
        let mut stream = Stream::new();
        if listed {
            stream.http_readiness();
        }
        stream.node_links(links).connect().icmp(3, 0);
        stream.state(TcpState::SynSent, TcpState::Close, libc::ENETUNREACH, (0, 0, 0)).settles().causes()
    };
    assert_eq!(cause(vec![cni0(false)], true), ["pod_link_down"]);
    assert_eq!(cause(vec![cni0(false)], false), ["route_unreachable"], "it may be behind that router");
    let wider = LinkState { up: false, prefixes: vec![16], ..link(4, "docker0", &["10.88.0.254"]) };
    assert_eq!(cause(vec![cni0(true), wider], true), ["route_unreachable"], "the route leads to cni0");
}

/// cni0 has lost its IPv6 address when the links are read again.
#[test]
fn a_bridge_that_lost_its_ipv6_subnet_is_named() {
    let reported = |held: bool, later: bool| {
        let cni0 =
            |up: bool, addrs: &[&str]| LinkState { up, prefixes: vec![64; addrs.len()], ..link(3, "cni0", addrs) };
        let mut stream = Stream::to(&format!("[{IPV6}]:8080"));
        stream.node_links(vec![cni0(true, if held { &["fd00::1"] } else { &[] })]);
        stream.link_set(NODE, 3, "cni0", false).wait_ms(20).node_links(vec![cni0(false, &[])]).wait_ms(1_000);
        if later {
            stream.link_set(NODE, 3, "cni0", true).node_links(vec![cni0(true, &[])]);
        }
        stream.connect_failed(libc::ENETUNREACH).causes()
    };
    assert_eq!(reported(true, false), ["pod_link_down"]);
    assert_eq!(reported(false, false), ["route_unreachable"], "it never had that subnet");
    assert_eq!(reported(true, true), ["route_unreachable"], "it is up again, without the address");
}

/// That no namespace has the address proves nothing then. That the kernel gave up on the neighbour was seen.
#[test]
fn after_a_loss_what_was_seen_goes_before_a_conclusion_from_silence() {
    let decided = |happens: fn(&mut Stream)| {
        let mut stream = Stream::new();
        happens(stream.http_readiness().connect());
        stream.wait_ms(200).inspection(|reading| {
            reading.netns = None;
            reading.neighbour = Some(neighbour("failed"));
        });
        stream.drop_on(SYN, "NEIGH_FAILED", NODE, None).gives_up().last_decided()
    };
    assert_eq!(decided(|_| ()), ("pod_link_down", Confidence::Likely));
    assert_eq!(decided(|stream| _ = stream.lost(1)), ("neighbour_failure", Confidence::Possible));
    let held = decided(|stream| _ = stream.held());
    assert_eq!(held, ("pod_link_down", Confidence::Possible), "one more drop, like those that were seen");
}

/// Seen beside a real kubelet: a SYN to a failed entry ends at once, so no inspection comes in time.
#[test]
fn a_link_that_an_earlier_inspection_found_is_down_still() {
    let veth = |up| LinkState { up, peer_ifindex: Some(2), ..link(7, "veth7", &[]) };
    let second = |up: bool| {
        let mut stream = Stream::new().http_readiness().clone();
        stream.node_links(vec![veth(false)]).connect().wait_ms(200);
        stream.inspection(|it| it.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, false) }]).gives_up();
        stream.wait_ms(3_000).node_links(vec![veth(up)]).again(8).connect();
        // The node reports it to its own socket, too.
        stream.drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(3, "cni0"))).icmp_in(NODE, 3, 1).gives_up().last_verdict()
    };
    let down = second(false);
    assert_eq!((down.cause, down.confidence), (Cause::PodLinkDown, Confidence::Likely));
    assert_starts(&down.summary, "veth7 on the node is down");
    assert_eq!(second(true).cause, Cause::NeighbourFailure);
}

/// Not every kernel shows that a link was set up again. The node's end shows it.
#[test]
fn a_link_that_was_set_up_again_unobserved_is_no_cause() {
    let veth = |up, running| LinkState { up, running: Some(running), peer_ifindex: Some(2), ..link(7, "veth7", &[]) };
    let second = |(netns, ifindex): (Netns, u32), (up, running), ago_ms| {
        let mut stream =
            Stream::new().http_readiness().node_links(vec![veth(true, true)]).connect().wait_ms(200).clone();
        stream.inspection(|it| it.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, true) }]);
        stream.established().answers(200).wait_ms(5_000).link_set(netns, ifindex, "eth0", false);
        stream.wait_ms(5).node_links(vec![veth(up, running)]).wait_ms(ago_ms).again(8).connect();
        let drop = stream.drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(3, "cni0"))).icmp_in(NODE, 3, 1);
        drop.gives_up().last_verdict().cause.name()
    };
    let (pods, nodes) = ((POD, 2), (NODE, 7));
    assert_eq!(second(pods, (true, false), 6_000), "pod_link_down");
    assert_eq!(second((POD, 9), (true, false), 6_000), "neighbour_failure", "another link");
    assert_eq!(second(nodes, (false, false), 6_000), "pod_link_down");
    for of in [pods, nodes] {
        assert_eq!(second(of, (true, true), 6_000), "neighbour_failure", "{of:?}");
        assert_eq!(second(of, (true, true), 100), "pod_link_down", "its flag may still be on: {of:?}");
    }
    // The CNI's DEL for a pod that ends comes after the failure.
    for (netns, ifindex) in [pods, nodes] {
        let mut later =
            Stream::new().http_readiness().node_links(vec![veth(true, true)]).connect().wait_ms(200).clone();
        later.inspection(|it| it.links = vec![LinkState { peer_ifindex: Some(7), ..eth0(true, true) }]);
        later.established().answers(200).wait_ms(5_000).again(8).connect();
        later.drop_on(SYN, "NEIGH_FAILED", NODE, Some(device(3, "cni0"))).wait_ms(300);
        later.link_set(netns, ifindex, "eth0", false).icmp_in(NODE, 3, 1);
        assert_eq!(later.gives_up().last_verdict().cause.name(), "neighbour_failure", "{netns:?}");
    }
}

/// Seen on 6.18: net1 was removed, and later IPv6 was switched off on eth0 (`disable_ipv6`).
#[test]
fn another_link_of_the_pod_that_went_before_is_no_cause() {
    let decided = |is_read: bool, has_links: bool| {
        let mut stream = Stream::to("[fd00:10:88::2]:8080").http_readiness().clone();
        let pod = &mut stream.last_pods().pods[0];
        (pod.netns, pod.addrs) = (Some(POD), vec![address("10.88.0.2"), address("fd00:10:88::2")]);
        if is_read {
            stream.again_to(6, "10.88.0.2:8080").connect().inspection(|it| it.links = vec![eth0(true, true)]);
            stream.established().answers(200).again_to(7, "[fd00:10:88::2]:8080");
        }
        stream.wait_ms(1_000).link_set(POD, 4, "net1", false).wait_ms(1_000).connect().wait_ms(200);
        stream.inspection(|it| {
            (it.netns, it.links) = if has_links { (Some(POD), vec![eth0(true, true)]) } else { (None, vec![]) };
            it.neighbour = Some(NeighbourState { addr: address("fd00:10:88::2"), ..neighbour("incomplete") });
        });
        stream.gives_up().last_verdict().cause.name()
    };
    assert_eq!((decided(true, false), decided(false, true)), ("neighbour_failure", "neighbour_failure"));
    assert_eq!(decided(false, false), "pod_link_down", "its links are not known");
}
