//! Links between the node and the pod: down, detached, isolated, with a small MTU.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket};
use tracer_model::record::Cause;

use super::fixture::NODE_MAC;
use super::neighbours::{behind_second_bridge, with_own_route};
use super::{Fixture, Need, Scenario};
use crate::ip::{Part, Route, RouteType};
use crate::node::{Family, NODE, OUTSIDE};
use crate::options::is_emulated;
use crate::pods::{HTTP, PATIENT};
use crate::probe::{Ending, Kind};

const LINK: Option<Cause> = Some(Cause::PodLinkDown);
const ISOLATED: Option<Cause> = Some(Cause::HostIsolatedLink);
const MTU: Option<Cause> = Some(Cause::MtuBlackhole);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("pod_link_down_eth0", LINK, |s| link_down(s, "eth0")).on_every_kernel(),
    // A link that goes down loses its IPv6 addresses: tracer must find the pod of the address before that.
    Scenario::new("pod_link_down_eth0_v6", LINK, |s| link_down(s, "eth0")).v6().needs(&[Need::RealProcessor]),
    Scenario::new("pod_link_down_eth0_flooded", LINK, link_down_flooded).own().needs(&[Need::Nft]),
    Scenario::new("pod_link_down_eth0_captured", LINK, link_down_captured).own().needs(&[Need::PacketSocket]),
    Scenario::new("pod_link_down_veth", LINK, |s| link_down(s, "veth")),
    Scenario::new("pod_link_down_veth_until_the_end", LINK, up_after_the_end).own(),
    Scenario::new("pod_link_down_own_route", LINK, down_with_own_route).own(),
    Scenario::new("pod_link_down_between_bridges", LINK, down_between_bridges).own(),
    Scenario::new("pod_link_down_removed", LINK, removed),
    Scenario::new("pod_link_down_eth0_before_answer", LINK, |s| down_before_answer(s, "eth0")),
    Scenario::new("pod_link_down_veth_before_answer", LINK, |s| down_before_answer(s, "veth")),
    Scenario::new("pod_link_down_removed_before_reading", LINK, removed_before_reading).own(),
    Scenario::new("unexplained_address_lost", Some(Cause::Unexplained), address_lost).own(),
    Scenario::new("pod_link_down_bridge", LINK, bridge_down).own().and_v6(),
    Scenario::new("pod_link_down_bridge_default_route", LINK, |s| down_beside_default_route(s, false))
        .own()
        .needs(&[Need::RealProcessor])
        .and_v6(),
    Scenario::new("pod_link_down_bridge_router_refuses", LINK, |s| down_beside_default_route(s, true)).own(),
    Scenario::new("pod_link_down_detached", LINK, detached).own().needs(&[Need::RealProcessor]).and_v6(),
    Scenario::new("pod_link_down_detached_unresolved", LINK, detached_unresolved).own(),
    Scenario::new("pod_link_down_detached_before_answer", LINK, detached_before_answer).own(),
    Scenario::new("pod_link_down_other_bridge", LINK, other_bridge).own(),
    Scenario::new("pod_link_down_address_removed", LINK, address_removed).own(),
    Scenario::new("pod_link_down_namespace_gone", LINK, namespace_gone).on_every_kernel(),
    Scenario::new("host_isolated_link", ISOLATED, |s| isolated(s, Part::Macvlan)).needs(&[Need::Macvlan]).and_v6(),
    Scenario::new("host_isolated_link_ipvlan", ISOLATED, |s| isolated(s, Part::Ipvlan)).needs(&[Need::Ipvlan]),
    Scenario::new("host_isolated_link_beside", None, over_own_part).needs(&[Need::Macvlan]),
    Scenario::new("mtu_blackhole", MTU, |s| small_mtu(s, "big", true))
        .needs(&[Need::Nft, Need::IcmpHook])
        .on_every_kernel(),
    Scenario::new("mtu_blackhole_body", MTU, |s| small_mtu(s, "big-after-head", true))
        .needs(&[Need::Nft, Need::IcmpHook]),
    Scenario::new("mtu_blackhole_veth", MTU, veth_mtu).own(),
    Scenario::new("mtu_learnt", None, |s| small_mtu(s, "big", false)),
    Scenario::new("mtu_learnt_body", None, |s| small_mtu(s, "big-after-head", false)),
];

