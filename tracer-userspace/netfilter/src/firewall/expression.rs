//! Parses one rule of nf_tables from its expressions: the conditions and the verdict (linux/netfilter/nf_tables.h).

use std::net::{Ipv4Addr, Ipv6Addr};

use libc::{
    NF_ACCEPT, NF_DROP, NF_QUEUE, NFT_CMP_EQ, NFT_CMP_GT, NFT_CMP_GTE, NFT_CMP_LT, NFT_CMP_LTE, NFT_CMP_NEQ,
    NFT_CT_STATE, NFT_GOTO, NFT_JUMP, NFT_LOOKUP_F_INV, NFT_META_L4PROTO, NFT_META_NFPROTO,
    NFT_PAYLOAD_NETWORK_HEADER as NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER as TRANSPORT_HEADER, NFT_RETURN, c_int,
};

use super::super::nft::{
    NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_RULE_CHAIN, NFTA_RULE_TABLE, NFTA_VERDICT_CHAIN, comment, number,
};
use super::ruleset::{Key, Rule, Test, Then};
use super::xtables::{self, add_match, limit};
use tracer_model::event::path::FlagTest;
use tracer_model::event::path::state::{INVALID, NEW};
use tracer_model::event::{Limit, Prefix, When};
use tracer_node::netlink::{attribute, attributes, field, text};

const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_USERDATA: u16 = 7;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;
const NFT_FIB_RESULT_OIFNAME: c_int = 2;
/// `NFTA_FIB_F_SADDR`: the expression looks up the source address.
const NFT_FIB_OF_SOURCE: c_int = 1;
const NFTA_COUNTER_PACKETS: u16 = 2;
const NFTA_DYNSET_SET_NAME: u16 = 1;
const NFTA_DYNSET_EXPR: u16 = 7;
const IP6: u8 = 10;

impl Key {
    /// The conditions of a key of a map, if tracer models each of its parts. The kernel pads parts to four bytes.
    pub(super) fn conditions(parts: &[Self], mut key: &[u8]) -> Option<When> {
        let mut when = When::default();
        for part in parts {
            let size = part.size()?;
            part.set(&mut when, key.get(..size)?, None).then_some(())?;
            key = key.get(size.next_multiple_of(4)..).unwrap_or_default();
        }
        Some(when)
    }

    pub(super) const fn size(self) -> Option<usize> {
        match self {
            Self::Family | Self::Protocol | Self::TcpFlags => Some(1),
            Self::SourcePort | Self::DestinationPort => Some(2),
            Self::SourceAddress(size) | Self::DestinationAddress(size) => Some(size),
            Self::ConntrackState => Some(4),
            Self::ReversePath | Self::Share | Self::Other => None,
        }
    }

    /// Adds the condition "equals `value` under `mask`"; false if `When` cannot express it.
    fn set(self, when: &mut When, value: &[u8], mask: Option<&[u8]>) -> bool {
        match self {
            Self::Family if mask.is_none() => when.v6 = value.first().map(|family| *family == IP6),
            Self::Protocol if mask.is_none() => when.protocol = value.first().copied(),
            Self::SourcePort if mask.is_none() => when.sport = field(value, 0).map(u16::from_be_bytes),
            Self::DestinationPort if mask.is_none() => when.dport = field(value, 0).map(u16::from_be_bytes),
            Self::SourceAddress(_) => return prefix(value, mask).map(|it| when.src = Some(it)).is_some(),
            Self::DestinationAddress(_) => return prefix(value, mask).map(|it| when.dst = Some(it)).is_some(),
            Self::ConntrackState if state(value) == Some(INVALID.into()) => when.invalid = true,
            Self::ConntrackState if state(value) == Some(NEW.into()) => when.new = true,
            _ => return false,
        }
        true
    }

    /// Whether its bytes compare in the order of the values.
    const fn is_ordered(self) -> bool {
        matches!(
            self,
            Self::Protocol
                | Self::SourcePort
                | Self::DestinationPort
                | Self::SourceAddress(_)
                | Self::DestinationAddress(_)
        )
    }

