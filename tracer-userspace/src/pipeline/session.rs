//! One live run: its loop and its end.

use std::fs::File;
use std::io;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::losses::Losses;
use super::wake::{Timers, Wake};
use super::{Attached, EventSource};
use crate::engine::Engine;
use crate::record_file::Recorder;
use crate::shutdown::{Request, Signals};
use tracer_model::event::{HooksAttached, Loss, Observation, ObservationKind, PortPressure};
use tracer_node::clock;
use tracer_output::serve::Server;
use tracer_terminal::error::{Error, os_message};
use tracer_terminal::status_line::StatusLine;

/// The most events that one read takes, so that the loop handles signals even on a busy node.
const DRAIN_MAX: usize = 1 << 13;
/// After a read of this many events, the loop pauses. While unread events are in the ring, the kernel sends no wake-ups, and
/// wake-ups cost most.
const BUSY: usize = 32;
/// The length of that pause. It limits what batching adds to the latency of a verdict.
const REST: Duration = Duration::from_millis(1);
/// How old the last check for skipped runs may become while the node is busy.
const MISSED_NS: u64 = 1_000_000_000;
/// The longest time for which the end of a run waits for verdicts that are being decided. Reading a firewall takes milliseconds.
const DECIDING: Duration = Duration::from_millis(200);
/// After this many observations of one batch, the loop reports progress for `tracer health`.
const ALIVE: usize = 256;

/// Receives the names of parts outside of the pipeline that panicked.
pub(super) type Panics = mpsc::UnboundedReceiver<&'static str>;

pub(super) struct Session<S> {
    events: S,
    changes: mpsc::Receiver<ObservationKind>,
    changes_open: bool,
    panicked: Option<&'static str>,
    engine: Engine,
    recorder: Option<Recorder<File>>,
    batch: Vec<Observation>,
    /// The time of the oldest event of the last read.
    read_from_ns: u64,
    lost: Losses,
    missed: Losses,
    daemon: bool,
    /// The endpoints of a daemon.
    server: Option<Server>,
    status_line: Option<StatusLine>,
    begun: Instant,
}

impl<S: EventSource> Session<S> {
    /// Emits the start record and processes the first observations of the sources.
    pub(super) fn begin(
        attached: Attached<S>,
        engine: Engine,
        recorder: Option<Recorder<File>>,
        daemon: bool,
        server: Option<Server>,
        status_line: Option<StatusLine>,
    ) -> Self {
        let now = clock::boot_ns();
        let mut session = Self {
            events: attached.events,
            changes: attached.changes,
            changes_open: true,
            panicked: None,
            engine,
            recorder,
            batch: Vec::new(),
            read_from_ns: 0,
            lost: Losses::since(now),
            missed: Losses::since(now),
            daemon,
            server,
            status_line,
            begun: Instant::now(),
        };
        let (hooks, missing) = (attached.start.hooks.len(), attached.start.missing_hooks.len());
        let kind = ObservationKind::Start(Box::new(attached.start));
        session.push(&Observation { time_boot_ns: attached.since_boot_ns, kind });
        for kind in attached.observations {
            session.note_trouble(&kind);
            session.push(&Observation { time_boot_ns: clock::boot_ns(), kind });
        }
        session.engine.flush();
        session.update_metrics_and_health();
        if let Some(server) = &session.server {
            server.health.ready(hooks, missing);
        }
        session
    }

    /// Runs the loop until something ends it; returns the reason.
    pub(super) async fn watch(
        &mut self,
        mut signals: Signals,
        mut panics: Panics,
        duration: Option<Duration>,
    ) -> Result<&'static str, Error> {
        let mut timers = Timers::new(duration, self.daemon, self.status_line.is_some()).map_err(no_timer)?;
        // Why the run ends, and until when it may decide.
        let mut ending: Option<(&'static str, Instant)> = None;
        let mut taken = 0;
        loop {
            let wake = self.wake(&mut timers, &mut signals, &mut panics, taken == DRAIN_MAX).await?;
            taken = self.take_events();
            if let Some(reason) = self.handle(wake) {
                // A second request does not wait.
                let until = Instant::now() + if ending.is_none() { DECIDING } else { Duration::ZERO };
                ending = Some((ending.map_or(reason, |(first, _)| first), until));
            }
            // Before the deadline: an attempt may wait for an answer that is known at once.
            self.run_queries();
            self.fire_deadline();
            self.run_queries();
            self.engine.flush();
            if let Some((reason, until)) = ending
                && (Instant::now() >= until || self.panicked.is_some() || !self.engine.is_deciding(clock::boot_ns()))
            {
                return Ok(reason);
            }
            if self.engine.is_done() {
                let satisfied = self.engine.sink().is_satisfied();
                return Ok(if satisfied { "until_failure" } else { "output_closed" });
            }
            if taken >= BUSY {
                sleep(REST).await;
            }
        }
    }

