//! Rules and routes that a process removes in bulk.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use tracer_model::record::{Body, Cause};

use super::{Fixture, Need, Scenario};
use crate::ip::{Ip, Route, rule_from, rule_to};
use crate::node::{BRIDGE, OUTSIDE};
use crate::pods::{CIRCULAR, HTTP};
use crate::probe::{Ending, Kind};

const ROUTE: Option<Cause> = Some(Cause::RouteUnreachable);
const EVENT: &str = "rules_flushed";
/// A routing table, and the priority of the rules that lead to it.
const TABLE: u8 = 101;
const PRIORITY: u32 = 1000;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("route_unreachable_rules_flushed", ROUTE, rules).own().on_every_kernel(),
    Scenario::new("route_unreachable_rules_restored", ROUTE, restored).own(),
    Scenario::new("route_unreachable_routes_flushed", ROUTE, routes).own(),
    Scenario::new("asymmetric_route_routes_flushed", Some(Cause::AsymmetricRoute), own_routes).own(),
    Scenario::new("asymmetric_route_rules_flushed", Some(Cause::AsymmetricRoute), exceptions).own(),
    Scenario::new("route_unreachable_nat_flushed", ROUTE, nat).own().needs(&[Need::Nft, Need::IcmpHook]),
    Scenario::new("rules_flushed", None, tables).own().needs(&[Need::Nft]),
];

/// Each pod has a rule that leads to a table with the routes to the pods. Without it, there is no route.
fn rules(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, _, _ip) = flush_rules(fixture)?;
    fails_after_flush(fixture, "3 ip rules", pod, Ending::Error)
}

/// The rules are added again, and probes succeed. Later one of them is removed: the flush is not to blame.
fn restored(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, all, mut ip) = flush_rules(fixture)?;
    fixture.event(EVENT, "removed 3 ip rules")?;
    all.iter().try_for_each(|addr| ip.add_rule(&rule_to(*addr, TABLE, PRIORITY)))?;
    fixture.succeeds(Kind::Http, pod)?;
    ip.remove_rule(&rule_to(pod.ip(), TABLE, PRIORITY))?;
    fixture.fails(Kind::Http, pod, Ending::Error)?;
    let mut culprit = None;
    let came = (fixture.wait_for)(&mut |records| {
        let mut verdicts =
            records.iter().filter_map(|it| if let Body::Verdict(it) = &it.body { Some(it) } else { None });
        verdicts.next().inspect(|it| culprit = it.culprit.clone()).is_some()
    });
    if came && culprit.is_none() { Ok(()) } else { bail!("a culprit: {culprit:?}") }
}

