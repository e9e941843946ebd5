//! An hour of a busy node: 75 attempts a second. One in twenty is a recording of a failure under new names. No verdict
//! is missing, none is wrong, and the core does not grow.

use std::collections::{BTreeMap, BTreeSet};

use super::fixtures::{AttemptVerdicts, Recorded, causes, recordings, reported};
use super::merge::{Snapshot, is_start, snapshot};
use super::rename::{Renaming, SLOTS};
use crate::core::Core;
use crate::testing::*;
use tracer_model::decision::Decision;

const ATTEMPTS_A_SECOND: u64 = 75;
/// One attempt in this many comes from a recording.
const FAILURES: u64 = 20;
/// Longer than the longest recording.
const TAIL_S: u64 = 60;
const SECOND: u64 = 1_000_000_000;
/// Healthy attempts. Their connection numbers are below all that are recorded.
const HEALTHY: &[fn(&mut Stream)] = &[
    |stream| _ = stream.connect().established().closes((100, 101, 200)),
    |stream| _ = stream.connect().established().closes((0, 1, 0)),
];

/// The traffic of a node, second by second.
struct Traffic {
    attempts: u64,
    instances: u64,
    /// The observations to come, in the order of time. The second number keeps the order of a stream.
    queue: BTreeMap<(u64, u64), (usize, Observation)>,
    pushed: u64,
    snapshots: Vec<Snapshot>,
    expected: BTreeMap<ConnId, Vec<&'static str>>,
    /// The recording of each instance, for a message.
    names: BTreeMap<u64, &'static str>,
    chosen: Vec<&'static Recorded>,
}

impl Traffic {
    fn new() -> Self {
        Self {
            attempts: 0,
            instances: 0,
            queue: BTreeMap::new(),
            pushed: 0,
            snapshots: vec![Snapshot::default(); SLOTS as usize],
            expected: BTreeMap::new(),
            names: BTreeMap::new(),
            chosen: recordings()
                .iter()
                .filter(|recording| has_conns(recording) && recording.kernel() == recordings()[0].kernel())
                .collect(),
        }
    }

    /// Adds the attempts that begin in this second.
    fn second(&mut self, second: u64) {
        for n in 0..ATTEMPTS_A_SECOND {
            let at = second * SECOND + n * SECOND / ATTEMPTS_A_SECOND;
            self.attempts += 1;
            if self.attempts.is_multiple_of(FAILURES) { self.failing(at) } else { self.healthy(at) }
        }
    }

    fn healthy(&mut self, at: u64) {
        let mut stream = Stream::numbered(self.attempts, at);
        let make = HEALTHY[self.attempts as usize % HEALTHY.len()];
        make(&mut stream);
        for observation in stream.observations.into_iter().skip(1) {
            self.put(0, observation);
        }
    }

    fn failing(&mut self, at: u64) {
        self.instances += 1;
        let recording = self.chosen[self.instances as usize % self.chosen.len()];
        let first = recording.observations.first().map_or(0, |o| o.time_boot_ns);
        let shift_ns = (at + SECOND).cast_signed() - first.cast_signed();
        let renaming = Renaming { instance: self.instances, ports: 0, shift_ns };
        let expected = causes(&recording.reported);
        self.expected.extend(expected.into_iter().map(|(conn, causes)| (renaming.conn(conn), causes)));
        self.names.insert(self.instances, &recording.name);
        let slot = (self.instances % SLOTS) as usize;
        for observation in renaming.of(recording) {
            self.put(slot, observation);
        }
    }

    fn put(&mut self, slot: usize, observation: Observation) {
        self.pushed += 1;
        self.queue.insert((observation.time_boot_ns, self.pushed), (slot, observation));
    }

    /// Gives the core all observations before this time.
    fn drain(&mut self, until: u64, core: &mut Core, out: &mut Vec<Decision>) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 < until) {
            let (slot, observation) = entry.remove();
            let kind = snapshot(&mut self.snapshots, slot, &observation.kind);
            core.push(&Observation { time_boot_ns: observation.time_boot_ns, kind }, out);
            core.take_queries();
        }
    }

    /// Each attempt must have the verdicts that its recording has.
    fn check(&self, found: &AttemptVerdicts) {
        let found = causes(found);
        let conns: BTreeSet<&ConnId> = found.keys().chain(self.expected.keys()).collect();
        let name = |conn: &ConnId| self.names.get(&(conn.0 >> 46)).unwrap_or(&"?");
        let wrong: Vec<String> = conns
            .into_iter()
            .filter(|conn| found.get(conn) != self.expected.get(conn))
            .map(|conn| format!("{}: {:?}, not {:?}", name(conn), found.get(conn), self.expected.get(conn)))
            .collect();
        let some = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
        assert!(wrong.is_empty(), "{} of {} attempts with a verdict:\n{some}", wrong.len(), self.expected.len());
    }
}

/// Whether each attempt of the recording has a connection number, by which the test finds it again.
fn has_conns(recording: &Recorded) -> bool {
    let failed_without_conn =
        |kind: &ObservationKind| matches!(kind, ObservationKind::ConnectFailed(failed) if failed.conn.is_none());
    !recording.observations.iter().any(|o| failed_without_conn(&o.kind))
}

/// The size of the core as text: in all, and without decided attempts, which reach their bound after half of the time.
fn size(core: &Core) -> (usize, usize) {
    let all = format!("{core:?}").len();
    (all, all - core.decided_in_text())
}

fn soak(minutes: u64) {
    let (mut traffic, mut core, mut out) = (Traffic::new(), Core::default(), Vec::new());
    let start = traffic.chosen[0].observations.iter().find(|o| is_start(o)).expect("a recording begins with a start");
    core.push(&Observation { time_boot_ns: 0, kind: start.kind.clone() }, &mut out);
    let mut found = AttemptVerdicts::new();
    let mut sizes = Vec::new();
    for second in 0..minutes * 60 + TAIL_S {
        if second < minutes * 60 {
            traffic.second(second);
        }
        traffic.drain(second * SECOND, &mut core, &mut out);
        for (conn, verdicts) in reported(&out) {
            found.entry(conn).or_default().extend(verdicts);
        }
        out.clear();
        if second % 60 == 59 {
            sizes.push(size(&core));
        }
    }
    core.finish((minutes * 60 + TAIL_S) * SECOND, &mut out);
    traffic.check(&found);
    let largest = sizes.iter().map(|(all, _)| *all).max().unwrap_or(0);
    let last = sizes.last().map_or(0, |(_, rest)| *rest);
    println!("{} attempts, {} recordings, the core in text: {largest} bytes", traffic.attempts, traffic.instances);
    assert!(largest < 64 << 20, "the core holds {largest} bytes of text");
    if minutes >= 60 {
        let (_, half) = sizes[sizes.len() / 2];
        println!("without decided attempts: {half} bytes at half time, {last} at the end");
        assert!(last < half + half / 5, "the core grows: {half} bytes of text at half time, {last} at the end");
    }
}

#[test]
fn some_minutes_of_a_node() {
    soak(4);
}

/// `cargo xtask test` runs it: four minutes of processor time without optimisation.
#[test]
#[ignore = "takes more than a minute"]
fn an_hour_of_a_node() {
    soak(60);
}
