//! The events and timers that wake the loop of a live run.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at};

use super::alarm::Alarm;
use crate::shutdown::Request;
use tracer_model::event::ObservationKind;
use tracer_terminal::status_line;

/// How often the ring is read without a wake-up: the programs do not wake the reader for events of successful attempts
/// (`tracer-ebpf/src/emit.rs`).
const READ_EVERY: Duration = Duration::from_millis(50);
/// How often tracer checks for lost events.
const TICK: Duration = Duration::from_secs(1);
/// How often tracer retries hooks of kernel modules that were not loaded.
const RETRY: Duration = Duration::from_secs(5);
/// How often a daemon reports which processes use up ephemeral ports. Other runs report it at their end.
const PORTS: Duration = Duration::from_secs(60);
/// Longer than any run.
const NEVER: Duration = Duration::from_secs(30 * 365 * 86_400);

pub(super) enum Wake {
    Events,
    ObservationKind(Option<Box<ObservationKind>>),
    Deadline,
    Tick,
    Retry,
    Ports,
    Draw,
    Request(Request),
    Panicked(&'static str),
    Over,
}

pub(super) struct Timers {
    alarm: Alarm,
    read: Interval,
    tick: Interval,
    retry: Interval,
    /// Only in a daemon.
    ports: Interval,
    /// Only with a status line.
    draw: Interval,
    /// The end, once, if one was asked for.
    over: Interval,
}

impl Timers {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(duration: Option<Duration>, daemon: bool, draws: bool) -> io::Result<Self> {
        let first = |wait, then| interval_at(Instant::now() + wait, then);
        Ok(Self {
            alarm: Alarm::new()?,
            read: every(READ_EVERY),
            tick: every(TICK),
            retry: every(RETRY),
            ports: if daemon { first(PORTS, PORTS) } else { first(NEVER, NEVER) },
            draw: if draws { every(status_line::PERIOD) } else { first(NEVER, NEVER) },
            over: first(duration.unwrap_or(NEVER).min(NEVER), NEVER),
        })
    }

    /// Waits for the next timer; the deadline is a time of the boot clock. Safe to drop while it waits.
    pub(super) async fn next(&mut self, deadline_boot_ns: Option<u64>) -> io::Result<Wake> {
        tokio::select! {
            fired = self.alarm.until(deadline_boot_ns) => fired.map(|()| Wake::Deadline),
            _ = self.read.tick() => Ok(Wake::Events),
            _ = self.tick.tick() => Ok(Wake::Tick),
            _ = self.retry.tick() => Ok(Wake::Retry),
            _ = self.ports.tick() => Ok(Wake::Ports),
            _ = self.draw.tick() => Ok(Wake::Draw),
            _ = self.over.tick() => Ok(Wake::Over),
        }
    }
}

/// The first tick comes at once. A missed tick is not repeated.
fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
