//! Failures under a second fault: lost events, new namespaces and probers, reused addresses, a late start, large
//! tables.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tracer_model::record::Cause;

use super::{Fixture, Knows, Need, Proxy, Scenario};
use crate::check::{Claim, Expected};
use crate::net::{Netns, own_name};
use crate::node::{Family, TestNode, ipvs};
use crate::pods::{HTTP, PATIENT};
use crate::probe::{Ending, Kind, ProbeRequest};
use crate::prober::Prober;
use tracer_common::limit::{Limit, Limited};

const RST: Option<Cause> = Some(Cause::MidStreamRst);
const DROP: Option<Cause> = Some(Cause::FirewallDrop);
const COLLISION: Option<Cause> = Some(Cause::NodeportEphemeralCollision);
const NODE_PORT: u16 = 36704;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("fault_ring_overflow", RST, ring_overflow).knows(Knows::ListsAndLosesEvents).on_every_kernel(),
    Scenario::new("fault_ring_overflow_drop", DROP, loss_beside_drop)
        .knows(Knows::ListsAndLosesEvents)
        .needs(&[Need::Nft, Need::PacketSocket]),
    Scenario::new("fault_namespace_churn", RST, namespace_churn).needs(&[Need::Nft]),
    Scenario::new("fault_flood", RST, flood).own(),
    // The sender of a RST is traced after its receiver has it. Only a real processor does that within 2 ms.
    Scenario::new("fault_address_reused", RST, address_reused).needs(&[Need::RealProcessor]),
    Scenario::new("fault_address_reused_healthy", None, healthy_again),
    Scenario::new("fault_prober_restarts", RST, prober_restarts).own(),
    Scenario::new("fault_prober_moves", RST, prober_moves).own(),
    Scenario::new("fault_firewall_before_start", DROP, firewall_before_start).own().needs(&[Need::Nft]),
    Scenario::new("fault_rst_after_answer", None, rst_after_answer).and_v6(),
    Scenario::new("fault_pod_deleted_while_probed", Some(Cause::ClosedWithoutAnswer), pod_deleted),
    Scenario::new("fault_ipvs_10000_services", COLLISION, many_services).proxy(Proxy::Ipvs).needs(&[Need::Ipvs]).own(),
];

/// The first SYN gets no answer. Many probes at once overrun the ring. A rule drops the next SYN, and tracer sees it.
fn loss_beside_drop(fixture: &mut Fixture<'_>) -> Result<()> {
    let good = fixture.serving("http", HTTP)?;
    let mute = fixture.node.bare_pod()?;
    let pod = mute.addr(Family::V4, PATIENT);
    mute.serve(fixture.options, &["mute", "eth0", &pod.ip().to_string()])?;
    let (probe, count) = (ProbeRequest::new(Kind::Http, good, fixture.options.patience), fixture.options.crowd / 5);
    let attempt = fixture.begin(pod, fixture.expected_verdict()?)?;
    let outcome = fixture.probe_while(pod, fixture.options.patience / 3, |fixture, _| {
        thread::sleep(fixture.options.probe_timeout / 4);
        fixture.prober.crowd(probe, count)?;
        let chain = format!("type filter hook output priority 0; ip daddr {} drop;", pod.ip());
        fixture.node.node.nft(&format!("table inet quarantine {{ chain out {{ {chain} }}; }}\n"))
    });
    fixture.node.node.nft("delete table inet quarantine\n")?;
    fixture.done.loss = true;
    fixture.end(attempt, &outcome??, &[Ending::Timeout])
}

/// Many probes at once and a ring of one page. A failure meanwhile gets its cause, `unexplained` or no verdict. A
/// failure after that gets its cause.
fn ring_overflow(fixture: &mut Fixture<'_>) -> Result<()> {
    let (good, bad) = (fixture.serving("http", HTTP)?, fixture.serving("rst", HTTP)?);
    (fixture.watch)()?;
    let mut second = Prober::start(&fixture.node.node, fixture.options)?;
    let probe = ProbeRequest::new(Kind::Http, good, fixture.options.patience);
    let count = fixture.options.crowd / 5;
    let claim = fixture.begin(good, Claim::Nothing)?;
    thread::scope(|scope| {
        let crowd = scope.spawn(move || second.crowd(probe, count));
        for _ in 0..20 {
            fixture.attempt(Kind::Http, bad, Ending::Reset, Claim::AtMost(Cause::MidStreamRst))?;
        }
        crowd.join().map_err(|_| anyhow!("the crowd panicked"))?
    })?;
    fixture.done.quiet.push((claim, count));
    fixture.done.loss = true;
    // tracer reports a loss within a second. The loss weakens verdicts about attempts of the same time.
    thread::sleep(Duration::from_millis(2200));
    fixture.fails(Kind::Http, bad, Ending::Reset)
}

