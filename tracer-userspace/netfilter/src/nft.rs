//! NodePorts from kube-proxy's nftables mode: two maps of the table `kube-proxy`, for IPv4 and IPv6.
//!
//! `service-nodeports` maps protocol and port to `goto external-<hash>-<namespace>/<name>/tcp/<port>`;
//! a Service without endpoints is in `no-endpoint-nodeports`, its name in the element's comment.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::{Named, NetfilterError, TCP};
use tracer_node::netlink::{Netlink, attribute, attributes, consistent, field, push_text, text};

pub(super) const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];
const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub(super) const NFT_MSG_GETSETELEM: u16 = 13;
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

const MAPS: [&str; 2] = ["no-endpoint-nodeports", "service-nodeports"];

/// Reads the maps of the namespace of the calling thread.
pub(super) fn read() -> Result<Named, NetfilterError> {
    consistent(dump_maps).map_err(|source| NetfilterError::Nft { what: "kube-proxy's nftables maps", source })
}

fn dump_maps() -> io::Result<Named> {
    let mut ports = Named::new();
    let Some(mut netlink) = open()? else { return Ok(ports) };
    for (family, map) in FAMILIES.into_iter().flat_map(|family| MAPS.map(|map| (family, map))) {
        let names = [(NFTA_SET_ELEM_LIST_TABLE, "kube-proxy"), (NFTA_SET_ELEM_LIST_SET, map)];
        dump(&mut netlink, NFT_MSG_GETSETELEM, family, &names, |message| add_elements(message, &mut ports))?;
    }
    Ok(ports)
}

/// A socket to netfilter; none if this kernel has no nfnetlink.
pub(super) fn open() -> io::Result<Option<Netlink>> {
    match Netlink::open(NETLINK_NETFILTER) {
        Ok(netlink) => Ok(Some(netlink)),
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Dumps what these names select. What does not exist is empty.
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

/// No such table, or no nf_tables in this kernel.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

pub(super) fn add_elements(message: &[u8], ports: &mut Named) {
    let list = message.get(NFGENMSG..).and_then(|rest| attribute(rest, NFTA_SET_ELEM_LIST_ELEMENTS));
    let elements = list.into_iter().flat_map(attributes).filter(|(number, _)| *number == NFTA_LIST_ELEM);
    for (port, service) in elements.filter_map(|(_, element)| parse_element(element)) {
        let known = ports.entry(port).or_default();
        if service.is_some() {
            *known = service;
        }
    }
}

/// The key is `inet_proto . inet_service`: each part padded to four bytes.
fn parse_element(element: &[u8]) -> Option<(u16, Option<String>)> {
    let key = attribute(attribute(element, NFTA_SET_ELEM_KEY)?, NFTA_DATA_VALUE)?;
    if *key.first()? != TCP {
        return None;
    }
    let port = u16::from_be_bytes(field(key, 4)?);
    let data = attribute(element, NFTA_SET_ELEM_DATA);
    let chain = data.and_then(|data| attribute(attribute(data, NFTA_DATA_VERDICT)?, NFTA_VERDICT_CHAIN)).map(text);
    let comment = attribute(element, NFTA_SET_ELEM_USERDATA).and_then(comment);
    Some((port, chain.as_deref().and_then(service_of_chain).or(comment)))
}

/// nft's own type, length, value: type 0 is the comment.
pub(super) fn comment(userdata: &[u8]) -> Option<String> {
    let [kind, length, rest @ ..] = userdata else { return None };
    let (value, rest) = rest.split_at_checked(usize::from(*length))?;
    if *kind == 0 { Some(text(value)) } else { comment(rest) }
}

/// `external-42NFTM6N-ns2/svc2/tcp/p80` → `ns2/svc2:p80`
fn service_of_chain(chain: &str) -> Option<String> {
    let mut parts = chain.split('/');
    let namespace = parts.next()?.splitn(3, '-').nth(2)?;
    let name = parts.next()?;
    match parts.nth(1) {
        Some(port) if !port.is_empty() => Some(format!("{namespace}/{name}:{port}")),
        _ => Some(format!("{namespace}/{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_name_their_service() {
        let check = |chain, service: Option<&str>| assert_eq!(service_of_chain(chain).as_deref(), service, "{chain}");
        check("external-42NFTM6N-ns2/svc2/tcp/p80", Some("ns2/svc2:p80"));
        check("service-ULMVA6XW-kube-system/kubernetes-dashboard/tcp/", Some("kube-system/kubernetes-dashboard"));
        check("local-ULMVA6XW-a-b-c/d/tcp/e", Some("a-b-c/d:e"));
        check("reject-chain", None);
        check("", None);
    }

    #[test]
    fn comments_are_cut_out_of_the_userdata() {
        assert_eq!(comment(b"\x00\x0dns2/svc2:p80\x00").as_deref(), Some("ns2/svc2:p80"));
        assert_eq!(comment(b"\x00\xffshort"), None);
        assert_eq!(comment(b""), None);
    }
}
