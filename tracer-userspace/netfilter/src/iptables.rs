//! NodePorts from the chain KUBE-NODEPORTS of `nat` where iptables runs on nf_tables (iptables-nft).
//!
//! The port is a native comparison (iptables 1.8.8 and later) or the xtables match `tcp` (before); the
//! Service's name is in the match `comment`.

use std::io;

use super::nft::{FAMILIES, NFGENMSG, NFTA_DATA_VALUE, dump, open};
use super::{Named, NetfilterError, TCP};
use tracer_node::netlink::{attribute, attributes, consistent, field, text};

const NFT_MSG_GETRULE: u16 = 7;
pub(super) const NFTA_RULE_TABLE: u16 = 1;
pub(super) const NFTA_RULE_CHAIN: u16 = 2;
pub(super) const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_META_KEY: u16 = 2;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_MATCH_NAME: u16 = 1;
const NFTA_MATCH_INFO: u16 = 3;
const NFT_META_L4PROTO: u32 = 16;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// Protocol in the IPv4 header, next header in the IPv6 header; destination port in TCP.
const PROTOCOL_OFFSETS: [u32; 2] = [9, 6];
const DPORT_OFFSET: u32 = 2;

/// Reads the chain in the namespace of the calling thread.
pub(super) fn read() -> Result<Named, NetfilterError> {
    consistent(dump_chain).map_err(|source| NetfilterError::Nft { what: "the chain KUBE-NODEPORTS", source })
}

fn dump_chain() -> io::Result<Named> {
    let mut ports = Named::new();
    let Some(mut netlink) = open()? else { return Ok(ports) };
    for family in FAMILIES {
        let names = [(NFTA_RULE_TABLE, "nat"), (NFTA_RULE_CHAIN, "KUBE-NODEPORTS")];
        dump(&mut netlink, NFT_MSG_GETRULE, family, &names, |message| ports.extend(parse_rule(message)))?;
    }
    Ok(ports)
}

/// What the register holds that the next comparison reads.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Loaded {
    #[default]
    Other,
    Protocol,
    DestinationPort,
}

#[derive(Default)]
struct Rule {
    loaded: Loaded,
    protocol: Option<u8>,
    port: Option<u16>,
    comment: Option<String>,
}

fn parse_rule(message: &[u8]) -> Option<(u16, Option<String>)> {
    let mut rule = Rule::default();
    for (_, expression) in attributes(attribute(message.get(NFGENMSG..)?, NFTA_RULE_EXPRESSIONS)?) {
        let (name, data) = (attribute(expression, NFTA_EXPR_NAME), attribute(expression, NFTA_EXPR_DATA));
        if let (Some(name), Some(data)) = (name, data) {
            rule.add(&text(name), data);
        }
    }
    (rule.protocol == Some(TCP)).then_some(())?;
    Some((rule.port?, rule.comment))
}

impl Rule {
    fn add(&mut self, name: &str, data: &[u8]) {
        match name {
            "meta" if number(data, NFTA_META_KEY) == Some(NFT_META_L4PROTO) => self.loaded = Loaded::Protocol,
            "payload" => self.loaded = loaded_by_payload(data),
            "cmp" => self.compare(data),
            "match" => self.add_match(data),
            _ => self.loaded = Loaded::Other,
        }
    }

    fn compare(&mut self, data: &[u8]) {
        let equal = number(data, NFTA_CMP_OP) == Some(0);
        let value = attribute(data, NFTA_CMP_DATA).and_then(|data| attribute(data, NFTA_DATA_VALUE));
        if let (true, Some(value)) = (equal, value) {
            match self.loaded {
                Loaded::Protocol => self.protocol = value.first().copied(),
                Loaded::DestinationPort => self.port = field(value, 0).map(u16::from_be_bytes),
                Loaded::Other => {}
            }
        }
        self.loaded = Loaded::Other;
    }

    fn add_match(&mut self, data: &[u8]) {
        let Some(info) = attribute(data, NFTA_MATCH_INFO) else { return };
        match attribute(data, NFTA_MATCH_NAME).map(text).as_deref() {
            Some("comment") => self.comment = Some(text(info)),
            Some("tcp") => {
                self.protocol = Some(TCP);
                self.port = xt_tcp_port(info);
            }
            _ => {}
        }
    }
}

/// `struct xt_tcp`: source ports from and to, destination ports from and to, in host order.
pub(super) fn xt_tcp_port(info: &[u8]) -> Option<u16> {
    let (first, last) = (u16::from_ne_bytes(field(info, 4)?), u16::from_ne_bytes(field(info, 6)?));
    (first == last).then_some(first)
}

fn loaded_by_payload(data: &[u8]) -> Loaded {
    match (number(data, NFTA_PAYLOAD_BASE), number(data, NFTA_PAYLOAD_OFFSET)) {
        (Some(TRANSPORT_HEADER), Some(DPORT_OFFSET)) => Loaded::DestinationPort,
        (Some(NETWORK_HEADER), Some(offset)) if PROTOCOL_OFFSETS.contains(&offset) => Loaded::Protocol,
        _ => Loaded::Other,
    }
}

fn number(data: &[u8], attr: u16) -> Option<u32> {
    attribute(data, attr).and_then(|value| field(value, 0)).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nla(number: u16, value: &[u8]) -> Vec<u8> {
        let length = 4 + value.len();
        let mut bytes = (length as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&number.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(length.next_multiple_of(4), 0);
        bytes
    }

    fn expression(name: &[u8], data: &[Vec<u8>]) -> Vec<u8> {
        nla(1, &[nla(NFTA_EXPR_NAME, name), nla(NFTA_EXPR_DATA, &data.concat())].concat())
    }

    fn rule(expressions: &[Vec<u8>]) -> Vec<u8> {
        let mut message = vec![2, 0, 0, 0];
        message.extend(nla(NFTA_RULE_EXPRESSIONS, &expressions.concat()));
        message
    }

    #[test]
    fn the_tcp_match_of_older_iptables_is_read() {
        let mut info = vec![0, 0, 0xff, 0xff];
        info.extend_from_slice(&30080_u16.to_ne_bytes().repeat(2));
        info.resize(12, 0);
        let tcp = expression(b"match\0", &[nla(NFTA_MATCH_NAME, b"tcp\0"), nla(NFTA_MATCH_INFO, &info)]);
        let comment = expression(
            b"match\0",
            &[nla(NFTA_MATCH_NAME, b"comment\0"), nla(NFTA_MATCH_INFO, b"default/web:http\0\0")],
        );
        assert_eq!(parse_rule(&rule(&[comment, tcp])), Some((30080, Some("default/web:http".into()))));
    }

    #[test]
    fn a_rule_without_a_tcp_port_is_none() {
        assert_eq!(parse_rule(&rule(&[expression(b"counter\0", &[])])), None);
        assert_eq!(parse_rule(&[]), None);
    }
}
