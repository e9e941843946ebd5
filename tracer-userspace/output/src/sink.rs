//! Makes records of decisions (filtered, numbered, with their time), and prints them as lines.

pub mod cluster;
mod config;
pub mod filter;
pub mod findings;
pub mod leftover;
pub mod metrics;
pub mod ndjson;
pub mod otlp;
pub mod output;
pub mod plain;
pub mod pretty;
mod printed;
mod repeats;
pub mod selftest;

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use self::config::{Format, SinkConfig};
use crate::sink::cluster::ClusterSink;
use crate::sink::filter::Filter;
use crate::sink::metrics::{KernelCounts, Metrics};
use crate::sink::otlp::OtlpSink;
use crate::sink::output::Output;
use crate::sink::pretty::Pretty;
use crate::sink::printed::Printed;
use crate::sink::repeats::{HeldVerdicts, Repeats};
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Pod, Start};
use tracer_model::recent::Recent;
use tracer_model::record::{AttemptBody, Body, LossBody, Outcome, Record, Repeated, SCHEMA, StopBody, Subject, Timing};
use tracer_terminal::error::{self, Error};
use tracer_terminal::screen::Screen;
use tracer_terminal::status_line::Counts;

/// Takes decisions, prints records.
#[derive(Debug)]
pub struct Sink {
    output: Output,
    format: Format,
    colour: bool,
    columns: Option<usize>,
    filter: Filter,
    attempts: bool,
    until_failure: bool,
    node_name: String,
    boot_to_wall_ns: i64,
    seq: u64,
    printed: Printed,
    repeats: Repeats,
    totals: StopBody,
    /// Attempts that failed, printed or not.
    failed: u64,
    /// Failed attempts that a revision may still change to noise.
    failures: Recent<ConnId, (), 4096>,
    pretty: Pretty,
    failure_printed: bool,
    /// The printed verdicts, if the caller wants to compare them.
    kept: Option<Vec<Record>>,
    last_time_boot_ns: u64,
    metrics: Option<Metrics>,
    cluster: Option<ClusterSink>,
    otlp: Option<OtlpSink>,
    /// Whether every record reached the OTLP endpoint, if there is one.
    is_delivered: bool,
}

impl Sink {
    /// Opens the output. `live`: writes never block.
    pub fn open(config: &SinkConfig, live: bool) -> Result<Self, Error> {
        Ok(Self {
            output: Output::open(config.file.as_deref(), config.rotation, live)?,
            format: config.format,
            colour: config.colour,
            columns: config.columns,
            filter: config.filter.clone(),
            attempts: config.attempts,
            until_failure: config.until_failure,
            node_name: String::new(),
            boot_to_wall_ns: 0,
            seq: 0,
            printed: Printed::default(),
            repeats: Repeats::new(config.repeat_interval),
            totals: StopBody::default(),
            failed: 0,
            failures: Recent::default(),
            pretty: Pretty::new(config.filter.clone(), config.verbose),
            failure_printed: false,
            kept: None,
            last_time_boot_ns: 0,
            metrics: None,
            cluster: None,
            otlp: None,
            is_delivered: true,
        })
    }

