//! The stage of one scenario: a node, its prober, and the list of what was done to each attempt.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use tracer_model::record::{Body, Cause, Record};
use tracer_node::clock::boot_ns;

use crate::check::{Attempt, Claim, Expected, Suspect};
use crate::net::Netns;
use crate::node::{Family, Pod, TestNode};
use crate::options::{Options, is_emulated};
use crate::pods::{HTTP, TLS};
use crate::probe::{Ending, Kind, Outcome, ProbeRequest};
use crate::prober::{Prober, shown};
use crate::proc::Proc;
use crate::row::Done;

/// Whether what the tracer reported so far is what is waited for.
pub type Until<'a> = dyn FnMut(&[Record]) -> bool + 'a;

/// Where one scenario plays.
pub struct Fixture<'a> {
    /// Settings.
    pub options: &'a Options,
    /// The node.
    pub node: &'a mut TestNode,
    /// The prober on it.
    pub prober: &'a mut Prober,
    /// The cause of the scenario.
    pub cause: Option<Cause>,
    /// Its address family.
    pub family: Family,
    /// Lets the tracer begin to watch; nothing happens if it does already.
    pub watch: &'a mut dyn FnMut() -> Result<()>,
    /// Waits until what the tracer reported fulfils a condition; false if it does not in time. Without a tracer nothing is waited for.
    pub hear: &'a dyn Fn(&mut Until<'_>) -> bool,
    /// Who must be named by every verdict from now on.
    pub suspect: Option<Suspect>,
    /// What every verdict from now on must say in `also`.
    pub also: Option<Cause>,
    /// What every verdict from now on must mention.
    pub mentioned: Vec<String>,
    /// Keeps helpers of the scenario alive.
    pub helpers: Vec<Proc>,
    pub(crate) done: &'a mut Done,
}

