//! What wakes the loop of a live run, and when it wakes by itself.

use std::future::pending;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until};

use super::alarm::Alarm;
use crate::shutdown::Request;
use tracer_model::event::ObservationKind;
use tracer_terminal::status_line;

/// How often the ring is read without having asked: what goes well waits there (`tracer-ebpf/src/emit.rs`).
const READ_EVERY: Duration = Duration::from_millis(50);
/// How often lost events are looked for.
const TICK: Duration = Duration::from_secs(1);
/// How often hooks of absent kernel modules are tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How often a daemon reports who uses up ephemeral ports; other runs report it at their end.
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
    /// A part beside the pipeline.
    Panicked(&'static str),
    Over,
}

/// What the loop does by the clock.
pub(super) struct Timers {
    alarm: Alarm,
    look: Interval,
    tick: Interval,
    retry: Interval,
    /// In a daemon.
    ports: Option<Interval>,
    /// Where there is a line that counts along.
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
            look: every(READ_EVERY),
            tick: every(TICK),
            retry: every(RETRY),
            ports: daemon.then(|| interval_at(now + PORTS, PORTS)),
            draw: draws.then(|| every(status_line::PERIOD)),
            over: duration.and_then(|duration| now.checked_add(duration)),
        })
    }

    /// What is due next; the deadline is one of the boot clock. Safe to drop while it waits.
    pub(super) async fn next(&mut self, deadline_boot_ns: Option<u64>) -> io::Result<Wake> {
        tokio::select! {
            rung = self.alarm.until(deadline_boot_ns) => rung.map(|()| Wake::Deadline),
            _ = self.look.tick() => Ok(Wake::Events),
            _ = self.tick.tick() => Ok(Wake::Tick),
            _ = self.retry.tick() => Ok(Wake::Retry),
            () = tick(&mut self.ports) => Ok(Wake::Ports),
            () = tick(&mut self.draw) => Ok(Wake::Draw),
            () = at(self.over) => Ok(Wake::Over),
        }
    }
}

/// The first tick comes at once; one that is missed is not made up for.
fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// The next tick; never without an interval.
async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}

/// Until an instant; forever without one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
