//! Routes and routing rules between the node and the pod, and the reverse-path filter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tracer_model::record::Cause;

use super::fixture::NODE_MAC;
use super::neighbours::node_of;
use super::{Fault, Fixture, Need, Scenario};
use crate::check::Attempt;
use crate::ip::{Route, RouteType, RuleAction, RuleMessage, rule_from, rule_mark, rule_port, rule_refusing};
use crate::net::Netns;
use crate::node::{BRIDGE, Family, OUTSIDE};
use crate::pods::{HOST, HTTP, NODE_LOCAL};
use crate::probe::{Ending, Kind, ProbeRequest};
use crate::prober::Prober;

const ROUTE: Option<Cause> = Some(Cause::RouteUnreachable);
const PREREQUISITE: Option<Cause> = Some(Cause::MissingNodePrerequisite);
const RP_FILTER: Option<Cause> = Some(Cause::RpFilterDrop);
const ASYMMETRIC: Option<Cause> = Some(Cause::AsymmetricRoute);
const UNEXPLAINED: Option<Cause> = Some(Cause::Unexplained);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("route_unreachable", ROUTE, |s| refusing_route(s, RouteType::Unreachable))
        .smoke()
        .and_v6_on_every_kernel(),
    Scenario::new("route_unreachable_prohibit", ROUTE, |s| refusing_route(s, RouteType::Prohibit)),
    Scenario::new("route_unreachable_blackhole", ROUTE, |s| refusing_route(s, RouteType::BlackHole)),
    Scenario::new("route_unreachable_none", ROUTE, no_route),
    Scenario::new("route_unreachable_rule", ROUTE, |s| refusing_rule(s, RuleAction::Unreachable)),
    Scenario::new("route_unreachable_rule_blackhole", ROUTE, |s| refusing_rule(s, RuleAction::Blackhole)),
    // The timeout of an emulated processor is longer than the three seconds after which the kernel gives the gateway up.
    Scenario::new("route_unreachable_loopback_address", ROUTE, |s| without_loopback_address(s, true))
        .own()
        .needs(&[Need::RealProcessor]),
    Scenario::new("route_unreachable_loopback_address_silent", ROUTE, |s| without_loopback_address(s, false)).own(),
    Scenario::new("unexplained_marked_route", UNEXPLAINED, marked).own().needs(&[Need::Nft]),
    Scenario::new("unexplained_translated_localnet", UNEXPLAINED, |s| localnet(s, "iptables-nft-restore"))
        .own()
        .needs(&[Need::Iptables]),
    Scenario::new("unexplained_translated_localnet_legacy", UNEXPLAINED, |s| localnet(s, "iptables-legacy-restore"))
        .own()
        .needs(&[Need::LegacyIptables]),
    Scenario::new("unexplained_translated_blackhole", UNEXPLAINED, to_blackhole).own().needs(&[Need::Nft]),
    Scenario::new("unexplained_probe_host_gone", UNEXPLAINED, |s| host_gone(s, false)).own(),
    Scenario::new("route_unreachable_probe_host_gone", ROUTE, |s| host_gone(s, true)).own(),
    no_way_back("route_unreachable_no_way_back", |s, pod| refuse_way_back(s, pod, "0")).and_v6(),
    // The reverse-path filter of the pod drops the SYN.
    no_way_back("route_unreachable_no_way_back_strict", |s, pod| refuse_way_back(s, pod, "1")),
    no_way_back("route_unreachable_no_way_back_loose", |s, pod| refuse_way_back(s, pod, "2")),
    Scenario::new("route_unreachable_by_router", ROUTE, router_refuses).needs(&[Need::IcmpHook]).on_every_kernel(),
    Scenario::new("route_unreachable_router_blackhole_v6", ROUTE, router_discards).v6().own(),
    Scenario::new("route_unreachable_router_no_way_back", ROUTE, router_lacks_way_back).needs(&[Need::IcmpHook]),
    Scenario::new("firewall_reject_elsewhere", Some(Cause::FirewallReject), refused_elsewhere)
        .own()
        .needs(&[Need::Tap]),
    Scenario::new("missing_node_prerequisite", PREREQUISITE, not_forwarding).own().on_every_kernel().and_v6(),
    Scenario::new("asymmetric_route", ASYMMETRIC, |s| {
        let rule = |table, priority| rule_from(BRIDGE.into(), table, priority);
        second_uplink(s, rule, "from 10.88.0.1 lookup 101")
    })
    .own(),
    Scenario::new("asymmetric_route_port", ASYMMETRIC, |s| {
        let rule = |table, priority| rule_port(HTTP, BRIDGE.into(), table, priority);
        second_uplink(s, rule, "from all ipproto tcp dport 8080 lookup 101")
    })
    .own(),
    Scenario::probed("asymmetric_route_pod", ASYMMETRIC, "http", Ending::Timeout)
        .succeeds_first()
        .fault(|s, pod| second_network(s, pod, "0"))
        .names(&["leads out of net1, while", "is on eth0"])
        .own(),
    Scenario::new("asymmetric_route_bridge_address", ASYMMETRIC, |s| bridge_address(s, RouteType::BlackHole)).own(),
    Scenario::new("asymmetric_route_bridge_address_refused", ASYMMETRIC, |s| bridge_address(s, RouteType::Unreachable))
        .own(),
    Scenario::new("asymmetric_route_bridge_address_silent", ASYMMETRIC, bridge_address_silent).own(),
    Scenario::new("asymmetric_route_flapped_link", ASYMMETRIC, flapped_link).own(),
    Scenario::new("asymmetric_route_stray", ASYMMETRIC, stray_route).own(),
    Scenario::new("asymmetric_route_router_drops", ASYMMETRIC, stray_route_filtered).own().needs(&[Need::Nft]),
    Scenario::new("asymmetric_route_refused", ASYMMETRIC, stray_route_refused).own(),
    Scenario::new("unexplained_lost_address", UNEXPLAINED, lost_address).own(),
    Scenario::new("connection_refused_marked", Some(Cause::ConnectionRefused), marked_local).own().needs(&[Need::Nft]),
    Scenario::new("asymmetric_route_stray_idle_bridge", ASYMMETRIC, beside_idle_bridge).own(),
    Scenario::probed("rp_filter_drop", RP_FILTER, "http", Ending::Timeout)
        .fault(|s, pod| answer_over_second_link(s, pod, &[("ipv4/conf/all/rp_filter", "1")]))
        .own()
        .on_every_kernel(),
    Scenario::probed("rp_filter_drop_device", RP_FILTER, "http", Ending::Timeout)
        .fault(|s, pod| {
            let of_device = [("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", "1")];
            answer_over_second_link(s, pod, &of_device)
        })
        .own(),
    // The reverse-path filter of the pod drops the SYN.
    Scenario::probed("rp_filter_drop_pod", RP_FILTER, "http", Ending::Timeout)
        .succeeds_first()
        .fault(|s, pod| second_network(s, pod, "1"))
        .own(),
    // Nor does it answer ARP requests.
    Scenario::probed("rp_filter_drop_unanswered", RP_FILTER, "http", Ending::Timeout)
        .succeeds_first()
        .fault(|s, pod| {
            second_network(s, pod, "1")?;
            s.node.node.ip(|ip| ip.forget_neighbours("cni0"))
        })
        .names(&["answers no ARP request"])
        .own(),
    // A loose filter passes it.
    Scenario::probed("rp_filter_loose", None, "http", Ending::Ok)
        .fault(|s, pod| answer_over_second_link(s, pod, &[("ipv4/conf/all/rp_filter", "2")]))
        .own(),
];