/// The pod's link is a macvlan or ipvlan part of the uplink, and the node's route to the pod leads over that uplink.
fn isolated(fixture: &mut Fixture<'_>, part: Part) -> Result<()> {
    let (pod, uplink) = on_uplink(fixture, part)?;
    fixture.node.node.ip(|ip| ip.add(&Route::to_host(pod.ip()).over(&uplink)))?;
    fixture.mentions(&["a host does not reach a", &uplink]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`isolated`], but the node's route leads over a macvlan part of the uplink of its own. That works.
fn over_own_part(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, uplink) = on_uplink(fixture, Part::Macvlan)?;
    let node = fixture.node.node.as_fd().try_clone_to_owned()?;
    let own = uplink.replace("up", "shim");
    fixture.node.node.ip(|ip| {
        ip.part_of(&uplink, Part::Macvlan, &own, node.as_fd())?;
        ip.up(&own)?;
        ip.add(&Route::to_host(pod.ip()).over(&own))
    })?;
    fixture.succeeds(Kind::Http, pod)
}

/// Adds a pod on a part of a new uplink. Returns the pod's address and the uplink.
fn on_uplink(fixture: &mut Fixture<'_>, part: Part) -> Result<(SocketAddr, String)> {
    let (index, uplink) = fixture.node.part_pod(part)?;
    let pod = fixture.node.pod_at(index)?;
    pod.serve(fixture.options, &["http", &format!("[::]:{HTTP}")])?;
    Ok((pod.addr(fixture.family, HTTP), uplink))
}

