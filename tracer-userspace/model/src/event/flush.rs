//! Rules and routes of the node that a process removed in bulk.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Ancestor, Netns, Prefix};

/// How many removals are a bulk. The end of a pod removes one route, or two rules.
pub const BULK: usize = 3;

/// Rules or routes that a process removed within a few seconds, and that were not added again within one second.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesFlushed {
    pub netns: Netns,
    /// When the first one was removed, CLOCK_BOOTTIME nanoseconds.
    pub since_boot_ns: u64,
    pub count: usize,
    /// There were more.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub incomplete: bool,
    pub rules: FlushedRules,
    /// The process that removed them; absent: it had closed its socket before tracer read it.
    pub by: Option<Remover>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushedRules {
    /// Rules that choose a routing table, as far as they are kept.
    Rules(Vec<RemovedRoute>),
    /// Routes, as far as they are kept.
    Routes(Vec<RemovedRoute>),
    /// Rules of a table of nf_tables, which iptables-nft uses, too.
    Nftables {
        /// `ip`, `ip6`, `inet`, …
        family: String,
        table: String,
        /// The table was removed or made again. Otherwise, base chains of it lost all their rules.
        replaced: bool,
    },
}

impl FlushedRules {
    /// The routing rules or routes.
    pub fn of_routing(&self) -> &[RemovedRoute] {
        match self {
            Self::Rules(gone) | Self::Routes(gone) => gone,
            Self::Nftables { .. } => &[],
        }
    }
}

/// A removed rule or route: the packets that it applied to.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RemovedRoute {
    pub v6: bool,
    /// Only packets from there.
    pub from: Option<Prefix>,
    /// Only packets to there.
    pub to: Option<Prefix>,
    /// It had another condition, which is not kept.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub narrower: bool,
    /// Its routing table.
    pub table: u32,
    /// Priority of a rule: the lowest goes first.
    pub priority: Option<u32>,
}

impl RemovedRoute {
    /// It surely applied to packets from `src` to `dst`.
    pub fn applied_to(&self, src: IpAddr, dst: IpAddr) -> bool {
        let holds = |prefix: Option<Prefix>, addr| prefix.is_none_or(|it| it.holds(addr));
        self.v6 == dst.is_ipv6() && !self.narrower && holds(self.from, src) && holds(self.to, dst)
    }

    /// A route for this address alone, usually a pod's.
    pub fn leads_only_to(&self, dst: IpAddr) -> bool {
        self.from.is_none() && !self.narrower && self.only_address() == Some(dst)
    }

    /// The address, if it applied to only one: usually a pod's.
    pub fn only_address(&self) -> Option<IpAddr> {
        let is_whole = |prefix: &Prefix| prefix.len == if prefix.addr.is_ipv4() { 32 } else { 128 };
        [self.to, self.from].into_iter().flatten().find(is_whole).map(|prefix| prefix.addr)
    }
}

/// A process that removed rules or routes, as `/proc` showed it then.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remover {
    pub pid: u32,
    pub comm: String,
    /// Its executable; absent: the process had ended.
    pub exe: Option<String>,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
}
