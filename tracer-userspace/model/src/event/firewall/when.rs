//! The conditions of a firewall rule on a TCP packet, as far as tracer understands them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::event::Flow;

/// The protocol of all packets that tracer matches.
const TCP: u8 = 6;
/// TCP flags of a SYN, without and with ECN (RFC 3168).
const SYN: [u8; 2] = [0x02, 0xc2];

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Prefix {
    pub addr: IpAddr,
    /// How many bits are the same.
    pub len: u8,
}

impl Prefix {
    pub fn holds(self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(own), IpAddr::V4(addr)) => same_bits(own.to_bits().into(), addr.to_bits().into(), 32, self.len),
            (IpAddr::V6(own), IpAddr::V6(addr)) => same_bits(own.to_bits(), addr.to_bits(), 128, self.len),
            _ => false,
        }
    }

    /// Each address of this prefix is also in the other one.
    fn is_within(self, other: Self) -> bool {
        self.len >= other.len && other.holds(self.addr)
    }
}

fn same_bits(left: u128, right: u128, width: u32, len: u8) -> bool {
    (left ^ right).checked_shr(width.saturating_sub(u32::from(len))).unwrap_or(0) == 0
}

/// The simple conditions of a rule and of the way to it. Conditions that tracer does not understand are left out.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct When {
    /// Only IPv6 (true) or only IPv4 (false).
    pub v6: Option<bool>,
    /// Protocol above IP.
    pub protocol: Option<u8>,
    pub src: Option<Prefix>,
    pub dst: Option<Prefix>,
    pub sport: Option<u16>,
    pub dport: Option<u16>,
    /// Only packets that conntrack found invalid.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub invalid: bool,
    /// Only packets that begin a connection.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub new: bool,
    /// Only packets that came in on a device that does not lead back to their source. There may be more conditions
    /// (marks).
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub rpf: bool,
    /// Only packets that meet none of these conditions.
    #[serde(skip_serializing_if = "Except::is_empty", default)]
    pub not: Except,
}

/// Conditions that a packet must not meet. Conditions that tracer does not understand are left out.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Except {
    pub protocol: Option<u8>,
    pub src: Option<Prefix>,
    pub dst: Option<Prefix>,
    pub sport: Option<u16>,
    pub dport: Option<u16>,
    /// The TCP flags of a SYN.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub syn: bool,
}

impl Except {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Each TCP packet of this flow meets one of these conditions.
    fn excludes(&self, flow: Flow) -> bool {
        self.protocol == Some(TCP)
            || self.src.is_some_and(|src| src.holds(flow.src.ip()))
            || self.dst.is_some_and(|dst| dst.holds(flow.dst.ip()))
            || self.sport.is_some_and(|port| port == flow.src.port())
            || self.dport.is_some_and(|port| port == flow.dst.port())
    }

    /// The union of both exceptions, and whether the result is exact.
    fn and(self, more: Self) -> (Self, bool) {
        let mut whole = true;
        let joint = Self {
            protocol: either(self.protocol, more.protocol, &mut whole),
            src: wider(self.src, more.src, &mut whole),
            dst: wider(self.dst, more.dst, &mut whole),
            sport: either(self.sport, more.sport, &mut whole),
            dport: either(self.dport, more.dport, &mut whole),
            syn: self.syn || more.syn,
        };
        (joint, whole)
    }

    fn common(self, other: Self) -> Self {
        Self {
            protocol: same(self.protocol, other.protocol),
            src: same(self.src, other.src),
            dst: same(self.dst, other.dst),
            sport: same(self.sport, other.sport),
            dport: same(self.dport, other.dport),
            syn: self.syn && other.syn,
        }
    }
}

/// The value that is there. Of two different values the second is kept, which is not exact.
fn either<T: PartialEq>(left: Option<T>, right: Option<T>, whole: &mut bool) -> Option<T> {
    *whole &= left.is_none() || right.is_none() || left == right;
    right.or(left)
}

fn narrower(left: Option<Prefix>, right: Option<Prefix>, whole: &mut bool) -> Option<Prefix> {
    match (left, right) {
        (Some(inner), Some(outer)) | (Some(outer), Some(inner)) if inner.is_within(outer) => Some(inner),
        _ => either(left, right, whole),
    }
}

