//! The live run: it wakes for events, observations of sources, deadlines and signals. All observations pass through the engine
//! in the order of time, and through the recorder if there is one.

mod alarm;
mod losses;
mod session;
#[cfg(test)]
mod tests;
mod wake;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::engine::{AtStart, Engine};
use crate::instance;
use crate::pipeline::session::{Panics, Session};
use crate::record_file::{self, Recorder};
use crate::shutdown::Signals;
use tracer_bpf::ebpf::LoadOptions;
use tracer_model::event::{HookStatus, Observation, ObservationKind, Pod, PortPressure, Start};
use tracer_model::query::Query;
use tracer_node::clock;
use tracer_output::serve::{self, Serve};
use tracer_output::sink::metrics::HookCount;
use tracer_output::sink::{Destinations, Sink, SinkConfig, leftover};
use tracer_sources::cluster::ClusterConfig;
use tracer_sources::{Background, NamedLog, Supervisor};
use tracer_terminal::error::{self, Error, os_message};
use tracer_terminal::status_line::StatusLine;

/// The configuration of `tracer attach`, `run` or `record`.
#[derive(Clone, Debug, Default)]
pub struct LiveConfig {
    pub output: SinkConfig,
    /// Whether this is the daemon, of which a node has one.
    pub daemon: bool,
    /// The endpoints of the daemon; other commands have none.
    pub serve: Option<Serve>,
    pub record: Option<PathBuf>,
    /// End after this time.
    pub duration: Option<Duration>,
    pub load: LoadOptions,
    pub pods: Option<PathBuf>,
    pub services: Option<PathBuf>,
    pub kubelet_log: Option<NamedLog>,
    /// Absent if the cluster API is not used.
    pub cluster: Option<ClusterConfig>,
    /// A warning about a flag that needs the cluster API without access to it; reported at the start.
    pub unavailable_source: Option<String>,
    /// The destinations of the daemon; other commands have none.
    pub destinations: Destinations,
    pub node_name: String,
}

