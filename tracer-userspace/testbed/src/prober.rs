//! The prober: a process that makes attempts on request. Requests and replies are JSON, one object per line.

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::helper::Role;
use crate::net::Netns;
use crate::options::Options;
use crate::probe::{Ending, Outcome, ProbeRequest, probe};
use crate::proc::Proc;

/// The threads of a crowd, and of a volley.
const CROWD_THREADS: u32 = 8;
pub const VOLLEY_THREADS: u32 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Request {
    /// Attempts, each as soon as the previous one has ended.
    InTurn { probes: Vec<ProbeRequest> },
    /// The same attempt many times.
    Crowd { probe: ProbeRequest, count: u32 },
    /// The same attempt from several threads in the same microsecond, in several rounds. Each round uses the next port,
    /// because the kernel may reuse the source port of a refused connect.
    Volley { probe: ProbeRequest, rounds: u32 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// The prober waits for requests.
    Ready,
    /// The outcomes of `InTurn` or `Volley`, or the failures of `Crowd`.
    Each { outcomes: Vec<Outcome> },
}

/// A running prober.
#[derive(Debug)]
pub struct Prober {
    proc: Proc,
    // Dropped after the process.
    _group: Option<Cgroup>,
    patience: Duration,
}

impl Prober {
    /// Starts a prober in a namespace, and waits until it is ready.
    pub fn start(ns: &Netns, options: &Options) -> Result<Self> {
        let proc = Proc::spawn(options.helper(ns, Role::Kubelet)?)?;
        let group = Cgroup::create(proc.pid())?;
        if let Some(group) = &group {
            group.add(proc.pid())?;
        }
        let line = proc.line(options.patience)?;
        match serde_json::from_str(&line) {
            Ok(Reply::Ready) => Ok(Self { proc, _group: group, patience: options.patience }),
            _ => bail!("prober: {line}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.proc.pid()
    }

    pub fn probe(&mut self, probe: ProbeRequest) -> Result<Outcome> {
        self.in_turn([probe]).map(|[outcome]| outcome)
    }

    /// Makes attempts, one after the other.
    pub fn in_turn<const N: usize>(&mut self, probes: [ProbeRequest; N]) -> Result<[Outcome; N]> {
        let millis = probes.iter().map(|probe| probe.timeout_ms).sum();
        let outcomes = self.each(&Request::InTurn { probes: probes.to_vec() }, millis)?;
        outcomes.try_into().map_err(|it| anyhow!("{N} attempts, but {it:?}"))
    }

    /// Makes the same attempt many times. All must succeed.
    pub fn crowd(&mut self, probe: ProbeRequest, count: u32) -> Result<()> {
        let millis = 100 * u64::from(count) + probe.timeout_ms;
        let failed = self.each(&Request::Crowd { probe, count }, millis)?;
        if let Some(example) = failed.first() {
            bail!("{} of {count} attempts failed, one of them: {example:?}", failed.len());
        }
        Ok(())
    }

    /// Makes the same attempt from several threads at the same time.
    pub fn volley(&mut self, probe: ProbeRequest, rounds: u32) -> Result<Vec<Outcome>> {
        self.each(&Request::Volley { probe, rounds }, 100 * u64::from(rounds) + probe.timeout_ms)
    }

    fn each(&mut self, request: &Request, millis: u64) -> Result<Vec<Outcome>> {
        self.proc.say(&serde_json::to_string(request)?)?;
        let line = self.proc.line(self.patience + Duration::from_millis(millis))?;
        match serde_json::from_str(&line) {
            Ok(Reply::Each { outcomes }) => Ok(outcomes),
            _ => bail!("prober: {line}"),
        }
    }
}

/// The source of an attempt, for a message.
pub fn shown(src: Option<SocketAddr>) -> String {
    src.map_or_else(|| "?".to_owned(), |a| a.to_string())
}

/// The process of the prober. It reads requests from stdin. As in Go, the first thread never makes an attempt: each
/// request has its own thread.
pub fn serve() -> Result<()> {
    say(&Reply::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let request: Request = serde_json::from_str(&line).with_context(|| format!("request {line:?}"))?;
        thread::spawn(move || say(&answer(request)));
    }
    Ok(())
}

fn say(reply: &Reply) -> Result<()> {
    println!("{}", serde_json::to_string(reply)?);
    Ok(())
}

fn answer(request: Request) -> Reply {
    let outcomes = match request {
        Request::Crowd { probe, count } => crowd(&probe, count),
        Request::InTurn { probes } => probes.iter().map(probe).collect(),
        Request::Volley { probe, rounds } => volley(&probe, rounds),
    };
    Reply::Each { outcomes }
}

fn volley(what: &ProbeRequest, rounds: u32) -> Vec<Outcome> {
    let arrived = AtomicU32::new(0);
    let all = |_| (0..rounds).map(|n| at_once(&next(what, n), &arrived, (n + 1) * VOLLEY_THREADS)).collect();
    in_threads(VOLLEY_THREADS, all)
}

/// Makes attempts in several threads at the same time. Each gets its number.
fn in_threads(threads: u32, work: impl Fn(u32) -> Vec<Outcome> + Sync) -> Vec<Outcome> {
    let work = &work;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|n| scope.spawn(move || work(n))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    })
}

/// The same attempt with the n-th port after its own.
fn next(what: &ProbeRequest, n: u32) -> ProbeRequest {
    let mut next = *what;
    next.dst.set_port(what.dst.port().wrapping_add(n as u16));
    next
}

/// Makes the attempt when `all` threads have arrived. `std::sync::Barrier` is not used: it wakes threads one by one.
fn at_once(what: &ProbeRequest, arrived: &AtomicU32, all: u32) -> Outcome {
    arrived.fetch_add(1, Ordering::AcqRel);
    while arrived.load(Ordering::Acquire) < all {
        thread::yield_now();
    }
    probe(what)
}

/// The failures of many attempts.
fn crowd(what: &ProbeRequest, count: u32) -> Vec<Outcome> {
    let share = |n: u32| count / CROWD_THREADS + u32::from(n < count % CROWD_THREADS);
    in_threads(CROWD_THREADS, |n| (0..share(n)).map(|_| probe(what)).filter(|it| it.ending != Ending::Ok).collect())
}
