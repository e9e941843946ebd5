//! Writes events to the ring: reserve, fill in place, submit. Lost events are counted.
//!
//! Waking the reader is the largest cost: 100 µs of cold code for each healthy attempt, compared with a few for the
//! event. Events of an attempt that goes well so far do not wake the reader. They are read in order when the reader
//! polls, twenty times a second, or when an urgent event wakes it.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE},
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_boot_ns, bpf_ktime_get_ns},
};
use tracer_common::{
    events::{Event, WIRE_VERSION},
    header::Header,
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

#[inline(always)]
pub fn cpu() -> u32 {
    unsafe { bpf_get_smp_processor_id() as u32 }
}

#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = STATS.get_ptr_mut(counter as u32) {
        unsafe { *value += 1 };
    }
}

/// Whether an event wakes the reader.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// The event may decide why an attempt failed.
    Now,
    /// The event belongs to an attempt that goes well so far.
    Later,
}

/// Writes an event that wakes the reader.
#[inline(always)]
pub fn emit<T: Event>(hook: Hook, fill: impl FnOnce(&mut T)) {
    emit_as(Urgency::Now, hook, fill);
}

/// Writes an event. The record is filled in place, because it may be larger than the 512-byte stack.
#[inline(always)]
pub fn emit_as<T: Event>(urgency: Urgency, hook: Hook, fill: impl FnOnce(&mut T)) {
    // Set before the record is reserved: a program that reserves a later record must see it.
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
        });
        fill(&mut *record);
    }
    entry.submit(match urgency {
        Urgency::Now => wake(),
        Urgency::Later => wake_if_filling(),
    });
}

/// Forces a wakeup if earlier events were submitted without one.
///
/// By default the kernel wakes only a reader that has read everything before this event. It does not count events
/// that were submitted with `BPF_RB_NO_WAKEUP`.
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

/// Leaves the event to the reader's timer, unless the ring fills faster than the reader polls.
#[inline(always)]
fn wake_if_filling() -> u64 {
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