    /// Keeps the verdicts, for [`Sink::into_kept`].
    pub fn keep_verdicts(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Counts decisions in these metrics, printed or not.
    pub fn count_into(&mut self, metrics: Metrics) {
        self.metrics = Some(metrics);
    }

    /// Also writes to the cluster API.
    pub fn write_to(&mut self, cluster: ClusterSink) {
        self.cluster = Some(cluster);
    }

    /// Also pushes records to an OTLP endpoint.
    pub fn push_to(&mut self, otlp: OtlpSink) {
        self.otlp = Some(otlp);
    }

    /// Whether a record could not be written or delivered to its target.
    pub const fn has_failed(&self) -> bool {
        self.output.has_failed() || !self.is_delivered
    }

    /// A live run calls this once a second. It notices a reader that is gone, reports lost records and updates the metrics.
    pub fn every_second(&mut self, now_boot_ns: u64, kernel: impl FnOnce() -> KernelCounts) {
        self.output.check_reader();
        self.report_dropped(now_boot_ns);
        if let Some(metrics) = &self.metrics {
            metrics.set_kernel(&kernel());
            metrics.set_dropped(self.output.name(), self.output.dropped_so_far());
            if let Some(cluster) = &self.cluster {
                metrics.set_dropped("events", cluster.dropped());
            }
            if let Some(otlp) = &self.otlp {
                metrics.set_dropped("otlp", otlp.dropped());
            }
        }
    }

    /// Sets the node and the clock of the records.
    pub fn set_origin(&mut self, start: &Start) {
        self.node_name.clone_from(&start.node_name);
        self.boot_to_wall_ns = start.boot_to_wall_ns;
    }

    /// When held verdicts are due, CLOCK_BOOTTIME nanoseconds.
    pub const fn next_deadline(&self) -> Option<u64> {
        self.repeats.due()
    }

    /// An observation has this time: prints the held verdicts that are due.
    pub fn advance(&mut self, time_boot_ns: u64) {
        if self.repeats.due().is_some_and(|due| due <= time_boot_ns) {
            let due = self.repeats.release(time_boot_ns);
            due.into_iter().for_each(|group| self.print_group(group));
        }
    }

    /// Prints or holds a decision, if it passes the filters and `--until-failure` is not met yet. `now_boot_ns` is for the
    /// latency, and absent in a replay.
    pub fn emit(&mut self, mut decision: Decision, now_boot_ns: Option<u64>) {
        decision.body.finish_sentences();
        self.count(&decision);
        if let Some(metrics) = &mut self.metrics {
            metrics.count(&decision, now_boot_ns);
        }
        if let Some(cluster) = &self.cluster {
            cluster.take(&decision, self.filter.passes(&decision.body));
        }
        self.pretty.count(&decision.body);
        if self.is_satisfied() {
            return;
        }
        if let Some(attempt) = decision.attempt.filter(|_| decision.replaces.is_some()) {
            self.repeats.revise(attempt).into_iter().for_each(|group| self.print_group(group));
        }
        if self.wants(&decision) {
            self.report_dropped(decision.time_boot_ns);
            self.print_or_hold(decision, now_boot_ns);
        }
    }

    /// Prints a revision of a printed verdict at once: without it, the reader would keep the wrong verdict.
    fn print_or_hold(&mut self, decision: Decision, now_boot_ns: Option<u64>) {
        if self.printed.get(decision.attempt).is_some() {
            return self.print(decision, now_boot_ns);
        }
        let mut released = Vec::new();
        let decision = self.repeats.take(decision, now_boot_ns, &mut released);
        released.into_iter().for_each(|group| self.print_group(group));
        if let Some(decision) = decision {
            self.print(decision, now_boot_ns);
        }
    }

    fn print_group(&mut self, group: HeldVerdicts) {
        let HeldVerdicts { mut decision, now_boot_ns, count, first_boot_ns, earlier } = group;
        let time = |boot_ns| wall_time(boot_ns, self.boot_to_wall_ns);
        let (first_time, last_time) = (time(first_boot_ns), time(decision.time_boot_ns));
        if let Body::Verdict(body) = &mut decision.body {
            body.repeated = Some(Repeated { count, first_time, last_time });
        }
        let attempt = decision.attempt;
        self.print(decision, now_boot_ns);
        self.printed.join(earlier, attempt);
    }

    /// Takes the known pods, for the message that no pod matches the filters.
    pub fn count_pods(&mut self, pods: &[Pod]) {
        self.pretty.count_pods(pods);
    }

    /// Whether `--until-failure` is met.
    pub const fn is_satisfied(&self) -> bool {
        self.until_failure && self.failure_printed
    }

    /// The output that the records are written to.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// The `stop` record, with the totals. `events` and `lost`: read from the kernel and lost on the way.
    pub fn stop(&mut self, time_boot_ns: u64, reason: &str, events: u64, lost_events: u64) {
        if let Some(cluster) = &mut self.cluster {
            cluster.end();
        }
        self.report_dropped(time_boot_ns);
        self.repeats.release_all().into_iter().for_each(|group| self.print_group(group));
        let verdicts: BTreeMap<_, _> = self.printed.counts().map(|(cause, n)| (cause.name().to_owned(), n)).collect();
        let totals = StopBody { verdicts, events, lost_events, reason: reason.to_owned(), ..self.totals.clone() };
        self.print(Decision::new(time_boot_ns, None, Body::Stop(totals)), None);
        self.output.finish();
        // The pretty format has this line in its summary.
        let hidden = self.pretty.shown(0, self.failed).filter(|_| self.format != Format::Pretty);
        if let Some(hidden) = hidden.filter(|_| self.printed.counts().next().is_none()) {
            error::warn(&hidden);
        }
        self.is_delivered = self.otlp.as_mut().is_none_or(OtlpSink::finish);
        // This comes after the records, because a supervisor may kill the process while it waits for the API.
        if let Some(cluster) = &mut self.cluster {
            cluster.finish();
        }
    }

    /// Attempts and verdicts so far. Lost events are counted elsewhere.
    pub fn counts(&self) -> Counts {
        let verdicts = self.printed.counts().map(|(_, n)| n).sum();
        Counts { attempts: self.totals.attempts, failed: self.failed, verdicts, lost: 0 }
    }

    pub fn into_kept(self) -> Vec<Record> {
        self.kept.unwrap_or_default()
    }

    /// Attempts are counted whether they are printed or not.
    fn count(&mut self, decision: &Decision) {
        if let Body::Attempt(attempt) = &decision.body {
            match attempt.outcome {
                Outcome::Open => self.totals.open_attempts += 1,
                Outcome::Failure | Outcome::Noise | Outcome::Success => self.totals.attempts += 1,
            }
            if attempt.outcome == Outcome::Failure {
                self.failed += 1;
                decision.attempt.into_iter().for_each(|conn| self.failures.insert(conn, ()));
            }
        }
        // A revision can change a failed attempt to noise after its end.
        if let Body::Verdict(body) = &decision.body
            && body.verdict.outcome != Outcome::Failure
        {
            let was_failure = decision.attempt.and_then(|conn| self.failures.remove(&conn)).is_some();
            self.failed -= u64::from(was_failure);
        }
    }

    fn wants(&self, decision: &Decision) -> bool {
        match &decision.body {
            Body::Attempt(attempt) => (self.attempts || is_open_probe(attempt)) && self.filter.passes(&decision.body),
            // A revision of a printed verdict always passes: without it, the reader would keep the wrong verdict.
            Body::Verdict(_) => self.filter.passes(&decision.body) || self.printed.get(decision.attempt).is_some(),
            _ => true,
        }
    }

    /// Emits `loss` records for what was dropped: records by a slow reader, Events by the API, records by OTLP.
    fn report_dropped(&mut self, now: u64) {
        let records = self.output.take_dropped();
        self.emit_loss("output", records, now);
        let events = self.cluster.as_mut().map_or(0, ClusterSink::take_dropped);
        self.emit_loss("events", events, now);
        let pushed = self.otlp.as_mut().map_or(0, OtlpSink::take_dropped);
        self.emit_loss("otlp", pushed, now);
    }

    fn emit_loss(&mut self, place: &str, count: u64, now: u64) {
        if count > 0 {
            let loss = LossBody { where_: place.into(), count, from_boot_ns: self.last_time_boot_ns, to_boot_ns: now };
            self.print(Decision::new(now, None, Body::Loss(loss)), None);
        }
    }

    fn print(&mut self, mut decision: Decision, now_boot_ns: Option<u64>) {
        // A full backlog drops and counts records. The `stop` record is short and always fits.
        if !matches!(decision.body, Body::Stop(_)) && !self.output.accepts() {
            return;
        }
        self.last_time_boot_ns = decision.time_boot_ns;
        if let Body::Verdict(verdict) = &mut decision.body {
            verdict.timing = now_boot_ns.map(|now| latency(decision.time_boot_ns, now));
            verdict.revises = self.printed.put(decision.attempt, self.seq, verdict.verdict.cause, verdict.count());
            self.failure_printed |= verdict.verdict.outcome == Outcome::Failure;
        }
        let record = Record {
            schema: SCHEMA.to_owned(),
            time: wall_time(decision.time_boot_ns, self.boot_to_wall_ns),
            time_boot_ns: decision.time_boot_ns,
            seq: self.seq,
            node_name: self.node_name.clone(),
            body: decision.body,
        };
        self.seq += 1;
        if let Some(otlp) = &self.otlp {
            otlp.take(&record);
        }
        match self.format {
            Format::Ndjson | Format::Otlp => self.output.put(&self.format.line(&record)),
            Format::Pretty => {
                let screen = Screen { colour: self.colour, columns: self.output.columns().or(self.columns) };
                self.output.put(self.pretty.text(&record, self.failed, screen).as_bytes());
            }
        }
        if let Some(kept) = self.kept.as_mut().filter(|_| matches!(record.body, Body::Verdict(_))) {
            kept.push(record);
        }
    }
}

/// From the deciding event to now, milliseconds, three decimals.
#[expect(clippy::cast_precision_loss, reason = "a latency is far below 2^52 ns")]
fn latency(decided: u64, now: u64) -> Timing {
    Timing { detected_after_ms: (now.saturating_sub(decided) as f64 / 1_000.0).round() / 1_000.0 }
}

/// RFC 3339, UTC, nine decimals.
pub fn wall_time(time_boot_ns: u64, boot_to_wall_ns: i64) -> String {
    let wall = i128::from(time_boot_ns) + i128::from(boot_to_wall_ns);
    let timestamp = Timestamp::from_nanosecond(wall).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{timestamp:.9}")
}

/// A probe attempt that is still open at the end is always printed.
fn is_open_probe(attempt: &AttemptBody) -> bool {
    attempt.outcome == Outcome::Open && attempt.subject == Subject::Probe
}

#[cfg(test)]
pub(crate) mod tests;