/// The routes to the pods are in a table of their own. Each pod has a rule that selects it. Removes these rules, and
/// returns the address of a server, the addresses of all pods, and the socket by which it did that.
fn flush_rules(fixture: &mut Fixture<'_>) -> Result<(SocketAddr, Vec<IpAddr>, Ip)> {
    let (pod, all) = pods(fixture)?;
    let subnet = Route::to([10, 88, 0, 0], 24).over("cni0");
    let node = &fixture.node.node;
    let mut ip = node.enter(Ip::open)?;
    node.enter(|| {
        ip.add(&subnet.clone().in_table(TABLE).source(BRIDGE))?;
        all.iter().try_for_each(|addr| ip.add_rule(&rule_to(*addr, TABLE, PRIORITY)))?;
        ip.remove(&subnet)
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    all.iter().try_for_each(|addr| ip.remove_rule(&rule_to(*addr, TABLE, PRIORITY)))?;
    Ok((pod, all, ip))
}

/// Each pod has a route of its own. Without it, packets to the pod leave by the default route.
fn own_routes(fixture: &mut Fixture<'_>) -> Result<()> {
    let (uplink, _) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| ip.add(&Route::default_via(OUTSIDE).over(&uplink).onlink()))?;
    let (pod, _ip) = flush_routes(fixture)?;
    fixture.mentions(&["while the pod is behind", "its own route was removed"]);
    fails_after_flush(fixture, "3 routes", pod, Ending::Timeout)
}

/// Each pod has a route of its own, and there is no other.
fn routes(fixture: &mut Fixture<'_>) -> Result<()> {
    let (pod, _ip) = flush_routes(fixture)?;
    fails_after_flush(fixture, "3 routes", pod, Ending::Error)
}

/// Replaces the route to the pods by one for each, and removes these. Returns the address of a server, and
/// the socket by which it did that.
fn flush_routes(fixture: &mut Fixture<'_>) -> Result<(SocketAddr, Ip)> {
    let (pod, all) = pods(fixture)?;
    let routes: Vec<Route> = all.iter().map(|addr| Route::to_host(*addr).over("cni0")).collect();
    let mut ip = fixture.node.node.enter(Ip::open)?;
    fixture.node.node.enter(|| {
        routes.iter().try_for_each(|route| ip.add(route))?;
        ip.remove(&Route::to([10, 88, 0, 0], 24).over("cni0"))
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.enter(|| routes.iter().try_for_each(|route| ip.remove(route)))?;
    Ok((pod, ip))
}

/// A rule sends all packets from the node's address to a second uplink. Rules before it make exceptions for the pods.
fn exceptions(fixture: &mut Fixture<'_>) -> Result<()> {
    const MAIN: u8 = 254;
    let (pod, all) = pods(fixture)?;
    let (uplink, _) = fixture.node.uplink()?;
    let mut ip = fixture.node.node.enter(Ip::open)?;
    fixture.node.node.ip(|ip| {
        ip.add(&Route::default_via(OUTSIDE).over(&uplink).onlink().in_table(TABLE))?;
        all.iter().try_for_each(|addr| ip.add_rule(&rule_to(*addr, MAIN, PRIORITY)))?;
        ip.add_rule(&rule_from(BRIDGE.into(), TABLE, PRIORITY + 1))
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    all.iter().try_for_each(|addr| ip.remove_rule(&rule_to(*addr, MAIN, PRIORITY)))?;
    fails_after_flush(fixture, "3 ip rules", pod, Ending::Timeout)
}

/// The rules of the proxy translate the address of a Service. Without them, packets to it leave the node.
fn nat(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let service = SocketAddr::from(CIRCULAR);
    let (uplink, _) = fixture.node.uplink()?;
    fixture.node.node.ip(|ip| {
        // The router there has no route, and answers with an ICMP error.
        ip.address(Ipv4Addr::new(10, 90, 0, 1), 24, &uplink)?;
        ip.add(&Route::default_via(OUTSIDE).over(&uplink))
    })?;
    let to_pod = format!("ip daddr {} tcp dport {} dnat to {pod}", service.ip(), service.port());
    fixture.node.node.nft(&format!(
        "table ip nat {{\n\
         chain OUTPUT {{ type nat hook output priority -100; jump KUBE-SERVICES; }}\n\
         chain KUBE-SERVICES {{ {to_pod}; accept; }}\n\
         }}\n"
    ))?;
    (fixture.watch)()?;
    fixture.node.node.nft("flush ruleset")?;
    let words = "removed 3 rules and the whole nftables table ip nat";
    fixture.event(EVENT, words)?;
    fixture.mentions(&["rule of this node translated 10.96.0.33:80", words, "what led to the Service"]);
    fixture.fails(Kind::Http, service, Ending::Error)
}

/// This process removed the rules by a socket that is still open. Probes fail since then.
fn fails_after_flush(fixture: &mut Fixture<'_>, what: &str, pod: SocketAddr, how: Ending) -> Result<()> {
    let culprit = format!("(pid {}) removed {what}", std::process::id());
    fixture.event(EVENT, &culprit)?;
    fixture.mentions(&[&culprit, "one for this address among them"]);
    fixture.fails(Kind::Http, pod, how)
}

/// Adds three pods. Returns the address of the server of the first, and the addresses of all.
fn pods(fixture: &mut Fixture<'_>) -> Result<(SocketAddr, Vec<IpAddr>)> {
    let serving = fixture.serving("http", HTTP)?;
    let family = fixture.family;
    let mut all = vec![serving.ip()];
    for _ in 0..2 {
        all.push(fixture.node.pod()?.addr(family, HTTP).ip());
    }
    Ok((serving, all))
}

/// First, changes as kube-proxy and CNI plugins make them: no flush. Then `flush ruleset`, as in the script of a
/// firewall: a flush.
fn tables(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let services = "table ip nat {\n\
        chain PREROUTING { type nat hook prerouting priority dstnat; jump KUBE-SERVICES; jump CNI-HOSTPORT-DNAT; accept; }\n\
        chain KUBE-SERVICES { ip daddr 10.96.0.1 accept; ip daddr 10.96.0.2 accept; ip daddr 10.96.0.3 accept; }\n\
        chain CNI-HOSTPORT-DNAT { tcp dport 8080 accept; }\n\
        }\n";
    let firewall = "table inet firewall {\n\
        chain input { type filter hook input priority filter; tcp dport 22 accept; tcp dport 80 accept; udp dport 53 accept; }\n\
        }\n";
    let node = &fixture.node.node;
    node.nft(services)?;
    node.nft(firewall)?;
    (fixture.watch)()?;
    // A full rewrite in one transaction, and in two. Then the last Services go. Then a firewall reloads its table.
    let rules = "add rule ip nat KUBE-SERVICES ip daddr 10.96.0.1 accept\n".repeat(4);
    node.nft(&format!("flush chain ip nat KUBE-SERVICES\n{rules}"))?;
    node.nft("flush chain ip nat KUBE-SERVICES")?;
    node.nft(&rules)?;
    node.nft("flush chain ip nat KUBE-SERVICES")?;
    node.nft(&format!("delete table inet firewall\n{firewall}"))?;
    let subnet = |n: u8| Route::to([10, 77, n, 0], 24).over("eth0");
    node.ip(|ip| {
        (0..4).try_for_each(|n| ip.add(&subnet(n)))?;
        (0..4).try_for_each(|n| ip.remove(&subnet(n)))?;
        (0..4).try_for_each(|n| ip.add(&subnet(n)))
    })?;
    fixture.succeeds(Kind::Http, pod)?;
    // A flush as a marker. Its event would come after an event about the changes above.
    let node = &fixture.node.node;
    node.nft("table ip6 marker { chain c { type filter hook input priority filter; accept; accept; accept; }\n}\n")?;
    node.nft("delete table ip6 marker")?;
    let events = fixture.event(EVENT, "ip6 marker")?;
    if let [one] = events.as_slice() {
        fixture.node.node.nft("flush ruleset")?;
        fixture.event(EVENT, "removed 4 rules and the whole nftables table ip nat")?;
        return if one.starts_with("nft (pid ") {
            fixture.succeeds(Kind::Http, pod)
        } else {
            bail!("not by nft: {one}")
        };
    }
    bail!("events about changes that are no flush: {events:?}")
}
