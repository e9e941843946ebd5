//! Limits how many events of a kind processes can make: no process may fill the ring with things that it can do at any rate.
//!
//! Each cgroup (a container) has a small budget of its own, because a pod can have many containers. All cgroups share a larger
//! budget for those that do much at once (the runtime, a starting server). So a flood by many uses up the shared budget, but never
//! the own budget of another cgroup.
//!
//! Each budget is a token bucket in one number: the time until which the tokens are used up (the generic cell rate algorithm,
//! ITU-T I.371).
//!
//! The events of one tracked connection have budgets as well: its packets come from others, which may send any number. The first
//! events of each sort always pass, so a flood hides no other event of the connection.

use crate::{
    events::Kind,
    packet::{FLAG_FIN, FLAG_PSH, FLAG_RST, FLAG_SYN},
};

/// The limited kinds of events. The numbers are part of a map's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Limited {
    /// Opens of files that name a network namespace.
    Open = 1,
    /// Network namespaces entered or made.
    Namespace = 2,
    /// Sockets that start or stop listening.
    Listen = 3,
    /// Processes that get the name of a prober, and probers that move.
    Prober = 4,
    /// Links that are set up or down.
    Link = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub burst: u64,
    /// Nanoseconds between two events, in the long run.
    pub every_ns: u64,
}

/// Events of one connection: as many at once as userspace keeps of an attempt.
pub const CONNECTION: Limit = Limit { burst: 48, every_ns: 1_000_000_000 / 16 };
/// Events of one connection that are alike ([`sort`]), beyond these.
pub const ALIKE: Limit = Limit { burst: 2, every_ns: 1_000_000_000 };
/// Reports that events of one connection are held back.
pub const HELD: Limit = Limit { burst: 1, every_ns: 1_000_000_000 };

/// The sort of an event of a connection: events of one sort differ in nothing that decides. Never 0 or 1.
///
/// `port`: the source port of the packet, which shows its direction. `place`: what else distinguishes events of this kind.
#[inline(always)]
pub const fn sort(kind: Kind, netns: u32, port: u16, flags: u8, place: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    // A sender can set the other flags at will.
    let flags = flags & (FLAG_FIN | FLAG_SYN | FLAG_RST | FLAG_PSH);
    let packet = (port as u64) << 32 | (kind as u64) << 16 | flags as u64;
    (packet.wrapping_mul(ODD) ^ (netns as u64) << 32 ^ place) | 2
}

/// Failed connects of one pod with a failed probe. One of each destination would be enough.
pub const POD_CONNECTS: Limit = Limit { burst: 16, every_ns: 1_000_000_000 / 4 };

impl Limited {
    /// The own budget of a cgroup. To start and end a pod, a runtime and its plugins need 30 opens and 19 entries (containerd with
    /// `loopback`, `bridge` and `host-local`, three pods recorded). The budget allows 8 pods a second.
    #[inline(always)]
    pub const fn own(self) -> Limit {
        match self {
            Self::Open | Self::Namespace => Limit { burst: 32, every_ns: 1_000_000_000 / 256 },
            Self::Listen => Limit { burst: 64, every_ns: 1_000_000_000 / 512 },
            // Each makes userspace read the process's cgroup and all mounts, some milliseconds.
            Self::Prober => Limit { burst: 8, every_ns: 1_000_000_000 },
            // A pod that starts and ends sets five links up or down. Each makes the program read an environment.
            Self::Link => Limit { burst: 4, every_ns: 1_000_000_000 / 64 },
        }
    }

    /// The shared budget of all cgroups. It is enough for 40 pods that start and end at once, or for a server that listens a
    /// thousand times: with a socket for each thread (SO_REUSEPORT). Together with the own budgets of 20 containers it is
    /// 0.75 MiB, less than the ring.
    #[inline(always)]
    pub const fn shared(self) -> Limit {
        let own = self.own();
        match self {
            Self::Open => Limit { burst: 768, ..own },
            Self::Namespace => Limit { burst: 512, ..own },
            Self::Listen => Limit { burst: 1536, ..own },
            Self::Prober => Limit { burst: 16, ..own },
            Self::Link => Limit { burst: 128, ..own },
        }
    }
}

