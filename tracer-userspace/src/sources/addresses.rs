//! The addresses of a network namespace, from `/proc/<pid>/net`: no socket and no setns needed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// A pod has a handful. A node-like namespace with a million routes is not read to its end.
const MAX_TABLE: u64 = 4 * 1024 * 1024;

/// Of the namespace of a process.
pub(super) fn of_process(pid: u32) -> Vec<IpAddr> {
    of(Path::new(&format!("/proc/{pid}/net")))
}

/// Of the namespace of the calling thread.
pub(super) fn of_thread() -> Vec<IpAddr> {
    of(Path::new("/proc/thread-self/net"))
}

fn of(net: &Path) -> Vec<IpAddr> {
    let open = |name: &str| fs::File::open(net.join(name)).ok().map(|file| BufReader::new(file.take(MAX_TABLE)));
    let v4 = open("fib_trie").map(parse_fib_trie).unwrap_or_default();
    let v6 = open("if_inet6").map(parse_if_inet6).unwrap_or_default();
    v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect()
}

/// `|-- 10.88.0.4` followed by `/32 host LOCAL`; both tables print the same.
fn parse_fib_trie(table: impl BufRead) -> Vec<Ipv4Addr> {
    let mut leaf = None;
    let mut found = Vec::new();
    for line in table.lines().map_while(Result::ok) {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(leaf.filter(|address| !address.is_loopback() && !found.contains(address)));
        }
    }
    found
}

/// `fd000088000000000000000000000004 02 40 00 80     eth0`. Link-local ones repeat between pods: left out.
fn parse_if_inet6(table: impl BufRead) -> Vec<Ipv6Addr> {
    let address = |line: String| {
        let digits = line.split_whitespace().next()?;
        let address = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
        (!address.is_loopback() && !address.is_unicast_link_local()).then_some(address)
    };
    table.lines().map_while(Result::ok).filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIB_TRIE: &str = include_str!("../../testdata/fib_trie.txt");

    #[test]
    fn local_addresses_of_a_pod() {
        assert_eq!(parse_fib_trie(FIB_TRIE.as_bytes()), [Ipv4Addr::new(10, 88, 0, 4)]);
        assert!(parse_fib_trie("Main:\n".as_bytes()).is_empty());
    }

    #[test]
    fn global_v6_addresses_only() {
        let table = "\
            00000000000000000000000000000001 01 80 10 80       lo\n\
            fd000088000000000000000000000004 02 40 00 80     eth0\n\
            fe80000000000000d8f2a0fffe2c1a01 02 40 20 80     eth0\n\
            broken\n";
        assert_eq!(parse_if_inet6(table.as_bytes()), ["fd00:88::4".parse::<Ipv6Addr>().expect("address")]);
    }
}