    /// Waits until there is something to do. `unread`: the ring has more events, for which the kernel does not wake tracer.
    async fn wake(
        &mut self,
        timers: &mut Timers,
        signals: &mut Signals,
        panics: &mut Panics,
        unread: bool,
    ) -> Result<Wake, Error> {
        let deadline = self.engine.next_deadline();
        let other = async {
            tokio::select! {
                () = std::future::ready(()), if unread => Ok(Wake::Events),
                ready = self.events.readable() => ready.map(|()| Wake::Events).map_err(no_ring),
                kind = self.changes.recv(), if self.changes_open => Ok(Wake::ObservationKind(kind.map(Box::new))),
                fired = timers.next(deadline) => fired.map_err(no_timer),
            }
        };
        // What ends the run goes first: on a busy node there are always events.
        tokio::select! {
            biased;
            request = signals.next() => Ok(Wake::Request(request)),
            Some(part) = panics.recv() => Ok(Wake::Panicked(part)),
            wake = other => wake,
        }
    }

    /// Drains the ring and the queue, decides the open attempts, emits the `stop` record. Returns the exit code.
    ///
    /// The hooks are detached after that, one after another. This takes half a second, and meanwhile an attempt would have events
    /// of only some hooks.
    pub(super) fn end(mut self, reason: &str) -> Result<u8, Error> {
        if let Some(server) = &self.server {
            server.health.stopping();
        }
        self.status_line = None;
        self.check_missed();
        self.emit_port_use();
        self.take_observations();
        self.drain();
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

    /// Does what a wake needs besides draining the ring. Returns a reason to end, if there is one.
    fn handle(&mut self, wake: Wake) -> Option<&'static str> {
        match wake {
            Wake::Events | Wake::Deadline => {}
            Wake::ObservationKind(None) => self.changes_open = false,
            Wake::ObservationKind(Some(kind)) => {
                self.push_observation(*kind);
                self.take_observations();
            }
            Wake::Tick => self.every_second(),
            Wake::Retry => self.retry_hooks(),
            Wake::Ports => self.emit_port_use(),
            Wake::Draw => self.draw(),
            Wake::Request(Request::Reopen { .. }) if self.engine.sink().output().can_reopen() => {
                self.engine.sink().output().reopen();
            }
            Wake::Request(Request::Reopen { or_continue }) if or_continue || self.daemon => {}
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

    /// Processes the events of the ring in the order of time. Returns how many there were.
    fn take_events(&mut self) -> usize {
        let mut batch = std::mem::take(&mut self.batch);
        let taken = self.events.drain(DRAIN_MAX, &mut batch);
        if taken >= BUSY {
            // Before the batch: its verdicts must know what was lost.
            self.check_loss();
            // Once a second, also while the ring is never empty.
            if clock::boot_ns().saturating_sub(self.missed.checked_ns) >= MISSED_NS {
                self.check_missed();
            }
        }
        batch.sort_by_key(|observation| observation.time_boot_ns);
        self.read_from_ns = batch.first().map_or(0, |oldest| oldest.time_boot_ns);
        for (n, observation) in batch.drain(..).enumerate() {
            self.push(&observation);
            // A large batch takes time: `tracer health` must not report that the loop hangs.
            if n % ALIVE == ALIVE - 1 {
                self.note_progress();
            }
        }
        self.batch = batch;
        taken
    }

    /// Processes the queued observations of sources.
    fn take_observations(&mut self) {
        while let Ok(kind) = self.changes.try_recv() {
            self.push_observation(kind);
        }
    }

    fn every_second(&mut self) {
        self.events.every_second();
        self.check_loss();
        self.check_missed();
        self.update_metrics_and_health();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
    }

    fn update_metrics_and_health(&mut self) {
        let events = &self.events;
        self.engine.sink().every_second(clock::boot_ns(), || events.counts());
        self.note_progress();
        if let Some(server) = &self.server {
            server.health.degraded("output", self.engine.sink().output().trouble().cloned());
        }
    }

    /// Shows `tracer health` that this loop still runs.
    fn note_progress(&self) {
        if let Some(server) = &self.server {
            server.health.progressed();
        }
    }

    fn retry_hooks(&mut self) {
        let gained = self.events.retry_hooks();
        if let Some(server) = self.server.as_ref().filter(|_| !gained.is_empty()) {
            server.health.gained(gained.len());
        }
        for hook in &gained {
            tracing::info!(
                hook = hook.hook,
                program_type = hook.program_type,
                "attached: its kernel module was loaded meanwhile"
            );
        }
        if !gained.is_empty() {
            let hooks = gained.into_iter().map(|hook| hook.hook).collect();
            self.push_now(ObservationKind::HooksAttached(HooksAttached { hooks }));
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

    fn run_queries(&mut self) {
        for query in self.engine.take_queries() {
            if let Some(kind) = self.events.query(query) {
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
            server.health.degraded(&trouble.list.to_string(), trouble.problem.clone());
        }
    }

    /// Processes the events before this moment first: a verdict that is due now must know them.
    fn push_now(&mut self, kind: ObservationKind) {
        let time_boot_ns = clock::boot_ns();
        self.drain();
        self.push(&Observation { time_boot_ns, kind });
    }

    /// Processes what is in the ring. On a busy node more comes meanwhile, and is left there.
    fn drain(&mut self) {
        let now = clock::boot_ns();
        while self.take_events() == DRAIN_MAX && self.read_from_ns <= now {}
    }

    fn push(&mut self, observation: &Observation) {
        if let Some(recorder) = &mut self.recorder {
            recorder.push(observation);
        }
        self.engine.push(observation);
    }

    /// Draws the status line after a flush: records that are printed later would erase it.
    fn draw(&mut self) {
        self.engine.flush();
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
