//! More than one thing happens to an attempt, or what happens looks like something else: the last word counts.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use crate::check::{Claim, Expected};
use anyhow::{Result, anyhow, bail};
use tracer_model::record::{Cause, Outcome};

use super::{Need, Scenario, Stage};
use crate::dial::{Dial, Ending, Kind};
use crate::pods::{HOST, HTTP, PATIENT, PATIENT_TIMEOUT_S};
use crate::prober::Prober;

const REFUSED: Option<Cause> = Some(Cause::ConnectionRefused);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("twofold_drop_then_refused", REFUSED, drop_then_refused).needs(&[Need::Nft]),
    Scenario::new("twofold_drop_then_reset", Some(Cause::MidStreamRst), drop_then_reset).needs(&[Need::Nft]),
    Scenario::new("twofold_request_sent_twice", Some(Cause::SlowResponse), request_sent_twice).needs(&[Need::Nft]),
    Scenario::new("twofold_listens_on_loopback_only", REFUSED, loopback_only).own(),
    Scenario::new("twofold_localhost", REFUSED, localhost),
    Scenario::new("twofold_at_once", REFUSED, at_once).own(),
    Scenario::new("redirected_to_nobody", Some(Cause::HandshakeRst), redirected).needs(&[Need::NftNat]),
    Scenario::new("healthy_early_hints", None, early_hints),
    Scenario::new("healthy_prober_stops", None, prober_stops),
];

/// Drops the first SYNs in the pod, until that was once. The tracer gives an attempt up when its probe times out, so the
/// probe of this port waits for several SYNs: one of them finds the rule gone, however busy the machine is.
fn dropped_at_first(stage: &mut Stage<'_>, pod: SocketAddr, how: Ending) -> Result<()> {
    let Some(cause) = stage.cause else { bail!("a scenario without cause has a failing attempt") };
    let chain = format!("type filter hook input priority 0; tcp dport {PATIENT} counter drop;");
    stage.inside(pod)?.nft(&format!("table inet moment {{ chain ingress {{ {chain} }}; }}\n"))?;
    let mut second = Prober::start(&stage.world.node, stage.options)?;
    let dial = Dial::new(Kind::Http, pod, Duration::from_secs(PATIENT_TIMEOUT_S));
    let listed = stage.listed(pod, stage.verdict(cause, Outcome::Failure))?;
    let outcome = thread::scope(|scope| {
        let waiting = scope.spawn(move || second.dial(dial));
        has_dropped(stage, pod)?;
        stage.inside(pod)?.nft("delete table inet moment\n")?;
        waiting.join().map_err(|_| anyhow!("the prober panicked"))?
    })?;
    stage.ended(listed, &outcome, &[how])
}

/// Waits until the rule has dropped something.
fn has_dropped(stage: &mut Stage<'_>, pod: SocketAddr) -> Result<()> {
    let began = Instant::now();
    while stage.inside(pod)?.run("nft", &["list", "table", "inet", "moment"], "")?.contains("packets 0 ") {
        if began.elapsed() > stage.options.patience {
            bail!("nothing was dropped");
        }
    }
    Ok(())
}

/// The rule is taken away, and it turns out that nobody listens: a RST after a drop is not always the rule's.
fn drop_then_refused(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", PATIENT)?;
    stage.succeeds(Kind::Http, pod)?;
    stage.pod_of(pod)?.stop();
    dropped_at_first(stage, pod, Ending::Refused)
}

/// The rule is taken away, and the application resets.
fn drop_then_reset(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("rst", PATIENT)?;
    dropped_at_first(stage, pod, Ending::Reset)
}

/// The request is lost once, by a rule whose one token it takes; the second is taken and never answered.
fn request_sent_twice(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("hang", HTTP)?;
    let chain = "type filter hook input priority 0; \
                 tcp dport 8080 tcp flags & psh == psh limit rate 1/day burst 1 packets counter drop;";
    stage.inside(pod)?.nft(&format!("table inet moment {{ chain ingress {{ {chain} }}; }}\n"))?;
    // It is sent again until it is acknowledged: most of the time is the server's.
    let dial = Dial::new(Kind::Http, pod, 3 * stage.options.probe_timeout);
    let listed = stage.listed(pod, stage.verdict(Cause::SlowResponse, Outcome::Failure))?;
    let outcome = stage.prober.dial(dial)?;
    if !stage.inside(pod)?.run("nft", &["list", "table", "inet", "moment"], "")?.contains("packets 1 ") {
        bail!("the request was not dropped once");
    }
    stage.ended(listed, &outcome, &[Ending::Timeout])
}

