//! Attempts with two faults, or with a fault that looks like another one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::check::{Claim, Expected};
use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use tracer_model::record::{Cause, Outcome};

use super::{Fixture, Need, Scenario};
use crate::pods::{HOST, HTTP, PATIENT, PATIENT_TIMEOUT_S};
use crate::probe::{Ending, Kind, ProbeRequest};
use crate::wait::until;

const REFUSED: Option<Cause> = Some(Cause::ConnectionRefused);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("two_causes_drop_then_refused", REFUSED, drop_then_refused).needs(&[Need::Nft]),
    Scenario::new("two_causes_drop_then_reset", Some(Cause::MidStreamRst), drop_then_reset).needs(&[Need::Nft]),
    Scenario::new("two_causes_drop_then_link_down", Some(Cause::PodLinkDown), drop_then_link_down).needs(&[Need::Nft]),
    Scenario::new("two_causes_drop_then_node_drop", Some(Cause::FirewallDrop), drop_then_node_drop).needs(&[Need::Nft]),
    Scenario::new("two_causes_drop_then_stopped", Some(Cause::TargetFrozen), drop_then_stopped)
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("two_causes_request_sent_twice", Some(Cause::SlowResponse), request_sent_twice).needs(&[Need::Nft]),
    Scenario::new("two_causes_listens_on_loopback_only", REFUSED, loopback_only).own(),
    Scenario::new("two_causes_localhost", REFUSED, localhost),
    Scenario::new("two_causes_both_loopbacks", REFUSED, both_loopbacks),
    Scenario::new("two_causes_at_once", REFUSED, at_once).own(),
    Scenario::new("two_causes_flooded_refused", REFUSED, flooded).own().needs(&[Need::Nft]),
    Scenario::new("redirected_to_nobody", REFUSED, redirected).needs(&[Need::NftNat]),
    Scenario::new("healthy_early_hints", None, early_hints),
    Scenario::new("healthy_prober_stops", None, prober_stops),
];

/// Drops SYNs in the pod, and removes the rule after the first drop. The probe of this port has a long timeout, so even
/// on a busy machine, a later SYN arrives without the rule before it.
fn dropped_at_first(fixture: &mut Fixture<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    drop_first(fixture, pod, Duration::from_secs(PATIENT_TIMEOUT_S), &[how], |_| Ok(()))
}

