//! `tracer hooks`: whether each hook is attached on this kernel, and what it costs.
//!
//! It attaches as `tracer attach` does, lets the kernel count the runs for some seconds, and discards the events.

mod finding;
mod table;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout_at};
use tracer_common::names::Hook;

use crate::shutdown::{Request, Signals};
use tracer_bpf::decode::decode;
use tracer_bpf::ebpf::{self, HookStatus, LoadOptions, Loaded};
use tracer_doctor::{Finding, Status, command};
use tracer_node::clock;
use tracer_node::procfs;
use tracer_output::sink::output::Output;
use tracer_output::sink::{Format, SinkConfig, leftover};
use tracer_terminal::error::{self, Error, chain, os_message};
use tracer_terminal::screen::Screen;
use tracer_terminal::status_line::StatusLine;

/// The most events that one read takes.
const DRAIN_MAX: usize = 1 << 16;
/// The pause after each read of the ring, as in a real run: it saves wake-ups, which cost most.
const REST: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct HooksConfig {
    pub output: SinkConfig,
    pub load: LoadOptions,
    /// For how long the runs are counted.
    pub duration: Duration,
    /// The least bad status that makes the exit code 1.
    pub fail_on: Status,
    pub node_name: String,
}

#[derive(Clone, Debug)]
struct Watched {
    status: HookStatus,
    events: u64,
    /// Absent if the kernel does not count runs, or nothing is attached.
    runs: Option<Runs>,
}

/// How often the programs of a hook ran, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Runs {
    count: u64,
    seconds: f64,
}

pub fn hooks(config: &HooksConfig) -> Result<u8, Error> {
    leftover::leaving_none([config.output.file.as_deref(), None], || inspect(config))
}

fn inspect(config: &HooksConfig) -> Result<u8, Error> {
    command::require_proc("hooks", Path::new("/"))?;
    let mut output = Output::open(config.output.file.as_deref(), None, false)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Kernel(format!("no event loop: {}", os_message(&error))))?;
    let (watched, window) = runtime.block_on(watch(config))?;
    let findings: Vec<Finding> = watched.iter().map(|hook| finding::of_hook(hook, window)).collect();
    let code = tracer_doctor::exit_code(&findings, config.fail_on);
    let missing = command::missing_privileges(&findings, code);
    match config.output.format {
        Format::Pretty => {
            let screen = Screen { colour: config.output.colour, columns: output.columns().or(config.output.columns) };
            output.put(table::text(&watched, window, &config.node_name, screen).as_bytes());
        }
        format => {
            command::records(findings, &config.node_name).iter().for_each(|record| output.put(&format.line(record)))
        }
    }
    output.finish();
    missing.iter().for_each(|missing| error::report(missing));
    Ok(if output.has_failed() { 2 } else { code })
}

/// Attaches, and counts until the time is over or a signal arrives. Returns the hooks and the time for which they were watched.
async fn watch(config: &HooksConfig) -> Result<(Vec<Watched>, Duration), Error> {
    let signals = Signals::new()?;
    let mut loaded = ebpf::load(&config.load).map_err(|error| Error::Kernel(chain(&error)))?;
    let counting = ebpf::count_runs();
    let probers = procfs::find_probers(&config.load.probers);
    loaded.attach_on_demand(&probers.iter().map(|prober| prober.pid).collect::<Vec<_>>());
    let line = show_status_line(config);
    let (begun, before) = (clock::boot_ns(), loaded.program_runs());
    let events = count_events(&mut loaded, signals, config.duration).await?;
    let (after, window) = (loaded.program_runs(), Duration::from_nanos(clock::boot_ns().saturating_sub(begun)));
    drop(line);
    let counted = counting.is_ok() || !after.is_empty();
    if let (Err(error), false) = (&counting, counted) {
        let reason = os_message(error);
        error::warn(&format!(
            "runs are not counted: {reason} (CAP_SYS_ADMIN, or sysctl -w kernel.bpf_stats_enabled=1)"
        ));
    }
    let watched = loaded.hook_statuses().into_iter().map(|status| {
        let hook = status.row.hook;
        let runs = Runs::between(before.get(&hook), after.get(&hook));
        Watched {
            events: events.get(&(hook as u16)).copied().unwrap_or_default(),
            runs: (counted && loaded.is_attached(hook)).then_some(runs),
            status,
        }
    });
    Ok((watched.collect(), window))
}

/// Shows on a terminal how long the command takes.
fn show_status_line(config: &HooksConfig) -> Option<StatusLine> {
    let mut line = StatusLine::open(config.output.is_json_on_terminal())?;
    let text = format!("watching for {:.0?} (Ctrl-C ends it early)", config.duration);
    line.show(|room| text.chars().take(room).collect());
    Some(line)
}

/// Counts events by the number of their hook, until the time is over or a signal arrives.
async fn count_events(
    loaded: &mut Loaded,
    mut signals: Signals,
    duration: Duration,
) -> Result<BTreeMap<u16, u64>, Error> {
    let mut events = BTreeMap::new();
    let over = tokio::time::Instant::now() + duration;
    let read = async {
        loop {
            loaded.ring.readable().await?;
            loaded.ring.drain(DRAIN_MAX, |bytes| {
                if let Ok(event) = decode(bytes) {
                    *events.entry(event.header().hook).or_default() += 1;
                }
            });
            sleep(REST).await;
        }
    };
    let ended = async { while signals.next().await != Request::End {} };
    let read = timeout_at(over, async {
        tokio::select! {
            failed = read => failed,
            () = ended => Ok(()),
        }
    });
    match read.await {
        Ok(Err(error)) => {
            let error: std::io::Error = error;
            Err(Error::Kernel(format!("the ring of events cannot be read: {}", os_message(&error))))
        }
        Ok(Ok(())) | Err(_) => Ok(events),
    }
}

impl Runs {
    fn between(before: Option<&(u64, f64)>, after: Option<&(u64, f64)>) -> Self {
        let (earlier, later) = (before.copied().unwrap_or_default(), after.copied().unwrap_or_default());
        Self { count: later.0.saturating_sub(earlier.0), seconds: (later.1 - earlier.1).max(0.0) }
    }

    /// Nanoseconds for each run; absent without a run.
    #[expect(clippy::cast_precision_loss, reason = "runs of seconds")]
    fn ns_each(self) -> Option<f64> {
        (self.count > 0).then(|| (self.seconds * 1e9 / self.count as f64).round())
    }

    /// The share of one CPU, from 0 to 1.
    fn share(self, window: Duration) -> f64 {
        if window.is_zero() { 0.0 } else { self.seconds / window.as_secs_f64() }
    }
}

impl Watched {
    const fn hook(&self) -> Hook {
        self.status.row.hook
    }
}