fn wider(left: Option<Prefix>, right: Option<Prefix>, whole: &mut bool) -> Option<Prefix> {
    match (left, right) {
        (Some(inner), Some(outer)) | (Some(outer), Some(inner)) if inner.is_within(outer) => Some(outer),
        _ => either(left, right, whole),
    }
}

fn same<T: PartialEq>(left: Option<T>, right: Option<T>) -> Option<T> {
    if left == right { left } else { None }
}

impl When {
    /// A TCP packet of this flow can meet the conditions; port 0 is any port.
    pub fn allows(&self, flow: Flow) -> bool {
        self.v6.is_none_or(|v6| v6 == flow.dst.is_ipv6())
            && self.protocol.is_none_or(|protocol| protocol == TCP)
            && self.src.is_none_or(|src| src.holds(flow.src.ip()))
            && self.dst.is_none_or(|dst| dst.holds(flow.dst.ip()))
            && self.sport.is_none_or(|port| port == flow.src.port() || flow.src.port() == 0)
            && self.dport.is_none_or(|port| port == flow.dst.port() || flow.dst.port() == 0)
            && !self.not.excludes(flow)
    }

    /// The conditions of both, and whether the result is exact. conntrack can also take a packet that is no SYN as new,
    /// when it picks up a running connection: [`new`](Self::new) does not mean that.
    pub fn and(self, more: Self) -> (Self, bool) {
        let (not, mut whole) = self.not.and(more.not);
        let new = self.new || more.new;
        whole &= !(new && not.syn);
        let joint = Self {
            v6: either(self.v6, more.v6, &mut whole),
            protocol: either(self.protocol, more.protocol, &mut whole),
            src: narrower(self.src, more.src, &mut whole),
            dst: narrower(self.dst, more.dst, &mut whole),
            sport: either(self.sport, more.sport, &mut whole),
            dport: either(self.dport, more.dport, &mut whole),
            invalid: self.invalid || more.invalid,
            new: new && !not.syn,
            rpf: self.rpf || more.rpf,
            not,
        };
        (joint, whole)
    }

    /// Adds a condition, or its opposite; returns false if this type cannot express that.
    pub fn take(&mut self, one: Self, inverted: bool) -> bool {
        let Self { protocol, src, dst, sport, dport, .. } = one;
        let not = Except { protocol, src, dst, sport, dport, syn: false };
        let more = if inverted { Self { not, ..Self::default() } } else { one };
        let (joint, whole) = self.and(more);
        *self = joint;
        whole && more != Self::default()
    }

    /// Adds the condition that the TCP flags under `mask` are `value`, or are not. Kept is only whether no SYN meets
    /// it.
    pub fn take_flags(&mut self, mask: u8, value: u8, inverted: bool) {
        self.not.syn |= SYN.iter().all(|syn| (syn & mask == value) == inverted);
    }

    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            v6: same(self.v6, other.v6),
            protocol: same(self.protocol, other.protocol),
            src: same(self.src, other.src),
            dst: same(self.dst, other.dst),
            sport: same(self.sport, other.sport),
            dport: same(self.dport, other.dport),
            invalid: self.invalid && other.invalid,
            new: self.new && other.new,
            rpf: self.rpf && other.rpf,
            not: self.not.common(other.not),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_testing::address;

    fn prefix(addr: &str, len: u8) -> Prefix {
        Prefix { addr: address(addr), len }
    }

    fn from(addr: &str, len: u8) -> When {
        When { src: Some(prefix(addr, len)), ..When::default() }
    }

    fn but(one: When) -> When {
        let mut when = When::default();
        assert!(when.take(one, true), "{one:?}");
        when
    }

    fn flow(src: &str, dst: &str) -> Flow {
        Flow { src: address(src), dst: address(dst) }
    }

    #[test]
    fn a_prefix_holds_what_begins_with_it() {
        assert!(prefix("10.88.0.0", 16).holds(address("10.88.3.4")));
        assert!(!prefix("10.88.0.0", 16).holds(address("10.89.3.4")));
        assert!(prefix("0.0.0.0", 0).holds(address("10.89.3.4")));
        assert!(!prefix("0.0.0.0", 0).holds(address("::1")));
        assert!(prefix("fd00::", 8).holds(address("fd00::1")));
        assert!(!prefix("fd00::2", 128).holds(address("fd00::1")));
    }