impl Limit {
    /// The time until which tokens are used up after another event; `None` if no token is left. `used`: that time before the event,
    /// 0 at first.
    #[inline(always)]
    pub const fn next(self, used: u64, now: u64) -> Option<u64> {
        let earliest = now.saturating_sub(self.burst * self.every_ns);
        let next = if used > earliest { used } else { earliest } + self.every_ns;
        if next > now { None } else { Some(next) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeMap;

    use super::*;
    use crate::{drop::PacketDrop, events::Event, link::Link, listen::Listen, netns::NetnsOp, netns::NetnsOpen};

    const ALL: [Limited; 5] = [Limited::Open, Limited::Namespace, Limited::Listen, Limited::Prober, Limited::Link];
    const SECOND: u64 = 1_000_000_000;

    /// How many of `count` events within `time` are taken.
    fn count_taken(count: u64, from: u64, time: u64, mut take: impl FnMut(u64) -> bool) -> u64 {
        (0..count).filter(|n| take(from + n * time / count)).count() as u64
    }

    /// Takes a token, if there is one.
    fn take(used: &mut u64, limit: Limit, now: u64) -> bool {
        limit.next(*used, now).map(|next| *used = next).is_some()
    }

    /// The state of the programs: until when the tokens of each cgroup, and the shared ones, are used up.
    #[derive(Default)]
    struct Node {
        own: [u64; CONTAINERS + 1],
        shared: u64,
    }

    /// A pod with this many containers must not fill the ring.
    const CONTAINERS: usize = 20;

    impl Node {
        /// How many of `count` events of one cgroup within `time` are reported.
        fn reported(&mut self, what: Limited, cgroup: usize, count: u64, from: u64, time: u64) -> u64 {
            count_taken(count, from, time, |now| {
                take(&mut self.own[cgroup], what.own(), now) || take(&mut self.shared, what.shared(), now)
            })
        }
    }

    #[test]
    fn a_flood_gets_its_burst_and_then_its_rate() {
        for limit in ALL.map(Limited::own).into_iter().chain(ALL.map(Limited::shared)) {
            let (mut used, boot) = (0, 3600 * SECOND);
            let mut passed = |count, from, time| count_taken(count, from, time, |now| take(&mut used, limit, now));
            let rate = SECOND / limit.every_ns;
            let first = passed(100_000, boot, SECOND);
            assert!((limit.burst + rate - 1..=limit.burst + rate + 1).contains(&first), "{first} of {limit:?}");
            let second = passed(100_000, boot + SECOND, SECOND);
            assert!((rate - 1..=rate + 1).contains(&second), "{second} of {limit:?}");
            assert_eq!(passed(limit.burst, boot + 60 * SECOND, SECOND / 1000), limit.burst);
        }
    }

    /// Forty pods start and end at once, then six hundred in a minute.
    #[test]
    fn many_starting_pods_stay_within_the_limit() {
        let boot = 3600 * SECOND;
        for (what, of_a_pod) in [(Limited::Open, 30), (Limited::Namespace, 19), (Limited::Link, 5)] {
            let mut node = Node::default();
            assert_eq!(node.reported(what, 0, 40 * of_a_pod, boot, SECOND), 40 * of_a_pod);
            assert_eq!(node.reported(what, 0, 600 * of_a_pod, boot + 2 * SECOND, 60 * SECOND), 600 * of_a_pod);
        }
    }

    #[test]
    fn floods_of_many_containers_fit_into_the_ring() {
        fn bytes<T: Event>(what: Limited) -> u64 {
            let (mut node, boot) = (Node::default(), 3600 * SECOND);
            let reported: u64 =
                (0..CONTAINERS).map(|cgroup| node.reported(what, cgroup, 10_000, boot, SECOND / 1000)).sum();
            // `BPF_RINGBUF_HDR_SZ`
            reported * (size_of::<T>() as u64 + 8)
        }
        let of_namespaces = bytes::<NetnsOpen>(Limited::Open) + bytes::<NetnsOp>(Limited::Namespace);
        let all = of_namespaces + bytes::<Listen>(Limited::Listen) + bytes::<Link>(Limited::Link);
        assert!(all < (1 << 20) * 4 / 5, "{all}");
    }

    #[test]
    fn a_flood_does_not_use_the_own_budget_of_others() {
        for what in ALL {
            let (mut node, boot, own) = (Node::default(), 3600 * SECOND, what.own());
            (0..CONTAINERS).for_each(|cgroup| _ = node.reported(what, cgroup, 10_000, boot, SECOND / 1000));
            assert_eq!(node.reported(what, CONTAINERS, own.burst, boot + SECOND / 1000, SECOND / 1000), own.burst);
        }
    }

    /// Drops with all flags at many places, and then one of another sort.
    #[test]
    fn a_flood_in_one_connection_hides_no_event_of_another_sort() {
        let (now, netns) = (3600 * SECOND, 4_026_531_840);
        let (mut whole, mut sorts) = (0, BTreeMap::new());
        let mut passes = |sort| take(&mut whole, CONNECTION, now) || take(sorts.entry(sort).or_insert(0), ALIKE, now);
        let mut passed = 0;
        for n in 0..100_000_u64 {
            passed +=
                u64::from(passes(sort(Kind::Drop, netns, 8080, n as u8, 0xffff_ffff_8100_0000 + n / 256 % 4 * 640)));
        }
        assert_eq!(passed, CONNECTION.burst + 4 * 16 * ALIKE.burst);
        assert!(passed * (size_of::<PacketDrop>() as u64 + 8) < (1 << 20) / 16);
        for other in [
            sort(Kind::Drop, netns, 40000, FLAG_SYN, 0xffff_ffff_8100_0000),
            sort(Kind::Drop, netns + 1, 8080, FLAG_SYN, 0xffff_ffff_8100_0000),
            sort(Kind::ResetSent, netns, 8080, FLAG_SYN, 0xffff_ffff_8100_0000),
            sort(Kind::Drop, netns, 8080, FLAG_SYN, 0xffff_ffff_8100_0004),
        ] {
            assert!(passes(other), "{other:x}");
        }
    }

    /// Soon after the boot, less time has passed than a burst needs. Then only the tokens of that time are there.
    #[test]
    fn tokens_exist_from_the_boot_on() {
        let limit = Limited::Open.own();
        assert_eq!(limit.next(0, limit.every_ns), Some(limit.every_ns));
        assert_eq!(limit.next(0, limit.every_ns - 1), None);
    }
}