/// Another thread creates and removes many namespaces a second.
fn namespace_churn(fixture: &mut Fixture<'_>) -> Result<()> {
    let (good, bad, slow) =
        (fixture.serving("http", HTTP)?, fixture.serving("rst", HTTP)?, fixture.serving("hang", HTTP)?);
    let dropping = fixture.serving("http", HTTP)?;
    fixture.input_rule(dropping, "tcp dport 8080 drop;")?;
    let (over, made) = (AtomicBool::new(false), AtomicU32::new(0));
    let began = Instant::now();
    thread::scope(|scope| {
        let churn = scope.spawn(|| churn(&over, &made));
        let ran = (|| {
            for _ in 0..10 {
                fixture.succeeds(Kind::Http, good)?;
                fixture.fails(Kind::Http, bad, Ending::Reset)?;
            }
            for (cause, pod) in [(Cause::SlowResponse, slow), (Cause::FirewallDrop, dropping)] {
                let claim = fixture.verdict(cause);
                fixture.attempt(Kind::Http, pod, Ending::Timeout, claim)?;
            }
            fixture.succeeds(Kind::Http, good)
        })();
        over.store(true, Ordering::Relaxed);
        let churned = churn.join().map_err(|_| anyhow!("the thread that makes namespaces panicked"))?;
        ran.and(churned)
    })?;
    let (made, seconds) = (made.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    fixture.done.measured.push(format!("{:.0} namespaces made and removed a minute", f64::from(made) / seconds * 60.0));
    // An emulated machine makes only a few. The result says how many.
    if made == 0 { bail!("no namespace was made and removed in {seconds:.1} s") } else { Ok(()) }
}

fn churn(over: &AtomicBool, made: &AtomicU32) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        let number = made.fetch_add(1, Ordering::Relaxed);
        let ns = Netns::create(&own_name(format_args!("churn{number}")))?;
        ns.ip(|ip| ip.up("lo"))?;
    }
    Ok(())
}

/// A process without privileges opens files and listens all the time. The verdicts stay the same, and the programs
/// count the events that they did not report.
fn flood(fixture: &mut Fixture<'_>) -> Result<()> {
    let (good, bad) = (fixture.serving("http", HTTP)?, fixture.serving("rst", HTTP)?);
    (fixture.watch)()?;
    let (over, patience) = (AtomicBool::new(false), fixture.options.patience);
    let ((opened, many_opens), (listened, many_listeners)) = thread::scope(|scope| {
        let opens = scope.spawn(|| repeat(&over, Limited::Open, patience, || _ = File::open("/run/netns/not-there")));
        let listens = scope.spawn(|| repeat(&over, Limited::Listen, patience, || _ = TcpListener::bind("127.0.0.1:0")));
        let ran = (0..10).try_for_each(|_| {
            fixture.succeeds(Kind::Http, good)?;
            fixture.fails(Kind::Http, bad, Ending::Reset)
        });
        over.store(true, Ordering::Relaxed);
        let ended = opens.join().and_then(|opened| Ok((opened, listens.join()?)));
        ran.and(ended.map_err(|_| anyhow!("a thread of the flood panicked")))
    })?;
    fixture.done.measured.push(format!("{opened} opens, {listened} listeners"));
    if !many_opens && !many_listeners {
        bail!("{opened} opens and {listened} listeners are no flood: all of them are reported");
    }
    fixture.done.loss = true;
    Ok(())
}

/// Repeats `action` until `over` is set and, within `patience`, the limits must have suppressed an event. Returns the
/// number of repetitions, and whether they exceed the limits.
fn repeat(over: &AtomicBool, what: Limited, patience: Duration, mut action: impl FnMut()) -> (u64, bool) {
    const MARGIN: u64 = 100;
    let (began, limits) = (Instant::now(), [what.own(), what.shared()]);
    let allowed = |limit: &Limit| limit.burst + began.elapsed().as_nanos() as u64 / limit.every_ns;
    let reported = || limits.iter().map(allowed).sum::<u64>();
    let mut count = 0;
    while !over.load(Ordering::Relaxed) || count < reported() + MARGIN && began.elapsed() < patience {
        action();
        count += 1;
    }
    (count, count >= reported() + MARGIN)
}