    #[test]
    fn a_packet_that_meets_an_exception_is_not_allowed() {
        let (local, remote) = (flow("127.0.0.1:40000", "10.88.0.2:80"), flow("10.88.0.1:40000", "10.88.0.2:80"));
        let when = but(from("127.0.0.0", 8));
        assert!(when.allows(remote) && !when.allows(local));
        let port = |sport, dport| When { sport, dport, ..When::default() };
        assert!(!but(port(None, Some(80))).allows(remote) && but(port(None, Some(22))).allows(remote));
        assert!(!but(port(Some(40000), None)).allows(remote) && but(port(Some(80), None)).allows(remote));
        let any_port = flow("10.88.0.1:0", "10.88.0.2:80");
        assert!(but(port(Some(40000), None)).allows(any_port), "some client port is another");
        let protocol = |number| but(When { protocol: Some(number), ..When::default() });
        assert!(!protocol(TCP).allows(remote) && protocol(17).allows(remote));
    }

    #[test]
    fn a_condition_that_cannot_be_expressed_is_not_added() {
        let mut when = When::default();
        assert!(!when.take(When { invalid: true, ..When::default() }, true));
        assert!(!when.take(When { v6: Some(true), ..When::default() }, true));
        assert_eq!(when, When::default());
        assert!(when.take(from("10.0.0.0", 8), true));
        assert!(!when.take(from("127.0.0.0", 8), true), "there is room for one");
    }

    #[test]
    fn of_two_nested_prefixes_the_exact_one_is_kept() {
        let (wide, narrow, other) = (from("10.0.0.0", 8), from("10.88.0.0", 16), from("192.0.2.0", 24));
        assert_eq!([wide.and(narrow), narrow.and(wide)], [(narrow, true); 2]);
        assert_eq!([but(wide).and(but(narrow)), but(narrow).and(but(wide))], [(but(wide), true); 2]);
        assert_eq!((wide.and(other).1, but(wide).and(but(other)).1), (false, false));
        assert!(wide.and(but(narrow)).1);
        assert_eq!(but(wide).common(but(wide)), but(wide));
        assert_eq!(but(wide).common(wide), When::default());
    }

    #[test]
    fn flags_that_no_syn_has_exclude_syns() {
        let flags = |mask, value, inverted| {
            let mut when = When::default();
            when.take_flags(mask, value, inverted);
            when.not.syn
        };
        assert!(!flags(0x17, 0x02, false), "--syn");
        assert!(flags(0x17, 0x02, true), "! --syn");
        assert!(flags(0x3f, 0, false), "--tcp-flags ALL NONE");
        assert!(!flags(0x02, 0, true), "tcp flags & syn != 0");
        assert!(!flags(0, 0, false), "no flags");
        assert!(!flags(0xff, 0xc2, false) && !flags(0xff, 0x02, true), "ECN");
    }

    /// `! --syn -m conntrack --ctstate NEW`: connections that conntrack picks up while they run.
    #[test]
    fn new_without_a_syn_is_not_kept_as_new() {
        let new = When { new: true, ..When::default() };
        let mut without = When::default();
        without.take_flags(0x17, 0x02, true);
        assert_eq!(without.and(new), (without, false));
        assert_eq!(new.and(When::default()), (new, true));
    }

    #[test]
    fn old_recordings_are_read_and_written_alike() {
        let old = r#"{"v6":false,"dst":{"addr":"127.0.0.0","len":8}}"#;
        let when: When = serde_json::from_str(old).expect("conditions");
        assert_eq!(when.not, Except::default());
        assert_eq!(serde_json::to_string(&when).expect("text"), old);
        let excepted = but(from("127.0.0.0", 8));
        let text = serde_json::to_string(&excepted).expect("text");
        assert_eq!(text, r#"{"not":{"src":{"addr":"127.0.0.0","len":8}}}"#);
        assert_eq!(serde_json::from_str::<When>(&text).expect("conditions"), excepted);
    }
}
