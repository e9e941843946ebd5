//! Reads tables of the legacy ip_tables (x_tables) from the kernel.
//!
//! The kernel returns a table only as a whole (`IPT_SO_GET_ENTRIES`). tracer does not read a table above [`MAX_TABLE`], and
//! reports that. A request loads the module of the table, so tracer requests only tables that are in use.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::NetfilterError;
use tracer_node::netlink::{field, text};

const MAX_TABLE: usize = 8 * 1024 * 1024;
/// `IPT_BASE_CTL`, the same number for IPv6.
const SO_GET_INFO: libc::c_int = 64;
const SO_GET_ENTRIES: libc::c_int = 65;
/// `struct ipt_getinfo`: name, valid hooks, hook entries, underflows, number of entries, size.
pub(super) const GETINFO: usize = 84;
/// `struct ipt_get_entries`: name, size, padding to eight bytes.
const GET_ENTRIES: usize = 40;

/// Offsets of the fields of an entry: those of `ipt_entry` and `ip6t_entry` differ.
pub(super) struct Layout {
    names: &'static str,
    /// The family, as nftables names it.
    pub(super) table_family: &'static str,
    /// Size of an address.
    pub(super) addr: usize,
    family: AddressFamily,
    level: libc::c_int,
    /// Offset of the protocol in the match part.
    pub(super) protocol: usize,
    /// Offset of the flags; the inversion flags follow.
    pub(super) flags: usize,
    /// The flag that makes a jump a goto.
    pub(super) goto: u8,
    /// The flag of a condition that tracer does not model: only fragments (IPv4), only a traffic class (IPv6).
    pub(super) unmodelled: u8,
    /// Offset of `target_offset`; `next_offset` follows.
    pub(super) target_offset: usize,
    /// Offset of the packet counter.
    pub(super) counters: usize,
    /// Size of the entry without its matches, which follow.
    pub(super) size: usize,
}

pub(super) const LAYOUTS: [Layout; 2] = [
    Layout {
        names: "/proc/thread-self/net/ip_tables_names",
        table_family: "ip",
        addr: 4,
        family: AddressFamily::Inet,
        level: libc::IPPROTO_IP,
        protocol: 80,
        flags: 82,
        goto: 0x02,
        unmodelled: 0x01,
        target_offset: 88,
        counters: 96,
        size: 112,
    },
    Layout {
        names: "/proc/thread-self/net/ip6_tables_names",
        table_family: "ip6",
        addr: 16,
        family: AddressFamily::Inet6,
        level: libc::IPPROTO_IPV6,
        protocol: 128,
        flags: 131,
        goto: 0x04,
        unmodelled: 0x02,
        target_offset: 140,
        counters: 152,
        size: 168,
    },
];

/// The tables that exist in the network namespace of the calling thread.
pub(super) fn tables_in_use(layout: &Layout) -> Vec<String> {
    fs::read_to_string(layout.names).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Reads the description of a table and its entries.
pub(super) fn entries(layout: &Layout, name: &str) -> Result<(Vec<u8>, Vec<u8>), NetfilterError> {
    let failed = |source| NetfilterError::Legacy { table: name.to_owned(), source };
    let socket = open_socket(layout).map_err(failed)?;
    let mut info = named(name, GETINFO);
    get(&socket, layout.level, SO_GET_INFO, &mut info).map_err(failed)?;
    let size = field(&info, GETINFO - 4).map_or(0, u32::from_ne_bytes) as usize;
    if size > MAX_TABLE {
        return Err(NetfilterError::LegacyTooLarge { table: name.to_owned(), size });
    }
    let mut table = named(name, GET_ENTRIES + size);
    table[32..36].copy_from_slice(&(size as u32).to_ne_bytes());
    get(&socket, layout.level, SO_GET_ENTRIES, &mut table).map_err(failed)?;
    table.drain(..GET_ENTRIES);
    Ok((info, table))
}

/// A buffer that begins with the table's name, cut to 31 bytes.
fn named(name: &str, size: usize) -> Vec<u8> {
    let mut buffer = vec![0; size];
    let length = name.len().min(31);
    buffer[..length].copy_from_slice(&name.as_bytes()[..length]);
    buffer
}

/// Any socket of the family reaches `nf_getsockopt`, which needs CAP_NET_ADMIN (`do_ipt_get_ctl`). A raw socket would need
/// CAP_NET_RAW, too.
fn open_socket(layout: &Layout) -> io::Result<OwnedFd> {
    Ok(socket(layout.family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?)
}

fn get(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, the size of `buffer`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn split_entry<'a>(table: &'a [u8], layout: &Layout) -> Option<(&'a [u8], &'a [u8])> {
    let next = usize::from(u16::from_ne_bytes(field(table, layout.target_offset + 2)?));
    (next >= layout.size).then(|| table.split_at_checked(next)).flatten()
}

/// Name and data of the target. `struct xt_entry_target` has size, name of 29 bytes, revision, data.
pub(super) fn target<'a>(entry: &'a [u8], layout: &Layout) -> Option<(String, &'a [u8])> {
    let at = usize::from(u16::from_ne_bytes(field(entry, layout.target_offset)?));
    let target = entry.get(at..)?;
    Some((text(target.get(2..31)?), target.get(32..)?))
}

/// A chain begins with an entry that has the target `ERROR` and the chain's name as the target's data.
pub(super) fn chain_name(entry: &[u8], layout: &Layout) -> Option<String> {
    target(entry, layout).filter(|(name, _)| name == "ERROR").map(|(_, name)| text(name))
}
