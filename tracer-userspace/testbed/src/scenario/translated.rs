//! A source NAT between the prober and the pod, as Istio ambient uses for probes.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::{Fixture, Need, Scenario};
use crate::node::Family;
use crate::pods::{HOST, HTTP};
use crate::probe::{Ending, Kind};

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("healthy_translated", None, healthy).own().needs(&[Need::Nft]),
    Scenario::new("connection_refused_translated", Some(Cause::ConnectionRefused), refused)
        .own()
        .needs(&[Need::Nft])
        .and_v6(),
    Scenario::new("firewall_drop_translated", Some(Cause::FirewallDrop), |s| stopped(s, "drop", Ending::Timeout))
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("firewall_reject_translated", Some(Cause::FirewallReject), |s| {
        stopped(s, "reject with tcp reset", Ending::Refused)
    })
    .own()
    .needs(&[Need::Nft]),
    Scenario::new("connection_refused_host_port", Some(Cause::ConnectionRefused), host_port)
        .own()
        .needs(&[Need::NftNat])
        .and_v6(),
];

/// The source address of probes after the NAT.
const fn translated_source(family: Family) -> &'static str {
    match family {
        Family::V4 => "169.254.7.127",
        Family::V6 => "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
    }
}

fn translate(fixture: &Fixture<'_>, pod: SocketAddr) -> Result<()> {
    let family = if pod.is_ipv4() { "ip" } else { "ip6" };
    fixture.node.node.nft(&format!(
        "table {family} translated {{ chain out {{ type nat hook postrouting priority srcnat; \
         {family} daddr {} snat to {}; }}; }}\n",
        pod.ip(),
        translated_source(fixture.family)
    ))
}

fn healthy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    translate(fixture, pod)?;
    fixture.succeeds(Kind::Http, pod)
}

fn refused(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    translate(fixture, pod)?;
    fixture.mentions(&["its source address had been translated", translated_source(fixture.family)]);
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// The hostPort of a pod without a server has the port of a healthy hostNetwork pod.
fn host_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let (healthy, pod) = (fixture.serving_on_node("http")?, fixture.pod(HTTP)?);
    fixture.succeeds(Kind::Http, healthy)?;
    let family = if pod.is_ipv4() { "ip" } else { "ip6" };
    fixture.node.node.nft(&format!(
        "table {family} hostports {{ chain out {{ type nat hook output priority -100; \
         fib daddr type local tcp dport {HOST} dnat to {pod}; }}; }}\n"
    ))?;
    fixture.mentions(&["where an address translation sends"]);
    fixture.fails(Kind::Http, healthy, Ending::Refused)
}

/// A rule of the pod for the translated address of the prober stops the probe.
fn stopped(fixture: &mut Fixture<'_>, verdict: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    translate(fixture, pod)?;
    let source = translated_source(fixture.family);
    fixture.inside(pod)?.nft(&format!(
        "table ip guard {{ chain in {{ type filter hook input priority 0; ip saddr {source} tcp dport {HTTP} {verdict}; }}; }}\n"
    ))?;
    fixture.mentions(&["in chain ip guard in", "its source address had been translated"]);
    fixture.fails(Kind::Http, pod, how)
}
