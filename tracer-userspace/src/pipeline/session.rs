//! One live run: its loop and its end.

use std::fs::File;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::EventSource;
use super::losses::Losses;
use super::wake::{Timers, Wake};
use crate::engine::Engine;
use crate::record_file::Recorder;
use crate::shutdown::{Request, Signals};
use tracer_model::event::{Loss, Observation, ObservationKind, PortPressure, Start};
use tracer_node::clock;
use tracer_output::serve::Server;
use tracer_terminal::error::{Error, os_message};
use tracer_terminal::status_line::StatusLine;

/// Events taken in one go, so that signals are answered however busy the node is.
const DRAIN_MAX: usize = 1 << 13;
/// How often in a row, where all must be read that the ring had: more than a ring holds.
const DRAINS_MAX: usize = 16;
/// From this many events in one go on, the ring is left alone for a moment: while the reader has not
/// caught up, the kernel sends no wake-ups, and wake-ups are what costs.
const BUSY: usize = 32;
/// That moment. Bounds what batching adds to a verdict's latency.
const REST: Duration = Duration::from_millis(1);
/// How long skipped runs may go unseen.
const MISSED_NS: u64 = 1_000_000_000;
/// After this many observations of one batch the loop notes that it still runs.
const ALIVE: usize = 256;

/// The names of the parts beside the pipeline that panic.
pub(super) type Panics = mpsc::UnboundedReceiver<&'static str>;

pub(super) struct Session<S> {
    events: S,
    changes: mpsc::Receiver<ObservationKind>,
    changes_open: bool,
    /// The part beside the pipeline that panicked.
    panicked: Option<&'static str>,
    engine: Engine,
    recorder: Option<Recorder<File>>,
    batch: Vec<Observation>,
    lost: Losses,
    missed: Losses,
    /// What happens later is not taken.
    until_boot_ns: u64,
    daemon: bool,
    /// Answers for a daemon while it runs.
    server: Option<Server>,
    status_line: Option<StatusLine>,
    begun: Instant,
}

impl<S: EventSource> Session<S> {
    pub(super) fn new(
        events: S,
        changes: mpsc::Receiver<ObservationKind>,
        engine: Engine,
        recorder: Option<Recorder<File>>,
        daemon: bool,
        server: Option<Server>,
        status_line: Option<StatusLine>,
    ) -> Self {
        let now = clock::boot_ns();
        Self {
            events,
            changes,
            changes_open: true,
            panicked: None,
            engine,
            recorder,
            batch: Vec::new(),
            lost: Losses::since(now),
            missed: Losses::since(now),
            until_boot_ns: u64::MAX,
            daemon,
            server,
            status_line,
            begun: Instant::now(),
        }
    }

    /// The start record and what is known at the start.
    pub(super) fn begin(&mut self, since_boot_ns: u64, start: Start, facts: Vec<ObservationKind>) {
        let (hooks, missing) = (start.hooks.len(), start.missing_hooks.len());
        self.push(&Observation { time_boot_ns: since_boot_ns, kind: ObservationKind::Start(Box::new(start)) });
        for kind in facts {
            self.note_trouble(&kind);
            self.push(&Observation { time_boot_ns: clock::boot_ns(), kind });
        }
        self.flush();
        self.tell();
        if let Some(server) = &self.server {
            server.health.ready(hooks, missing);
        }
    }

