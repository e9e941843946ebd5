//! The use of ephemeral ports by process: the programs count it, and userspace reads it once a minute.

use crate::actor::COMM_LEN;

/// Words of [`PortUse::destinations`].
pub const DESTINATION_WORDS: usize = 4;
pub const DESTINATION_BITS: u32 = DESTINATION_WORDS as u32 * 64;
/// Processes for which each CPU counts by itself. A counter that all CPUs change costs 100 ns for each change.
pub const SLOTS: u32 = 8;

/// What one process did since the last reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortUse {
    /// Connects that reached SYN_SENT.
    pub connects: u64,
    /// Connections that it closed first, from an ephemeral port: each leaves the port in TIME_WAIT.
    pub closes: u64,
    /// Connects with their own source address as destination.
    pub to_itself: u64,
    /// One bit for each destination, by a hash of its address and port. The number of set bits gives an estimate of the number of
    /// destinations.
    pub destinations: [u64; DESTINATION_WORDS],
    pub cgroup: u64,
    pub cgroup_memory: u64,
    /// Name of the thread group's leader, NUL padded.
    pub comm: [u8; COMM_LEN],
    /// Namespace of its first socket.
    pub netns: u32,
    /// The process; 0 in a slot that is free.
    pub tgid: u32,
}

impl PortUse {
    /// Adds what the same user did elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.connects += other.connects;
        self.closes += other.closes;
        self.to_itself += other.to_itself;
        for (to, from) in self.destinations.iter_mut().zip(other.destinations) {
            *to |= from;
        }
    }
}

const _: () = assert!(size_of::<PortUse>() == 96);

/// The hash of a destination; its high bits are the best ones. `to`: the address; IPv4 has only the first word.
#[inline(always)]
pub const fn hash(to: [u64; 2], port: u16) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = to[0].wrapping_mul(ODD).rotate_left(29) ^ to[1].wrapping_add(port as u64);
    hash.wrapping_mul(ODD)
}

/// Word and bit of a destination in [`PortUse::destinations`].
#[inline(always)]
pub const fn bit(hash: u64) -> (usize, u64) {
    ((hash >> 62) as usize & 3, 1 << ((hash >> 56) & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bits these destinations set.
    fn bits(destinations: impl Iterator<Item = ([u64; 2], u16)>) -> u32 {
        let mut words = [0_u64; DESTINATION_WORDS];
        for (to, port) in destinations {
            let (word, bit) = bit(hash(to, port));
            words[word] |= bit;
        }
        words.iter().map(|word| word.count_ones()).sum()
    }

    #[test]
    fn one_destination_sets_one_bit_however_often() {
        assert_eq!(bits((0..1000).map(|_| ([0x0100_000a, 0], 443))), 1);
        assert!([0, 1, u64::MAX, 1 << 63].into_iter().all(|hash| bit(hash).0 < DESTINATION_WORDS));
    }

    /// Similar destinations: neighbours in one subnet, ports of one host, IPv6 addresses that differ only in their last bytes. 171
    /// random destinations set 125 of the 256 bits. IPv4 neighbours set 103.
    #[test]
    fn similar_destinations_spread_over_the_bits() {
        let subnet = bits((0..171_u32).map(|n| ([u64::from((0x0a00_0000 + n).to_be()), 0], 443)));
        let ports = bits((0..171).map(|n| ([0x0100_000a, 0], 8000 + n)));
        let v6 = bits((0..171_u64).map(|n| ([0xfd, n.to_be()], 443)));
        let prefix = bits((0..171_u64).map(|n| ([(0xfd00_0000_0000_0000 + (n << 16)).to_be(), 0], 443)));
        for set in [subnet, ports, v6, prefix] {
            assert!((100..=171).contains(&set), "{set} of {subnet} {ports} {v6} {prefix}");
        }
    }
}
