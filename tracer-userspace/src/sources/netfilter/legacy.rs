//! NodePorts from the chain KUBE-NODEPORTS of `nat` where iptables is the legacy one (`ip_tables`, x_tables).
//!
//! x_tables hands out a table only as a whole (`IPT_SO_GET_ENTRIES`), so a table above [`MAX_TABLE`] is
//! not read and that is said. Asking would load the module: asked is only where `nat` is in use.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::super::netlink::{field, text};
use super::iptables::xt_tcp_port;
use super::{Named, NetfilterError, TCP};

const MAX_TABLE: usize = 8 * 1024 * 1024;
/// `IPT_BASE_CTL`, the same number for IPv6.
const SO_GET_INFO: libc::c_int = 64;
const SO_GET_ENTRIES: libc::c_int = 65;
/// `struct ipt_getinfo`: name, valid hooks, hook entries, underflows, number of entries, size.
const GETINFO: usize = 84;
/// `struct ipt_get_entries`: name, size, padding to eight bytes.
const GET_ENTRIES: usize = 40;

/// Where the fields of an entry are, which differs between `ipt_entry` and `ip6t_entry`.
struct Layout {
    names: &'static str,
    family: libc::c_int,
    level: libc::c_int,
    /// Of the protocol in the match part.
    protocol: usize,
    /// Of `target_offset`, which `next_offset` follows.
    target_offset: usize,
    /// Of the entry itself: where its matches begin.
    size: usize,
}

const LAYOUTS: [Layout; 2] = [
    Layout {
        names: "/proc/thread-self/net/ip_tables_names",
        family: libc::AF_INET,
        level: libc::IPPROTO_IP,
        protocol: 80,
        target_offset: 88,
        size: 112,
    },
    Layout {
        names: "/proc/thread-self/net/ip6_tables_names",
        family: libc::AF_INET6,
        level: libc::IPPROTO_IPV6,
        protocol: 128,
        target_offset: 140,
        size: 168,
    },
];

/// Reads the chain in the namespace of the calling thread.
pub(super) fn read() -> Result<Named, NetfilterError> {
    let mut ports = Named::new();
    for layout in LAYOUTS.iter().filter(|layout| in_use(layout)) {
        parse(&entries(layout)?, layout, &mut ports);
    }
    Ok(ports)
}

fn in_use(layout: &Layout) -> bool {
    fs::read_to_string(layout.names).is_ok_and(|names| names.lines().any(|name| name == "nat"))
}

fn entries(layout: &Layout) -> Result<Vec<u8>, NetfilterError> {
    let socket = raw_socket(layout.family).map_err(NetfilterError::Legacy)?;
    let mut info = vec![0; GETINFO];
    info[..3].copy_from_slice(b"nat");
    get(&socket, layout.level, SO_GET_INFO, &mut info).map_err(NetfilterError::Legacy)?;
    let size = field(&info, GETINFO - 4).map_or(0, u32::from_ne_bytes) as usize;
    if size > MAX_TABLE {
        return Err(NetfilterError::LegacyTooLarge(size));
    }
    let mut table = vec![0; GET_ENTRIES + size];
    table[..3].copy_from_slice(b"nat");
    table[32..36].copy_from_slice(&(size as u32).to_ne_bytes());
    get(&socket, layout.level, SO_GET_ENTRIES, &mut table).map_err(NetfilterError::Legacy)?;
    table.drain(..GET_ENTRIES);
    Ok(table)
}

fn raw_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn get(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `buffer`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A chain begins with an entry whose target is `ERROR` and carries its name.
fn parse(mut table: &[u8], layout: &Layout, ports: &mut Named) {
    let mut inside = false;
    while let Some((entry, rest)) = split_entry(table, layout) {
        match chain_name(entry, layout) {
            Some(name) => inside = name == "KUBE-NODEPORTS",
            None if inside => ports.extend(parse_rule(entry, layout)),
            None => {}
        }
        table = rest;
    }
}

fn split_entry<'a>(table: &'a [u8], layout: &Layout) -> Option<(&'a [u8], &'a [u8])> {
    let next = usize::from(u16::from_ne_bytes(field(table, layout.target_offset + 2)?));
    (next >= layout.size).then(|| table.split_at_checked(next)).flatten()
}

/// `struct xt_entry_target`: size, name of 29 bytes, revision, data.
fn chain_name(entry: &[u8], layout: &Layout) -> Option<String> {
    let at = usize::from(u16::from_ne_bytes(field(entry, layout.target_offset)?));
    let target = entry.get(at..)?;
    (text(target.get(2..31)?) == "ERROR").then(|| target.get(32..).map(text)).flatten()
}

fn parse_rule(entry: &[u8], layout: &Layout) -> Option<(u16, Option<String>)> {
    (u16::from_ne_bytes(field(entry, layout.protocol)?) == u16::from(TCP)).then_some(())?;
    let end = usize::from(u16::from_ne_bytes(field(entry, layout.target_offset)?));
    let mut matches = entry.get(layout.size..end)?;
    let (mut port, mut comment) = (None, None);
    while let Some(size) = field(matches, 0).map(u16::from_ne_bytes).map(usize::from).filter(|size| *size >= 32) {
        let info = matches.get(32..size)?;
        match text(matches.get(2..31)?).as_str() {
            "tcp" => port = xt_tcp_port(info),
            "comment" => comment = Some(text(info)),
            _ => {}
        }
        matches = matches.get(size..)?;
    }
    Some((port?, comment))
}
