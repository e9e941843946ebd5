//! Between the node and the pod: links, routes, neighbours, the reverse-path filter, the MTU.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::thread;

use anyhow::{Result, bail};
use tracer_model::record::Cause;

use super::{Fixture, Need, Scenario};
use crate::check::Attempt;
use crate::ip::{Mac, Part, Route, RouteType, rule_from, rule_mark};
use crate::net::Netns;
use crate::node::link::wait_until_duplicate;
use crate::node::{BRIDGE, BRIDGE6, Family, NODE, OUTSIDE};
use crate::options::is_emulated;
use crate::pods::{HOST, HTTP, PATIENT};
use crate::probe::{Ending, Kind, ProbeRequest};
use crate::prober::Prober;

const NODE_MAC: Mac = [2, 0, 0, 0, 0, 1];
const LINK: Option<Cause> = Some(Cause::PodLinkDown);
const ROUTE: Option<Cause> = Some(Cause::RouteUnreachable);
const PREREQUISITE: Option<Cause> = Some(Cause::MissingNodePrerequisite);
const NEIGHBOUR: Option<Cause> = Some(Cause::NeighbourFailure);
const ISOLATED: Option<Cause> = Some(Cause::HostIsolatedLink);
const RP_FILTER: Option<Cause> = Some(Cause::RpFilterDrop);
const MTU: Option<Cause> = Some(Cause::MtuBlackhole);
const UNEXPLAINED: Option<Cause> = Some(Cause::Unexplained);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("pod_link_down_eth0", LINK, |s| link_down(s, "eth0")).on_every_kernel(),
    // A link that goes down loses its IPv6 addresses: tracer must find the pod of the address before that.
    Scenario::new("pod_link_down_eth0_v6", LINK, |s| link_down(s, "eth0")).v6().needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_veth", LINK, |s| link_down(s, "veth")),
    Scenario::new("pod_link_down_eth0_before_answer", LINK, |s| down_before_answer(s, "eth0")),
    Scenario::new("pod_link_down_veth_before_answer", LINK, |s| down_before_answer(s, "veth")),
    Scenario::new("pod_link_down_bridge", LINK, bridge_down).own(),
    Scenario::new("pod_link_down_bridge_v6", LINK, bridge_down).own().v6(),
    Scenario::new("pod_link_down_bridge_default_route", LINK, |s| down_beside_default_route(s, false))
        .own()
        .needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_bridge_default_route_v6", LINK, |s| down_beside_default_route(s, false))
        .own()
        .v6()
        .needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_bridge_router_refuses", LINK, |s| down_beside_default_route(s, true)).own(),
    Scenario::new("pod_link_down_detached", LINK, detached).own().needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_detached_v6", LINK, detached).own().v6().needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_namespace_gone", LINK, namespace_gone).on_every_kernel(),
    Scenario::new("route_unreachable", ROUTE, |s| refusing_route(s, RouteType::Unreachable)).smoke(),
    Scenario::new("route_unreachable_v6", ROUTE, |s| refusing_route(s, RouteType::Unreachable)).v6().on_every_kernel(),
    Scenario::new("route_unreachable_prohibit", ROUTE, |s| refusing_route(s, RouteType::Prohibit)),
    Scenario::new("route_unreachable_blackhole", ROUTE, |s| refusing_route(s, RouteType::BlackHole)),
    Scenario::new("route_unreachable_none", ROUTE, no_route),
    // The timeout of an emulated processor is longer than the three seconds after which the kernel gives the gateway up.
    Scenario::new("route_unreachable_loopback_address", ROUTE, |s| without_loopback_address(s, true))
        .own()
        .needs(&[Need::RealProcessor]),
    Scenario::new("route_unreachable_loopback_address_silent", ROUTE, |s| without_loopback_address(s, false)).own(),
    Scenario::new("unexplained_marked_route", UNEXPLAINED, marked).own().needs(&[Need::Nft]),
    Scenario::new("route_unreachable_no_way_back", ROUTE, |s| no_way_back(s, &Route::to_host(BRIDGE), "0"))
        .needs(&[Need::RealProcessor]),
    Scenario::new("route_unreachable_no_way_back_v6", ROUTE, |s| no_way_back(s, &Route::to_host(BRIDGE6), "0"))
        .v6()
        .needs(&[Need::RealProcessor]),
    // The reverse-path filter of the pod drops the SYN.
    Scenario::new("route_unreachable_no_way_back_strict", ROUTE, |s| no_way_back(s, &Route::to_host(BRIDGE), "1"))
        .needs(&[Need::RealProcessor]),
    Scenario::new("route_unreachable_no_way_back_loose", ROUTE, |s| no_way_back(s, &Route::to_host(BRIDGE), "2"))
        .needs(&[Need::RealProcessor]),
    Scenario::new("route_unreachable_by_router", ROUTE, router_refuses).needs(&[Need::IcmpHook]).on_every_kernel(),
    Scenario::new("route_unreachable_router_no_way_back", ROUTE, router_lacks_way_back).needs(&[Need::IcmpHook]),
    Scenario::new("missing_node_prerequisite", PREREQUISITE, not_forwarding).own().on_every_kernel(),
    Scenario::new("missing_node_prerequisite_v6", PREREQUISITE, not_forwarding).own().v6(),
    Scenario::new("host_isolated_link", ISOLATED, |s| isolated(s, Part::Macvlan)).needs(&[Need::Macvlan]),
    Scenario::new("host_isolated_link_v6", ISOLATED, |s| isolated(s, Part::Macvlan)).v6().needs(&[Need::Macvlan]),
    Scenario::new("host_isolated_link_ipvlan", ISOLATED, |s| isolated(s, Part::Ipvlan)).needs(&[Need::Ipvlan]),
    Scenario::new("host_isolated_link_beside", None, over_own_part).needs(&[Need::Macvlan]),
    Scenario::new("asymmetric_route", Some(Cause::AsymmetricRoute), second_uplink).own(),
    Scenario::new("asymmetric_route_pod", Some(Cause::AsymmetricRoute), |s| second_network(s, "0")).own(),
    Scenario::new("unexplained_stray_route", UNEXPLAINED, stray_route).own(),
    Scenario::new("unexplained_stray_route_idle_bridge", UNEXPLAINED, beside_idle_bridge).own(),
    Scenario::new("neighbour_failure", NEIGHBOUR, deaf).on_every_kernel(),
    Scenario::new("neighbour_failure_v6", NEIGHBOUR, deaf).v6().needs(&[Need::Nft]).on_every_kernel(),
    Scenario::new("neighbour_failure_wrong_entry", NEIGHBOUR, wrong_entry).own(),
    Scenario::new("neighbour_failure_other_pod", NEIGHBOUR, entry_of_other_pod).own(),
    Scenario::new("neighbour_failure_other_pod_v6", NEIGHBOUR, entry_of_other_pod).own().v6(),
    Scenario::new("neighbour_failure_wrong_entry_back", NEIGHBOUR, wrong_entry_back)
        .own()
        .needs(&[Need::RealProcessor]),
    Scenario::new("neighbour_failure_wrong_entry_back_v6", NEIGHBOUR, wrong_entry_back)
        .own()
        .v6()
        .needs(&[Need::RealProcessor]),
    Scenario::new("neighbour_failure_gateway", NEIGHBOUR, wrong_gateway).own(),
    Scenario::new("neighbour_failure_way_back", NEIGHBOUR, |s| gateway_back(s, [169, 254, 1, 1])),
    Scenario::new("neighbour_failure_way_back_v6", NEIGHBOUR, |s| gateway_back(s, [0xfe80, 0, 0, 0, 0, 0, 0, 0x1ee7]))
        .v6(),
    Scenario::new("neighbour_failure_duplicate_v6", NEIGHBOUR, duplicate).v6(),
    Scenario::new("neighbour_failure_own_route_gone", NEIGHBOUR, own_route_gone).own(),
    Scenario::new("neighbour_failure_address_lost", NEIGHBOUR, address_lost).own(),
    Scenario::new("rp_filter_drop", RP_FILTER, asymmetric).own().on_every_kernel(),
    Scenario::new("rp_filter_drop_device", RP_FILTER, asymmetric_to_device).own(),
    // The reverse-path filter of the pod drops the SYN.
    Scenario::new("rp_filter_drop_pod", RP_FILTER, |s| second_network(s, "1")).own(),
    Scenario::new("rp_filter_loose", None, loose).own(),
    Scenario::new("mtu_blackhole", MTU, |s| small_mtu(s, "big", true))
        .needs(&[Need::Nft, Need::IcmpHook])
        .on_every_kernel(),
    Scenario::new("mtu_blackhole_body", MTU, |s| small_mtu(s, "big-after-head", true))
        .needs(&[Need::Nft, Need::IcmpHook]),
    Scenario::new("unexplained_answer_lost", UNEXPLAINED, answer_lost),
    Scenario::new("unexplained_answer_lost_v6", UNEXPLAINED, answer_lost).v6(),
    Scenario::new("mtu_learnt", None, |s| small_mtu(s, "big", false)),
    Scenario::new("mtu_learnt_body", None, |s| small_mtu(s, "big-after-head", false)),
];

