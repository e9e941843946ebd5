//! Answers the core's queries to the node. It runs on threads of its own, so that a large table never delays the event
//! stream.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;

use super::background::Supervisor;
use super::binds;
use super::cluster::Queries;
use super::pace::ReadingPace;
use tracer_model::event::{Firewall, Flow, Listen, Netns, ObservationKind, PodSockets};
use tracer_model::query::{Awaited, Query, TargetQuery};
use tracer_node::namespaces::{Namespaces, Place, max_age};
use tracer_node::target_queue::TargetQueue;
use tracer_node::throttle::Throttling;
use tracer_node::{enter, inspect, limits, pod_sockets, port_holders, programs};

/// How many queries of a thread can wait. Further queries are dropped, and the verdicts lack their answers.
const MAX_WAITING: usize = 1024;

/// If at most this many queries of attempts with a handshake wait, they are answered without a pause. The core repeats
/// each query a few times a second, for some seconds.
const FEW: usize = 4;

/// Takes the queries. Firewalls have their own thread, because a verdict waits for the answer.
#[derive(Debug)]
pub struct QueryThreads {
    targets: Option<SyncSender<TargetQuery>>,
    firewalls: Option<SyncSender<(Netns, Flow)>>,
    ports: Option<SyncSender<(Netns, u16)>>,
    programs: Option<SyncSender<(Netns, u32)>>,
    binds: Option<SyncSender<Listen>>,
    limits: Option<SyncSender<(Netns, String)>>,
    /// The cluster API's thread.
    endpoints: Option<Queries>,
}

impl QueryThreads {
    /// Starts the threads, which send their answers to `tx`.
    pub fn start(tx: Sender<ObservationKind>, endpoints: Option<Queries>, supervisor: &Supervisor) -> Self {
        use ObservationKind::{DevicePrograms, Firewall, Limits, PortHolders};
        Self {
            endpoints,
            ports: start(supervisor, "ports", &tx, |asked, tx| {
                read_each(&asked, tx, PAUSES, port_holders::read, PortHolders)
            }),
            programs: start(supervisor, "programs", &tx, |asked, tx| {
                read_each(&asked, tx, PAUSES, programs::read, DevicePrograms);
            }),
            binds: start(supervisor, "binds", &tx, |bound, tx| binds::check(bound, tx, PAUSES)),
            limits: start(supervisor, "limits", &tx, |asked, tx| read_each(&asked, tx, PAUSES, limits::read, Limits)),
            firewalls: start(supervisor, "firewalls", &tx, |asked, tx| {
                read_each(&asked, tx, 0, read_firewall, Firewall)
            }),
            targets: start(supervisor, "targets", &tx, |asked, tx| TargetInspector::new(asked).answer_all(tx)),
        }
    }

    /// Finds out whether this socket, which has just bound its port, listens.
    pub fn check_bound(&self, socket: Listen) {
        put(self.binds.as_ref(), socket);
    }

    pub fn submit(&self, query: Query) {
        match query {
            Query::Firewall(netns, flow) => put(self.firewalls.as_ref(), (netns, flow)),
            Query::Target(inspect) => put(self.targets.as_ref(), inspect),
            Query::Limits(netns, container) => put(self.limits.as_ref(), (netns, container)),
            Query::PortHolders(netns, port) => put(self.ports.as_ref(), (netns, port)),
            Query::DevicePrograms(netns, ifindex) => put(self.programs.as_ref(), (netns, ifindex)),
            Query::Endpoints(service) => {
                if self.endpoints.as_ref().is_some_and(|queries| queries.try_send(service.clone()).is_err()) {
                    log_dropped(&service);
                }
            }
            Query::Tls(_) | Query::PodConnects(_) | Query::Answers(_) | Query::Ports => {}
        }
    }
}

fn put<T: std::fmt::Debug + Clone>(to: Option<&SyncSender<T>>, query: T) {
    if to.is_some_and(|queries| queries.try_send(query.clone()).is_err()) {
        log_dropped(&query);
    }
}

fn log_dropped(query: &impl std::fmt::Debug) {
    tracing::debug!(?query, "too many queries wait: tracer drops this one");
}

