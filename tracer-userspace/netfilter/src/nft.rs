//! Requests to nf_tables, and the parts that all of its answers have.

use std::io;

use libc::{NFNL_SUBSYS_NFTABLES, c_int};
use netlink_sys::protocols::NETLINK_NETFILTER;

use tracer_node::netlink::{Netlink, attribute, field, push_text, text};

pub(super) const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
pub(super) const NFTA_TABLE_NAME: u16 = 1;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub(super) const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub(super) const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub(super) const NFTA_LIST_ELEM: u16 = 1;
pub(super) const NFTA_SET_ELEM_KEY: u16 = 1;
pub(super) const NFTA_SET_ELEM_DATA: u16 = 2;
pub(super) const NFTA_SET_ELEM_USERDATA: u16 = 6;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
/// `struct nfgenmsg`
pub(super) const NFGENMSG: usize = 4;

/// Opens a netlink socket to netfilter; `None` if this kernel has no nfnetlink.
pub(super) fn open() -> io::Result<Option<Netlink>> {
    match Netlink::open(NETLINK_NETFILTER) {
        Ok(netlink) => Ok(Some(netlink)),
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Dumps the objects that these names select. Returns whether they exist.
pub(super) fn dump(
    netlink: &mut Netlink,
    message: c_int,
    family: u8,
    names: &[(u16, &str)],
    each: impl FnMut(&[u8]),
) -> io::Result<bool> {
    match netlink.dump(kind(message), &selection(family, names), each) {
        Err(error) if is_absent(&error) => Ok(false),
        result => result.map(|()| true),
    }
}

/// Gets the object with these names; `None` if it does not exist.
pub(super) fn get(
    netlink: &mut Netlink,
    message: c_int,
    family: u8,
    names: &[(u16, &str)],
) -> io::Result<Option<Vec<u8>>> {
    match netlink.ask(kind(message), &selection(family, names), |answer| Some(answer.to_vec())) {
        Err(error) if is_absent(&error) => Ok(None),
        result => result,
    }
}

/// The type of a message in netlink.
pub(super) const fn kind(message: c_int) -> u16 {
    (NFNL_SUBSYS_NFTABLES << 8 | message) as u16
}

fn selection(family: u8, names: &[(u16, &str)]) -> Vec<u8> {
    let mut payload = vec![family, 0, 0, 0];
    names.iter().for_each(|(number, name)| push_text(&mut payload, *number, name));
    payload
}

/// The value of an attribute, with the type that the kernel's numbers have in libc.
pub(super) fn number(attrs: &[u8], attr: u16) -> Option<c_int> {
    attribute(attrs, attr).and_then(|value| field(value, 0)).map(c_int::from_be_bytes)
}

/// The `NFPROTO_*` of linux/netfilter.h that carry TCP.
const NAMED_FAMILIES: [(u8, &str); 5] = [(1, "inet"), (2, "ip"), (5, "netdev"), (7, "bridge"), (10, "ip6")];

pub(super) fn family_name(family: u8) -> Option<&'static str> {
    NAMED_FAMILIES.iter().find(|(number, _)| *number == family).map(|(_, name)| *name)
}

pub(super) fn family_number(name: &str) -> u8 {
    NAMED_FAMILIES.iter().find(|(_, known)| *known == name).map_or(0, |(number, _)| *number)
}

/// Whether the object does not exist, or this kernel has no nf_tables.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    user_value(userdata, 0).map(text)
}

/// Userdata has nft's own types, lengths and values. Type 0 is the comment.
pub(super) fn user_value(userdata: &[u8], number: u8) -> Option<&[u8]> {
    let [kind, length, rest @ ..] = userdata else { return None };
    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
    if *kind == number { Some(value) } else { user_value(rest, number) }
}

/// An attribute, for tests.
#[cfg(test)]
pub(super) fn attr(number: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    tracer_node::netlink::push(&mut bytes, number, value);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_is_found_in_the_userdata() {
        assert_eq!(comment(b"\x00\x0dns2/svc2:p80\x00").as_deref(), Some("ns2/svc2:p80"));
        assert_eq!(comment(b"\x00\xffshort"), None);
        assert_eq!(comment(b""), None);
    }
}