/// Where live events come from: the kernel's ring, or a test.
pub trait EventSource {
    /// Waits until there may be something to drain. Safe to drop while it waits.
    fn readable(&mut self) -> impl Future<Output = io::Result<()>>;
    /// Appends at most `max` events as observations. Returns how many events it took.
    fn drain(&mut self, max: usize, into: &mut Vec<Observation>) -> usize;
    /// What the kernel programs themselves count as lost since the start, by place ([`Loss`](tracer_model::event::Loss)).
    fn lost(&self) -> Vec<(&'static str, u64)>;
    /// What was lost since the start because the kernel skipped programs, by place. The query is costly: made once a second.
    fn missed(&mut self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// Which processes used up ephemeral ports since the last call.
    fn port_pressure(&mut self) -> Option<PortPressure> {
        None
    }
    /// Attaches hooks that depend on the state of the node.
    fn every_second(&mut self) {}
    /// Runs a query. Returns the answer if it is known at once; else the answer arrives as an event or an observation.
    fn query(&mut self, query: Query) -> Option<ObservationKind>;
    /// The kernel's counters for the metrics. Called once a second if metrics are wanted.
    fn counts(&self) -> Vec<HookCount> {
        Vec::new()
    }
    /// Retries the hooks of kernel modules that were not loaded. Returns those that are now attached.
    fn retry_hooks(&mut self) -> Vec<HookStatus> {
        Vec::new()
    }
}

/// A source of events, and what is known at its start.
#[derive(Debug)]
pub struct Attached<S> {
    pub events: S,
    /// When the last hook was attached (CLOCK_BOOTTIME). It is the time of the `start` record.
    pub since_boot_ns: u64,
    /// The first observation, without what the configuration says: hooks, namespaces, sources.
    pub start: Start,
    pub prober_pids: Vec<u32>,
    /// Observations of the sources at the start.
    pub observations: Vec<ObservationKind>,
    /// Later observations of the sources.
    pub changes: mpsc::Receiver<ObservationKind>,
    /// Problems of the sources; printed as warnings.
    pub problems: Vec<String>,
}

/// Runs until a signal, the duration, the first failure or the end of the reader. Returns the exit code.
pub fn run<S, A>(config: &LiveConfig, attach: A) -> Result<u8, Error>
where
    S: EventSource,
    A: FnOnce(&LiveConfig, &Background, &Supervisor) -> Result<Attached<S>, Error>,
{
    let lock = if config.daemon { instance::lock()? } else { None };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Kernel(format!("no event loop: {}", os_message(&error))))?;
    return_large_blocks();
    // The sources' futures need not be `Send`.
    let code = tokio::task::LocalSet::new().block_on(&runtime, async {
        let _lock = lock.map(|lock| tokio::task::spawn_local(instance::answer(lock)));
        let files = [config.output.file.as_deref(), config.record.as_deref()];
        let (mut session, signals, panics) = leftover::leaving_none(files, || begin(config, attach))?;
        match session.watch(signals, panics, config.duration).await {
            Ok(reason) => session.end(reason),
            Err(error) => session.end("error").and(Err(error)),
        }
    });
    // A check of the node may still run: its result is not needed any more.
    runtime.shutdown_background();
    code
}

/// Makes glibc return each large block to the kernel as soon as it is freed.
///
/// By default glibc raises its threshold at each such block, up to 32 MiB. It would keep the 6 MB that only the start needs (the
/// kernel's types). Setting the threshold fixes it. Other C libraries have no such threshold.
fn return_large_blocks() {
    /// glibc's initial `M_MMAP_THRESHOLD` (mallopt(3)), in bytes.
    #[cfg(target_env = "gnu")]
    const LARGE: libc::c_int = 128 * 1024;
    // SAFETY: mallopt(3) takes two numbers; a program may set this threshold at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Starts all parts and emits the first records. Must be called inside the runtime.
fn begin<S, A>(config: &LiveConfig, attach: A) -> Result<(Session<S>, Signals, Panics), Error>
where
    S: EventSource,
    A: FnOnce(&LiveConfig, &Background, &Supervisor) -> Result<Attached<S>, Error>,
{
    let signals = Signals::new()?;
    // Health has another thread than the cluster API: a program that provides API credentials may block its thread.
    let (supervisor, panics) = Supervisor::new();
    let background = |name| Background::new(name, &supervisor);
    let (services, api) = (background("services"), background("cluster-api"));
    let mut sink = Sink::open(&config.output, true)?;
    config.destinations.start(&mut sink, &services, &api)?;
    let server = config.serve.as_ref().map(|serve| {
        let (server, metrics) = serve::start(serve, &services);
        if let Some(metrics) = metrics {
            sink.count_into(metrics);
        }
        server
    });
    let recording =
        config.record.as_deref().map(|path| record_file::create(path).map(|file| (file, path))).transpose()?;
    let attached = attach(config, &api, &supervisor)?;
    warn(config, &attached);
    let pods = pod_lists(&attached.observations).next_back().map_or(0, <[Pod]>::len);
    let at_start = AtStart { prober_pids: attached.prober_pids.clone(), pods };
    let recorder = recording.map(|(file, path)| Recorder::new(file, path.display().to_string(), at_start.clone()));
    let engine = Engine::new(sink, at_start, Some(clock::boot_ns));
    let status_line = if config.daemon { None } else { StatusLine::open(config.output.is_json_on_terminal()) };
    let attached = Attached { start: start(config, attached.start), ..attached };
    let session = Session::begin(attached, engine, recorder, config.daemon, server, status_line);
    Ok((session, signals, panics))
}

/// Adds the configuration to the first observation.
fn start(config: &LiveConfig, attached: Start) -> Start {
    Start {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        node_name: config.node_name.clone(),
        boot_to_wall_ns: clock::steady_boot_to_wall_ns(),
        asks_for_endpoints: config.cluster.as_ref().is_some_and(|cluster| cluster.endpoints),
        reads_servers: true,
        probers: config.load.probers.clone(),
        all_connections: config.load.all_connections,
        ..attached
    }
}

fn pod_lists(observations: &[ObservationKind]) -> impl DoubleEndedIterator<Item = &[Pod]> {
    observations.iter().filter_map(|kind| match kind {
        ObservationKind::Pods(list) => Some(list.pods.as_slice()),
        _ => None,
    })
}

/// Warns of anything that prevents the verdicts the user waits for.
fn warn<S>(config: &LiveConfig, attached: &Attached<S>) {
    for problem in config.unavailable_source.iter().chain(&attached.problems) {
        error::warn(problem);
    }
    if attached.prober_pids.is_empty() && !config.load.all_connections {
        let names = config.load.probers.join(", ");
        error::warn(&format!(
            "no process named {names} is running: tracer waits for one (--prober NAME chooses another, --all-connections watches every process)"
        ));
    }
    let pods: Vec<&Pod> = pod_lists(&attached.observations).flatten().collect();
    if config.output.filter.needs_pods() && !pods.iter().any(|pod| pod.name.is_some()) {
        error::warn(
            &"-n, -p and -c need the names of pods, but none is known: nothing will match (get them with --pods FILE, or from the cluster API with --kubeconfig PATH)",
        );
    }
    if let Some(unmatched) = config.output.filter.unmatched(&pods) {
        error::warn(&unmatched);
    }
}