/// A pod is deleted, and a new one gets its address at once. The verdict names the namespace of the new pod.
fn address_reused(fixture: &mut Fixture<'_>) -> Result<()> {
    let addr = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, addr)?;
    for _ in 0..3 {
        let place = replace(fixture, addr, "rst")?;
        let expected = Expected { place: Some(place), ..Expected::failure(Cause::MidStreamRst, true) };
        fixture.attempt(Kind::Http, addr, Ending::Reset, Claim::Verdict(expected))?;
    }
    Ok(())
}

/// A pod with a failed probe is deleted. A healthy pod gets its address.
fn healthy_again(fixture: &mut Fixture<'_>) -> Result<()> {
    let addr = fixture.serving("rst", HTTP)?;
    let failed = fixture.verdict(Cause::MidStreamRst);
    fixture.attempt(Kind::Http, addr, Ending::Reset, failed)?;
    replace(fixture, addr, "http")?;
    fixture.succeeds(Kind::Http, addr)?;
    fixture.succeeds(Kind::Tcp, addr)
}

/// Replaces the pod by one with the same address, and returns the inode number of its network namespace.
fn replace(fixture: &mut Fixture<'_>, addr: SocketAddr, mode: &str) -> Result<u32> {
    let options = fixture.options;
    let index = fixture.pod_of(addr)?.index;
    let pod = fixture.node.replace(index)?;
    pod.serve(options, &[mode, &format!("[::]:{HTTP}")])?;
    Ok(pod.ns.inum())
}

/// The kubelet restarts: a new process with the same name.
fn prober_restarts(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("rst", HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Reset)?;
    for _ in 0..3 {
        *fixture.prober = Prober::start(&fixture.node.node, fixture.options)?;
        // tracer must know the new process at its first probe.
        fixture.fails(Kind::Http, pod, Ending::Reset)?;
    }
    Ok(())
}

/// The kubelet restarts in another network namespace, with the addresses and pods of another node.
fn prober_moves(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("rst", HTTP)?;
    fixture.fails(Kind::Http, pod, Ending::Reset)?;
    let mut node = TestNode::new("moved")?;
    *fixture.prober = Prober::start(&node.node, fixture.options)?;
    std::mem::swap(fixture.node, &mut node);
    let (bad, good) = (fixture.serving("rst", HTTP)?, fixture.serving("http", HTTP)?);
    fixture.fails(Kind::Http, bad, Ending::Reset)?;
    fixture.succeeds(Kind::Http, good)
}

/// The rule drops packets before the tracer starts.
fn firewall_before_start(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.input_rule(pod, "tcp dport 8080 drop;")?;
    let before = fixture.begin_unwatched(pod, Claim::Nothing);
    let outcome = fixture.prober.probe(ProbeRequest::new(Kind::Http, pod, fixture.options.probe_timeout))?;
    fixture.end(before, &outcome, &[Ending::Timeout])?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The server sends a complete answer, and then a RST. The probe succeeds.
fn rst_after_answer(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("rst-after", HTTP)?;
    (0..5).try_for_each(|_| fixture.succeeds(Kind::Http, pod))
}

/// The pod's process is killed while the probe waits for its answer, as when a pod is deleted.
fn pod_deleted(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("hang", HTTP)?;
    fixture.fails_while(pod, fixture.options.patience, &[Ending::Eof], |fixture| {
        fixture.wait_for_request(pod)?;
        fixture.pod_of(pod)?.stop();
        Ok(())
    })
}

/// A source port is one NodePort of 10,000 Services. Neither the start of the tracer nor the verdict may take longer.
fn many_services(fixture: &mut Fixture<'_>) -> Result<()> {
    const SERVICES: u32 = 10_000;
    let pod = fixture.serving("http", HTTP)?;
    let backend = fixture.serving("http", HTTP)?;
    ipvs::node_port(&fixture.node.node, NODE_PORT, Some(backend))?;
    ipvs::cluster_ips(&fixture.node.node, SERVICES, backend).context("fill the table")?;
    fixture.node.set_source_port(NODE_PORT)?;
    let began = Instant::now();
    (fixture.watch)()?;
    fixture
        .done
        .measured
        .push(format!("the tracer started within {:.1} s of {SERVICES} Services", began.elapsed().as_secs_f64()));
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}
