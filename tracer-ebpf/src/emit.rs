//! Into the ring: reserve, fill in place, submit, and count what was lost.
//!
//! Waking the reader costs more than all else: 100 µs of cold code for each healthy attempt, against a few for the event.
//! So what is part of an attempt that goes well waits until the reader looks by itself, twenty times a second, or until an
//! event comes that cannot wait: then all is read, in order.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns, bpf_ktime_get_ns},
};
use tracer_common::{
    Event,
    header::{Header, WIRE_VERSION},
    names::Hook,
    ring::fills_fast,
    stats::Counter,
};

use crate::maps::{EVENTS, READER_DUE, STATS};

/// CLOCK_BOOTTIME, nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    unsafe { bpf_ktime_get_boot_ns() }
}

/// CLOCK_MONOTONIC, nanoseconds.
#[inline(always)]
pub fn monotonic_ns() -> u64 {
    unsafe { bpf_ktime_get_ns() }
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

/// Whether the reader must know of an event at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It may decide why an attempt failed.
    Now,
    /// It is part of an attempt that goes well so far.
    Later,
}

/// Writes an event of which the reader must know at once.
#[inline(always)]
pub fn emit<T: Event>(hook: Hook, fill: impl FnOnce(&mut T)) {
    emit_as(Urgency::Now, hook, fill);
}

/// Writes an event: the record is zeroed, gets its header, is filled in place (it may be larger
/// than the 512-byte stack) and submitted.
#[inline(always)]
pub fn emit_as<T: Event>(urgency: Urgency, hook: Hook, fill: impl FnOnce(&mut T)) {
    // Before the record has its place: whoever gets a later one must see it.
    if urgency == Urgency::Later {
        set_reader_due(1);
    }
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
    entry.submit(match urgency {
        Urgency::Now => wake(),
        Urgency::Later => leave_to_timer(),
    });
}

/// The kernel wakes a reader that has read all that lies before this event, but does not know which it was not reported.
#[inline(always)]
fn wake() -> u64 {
    match READER_DUE.get(0) {
        Some(0) => 0,
        _ => {
            set_reader_due(0);
            u64::from(BPF_RB_FORCE_WAKEUP)
        }
    }
}

/// The reader looks by itself, unless the ring fills faster than it does.
#[inline(always)]
fn leave_to_timer() -> u64 {
    let unread = EVENTS.query(u64::from(BPF_RB_AVAIL_DATA));
    let is_due = fills_fast(unread, EVENTS.query(u64::from(BPF_RB_RING_SIZE)));
    if is_due { u64::from(BPF_RB_FORCE_WAKEUP) } else { u64::from(BPF_RB_NO_WAKEUP) }
}

#[inline(always)]
fn set_reader_due(unread: u32) {
    if let Some(place) = READER_DUE.get_ptr_mut(0) {
        unsafe { place.write_volatile(unread) };
    }
}