impl Fixture<'_> {
    /// A pod with a server, and the address of `port` on it.
    pub fn serving(&mut self, mode: &str, port: u16) -> Result<SocketAddr> {
        let pod = self.node.pod()?;
        pod.serve(self.options, &[mode, &format!("[::]:{port}")])?;
        Ok(pod.addr(self.family, port))
    }

    /// Waits for this event of the node; the summaries of all such events up to then.
    pub fn event(&self, event: &str, words: &str) -> Result<Vec<String>> {
        let mut summaries = Vec::new();
        let came = (self.hear)(&mut |records| {
            let of_event = records.iter().filter_map(|record| match &record.body {
                Body::Node(node) if node.event == event => Some(node.summary.clone()),
                _ => None,
            });
            summaries = of_event.collect();
            summaries.iter().any(|summary| summary.contains(words))
        });
        if came { Ok(summaries) } else { bail!("no event {event} about {words:?}, but {summaries:?}") }
    }

    /// A pod without a server.
    pub fn idle(&mut self) -> Result<&mut Pod> {
        self.node.pod()
    }

    /// The pod with that address.
    pub fn pod_of(&mut self, addr: SocketAddr) -> Result<&mut Pod> {
        let index = match addr.ip() {
            std::net::IpAddr::V4(ip) => u16::from(ip.octets()[3]),
            std::net::IpAddr::V6(ip) => ip.segments()[7],
        };
        self.node.pod_at(index)
    }

    /// Its namespace.
    pub fn inside(&mut self, addr: SocketAddr) -> Result<&Netns> {
        Ok(&self.pod_of(addr)?.ns)
    }

    /// Gives the pod with that address an nftables chain of input, with these rules.
    pub fn input_rule(&mut self, addr: SocketAddr, rules: &str) -> Result<()> {
        let chain = format!("type filter hook input priority 0; {rules}");
        self.inside(addr)?.nft(&format!("table inet podpolicy {{ chain ingress {{ {chain} }}; }}\n"))
    }

    fn failing(&self) -> Result<Cause> {
        self.cause.context("a scenario without cause has a failing attempt")
    }

    /// An attempt that must fail this way and get the scenario's cause.
    pub fn fails(&mut self, kind: Kind, dst: SocketAddr, how: Ending) -> Result<()> {
        let claim = self.verdict(self.failing()?);
        self.attempt(kind, dst, how, claim)
    }

    /// The same of a pod with a server that does this.
    pub fn serving_fails(&mut self, mode: &str, kind: Kind, how: Ending) -> Result<()> {
        let pod = self.serving(mode, if kind == Kind::Https { TLS } else { HTTP })?;
        self.fails(kind, pod, how)
    }

    /// The same of an attempt by another prober, while something is done.
    pub fn fails_while(
        &mut self,
        dst: SocketAddr,
        timeout: Duration,
        how: Ending,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let mut second = Prober::start(&self.node.node, self.options)?;
        let listed = self.listed(dst, self.verdict(self.failing()?))?;
        let outcome = thread::scope(|scope| {
            let waiting = scope.spawn(move || second.probe(ProbeRequest::new(Kind::Http, dst, timeout)));
            work(self)?;
            waiting.join().map_err(|_| anyhow!("the prober panicked"))?
        })?;
        self.ended(listed, &outcome, &[how])
    }

    /// The same to a target that is no pod of the list.
    pub fn fails_elsewhere(&mut self, kind: Kind, dst: SocketAddr, how: Ending) -> Result<()> {
        let claim = self.elsewhere(self.failing()?);
        self.attempt(kind, dst, how, claim)
    }

    /// The verdict that is due about a connection that is no probe.
    pub fn elsewhere(&self, cause: Cause) -> Claim {
        Claim::Verdict(Expected { culprit: self.suspect.clone(), ..Expected::failure(cause, false) })
    }

    /// What every verdict from now on must mention in its summary.
    pub fn mentions(&mut self, words: &[&str]) -> &mut Self {
        if self.options.names {
            self.mentioned = words.iter().map(ToString::to_string).collect();
        }
        self
    }

    /// An attempt that must succeed and get no verdict.
    pub fn succeeds(&mut self, kind: Kind, dst: SocketAddr) -> Result<()> {
        self.attempt(kind, dst, Ending::Ok, Claim::Nothing)
    }

    /// The verdict that is due.
    pub fn verdict(&self, cause: Cause) -> Claim {
        let (culprit, also) = (self.suspect.clone(), self.also);
        Claim::Verdict(Expected { culprit, also, ..Expected::failure(cause, true) })
    }

    /// An attempt that gets no answer: it times out, or fails when the kernel gives the address up (three
    /// seconds, which an emulated machine's timeout exceeds).
    pub fn gets_no_answer(&mut self, kind: Kind, dst: SocketAddr) -> Result<()> {
        let claim = self.verdict(self.failing()?);
        self.attempt_any(kind, dst, &[Ending::Timeout, Ending::Error], claim)
    }

    /// Makes an attempt, which must end as reported.
    pub fn attempt(&mut self, kind: Kind, dst: SocketAddr, how: Ending, claim: Claim) -> Result<()> {
        self.attempt_any(kind, dst, &[how], claim)
    }

    /// Makes an attempt, which must end in one of these ways.
    pub fn attempt_any(&mut self, kind: Kind, dst: SocketAddr, how: &[Ending], claim: Claim) -> Result<()> {
        // What must time out does so soon; what must succeed has time, however busy the machine is.
        let timeout = if how.contains(&Ending::Timeout) { self.options.probe_timeout } else { self.options.patience };
        let probe = ProbeRequest::new(kind, dst, timeout);
        let listed = self.listed(dst, claim)?;
        let outcome = self.prober.probe(probe)?;
        self.ended(listed, &outcome, how)
    }

    /// An attempt that was listed before it was made is over.
    pub fn ended(&mut self, listed: Attempt, outcome: &Outcome, how: &[Ending]) -> Result<()> {
        expect(outcome, how)?;
        self.done.attempts.push(Attempt { src: outcome.src, until_boot_ns: boot_ns(), ..listed });
        Ok(())
    }

    /// From now on, nothing may be reported of attempts to this target. To be put into `quiet` with their number.
    pub fn quietly(&self, dst: SocketAddr) -> Result<Attempt> {
        self.listed(dst, Claim::Nothing)
    }

    /// Many healthy attempts at once, none of which may get a verdict.
    pub fn crowd(&mut self, kind: Kind, dst: SocketAddr, count: u32, threads: u32) -> Result<()> {
        self.done.quiet.push((self.listed(dst, Claim::Nothing)?, count));
        let all = self.prober.crowd(ProbeRequest::new(kind, dst, self.options.patience), count, threads)?;
        if all.failed > 0 {
            bail!("{} of {count} attempts failed, one of them: {:?}", all.failed, all.example);
        }
        Ok(())
    }

    /// Attempts from several threads in the same microsecond, at this port and those after it, all of which must end so and get the scenario's cause.
    pub fn volley(&mut self, kind: Kind, dst: SocketAddr, how: Ending, rounds: u32) -> Result<()> {
        const THREADS: u32 = 2;
        let cause = self.failing()?;
        // Two threads that take turns on an emulated processor are often in the same program: the kernel skips the second's run.
        let claim = if is_emulated() { Claim::AtMost(cause) } else { self.elsewhere(cause) };
        let listed = self.listed(dst, claim)?;
        let probe = ProbeRequest::new(kind, dst, self.options.patience);
        let outcomes = self.prober.volley(probe, rounds, THREADS)?;
        if outcomes.len() != (rounds * THREADS) as usize {
            bail!("{} outcomes of {rounds} rounds of {THREADS}", outcomes.len());
        }
        for outcome in &outcomes {
            // A port is free again when its attempt was refused, and the other thread may be given the same.
            let alike = outcomes.iter().filter(|other| (other.src, other.dst) == (outcome.src, outcome.dst)).count();
            self.ended(Attempt { dst: outcome.dst, alike, ..listed.clone() }, outcome, &[how])?;
        }
        Ok(())
    }

    /// An attempt that is about to be made.
    pub fn listed(&self, dst: SocketAddr, claim: Claim) -> Result<Attempt> {
        Ok(Attempt {
            src: None,
            dst,
            since_boot_ns: boot_ns(),
            until_boot_ns: u64::MAX,
            netns: self.node.node.inum(),
            prober: self.options.prober.clone(),
            claim,
            alike: 1,
            mentions: self.mentioned.clone(),
        })
    }
}

/// The prober must have seen what the failure gives.
fn expect(outcome: &Outcome, how: &[Ending]) -> Result<()> {
    if !how.contains(&outcome.ending) {
        let (src, dst, error) = (shown(outcome.src), outcome.dst, outcome.error.as_deref().unwrap_or("-"));
        bail!(
            "prober {src} -> {dst}: expected {how:?}, got {:?} after {:.0} ms ({error})",
            outcome.ending,
            outcome.elapsed_ms
        );
    }
    Ok(())
}
