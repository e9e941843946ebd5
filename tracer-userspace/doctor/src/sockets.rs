//! The TCP sockets of the node's network namespace, in `/proc/net/tcp` and `/proc/net/tcp6`.

use super::finding::Unread;
use super::view::View;

/// `TCP_LISTEN`, include/net/tcp_states.h
pub(super) const LISTEN: u8 = 10;

pub(super) struct Socket<'a> {
    /// The local port.
    pub(super) port: u16,
    /// Address and port of the other end, as the kernel prints them.
    pub(super) remote: &'a str,
    pub(super) state: u8,
}

/// Both lists; a kernel without IPv6 has one.
pub(super) fn read(view: &View) -> Result<Vec<String>, Unread> {
    let mut lists = vec![view.net("tcp")?];
    if view.number_if_any("net/ipv6/conf/all/forwarding")?.is_some() {
        lists.push(view.net("tcp6")?);
    }
    Ok(lists)
}

/// After a heading, a line is `sl local_address rem_address st …`, with numbers in hexadecimal.
pub(super) fn parse(lists: &[String]) -> impl Iterator<Item = Socket<'_>> {
    let socket = |line| {
        let words: Vec<&str> = str::split_whitespace(line).take(4).collect();
        let [_, local, remote, state] = words[..] else { return None };
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        Some(Socket { port, remote, state: u8::from_str_radix(state, 16).ok()? })
    };
    lists.iter().flat_map(move |list| list.lines().skip(1).filter_map(socket))
}
