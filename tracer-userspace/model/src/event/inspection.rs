//! The state of the namespace that owns a target, read when the target does not answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::{LinkState, Netns, Serving};

/// Links and listeners that are kept of a namespace: a pod has a handful, and who may unshare can make any number. Those that
/// carry the target's address, and those with the fullest queues, are always among them.
pub const MOST_LINKS: usize = 128;
pub const MOST_LISTENERS: usize = 128;

/// The state of a namespace at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    pub target: SocketAddr,
    /// The namespace from which it is reached.
    pub from: Netns,
    /// The namespace that owns its address; absent: none was found on this node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// Several have it, or another than the pods' list says: `netns` is absent.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ambiguous: bool,
    /// Its links, [`MOST_LINKS`] at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub links: Vec<LinkState>,
    /// Sockets that listen on the port, [`MOST_LISTENERS`] at most; absent: could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub listeners: Option<Vec<ListenerState>>,
    /// How often the cgroups of its processes were throttled, ever.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub throttled: Vec<Throttled>,
    /// Who serves it; read where an attempt is in trouble.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serving: Option<Box<Serving>>,
    /// What the namespace from which it is reached knows of the target's link-layer address, on the device that its route leads over.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub neighbour: Option<NeighbourState>,
    /// That namespace has no route to the address from which it is reached; absent: it has one, or that could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub no_way_back: Option<NoWayBack>,
    /// A rule of that namespace's routing sends what goes to the target elsewhere; absent: none does, or that could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stray_route: Option<StrayRoute>,
    /// Counters and settings of the namespace, by the kernel's own names (`ListenOverflows`, `tcp_syncookies`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub values: BTreeMap<String, u64>,
    /// The same of the namespace from which it is reached (`neighbours`, `gc_thresh3`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub node_values: BTreeMap<String, u64>,
}

impl Inspection {
    pub const fn nothing(from: Netns, target: SocketAddr) -> Self {
        Self {
            target,
            from,
            netns: None,
            ambiguous: false,
            links: Vec::new(),
            listeners: None,
            throttled: Vec::new(),
            serving: None,
            neighbour: None,
            no_way_back: None,
            stray_route: None,
            values: BTreeMap::new(),
            node_values: BTreeMap::new(),
        }
    }
}

/// A listening socket as sock_diag has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerState {
    pub addr: SocketAddr,
    /// Connections that wait to be accepted (`sk_ack_backlog`).
    pub waiting: u32,
    /// How many may (`sk_max_ack_backlog`).
    pub backlog: u32,
    /// Handshakes that are half done. Counted where SYN cookies are off: elsewhere their number decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_open: Option<u32>,
}

/// What a connect to an address came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoWayBack {
    pub to: IpAddr,
    /// Its positive errno.
    pub errno: i32,
}

/// A route to a target that does not lead to the device behind which it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayRoute {
    pub device: String,
    /// The device behind which the target is.
    pub pod_device: String,
    /// The routing table: none of those that every node has.
    pub table: u32,
    /// The rule that chose the table; absent: it was not found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<RoutingRule>,
}

/// A rule that chooses a routing table (`ip rule`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingRule {
    /// Its priority: the lowest goes first.
    pub priority: u32,
    /// Only packets from there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<String>,
    /// Only packets to there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
}

/// How often a cgroup was held back for want of CPU quota (`cpu.stat`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    pub cgroup: String,
    /// Periods in which it was.
    pub times: u64,
    /// How long in all, microseconds.
    pub micros: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourState {
    pub addr: IpAddr,
    /// `NUD_*` without the prefix, in lower case: `reachable`, `incomplete`, `failed`.
    pub state: String,
    pub ifindex: u32,
}
