//! Decides when to wake the reader of the ring for events that can wait.

/// The reader is woken when a quarter of the ring is unread, and within so many bytes above that: several processors may pass the
/// quarter at the same time.
const MARK: (u64, u64) = (4, 64 << 10);

/// Whether the ring fills faster than the reader's timer: `unread` bytes of `size` are not read yet.
#[inline(always)]
pub const fn fills_fast(unread: u64, size: u64) -> bool {
    unread.wrapping_sub(size / MARK.0) < MARK.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_reader_is_woken_at_a_quarter_but_not_for_each_later_event() {
        assert!(!fills_fast(0, MIB) && !fills_fast(MIB / 4 - 1, MIB));
        assert!(fills_fast(MIB / 4, MIB) && fills_fast(MIB / 4 + (64 << 10) - 1, MIB));
        assert!(!fills_fast(MIB / 4 + (64 << 10), MIB) && !fills_fast(MIB, MIB));
    }

    /// An event and what other processors write meanwhile are at most 4 KiB, so that no event skips the window.
    #[test]
    fn a_ring_that_fills_passes_through_the_window() {
        for size in [MIB, 16 * MIB] {
            assert!((0..size).step_by(4096).any(|unread| fills_fast(unread, size)));
        }
    }

    /// The kernel reads its two positions one after the other, so the difference may be negative.
    #[test]
    fn a_negative_count_wakes_no_reader() {
        assert!(!fills_fast(u64::MAX, MIB) && !fills_fast(0_u64.wrapping_sub(4096), MIB));
    }
}