/// The node's end of the link of a pod without a bridge is down, and the pod's route went with it.
fn down_with_own_route(fixture: &mut Fixture<'_>) -> Result<()> {
    // Without a port that is up, the bridge loses its carrier, and with it the route to its subnet.
    fixture.serving("http", HTTP)?;
    let (pod, end) = with_own_route(fixture)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| ip.down(&end))?;
    fixture.mentions(&[&end, " on the node is down, set down by "]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The veth between the node's bridge and that of the pod is down. The node has to resolve the pod's address again.
fn down_between_bridges(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.serving("http", HTTP)?;
    let pod = behind_second_bridge(fixture)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| {
        ip.down("j1")?;
        ip.forget_neighbours("cni0")
    })?;
    fixture.mentions(&["j1 on the node is down, set down by "]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// One end of the pod's veth pair is down.
fn link_down(fixture: &mut Fixture<'_>, which: &str) -> Result<()> {
    // tracer must know the pod before its link fails. Each attempt makes it search the namespaces for the pod.
    // It searches at most every 150 ms, and other scenarios cause searches, too. So the answers are slow.
    let pod = fixture.serving("slow:100", HTTP)?;
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    if which != "eth0" {
        let index = fixture.pod_of(pod)?.index;
        fixture.mentions(&[&format!("v{index} "), "on the node is down"]);
    }
    set_down(fixture, pod, which)?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`link_down`]: the link is up right after the attempt. The second SYN had waited for the pod's link-layer address.
/// It leaves then, and the prober's kernel refuses the answer to it.
fn up_after_the_end(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:100", PATIENT)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    fixture.mentions(&[&format!("{end} "), "on the node is down"]);
    set_down(fixture, pod, "veth")?;
    fixture.fails_while(pod, 2 * fixture.options.probe_timeout, &[Ending::Timeout], |_| Ok(()))?;
    fixture.node.node.ip(|ip| ip.up(&end))?;
    // The kernel asks for the address once a second (`retrans_time_ms`).
    thread::sleep(Duration::from_millis(1_500));
    Ok(())
}

/// As [`link_down`], by a process that removes the link. The neighbour entry of the pod stays reachable.
fn removed(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:100", HTTP)?;
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    fixture.mentions(&["eth0 in ", "is gone or down, set down by "]);
    fixture.inside(pod)?.ip(|ip| ip.delete("eth0"))?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`link_down`], by a process that takes the address from the link. The link stays up.
fn address_removed(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:300", HTTP)?;
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    fixture.mentions(&["eth0 in ", "has lost the address "]);
    fixture.inside(pod)?.ip(|ip| ip.remove_address(pod.ip(), 24, "eth0"))?;
    fixture.gets_no_answer(Kind::Http, pod)?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`link_down`]: without the pod's carrier, the bridge floods the SYN. A rule for the port of another pod drops its
/// copy.
fn link_down_flooded(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:100", HTTP)?;
    let other = fixture.node.pod()?.index;
    fixture.node.node.nft(&format!(
        "table bridge ports {{ chain out {{ type filter hook output priority 0; oifname v{other} ip protocol tcp drop; }}; }}\n"
    ))?;
    (0..3).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    set_down(fixture, pod, "eth0")?;
    // The bridge forgets the pod's port a moment after the carrier went.
    fixture.gets_no_answer(Kind::Http, pod)?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// As [`link_down`], while a packet capture on the node does not read its buffer. The kernel drops its copy of each SYN.
fn link_down_captured(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("slow:100", HTTP)?;
    let _capture = fixture.node.node.enter(|| {
        let capture = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        setsockopt(&capture, RcvBuf, &0)?;
        Ok(capture)
    })?;
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    set_down(fixture, pod, "eth0")?;
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
    (0..2).try_for_each(|_| fixture.succeeds(Kind::Http, pod))?;
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |fixture| {
        // The request has arrived by then.
        thread::sleep(timeout / 4);
        set_down(fixture, pod, which)
    })
}

/// The pod's link is removed while a probe waits, before tracer reads the server for the first time.
fn removed_before_reading(fixture: &mut Fixture<'_>) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow:{}", (timeout / 2).as_millis()), HTTP)?;
    fixture.mentions(&["eth0 in ", "is gone or down, set down by "]);
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |fixture| {
        thread::sleep(timeout / 10);
        fixture.inside(pod)?.ip(|ip| ip.delete("eth0"))
    })
}

/// As [`removed_before_reading`], of an address of the node, as keepalived takes a virtual one away.
fn address_lost(fixture: &mut Fixture<'_>) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let target = fixture.serving_on_node(&format!("slow:{}", (timeout / 2).as_millis()))?;
    fixture.mentions(&["then no link on the node had the target's address"]);
    fixture.fails_while(target, timeout, &[Ending::Timeout], |fixture| {
        thread::sleep(timeout / 10);
        fixture.node.node.ip(|ip| ip.remove_address(NODE, 24, "eth0"))
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
    fixture.mentions(&["cni0 on the node is down, set down by ", "; the route went with it"]);
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
        outside.ip(|ip| ip.remove(&Route::to([10, 88, 0, 0], 16).kind(RouteType::BlackHole)))?;
    }
    fixture.node.node.ip(|ip| {
        ip.address([10, 90, 0, 1], 24, &uplink)?;
        ip.neighbour(router, NODE_MAC, &uplink)?;
        ip.add(&Route::default_via(router).over(&uplink).onlink())?;
        ip.down("cni0")
    })?;
    fixture.mentions(&["cni0 on the node is down, set down by "]);
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

/// As [`detached`], and the node has to resolve the pod's address again.
fn detached_unresolved(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.node.node.ip(|ip| ip.detach(&end))?;
    fixture.node.node.run("ip", &["neigh", "flush", "dev", "cni0"], "")?;
    fixture.mentions(&[&end, "is not attached to cni0", "it left cni0 "]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As [`detached`], while a probe waits for its answer.
fn detached_before_answer(fixture: &mut Fixture<'_>) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow:{}", (timeout / 2).as_millis()), HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.mentions(&[&end, "left cni0 while the prober waited"]);
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |fixture| {
        thread::sleep(timeout / 4);
        fixture.node.node.ip(|ip| ip.detach(&end))
    })
}

/// The node's end of the pod's link is made a port of another bridge.
fn other_bridge(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.node.node.ip(|ip| {
        ip.bridge("br1", None)?;
        ip.up("br1")?;
        ip.set_master(&end, "br1")
    })?;
    fixture.mentions(&[&end, "is not attached to cni0", "it left cni0 ", "is a port of br1 now"]);
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

/// The node's end of the pod's veth has a smaller MTU than the pod's. By itself the bridge would take the smallest MTU of
/// its ports, and the prober would tell the pod.
fn veth_mtu(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("full-segment", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.node.node.ip(|ip| {
        ip.set_mtu(&end, 1280)?;
        ip.set_mtu("cni0", 1500)
    })?;
    fixture.mentions(&["the other end of eth0 in ", "its MTU is smaller"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}
