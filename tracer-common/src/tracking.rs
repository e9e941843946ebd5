//! Which connection a socket or a packet belongs to: the decisions behind the maps of the programs.

/// Buckets of socket addresses.
pub const LIVE_BUCKETS: u32 = 1 << 13;

/// The bucket of a socket: `struct sock` is some 2 KiB, from a slab that is aligned to a cache line.
#[inline(always)]
pub const fn live_bucket(sk: u64) -> u32 {
    ((sk >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & (LIVE_BUCKETS - 1)
}

/// Whether a socket that connects to `port` is still the one that was tracked with `tracked`.
///
/// Its memory may be another connection's by now. A disconnected socket has no port any more.
#[inline(always)]
pub const fn is_same_socket(port: u16, tracked: u16) -> bool {
    port == tracked || port == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    pub conn: u64,
    /// When its socket was closed, 0 while it lives.
    pub ended_ns: u64,
}

impl Flow {
    /// Its socket lives, or ended so short a time ago that the port is not another process's yet.
    #[inline(always)]
    pub const fn is_usable(&self, now: u64) -> bool {
        const LINGER_NS: u64 = 10_000_000_000;
        self.ended_ns == 0 || now.saturating_sub(self.ended_ns) < LINGER_NS
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn flow(ended_ns: u64) -> Flow {
        Flow { conn: 7, ended_ns }
    }

    #[test]
    fn a_flow_lingers_ten_seconds() {
        let ended = 3600 * SECOND;
        assert!(flow(0).is_usable(u64::MAX), "one that lives has no end");
        assert!(flow(ended).is_usable(ended) && flow(ended).is_usable(ended + 10 * SECOND - 1));
        assert!(!flow(ended).is_usable(ended + 10 * SECOND));
        // Another processor's end may be later than this one's clock was read.
        assert!(flow(ended).is_usable(ended - 1));
    }

    #[test]
    fn a_socket_is_another_once_its_port_is() {
        assert!(is_same_socket(8080, 8080) && is_same_socket(0, 8080));
        assert!(!is_same_socket(8081, 8080));
    }

    /// Slabs hand out neighbours, on x86-64 and on arm64: they must not share buckets more than chance has it.
    #[test]
    fn sockets_of_one_slab_spread_over_the_buckets() {
        for (base, size) in
            [(0xffff_8881_0000_0000_u64, 2048), (0xffff_0000_c000_0000, 2304), (0xffff_8881_0000_0040, 2176)]
        {
            let mut used = vec![0_u32; LIVE_BUCKETS as usize];
            for n in 0..u64::from(LIVE_BUCKETS) {
                used[live_bucket(base + n * size) as usize] += 1;
            }
            // As many as buckets: by chance 63 % of these are used, and the fullest has seven or eight.
            let filled = used.iter().filter(|count| **count > 0).count();
            assert!(filled > 4500 && used.iter().all(|count| *count < 12), "{size}: {filled}, {:?}", used.iter().max());
        }
    }

    #[test]
    fn every_address_has_a_bucket() {
        assert!([0, 1, 63, 64, u64::MAX, 1 << 63].into_iter().all(|sk| live_bucket(sk) < LIVE_BUCKETS));
    }
}