/// A rule for a second uplink sends all packets from the node's address over it, even those to pods.
fn second_uplink(fixture: &mut Fixture<'_>) -> Result<()> {
    const TABLE: u8 = 101;
    const PRIORITY: u32 = 32_700;
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, _outside) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| {
        ip.add(&Route::default_via(OUTSIDE).over(&uplink).onlink().in_table(TABLE))?;
        ip.add_rule(&rule_from(BRIDGE.into(), TABLE, PRIORITY))
    })?;
    fixture.mentions(&["ip rule 32700 (from 10.88.0.1 lookup 101)", &uplink]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A second network of the pod takes the route to the node. The pod filters by the way back like this.
fn second_network(fixture: &mut Fixture<'_>, filter: &str) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (_, outside) = fixture.node.uplink()?;
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", filter)])?;
    inside.ip(|ip| {
        ip.veth("net1", "eth1", outside.as_fd())?;
        ip.up("net1")?;
        ip.neighbour(BRIDGE, NODE_MAC, "net1")?;
        ip.add(&Route::to_host(BRIDGE).over("net1"))
    })?;
    outside.ip(|ip| ip.up("eth1"))?;
    if filter == "0" {
        fixture.mentions(&["leads out of net1, while", "is on eth0"]);
    }
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A route of table main, as a VPN adds one, takes the packets for a pod.
fn stray_route(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, outside) = fixture.node.uplink()?;
    outside.ip(|ip| ip.set_mac("eth0", NODE_MAC))?;
    fixture.node.node.ip(|ip| {
        ip.neighbour(OUTSIDE, NODE_MAC, &uplink)?;
        ip.add(&Route::to_host(pod.ip()).via(OUTSIDE).over(&uplink).onlink())
    })?;
    fixture.mentions(&["leads out of", &uplink]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`stray_route`], on a node that has another bridge with that subnet, which is down: the pod is not behind it.
fn beside_idle_bridge(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.node.ip(|ip| {
        ip.bridge("docker0", None)?;
        ip.address([10, 88, 0, 254], 24, "docker0")
    })?;
    stray_route(fixture)
}

/// The pod's link is a macvlan or ipvlan part of the uplink, and the node's route to the pod leads over that uplink.
fn isolated(fixture: &mut Fixture<'_>, part: Part) -> Result<()> {
    let (pod, uplink, _outside) = on_uplink(fixture, part)?;
    fixture.node.node.ip(|ip| ip.add(&Route::to_host(pod.ip()).over(&uplink)))?;
    fixture.mentions(&["a host does not reach a", &uplink]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`isolated`], but the node's route leads over a macvlan part of the uplink of its own. That works.
fn over_own_part(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, uplink, _outside) = on_uplink(fixture, Part::Macvlan)?;
    let node = fixture.node.node.as_fd().try_clone_to_owned()?;
    let own = uplink.replace("up", "shim");
    fixture.node.node.ip(|ip| {
        ip.part_of(&uplink, Part::Macvlan, &own, node.as_fd())?;
        ip.up(&own)?;
        ip.add(&Route::to_host(pod.ip()).over(&own))
    })?;
    fixture.succeeds(Kind::Http, pod)
}

/// Adds a pod on a part of a new uplink. Returns the pod's address, the uplink, and the namespace at its other end.
fn on_uplink(fixture: &mut Fixture<'_>, part: Part) -> Result<(SocketAddr, String, Netns)> {
    let (index, uplink, outside) = fixture.node.part_pod(part)?;
    let pod = fixture.node.pod_at(index)?;
    pod.serve(fixture.options, &["http", &format!("[::]:{HTTP}")])?;
    Ok((pod.addr(fixture.family, HTTP), uplink, outside))
}

/// One end of the pod's veth pair is down.
fn link_down(fixture: &mut Fixture<'_>, which: &str) -> Result<()> {
    // tracer must know the pod before its link fails. Each attempt makes it search the namespaces for the pod.
    // It searches at most every 150 ms, and other scenarios cause searches, too. So the answers are slow.
    let pod = fixture.serving("slow:100", HTTP)?;
    for _ in 0..5 {
        fixture.succeeds(Kind::Http, pod)?;
    }
    if which != "eth0" {
        let index = fixture.pod_of(pod)?.index;
        fixture.mentions(&[&format!("v{index} "), "on the node is down"]);
    }
    set_down(fixture, pod, which)?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// Sets an end of the pod's link down.
fn set_down(fixture: &mut Fixture<'_>, pod: SocketAddr, which: &str) -> Result<()> {
    if which == "eth0" {
        return fixture.inside(pod)?.ip(|ip| ip.down("eth0"));
    }
    let index = fixture.pod_of(pod)?.index;
    fixture.node.node.ip(|ip| ip.down(&format!("v{index}")))
}

/// As [`link_down`], while a probe waits for its answer.
fn down_before_answer(fixture: &mut Fixture<'_>, which: &str) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow:{}", (timeout * 3 / 4).as_millis()), HTTP)?;
    for _ in 0..2 {
        fixture.succeeds(Kind::Http, pod)?;
    }
    fixture.fails_while(pod, timeout, Ending::Timeout, |fixture| {
        // The request has arrived by then.
        thread::sleep(timeout / 4);
        set_down(fixture, pod, which)
    })
}

/// The bridge of the node is down: the route to all pods goes with it. So do its IPv6 addresses, and tracer has read the
/// links again by the next attempt.
fn bridge_down(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    if fixture.family == Family::V6 {
        fixture.succeeds(Kind::Http, pod)?;
    }
    fixture.node.node.ip(|ip| ip.down("cni0"))?;
    if fixture.family == Family::V6 {
        thread::sleep(fixture.options.probe_timeout);
    }
    fixture.mentions(&["cni0 on the node is down, and the route went with it (set down by pid"]);
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// As [`bridge_down`], on a node with a default route: it takes the packets for the pods. Its router drops them, or
/// refuses them.
fn down_beside_default_route(fixture: &mut Fixture<'_>, refuses: bool) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, outside) = fixture.node.uplink()?;
    let router: IpAddr = match fixture.family {
        Family::V4 => OUTSIDE.into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x90, 0, 0, 0, 0, 2).into(),
    };
    outside.ip(|ip| ip.set_mac("eth0", NODE_MAC))?;
    if refuses {
        outside.ip(|ip| ip.remove(&Route::to([10, 88, 0, 0], 16).refusing(RouteType::BlackHole)))?;
    }
    fixture.node.node.ip(|ip| {
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        ip.neighbour(router, NODE_MAC, &uplink)?;
        ip.add(&Route::default_via(router).over(&uplink).onlink())?;
        ip.down("cni0")
    })?;
    fixture.mentions(&["cni0 on the node is down", "set down by pid"]);
    fixture.fails(Kind::Http, pod, if refuses { Ending::Error } else { Ending::Timeout })
}

/// The node's end of the pod's link is taken from the bridge, which floods the SYN to another pod.
fn detached(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.node.pod()?;
    fixture.succeeds(Kind::Http, pod)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.node.node.ip(|ip| ip.detach(&end))?;
    fixture.mentions(&[&end, "is not attached to cni0"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The PodList has a pod, but its namespace is gone. The kernel asks for its link-layer address once a second, and then
/// gives up. tracer must have searched all namespaces before. That takes an emulated processor seconds.
fn namespace_gone(fixture: &mut Fixture<'_>) -> Result<()> {
    const MCAST_SOLICIT: &str = "ipv4/neigh/cni0/mcast_solicit";
    let family = fixture.family;
    let gone = fixture.node.unused_address(family, PATIENT);
    fixture.node.node.sysctl(&[(MCAST_SOLICIT, if is_emulated() { "15" } else { "3" })])?;
    let failed = fixture.fails(Kind::Http, gone, Ending::Error);
    fixture.node.node.sysctl(&[(MCAST_SOLICIT, "3")])?;
    failed
}

/// The route to the pod is one that refuses.
fn refusing_route(fixture: &mut Fixture<'_>, kind: RouteType) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let route = Route::to_host(pod.ip()).refusing(kind);
    fixture.node.node.ip(|ip| ip.add(&route))?;
    fixture.fails(Kind::Http, pod, Ending::Error)?;
    fixture.node.node.ip(|ip| ip.remove(&route))
}

/// A mark sends the SYN to a table that refuses. The kernel looks the route up again in the hook that sets the mark, and
/// drops the packet there (`nf_ip_route_me_harder`).
fn marked(fixture: &mut Fixture<'_>) -> Result<()> {
    const TABLE: u8 = 102;
    const MARK: u32 = 7;
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| {
        ip.add(&Route::to_host(pod.ip()).refusing(RouteType::BlackHole).in_table(TABLE))?;
        ip.add_rule(&rule_mark(MARK, pod.ip(), TABLE, 32_600))
    })?;
    let set =
        "table inet marks { chain out { type route hook output priority mangle; tcp dport 8080 meta mark set 7; }; }\n";
    fixture.node.node.nft(set)?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

fn no_route(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let route = Route::to([10, 88, 0, 0], 24).over("cni0");
    fixture.node.node.ip(|ip| ip.remove(&route))?;
    let failed = fixture.fails(Kind::Http, pod, Ending::Error);
    fixture.node.node.ip(|ip| ip.add(&route.made_by_kernel().source(BRIDGE)))?;
    failed
}

/// `lo` has lost 127.0.0.1, and the node has a default route: it takes the SYN. `gone`: its router is not there.
fn without_loopback_address(fixture: &mut Fixture<'_>, gone: bool) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{HOST}")])?;
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, HOST));
    fixture.succeeds(Kind::Http, target)?;
    let (uplink, outside) = fixture.node.uplink()?;
    outside.ip(|ip| ip.set_mac("eth0", NODE_MAC))?;
    fixture.node.node.ip(|ip| {
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        if !gone {
            ip.neighbour(OUTSIDE, NODE_MAC, &uplink)?;
        }
        ip.add(&Route::default_via(if gone { [10, 90, 0, 9].into() } else { OUTSIDE }))?;
        ip.remove_address(Ipv4Addr::LOCALHOST, 8, "lo")
    })?;
    fixture.mentions(&["no link on the node has a loopback address"]);
    fixture.fails(Kind::Http, target, Ending::Timeout)
}

/// The pod cannot answer: its own route to the node refuses. A reverse-path filter of the pod, even a loose one, drops the
/// SYN first.
fn no_way_back(fixture: &mut Fixture<'_>, back: &Route, filter: &str) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let back = back.clone().refusing(RouteType::Unreachable);
    fixture.inside(pod)?.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", filter)])?;
    fixture.inside(pod)?.ip(|ip| ip.add(&back))?;
    fixture.mentions(&["no route back"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A router behind the node has no route onward.
fn router_refuses(fixture: &mut Fixture<'_>) -> Result<()> {
    let router = fixture.node.pod()?;
    router.ns.sysctl(&[("ipv4/ip_forward", "1")])?;
    let onward = Route::to([10, 77, 0, 0], 24);
    router.ns.ip(|ip| ip.add(&onward.clone().refusing(RouteType::Unreachable)))?;
    let via = router.addr(Family::V4, 0).ip();
    fixture.node.node.ip(|ip| ip.add(&onward.clone().via(via)))?;
    fixture.fails_without_probe(Kind::Http, ([10, 77, 0, 5], HTTP).into(), Ending::Error)?;
    fixture.node.node.ip(|ip| ip.remove(&onward))
}

/// A router between the node and the pod forwards the SYN, and refuses to route the SYN-ACK.
fn router_lacks_way_back(fixture: &mut Fixture<'_>) -> Result<()> {
    let index = fixture.node.routed_pod(1500)?;
    let (family, options) = (fixture.family, fixture.options);
    let pod = fixture.node.pod_at(index)?;
    pod.serve(options, &["http", &format!("[::]:{HTTP}")])?;
    let addr = pod.addr(family, HTTP);
    fixture.succeeds(Kind::Http, addr)?;
    let router = &fixture.node.pod_at(index - 1)?.ns;
    // A reverse-path filter would drop the SYN first.
    router.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", "0")])?;
    router.ip(|ip| ip.add(&Route::to_host(BRIDGE).refusing(RouteType::Unreachable)))?;
    fixture.mentions(&["back to 10.88.0.1", "about the SYN-ACK"]);
    fixture.fails(Kind::Http, addr, Ending::Timeout)
}

/// The pod's route to another node leads over its own node, which does not forward.
fn not_forwarding(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.node.sysctl(&[("ipv4/ip_forward", "0"), ("ipv6/conf/all/forwarding", "0")])?;
    let (v4, v6) = (Route::to([10, 77, 0, 0], 24), Route::to([0xfd00, 0x77, 0, 0, 0, 0, 0, 0], 64));
    fixture.node.node.ip(|ip| [v4, v6].into_iter().try_for_each(|route| ip.add(&route.over("eth0"))))?;
    (fixture.watch)()?;
    let beyond: IpAddr = match fixture.family {
        Family::V4 => [10, 77, 0, 5].into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 5).into(),
    };
    let options = fixture.options;
    let pod = fixture.node.pod()?;
    let (inside, mut prober) = (pod.ns.inum(), Prober::start(&pod.ns, options)?);
    let probe = ProbeRequest::new(Kind::Http, SocketAddr::new(beyond, HTTP), options.probe_timeout);
    let claim = fixture.verdict_without_probe(Cause::MissingNodePrerequisite);
    let attempt = Attempt { netns: inside, ..fixture.begin(probe.dst, claim)? };
    let outcome = prober.probe(probe)?;
    fixture.end(attempt, &outcome, &[Ending::Timeout])
}

/// The pod's links are up, but it does not answer ARP requests or neighbour solicitations.
fn deaf(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    match pod.ip() {
        IpAddr::V4(_) => fixture.inside(pod)?.ip(|ip| ip.disable_arp("eth0"))?,
        IpAddr::V6(_) => fixture.input_rule(pod, "icmpv6 type nd-neighbor-solicit drop;")?,
    }
    fixture.node.node.ip(|ip| ip.forget_neighbours("cni0"))?;
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// The pod answers over a second link, and the node's filter is strict.
fn asymmetric(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = two_links(fixture)?;
    fixture.node.node.sysctl(&[("ipv4/conf/all/rp_filter", "1")])?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`asymmetric`], and only the device has the filter.
fn asymmetric_to_device(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = two_links(fixture)?;
    fixture.node.node.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", "1")])?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`asymmetric`], with a loose filter. That works.
fn loose(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = two_links(fixture)?;
    fixture.node.node.sysctl(&[("ipv4/conf/all/rp_filter", "2")])?;
    fixture.succeeds(Kind::Http, pod)
}

fn two_links(fixture: &mut Fixture<'_>) -> Result<SocketAddr> {
    let pod = fixture.serving("http", HTTP)?;
    let ns = fixture.inside(pod)?;
    ns.sysctl(&[
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/eth0/rp_filter", "0"),
    ])?;
    let inside = ns.as_fd().try_clone_to_owned()?;
    fixture.node.node.ip(|ip| {
        ip.set_mac("eth0", NODE_MAC)?;
        ip.veth("w0", "eth1", inside.as_fd())?;
        ip.set_master("w0", "eth0")?;
        ip.up("w0")
    })?;
    // The filter drops ARP packets, too, so the pod gets a permanent neighbour entry.
    fixture.inside(pod)?.ip(|ip| {
        ip.up("eth1")?;
        ip.add(&Route::to_host(BRIDGE).over("eth1").source(pod.ip()))?;
        ip.neighbour(BRIDGE, NODE_MAC, "eth1")
    })?;
    Ok(pod)
}

/// The node's neighbour entry for the pod has a wrong link-layer address.
fn wrong_entry(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.node.node.ip(|ip| {
        ip.forget_neighbours("cni0")?;
        ip.neighbour(pod.ip(), NODE_MAC, "cni0")
    })?;
    fixture.mentions(&["another link-layer address than that of eth0"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The node's neighbour entry for the pod has the link-layer address of another pod.
fn entry_of_other_pod(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, other) = (fixture.serving("http", HTTP)?, fixture.serving("http", HTTP)?);
    (fixture.watch)()?;
    fixture.inside(other)?.ip(|ip| ip.set_mac("eth0", NODE_MAC))?;
    fixture.node.node.ip(|ip| {
        ip.forget_neighbours("cni0")?;
        ip.neighbour(pod.ip(), NODE_MAC, "cni0")
    })?;
    // The bridge must know the port of that address: else it floods the frame, and the pod gets it, too.
    fixture.succeeds(Kind::Http, other)?;
    fixture.mentions(&["has 02:00:00:00:00:01, and eth0 in", "the SYN goes to another host"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The pod's neighbour entry for the node is wrong.
fn wrong_entry_back(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    fixture.succeeds(Kind::Http, pod)?;
    misdirect_back(fixture, pod)?;
    fixture.mentions(&["has 02:00:00:00:00:01, and cni0 on the node has 0a:58:0a:58:00:01"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The route to the pod leads to a gateway that is not there.
fn wrong_gateway(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    let (uplink, _outside) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| ip.add(&Route::to_host(pod.ip()).via([10, 77, 0, 9]).over(&uplink).onlink()))?;
    fixture.mentions(&["10.77.0.9 (the gateway to", &uplink]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// A pod with an address of its own, as Calico makes it, loses its route. A bridge with a wider subnet takes its packets.
fn own_route_gone(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let IpAddr::V4(address) = pod.ip() else { bail!("IPv4 only") };
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.inside(pod)?.ip(|ip| {
        ip.remove_address(address, 24, "eth0")?;
        ip.address(address, 32, "eth0")?;
        ip.add(&Route::to_host(BRIDGE).over("eth0"))
    })?;
    let own = Route::to_host(address).over(&end);
    fixture.node.node.ip(|ip| {
        ip.detach(&end)?;
        ip.add(&own)
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| ip.remove(&own))?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// The pod's route back leads over a gateway that nobody answers for, as Calico's does without proxy_arp.
fn gateway_back(fixture: &mut Fixture<'_>, gateway: impl Into<IpAddr>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let gateway = gateway.into();
    fixture.inside(pod)?.ip(|ip| ip.add(&Route::to_host(node_of(pod)).via(gateway).over("eth0").onlink()))?;
    fixture.mentions(&[&format!("cannot resolve the link-layer address of {gateway} (the gateway to")]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// Another pod answered for the pod's address when the pod got it, and is gone now.
fn duplicate(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let IpAddr::V6(address) = pod.ip() else { bail!("IPv6 only") };
    let other = fixture.node.pod()?.index;
    fixture.node.pod_at(other)?.ns.ip(|ip| ip.address(address, 128, "eth0"))?;
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv6/conf/eth0/accept_dad", "1")])?;
    inside.ip(|ip| {
        ip.remove_address(address, 64, "eth0")?;
        ip.address_to_detect(address, 64, "eth0")
    })?;
    wait_until_duplicate(inside, address)?;
    fixture.node.pod_at(other)?.ns.ip(|ip| ip.remove_address(address, 128, "eth0"))?;
    fixture.node.node.ip(|ip| ip.forget_neighbours("cni0"))?;
    fixture.mentions(&["does not use", "duplicate address detection"]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// The node gets another address of the same subnet, and the list of pods has the old one.
fn address_lost(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{HOST}")])?;
    fixture.succeeds(Kind::Http, (NODE, HOST).into())?;
    fixture.node.node.ip(|ip| {
        ip.remove_address(NODE, 24, "eth0")?;
        ip.address([10, 89, 0, 9], 24, "eth0")
    })?;
    fixture.mentions(&["no link of the node has its address 10.89.0.1"]);
    fixture.gets_no_answer(Kind::Http, (NODE, HOST).into())
}

/// A router's next link has a smaller MTU. If `deaf`, the server drops the ICMP errors about it.
fn small_mtu(fixture: &mut Fixture<'_>, server: &str, deaf: bool) -> Result<()> {
    let index = fixture.node.routed_pod(1280)?;
    let (family, options) = (fixture.family, fixture.options);
    let pod = fixture.node.pod_at(index)?;
    pod.serve(options, &[server, &format!("[::]:{HTTP}")])?;
    if deaf {
        pod.ns.input_rule("icmp type destination-unreachable drop;")?;
    }
    let addr = pod.addr(family, HTTP);
    if deaf { fixture.fails(Kind::Http, addr, Ending::Timeout) } else { fixture.succeeds(Kind::Http, addr) }
}

/// The pod's way back breaks while a probe waits: large segments of its answer are lost, and small ones, too.
fn answer_lost(fixture: &mut Fixture<'_>) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow-big:{}", (timeout / 4).as_millis()), HTTP)?;
    // The bridge floods the answer to this pod, which is not a drop that explains anything.
    fixture.pod(HTTP)?;
    fixture.fails_while(pod, timeout, Ending::Timeout, |fixture| {
        let options = fixture.options;
        fixture.pod_of(pod)?.wait_for_request(options)?;
        // The request is acknowledged by then.
        thread::sleep(timeout / 20);
        misdirect_back(fixture, pod)
    })
}

/// Gives the pod a neighbour entry for the node with a link-layer address that nobody has.
fn misdirect_back(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    fixture.inside(pod)?.ip(|ip| ip.neighbour(node_of(pod), NODE_MAC, "eth0"))
}

/// The node's address on the bridge, in the family of the pod's.
fn node_of(pod: SocketAddr) -> IpAddr {
    if pod.is_ipv4() { BRIDGE.into() } else { BRIDGE6.into() }
}
