//! A source NAT between the prober and the pod, as Istio ambient puts one there for probes.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;

use super::{Need, Scenario, Stage};
use crate::dial::{Ending, Kind};
use crate::pods::HTTP;
use crate::world::Family;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("healthy_translated", None, healthy).own().needs(&[Need::Nft]),
    Scenario::new("connection_refused_translated", Some(Cause::ConnectionRefused), refused).own().needs(&[Need::Nft]),
    Scenario::new("connection_refused_translated_v6", Some(Cause::ConnectionRefused), refused)
        .own()
        .v6()
        .needs(&[Need::Nft]),
    Scenario::new("firewall_drop_translated", Some(Cause::FirewallDrop), dropped).own().needs(&[Need::Nft]),
    Scenario::new("firewall_reject_translated", Some(Cause::FirewallReject), rejected).own().needs(&[Need::Nft]),
];

/// The address that probes have behind it.
const fn behind(family: Family) -> &'static str {
    match family {
        Family::V4 => "169.254.7.127",
        Family::V6 => "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
    }
}

fn translate(stage: &Stage<'_>, pod: SocketAddr) -> Result<()> {
    let family = if pod.is_ipv4() { "ip" } else { "ip6" };
    stage.world.node.nft(&format!(
        "table {family} translated {{ chain out {{ type nat hook postrouting priority srcnat; \
         {family} daddr {} snat to {}; }}; }}\n",
        pod.ip(),
        behind(stage.family)
    ))
}

fn healthy(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    translate(stage, pod)?;
    (stage.watch)()?;
    stage.succeeds(Kind::Http, pod)
}

fn refused(stage: &mut Stage<'_>) -> Result<()> {
    let family = stage.family;
    let pod = stage.idle()?.addr(family, HTTP);
    translate(stage, pod)?;
    (stage.watch)()?;
    stage.mentions(&["its source address was", behind(family)]);
    stage.fails(Kind::Http, pod, Ending::Refused)
}

/// A rule in the pod that knows the prober by the address it has there.
fn rule(stage: &mut Stage<'_>, verdict: &str) -> Result<SocketAddr> {
    let pod = stage.serving("http", HTTP)?;
    translate(stage, pod)?;
    let source = behind(stage.family);
    stage.inside(pod)?.nft(&format!(
        "table ip guard {{ chain in {{ type filter hook input priority 0; ip saddr {source} tcp dport {HTTP} {verdict}; }}; }}\n"
    ))?;
    (stage.watch)()?;
    stage.mentions(&["in chain ip guard in", "its source address was"]);
    Ok(pod)
}

fn dropped(stage: &mut Stage<'_>) -> Result<()> {
    let pod = rule(stage, "drop")?;
    stage.fails(Kind::Http, pod, Ending::Timeout)
}

fn rejected(stage: &mut Stage<'_>) -> Result<()> {
    let pod = rule(stage, "reject with tcp reset")?;
    stage.fails(Kind::Http, pod, Ending::Refused)
}
