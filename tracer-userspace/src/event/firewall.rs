//! What can drop or reject packets in a network namespace, read when netfilter dropped one there.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Flow, Netns};

/// The protocol of every packet that is asked about.
const TCP: u8 = 6;

/// Every rule and policy of a namespace that can drop or reject a TCP packet, in the order in which
/// one hook would come to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewall {
    /// The namespace.
    pub netns: Netns,
    /// The rules; policies that drop are among them.
    pub rules: Vec<FirewallRule>,
    /// There are more than were read: what is not listed is not excluded.
    #[serde(default)]
    pub truncated: bool,
    /// There were too many to hand over: only those are listed that can match this flow.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub only_for: Option<Flow>,
    /// The connection table, where the namespace has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub conntrack: Option<Conntrack>,
    /// When the reading began, CLOCK_BOOTTIME nanoseconds: what happened before is in it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub began_boot_ns: Option<u64>,
    /// CPU time of the reading, nanoseconds.
    #[serde(default)]
    pub took_ns: u64,
    /// What could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<String>,
}

impl Firewall {
    /// Every rule that can match this flow is listed.
    #[must_use]
    pub fn is_complete_for(&self, flow: Flow) -> bool {
        !self.truncated && self.problems.is_empty() && self.only_for.is_none_or(|only| only == any_client(flow))
    }
}

/// The flow with any port of the client, which has the higher one: attempts to one target differ in nothing else.
#[must_use]
pub fn any_client(mut flow: Flow) -> Flow {
    let client = if flow.src.port() > flow.dst.port() { &mut flow.src } else { &mut flow.dst };
    client.set_port(0);
    flow
}

/// The connection table of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// Entries (`nf_conntrack_count`).
    pub count: u64,
    /// How many there may be (`nf_conntrack_max`).
    pub max: u64,
    /// Packets dropped for want of an entry (`drop` of `/proc/net/stat/nf_conntrack`, all CPUs).
    pub drop: u64,
    /// Entries thrown out early to make room (`early_drop`).
    pub early_drop: u64,
    /// Packets found invalid (`invalid`).
    pub invalid: u64,
}

/// Who holds a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// A native nftables rule.
    Nftables,
    /// iptables over nftables.
    IptablesNft,
    /// The old ip_tables.
    IptablesLegacy,
}

/// What a rule does to a packet that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleVerdict {
    /// Drops it.
    Drop,
    /// Answers with a RST or an ICMP error and drops it.
    Reject,
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    /// The first of them.
    pub addr: IpAddr,
    /// How many bits are the same.
    pub len: u8,
}

impl Prefix {
    /// The address begins with these bits.
    #[must_use]
    pub fn holds(self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(own), IpAddr::V4(addr)) => same_bits(own.to_bits().into(), addr.to_bits().into(), 32, self.len),
            (IpAddr::V6(own), IpAddr::V6(addr)) => same_bits(own.to_bits(), addr.to_bits(), 128, self.len),
            _ => false,
        }
    }
}

fn same_bits(left: u128, right: u128, width: u32, len: u8) -> bool {
    (left ^ right).checked_shr(width.saturating_sub(u32::from(len))).unwrap_or(0) == 0
}

/// What is plainly compared on the way to a rule and in it. What is not understood is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct When {
    /// Only IPv6 (true) or only IPv4 (false).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub v6: Option<bool>,
    /// Protocol above IP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<u8>,
    /// Source addresses.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub src: Option<Prefix>,
    /// Destination addresses.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dst: Option<Prefix>,
    /// Source port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sport: Option<u16>,
    /// Destination port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dport: Option<u16>,
    /// Only packets that conntrack found invalid.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub invalid: bool,
    /// Only packets that begin a connection.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub new: bool,
}

impl When {
    /// A TCP packet of this flow can meet it; port 0 is any port.
    #[must_use]
    pub fn allows(&self, flow: Flow) -> bool {
        self.v6.is_none_or(|v6| v6 == flow.dst.is_ipv6())
            && self.protocol.is_none_or(|protocol| protocol == TCP)
            && self.src.is_none_or(|src| src.holds(flow.src.ip()))
            && self.dst.is_none_or(|dst| dst.holds(flow.dst.ip()))
            && self.sport.is_none_or(|port| port == flow.src.port() || flow.src.port() == 0)
            && self.dport.is_none_or(|port| port == flow.dst.port() || flow.dst.port() == 0)
    }

    /// Both must hold.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        Self {
            v6: self.v6.or(more.v6),
            protocol: self.protocol.or(more.protocol),
            src: more.src.or(self.src),
            dst: more.dst.or(self.dst),
            sport: more.sport.or(self.sport),
            dport: more.dport.or(self.dport),
            invalid: self.invalid || more.invalid,
            new: self.new || more.new,
        }
    }

    /// What both ask for.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        fn same<T: PartialEq>(left: Option<T>, right: Option<T>) -> Option<T> {
            if left == right { left } else { None }
        }
        Self {
            v6: same(self.v6, other.v6),
            protocol: same(self.protocol, other.protocol),
            src: same(self.src, other.src),
            dst: same(self.dst, other.dst),
            sport: same(self.sport, other.sport),
            dport: same(self.dport, other.dport),
            invalid: self.invalid && other.invalid,
            new: self.new && other.new,
        }
    }
}

/// One rule, or the policy of a base chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallRule {
    /// Who holds it.
    pub backend: Backend,
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: String,
    /// Table.
    pub table: String,
    /// Chain that holds the rule.
    pub chain: String,
    /// The base chain from which it is reached, if it is only one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base: Option<String>,
    /// Netfilter hooks from which it is reached: `INPUT`, `OUTPUT`, `FORWARD`, `PREROUTING`, `POSTROUTING`,
    /// `INGRESS`, `EGRESS`; `BRIDGE` for all of the bridge family.
    pub hooks: Vec<String>,
    /// What it does.
    pub verdict: RuleVerdict,
    /// It is the policy of the chain, not a rule.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub policy: bool,
    /// Handle (nftables) or number in the chain (legacy), as the tools print it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handle: Option<u64>,
    /// Its comment.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comment: Option<String>,
    /// What it asks for, as far as that is understood.
    #[serde(default)]
    pub when: When,
    /// Nothing else is asked for, in it and on the way to it: a packet that meets `when` and gets that far ends here.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub exact: bool,
    /// Nothing that comes before it in its base chain lets a packet go: what it does not take was never there.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub first: bool,
    /// Priority of its base chain, if that is only one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<i32>,
    /// Packets it counted, where it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets: Option<u64>,
}

impl FirewallRule {
    /// A packet of this flow can come to it and match.
    #[must_use]
    pub fn may_match(&self, flow: Flow) -> bool {
        let family = match self.family.as_str() {
            "ip" => !flow.dst.is_ipv6(),
            "ip6" => flow.dst.is_ipv6(),
            _ => true,
        };
        family && self.when.allows(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_what_begins_with_it() {
        let prefix = |addr: &str, len| Prefix { addr: addr.parse().expect("address"), len };
        let addr = |addr: &str| -> IpAddr { addr.parse().expect("address") };
        assert!(prefix("10.88.0.0", 16).holds(addr("10.88.3.4")));
        assert!(!prefix("10.88.0.0", 16).holds(addr("10.89.3.4")));
        assert!(prefix("0.0.0.0", 0).holds(addr("10.89.3.4")));
        assert!(!prefix("0.0.0.0", 0).holds(addr("::1")));
        assert!(prefix("fd00::", 8).holds(addr("fd00::1")));
        assert!(!prefix("fd00::2", 128).holds(addr("fd00::1")));
    }
}