/// As [`dropped_at_first`], but `work` makes the next fault before the rule is removed. The last SYN meets that one.
fn dropped_then(
    fixture: &mut Fixture<'_>,
    how: &[Ending],
    work: impl FnOnce(&mut Fixture<'_>, SocketAddr) -> Result<()>,
) -> Result<()> {
    let pod = fixture.serving("http", PATIENT)?;
    fixture.succeeds(Kind::Http, pod)?;
    drop_first(fixture, pod, 3 * fixture.options.probe_timeout, how, |fixture| work(fixture, pod))
}

fn drop_first(
    fixture: &mut Fixture<'_>,
    pod: SocketAddr,
    timeout: Duration,
    how: &[Ending],
    work: impl FnOnce(&mut Fixture<'_>) -> Result<()>,
) -> Result<()> {
    fixture.input_rule(pod, &format!("tcp dport {PATIENT} counter drop;"))?;
    fixture.fails_while(pod, timeout, how, |fixture| {
        wait_for_drop(fixture, pod)?;
        work(fixture)?;
        fixture.inside(pod)?.nft("delete table inet podpolicy\n")
    })
}

/// The pod's link is set down.
fn drop_then_link_down(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.mentions(&["eth0 in", "is down"]);
    dropped_then(fixture, &[Ending::Timeout, Ending::Error], |fixture, pod| {
        fixture.inside(pod)?.ip(|ip| ip.down("eth0"))
    })
}

/// A rule of the node drops, too.
fn drop_then_node_drop(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.mentions(&["at OUTPUT on the node drops the SYN", "\"quarantine\" in chain inet quarantine out"]);
    let ran = dropped_then(fixture, &[Ending::Timeout], |fixture, pod| {
        let chain = format!("type filter hook output priority 0; ip daddr {} drop comment \"quarantine\";", pod.ip());
        fixture.node.node.nft(&format!("table inet quarantine {{ chain out {{ {chain} }}; }}\n"))
    });
    fixture.node.node.nft("delete table inet quarantine\n")?;
    ran
}

/// Waits until the rule has dropped a packet.
fn wait_for_drop(fixture: &mut Fixture<'_>, pod: SocketAddr) -> Result<()> {
    let inside = fixture.inside(pod)?;
    let list = || inside.run("nft", &["list", "table", "inet", "podpolicy"], "");
    until("the rule has dropped a packet", || Ok(!list()?.contains("packets 0 ")))
}

/// After the rule is gone, nothing listens. A RST after a drop need not come from the rule.
fn drop_then_refused(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", PATIENT)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.pod_of(pod)?.stop();
    dropped_at_first(fixture, pod, Ending::Refused)
}

/// After the rule is gone, the application resets.
fn drop_then_reset(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("rst", PATIENT)?;
    dropped_at_first(fixture, pod, Ending::Reset)
}

/// The process is stopped: its kernel completes the handshake without it.
fn drop_then_stopped(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", PATIENT)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.mentions(&["is stopped by a signal", "of the request lie unread"]);
    let timeout = Duration::from_secs(PATIENT_TIMEOUT_S);
    drop_first(fixture, pod, timeout, &[Ending::Timeout], |fixture| fixture.pod_of(pod)?.halt())
}

/// A rule with one token drops the first request. The server takes the second and never answers it.
fn request_sent_twice(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("hang", HTTP)?;
    let rule = "tcp dport 8080 tcp flags & psh == psh limit rate 1/day burst 1 packets counter drop;";
    fixture.input_rule(pod, rule)?;
    // The kernel sends the request again soon, so the server has most of the timeout.
    let probe = ProbeRequest::new(Kind::Http, pod, 3 * fixture.options.probe_timeout);
    let claim = fixture.expected_verdict()?;
    fixture.request(probe, &[Ending::Timeout], claim)?;
    if !fixture.inside(pod)?.run("nft", &["list", "table", "inet", "podpolicy"], "")?.contains("packets 1 ") {
        bail!("the request was not dropped once");
    }
    Ok(())
}

/// A bridge floods the SYN. A rule for the port of another pod drops its copy, and the target refuses the SYN.
fn flooded(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    let (end, other) = (format!("v{}", fixture.pod_of(pod)?.index), fixture.node.pod()?.index);
    fixture.node.node.nft(&format!(
        "table bridge ports {{ chain out {{ type filter hook output priority 0; oifname v{other} ip protocol tcp counter drop; }}; }}\n"
    ))?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    // The node still knows the pod's link-layer address, and the bridge no longer knows its port.
    fixture.node.node.ip(|ip| {
        ip.detach(&end)?;
        ip.set_master(&end, "cni0")
    })?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    if fixture.node.node.run("nft", &["list", "table", "bridge", "ports"], "")?.contains("packets 0 ") {
        bail!("the bridge did not flood the SYN");
    }
    Ok(())
}

/// Two probes connect to the same port from two processors at the same moment. Each attempt has its own evidence.
fn at_once(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.volley(Kind::Tcp, pod, Ending::Refused, fixture.options.crowd / 50)
}

/// After the first attempt, the process listens, but not on the address that the kubelet connects to.
fn loopback_only(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Refused)?;
    fixture.serve(pod, "http", &format!("127.0.0.1:{HTTP}"))?;
    fixture.mentions(&["listens on 127.0.0.1:8080 only"]);
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// `localhost` is ::1 and 127.0.0.1. After a refusal the prober connects to the second address.
fn localhost(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("127.0.0.1:{HOST}")])?;
    let (first, second) = ((Ipv6Addr::LOCALHOST, HOST), (Ipv4Addr::LOCALHOST, HOST));
    let Claim::Verdict(expected) = fixture.verdict_without_probe(Cause::ConnectionRefused) else {
        bail!("the expectation is not a verdict")
    };
    let retracted = Claim::Verdict(Expected { outcome: Outcome::Noise, ..expected });
    fixture.in_turn([(first.into(), Ending::Refused, retracted), (second.into(), Ending::Ok, Claim::Nothing)])
}

/// A probe names 127.0.0.1, where nobody listens. Another probe of that port names ::1, and succeeds just then.
fn both_loopbacks(fixture: &mut Fixture<'_>) -> Result<()> {
    fixture.node.serve(fixture.options, &["http", &format!("[::1]:{HOST}")])?;
    let (first, second) = ((Ipv4Addr::LOCALHOST, HOST), (Ipv6Addr::LOCALHOST, HOST));
    let claim = fixture.expected_verdict()?;
    fixture.in_turn([(first.into(), Ending::Refused, claim), (second.into(), Ending::Ok, Claim::Nothing)])
}

/// A sidecar's redirect without a sidecar. The RST comes from another port than the prober connects to.
fn redirected(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    super::inside::redirect(fixture, pod, HTTP)?;
    fixture.mentions(&[":15006", "an address translation"]);
    fixture.fails(Kind::Http, pod, Ending::Refused)
}

/// The server sends an interim response (103) before the final one. tracer reads answers after the first attempt.
fn early_hints(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("early-hints", HTTP)?;
    (0..3).try_for_each(|_| fixture.succeeds(Kind::Http, pod))
}

/// The kubelet is stopped while a probe waits for its answer.
fn prober_stops(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("hang", HTTP)?;
    let claim = fixture.begin(pod, Claim::Nothing)?;
    let answer = fixture.probe_while(pod, fixture.options.patience, |fixture, prober| {
        fixture.wait_for_request(pod)?;
        Ok(kill(prober, Signal::SIGKILL)?)
    })?;
    if let Ok(outcome) = answer {
        bail!("the killed prober reported {outcome:?}");
    }
    fixture.done.quiet.push((claim, 1));
    let good = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, good)
}
