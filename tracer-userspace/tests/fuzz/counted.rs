//! The cost of a call: its processor time, and the most memory that it held at any time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

struct Counted;

#[global_allocator]
static ALLOCATOR: Counted = Counted;

thread_local! {
    /// Bytes that this thread holds now, and the maximum.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(more: isize) {
    // A thread that is ending has no counter any more.
    let _ = BYTES.try_with(|bytes| {
        let (now, most) = bytes.get();
        bytes.set((now + more, most.max(now + more)));
    });
}

// SAFETY: the system's allocator does the work, and `count` allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The cost of a call on this thread.
pub(crate) fn cost_of(call: impl FnOnce()) -> (Duration, usize) {
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of every kernel"));
    let before = BYTES.get().0;
    BYTES.set((before, before));
    let began = now();
    call();
    (now() - began, BYTES.get().1.abs_diff(before))
}
