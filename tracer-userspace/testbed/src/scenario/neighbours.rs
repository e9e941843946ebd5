//! Neighbour entries of the node and of the pod.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::thread;

use anyhow::{Result, bail};
use tracer_model::record::Cause;

use super::fixture::NODE_MAC;
use super::{Fixture, Need, Scenario};
use crate::ip::Route;
use crate::node::link::wait_until_duplicate;
use crate::node::{BRIDGE, BRIDGE6, Family, NODE};
use crate::pods::HTTP;
use crate::probe::{Ending, Kind};

const NEIGHBOUR: Option<Cause> = Some(Cause::NeighbourFailure);
const UNEXPLAINED: Option<Cause> = Some(Cause::Unexplained);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("neighbour_failure", NEIGHBOUR, deaf).on_every_kernel(),
    Scenario::new("neighbour_failure_v6", NEIGHBOUR, deaf).v6().needs(&[Need::Nft]).on_every_kernel(),
    Scenario::new("neighbour_failure_nested_bridge", NEIGHBOUR, deaf_behind_second_bridge).own(),
    Scenario::new("neighbour_failure_wrong_entry", NEIGHBOUR, wrong_entry).own(),
    Scenario::new("neighbour_failure_other_pod", NEIGHBOUR, entry_of_other_pod).own().and_v6(),
    // The pod's neighbour entry for the node is wrong.
    Scenario::probed("neighbour_failure_wrong_entry_back", NEIGHBOUR, "http", Ending::Timeout)
        .succeeds_first()
        .fault(misdirect_back)
        .names(&["has 02:00:00:00:00:01, and cni0 on the node has 0a:58:0a:58:00:01"])
        .own()
        .needs(&[Need::RealProcessor])
        .and_v6(),
    Scenario::new("neighbour_failure_gateway_entry_back", NEIGHBOUR, gateway_entry_back)
        .own()
        .needs(&[Need::RealProcessor])
        .unfixable(),
    Scenario::new("neighbour_failure_gateway", NEIGHBOUR, wrong_gateway).own(),
    Scenario::new("neighbour_failure_way_back", NEIGHBOUR, gateway_back).and_v6(),
    Scenario::new("neighbour_failure_duplicate_v6", NEIGHBOUR, duplicate).v6(),
    Scenario::new("neighbour_failure_tentative_v6", NEIGHBOUR, tentative).v6().own(),
    Scenario::new("neighbour_failure_own_route_gone", NEIGHBOUR, own_route_gone).own(),
    Scenario::new("neighbour_failure_address_lost", NEIGHBOUR, address_lost).own(),
    Scenario::new("unexplained_answer_lost", UNEXPLAINED, answer_lost).and_v6(),
];

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

