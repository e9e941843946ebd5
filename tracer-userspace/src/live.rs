//! The kernel as the source of events, together with the sources of other observations. Only this module uses all of
//! `ebpf`, `decode`, `observe` and `sources`.

mod other_processes;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tracer_common::{actor, events::KernelEvent, names::Hook};

use self::other_processes::OtherProcesses;
use crate::pipeline::{Attached, EventSource, LiveConfig};
use tracer_bpf::decode::decode;
use tracer_bpf::ebpf::{self, HiddenFunctions, Loaded};
use tracer_bpf::observe::{observe, task};
use tracer_model::event::{HookStatus, Listen, Loss, Observation, ObservationKind, PortPressure, Start};
use tracer_model::query::Query;
use tracer_node::clock;
use tracer_node::ports::are_many_in_use;
use tracer_output::sink::metrics::HookCount;
use tracer_sources::cluster::Cluster;
use tracer_sources::{Background, KubeletLog, Prober, QueryThreads, Snapshot, SourceConfig, Supervisor};
use tracer_terminal::error::{Error, chain};

/// The length of the queue of observations: if it is full, the sources wait for the pipeline.
const CHANGES: usize = 16;

pub struct Kernel {
    loaded: Loaded,
    probers: Vec<String>,
    other_processes: OtherProcesses,
    /// Makes the sources read the node again.
    refresh: Arc<Notify>,
    query_threads: QueryThreads,
    /// Since when the kernel counts the ephemeral ports of each process.
    ports_since: u64,
    /// A process of the node's namespace.
    prober_pid: Option<u32>,
    /// The memory of the start was returned.
    tidied: bool,
    /// How many new names of probers the kernel had held back at the last look.
    probers_held: u64,
    /// Events by the number of the hook that wrote them.
    events: BTreeMap<u16, u64>,
}

/// Attaches to the kernel, then reads the node. In this order no change of the node is missed.
///
/// # Errors
/// The kernel or the privileges do not allow it (exit code 3), or an input file is invalid (2).
pub fn attach(config: &LiveConfig, api: &Background, supervisor: &Supervisor) -> Result<Attached<Kernel>, Error> {
    let (tx, changes) = mpsc::channel(CHANGES);
    // Before the hooks: otherwise their events would fill the ring while tracer waits for the API.
    let sources = begin_sources(config, tx.clone(), api)?;
    // Before the hooks, too: otherwise lines about the first watched attempts would be missed.
    let log = follow_log(config, &sources, &tx, supervisor);
    let mut loaded = ebpf::load(&config.load).map_err(|error| Error::Kernel(chain(&error)))?;
    let snapshot = tracer_sources::snapshot(&sources).map_err(|error| Error::Source(chain(&error)))?;
    loaded.watch_answers(&pids(&snapshot.probers));
    loaded.watch_sockets(pids(&snapshot.probers));
    // Attempts that began before have no answers.
    loaded.attached_boot_ns = clock::boot_ns();
    let refresh = Arc::new(Notify::new());
    let endpoints = sources.cluster.as_ref().map(|cluster| cluster.queries.clone());
    let query_threads = QueryThreads::start(tx.clone(), endpoints, supervisor);
    let kernel = Kernel {
        loaded,
        probers: config.load.probers.clone(),
        other_processes: OtherProcesses::beside(&snapshot.probers, config.load.all_connections),
        refresh: refresh.clone(),
        query_threads,
        ports_since: clock::boot_ns(),
        prober_pid: snapshot.probers.first().map(|prober| prober.pid),
        tidied: false,
        probers_held: 0,
        events: BTreeMap::new(),
    };
    let attached = attached(kernel, &snapshot, log, changes);
    if config.daemon {
        let checks = tracer_doctor::daemon::repeat_checks(config.load.probers.clone(), tx.clone());
        tokio::task::spawn_local(supervisor.task("doctor", checks));
    }
    let watch = tracer_sources::watch(sources, snapshot, refresh, tx, supervisor.clone());
    tokio::task::spawn_local(supervisor.task("sources", watch));
    Ok(attached)
}

/// The configuration of the sources. Starts the reader of the cluster API, if one is configured.
fn begin_sources(
    config: &LiveConfig,
    answers: mpsc::Sender<ObservationKind>,
    api: &Background,
) -> Result<SourceConfig, Error> {
    let cluster = config.cluster.clone().map(|cluster| Cluster::start(cluster, answers, api)).transpose();
    let cluster = cluster.map_err(|error| Error::Source(chain(&error)))?;
    Ok(SourceConfig {
        probers: config.load.probers.clone(),
        pods: config.pods.clone(),
        services: config.services.clone(),
        cluster,
    })
}

/// What tracer reports about the kubelet's log.
struct FollowedLog {
    /// The text for the start record; absent if tracer follows no log and knows no kubelet.
    source: Option<String>,
    /// A warning that no source has probe outcomes.
    problem: Option<String>,
}

