//! Answers what the core asks of the node while it runs, on threads of their own: reading a large table
//! never holds up the event stream.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use tokio::sync::mpsc::Sender;

use super::background::Supervisor;
use super::pace::ReadingPace;
use tracer_model::event::{Flow, Netns, ObservationKind};
use tracer_model::query::{Awaited, Query, TargetQuery};
use tracer_node::namespaces::{Namespaces, Place, kept_for};
use tracer_node::throttle::Throttling;
use tracer_node::turns::Turns;
use tracer_node::{enter, inspect, pod_sockets, port_holders};

/// Questions that were not taken in yet, at most; more are not asked, and the verdicts do without.
const WAITING: usize = 1024;

/// So many that owe no handshake are looked at whatever it costs: each is asked about a few times a second, for some seconds.
const FEW: usize = 4;

/// Takes questions. A verdict waits for what a firewall says: that is read beside the rest.
#[derive(Debug)]
pub struct Inquirer {
    targets: Option<SyncSender<TargetQuery>>,
    firewalls: Option<SyncSender<(Netns, Flow)>>,
    ports: Option<SyncSender<(Netns, u16)>>,
}

impl Inquirer {
    /// Begins to answer into `tx`.
    pub fn start(tx: Sender<ObservationKind>, supervisor: &Supervisor) -> Self {
        let (facts, holders) = (tx.clone(), tx.clone());
        Self {
            ports: start(supervisor, "ports", move |asked| read_port_holders(&asked, &holders)),
            firewalls: start(supervisor, "firewalls", move |asked| read_firewalls(&asked, &facts)),
            targets: start(supervisor, "inquiries", move |asked| Looker::new(asked).answer_all(&tx)),
        }
    }

    pub fn ask(&self, ask: Query) {
        match ask {
            Query::Firewall(netns, flow) => put(self.firewalls.as_ref(), (netns, flow)),
            Query::Target(inspect) => put(self.targets.as_ref(), inspect),
            Query::PortHolders(netns, port) => put(self.ports.as_ref(), (netns, port)),
            Query::Tls(_) | Query::Answers(_) | Query::Ports => {}
        }
    }
}

fn put<T: std::fmt::Debug + Copy>(to: Option<&SyncSender<T>>, question: T) {
    if to.is_some_and(|questions| questions.try_send(question).is_err()) {
        left_out(&question);
    }
}

fn left_out(question: &impl std::fmt::Debug) {
    tracing::debug!(?question, "too many questions wait: left out");
}

fn start<T: Send + 'static>(
    supervisor: &Supervisor,
    name: &'static str,
    run: impl FnOnce(Receiver<T>) + Send + 'static,
) -> Option<SyncSender<T>> {
    let (questions, asked) = sync_channel(WAITING);
    let thread = supervisor.thread(name, move || {
        enter::by_this_thread();
        run(asked);
    });
    let failed = |error| tracing::error!("the node is not asked about {name}: no thread: {error}");
    thread.map_err(failed).ok().map(|()| questions)
}

fn read_firewalls(asked: &Receiver<(Netns, Flow)>, tx: &Sender<ObservationKind>) {
    let mut namespaces = Namespaces::default();
    while let Ok((netns, flow)) = asked.recv() {
        if tx.blocking_send(firewall(netns, flow, &mut namespaces)).is_err() {
            return;
        }
    }
}

/// Each reading is followed by a pause of ten times its length: pods that start are refused as often as they like.
fn read_port_holders(asked: &Receiver<(Netns, u16)>, tx: &Sender<ObservationKind>) {
    let mut namespaces = Namespaces::default();
    while let Ok((netns, port)) = asked.recv() {
        let began = Instant::now();
        let seen = port_holders::read(netns, port, &mut namespaces).map(Box::new).map(ObservationKind::PortHolders);
        let took = began.elapsed();
        if seen.is_some_and(|seen| tx.blocking_send(seen).is_err()) {
            return;
        }
        std::thread::sleep(took * 10);
    }
}

/// Always gives an answer: a verdict waits for it.
fn firewall(netns: Netns, flow: Flow, namespaces: &mut Namespaces) -> ObservationKind {
    let read = |path: PathBuf| tracer_netfilter::firewall::read(&path, netns, flow);
    let firewall = namespaces.path(netns).map_or_else(|| tracer_netfilter::firewall::unreachable(netns), read);
    ObservationKind::Firewall(Box::new(firewall))
}

struct Looker {
    asked: Receiver<TargetQuery>,
    turns: Turns,
    /// When the next one may be looked at that owes no handshake: so many are there as a pod has probes.
    pace: ReadingPace,
    namespaces: Namespaces,
    throttling: Throttling,
}

impl Looker {
    fn new(asked: Receiver<TargetQuery>) -> Self {
        let pace = ReadingPace::without_pause(Instant::now());
        let (namespaces, throttling) = (Namespaces::default(), Throttling::default());
        Self { asked, turns: Turns::default(), pace, namespaces, throttling }
    }

    fn answer_all(mut self, tx: &Sender<ObservationKind>) {
        while let Some(inspect) = self.next() {
            let began = Instant::now();
            let seen = self.inspect(&inspect);
            if inspect.awaited != Awaited::Handshake {
                // Not the processor's time: on a busy node it takes longer, and gives way.
                self.pace.read(Instant::now(), began.elapsed());
            }
            if seen.is_some_and(|seen| tx.blocking_send(seen).is_err()) {
                return;
            }
        }
    }

    /// The next one to be looked at, once there is one; `None`: nobody asks any more.
    fn next(&mut self) -> Option<TargetQuery> {
        loop {
            while let Ok(inspect) = self.asked.try_recv() {
                self.put(inspect);
            }
            let now = Instant::now();
            if let Some(inspect) = self.turns.take(self.pace.next() <= now || self.turns.others() <= FEW) {
                return Some(inspect);
            }
            let inspect = self.wait(now)?;
            inspect.into_iter().for_each(|inspect| self.put(inspect));
        }
    }

    /// Waits for a question, or until the time of those that owe no handshake has come.
    fn wait(&self, now: Instant) -> Option<Option<TargetQuery>> {
        if self.turns.is_empty() {
            return self.asked.recv().ok().map(Some);
        }
        match self.asked.recv_timeout(self.pace.next().saturating_duration_since(now)) {
            Ok(inspect) => Some(Some(inspect)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn put(&mut self, inspect: TargetQuery) {
        if !self.turns.put(inspect) {
            left_out(&inspect);
        }
    }

    fn inspect(&mut self, inspect: &TargetQuery) -> Option<ObservationKind> {
        let path = self.namespaces.path_unless_since(inspect.from, kept_for(inspect.awaited))?;
        let from = Place { netns: inspect.from, path };
        if inspect.awaited == Awaited::Nothing {
            let seen = pod_sockets::read(inspect, &from, &mut self.namespaces)?;
            return Some(ObservationKind::PodSockets(Box::new(seen)));
        }
        let seen = inspect::read(inspect, &from, &mut self.namespaces, &mut self.throttling);
        Some(ObservationKind::Inspection(Box::new(seen)))
    }
}
