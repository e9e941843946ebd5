//! What a scenario works with: a node, its prober, and the list of attempts with their expectations.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::unistd::Pid;
use tracer_model::record::{Body, Cause, Command, Place, Record, Remediation};
use tracer_node::clock::boot_ns;

use super::Case;
use crate::check::{self, Attempt, Claim, Done, Expected};
use crate::ip::Mac;
use crate::net::Netns;
use crate::node::{Family, NODE, NODE6, Pod, TestNode};
use crate::options::{Options, is_emulated};
use crate::pods::{HOST, TLS};
use crate::probe::{Ending, Kind, Outcome, ProbeRequest};
use crate::prober::{Prober, VOLLEY_THREADS, shown};
use crate::proc::Proc;

/// A link-layer address that no link of the testbed has by itself.
pub(super) const NODE_MAC: Mac = [2, 0, 0, 0, 0, 1];

/// A condition for the tracer's records.
pub type Until<'a> = dyn FnMut(&[Record]) -> bool + 'a;

pub struct Fixture<'a> {
    pub options: &'a Options,
    pub node: &'a mut TestNode,
    pub prober: &'a mut Prober,
    pub cause: Option<Cause>,
    pub family: Family,
    pub case: Case,
    /// Attaches the tracer, unless it is attached already. At the latest, the first attempt does so.
    pub watch: &'a mut dyn FnMut() -> Result<()>,
    /// Waits until the records meet a condition. False if they do not in time. Before the tracer is attached it
    /// returns true at once.
    pub wait_for: &'a dyn Fn(&mut Until<'_>) -> bool,
    /// The culprit that verdicts about later attempts must name: see [`Expected::culprit`].
    pub culprit: Option<String>,
    /// A cause that `also` of verdicts about later attempts must contain.
    pub also: Option<Cause>,
    /// What the summaries of verdicts about later attempts must contain.
    pub mentioned: Vec<String>,
    /// Processes that must run until the end of the scenario.
    pub helpers: Vec<Proc>,
    /// The last attempt.
    pub(crate) last: Option<ProbeRequest>,
    pub(crate) done: &'a mut Done,
}

