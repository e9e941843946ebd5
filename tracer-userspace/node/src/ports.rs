//! Which processes use up ephemeral ports: sums the kernel programs' counts for each user.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tracer_common::ports::{DESTINATION_BITS, DESTINATION_WORDS, PortUse};
use tracer_common::{ABSENT32, actor::COMM_LEN};

use super::enter::in_netns;
use super::netlink::text;
use super::{procfs, settings::local_port_range};
use tracer_model::event::{Netns, PortPressure, PortUser};

/// How many users are reported: this many in the node's namespace, and as many in other namespaces.
const MAX_USERS: usize = 10;

/// A part of the ports: if fewer are in use, it does not matter who uses them.
const FEW: u64 = 100;

/// Whether more than a hundredth of the node's ports are in use. `pid` is a process of its namespace.
pub fn are_many_in_use(pid: Option<u32>) -> bool {
    let (in_use, time_wait) = sockets(pid);
    let ports = local_port_range().map_or(0, |(first, last)| u64::from(last.saturating_sub(first)));
    in_use.unwrap_or(0) + time_wait.unwrap_or(0) > ports / FEW
}

/// Sums the counts for each user. `pid` is a process of the node's namespace: its sockstat gives the sockets in use.
pub fn pressure(counted: &[(u32, PortUse)], window_ns: u64, pid: Option<u32>) -> PortPressure {
    let (in_use, time_wait) = sockets(pid);
    let home = pid.map_or_else(|| procfs::netns_of(std::process::id()), procfs::netns_of);
    let mut users = joined(counted, home);
    for user in &mut users {
        user.pod_uid = procfs::pod_of_process(user.pid).map(|process| process.uid);
    }
    let inside = pid.map_or_else(|| "/proc/self/ns/net".to_owned(), |pid| format!("/proc/{pid}/ns/net"));
    let local_port_range = in_netns(Path::new(&inside), local_port_range).ok().flatten();
    PortPressure { window_ns, partial: false, regular: false, in_use, time_wait, local_port_range, users }
}

/// The TCP sockets in use and in TIME_WAIT, in the namespace of this process.
fn sockets(pid: Option<u32>) -> (Option<u64>, Option<u64>) {
    let pid = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let read = |file| fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    sockstat(&(read("sockstat") + &read("sockstat6")))
}

/// `TCP: inuse 5 orphan 0 tw 849 alloc 7 mem 1` and `TCP6: inuse 3`. The sockets in TIME_WAIT are those of both families.
pub fn sockstat(text: &str) -> (Option<u64>, Option<u64>) {
    let field = |of, name| {
        let line = text.lines().find_map(|line| line.strip_prefix(of)).unwrap_or_default();
        line.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse::<u64>().ok()
    };
    let in_use = field("TCP:", "inuse").map(|v4| v4 + field("TCP6:", "inuse").unwrap_or(0));
    (in_use, field("TCP:", "tw"))
}

/// The counts of one user.
struct Sum {
    /// The process with the most connects: its connects, and its pid.
    biggest: (u64, u32),
    processes: u32,
    total: PortUse,
}

/// Sums by name, namespace and cgroup: a program that starts a new process for each connect is one user.
fn joined(counted: &[(u32, PortUse)], home: Option<Netns>) -> Vec<PortUser> {
    let mut sums: BTreeMap<([u8; COMM_LEN], u32, u64), Sum> = BTreeMap::new();
    for (pid, usage) in counted {
        let sum = sums.entry((usage.comm, usage.netns, usage.cgroup)).or_insert_with(|| Sum {
            biggest: (0, *pid),
            processes: 0,
            total: PortUse { comm: usage.comm, netns: usage.netns, ..PortUse::default() },
        });
        sum.processes += 1;
        sum.biggest = sum.biggest.max((usage.connects, *pid));
        sum.total.add(usage);
    }
    let mut users: Vec<_> = sums.into_values().map(|sum| user(&sum)).collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.connects));
    bounded(users, home)
}

/// The first users in the node's namespace, and the first users in other namespaces: only the former use the node's
/// ports.
fn bounded(users: Vec<PortUser>, home: Option<Netns>) -> Vec<PortUser> {
    let mut reported = [0; 2];
    let has_room = |user: &PortUser| {
        let reported = &mut reported[usize::from(user.netns == home)];
        *reported += 1;
        *reported <= MAX_USERS
    };
    users.into_iter().filter(has_room).collect()
}

fn user(sum: &Sum) -> PortUser {
    PortUser {
        pid: sum.biggest.1,
        comm: text(&sum.total.comm),
        processes: sum.processes,
        netns: Some(Netns(sum.total.netns)).filter(|netns| netns.0 != ABSENT32),
        pod_uid: None,
        connects: sum.total.connects,
        destinations: destinations(&sum.total.destinations).min(sum.total.connects),
        to_itself: sum.total.to_itself,
        time_wait_left: sum.total.closes,
    }
}

/// Estimates the number of distinct destinations by linear counting: n keys leave m·e^(-n/m) of m bits empty.
fn destinations(bits: &[u64; DESTINATION_WORDS]) -> u64 {
    let m = f64::from(DESTINATION_BITS);
    let empty = m - f64::from(bits.iter().map(|word| word.count_ones()).sum::<u32>());
    (m * (m / empty.max(1.0)).ln()).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(comm: &[u8], connects: u64, destinations: [u64; 4]) -> PortUse {
        let mut usage = PortUse { connects, destinations, netns: 7, ..PortUse::default() };
        usage.comm[..comm.len()].copy_from_slice(comm);
        usage
    }

    #[test]
    fn processes_of_one_name_are_one_user() {
        let counted = [
            (10, named(b"curl", 1, [1, 0, 0, 0])),
            (11, named(b"curl", 2, [1, 0, 0, 0])),
            (12, named(b"dns", 60, [0, 6, 0, 0])),
        ];
        let users = joined(&counted, Some(Netns(7)));
        let seen: Vec<_> =
            users.iter().map(|u| (u.comm.as_str(), u.pid, u.processes, u.connects, u.destinations)).collect();
        assert_eq!(seen, [("dns", 12, 1, 60, 2), ("curl", 11, 2, 3, 1)]);
    }

    #[test]
    fn pods_do_not_crowd_out_the_node() {
        let pod = |n: u32| (n, PortUse { cgroup: u64::from(n), ..named(b"pod", 100, [1, 0, 0, 0]) });
        let home = PortUse { netns: 1, ..named(b"dns", 1, [1, 0, 0, 0]) };
        let counted: Vec<_> = (1..50).map(pod).chain([(99, home)]).collect();
        let users = joined(&counted, Some(Netns(1)));
        assert_eq!((users.len(), users[10].comm.as_str()), (MAX_USERS + 1, "dns"));
    }

    #[test]
    fn distinct_destinations_are_estimated() {
        assert_eq!(destinations(&[0; 4]), 0);
        assert_eq!(destinations(&[u64::MAX, 0, 0, 0]), 74, "of 64 bits some were set twice");
        assert_eq!(destinations(&[u64::MAX; 4]), 1420, "at least");
    }

    #[test]
    fn sockets_as_the_kernel_counts_them() {
        let text = "sockets: used 300\nTCP: inuse 5 orphan 0 tw 849 alloc 7 mem 1\nUDP: inuse 2 mem 0\n";
        assert_eq!(sockstat(text), (Some(5), Some(849)));
        assert_eq!(sockstat(&format!("{text}TCP6: inuse 3\nUDP6: inuse 1\n")), (Some(8), Some(849)));
        assert_eq!(sockstat(""), (None, None));
    }
}
