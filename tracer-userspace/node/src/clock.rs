//! Clocks: observations have boot time, people read wall time. Also the CPU time of a thread.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use nix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME, nanoseconds: what `bpf_ktime_get_boot_ns` gives in the kernel.
pub fn boot_ns() -> u64 {
    u64::try_from(read(ClockId::CLOCK_BOOTTIME)).unwrap_or(0)
}

/// CPU time that the calling thread has used up, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    u64::try_from(read(ClockId::CLOCK_THREAD_CPUTIME_ID)).unwrap_or(0)
}

/// Wall clock minus boot clock, nanoseconds.
pub fn boot_to_wall_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_BOOTTIME))
}

/// If the difference of the two clocks changes by more than this, somebody set the wall clock.
const STEP_NS: u64 = 100_000_000;

/// As [`boot_to_wall_ns`], but the same number until somebody sets the wall clock. Otherwise a log line that is read
/// twice would get two times. Both clocks run at the same rate (`kernel/time/timekeeping.c`).
pub fn steady_boot_to_wall_ns() -> i64 {
    static KEPT: AtomicI64 = AtomicI64::new(i64::MIN);
    let (kept, now) = (KEPT.load(Relaxed), boot_to_wall_ns());
    if !was_set(kept, now) {
        return kept;
    }
    KEPT.compare_exchange(kept, now, Relaxed, Relaxed).map_or_else(|other| other, |_| now)
}

/// Whether the wall clock was set between two readings of the difference, or there is no first reading.
const fn was_set(before: i64, now: i64) -> bool {
    before.abs_diff(now) > STEP_NS
}

/// Reads a clock, in nanoseconds. Every kernel that can load the programs has these clocks.
fn read(clock: ClockId) -> i64 {
    clock_gettime(clock).map(|t| t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_difference_of_the_clocks_is_one_number() {
        let first = steady_boot_to_wall_ns();
        assert!(first.abs_diff(boot_to_wall_ns()) <= 2 * STEP_NS);
        assert!((0..100).all(|_| steady_boot_to_wall_ns() == first));
    }

    #[test]
    fn only_a_step_of_more_than_100_ms_is_a_set_clock() {
        assert!(!was_set(5_000, 5_000 + 50_000_000) && !was_set(5_000, 5_000 - 50_000_000));
        assert!(was_set(5_000, 1_000_000_000) && was_set(5_000, -1_000_000_000) && was_set(i64::MIN, i64::MAX));
    }
}