impl Fixture<'_> {
    /// Adds a pod with a server, and returns the server's address.
    pub fn serving(&mut self, mode: &str, port: u16) -> Result<SocketAddr> {
        let pod = self.pod(port)?;
        self.serve(pod, mode, &format!("[::]:{port}"))?;
        Ok(pod)
    }

    /// Starts a server in the node's namespace, on the port of the hostNetwork pod, and returns its address.
    pub fn serving_on_node(&mut self, mode: &str) -> Result<SocketAddr> {
        self.node.serve(self.options, &[mode, &format!("[::]:{HOST}")])?;
        Ok(self.address_on_node())
    }

    /// The address of the hostNetwork pod.
    pub fn address_on_node(&self) -> SocketAddr {
        match self.family {
            Family::V4 => (NODE, HOST).into(),
            Family::V6 => (NODE6, HOST).into(),
        }
    }

    /// Adds a pod without a server, and returns the address of this port.
    pub fn pod(&mut self, port: u16) -> Result<SocketAddr> {
        Ok(self.node.pod()?.addr(self.family, port))
    }

    /// Starts a server that listens at `at` in a pod.
    pub fn serve(&mut self, pod: SocketAddr, mode: &str, at: &str) -> Result<()> {
        let options = self.options;
        self.pod_of(pod)?.serve(options, &[mode, at])
    }

    /// Waits until the newest server of the pod has read a request. It must be in mode `hang`, `slow-big` or `tls-slow`.
    pub fn wait_for_request(&mut self, pod: SocketAddr) -> Result<()> {
        let patience = self.options.patience;
        self.pod_of(pod)?.wait_for_request(patience)
    }

    /// Waits for a node event with these words, and returns the summaries of all such events so far.
    pub fn event(&self, event: &str, words: &str) -> Result<Vec<String>> {
        let mut summaries = Vec::new();
        let came = (self.wait_for)(&mut |records| {
            let of_event = records.iter().filter_map(|record| match &record.body {
                Body::Node(node) if node.event == event => Some(node.summary.clone()),
                _ => None,
            });
            summaries = of_event.collect();
            summaries.iter().any(|summary| summary.contains(words))
        });
        if came { Ok(summaries) } else { bail!("no event {event} about {words:?}, but {summaries:?}") }
    }

    /// The kubelet logs that the readiness probe of this pod failed with this output.
    pub fn kubelet_reports(&self, pod: SocketAddr, output: &str) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let (seconds, micros) = (now.as_secs(), now.subsec_micros());
        let time = format!("{:02}:{:02}:{:02}.{micros:06}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let (pid, name) = (self.prober.pid(), format!("pod-{}", index_of(pod)));
        let mut log = OpenOptions::new().append(true).open(self.options.kubelet_log())?;
        let output = match output.contains('\n') {
            true => format!("<\n\t{}\n >", output.replace('\n', "\n\t")),
            false => format!("{output:?}"),
        };
        // A single write: tracer must not read a part of the line.
        let line = format!(
            "I1127 {time} {pid:7} prober.go:122] \"Probe failed\" probeType=\"Readiness\" pod=\"default/{name}\" containerName=\"app\" probeResult=\"failure\" output={output}\n"
        );
        log.write_all(line.as_bytes()).context("the kubelet's log")
    }

    /// Waits until so many verdicts without a connection have this cause.
    pub fn reported_alone(&self, cause: Cause, count: usize) -> Result<()> {
        let is_alone = |record: &&Record| match &record.body {
            Body::Verdict(body) => body.verdict.cause == cause && body.dst.is_none(),
            _ => false,
        };
        let came = (self.wait_for)(&mut |records| records.iter().filter(is_alone).count() == count);
        if came { Ok(()) } else { bail!("not {count} verdicts {} without a connection", cause.name()) }
    }

    /// The pod with this address.
    pub fn pod_of(&mut self, addr: SocketAddr) -> Result<&mut Pod> {
        self.node.pod_at(index_of(addr))
    }

    /// The namespace of the pod with this address.
    pub fn inside(&mut self, addr: SocketAddr) -> Result<&Netns> {
        Ok(&self.pod_of(addr)?.ns)
    }

    /// Adds an nftables input chain with these rules to the pod with this address.
    pub fn input_rule(&mut self, addr: SocketAddr, rules: &str) -> Result<()> {
        self.inside(addr)?.input_rule(rules)
    }

    fn failing(&self) -> Result<Cause> {
        self.cause.context("a scenario without cause has a failing attempt")
    }

    /// The expected verdict about a failing probe.
    pub fn expected_verdict(&self) -> Result<Claim> {
        Ok(self.verdict(self.failing()?))
    }

    /// Makes an attempt that must end this way and get the scenario's cause.
    pub fn fails(&mut self, kind: Kind, dst: SocketAddr, how: Ending) -> Result<()> {
        let claim = self.expected_verdict()?;
        self.attempt(kind, dst, how, claim)
    }

    /// Plays the [`Case`] of the scenario.
    pub fn case(&mut self) -> Result<()> {
        let Case { probe: (kind, port), how, .. } = self.case;
        let pod = match self.case.server {
            Some(mode) => self.serving(mode, port)?,
            None => self.pod(port)?,
        };
        if self.case.succeeds_first {
            self.succeeds(kind, pod)?;
        }
        (self.case.fault)(self, pod)?;
        if let Some(rules) = self.case.in_pod {
            rules.load(self.inside(pod)?, pod.ip())?;
        }
        if let Some(rules) = self.case.on_node {
            rules.load(&self.node.node, pod.ip())?;
        }
        let claim = self.cause.map_or(Claim::Nothing, |cause| self.verdict(cause));
        self.mentions(self.case.names).attempt(kind, pod, how, claim)?;
        let Some(output) = self.case.kubelet_reports else { return Ok(()) };
        let scheme = if kind == Kind::Https { "https" } else { "http" };
        self.kubelet_reports(pod, &output.replace("{get}", &format!("Get \"{scheme}://{pod}/healthz\"")))?;
        // When the next line has its verdict, tracer has read this one.
        self.kubelet_reports(pod, "cat: /tmp/ready: No such file or directory")?;
        self.reported_alone(Cause::ExecFailed, 1)
    }

    /// Makes such an attempt with another prober while `work` runs.
    pub fn fails_while(
        &mut self,
        dst: SocketAddr,
        timeout: Duration,
        how: &[Ending],
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let attempt = self.begin(dst, self.expected_verdict()?)?;
        let outcome = self.probe_while(dst, timeout, |fixture, _| work(fixture))??;
        self.end(attempt, &outcome, how)
    }

    /// Lets another prober make an attempt while `work` runs, which gets its pid. Returns its answer. The port of the
    /// TLS servers gets HTTPS.
    pub fn probe_while(
        &mut self,
        dst: SocketAddr,
        timeout: Duration,
        work: impl FnOnce(&mut Self, Pid) -> Result<()>,
    ) -> Result<Result<Outcome>> {
        let mut second = Prober::start(&self.node.node, self.options)?;
        let pid = Pid::from_raw(second.pid().cast_signed());
        let probe = ProbeRequest::new(if dst.port() == TLS { Kind::Https } else { Kind::Http }, dst, timeout);
        self.last = Some(probe);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || second.probe(probe));
            work(self, pid)?;
            waiting.join().map_err(|_| anyhow!("the prober panicked"))
        })
    }

    /// Makes such an attempt to a target without a known probe.
    pub fn fails_without_probe(&mut self, kind: Kind, dst: SocketAddr, how: Ending) -> Result<()> {
        let claim = self.verdict_without_probe(self.failing()?);
        self.attempt(kind, dst, how, claim)
    }

    /// The expected verdict about a connection that is not a known probe.
    pub fn verdict_without_probe(&self, cause: Cause) -> Claim {
        Claim::Verdict(Expected { culprit: self.culprit.clone(), ..Expected::failure(cause, false) })
    }

    /// Sets what the summaries of verdicts about later attempts must contain.
    pub fn mentions(&mut self, words: &[&str]) -> &mut Self {
        if self.options.names {
            self.mentioned = words.iter().map(ToString::to_string).collect();
        }
        self
    }

    /// Makes an attempt that must succeed and get no verdict.
    pub fn succeeds(&mut self, kind: Kind, dst: SocketAddr) -> Result<()> {
        self.attempt(kind, dst, Ending::Ok, Claim::Nothing)
    }

    /// The expected verdict about a probe.
    pub fn verdict(&self, cause: Cause) -> Claim {
        let (culprit, also) = (self.culprit.clone(), self.also);
        Claim::Verdict(Expected { culprit, also, ..Expected::failure(cause, true) })
    }

    /// Makes an attempt that gets no answer and the scenario's cause.
    ///
    /// It times out. An emulated machine has a longer timeout. There the kernel may stop resolving the link-layer
    /// address first, after three seconds.
    pub fn gets_no_answer(&mut self, kind: Kind, dst: SocketAddr) -> Result<()> {
        let claim = self.expected_verdict()?;
        self.attempt_any(kind, dst, &[Ending::Timeout, Ending::Error], claim)
    }

    /// Makes an attempt that must end this way.
    pub fn attempt(&mut self, kind: Kind, dst: SocketAddr, how: Ending, claim: Claim) -> Result<()> {
        self.attempt_any(kind, dst, &[how], claim)
    }

    /// Makes an attempt that must end in one of these ways.
    pub fn attempt_any(&mut self, kind: Kind, dst: SocketAddr, how: &[Ending], claim: Claim) -> Result<()> {
        // A short timeout if the attempt must time out, else a generous one: the machine may be busy.
        let timeout = if how.contains(&Ending::Timeout) { self.options.probe_timeout } else { self.options.patience };
        self.request(ProbeRequest::new(kind, dst, timeout), how, claim)
    }

    /// Makes this attempt, which must end in one of these ways.
    pub fn request(&mut self, probe: ProbeRequest, how: &[Ending], claim: Claim) -> Result<()> {
        let attempt = self.begin(probe.dst, claim)?;
        self.last = Some(probe);
        let outcome = self.prober.probe(probe)?;
        self.end(attempt, &outcome, how)
    }

    /// Runs the commands of the last verdict that change the node, if it has some. Then the same attempt must succeed.
    pub(crate) fn apply_fix(&mut self) -> Result<()> {
        let (Some(probe), Some(attempt)) = (self.last, self.done.attempts.last()) else { return Ok(()) };
        let mut commands = Vec::new();
        (self.wait_for)(&mut |records| {
            let is_settled = self.done.fault(records).is_none();
            if let Some(last) = check::last(records, attempt).filter(|_| is_settled) {
                commands = changes(&last.verdict.remediation);
            }
            is_settled
        });
        if commands.is_empty() {
            return Ok(());
        }
        if commands.iter().any(|command| command.contains(FREE_ADDRESS)) {
            let free = self.node.unused_address(self.family, 0).ip().to_string();
            commands.iter_mut().for_each(|command| *command = command.replace(FREE_ADDRESS, &free));
        }
        for command in &commands {
            self.node.node.run("sh", &["-c", command], "")?;
        }
        // Another attempt may still wait for a link-layer address, and the next one would fail with it.
        let again = ProbeRequest::new(probe.kind, probe.dst, 2 * self.options.probe_timeout);
        let is_fixed = (0..3).any(|_| self.prober.probe(again).is_ok_and(|outcome| outcome.ending == Ending::Ok));
        let commands = commands.join("; ");
        if !is_fixed {
            bail!("{dst} still fails after {commands}", dst = probe.dst);
        }
        self.done.measured.push(format!("fixed by: {commands}"));
        Ok(())
    }

    /// Makes two attempts one after the other. `claims` are about a target each.
    pub fn in_turn(&mut self, claims: [(SocketAddr, Ending, Claim); 2]) -> Result<()> {
        let timeout = self.options.patience;
        let probes = claims.each_ref().map(|(dst, ..)| ProbeRequest::new(Kind::Http, *dst, timeout));
        let mut attempts = Vec::new();
        for (dst, how, claim) in claims {
            attempts.push((self.begin(dst, claim)?, how));
        }
        let outcomes = self.prober.in_turn(probes)?;
        attempts.into_iter().zip(outcomes).try_for_each(|((attempt, how), outcome)| self.end(attempt, &outcome, &[how]))
    }

    /// Adds an attempt that has ended, and checks its ending.
    pub fn end(&mut self, attempt: Attempt, outcome: &Outcome, how: &[Ending]) -> Result<()> {
        expect(outcome, how)?;
        self.done.attempts.push(Attempt { src: outcome.src, until_boot_ns: boot_ns(), ..attempt });
        Ok(())
    }

    /// Makes many attempts at the same time that must succeed and get no verdict.
    pub fn crowd(&mut self, kind: Kind, dst: SocketAddr, count: u32) -> Result<()> {
        let attempt = self.begin(dst, Claim::Nothing)?;
        self.done.quiet.push((attempt, count));
        self.prober.crowd(ProbeRequest::new(kind, dst, self.options.patience), count)
    }

    /// Makes attempts from two threads in the same microsecond, with this port and the next ones. All must end this way
    /// and get the scenario's cause.
    pub fn volley(&mut self, kind: Kind, dst: SocketAddr, how: Ending, rounds: u32) -> Result<()> {
        let cause = self.failing()?;
        // On an emulated CPU the threads often run the same program at once. The kernel skips the second run.
        let claim = if is_emulated() { Claim::AtMost(cause) } else { self.verdict_without_probe(cause) };
        let attempt = self.begin(dst, claim)?;
        let probe = ProbeRequest::new(kind, dst, self.options.patience);
        let outcomes = self.prober.volley(probe, rounds)?;
        if outcomes.len() != (rounds * VOLLEY_THREADS) as usize {
            bail!("{} outcomes of {rounds} rounds of {VOLLEY_THREADS}", outcomes.len());
        }
        for outcome in &outcomes {
            // A refused attempt frees its source port, and the other thread may get the same one.
            let is_same = |other: &&Outcome| (other.src, other.dst) == (outcome.src, outcome.dst);
            let same_ports = outcomes.iter().filter(is_same).count();
            self.end(Attempt { dst: outcome.dst, same_ports, ..attempt.clone() }, outcome, &[how])?;
        }
        Ok(())
    }

    /// Starts an attempt. [`Self::end`] adds it to the list.
    pub fn begin(&mut self, dst: SocketAddr, claim: Claim) -> Result<Attempt> {
        (self.watch)()?;
        Ok(self.begin_unwatched(dst, claim))
    }

    /// Starts an attempt, and does not attach the tracer.
    pub fn begin_unwatched(&self, dst: SocketAddr, claim: Claim) -> Attempt {
        Attempt {
            src: None,
            dst,
            since_boot_ns: boot_ns(),
            until_boot_ns: u64::MAX,
            netns: self.node.node.inum(),
            prober: self.options.prober.clone(),
            claim,
            same_ports: 1,
            mentions: self.mentioned.clone(),
        }
    }
}

/// A placeholder of fixes.
const FREE_ADDRESS: &str = "FREE-ADDRESS";

/// The commands that change the node and have no other placeholder.
fn changes(fix: &Remediation) -> Vec<String> {
    const VERBS: &[&str] = &[
        "link set",
        "link add",
        "addr add",
        "addr replace",
        "addr del",
        "neigh del",
        "route add",
        "route replace",
        "kill -CONT",
        "sysctl -w",
    ];
    let is_placeholder = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    let has_placeholder = |run: &str| {
        run.replace(FREE_ADDRESS, "").split([' ', ',', '=', '/']).any(|it| it.split('-').all(is_placeholder))
    };
    let is_change = |it: &&Command| {
        it.place == Place::Node && VERBS.iter().any(|verb| it.run.contains(verb)) && !has_placeholder(&it.run)
    };
    fix.commands.iter().filter(is_change).map(|it| it.run.clone()).collect()
}

/// The number of the pod with this address.
fn index_of(addr: SocketAddr) -> u16 {
    match addr.ip() {
        IpAddr::V4(ip) => u16::from(ip.octets()[3]),
        IpAddr::V6(ip) => ip.segments()[7],
    }
}

/// Fails unless the attempt ended in one of these ways.
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
