//! Makes records of decisions (filtered, numbered, with their time), and prints them as lines.

mod cluster;
mod config;
mod destinations;
pub mod filter;
pub mod leftover;
pub mod metrics;
pub mod ndjson;
mod otlp;
pub mod output;
pub mod plain;
pub mod pretty;
mod printed;
mod repeats;
pub mod selftest;
mod totals;

use std::collections::BTreeMap;

use jiff::Timestamp;

pub use self::config::{Format, SinkConfig, choices};
pub use self::destinations::{Destination, DestinationFlags, Destinations};
use crate::sink::metrics::{HookCount, Metrics};
use crate::sink::output::Output;
use crate::sink::pretty::Pretty;
use crate::sink::printed::Printed;
use crate::sink::repeats::{HeldVerdicts, Repeats};
use crate::sink::totals::Totals;
use tracer_model::decision::Decision;
use tracer_model::event::{Pod, Start};
use tracer_model::record::{AttemptBody, Body, LossBody, Outcome, Record, Repeated, SCHEMA, StopBody, Subject, Timing};
use tracer_terminal::error::{self, Error};
use tracer_terminal::screen::Screen;
use tracer_terminal::status_line::Counts;

/// Takes decisions, prints records.
#[derive(Debug)]
pub struct Sink {
    config: SinkConfig,
    output: Output,
    node_name: String,
    boot_to_wall_ns: i64,
    seq: u64,
    printed: Printed,
    repeats: Repeats,
    totals: Totals,
    pretty: Pretty,
    failure_printed: bool,
    /// The printed verdicts, if the caller wants to compare them.
    kept: Option<Vec<Record>>,
    last_time_boot_ns: u64,
    metrics: Option<Metrics>,
    destinations: Vec<Box<dyn Destination>>,
    /// Whether every record reached every destination.
    is_delivered: bool,
}

impl Sink {
    /// Opens the output. `live`: writes never block.
    pub fn open(config: &SinkConfig, live: bool) -> Result<Self, Error> {
        Ok(Self {
            config: config.clone(),
            output: Output::open(config.file.as_deref(), config.rotation, live)?,
            node_name: String::new(),
            boot_to_wall_ns: 0,
            seq: 0,
            printed: Printed::default(),
            repeats: Repeats::new(config.repeat_interval),
            totals: Totals::default(),
            pretty: Pretty::new(config.filter.clone(), config.verbose),
            failure_printed: false,
            kept: None,
            last_time_boot_ns: 0,
            metrics: None,
            destinations: Vec::new(),
            is_delivered: true,
        })
    }