/// Liveness and readiness dial the same port from two processors at the same moment: each has its own evidence.
fn at_once(stage: &mut Stage<'_>) -> Result<()> {
    let (family, rounds) = (stage.family, stage.options.crowd / 50);
    let pod = stage.idle()?.addr(family, HTTP);
    (stage.watch)()?;
    stage.volley(Kind::Tcp, pod, Ending::Refused, rounds)
}

/// It begins to listen after the first attempt, and not where the kubelet asks.
fn loopback_only(stage: &mut Stage<'_>) -> Result<()> {
    let (family, options) = (stage.family, stage.options);
    let pod = stage.idle()?.addr(family, HTTP);
    (stage.watch)()?;
    stage.fails(Kind::Http, pod, Ending::Refused)?;
    stage.pod_of(pod)?.serve(options, &["http", &format!("127.0.0.1:{HTTP}")])?;
    stage.mentions(&["listens on 127.0.0.1:8080 only"]);
    stage.fails(Kind::Http, pod, Ending::Refused)
}

/// `localhost` is ::1 and 127.0.0.1: the dialer goes on to the second.
fn localhost(stage: &mut Stage<'_>) -> Result<()> {
    stage.world.serve(stage.options, &["http", &format!("127.0.0.1:{HOST}")])?;
    let (first, second) = ((Ipv6Addr::LOCALHOST, HOST), (Ipv4Addr::LOCALHOST, HOST));
    let Claim::Verdict(expected) = stage.elsewhere(Cause::ConnectionRefused) else { bail!("a verdict is due") };
    let taken_back = Claim::Verdict(Expected { outcome: Outcome::Noise, ..expected });
    let [one, other] = [first.into(), second.into()];
    let listed = [stage.listed(one, taken_back)?, stage.listed(other, Claim::Nothing)?];
    let dials = [one, other].map(|dst| Dial::new(Kind::Http, dst, stage.options.patience));
    let outcomes = stage.prober.in_turn(dials)?;
    for ((listed, outcome), how) in listed.into_iter().zip(&outcomes).zip([Ending::Refused, Ending::Ok]) {
        stage.ended(listed, outcome, &[how])?;
    }
    Ok(())
}

/// A sidecar's redirect, and no sidecar: the RST is made under another port than the one that was dialled.
fn redirected(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("http", HTTP)?;
    let chain = "type nat hook prerouting priority -100; tcp dport 8080 redirect to :15006;";
    stage.inside(pod)?.nft(&format!("table ip mesh {{ chain inbound {{ {chain} }}; }}\n"))?;
    stage.mentions(&["an address translation"]);
    stage.fails(Kind::Http, pod, Ending::Refused)
}

/// An interim answer before the real one. The first attempt makes the tracer read answers.
fn early_hints(stage: &mut Stage<'_>) -> Result<()> {
    let pod = stage.serving("early-hints", HTTP)?;
    for _ in 0..3 {
        stage.succeeds(Kind::Http, pod)?;
    }
    Ok(())
}

/// The kubelet is stopped while a probe waits for its answer.
fn prober_stops(stage: &mut Stage<'_>) -> Result<()> {
    let (pod, options) = (stage.serving("hang", HTTP)?, stage.options);
    let claim = stage.quietly(pod)?;
    let mut second = Prober::start(&stage.world.node, options)?;
    let dial = Dial::new(Kind::Http, pod, options.patience);
    let pid = second.pid();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || second.dial(dial));
        stage.pod_of(pod)?.asked(options)?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
        // It has no answer to give any more.
        waiting.join().map_err(|_| anyhow!("the prober panicked"))?.map_or(Ok(()), |_| Err(anyhow!("it was answered")))
    })?;
    stage.quiet.push((claim, 1));
    let after = Claim::Nothing;
    let good = stage.serving("http", HTTP)?;
    stage.attempt(Kind::Http, good, Ending::Ok, after)
}