/// As [`deaf`], behind a bridge that a veth joins with the node's own. It was down for a moment, and the route is right.
fn deaf_behind_second_bridge(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = behind_second_bridge(fixture)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.inside(pod)?.ip(|ip| ip.disable_arp("eth0"))?;
    fixture.node.node.ip(|ip| {
        ip.down("br1")?;
        ip.up("br1")?;
        ip.forget_neighbours("cni0")
    })?;
    fixture.mentions(&["nobody answered"]);
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// A pod behind bridge `br1`, of which the end `j1` of a veth leads to the node's own bridge.
pub(super) fn behind_second_bridge(fixture: &mut Fixture<'_>) -> Result<SocketAddr> {
    let pod = fixture.serving("http", HTTP)?;
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    let node = fixture.node.node.as_fd().try_clone_to_owned()?;
    fixture.node.node.ip(|ip| {
        ip.bridge("br1", None)?;
        ip.veth("j0", "j1", node.as_fd())?;
        [("j0", "cni0"), ("j1", "br1"), (&end, "br1")]
            .into_iter()
            .try_for_each(|(port, to)| ip.set_master(port, to))?;
        ["br1", "j0", "j1"].into_iter().try_for_each(|link| ip.up(link))
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

/// The route to the pod leads to a gateway that is not there.
fn wrong_gateway(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    (fixture.watch)()?;
    let (uplink, _) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| ip.add(&Route::to_host(pod.ip()).via([10, 77, 0, 9]).over(&uplink).onlink()))?;
    fixture.mentions(&["10.77.0.9 (the gateway to", &uplink]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// A pod with an address of its own, as Calico makes it, loses its route. A bridge with a wider subnet takes its packets.
fn own_route_gone(fixture: &mut Fixture<'_>) -> Result<()> {
    // Without a port that is up, the bridge loses its carrier, and the kernel forgets its neighbours at some moment.
    fixture.serving("http", HTTP)?;
    let (pod, end) = with_own_route(fixture)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| ip.remove(&Route::to_host(pod.ip()).over(&end)))?;
    fixture.gets_no_answer(Kind::Http, pod)
}

/// A pod with an address and a route of its own, as Calico and the AWS VPC CNI make it, and the node's end of its link.
pub(super) fn with_own_route(fixture: &mut Fixture<'_>) -> Result<(SocketAddr, String)> {
    let pod = fixture.serving("http", HTTP)?;
    let IpAddr::V4(address) = pod.ip() else { bail!("IPv4 only") };
    let end = format!("v{}", fixture.pod_of(pod)?.index);
    fixture.inside(pod)?.ip(|ip| {
        ip.remove_address(address, 24, "eth0")?;
        ip.address(address, 32, "eth0")?;
        ip.add(&Route::to_host(BRIDGE).over("eth0"))
    })?;
    fixture.node.node.ip(|ip| {
        ip.detach(&end)?;
        ip.add(&Route::to_host(address).over(&end))
    })?;
    Ok((pod, end))
}

/// The pod has an entry of its gateway, as the AWS VPC CNI and Azure CNI make it. Then the node's end of its link gets
/// another link-layer address, as systemd gives it one (MACAddressPolicy=persistent).
fn gateway_entry_back(fixture: &mut Fixture<'_>) -> Result<()> {
    const GATEWAY: [u8; 4] = [169, 254, 1, 1];
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
    let (pod, end) = with_own_route(fixture)?;
    fixture.node.node.ip(|ip| ip.set_mac(&end, NODE_MAC))?;
    fixture.inside(pod)?.ip(|ip| {
        ip.remove(&Route::to_host(BRIDGE).over("eth0"))?;
        ip.neighbour(GATEWAY, NODE_MAC, "eth0")?;
        ip.add(&Route::to_host(BRIDGE).via(GATEWAY).over("eth0").onlink())
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.ip(|ip| ip.set_mac(&end, OTHER_MAC))?;
    fixture.mentions(&["the sender's neighbour entry of 169.254.1.1 is wrong"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The pod's route back leads over a gateway that nobody answers for, as Calico's does without proxy_arp.
fn gateway_back(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    let gateway: IpAddr = match fixture.family {
        Family::V4 => [169, 254, 1, 1].into(),
        Family::V6 => [0xfe80, 0, 0, 0, 0, 0, 0, 0x1ee7].into(),
    };
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

/// The pod got its address just now: its kernel still asks whether another host has it.
fn tentative(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let IpAddr::V6(address) = pod.ip() else { bail!("IPv6 only") };
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv6/conf/eth0/accept_dad", "1"), ("ipv6/conf/eth0/dad_transmits", "600")])?;
    inside.ip(|ip| {
        ip.remove_address(address, 64, "eth0")?;
        ip.address_to_detect(address, 64, "eth0")
    })?;
    fixture.node.node.ip(|ip| ip.forget_neighbours("cni0"))?;
    fixture.mentions(&["does not answer for", "until duplicate address detection is over"]);
    fixture.gets_no_answer(Kind::Http, pod)
}

/// The node gets another address of the same subnet, and the list of pods has the old one.
fn address_lost(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    fixture.succeeds(Kind::Http, target)?;
    fixture.node.node.ip(|ip| {
        ip.remove_address(NODE, 24, "eth0")?;
        ip.address([10, 89, 0, 9], 24, "eth0")
    })?;
    fixture.mentions(&["no link of the node has its address 10.89.0.1"]);
    fixture.gets_no_answer(Kind::Http, target)
}

/// The pod's way back breaks while a probe waits: large segments of its answer are lost, and small ones, too.
fn answer_lost(fixture: &mut Fixture<'_>) -> Result<()> {
    let timeout = fixture.options.probe_timeout;
    let pod = fixture.serving(&format!("slow-big:{}", (timeout / 4).as_millis()), HTTP)?;
    // The bridge floods the answer to this pod, which is not a drop that explains anything.
    fixture.pod(HTTP)?;
    fixture.fails_while(pod, timeout, &[Ending::Timeout], |fixture| {
        fixture.wait_for_request(pod)?;
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
pub(super) fn node_of(pod: SocketAddr) -> IpAddr {
    if pod.is_ipv4() { BRIDGE.into() } else { BRIDGE6.into() }
}
