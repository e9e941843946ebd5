//! Into the ring: reserve, fill in place, submit, and count what was lost.

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns};
use tracer_common::{
    Event,
    header::{Header, WIRE_VERSION},
    names::Hook,
    stats::Counter,
};

use crate::maps::{EVENTS, STATS};

/// CLOCK_BOOTTIME, nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    unsafe { bpf_ktime_get_boot_ns() }
}

/// The CPU this runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    unsafe { bpf_get_smp_processor_id() as u32 }
}

/// Adds one to a counter.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = STATS.get_ptr_mut(counter as u32) {
        unsafe { *value += 1 };
    }
}

/// Writes an event: the record is zeroed, gets its header, is filled in place (it may be larger
/// than the 512-byte stack) and submitted.
#[inline(always)]
pub fn emit<T: Event>(hook: Hook, fill: impl FnOnce(&mut T)) {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        count(Counter::RingFull);
        return;
    };
    let record = entry.as_mut_ptr();
    unsafe {
        record.write_bytes(0, 1);
        record.cast::<Header>().write(Header {
            time_boot_ns: now(),
            version: WIRE_VERSION,
            kind: T::KIND as u16,
            hook: hook as u16,
            reserved: 0,
            cpu: cpu(),
            len: size_of::<T>() as u32,
        });
        fill(&mut *record);
    }
    entry.submit(0);
    count(Counter::Emitted);
}
