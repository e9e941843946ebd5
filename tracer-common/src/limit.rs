//! How many events of a kind processes may make: what any of them can do as often as it likes must not fill the ring.
//!
//! A cgroup, which is a container's, has little of its own, since a pod can have any number of containers. Beyond that all
//! share what one that does much at once needs (the runtime, a server that starts), so that a flood by many uses up the share
//! and never what another has of its own.
//!
//! Each is a token bucket in one number, the time until which tokens are used up (the generic cell rate algorithm, ITU-T I.371).

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub burst: u64,
    /// Nanoseconds between two of them, in the long run.
    pub every_ns: u64,
}

impl Limited {
    /// Of one cgroup, whatever the others do. The start and end of a pod take a runtime and its plugins 30 opens and 19 entries
    /// (containerd with `loopback`, `bridge` and `host-local`, three pods recorded): 8 pods a second.
    #[inline(always)]
    pub const fn own(self) -> Limit {
        match self {
            Self::Open | Self::Namespace => Limit { burst: 32, every_ns: 1_000_000_000 / 256 },
            Self::Listen => Limit { burst: 64, every_ns: 1_000_000_000 / 512 },
        }
    }

    /// Of all cgroups together, beyond their own: 40 pods that start and end at once. A server with a socket for each of its
    /// threads (SO_REUSEPORT) listens a thousand times. With what 20 containers have of their own it is 0.75 MiB, less than the
    /// ring has.
    #[inline(always)]
    pub const fn shared(self) -> Limit {
        let own = self.own();
        match self {
            Self::Open => Limit { burst: 768, ..own },
            Self::Namespace => Limit { burst: 512, ..own },
            Self::Listen => Limit { burst: 1536, ..own },
        }
    }
}

impl Limit {
    /// Until when tokens are used up after one more event; none if there is none left. `used`: until when they were, 0 at first.
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

    /// What the programs keep: when the tokens of each cgroup are used up, and those that are shared.
    #[derive(Default)]
    struct Node {
        own: [u64; CONTAINERS + 1],
        shared: u64,
    }

    /// A pod with so many must not fill the ring.
    const CONTAINERS: usize = 20;

    impl Node {
        /// How many of so many are reported that one cgroup makes in that time.
        fn reported(&mut self, what: Limited, cgroup: usize, count: u64, from: u64, time: u64) -> u64 {
            let take = |used: &mut u64, limit: Limit, now| limit.next(*used, now).map(|next| *used = next).is_some();
            let mut is_reported =
                |now| take(&mut self.own[cgroup], what.own(), now) || take(&mut self.shared, what.shared(), now);
            (0..count).filter(|n| is_reported(from + n * time / count)).count() as u64
        }
    }

    #[test]
    fn a_flood_gets_its_burst_and_then_its_rate() {
        for limit in ALL.map(Limited::own).into_iter().chain(ALL.map(Limited::shared)) {
            let (mut used, boot) = (0, 3600 * SECOND);
            let rate = SECOND / limit.every_ns;
            let first = passed(limit, 100_000, boot, SECOND, &mut used);
            assert!((limit.burst + rate - 1..=limit.burst + rate + 1).contains(&first), "{first} of {limit:?}");
            let second = passed(limit, 100_000, boot + SECOND, SECOND, &mut used);
            assert!((rate - 1..=rate + 1).contains(&second), "{second} of {limit:?}");
            assert_eq!(passed(limit, limit.burst, boot + 60 * SECOND, SECOND / 1000, &mut used), limit.burst);
        }
    }

    /// Forty pods start and end at once, and then six hundred in a minute.
    #[test]
    fn a_node_that_makes_many_namespaces_is_not_held_back() {
        let boot = 3600 * SECOND;
        for (what, of_a_pod) in [(Limited::Open, 30), (Limited::Namespace, 19)] {
            let mut node = Node::default();
            assert_eq!(node.reported(what, 0, 40 * of_a_pod, boot, SECOND), 40 * of_a_pod);
            assert_eq!(node.reported(what, 0, 600 * of_a_pod, boot + 2 * SECOND, 60 * SECOND), 600 * of_a_pod);
        }
    }

    #[test]
    fn what_many_containers_do_at_once_fits_into_the_ring() {
        fn bytes<T: Event>(what: Limited) -> u64 {
            let (mut node, boot) = (Node::default(), 3600 * SECOND);
            let reported: u64 =
                (0..CONTAINERS).map(|cgroup| node.reported(what, cgroup, 10_000, boot, SECOND / 1000)).sum();
            // `BPF_RINGBUF_HDR_SZ`
            reported * (size_of::<T>() as u64 + 8)
        }
        let all = bytes::<NetnsOpen>(Limited::Open) + bytes::<NetnsOp>(Limited::Namespace);
        assert!(all + bytes::<Listen>(Limited::Listen) < (1 << 20) * 4 / 5);
    }

    #[test]
    fn a_flood_leaves_the_others_what_is_their_own() {
        for what in ALL {
            let (mut node, boot, own) = (Node::default(), 3600 * SECOND, what.own());
            (0..CONTAINERS).for_each(|cgroup| _ = node.reported(what, cgroup, 10_000, boot, SECOND / 1000));
            assert_eq!(node.reported(what, CONTAINERS, own.burst, boot + SECOND / 1000, SECOND / 1000), own.burst);
        }
    }

    /// A machine that has just started has less behind it than a burst takes: that much it gets.
    #[test]
    fn the_first_seconds_after_the_boot_have_tokens() {
        let limit = Limited::Open.own();
        assert_eq!(limit.next(0, limit.every_ns), Some(limit.every_ns));
        assert_eq!(limit.next(0, limit.every_ns - 1), None);
    }
}
