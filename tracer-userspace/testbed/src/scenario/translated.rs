//! A source NAT between the prober and the pod, as Istio ambient uses for probes.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::Rules::Nft;
use super::{Fixture, Need, Scenario};
use crate::node::Family;
use crate::pods::{HOST, HTTP};
use crate::probe::{Ending, Kind};

pub(super) const ALL: &[Scenario] = &[
    Scenario::probed("healthy_translated", None, "http", Ending::Ok).fault(translate).own().needs(&[Need::Nft]),
    Scenario::new("connection_refused_translated", Some(Cause::ConnectionRefused), refused)
        .own()
        .needs(&[Need::Nft])
        .and_v6(),
    stopped("firewall_drop_translated", Cause::FirewallDrop, Ending::Timeout)
        .in_pod(Nft("table ip guard { chain in { type filter hook input priority 0;
           ip saddr 169.254.7.127 tcp dport 8080 drop; }; }")),
    stopped("firewall_reject_translated", Cause::FirewallReject, Ending::Refused)
        .in_pod(Nft("table ip guard { chain in { type filter hook input priority 0;
           ip saddr 169.254.7.127 tcp dport 8080 reject with tcp reset; }; }")),
    Scenario::new("connection_refused_host_port", Some(Cause::ConnectionRefused), host_port)
        .own()
        .needs(&[Need::NftNat])
        .and_v6(),
];

/// A rule of the pod for the translated address of the prober stops the probe.
const fn stopped(name: &'static str, cause: Cause, how: Ending) -> Scenario {
    Scenario::probed(name, Some(cause), "http", how)
        .fault(translate)
        .names(&["in chain ip guard in", "its source address had been translated"])
        .own()
}

/// The source address of probes after the NAT.
const fn translated_source(family: Family) -> &'static str {
    match family {
        Family::V4 => "169.254.7.127",
        Family::V6 => "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
    }
}

fn translate(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    let family = if pod.is_ipv4() { "ip" } else { "ip6" };
    fixture.node.node.nft(&format!(
        "table {family} translated {{ chain out {{ type nat hook postrouting priority srcnat; \
         {family} daddr {} snat to {}; }}; }}\n",
        pod.ip(),
        translated_source(fixture.family)
    ))
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
