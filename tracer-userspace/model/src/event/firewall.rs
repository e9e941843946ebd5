//! What can drop or reject packets in a network namespace, read when netfilter dropped one there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod path;
mod when;

use super::{Flow, Netns};
use path::Path;
pub use when::{Except, Prefix, When};

/// Every rule and policy of a namespace that can drop or reject a TCP packet, in the order in which
/// one hook would come to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewall {
    pub netns: Netns,
    /// The rules; policies that drop are among them.
    pub rules: Vec<FirewallRule>,
    /// There are more than were read: what is not listed is not excluded.
    #[serde(default)]
    pub truncated: bool,
    /// There were too many to hand over: only those are listed that can match this flow.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub only_for: Option<Flow>,
    /// What the packets of the flow that was asked about come to; absent: that is too much, or not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<Path>,
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
    /// Of a namespace in which nothing was found.
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
        !self.truncated && self.problems.is_empty() && self.only_for.is_none_or(|only| only == any_client(flow))
    }
}

/// The flow with any port of the client, which has the higher one: attempts to one target differ in nothing else.
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

impl Conntrack {
    /// It had no room a moment ago: a few entries may have gone since.
    pub const fn is_full(self) -> bool {
        self.max > 0 && self.count.saturating_add(self.max / 20) >= self.max
    }
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

/// One rule, or the policy of a base chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallRule {
    pub backend: Backend,
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: String,
    pub table: String,
    pub chain: String,
    /// The base chain from which it is reached, if it is only one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base: Option<String>,
    /// Netfilter hooks from which it is reached: `INPUT`, `OUTPUT`, `FORWARD`, `PREROUTING`, `POSTROUTING`,
    /// `INGRESS`, `EGRESS`; `BRIDGE` for all of the bridge family.
    pub hooks: Vec<String>,
    pub verdict: RuleVerdict,
    /// It is the policy of the chain, not a rule.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub policy: bool,
    /// Handle (nftables) or number in the chain (legacy), as the tools print it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handle: Option<u64>,
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
    pub fn may_match(&self, flow: Flow) -> bool {
        let family = match self.family.as_str() {
            "ip" => !flow.dst.is_ipv6(),
            "ip6" => flow.dst.is_ipv6(),
            _ => true,
        };
        family && self.when.allows(flow)
    }
}