    /// The test for a comparison that `When` cannot express.
    fn test(self, operator: Option<c_int>, value: &[u8], mask: Option<&[u8]>) -> Test {
        match (self, operator, mask) {
            (Self::Share, ..) => Test::Limit(Limit::Share),
            (Self::ConntrackState, ..) => states(operator, value, mask).map_or(Test::Unknown, Test::State),
            (key, Some(operator), None) if key.is_ordered() => range_of(key, operator, value),
            _ => Test::Unknown,
        }
    }

    /// Adds the condition "does not equal `value` under `mask`"; false if `When` cannot express it.
    fn exclude(self, when: &mut When, value: &[u8], mask: Option<&[u8]>) -> bool {
        let mut one = When::default();
        self.set(&mut one, value, mask) && when.take(one, true)
    }
}

/// The states that match a comparison: nft masks the state, then compares the bits with zero; or it compares a single state.
fn states(operator: Option<c_int>, value: &[u8], mask: Option<&[u8]>) -> Option<u8> {
    let bits = |bytes: &[u8]| state(bytes).and_then(|bits| u8::try_from(bits).ok());
    match (operator?, bits(value)?, mask.map(bits)) {
        (NFT_CMP_EQ, 0, Some(mask)) => Some(!mask?),
        (NFT_CMP_NEQ, 0, Some(mask)) => mask,
        (NFT_CMP_EQ, value, None) if value.count_ones() == 1 => Some(value),
        (NFT_CMP_NEQ, value, None) if value.count_ones() == 1 => Some(!value),
        _ => None,
    }
}

fn range_of(key: Key, operator: c_int, value: &[u8]) -> Test {
    let (lowest, highest) = (vec![0; value.len()], vec![0xff; value.len()]);
    let value = value.to_vec();
    let (from, to, inverted) = match operator {
        NFT_CMP_LT => (value, highest, true),
        NFT_CMP_LTE => (lowest, value, false),
        NFT_CMP_GT => (lowest, value, true),
        NFT_CMP_GTE => (value, highest, false),
        NFT_CMP_NEQ => (value.clone(), value, true),
        _ => return Test::Unknown,
    };
    Test::Range { key, from, to, inverted }
}

fn state(value: &[u8]) -> Option<u32> {
    field(value, 0).map(u32::from_ne_bytes)
}

/// The prefix of a compared address: nft loads only the bytes that a prefix covers, or masks the other bits.
pub(super) fn prefix(value: &[u8], mask: Option<&[u8]>) -> Option<Prefix> {
    let addr = match value.len() {
        0 => return None,
        1..=4 => Ipv4Addr::from(padded::<4>(value)?).into(),
        _ => Ipv6Addr::from(padded::<16>(value)?).into(),
    };
    let bits = value.len() as u32 * 8;
    let len = mask.map_or(Some(bits), contiguous).filter(|len| *len <= bits)?;
    Some(Prefix { addr, len: len as u8 })
}

/// Absent if it is longer.
fn padded<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    bytes.get_mut(..value.len())?.copy_from_slice(value);
    Some(bytes)
}

/// The number of leading ones, if no other bit is set.
fn contiguous(mask: &[u8]) -> Option<u32> {
    let mask = u128::from_be_bytes(padded(mask)?);
    (mask.count_ones() == mask.leading_ones()).then_some(mask.count_ones())
}

/// A rule with its place.
pub(super) struct Parsed {
    pub table: String,
    pub chain: String,
    pub rule: Rule,
    /// A set to which the rule adds an element of the packet, or from which it removes one.
    pub writes: Option<String>,
}