    pub fn keep_verdicts(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Counts decisions in these metrics, printed or not.
    pub fn count_into(&mut self, metrics: Metrics) {
        self.metrics = Some(metrics);
    }

    /// Also gives decisions and records to this destination.
    fn add(&mut self, destination: impl Destination + 'static) {
        self.destinations.push(Box::new(destination));
    }

    /// Whether a record could not be written or delivered to its target.
    pub const fn has_failed(&self) -> bool {
        self.output.has_failed() || !self.is_delivered
    }

    /// A live run calls this once a second. It notices a reader that is gone, reports lost records and updates the metrics.
    pub fn every_second(&mut self, now_boot_ns: u64, kernel: impl FnOnce() -> Vec<HookCount>) {
        self.output.check_reader();
        self.report_dropped(now_boot_ns);
        self.report_undelivered(now_boot_ns);
        if let Some(metrics) = &self.metrics {
            metrics.set_kernel(&kernel());
            metrics.set_dropped(self.output.name(), self.output.dropped_so_far());
            for destination in &self.destinations {
                metrics.set_dropped(destination.name(), destination.dropped());
            }
        }
    }

    /// Sets the node and the clock of the records.
    pub fn set_origin(&mut self, start: &Start) {
        self.node_name.clone_from(&start.node_name);
        self.boot_to_wall_ns = start.boot_to_wall_ns;
    }

    /// Sets the clock of the records that follow: wall clock minus boot clock.
    pub const fn set_clock(&mut self, boot_to_wall_ns: i64) {
        self.boot_to_wall_ns = boot_to_wall_ns;
    }

    /// When held verdicts are due, CLOCK_BOOTTIME nanoseconds.
    pub const fn next_deadline(&self) -> Option<u64> {
        self.repeats.due
    }

    /// An observation has this time: prints the held verdicts that are due.
    pub fn advance(&mut self, time_boot_ns: u64) {
        if self.repeats.due.is_some_and(|due| due <= time_boot_ns) {
            let due = self.repeats.release(time_boot_ns);
            due.into_iter().for_each(|group| self.print_group(group));
        }
    }

    /// Prints or holds a decision, if it passes the filters and `--until-failure` is not met yet. `now_boot_ns` is for the
    /// latency, and absent in a replay.
    pub fn emit(&mut self, mut decision: Decision, now_boot_ns: Option<u64>) {
        decision.body.finish_sentences();
        self.totals.count(&decision);
        if let Some(metrics) = &mut self.metrics {
            metrics.count(&decision, now_boot_ns);
        }
        let is_printed = self.config.filter.passes(&decision.body);
        self.destinations.iter().for_each(|to| to.take_decision(&decision, is_printed));
        self.pretty.count(&decision.body);
        if self.is_satisfied() {
            return;
        }
        if let Some(attempt) = decision.attempt.filter(|_| decision.replaces.is_some()) {
            self.repeats.revise(attempt).into_iter().for_each(|group| self.print_group(group));
        }
        let wanted = self.wants(&decision);
        if matches!(decision.body, Body::Verdict(_)) {
            self.totals.count_filtered(decision.attempt, !wanted);
        }
        if wanted {
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
        self.config.until_failure && self.failure_printed
    }

    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// The `stop` record, with the totals. `events` and `lost`: read from the kernel and lost on the way.
    pub fn stop(&mut self, time_boot_ns: u64, reason: &str, events: u64, lost_events: u64) {
        self.destinations.iter_mut().for_each(|to| to.end());
        self.report_dropped(time_boot_ns);
        self.report_undelivered(time_boot_ns);
        self.repeats.release_all().into_iter().for_each(|group| self.print_group(group));
        let verdicts: BTreeMap<_, _> = self.printed.counts().map(|(cause, n)| (cause.name().to_owned(), n)).collect();
        let Totals { attempts, open_attempts, filtered, .. } = self.totals;
        let reason = reason.to_owned();
        let stop = StopBody { attempts, open_attempts, verdicts, filtered, events, lost_events, reason };
        self.print(Decision::new(time_boot_ns, None, Body::Stop(stop)), None);
        self.output.finish();
        // The pretty format has this line in its summary.
        let hidden = self.pretty.shown(0, self.totals.failed).filter(|_| self.config.format != Format::Pretty);
        if let Some(hidden) = hidden.filter(|_| self.printed.counts().next().is_none()) {
            error::warn(&hidden);
        }
        // This comes after the records, because a supervisor may kill the process while it waits.
        for destination in &mut self.destinations {
            self.is_delivered &= destination.finish();
        }
    }

    /// Attempts and verdicts so far. Lost events are counted elsewhere.
    pub fn counts(&self) -> Counts {
        let verdicts = self.printed.counts().map(|(_, n)| n).sum();
        Counts { attempts: self.totals.attempts, failed: self.totals.failed, verdicts, lost: 0 }
    }

    pub fn into_kept(self) -> Vec<Record> {
        self.kept.unwrap_or_default()
    }

    fn wants(&self, decision: &Decision) -> bool {
        match &decision.body {
            Body::Attempt(attempt) => {
                (self.config.attempts || is_open_probe(attempt)) && self.config.filter.passes(&decision.body)
            }
            // A revision of a printed verdict always passes: without it, the reader would keep the wrong verdict.
            Body::Verdict(_) => {
                self.config.filter.passes(&decision.body) || self.printed.get(decision.attempt).is_some()
            }
            _ => true,
        }
    }

    /// Emits a `loss` record for what the output dropped.
    fn report_dropped(&mut self, now: u64) {
        let records = self.output.take_dropped();
        self.emit_loss("output", records, now);
    }

    /// Emits `loss` records for what the destinations dropped: once a second, as each verdict of an outage can be one.
    fn report_undelivered(&mut self, now: u64) {
        let dropped: Vec<_> = self.destinations.iter_mut().map(|from| (from.name(), from.take_dropped())).collect();
        dropped.into_iter().for_each(|(place, count)| self.emit_loss(place, count, now));
    }

    fn emit_loss(&mut self, place: &str, count: u64, now: u64) {
        if count > 0 {
            let loss = LossBody { where_: place.into(), count, from_boot_ns: self.last_time_boot_ns, to_boot_ns: now };
            self.print(Decision::new(now, None, Body::Loss(loss)), None);
        }
    }

    fn print(&mut self, mut decision: Decision, now_boot_ns: Option<u64>) {
        // A full backlog drops and counts records, which the destinations still get. The `stop` record is short and
        // always fits.
        let fits = matches!(decision.body, Body::Stop(_)) || self.output.accepts();
        self.last_time_boot_ns = decision.time_boot_ns;
        if let Body::Verdict(verdict) = &mut decision.body {
            if let Some(now) = now_boot_ns {
                let timing = verdict.timing.get_or_insert_default();
                timing.detected_after_ms = Some(Timing::ms(decision.time_boot_ns, now));
            }
            verdict.revises = self.printed.put(decision.attempt, self.seq, verdict.verdict.cause, verdict.count());
            self.failure_printed |= fits && verdict.verdict.outcome == Outcome::Failure;
        }
        let time = (decision.time_boot_ns, self.boot_to_wall_ns);
        let record = record(decision.body, time, self.seq, &self.node_name);
        self.seq += 1;
        self.destinations.iter().for_each(|to| to.take_record(&record));
        match self.config.format {
            _ if !fits => {}
            Format::Pretty => {
                let columns = self.output.columns().or(self.config.columns);
                let screen = Screen { colour: self.config.colour, columns };
                self.output.put(self.pretty.text(&record, self.totals.failed, screen).as_bytes());
            }
            format => self.output.put(&format.line(&record)),
        }
        if let Some(kept) = self.kept.as_mut().filter(|_| matches!(record.body, Body::Verdict(_))) {
            kept.push(record);
        }
    }
}

/// The record of something that happened at this time. The second part is the wall clock minus the boot clock.
pub fn record(body: Body, (time_boot_ns, boot_to_wall_ns): (u64, i64), seq: u64, node_name: &str) -> Record {
    let time = wall_time(time_boot_ns, boot_to_wall_ns);
    Record { schema: SCHEMA.to_owned(), body, time, time_boot_ns, seq, node_name: node_name.to_owned() }
}

/// RFC 3339, UTC, nine decimals.
fn wall_time(time_boot_ns: u64, boot_to_wall_ns: i64) -> String {
    let wall = i128::from(time_boot_ns) + i128::from(boot_to_wall_ns);
    let timestamp = Timestamp::from_nanosecond(wall).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{timestamp:.9}")
}

/// A probe attempt that is still open at the end is always printed.
fn is_open_probe(attempt: &AttemptBody) -> bool {
    attempt.outcome == Some(Outcome::Open) && attempt.subject == Subject::Probe
}

#[cfg(test)]
pub(crate) mod tests;
