//! When the reader of the ring is woken for events that can wait.

/// What may lie unread in the ring before its reader is woken for events that can wait: a quarter; and how far beyond
/// it, for several processors may pass that mark at once.
const MARK: (u64, u64) = (4, 64 << 10);

/// Whether the ring fills faster than its reader looks by itself: so much is unread, of so much.
#[inline(always)]
pub const fn fills_fast(unread: u64, size: u64) -> bool {
    unread.wrapping_sub(size / MARK.0) < MARK.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reader_is_woken_at_a_quarter_and_not_for_each_event_beyond_it() {
        assert!(!fills_fast(0, MIB) && !fills_fast(MIB / 4 - 1, MIB));
        assert!(fills_fast(MIB / 4, MIB) && fills_fast(MIB / 4 + (64 << 10) - 1, MIB));
        assert!(!fills_fast(MIB / 4 + (64 << 10), MIB) && !fills_fast(MIB, MIB));
    }

    /// Events are at most 4 KiB with what other processors write meanwhile: none steps over the window.
    #[test]
    fn a_ring_that_fills_passes_through_the_window() {
        for size in [MIB, 16 * MIB] {
            assert!((0..size).step_by(4096).any(|unread| fills_fast(unread, size)));
        }
    }

    /// The kernel's two positions are read one after the other: the difference may be less than nothing.
    #[test]
    fn a_count_below_zero_wakes_nobody() {
        assert!(!fills_fast(u64::MAX, MIB) && !fills_fast(0_u64.wrapping_sub(4096), MIB));
    }
}