/// A rule for a second uplink sends all packets from the node's address, or to a port, over it, even those to pods.
fn second_uplink(fixture: &mut Fixture<'_>, rule: fn(u8, u32) -> RuleMessage, words: &str) -> Result<()> {
    const TABLE: u8 = 101;
    const PRIORITY: u32 = 32_700;
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, _) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| {
        ip.add(&Route::default_via(OUTSIDE).over(&uplink).onlink().in_table(TABLE))?;
        ip.add_rule(&rule(TABLE, PRIORITY))
    })?;
    fixture.mentions(&[&format!("ip rule 32700 ({words})"), &uplink]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A second network of the pod takes the route to the node. The pod filters by the way back like this.
fn second_network(fixture: &mut Fixture<'_>, pod: SocketAddr, filter: &str) -> Result<()> {
    let (_, outside) = fixture.node.uplink()?;
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", filter)])?;
    inside.ip(|ip| {
        ip.veth("net1", "eth1", outside.as_fd())?;
        ip.up("net1")?;
        ip.neighbour(BRIDGE, NODE_MAC, "net1")?;
        ip.add(&Route::to_host(BRIDGE).over("net1"))
    })?;
    outside.ip(|ip| ip.up("eth1"))
}

/// A route of table main, as a VPN adds one, takes the packets for a pod.
fn stray_route(fixture: &mut Fixture<'_>) -> Result<()> {
    route_to_router(fixture, |_| Ok(()))
}

/// As [`stray_route`], and a firewall of that router drops the SYN.
fn stray_route_filtered(fixture: &mut Fixture<'_>) -> Result<()> {
    route_to_router(fixture, |router| {
        router.ip(|ip| {
            ip.bridge("br1", None)?;
            ip.up("br1")?;
            ip.add(&Route::to([10, 88, 0, 0], 24).over("br1"))
        })?;
        router.nft("table inet f { chain forwarded { type filter hook forward priority 0; policy drop; }; }\n")
    })
}

fn route_to_router(fixture: &mut Fixture<'_>, set_up: fn(&Netns) -> Result<()>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, outside) = fixture.node.uplink()?;
    outside.ip(|ip| ip.set_mac("eth0", NODE_MAC))?;
    set_up(&outside)?;
    fixture.node.node.ip(|ip| {
        ip.neighbour(OUTSIDE, NODE_MAC, &uplink)?;
        ip.add(&Route::to_host(pod.ip()).via(OUTSIDE).over(&uplink).onlink())
    })?;
    fixture.mentions(&["leads out of", &uplink]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The default route leads to a router that does not route to the pods.
fn default_route(fixture: &mut Fixture<'_>, router: RouteType) -> Result<()> {
    let (uplink, outside) = fixture.node.uplink()?;
    outside.ip(|ip| {
        ip.set_mac("eth0", NODE_MAC)?;
        ip.add(&Route::to([10, 88, 0, 0], 24).kind(router))
    })?;
    fixture.node.node.ip(|ip| {
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        ip.neighbour(OUTSIDE, NODE_MAC, &uplink)?;
        ip.add(&Route::default_via(OUTSIDE))
    })
}

/// The bridge lost its address, and the pods' route went with it. The default route takes the SYN.
fn bridge_address(fixture: &mut Fixture<'_>, router: RouteType) -> Result<()> {
    let pod = fixture.serving("slow:300", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    default_route(fixture, router)?;
    fixture.node.node.ip(|ip| ip.remove_address(BRIDGE, 24, "cni0"))?;
    // tracer has read the links again by then.
    thread::sleep(fixture.options.probe_timeout);
    fixture.mentions(&["cni0 has lost its address 10.88.0.1/24, and the route went with it"]);
    fixture.fails(Kind::Http, pod, if router == RouteType::BlackHole { Ending::Timeout } else { Ending::Error })
}

/// As [`bridge_address`], and nobody answers for the default gateway. The kernel drops the SYN after the attempt's end.
fn bridge_address_silent(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:300", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let (uplink, _) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| {
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        ip.add(&Route::default_via([10, 90, 0, 9]))?;
        ip.remove_address(BRIDGE, 24, "cni0")
    })?;
    fixture.mentions(&["cni0 has lost its address 10.88.0.1/24, and the route went with it"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)?;
    // The kernel drops what waits for the next hop after three requests, one a second. The attempt has ended by then, so
    // nothing that the testbed sees shows it.
    thread::sleep(Duration::from_secs(3));
    Ok(())
}

/// The node's end of the pod's link was set down and up again. The pod's own route, as Calico makes it, did not come back.
fn flapped_link(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:300", HTTP)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.node.node.ip(|ip| {
        ip.detach(&end)?;
        ip.add(&Route::to_host(pod.ip()).over(&end))
    })?;
    default_route(fixture, RouteType::BlackHole)?;
    fixture.node.node.ip(|ip| ip.remove(&Route::to([10, 88, 0, 0], 24).over("cni0")))?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| {
        ip.down(&end)?;
        ip.up(&end)
    })?;
    fixture.mentions(&["its own route went with", &end, "set down"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`stray_route`], and the router refuses the SYN at once. The answer before that was slow, so that tracer has read
/// the pod's link.
fn stray_route_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:300", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    default_route(fixture, RouteType::Unreachable)?;
    fixture.node.node.ip(|ip| ip.add(&Route::to_host(pod.ip()).via(OUTSIDE)))?;
    fixture.mentions(&["though the pod is on this node"]);
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// The address of a living pod was changed. The node's neighbour entry still leads there.
fn lost_address(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.inside(pod)?.sysctl(&[("ipv4/ip_forward", "0")])?;
    let IpAddr::V4(own) = pod.ip() else { return Ok(()) };
    fixture.inside(pod)?.ip(|ip| {
        ip.address([10, 88, 0, 250], 24, "eth0")?;
        ip.remove_address(own, 24, "eth0")
    })?;
    fixture.mentions(&["does not have the address it was sent to"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// What a transparent proxy left behind: a mark, and a table that sends all marked packets to the node itself. The kernel
/// cannot send its RST, since the source is not an address of the node.
fn marked_local(fixture: &mut Fixture<'_>) -> Result<()> {
    const TABLE: u8 = 133;
    const MARK: u32 = 0x1d3;
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| {
        ip.add(&Route::to([0, 0, 0, 0], 0).kind(RouteType::Local).over("lo").in_table(TABLE))?;
        ip.add_rule(&rule_mark(MARK, pod.ip(), TABLE, 50))
    })?;
    let set = format!(
        "table inet marks {{ chain out {{ type route hook output priority mangle; tcp dport {HTTP} meta mark set {MARK}; }}; }}\n"
    );
    fixture.node.node.nft(&set)?;
    fixture.mentions(&["a local route or a mark kept it there"]);
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

/// The route to the pod is one that refuses.
fn refusing_route(fixture: &mut Fixture<'_>, kind: RouteType) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let route = Route::to_host(pod.ip()).kind(kind);
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
        ip.add(&Route::to_host(pod.ip()).kind(RouteType::BlackHole).in_table(TABLE))?;
        ip.add_rule(&rule_mark(MARK, pod.ip(), TABLE, 32_600))
    })?;
    let set =
        "table inet marks { chain out { type route hook output priority mangle; tcp dport 8080 meta mark set 7; }; }\n";
    fixture.node.node.nft(set)?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A NodePort at 127.0.0.1, while route_localnet is 0: the kernel does not send the translated SYN to the pod. The rule of
/// the kubelet's own chain takes no packet.
fn localnet(fixture: &mut Fixture<'_>, program: &str) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let rules = format!(
        "*nat\n-A OUTPUT -d 127.0.0.1/32 -p tcp -m tcp --dport 30080 -j DNAT --to-destination {pod}\nCOMMIT\n\
        *filter\n:KUBE-FIREWALL - [0:0]\n-A OUTPUT -j KUBE-FIREWALL\n\
        -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\nCOMMIT\n"
    );
    fixture.node.node.run(program, &[], &rules)?;
    // A new namespace has the setting of the machine.
    fixture.node.node.sysctl(&[("ipv4/conf/all/route_localnet", "0")])?;
    fixture.mentions(&["where an address translation had sent it", "route_localnet is 0"]);
    fixture.fails_without_probe(Kind::Http, (Ipv4Addr::LOCALHOST, 30080).into(), Ending::Timeout)
}

/// The endpoint of a Service is in a block of addresses that the node refuses, as Calico's are.
fn to_blackhole(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.node.ip(|ip| {
        ip.add(&Route::to([10, 96, 0, 0], 16).over("eth0"))?;
        ip.add(&Route::to([10, 66, 0, 0], 24).kind(RouteType::BlackHole))
    })?;
    fixture.node.node.nft(
        "table ip nat { chain out { type nat hook output priority -100; ip daddr 10.96.0.9 tcp dport 80 dnat to 10.66.0.5:80; }; }\n",
    )?;
    fixture.mentions(&["-> 10.66.0.5:80", "the route to that address may refuse"]);
    fixture.fails_without_probe(Kind::Http, ([10, 96, 0, 9], 80).into(), Ending::Timeout)
}

/// The probe names an address of a link that is gone, as NodeLocal DNSCache removes its own. The default route takes the
/// SYN. `refuses`: its router answers.
fn host_gone(fixture: &mut Fixture<'_>, refuses: bool) -> Result<()> {
    const LINK: &str = "nodelocaldns";
    let (addr, port) = NODE_LOCAL;
    fixture.node.serve(fixture.options, &["http", &format!("[::]:{port}")])?;
    fixture.node.node.ip(|ip| {
        ip.bridge(LINK, None)?;
        ip.address(addr, 32, LINK)?;
        ip.up(LINK)
    })?;
    fixture.succeeds(Kind::Http, (addr, port).into())?;
    let (uplink, outside) = fixture.node.uplink()?;
    if refuses {
        outside.ip(|ip| {
            ip.set_mac("eth0", NODE_MAC)?;
            ip.add(&Route::to_host(addr).kind(RouteType::Unreachable))
        })?;
    }
    fixture.node.node.ip(|ip| {
        ip.delete(LINK)?;
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        ip.neighbour(OUTSIDE, NODE_MAC, &uplink)?;
        ip.add(&Route::default_via(OUTSIDE))
    })?;
    // tracer has read the links again by then.
    thread::sleep(fixture.options.probe_timeout);
    fixture.mentions(&["names host 169.254.20.10", "no link of the node has that address"]);
    fixture.fails(Kind::Http, (addr, port).into(), if refuses { Ending::Error } else { Ending::Timeout })
}

/// A rule refuses what goes to the pod. The route to it is good.
fn refusing_rule(fixture: &mut Fixture<'_>, action: RuleAction) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let rule = rule_refusing(pod.ip(), action, 100);
    fixture.node.node.ip(|ip| ip.add_rule(&rule))?;
    let failed = fixture.mentions(&["or an `ip rule` there is"]).fails(Kind::Http, pod, Ending::Error);
    fixture.node.node.ip(|ip| ip.remove_rule(&rule))?;
    failed
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

const fn no_way_back(name: &'static str, fault: Fault) -> Scenario {
    Scenario::probed(name, ROUTE, "http", Ending::Timeout)
        .succeeds_first()
        .fault(fault)
        .names(&["the route back", "is `unreachable`"])
        .needs(&[Need::RealProcessor])
}

/// The pod cannot answer: its own route to the node refuses. A reverse-path filter of the pod, even a loose one, drops the
/// SYN first.
fn refuse_way_back(fixture: &mut Fixture<'_>, pod: SocketAddr, filter: &str) -> Result<()> {
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv4/conf/all/rp_filter", "0"), ("ipv4/conf/eth0/rp_filter", filter)])?;
    inside.ip(|ip| ip.add(&Route::to_host(node_of(pod)).kind(RouteType::Unreachable)))
}

/// A router behind the node has no route onward.
fn router_refuses(fixture: &mut Fixture<'_>) -> Result<()> {
    let router = fixture.node.pod()?;
    router.ns.sysctl(&[("ipv4/ip_forward", "1")])?;
    let onward = Route::to([10, 77, 0, 0], 24);
    router.ns.ip(|ip| ip.add(&onward.clone().kind(RouteType::Unreachable)))?;
    let via = router.addr(Family::V4, 0).ip();
    fixture.node.node.ip(|ip| ip.add(&onward.clone().via(via)))?;
    fixture.fails_without_probe(Kind::Http, ([10, 77, 0, 5], HTTP).into(), Ending::Error)?;
    fixture.node.node.ip(|ip| ip.remove(&onward))
}

/// Something beyond the node, which no hook sees, answers the SYN with ICMP port unreachable.
fn refused_elsewhere(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = SocketAddr::from(([10, 77, 0, 5], HTTP));
    let link = fixture.node.refusing_link()?;
    fixture.node.node.ip(|ip| {
        ip.neighbour(target.ip(), NODE_MAC, &link)?;
        ip.add(&Route::to_host(target.ip()).over(&link))
    })?;
    fixture.mentions(&["was answered with ICMP port unreachable, and no hook saw a sender on this node"]);
    fixture.fails_without_probe(Kind::Http, target, Ending::Refused)
}

/// As [`router_refuses`], and it answers nothing.
fn router_discards(fixture: &mut Fixture<'_>) -> Result<()> {
    let router = fixture.node.pod()?;
    router.ns.sysctl(&[("ipv6/conf/all/forwarding", "1")])?;
    let onward = Route::to([0xfd00, 0x77, 0, 0, 0, 0, 0, 0], 64);
    router.ns.ip(|ip| ip.add(&onward.clone().kind(RouteType::BlackHole)))?;
    let via = router.addr(Family::V6, 0).ip();
    fixture.node.node.ip(|ip| ip.add(&onward.via(via)))?;
    fixture.mentions(&["or an `ip rule` there, is `blackhole`"]);
    let beyond = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 5);
    fixture.fails_without_probe(Kind::Http, (beyond, HTTP).into(), Ending::Timeout)
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
    router.ip(|ip| ip.add(&Route::to_host(BRIDGE).kind(RouteType::Unreachable)))?;
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

/// The pod answers over a second link, while the node filters by the way back like this.
fn answer_over_second_link(fixture: &mut Fixture<'_>, pod: SocketAddr, filter: &[(&str, &str)]) -> Result<()> {
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
    fixture.node.node.sysctl(filter)
}
