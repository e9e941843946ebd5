//! The events and timers that wake the loop of a live run.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until};

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
    ports: Option<Interval>,
    /// Only with a status line.
    draw: Option<Interval>,
    /// The end, if one was asked for.
    over: Option<Instant>,
}

impl Timers {
    /// Must be called inside a tokio runtime.
    pub(super) fn new(duration: Option<Duration>, daemon: bool, draws: bool) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            alarm: Alarm::new()?,
            read: every(READ_EVERY),
            tick: every(TICK),
            retry: every(RETRY),
            ports: daemon.then(|| interval_at(now + PORTS, PORTS)),
            draw: draws.then(|| every(status_line::PERIOD)),
            over: duration.and_then(|duration| now.checked_add(duration)),
        })
    }

    /// Waits for the next timer; the deadline is a time of the boot clock. Safe to drop while it waits.
    pub(super) async fn next(&mut self, deadline_boot_ns: Option<u64>) -> io::Result<Wake> {
        tokio::select! {
            fired = self.alarm.until(deadline_boot_ns) => fired.map(|()| Wake::Deadline),
            _ = self.read.tick() => Ok(Wake::Events),
            _ = self.tick.tick() => Ok(Wake::Tick),
            _ = self.retry.tick() => Ok(Wake::Retry),
            () = tick(&mut self.ports) => Ok(Wake::Ports),
            () = tick(&mut self.draw) => Ok(Wake::Draw),
            () = at(&mut self.over) => Ok(Wake::Over),
        }
    }
}

/// The first tick comes at once. A missed tick is not repeated.
fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits for the next tick; forever without an interval.
async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}

/// Waits until an instant, once; forever without one.
async fn at(instant: &mut Option<Instant>) {
    match *instant {
        Some(until) => sleep_until(until).await,
        None => pending().await,
    }
    *instant = None;
}