fn follow_log(
    config: &LiveConfig,
    sources: &SourceConfig,
    tx: &mpsc::Sender<ObservationKind>,
    supervisor: &Supervisor,
) -> FollowedLog {
    let names = sources.prober_names();
    let by_events = config.cluster.as_ref().is_some_and(|cluster| !cluster.events.is_empty());
    let Some(log) = KubeletLog::find(config.kubelet_log.as_ref(), &names) else {
        let source = tracer_sources::kubelet_log_unfollowed(&names).map(not_followed);
        return FollowedLog { problem: source.clone().filter(|_| !by_events), source };
    };
    let lack = tracer_sources::kubelet_log_lack(&names);
    let exposure = tracer_sources::kubelet_log_exposure(&names);
    let source = log.describe(lack.as_deref(), exposure.as_deref());
    log.follow(tx.clone(), supervisor);
    FollowedLog { source: Some(source), problem: lack.filter(|_| !by_events).map(no_outcomes) }
}

/// Collects what is known when the events begin.
fn attached(
    events: Kernel,
    snapshot: &Snapshot,
    log: FollowedLog,
    changes: mpsc::Receiver<ObservationKind>,
) -> Attached<Kernel> {
    let loaded = &events.loaded;
    let present = tracer_sources::namespaces::all();
    let unread = present.problem.filter(|problem| !snapshot.problems.contains(problem));
    let (count, probers) = (loaded.status.hooks.len(), pids(&snapshot.probers));
    tracing::info!("{count} hooks are attached; process ids of the probers: {probers:?}");
    snapshot.sources.iter().for_each(|source| tracing::debug!("source: {source}"));
    let hidden = HiddenFunctions::here().map(|hidden| hidden.explain() + " (tracer doctor has the fix)");
    Attached {
        since_boot_ns: loaded.attached_boot_ns,
        start: Start {
            hooks: loaded.status.hooks.clone(),
            missing_hooks: loaded.status.missing.clone(),
            awaited_hooks: loaded.status.awaited.clone(),
            prober_hooks: Some(loaded.choice.clone()),
            namespaces: present.namespaces,
            namespaces_incomplete: present.incomplete,
            node_netns: snapshot.node.as_ref().map(|node| node.netns),
            sources: snapshot.sources.iter().cloned().chain(log.source).collect(),
            ..Start::default()
        },
        prober_pids: pids(&snapshot.probers),
        observations: snapshot.observations.clone(),
        problems: snapshot.problems.iter().cloned().chain(log.problem).chain(unread).chain(hidden).collect(),
        changes,
        events,
    }
}

impl EventSource for Kernel {
    async fn readable(&mut self) -> io::Result<()> {
        self.loaded.ring.readable().await
    }

    fn drain(&mut self, max: usize, into: &mut Vec<Observation>) -> usize {
        let names = &mut self.loaded.names;
        let (probers, before) = (&self.probers, into.len());
        let since = self.loaded.attached_boot_ns;
        let (events, other_processes) = (&mut self.events, &mut self.other_processes);
        let (mut found, mut bound) = (BTreeSet::new(), Vec::new());
        let taken = self.loaded.ring.drain(max, |bytes| match decode(bytes) {
            Ok(event) => {
                *events.entry(event.header().hook).or_default() += 1;
                if let KernelEvent::Prober(actor::Prober { actor, .. }) = &event
                    && !other_processes.is_other(&task(actor))
                {
                    found.insert(actor.pid);
                }
                let observation =
                    observe(&event, names, probers).filter(|observation| !begins_before(since, observation));
                bound.extend(observation.as_ref().and_then(bound_socket));
                into.extend(observation.and_then(|observation| other_processes.filter_attempt(observation)));
            }
            // The programs and this binary are built together, so this is a bug. The run continues and shows it.
            Err(error) => tracing::error!("an event cannot be decoded: {error}"),
        });
        self.loaded.watch_sockets(found);
        bound.into_iter().for_each(|socket| self.query_threads.check_bound(socket));
        for cgroup in self.other_processes.take_found() {
            self.loaded.skip_cgroup(cgroup);
        }
        if into[before..].iter().any(changes_the_node) {
            self.refresh.notify_one();
        }
        taken
    }

    fn lost(&self) -> Vec<(&'static str, u64)> {
        self.loaded.lost()
    }

    fn missed(&mut self) -> Vec<(&'static str, u64)> {
        self.loaded.missed()
    }

    fn port_pressure(&mut self) -> Option<PortPressure> {
        let pressure = self.ports(true);
        if !are_many_in_use(self.prober_pid) {
            self.count_ports(false);
        }
        Some(pressure)
    }

    fn every_second(&mut self) {
        if !self.tidied {
            self.loaded.tidy();
            self.tidied = true;
        }
        self.loaded.forget_tls();
        if are_many_in_use(self.prober_pid) {
            self.count_ports(true);
        }
    }

