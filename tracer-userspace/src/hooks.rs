//! `tracer hooks`: how each hook of the tracer stands on this kernel, and what it costs.
//!
//! It attaches as `attach` does, has the kernel count runs for a while, and throws the events away.

mod finding;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{sleep, timeout_at};
use tracer_common::names::Hook;

use crate::shutdown::{Request, Signals};
use tracer_bpf::decode::decode;
use tracer_bpf::ebpf::{self, HookStatus, LoadOptions, Loaded};
use tracer_doctor::{Finding, Status};
use tracer_node::clock;
use tracer_node::procfs;
use tracer_output::sink::output::Output;
use tracer_output::sink::{Form, SinkConfig, leftover};
use tracer_terminal::error::{self, Error, chain, os_message};
use tracer_terminal::screen::Screen;
use tracer_terminal::status_line::StatusLine;

/// Events taken in one go.
const DRAIN_MAX: usize = 1 << 16;
/// How long the ring is left alone after it was read: wake-ups are what costs, as in a real run.
const REST: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct HooksConfig {
    pub output: SinkConfig,
    pub load: LoadOptions,
    /// How long it is watched.
    pub duration: Duration,
    /// Exit code 1 from here on.
    pub fail_on: Status,
    pub node_name: String,
}

#[derive(Clone, Debug)]
struct Watched {
    status: HookStatus,
    events: u64,
    /// Absent where the kernel does not count, or nothing is attached.
    runs: Option<Runs>,
}

/// What the programs of a hook did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Runs {
    count: u64,
    seconds: f64,
}

/// Carries it out.
pub fn hooks(config: &HooksConfig) -> Result<u8, Error> {
    leftover::leaving_none([config.output.file.as_deref(), None], || look(config))
}

fn look(config: &HooksConfig) -> Result<u8, Error> {
    let mut output = Output::open(config.output.file.as_deref(), None, false)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Kernel(format!("no event loop: {}", os_message(&error))))?;
    let (watched, window) = runtime.block_on(watch(config))?;
    let findings: Vec<Finding> = watched.iter().map(|hook| finding::of(hook, window)).collect();
    let code = tracer_doctor::exit_code(&findings, config.fail_on);
    match config.output.form {
        Form::Pretty => {
            let screen = Screen { colour: config.output.colour, columns: output.columns().or(config.output.columns) };
            output.put(table::text(&watched, window, &config.node_name, screen).as_bytes());
        }
        form @ (Form::Ndjson | Form::Otlp) => tracer_doctor::command::records(findings, &config.node_name)
            .iter()
            .for_each(|record| output.put(&form.line(record))),
    }
    output.finish();
    Ok(if output.has_failed() { 2 } else { code })
}

/// Attaches, and watches until the time is over or a signal comes; the hooks, and how long they were watched.
async fn watch(config: &HooksConfig) -> Result<(Vec<Watched>, Duration), Error> {
    let signals = Signals::new()?;
    let mut loaded = ebpf::load(&config.load).map_err(|error| Error::Kernel(chain(&error)))?;
    let counting = ebpf::count_runs();
    let probers = procfs::find_probers(&config.load.probers);
    loaded.attach_on_demand(&probers.iter().map(|prober| prober.pid).collect::<Vec<_>>());
    let line = say(config);
    let (begun, before) = (clock::boot_ns(), loaded.program_runs());
    let events = events(&mut loaded, signals, config.duration).await?;
    let (after, window) = (loaded.program_runs(), Duration::from_nanos(clock::boot_ns().saturating_sub(begun)));
    drop(line);
    let counted = counting.is_ok() || !after.is_empty();
    if let (Err(error), false) = (&counting, counted) {
        let reason = os_message(error);
        error::warn(&format!(
            "runs are not counted: {reason} (CAP_SYS_ADMIN, or sysctl -w kernel.bpf_stats_enabled=1)"
        ));
    }
    let watched = loaded.standings().into_iter().map(|status| {
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

/// On a terminal: that it works, and for how long.
fn say(config: &HooksConfig) -> Option<StatusLine> {
    let mut line = StatusLine::open(config.output.is_json_on_terminal())?;
    let says = format!("watching for {:.0?} (Ctrl-C ends it early)", config.duration);
    line.show(|room| says.chars().take(room).collect());
    Some(line)
}

/// Events by the number of the hook that wrote them, until the time is over or a signal comes.
async fn events(loaded: &mut Loaded, mut signals: Signals, duration: Duration) -> Result<BTreeMap<u16, u64>, Error> {
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

    /// Nanoseconds for one run; none without a run.
    #[expect(clippy::cast_precision_loss, reason = "runs of seconds")]
    fn ns_each(self) -> Option<f64> {
        (self.count > 0).then(|| (self.seconds * 1e9 / self.count as f64).round())
    }

    /// Of one CPU, from 0 to 1.
    fn share(self, window: Duration) -> f64 {
        if window.is_zero() { 0.0 } else { self.seconds / window.as_secs_f64() }
    }
}

impl Watched {
    const fn hook(&self) -> Hook {
        self.status.row.hook
    }
}
