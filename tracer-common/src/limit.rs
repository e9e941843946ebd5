//! How many events of a kind the processes of one cgroup may make: what any process can do as often as it likes must not fill
//! the ring.
//!
//! A token bucket in one number, the time until which tokens are used up (the generic cell rate algorithm, ITU-T I.371).

/// What is bounded. Numbers are part of a map's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Limited {
    /// Opens of files that name a network namespace.
    Open = 1,
    /// Network namespaces entered or made.
    Namespace = 2,
    /// Sockets that begin or cease to listen.
    Listen = 3,
}

/// How much there may be of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// In a row.
    pub burst: u64,
    /// Nanoseconds between two of them, in the long run.
    pub every_ns: u64,
}

impl Limited {
    /// Of one cgroup. The bursts of all three are 1.5 MiB, less than the ring has.
    ///
    /// The start and end of a pod take a runtime and its plugins 30 opens and 19 entries (containerd with `loopback`, `bridge` and
    /// `host-local`, three pods recorded). At 40 of each 50 pods may start at once, and 6 a second from then on. A server with a
    /// socket for each of its threads (SO_REUSEPORT) listens thousands of times.
    #[must_use]
    #[inline(always)]
    pub const fn limit(self) -> Limit {
        match self {
            Self::Open | Self::Namespace => Limit { burst: 2048, every_ns: 1_000_000_000 / 256 },
            Self::Listen => Limit { burst: 8192, every_ns: 1_000_000_000 / 512 },
        }
    }
}

impl Limit {
    /// Until when tokens are used up after one more event; none if there is none left. `used`: until when they were, 0 at first.
    #[must_use]
    #[inline(always)]
    pub const fn next(self, used: u64, now: u64) -> Option<u64> {
        let earliest = now.saturating_sub(self.burst * self.every_ns);
        let next = if used > earliest { used } else { earliest } + self.every_ns;
        if next > now { None } else { Some(next) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, listen::Listen, netns::NetnsOp, netns::NetnsOpen};

    const ALL: [Limited; 3] = [Limited::Open, Limited::Namespace, Limited::Listen];
    const SECOND: u64 = 1_000_000_000;

    /// How many of so many are let through in that time.
    fn passed(limit: Limit, count: u64, from: u64, time: u64, used: &mut u64) -> u64 {
        let mut passed = 0;
        for n in 0..count {
            if let Some(next) = limit.next(*used, from + n * time / count) {
                *used = next;
                passed += 1;
            }
        }
        passed
    }

    #[test]
    fn a_flood_gets_its_burst_and_then_its_rate() {
        for limit in ALL.map(Limited::limit) {
            let (mut used, boot) = (0, 3600 * SECOND);
            let rate = SECOND / limit.every_ns;
            let first = passed(limit, 100_000, boot, SECOND, &mut used);
            assert!((limit.burst + rate - 1..=limit.burst + rate + 1).contains(&first), "{first} of {limit:?}");
            let second = passed(limit, 100_000, boot + SECOND, SECOND, &mut used);
            assert!((rate - 1..=rate + 1).contains(&second), "{second} of {limit:?}");
            assert_eq!(passed(limit, limit.burst, boot + 60 * SECOND, SECOND / 1000, &mut used), limit.burst);
        }
    }

    /// Fifty pods start at once, and then three hundred in a minute.
    #[test]
    fn a_node_that_makes_many_namespaces_is_not_held_back() {
        let (mut used, boot) = (0, 3600 * SECOND);
        let limit = Limited::Namespace.limit();
        assert_eq!(passed(limit, 50 * 40, boot, SECOND, &mut used), 50 * 40);
        assert_eq!(passed(limit, 300 * 40, boot + 2 * SECOND, 60 * SECOND, &mut used), 300 * 40);
    }

    #[test]
    fn the_bursts_of_one_cgroup_fit_into_the_ring() {
        fn bytes<T: Event>(what: Limited) -> u64 {
            // `BPF_RINGBUF_HDR_SZ`
            what.limit().burst * (size_of::<T>() as u64 + 8)
        }
        let all = bytes::<NetnsOpen>(Limited::Open) + bytes::<NetnsOp>(Limited::Namespace);
        assert!(all + bytes::<Listen>(Limited::Listen) < (2 << 20) * 4 / 5);
    }

    /// A machine that has just started has less behind it than a burst takes: that much it gets.
    #[test]
    fn the_first_seconds_after_the_boot_have_tokens() {
        let limit = Limited::Open.limit();
        assert_eq!(limit.next(0, limit.every_ns), Some(limit.every_ns));
        assert_eq!(limit.next(0, limit.every_ns - 1), None);
    }
}
