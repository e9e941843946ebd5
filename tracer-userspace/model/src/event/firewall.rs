//! The rules that can drop or reject packets in a network namespace. tracer reads them when netfilter drops a packet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

pub mod path;
mod when;

use super::{Flow, Netns};
use crate::shell;
use path::Path;
pub use when::{Except, Prefix, When};

/// Every rule and policy of a namespace that can drop or reject a TCP packet, in the order in which one hook evaluates
/// them.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewall {
    pub netns: Netns,
    /// The rules; policies that drop are among them.
    pub rules: Vec<FirewallRule>,
    /// There are more rules than were read: a rule that is not listed may exist.
    #[serde(default)]
    pub truncated: bool,
    /// There were too many rules for one answer: only the rules that can match this flow are listed.
    pub only_for: Option<Flow>,
    /// The rules on the way of the queried flow; absent: too many, or not known.
    pub path: Option<Path>,
    /// The connection table, if the namespace has one.
    pub conntrack: Option<Conntrack>,
    /// When the reading began, CLOCK_BOOTTIME nanoseconds. It contains all packets before.
    pub began_boot_ns: Option<u64>,
    /// CPU time of the reading, nanoseconds.
    #[serde(default)]
    pub took_ns: u64,
    /// What could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problems: Vec<String>,
}

impl Firewall {
    /// The reading of a namespace without rules.
    pub const fn empty(netns: Netns) -> Self {
        Self {
            netns,
            rules: Vec::new(),
            truncated: false,
            only_for: None,
            path: None,
            conntrack: None,
            began_boot_ns: None,
            took_ns: 0,
            problems: Vec::new(),
        }
    }

    /// Every rule that can match this flow is listed.
    pub fn is_complete_for(&self, flow: Flow) -> bool {
        !self.truncated && self.problems.is_empty() && self.only_for.is_none_or(|only| only.covers(flow))
    }
}

/// The connection table of a namespace. A counter is absent where the kernel shows none.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conntrack {
    /// Entries (`nf_conntrack_count`).
    pub count: u64,
    /// The limit (`nf_conntrack_max`).
    pub max: u64,
    /// Packets dropped because there was no entry for them (`drop` of all CPUs).
    pub drop: Option<u64>,
    /// Entries removed early to make room (`early_drop`).
    pub early_drop: Option<u64>,
    /// Packets found invalid (`invalid`).
    pub invalid: Option<u64>,
}

impl Conntrack {
    /// The table is full or nearly full: a few entries may have ended since the drop.
    pub const fn is_full(self) -> bool {
        self.max > 0 && self.count.saturating_add(self.max / 20) >= self.max
    }
}

/// The kind of firewall that has a rule.
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

impl Backend {
    /// The iptables command for the rules of this family; `None`: only nft shows them.
    pub fn iptables(self, family: &str) -> Option<&'static str> {
        match (self, family) {
            (Self::Nftables, _) => None,
            (Self::IptablesNft, "ip6") => Some("ip6tables-nft"),
            (Self::IptablesNft, _) => Some("iptables-nft"),
            (Self::IptablesLegacy, "ip6") => Some("ip6tables-legacy"),
            (Self::IptablesLegacy, _) => Some("iptables-legacy"),
        }
    }

    /// The command that lists a chain with the handles of its rules (legacy ip_tables: their numbers).
    pub fn list_chain(self, family: &str, table: &str, chain: &str) -> String {
        let (table, chain) = (shell::table(table), shell::chain(chain));
        match self.iptables(family).filter(|_| self == Self::IptablesLegacy) {
            Some(iptables) => format!("{iptables} -t {table} -vnL {chain} --line-numbers"),
            None => format!("nft -a list chain {family} {table} {chain}"),
        }
    }
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

/// Why a rule takes only a part of the packets that meet its other conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// A rate (`limit`, hashlimit).
    Rate,
    /// A number of connections (`ct count`, connlimit).
    Connections,
    /// Chance, or each n-th packet (`numgen`, statistic).
    Share,
}

/// One rule, or the policy of a base chain.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallRule {
    pub backend: Backend,
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: String,
    pub table: String,
    pub chain: String,
    /// The base chain that leads to it, if there is only one.
    pub base: Option<String>,
    /// Netfilter hooks that lead to it: `INPUT`, `OUTPUT`, `FORWARD`, `PREROUTING`, `POSTROUTING`,
    /// `INGRESS`, `EGRESS`; `BRIDGE` for all of the bridge family.
    pub hooks: Vec<String>,
    pub verdict: RuleVerdict,
    /// The policy of the chain, not a rule.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub policy: bool,
    /// Handle (nftables) or number in the chain (legacy), as the tools print it.
    pub handle: Option<u64>,
    pub comment: Option<String>,
    /// Its conditions, as far as tracer understands them.
    #[serde(default)]
    pub when: When,
    /// The rule and the way to it have no other conditions: a packet that meets `when` and gets this far ends here.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub exact: bool,
    /// No earlier rule in its base chain accepts packets: a packet that meets `when` and is not dropped before gets
    /// here.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub first: bool,
    /// Priority of its base chain, if there is only one.
    pub priority: Option<i32>,
    /// A limit decides which packets it takes: its own, that of the way to it, or that of a rule before it that lets the
    /// other packets pass.
    pub limit: Option<Limit>,
    /// Packets it counted, if it has a counter.
    pub packets: Option<u64>,
    /// The port of its transparent proxy (TPROXY; 0: the packet's own port). Such a rule drops a packet only if no
    /// process listens there with IP_TRANSPARENT.
    pub proxy_port: Option<u16>,
}

impl FirewallRule {
    /// A packet of this flow can match the rule.
    pub fn may_match(&self, flow: Flow) -> bool {
        let family = match self.family.as_str() {
            "ip" => !flow.dst.is_ipv6(),
            "ip6" => flow.dst.is_ipv6(),
            _ => true,
        };
        family && self.when.allows(flow)
    }
}
