//! Joins core and sink: observations in, records out. Live runs and replays differ only in where observations come from.

use tracer_core::core::Core;
use tracer_model::decision::Decision;
use tracer_model::event::{Loss, Observation, ObservationKind};
use tracer_model::query::Query;
use tracer_model::record::{Body, StartBody};
use tracer_output::sink::Sink;
use tracer_terminal::status_line::Counts;

/// Fields of the start record that are not in the stream of observations.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AtStart {
    #[serde(default)]
    pub prober_pids: Vec<u32>,
    #[serde(default)]
    pub pods: usize,
}

/// Observations in, records out.
#[derive(Debug)]
pub struct Engine {
    core: Core,
    sink: Sink,
    at_start: AtStart,
    events: u64,
    lost_events: u64,
    decisions: Vec<Decision>,
    /// Reads the boot clock; `None` in a replay.
    clock: Option<fn() -> u64>,
}

impl Engine {
    pub fn new(sink: Sink, at_start: AtStart, clock: Option<fn() -> u64>) -> Self {
        Self { core: Core::default(), sink, at_start, events: 0, lost_events: 0, decisions: Vec::new(), clock }
    }

    /// Processes one observation and prints its decisions. Call [`Engine::flush`] after a batch.
    pub fn push(&mut self, observation: &Observation) {
        self.sink.advance(observation.time_boot_ns);
        match &observation.kind {
            ObservationKind::Start(start) => {
                self.sink.set_origin(start);
                let body = Body::Start(StartBody {
                    version: start.version.clone(),
                    kernel: start.kernel.clone(),
                    hooks: start.hooks.clone(),
                    missing_hooks: start.missing_hooks.clone(),
                    prober_hooks: start.prober_hooks.clone(),
                    sources: start.sources.clone(),
                    probers: start.probers.clone(),
                    prober_pids: self.at_start.prober_pids.clone(),
                    pods: self.at_start.pods,
                });
                self.sink.emit(Decision::new(observation.time_boot_ns, None, body), None);
            }
            // If somebody sets the wall clock, the settings have the new difference.
            ObservationKind::NodeSettings(settings) => {
                settings.boot_to_wall_ns.into_iter().for_each(|it| self.sink.set_clock(it));
            }
            ObservationKind::Pods(list) => self.sink.count_pods(&list.pods),
            ObservationKind::Loss(loss) => self.lost_events = self.lost_events.saturating_add(loss.count),
            kind => self.events += u64::from(kind.is_kernel_event()),
        }
        self.core.push(observation, &mut self.decisions);
        self.print();
    }

    /// When the core or the sink needs the next tick.
    pub fn next_deadline(&self) -> Option<u64> {
        self.core.next_deadline().into_iter().chain(self.sink.next_deadline()).min()
    }

    /// Whether a verdict is about to be emitted.
    pub fn is_deciding(&self, now_boot_ns: u64) -> bool {
        self.core.is_deciding(now_boot_ns)
    }

    pub fn take_queries(&mut self) -> Vec<Query> {
        self.core.take_queries()
    }

    /// Writes the printed records to the output.
    pub fn flush(&mut self) {
        self.sink.output().flush();
    }

    /// Whether the run can end: the reader is gone, or `--until-failure` met a failure.
    #[must_use]
    pub fn is_done(&mut self) -> bool {
        self.sink.is_satisfied() || self.sink.output().is_closed()
    }

    pub fn counts(&self) -> Counts {
        Counts { lost: self.lost_events, ..self.sink.counts() }
    }

    pub const fn sink(&mut self) -> &mut Sink {
        &mut self.sink
    }

    /// The stream ends: prints the last decisions.
    pub fn finish(&mut self, time_boot_ns: u64) {
        self.core.finish(time_boot_ns, &mut self.decisions);
        self.print();
    }

    pub fn stop(&mut self, time_boot_ns: u64, reason: &str) {
        self.sink.stop(time_boot_ns, reason, self.events, self.lost_events);
    }

    pub fn into_sink(self) -> Sink {
        self.sink
    }

    /// Prints the decisions.
    fn print(&mut self) {
        if self.decisions.is_empty() {
            return;
        }
        let now = self.clock.map(|clock| clock());
        for decision in self.decisions.drain(..) {
            // The others were observed.
            if let Body::Loss(loss) = &decision.body
                && [Loss::ATTEMPTS, Loss::OUTCOMES].contains(&loss.where_.as_str())
            {
                self.lost_events = self.lost_events.saturating_add(loss.count);
            }
            self.sink.emit(decision, now);
        }
    }
}
