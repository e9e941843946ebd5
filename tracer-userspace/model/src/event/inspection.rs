//! The state of the namespace that owns a target, read when the target does not answer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{LinkState, Netns, Serving};

/// How many links and listeners of a namespace are kept. A pod has a few, but a process that may unshare can make any
/// number. Links with the target's address and listeners with the fullest queues are always kept.
pub const MOST_LINKS: usize = 128;
pub const MOST_LISTENERS: usize = 128;

/// The state of a target's namespace at one time.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    pub target: SocketAddr,
    /// The namespace from which it is reached.
    pub from: Netns,
    /// The namespace that has its address; absent: none was found on this node.
    pub netns: Option<Netns>,
    /// Several namespaces have it, or another one than the list of pods says, or one that could not be read may have it:
    /// `netns` is absent.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub ambiguous: bool,
    /// It has the address and does not use it: duplicate address detection found another host that has it.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub duplicate: bool,
    /// It has the address and does not answer for it yet: duplicate address detection was not over.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub tentative: bool,
    /// Its links, [`MOST_LINKS`] at most. Each namespace has `lo`: empty means that they could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub links: Vec<LinkState>,
    /// Sockets that listen on the port, [`MOST_LISTENERS`] at most; absent: could not be read.
    pub listeners: Option<Vec<ListenerState>>,
    /// Where connection tracking of the target's namespace sends the attempt, which has no connection there yet.
    pub redirect: Option<Box<RedirectedListeners>>,
    /// How often the cgroups of its processes were throttled since they were made.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub throttled: Vec<Throttled>,
    /// The server; read when an attempt gets no answer.
    pub serving: Option<Box<Serving>>,
    /// The neighbour entry of the target in the namespace `from`, or that of its gateway, on the device of its route.
    pub neighbour: Option<NeighbourState>,
    /// Where an address translation of the namespace `from` sends the attempt, if nobody has answered for the neighbour
    /// entry that it needs then.
    pub translated: Option<Box<TranslatedTarget>>,
    /// The neighbour entry that the target's namespace needs for packets to the client, if nobody has answered for it.
    pub neighbour_back: Option<NeighbourState>,
    /// The neighbour entry of the target in the namespace `from`, if it has the link-layer address of no link of the
    /// target's namespace.
    pub wrong_neighbour: Option<WrongNeighbour>,
    /// The same of the client's entry in the target's namespace, and the links of `from`.
    pub wrong_neighbour_back: Option<WrongNeighbour>,
    /// The target's namespace has no route back to the client's address; absent: it has one, or that could not be read.
    pub no_way_back: Option<NoWayBack>,
    /// A route that sends packets for the target to another device; absent: there is none, or it could not be read.
    pub stray_route: Option<StrayRoute>,
    /// The target's namespace sends packets for the client out of another link than the target's; absent: it does not,
    /// or that could not be read.
    pub stray_way_back: Option<StrayRoute>,
    /// The queueing disciplines of the target's link and of its other end, if they are not the usual ones; read when an
    /// attempt gets no answer.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub qdiscs: Vec<LinkQdisc>,
    /// Counters and settings of the target's namespace, by the kernel's own names (`ListenOverflows`,
    /// `tcp_syncookies`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub values: BTreeMap<String, u64>,
    /// Counters and settings of the namespace `from` (`neighbours`, `gc_thresh3`).
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
            duplicate: false,
            tentative: false,
            links: Vec::new(),
            listeners: None,
            redirect: None,
            throttled: Vec::new(),
            serving: None,
            neighbour: None,
            translated: None,
            neighbour_back: None,
            wrong_neighbour: None,
            wrong_neighbour_back: None,
            no_way_back: None,
            stray_route: None,
            stray_way_back: None,
            qdiscs: Vec::new(),
            values: BTreeMap::new(),
            node_values: BTreeMap::new(),
        }
    }
}

/// A listening socket, as sock_diag shows it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerState {
    pub addr: SocketAddr,
    /// Connections that wait to be accepted (`sk_ack_backlog`).
    pub waiting: u32,
    /// How many may wait (`sk_max_ack_backlog`).
    pub backlog: u32,
    /// Half-open connections. Counted only if SYN cookies are off: otherwise their number does not matter.
    pub half_open: Option<u32>,
}

