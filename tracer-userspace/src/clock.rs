//! The two clocks: boot time stamps everything, wall time is for people.

use nix::time::{ClockId, clock_gettime};

/// CLOCK_BOOTTIME, nanoseconds: what `bpf_ktime_get_boot_ns` gives in the kernel.
#[must_use]
pub fn boot_ns() -> u64 {
    u64::try_from(read(ClockId::CLOCK_BOOTTIME)).unwrap_or(0)
}

/// Wall clock minus boot clock, nanoseconds.
#[must_use]
pub fn boot_to_wall_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_BOOTTIME))
}

/// A clock in nanoseconds. These two exist on every kernel that can load the programs.
fn read(clock: ClockId) -> i64 {
    clock_gettime(clock).map(|t| t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec())).unwrap_or(0)
}