pub(super) fn parse_rule(family: u8, attrs: &[u8]) -> Option<Parsed> {
    let handle = attribute(attrs, NFTA_RULE_HANDLE).and_then(|it| field(it, 0)).map(u64::from_be_bytes);
    let when = When { v6: (family == 2 || family == IP6).then_some(family == IP6), ..When::default() };
    let mut parser = Parser { rule: Rule { handle, when, ..Rule::default() }, ..Parser::default() };
    for (_, expression) in attributes(attribute(attrs, NFTA_RULE_EXPRESSIONS)?) {
        let data = attribute(expression, 2).unwrap_or_default();
        parser.add(attribute(expression, 1).map(bytes_of)?, data);
    }
    if parser.counted != parser.conditions() {
        // The counter comes before a condition, and counts packets that do not meet it. It still shows that none came.
        parser.rule.packets = parser.rule.packets.filter(|it| *it == 0);
    }
    if let Some(comment) = attribute(attrs, NFTA_RULE_USERDATA).and_then(comment) {
        parser.rule.comment = Some(comment);
    }
    Some(Parsed {
        table: text(attribute(attrs, NFTA_RULE_TABLE)?),
        chain: text(attribute(attrs, NFTA_RULE_CHAIN)?),
        rule: parser.rule,
        writes: parser.writes,
    })
}

/// A name without its NUL.
fn bytes_of(name: &[u8]) -> &[u8] {
    name.strip_suffix(b"\0").unwrap_or(name)
}

#[derive(Default)]
struct Parser {
    rule: Rule,
    /// Fields that were loaded and not compared yet.
    keys: Vec<Key>,
    mask: Option<Vec<u8>>,
    /// The field that was compared last, if it was not masked: nft compares both ends of a range one after the other.
    compared: Option<Key>,
    /// The conditions before the counter.
    counted: (When, usize),
    writes: Option<String>,
}

impl Parser {
    fn conditions(&self) -> (When, usize) {
        (self.rule.when, self.rule.rest.len())
    }

    fn add(&mut self, name: &[u8], data: &[u8]) {
        match name {
            b"meta" => self.load(if attribute(data, 1).is_some() { meta(data) } else { return }),
            b"payload" => self.load(self.payload(data)),
            b"ct" if attribute(data, 1).is_some() => self.load(conntrack(data)),
            b"bitwise" => self.apply_mask(data),
            b"cmp" => self.compare(data),
            b"lookup" => self.lookup(data),
            b"range" => self.compare_range(data),
            b"match" => self.xt_match(data),
            b"target" => self.target(data),
            b"reject" => self.rule.then = Then::Reject,
            b"immediate" => self.immediate(data),
            b"counter" => (self.rule.packets, self.counted) = (packets(data), self.conditions()),
            b"log" | b"notrack" | b"last" => {}
            b"nat" | b"masq" | b"redir" | b"queue" | b"fwd" | b"synproxy" => self.rule.then = Then::Accept,
            b"fib" => self.load(fib(data)),
            b"numgen" => self.load(Key::Share),
            b"rt" | b"socket" | b"hash" | b"exthdr" | b"osf" | b"xfrm" | b"tunnel" | b"ct" => {
                self.load(Key::Other);
            }
            b"dynset" => {
                self.writes = attribute(data, NFTA_DYNSET_SET_NAME).map(text);
                let own = attribute(data, NFTA_DYNSET_EXPR).and_then(|it| attribute(it, 1)).map(bytes_of);
                self.rule.rest.push(own.map_or(Test::Unknown, limit));
            }
            // Limits, and conditions that tracer does not model: quotas. Also flow_offload: the rule ends there for each
            // packet that cannot be offloaded, such as a SYN (`nft_flow_offload_eval`).
            _ => self.rule.rest.push(limit(name)),
        }
    }

    fn load(&mut self, key: Key) {
        self.end_mask();
        self.compared = None;
        self.keys.push(key);
    }

    /// The masked bits of the last field become part of a key. tracer does not model such a part.
    fn end_mask(&mut self) {
        if let (Some(_), Some(last)) = (self.mask.take(), self.keys.last_mut()) {
            *last = Key::Other;
        }
    }