fn start<T: Send + 'static>(
    supervisor: &Supervisor,
    name: &'static str,
    tx: &Sender<ObservationKind>,
    run: fn(Receiver<T>, &Sender<ObservationKind>),
) -> Option<SyncSender<T>> {
    let (queries, received) = sync_channel(MAX_WAITING);
    let tx = tx.clone();
    let thread = supervisor.thread(name, move || {
        enter::enter_on_this_thread();
        run(received, &tx);
    });
    let failed =
        |error| tracing::error!("cannot start the thread for queries about {name}: {error}; they stay without answers");
    thread.map_err(failed).ok().map(|()| queries)
}

/// A pause of ten times a read's length: pods that start can cause any number of refusals, and a policy any number of
/// drops.
const PAUSES: u32 = 10;

/// After each read comes a pause of so many times its length.
fn read_each<Q, A>(
    asked: &Receiver<(Netns, Q)>,
    tx: &Sender<ObservationKind>,
    pauses: u32,
    read: fn(Netns, Q, &mut Namespaces) -> Option<A>,
    kind: fn(Box<A>) -> ObservationKind,
) {
    let mut namespaces = Namespaces::default();
    while let Ok((netns, query)) = asked.recv() {
        let began = Instant::now();
        let found = read(netns, query, &mut namespaces).map(Box::new).map(kind);
        let took = began.elapsed();
        if found.is_some_and(|found| tx.blocking_send(found).is_err()) {
            return;
        }
        std::thread::sleep(took * pauses);
    }
}

/// Always returns an answer, because a verdict waits for it.
fn read_firewall(netns: Netns, flow: Flow, namespaces: &mut Namespaces) -> Option<Firewall> {
    let read = |path: PathBuf| tracer_netfilter::firewall::read(&path, netns, flow);
    Some(namespaces.path(netns).map_or_else(|| tracer_netfilter::firewall::unreachable(netns), read))
}

struct TargetInspector {
    asked: Receiver<TargetQuery>,
    queue: TargetQueue,
    /// When the next query of an attempt with a handshake may be answered: a pod can have any number of probes.
    pace: ReadingPace,
    namespaces: Namespaces,
    throttling: Throttling,
}

impl TargetInspector {
    fn new(asked: Receiver<TargetQuery>) -> Self {
        let pace = ReadingPace::without_pause(Instant::now());
        let (namespaces, throttling) = (Namespaces::default(), Throttling::default());
        Self { asked, queue: TargetQueue::default(), pace, namespaces, throttling }
    }

    fn answer_all(mut self, tx: &Sender<ObservationKind>) {
        while let Some(inspect) = self.next() {
            let began = Instant::now();
            let answer = self.inspect(&inspect);
            if inspect.awaited != Awaited::Handshake {
                // Wall time, not CPU time: on a busy node a read takes longer, and so the pause is longer, too.
                self.pace.read(Instant::now(), began.elapsed());
            }
            if answer.is_some_and(|answer| tx.blocking_send(answer).is_err()) {
                return;
            }
        }
    }

    /// Waits for the next query; `None` if the core has ended.
    fn next(&mut self) -> Option<TargetQuery> {
        loop {
            while let Ok(inspect) = self.asked.try_recv() {
                self.put(inspect);
            }
            let now = Instant::now();
            if let Some(inspect) = self.queue.pop(self.pace.next <= now || self.queue.count_others() <= FEW) {
                return Some(inspect);
            }
            let pause = self.pace.next.saturating_duration_since(now);
            match self.asked.recv_timeout(if self.queue.is_empty() { Duration::MAX } else { pause }) {
                Ok(inspect) => self.put(inspect),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn put(&mut self, inspect: TargetQuery) {
        if !self.queue.push(inspect.clone()) {
            log_dropped(&inspect);
        }
    }

    fn inspect(&mut self, inspect: &TargetQuery) -> Option<ObservationKind> {
        let path = self.namespaces.path_within(inspect.from, max_age(inspect.awaited));
        let from = path.map(|path| Place { netns: inspect.from, path });
        if inspect.awaited == Awaited::Nothing {
            // Always an answer, because a verdict waits for it.
            let nothing = || PodSockets::nothing(inspect.from, inspect.target, None);
            let answer = from.map_or_else(nothing, |from| pod_sockets::read(inspect, &from, &mut self.namespaces));
            return Some(ObservationKind::PodSockets(Box::new(answer)));
        }
        let answer = inspect::read(inspect, &from?, &mut self.namespaces, &mut self.throttling);
        Some(ObservationKind::Inspection(Box::new(answer)))
    }
}
