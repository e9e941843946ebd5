//! The addresses of a network namespace, from `/proc/<pid>/net`. This needs no socket and no setns.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// How much of a table is read: a namespace may have a million routes.
const MAX_TABLE: u64 = 4 * 1024 * 1024;

/// The addresses of a process's namespace, `most` of them at most.
pub(super) fn of_process(pid: u32, most: usize) -> Vec<IpAddr> {
    first(most, of(Path::new(&format!("/proc/{pid}/net"))))
}

/// The addresses of the calling thread's namespace, `most` of them at most.
pub(super) fn of_thread(most: usize) -> Vec<IpAddr> {
    first(most, of(Path::new("/proc/thread-self/net")))
}

/// Whether the calling thread's namespace has this address. It searches all addresses.
pub(super) fn has(addr: IpAddr) -> io::Result<bool> {
    has_at(Path::new("/proc/thread-self/net"), addr)
}

fn has_at(net: &Path, addr: IpAddr) -> io::Result<bool> {
    match addr {
        IpAddr::V4(addr) => Ok(parse_fib_trie(open(net, "fib_trie")?).any(|it| it == addr)),
        // A kernel without IPv6 has no such table.
        IpAddr::V6(addr) => match open(net, "if_inet6") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            table => Ok(parse_if_inet6(table?).any(|it| it == addr)),
        },
    }
}

/// What duplicate address detection found about an IPv6 address. Until it is over, and after it failed, the kernel does
/// not answer for the address (`ndisc_recv_ns`, net/ipv6/ndisc.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Detection {
    /// Another host has the address.
    pub duplicate: bool,
    /// It is not over.
    pub tentative: bool,
}

impl Detection {
    /// For an address of the calling thread's namespace.
    pub(super) fn of(addr: IpAddr) -> Self {
        let IpAddr::V6(addr) = addr else { return Self::default() };
        let table = fs::File::open("/proc/thread-self/net/if_inet6").ok();
        table.map(|table| Self::parse(BufReader::new(table.take(MAX_TABLE)), addr)).unwrap_or_default()
    }

    /// Several links can have the address. The kernel answers for an optimistic one.
    fn parse(table: impl BufRead, addr: Ipv6Addr) -> Self {
        use libc::{IFA_F_DADFAILED, IFA_F_OPTIMISTIC, IFA_F_TENTATIVE};
        let flags = rows(table).filter(|(it, _)| *it == addr).fold(0, |all, (_, flags)| all | flags);
        Self {
            duplicate: flags & IFA_F_DADFAILED != 0,
            tentative: flags & (IFA_F_TENTATIVE | IFA_F_OPTIMISTIC | IFA_F_DADFAILED) == IFA_F_TENTATIVE,
        }
    }
}

/// The first `most` distinct addresses: `fib_trie` prints two tables with the same addresses.
fn first(most: usize, all: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut seen = BTreeSet::new();
    all.filter(|addr| seen.insert(*addr)).take(most).collect()
}

/// Reads the tables lazily.
fn of(net: &Path) -> impl Iterator<Item = IpAddr> {
    let v4 = open(net, "fib_trie").into_iter().flat_map(parse_fib_trie);
    let v6 = open(net, "if_inet6").into_iter().flat_map(parse_if_inet6);
    v4.map(IpAddr::from).chain(v6.map(IpAddr::from))
}

fn open(net: &Path, table: &str) -> io::Result<impl BufRead + use<>> {
    Ok(BufReader::new(fs::File::open(net.join(table))?.take(MAX_TABLE)))
}

/// Parses `|-- 10.88.0.4` followed by `/32 host LOCAL`. Both tables print the same addresses.
pub fn parse_fib_trie(table: impl BufRead) -> impl Iterator<Item = Ipv4Addr> {
    let mut leaf = None;
    table.lines().map_while(Result::ok).filter_map(move |line| {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        }
        leaf.filter(|address| line.starts_with("/32 host LOCAL") && !address.is_loopback())
    })
}

