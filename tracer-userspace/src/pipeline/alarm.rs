//! A timer of the boot clock. The runtime's own timer rounds up to whole milliseconds. That would add up to half of the two
//! milliseconds that a verdict waits.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timer::TimerSetTimeFlags;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags};
use tokio::io::{Interest, unix::AsyncFd};

/// The descriptor with the trait that the runtime needs.
struct Timer(TimerFd);

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Fires once, at the time to which it was set.
pub(super) struct Alarm {
    timer: AsyncFd<Timer>,
    set: Option<u64>,
}

impl Alarm {
    /// Must be called inside a tokio runtime.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = Timer(TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?);
        // SAFETY: the descriptor is owned by `timer`, which lives in the `AsyncFd` and never changes it.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Self { timer, set: None })
    }

    /// Waits until a time of the boot clock; returns at once if it is past, and never without one. Safe to drop while it waits.
    pub(super) async fn until(&mut self, deadline_boot_ns: Option<u64>) -> io::Result<()> {
        let Some(deadline) = deadline_boot_ns else { return pending().await };
        if self.set != Some(deadline) {
            self.set(deadline)?;
        }
        self.timer.readable().await?.clear_ready();
        self.set = None;
        Ok(())
    }

    /// Sets the timer, and cancels an earlier alarm.
    fn set(&mut self, deadline: u64) -> io::Result<()> {
        // Zero would disarm the timer.
        let at = Duration::from_nanos(deadline.max(1));
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
        self.timer.get_ref().0.set(Expiration::OneShot(TimeSpec::from_duration(at)), flags)?;
        self.set = Some(deadline);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_node::clock;

    #[tokio::test]
    async fn the_alarm_fires_at_each_time_that_is_set() {
        let mut alarm = Alarm::new().expect("a timer");
        for after_ns in [0, 300_000, 0, 2_000_000] {
            let at = clock::boot_ns() + after_ns;
            alarm.until(Some(at)).await.expect("ring");
            assert!(clock::boot_ns() >= at);
        }
    }

    #[tokio::test]
    async fn a_new_time_replaces_an_alarm_that_was_not_awaited() {
        let mut alarm = Alarm::new().expect("a timer");
        let far = clock::boot_ns() + 3_600_000_000_000;
        tokio::select! {
            biased;
            fired = alarm.until(Some(far)) => fired.expect("not now"),
            () = std::future::ready(()) => {}
        }
        alarm.until(Some(clock::boot_ns() + 1_000)).await.expect("ring");
    }
}
