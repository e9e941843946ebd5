//! Decides to which connection a socket or a packet belongs, for the maps of the programs.

/// Buckets of socket addresses.
pub const LIVE_BUCKETS: u32 = 1 << 13;

/// The bucket of a socket. `struct sock` has about 2 KiB and is aligned to a cache line.
#[inline(always)]
pub const fn live_bucket(sk: u64) -> u32 {
    ((sk >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & (LIVE_BUCKETS - 1)
}

/// Buckets of destination ports.
pub const PORT_BUCKETS: u32 = 1 << 12;

/// The bucket of a port.
#[inline(always)]
pub const fn port_bucket(port: u16) -> u32 {
    port as u32 & (PORT_BUCKETS - 1)
}

/// Whether a socket that connects to `port` is still the one that was tracked with `tracked`.
///
/// The kernel may have reused its memory for another connection. A disconnected socket has no port.
#[inline(always)]
pub const fn is_same_socket(port: u16, tracked: u16) -> bool {
    port == tracked || port == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    pub conn: u64,
    /// When its socket was closed; 0 while it is open.
    pub ended_ns: u64,
}

impl Flow {
    /// Whether its socket is open, or was closed so recently that no other process has its port.
    #[inline(always)]
    pub const fn is_usable(&self, now: u64) -> bool {
        // Userspace forgets most attempts two seconds after their end.
        const LINGER_NS: u64 = 3_000_000_000;
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
    fn a_flow_is_usable_for_three_seconds_after_its_end() {
        let ended = 3600 * SECOND;
        assert!(flow(0).is_usable(u64::MAX), "one that lives has no end");
        assert!(flow(ended).is_usable(ended) && flow(ended).is_usable(ended + 3 * SECOND - 1));
        assert!(!flow(ended).is_usable(ended + 3 * SECOND));
        // Another processor may have closed it just after this one read its clock.
        assert!(flow(ended).is_usable(ended - 1));
    }

    #[test]
    fn a_socket_with_another_port_is_another_connection() {
        assert!(is_same_socket(8080, 8080) && is_same_socket(0, 8080));
        assert!(!is_same_socket(8081, 8080));
    }

    /// Slabs allocate neighbouring addresses, on x86-64 and arm64. These must not share buckets more often than random addresses.
    #[test]
    fn sockets_of_one_slab_spread_over_the_buckets() {
        for (base, size) in
            [(0xffff_8881_0000_0000_u64, 2048), (0xffff_0000_c000_0000, 2304), (0xffff_8881_0000_0040, 2176)]
        {
            let mut used = vec![0_u32; LIVE_BUCKETS as usize];
            for n in 0..u64::from(LIVE_BUCKETS) {
                used[live_bucket(base + n * size) as usize] += 1;
            }
            // As many sockets as buckets: random addresses use 63 % of the buckets, with at most seven or eight in one.
            let filled = used.iter().filter(|count| **count > 0).count();
            assert!(filled > 4500 && used.iter().all(|count| *count < 12), "{size}: {filled}, {:?}", used.iter().max());
        }
    }

    #[test]
    fn every_address_has_a_bucket() {
        assert!([0, 1, 63, 64, u64::MAX, 1 << 63].into_iter().all(|sk| live_bucket(sk) < LIVE_BUCKETS));
    }
}