    /// A bitwise operation that only masks is kept. A shifted value, or one with flipped bits, is no field of the packet.
    fn apply_mask(&mut self, data: &[u8]) {
        let value = |attr| attribute(data, attr).and_then(|it| attribute(it, NFTA_DATA_VALUE));
        self.mask = value(NFTA_BITWISE_MASK).map(<[u8]>::to_vec);
        let flips = value(NFTA_BITWISE_XOR).is_some_and(|bits| bits.iter().any(|byte| *byte != 0));
        if let (true, Some(last)) = (flips || self.mask.is_none(), self.keys.last_mut()) {
            *last = Key::Other;
        }
    }

    fn payload(&self, data: &[u8]) -> Key {
        let (base, offset, length) = (number(data, 2), number(data, 3), number(data, 4));
        let size = length.unwrap_or_default() as usize;
        match (base, offset, size, self.rule.when.v6) {
            (Some(TRANSPORT_HEADER), Some(0), 2, _) => Key::SourcePort,
            (Some(TRANSPORT_HEADER), Some(2), 2, _) => Key::DestinationPort,
            (Some(TRANSPORT_HEADER), Some(13), 1, _) => Key::TcpFlags,
            (Some(NETWORK_HEADER), Some(9), 1, Some(false)) | (Some(NETWORK_HEADER), Some(6), 1, Some(true)) => {
                Key::Protocol
            }
            (Some(NETWORK_HEADER), Some(12), 1..=4, Some(false)) => Key::SourceAddress(size),
            (Some(NETWORK_HEADER), Some(16), 1..=4, Some(false)) => Key::DestinationAddress(size),
            (Some(NETWORK_HEADER), Some(8), 5..=16, Some(true)) => Key::SourceAddress(size),
            (Some(NETWORK_HEADER), Some(24), 5..=16, Some(true)) => Key::DestinationAddress(size),
            _ => Key::Other,
        }
    }

    fn compare(&mut self, data: &[u8]) {
        let key = self.keys.pop().or(self.compared).unwrap_or(Key::Other);
        self.keys.clear();
        let mask = self.mask.take();
        self.compared = mask.is_none().then_some(key);
        let value = attribute(data, 3).and_then(|it| attribute(it, NFTA_DATA_VALUE)).unwrap_or_default();
        let operator = number(data, 2);
        if let (Key::TcpFlags, [value], Some(NFT_CMP_EQ | NFT_CMP_NEQ)) = (key, value, operator) {
            let mask = mask.as_deref().and_then(<[u8]>::first).copied().unwrap_or(u8::MAX);
            self.rule.take_flags(FlagTest { mask, value: *value, inverted: operator == Some(NFT_CMP_NEQ) });
            return;
        }
        self.rule.when.rpf |=
            key == Key::ReversePath && operator == Some(NFT_CMP_EQ) && value.iter().all(|byte| *byte == 0);
        let mut one = When::default();
        if key.is_ordered()
            && matches!(operator, Some(NFT_CMP_EQ | NFT_CMP_NEQ))
            && key.set(&mut one, value, mask.as_deref())
        {
            // `When` has room for one condition on each field: the earlier one may be lost.
            if !self.rule.when.take(one, operator == Some(NFT_CMP_NEQ)) {
                self.rule.rest.push(Test::Unknown);
            }
            return;
        }
        let understood = match operator {
            Some(NFT_CMP_EQ) => key.set(&mut self.rule.when, value, mask.as_deref()),
            // `ct state invalid`: nft masks the bit and compares it with zero.
            Some(NFT_CMP_NEQ) if key == Key::ConntrackState && value.iter().all(|byte| *byte == 0) => {
                key.set(&mut self.rule.when, mask.as_deref().unwrap_or_default(), None)
            }
            Some(NFT_CMP_NEQ) => key.exclude(&mut self.rule.when, value, mask.as_deref()),
            _ => false,
        };
        if !understood {
            self.rule.rest.push(key.test(operator, value, mask.as_deref()));
        }
    }