    fn query(&mut self, query: Query) -> Option<ObservationKind> {
        match query {
            Query::Tls(port) => self.warn_of_lost_hooks(|loaded| loaded.watch_tls(port)),
            Query::PodConnects(pod) => self.warn_of_lost_hooks(|loaded| loaded.watch_pod_connects(pod.0)),
            Query::Answers(prober) => self.watch_prober(prober),
            Query::Ports => {
                self.count_ports(true);
                return Some(ObservationKind::PortPressure(Box::new(self.ports(false))));
            }
            Query::Firewall(..)
            | Query::Target(..)
            | Query::Limits(..)
            | Query::PortHolders(..)
            | Query::DevicePrograms(..)
            | Query::Endpoints(_) => self.query_threads.submit(query),
        }
        None
    }

    fn counts(&self) -> Vec<HookCount> {
        let runs = self.loaded.program_runs();
        let count = |hook: &Hook| HookCount {
            hook: hook.name(),
            attached: self.loaded.is_attached(*hook),
            events: self.events.get(&(*hook as u16)).copied().unwrap_or_default(),
            runs: runs.get(hook).copied(),
        };
        Hook::ALL.iter().map(count).collect()
    }

    fn retry_hooks(&mut self) -> Vec<HookStatus> {
        self.watch_held_probers();
        let before = self.loaded.status.hooks.clone();
        let mut is_new = false;
        self.warn_of_lost_hooks(|loaded| is_new = loaded.retry_module_hooks() | loaded.retry_prober_sockets());
        if !is_new {
            return Vec::new();
        }
        self.loaded.status.hooks.iter().filter(|hook| !before.contains(hook)).cloned().collect()
    }
}

impl Kernel {
    /// A prober connects. If it is the first prober, or replaces one that is gone, it may be in another cgroup and namespace. Then
    /// the sources read the node again.
    fn watch_prober(&mut self, prober: u32) {
        self.warn_of_lost_hooks(|loaded| loaded.watch_answers(&[prober]));
        if self.prober_pid.is_none_or(|pid| pid != prober && !tracer_sources::procfs::is_alive(pid)) {
            self.prober_pid = Some(prober);
            self.refresh.notify_one();
        }
    }

    /// The kernel held back that processes got the name of a prober: looks for them.
    fn watch_held_probers(&mut self) {
        let lost = self.loaded.lost();
        let held = lost.into_iter().find(|(place, _)| *place == Loss::PROBER).map_or(0, |(_, count)| count);
        if std::mem::replace(&mut self.probers_held, held) != held {
            self.loaded.watch_sockets(pids(&tracer_sources::procfs::find_probers(&self.probers)));
        }
    }

    /// Other processes pay for the counting, so with hooks for probers only, tracer counts while many ports are in use.
    fn count_ports(&mut self, wanted: bool) {
        if self.loaded.count_ports(wanted) {
            tracing::debug!("many source ports are in use: tracer counts who uses them");
            self.ports_since = clock::boot_ns();
        }
    }

    /// Reads the use of ephemeral ports; `take` also resets the counters.
    fn ports(&mut self, take: bool) -> PortPressure {
        let now = clock::boot_ns();
        let counted = self.loaded.port_use(take);
        let window_ns = now.saturating_sub(self.ports_since);
        if take {
            self.ports_since = now;
        }
        PortPressure { partial: !take, ..tracer_node::ports::pressure(&counted, window_ns, self.prober_pid) }
    }

    fn warn_of_lost_hooks(&mut self, change: impl FnOnce(&mut Loaded)) {
        let before = self.loaded.status.missing.clone();
        change(&mut self.loaded);
        for hook in self.loaded.status.missing.iter().filter(|hook| !before.iter().any(|it| it.hook == hook.hook)) {
            tracing::warn!(hook = hook.hook, reason = hook.reason, "unknown without this hook: {}", hook.lost);
        }
    }
}

fn no_outcomes(lack: String) -> String {
    format!("the kubelet's log does not show how probes ended: {lack}")
}

fn not_followed(why: String) -> String {
    format!("no probe outcomes, the kubelet's log is not followed: {why}")
}

fn pids(probers: &[Prober]) -> Vec<u32> {
    probers.iter().map(|prober| prober.pid).collect()
}

/// Whether an attempt began before all hooks were attached: tracer may have missed its cause. Without this first event, the other
/// events of the connection make no attempt.
const fn begins_before(since_boot_ns: u64, observation: &Observation) -> bool {
    observation.time_boot_ns < since_boot_ns
        && matches!(observation.kind, ObservationKind::Connect(_) | ObservationKind::ConnectFailed(_))
}

fn bound_socket(observation: &Observation) -> Option<Listen> {
    match &observation.kind {
        ObservationKind::Listen(listen) if listen.bound => Some(listen.clone()),
        _ => None,
    }
}

/// Whether a namespace, a listener or a link changed: pods and NodePorts may have changed, too.
const fn changes_the_node(observation: &Observation) -> bool {
    matches!(
        observation.kind,
        ObservationKind::NetnsOp(_) | ObservationKind::Listen(_) | ObservationKind::LinkChange(_)
    )
}