/// `fd000088000000000000000000000004 02 40 00 80     eth0`. Skips link-local addresses: pods can have the same ones.
pub fn parse_if_inet6(table: impl BufRead) -> impl Iterator<Item = Ipv6Addr> {
    rows(table).map(|(address, _)| address).filter(|it| !it.is_loopback() && !it.is_unicast_link_local())
}

/// Addresses and their flags (`if6_seq_show`, net/ipv6/addrconf.c).
fn rows(table: impl BufRead) -> impl Iterator<Item = (Ipv6Addr, u32)> {
    let row = |line: String| {
        let mut columns = line.split_whitespace();
        let address = u128::from_str_radix(columns.next()?, 16).ok()?;
        Some((address.into(), u32::from_str_radix(columns.nth(3)?, 16).ok()?))
    };
    table.lines().map_while(Result::ok).filter_map(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIB_TRIE: &str = include_str!("../../testdata/fib_trie.txt");

    #[test]
    fn local_addresses_of_a_pod() {
        let found = first(64, parse_fib_trie(FIB_TRIE.as_bytes()).map(IpAddr::from));
        assert_eq!(found, [IpAddr::from([10, 88, 0, 4])]);
        assert_eq!(parse_fib_trie("Main:\n".as_bytes()).count(), 0);
    }

    #[test]
    fn a_table_that_cannot_be_opened_does_not_say_that_an_address_is_missing() {
        let scratch = tracer_testing::Scratch::new();
        let has = |addr: &str| has_at(&scratch.path("net"), addr.parse().expect("an address")).ok();
        assert_eq!((has("10.88.0.4"), has("fd00:88::4")), (None, Some(false)), "a kernel may lack IPv6");
        scratch.file("net/fib_trie", FIB_TRIE);
        assert_eq!((has("10.88.0.4"), has("10.88.0.5")), (Some(true), Some(false)));
    }

    /// A process that may unshare can add any number of addresses.
    #[test]
    fn of_many_addresses_the_first_are_kept() {
        let mut read = 0;
        let table: String =
            (0..40_000).map(|it| format!("|-- 10.9.{}.{}\n/32 host LOCAL\n", it >> 8, it & 255)).collect();
        let all = || parse_fib_trie(table.as_bytes()).map(IpAddr::from);
        let found = first(64, all().chain(all()).inspect(|_| read += 1));
        assert_eq!((found.len(), read, found.last()), (64, 64, Some(&IpAddr::from([10, 9, 0, 63]))));
        assert!(all().any(|addr| addr == IpAddr::from([10, 9, 156, 63])), "the search for one address reads all");
    }

    #[test]
    fn global_v6_addresses_only() {
        let table = "\
            00000000000000000000000000000001 01 80 10 80       lo\n\
            fd000088000000000000000000000004 02 40 00 80     eth0\n\
            fe80000000000000d8f2a0fffe2c1a01 02 40 20 80     eth0\n\
            fd000088000000000000000000000005 02 40 00 c8     eth0\n\
            fd000088000000000000000000000006 02 40 00 c0     eth0\n\
            fd000088000000000000000000000007 02 40 00 c4     eth0\n\
            broken\n";
        let all: Vec<_> = parse_if_inet6(table.as_bytes()).collect();
        assert_eq!(
            all,
            ["fd00:88::4", "fd00:88::5", "fd00:88::6", "fd00:88::7"].map(|it| it.parse::<Ipv6Addr>().expect("address"))
        );
        let [none, found] = [Detection::default(), Detection { duplicate: true, tentative: false }];
        let runs = Detection { duplicate: false, tentative: true };
        let of = |addr: &Ipv6Addr| Detection::parse(table.as_bytes(), *addr);
        assert_eq!(all.iter().map(of).collect::<Vec<_>>(), [none, found, runs, none], "the last one is optimistic");
    }
}
