//! Requests to nf_tables, and the parts that all of its answers have.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use tracer_node::netlink::{Netlink, push_text, text};

pub(super) const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
pub(super) const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub(super) const NFT_MSG_GETCHAIN: u16 = 4;
pub(super) const NFT_MSG_NEWRULE: u16 = 6;
pub(super) const NFT_MSG_GETSETELEM: u16 = 13;
pub(super) const NFTA_CHAIN_TABLE: u16 = 1;
pub(super) const NFTA_CHAIN_NAME: u16 = 3;
pub(super) const NFTA_CHAIN_HOOK: u16 = 4;
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

/// Dumps the objects that these names select; nothing if they do not exist.
pub(super) fn dump(
    netlink: &mut Netlink,
    message: u16,
    family: u8,
    names: &[(u16, &str)],
    each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut payload = vec![family, 0, 0, 0];
    for (number, name) in names {
        push_text(&mut payload, *number, name);
    }
    match netlink.dump(NFNL_SUBSYS_NFTABLES << 8 | message, &payload, each) {
        Err(error) if is_absent(&error) => Ok(()),
        result => result,
    }
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
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

/// Userdata has nft's own type, length and value; type 0 is the comment.
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let [kind, length, rest @ ..] = userdata else { return None };
    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
    if *kind == 0 { Some(text(value)) } else { comment(rest) }
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