    fn compare_range(&mut self, data: &[u8]) {
        let key = self.keys.pop().unwrap_or(Key::Other);
        self.keys.clear();
        let masked = self.mask.take().is_some();
        let value = |attr| attribute(data, attr).and_then(|it| attribute(it, NFTA_DATA_VALUE)).map(<[u8]>::to_vec);
        let test = match (value(3), value(4), number(data, 2)) {
            (Some(from), Some(to), Some(operator @ (NFT_CMP_EQ | NFT_CMP_NEQ))) if key.is_ordered() && !masked => {
                Test::Range { key, from, to, inverted: operator == NFT_CMP_NEQ }
            }
            _ => key.test(None, &[], None),
        };
        self.rule.rest.push(test);
    }

    /// A lookup with a verdict is a map, and one in a set is a condition. tracer does not model a lookup that yields data.
    fn lookup(&mut self, data: &[u8]) {
        self.end_mask();
        let keys = std::mem::take(&mut self.keys);
        match (number(data, 3), attribute(data, 1).map(text)) {
            (Some(0), Some(map)) => self.rule.then = Then::Map(map, keys),
            (None, Some(set)) => {
                let inverted = number(data, 5).is_some_and(|flags| flags & NFT_LOOKUP_F_INV != 0);
                self.rule.rest.push(Test::Set { keys, set, inverted });
            }
            _ => self.rule.rest.push(Test::Unknown),
        }
    }

    fn xt_match(&mut self, data: &[u8]) {
        match (attribute(data, 1), attribute(data, 3)) {
            (Some(name), Some(info)) => add_match(&mut self.rule, bytes_of(name), info),
            _ => self.rule.rest.push(Test::Unknown),
        }
    }

    fn target(&mut self, data: &[u8]) {
        let info = attribute(data, 3).unwrap_or_default();
        if let Some(then) = attribute(data, 1).and_then(|name| xtables::target(bytes_of(name), info)) {
            self.rule.then = then;
        }
    }

    fn immediate(&mut self, data: &[u8]) {
        if number(data, 1) == Some(0)
            && let Some(then) = attribute(data, 2).and_then(|it| attribute(it, NFTA_DATA_VERDICT)).and_then(verdict)
        {
            self.rule.then = then;
        }
    }
}

/// The effect of a verdict; `None` if the packet continues at the next rule. A queued packet continues at the next base chain
/// (`nf_reinject`).
pub(super) fn verdict(verdict: &[u8]) -> Option<Then> {
    let chain = || attribute(verdict, NFTA_VERDICT_CHAIN).map(text);
    match number(verdict, NFTA_VERDICT_CODE)? {
        NF_DROP => Some(Then::Drop),
        NF_ACCEPT | NF_QUEUE => Some(Then::Accept),
        NFT_JUMP => chain().map(Then::Jump),
        NFT_GOTO => chain().map(Then::Goto),
        NFT_RETURN => Some(Then::Return),
        _ => None,
    }
}

fn meta(data: &[u8]) -> Key {
    match number(data, 2) {
        Some(NFT_META_NFPROTO) => Key::Family,
        Some(NFT_META_L4PROTO) => Key::Protocol,
        _ => Key::Other,
    }
}

/// `fib saddr . iif oif missing` checks the reverse path.
fn fib(data: &[u8]) -> Key {
    let is_link = number(data, NFTA_FIB_RESULT).is_some_and(|result| (1..=NFT_FIB_RESULT_OIFNAME).contains(&result));
    let of_source = number(data, NFTA_FIB_FLAGS).is_some_and(|flags| flags & NFT_FIB_OF_SOURCE != 0);
    if is_link && of_source { Key::ReversePath } else { Key::Other }
}

fn conntrack(data: &[u8]) -> Key {
    if number(data, 2) == Some(NFT_CT_STATE) { Key::ConntrackState } else { Key::Other }
}

pub(super) fn packets(counter: &[u8]) -> Option<u64> {
    field(attribute(counter, NFTA_COUNTER_PACKETS)?, 0).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests;