    /// Until something ends it; gives the reason.
    pub(super) async fn watch(
        &mut self,
        mut signals: Signals,
        mut panics: Panics,
        duration: Option<Duration>,
    ) -> Result<&'static str, Error> {
        let mut timers = Timers::new(duration, self.daemon, self.status_line.is_some()).map_err(no_timer)?;
        loop {
            let wake = self.wake(&mut timers, &mut signals, &mut panics).await?;
            let taken = self.take_events();
            if let Some(reason) = self.answer(wake) {
                return Ok(reason);
            }
            // What can be answered at once is known before what waits for it is decided.
            self.ask();
            self.fire_deadline();
            self.ask();
            self.flush();
            if self.engine.is_done() {
                let satisfied = self.engine.sink().is_satisfied();
                return Ok(if satisfied { "until_failure" } else { "output_closed" });
            }
            if taken >= BUSY {
                sleep(REST).await;
            }
        }
    }

    /// Waits until there is something to do.
    async fn wake(&mut self, timers: &mut Timers, signals: &mut Signals, panics: &mut Panics) -> Result<Wake, Error> {
        let deadline = self.engine.next_deadline();
        tokio::select! {
            ready = self.events.readable() => ready.map(|()| Wake::Events).map_err(no_ring),
            kind = self.changes.recv(), if self.changes_open => Ok(Wake::ObservationKind(kind.map(Box::new))),
            rung = timers.next(deadline) => rung.map_err(no_timer),
            request = signals.next() => Ok(Wake::Request(request)),
            Some(part) = panics.recv() => Ok(Wake::Panicked(part)),
        }
    }

    /// Detach, drain, decide what was open, `stop`. The exit code.
    pub(super) fn end(mut self, reason: &str) -> Result<u8, Error> {
        if let Some(server) = &self.server {
            server.health.stopping();
        }
        self.status_line = None;
        self.check_missed();
        self.emit_port_use();
        // Detaching takes a while: decided verdicts do not wait for it.
        self.flush();
        // They come off one after another: of what happens from now on, some of them only would report their part.
        self.until_boot_ns = clock::boot_ns();
        self.events.detach();
        while self.take_events() == DRAIN_MAX {}
        self.check_loss();
        let now = clock::boot_ns();
        self.engine.finish(now);
        self.engine.stop(now, reason);
        let recorded = self.recorder.take().is_none_or(|recorder| recorder.finish(now));
        let satisfied = self.engine.sink().is_satisfied();
        match (self.panicked, recorded && !self.engine.sink().has_failed(), satisfied) {
            (Some(part), ..) => Err(Error::Panicked(part)),
            (None, false, _) => Ok(2),
            (None, true, true) => Ok(1),
            (None, true, false) => Ok(0),
        }
    }

    /// What a wake asks for besides draining; a reason to end.
    fn answer(&mut self, wake: Wake) -> Option<&'static str> {
        match wake {
            Wake::Events | Wake::Deadline => {}
            Wake::ObservationKind(None) => self.changes_open = false,
            Wake::ObservationKind(Some(kind)) => self.take_observations(*kind),
            Wake::Tick => self.every_second(),
            Wake::Retry => self.retry_hooks(),
            Wake::Ports => self.emit_port_use(),
            Wake::Draw => self.draw(),
            Wake::Request(Request::Reopen { .. }) if self.engine.sink().output().can_reopen() => {
                self.engine.sink().output().reopen();
            }
            Wake::Request(Request::Reopen { or_go_on }) if or_go_on || self.daemon => {}
            Wake::Request(Request::End | Request::Reopen { .. }) => return Some("signal"),
            Wake::Over => return Some("duration"),
            Wake::Panicked(part) => {
                if let Some(server) = &self.server {
                    server.health.degraded(part, Some("it panicked: tracer ends".into()));
                }
                self.panicked = Some(part);
                return Some("panic");
            }
        }
        None
    }

    /// Takes what is in the ring, in the order of time.
    fn take_events(&mut self) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        let taken = self.events.drain(DRAIN_MAX, &mut batch);
        if taken >= BUSY {
            // Before the batch: a verdict that it decides must know what was lost.
            self.check_loss();
            self.check_missed_in_time();
        }
        batch.retain(|observation| observation.time_boot_ns <= self.until_boot_ns);
        batch.sort_by_key(|observation| observation.time_boot_ns);
        for (n, observation) in batch.drain(..).enumerate() {
            self.push(&observation);
            // A large batch takes its time: that is work, not a standstill.
            if n % ALIVE == ALIVE - 1 {
                self.moved();
            }
        }
        self.batch = batch;
        taken
    }

    /// A fact and all that wait behind it.
    fn take_observations(&mut self, first: ObservationKind) {
        self.push_observation(first);
        while let Ok(kind) = self.changes.try_recv() {
            self.push_observation(kind);
        }
    }

    fn every_second(&mut self) {
        self.check_loss();
        self.check_missed();
        self.tell();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
    }

    /// For metrics and health.
    fn tell(&mut self) {
        let events = &self.events;
        self.engine.sink().every_second(clock::boot_ns(), || events.counts());
        self.moved();
        if let Some(server) = &self.server {
            server.health.degraded("output", self.engine.sink().output().trouble().cloned());
        }
    }

    /// For `tracer health`, which asks whether this loop still runs.
    fn moved(&self) {
        if let Some(server) = &self.server {
            server.health.moved();
        }
    }

    fn retry_hooks(&mut self) {
        let gained = self.events.retry_hooks();
        if let Some(server) = self.server.as_ref().filter(|_| !gained.is_empty()) {
            server.health.gained(gained.len());
        }
        for hook in gained {
            tracing::info!(hook = hook.hook, form = hook.form, "attached: its kernel module was loaded meanwhile");
        }
    }

    fn emit_port_use(&mut self) {
        if let Some(pressure) = self.events.port_pressure() {
            let pressure = PortPressure { regular: self.daemon, ..pressure };
            self.push_now(ObservationKind::PortPressure(Box::new(pressure)));
        }
    }

    fn check_loss(&mut self) {
        let lost = self.lost.grown(self.events.lost(), clock::boot_ns());
        self.report_losses(lost);
    }

    /// Each second, also while there is always something to read.
    fn check_missed_in_time(&mut self) {
        if clock::boot_ns().saturating_sub(self.missed.checked_ns()) >= MISSED_NS {
            self.check_missed();
        }
    }

    fn check_missed(&mut self) {
        let missed = self.missed.grown(self.events.missed(), clock::boot_ns());
        self.report_losses(missed);
    }

    fn report_losses(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.push(&Observation { time_boot_ns: loss.to_boot_ns, kind: ObservationKind::Loss(loss) });
        }
    }

    fn fire_deadline(&mut self) {
        let due = self.engine.next_deadline();
        if due.is_some_and(|deadline| deadline <= clock::boot_ns()) {
            self.push_now(ObservationKind::Tick);
        }
    }

    fn ask(&mut self) {
        for ask in self.engine.take_queries() {
            if let Some(kind) = self.events.ask(ask) {
                self.push_now(kind);
            }
        }
    }

    fn push_observation(&mut self, kind: ObservationKind) {
        self.note_trouble(&kind);
        self.push_now(kind);
    }

    fn note_trouble(&self, kind: &ObservationKind) {
        if let (ObservationKind::ListTrouble(trouble), Some(server)) = (kind, &self.server) {
            server.health.degraded(trouble.list.name(), trouble.problem.clone());
        }
    }

    /// What happened before this moment is reported first: a verdict that is due by then must know all of it.
    fn push_now(&mut self, kind: ObservationKind) {
        let time_boot_ns = clock::boot_ns();
        for _ in 0..DRAINS_MAX {
            if self.take_events() < DRAIN_MAX {
                break;
            }
        }
        self.push(&Observation { time_boot_ns, kind });
    }

    fn push(&mut self, observation: &Observation) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(observation);
        }
        self.engine.push(observation);
    }

    fn flush(&mut self) {
        self.engine.flush();
    }

    /// After what waits to be written, which would erase it.
    fn draw(&mut self) {
        self.flush();
        if let Some(line) = &mut self.status_line {
            line.draw(self.begun.elapsed(), &self.engine.counts());
        }
    }
}

fn no_timer(error: io::Error) -> Error {
    Error::Kernel(format!("no timer of the boot clock: {}", os_message(&error)))
}

fn no_ring(error: io::Error) -> Error {
    Error::Kernel(format!("the ring of events cannot be read: {}", os_message(&error)))
}