/// Where an address translation of the target's namespace sends connections to the target, such as to a sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectedListeners {
    /// An address of that namespace.
    pub to: SocketAddr,
    /// Sockets that listen on that port, [`MOST_LISTENERS`] at most.
    pub listeners: Vec<ListenerState>,
}

/// Another address to which packets for the target are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranslatedTarget {
    pub to: SocketAddr,
    /// The neighbour entry of that address, or of the gateway to it, on the device of its route.
    pub neighbour: NeighbourState,
}

/// The failed connect to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoWayBack {
    pub to: IpAddr,
    /// Positive errno.
    pub errno: i32,
}

/// A route between a prober and a target by another device than the one between them.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayRoute {
    pub device: String,
    /// The device that leads to the target; for the way back, the target's own.
    pub pod_device: String,
    /// The index of the bridge or bond that `pod_device` is a port of; absent for the way back, and if it is none.
    pub pod_bridge: Option<u32>,
    /// `device` is a bridge, and `pod_device` is a port of none.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub detached: bool,
    /// The routing table.
    pub table: u32,
    /// The rule that chose the table; absent: not found, or not needed.
    pub rule: Option<RoutingRule>,
}

/// A queueing discipline of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkQdisc {
    pub netns: Netns,
    pub device: String,
    /// `netem` and `tbf` are queues. `filters`: it has some; in older recordings `clsact` or `ingress`, which hold them.
    pub kind: String,
}

/// A rule that chooses a routing table (`ip rule`).
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingRule {
    /// The rule with the lowest priority goes first.
    pub priority: u32,
    /// Only packets from there.
    pub from: Option<String>,
    /// Only packets to there.
    pub to: Option<String>,
    /// Its conditions on protocol, ports and uid, as `ip rule` shows them: `ipproto tcp dport 8080`.
    pub ports: Option<String>,
}

/// How often a cgroup was throttled because its CPU quota was used up (`cpu.stat`).
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttled {
    pub cgroup: String,
    /// Periods in which it was throttled. A period counts once, on however many processors.
    pub times: u64,
    /// Total time, microseconds: the sum over processors (`unthrottle_cfs_rq`, kernel/sched/fair.c).
    pub micros: u64,
    /// The length of a period (`cpu.max`), microseconds. Absent in older recordings.
    pub period_us: Option<u64>,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourState {
    pub addr: IpAddr,
    /// `NUD_*` without the prefix, in lower case: `reachable`, `incomplete`, `failed`.
    pub state: String,
    pub ifindex: u32,
    /// How long ago somebody last answered for the address. The state stays `reachable` for up to 45 s, then `stale`.
    pub confirmed_ms_ago: Option<u64>,
}

/// A neighbour entry that sends frames to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongNeighbour {
    pub addr: IpAddr,
    /// The link-layer address of the entry.
    pub lladdr: String,
    /// The link that the frames should arrive on, in the other namespace.
    pub link: String,
    /// The link-layer address of that link.
    pub link_lladdr: String,
}

impl StrayRoute {
    /// A routing rule chose the table: it is none of those that every node has (`RT_TABLE_DEFAULT`, `RT_TABLE_MAIN`,
    /// `RT_TABLE_LOCAL`).
    pub const fn is_by_rule(&self) -> bool {
        !matches!(self.table, 253..=255)
    }
}

impl NeighbourState {
    /// Nobody answered for the address so far.
    pub fn is_unresolved(&self) -> bool {
        matches!(self.state.as_str(), "incomplete" | "failed")
    }
}

impl Inspection {
    /// The link of the target's namespace that has this address.
    pub fn link_with(&self, addr: IpAddr) -> Option<&LinkState> {
        self.links.iter().find(|link| link.addrs.contains(&addr))
    }

    /// The target's own neighbour entry, if nobody answered for it.
    pub fn unresolved_target(&self) -> Option<&NeighbourState> {
        self.neighbour.as_ref().filter(|entry| entry.addr == self.target.ip() && entry.is_unresolved())
    }

    /// The gateway to the target, if its neighbour entry was read.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.neighbour.as_ref().map(|entry| entry.addr).filter(|next| *next != self.target.ip())
    }
}
