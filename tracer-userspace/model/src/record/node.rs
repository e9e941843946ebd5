//! `node` records: events of the node itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Culprit, NetnsRef};
use crate::event::ProxyMode;

/// The body of a `node` record.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeBody {
    /// `link_down`, `link_up`, `netns_enter`, `firewall_block_began` (seen at watched connections; again after five
    /// minutes without), `node_ports_changed`, `port_pressure`, `rules_flushed`, `clock_step`.
    pub event: String,
    /// One sentence with the names and numbers of this event.
    pub summary: String,
    /// The process that did it.
    pub culprit: Option<Culprit>,
    /// The namespace in which it happened.
    pub netns: Option<NetnsRef>,
    /// The link.
    pub link: Option<LinkRef>,
    /// The processes that use up ephemeral ports, and the effect on the next connect.
    pub ports: Option<PortsBody>,
    /// How the NodePorts changed.
    pub node_ports: Option<NodePortsBody>,
}

/// How the NodePorts of one table changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodePortsBody {
    /// The table of kube-proxy in the kernel: `ipvs`, `iptables`, `nftables`.
    pub proxy_mode: ProxyMode,
    /// New NodePorts; five at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub added: Vec<NodePortRef>,
    /// How many are new.
    pub added_count: usize,
    /// Removed NodePorts; five at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub removed: Vec<NodePortRef>,
    /// How many were removed.
    pub removed_count: usize,
    /// How many there are now.
    pub count: usize,
}

/// A NodePort.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodePortRef {
    /// Its number.
    pub port: u16,
    /// `namespace/name[:port]` of its Service; absent if no source has it.
    pub service: Option<String>,
}

/// Ephemeral ports of the node, over a window of time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortsBody {
    /// Length of the window, seconds.
    pub window_s: f64,
    /// `net.ipv4.ip_local_port_range`; absent if it is not known.
    pub range: Option<[u16; 2]>,
    /// Ports that connect() takes for each destination: every second one of the range, minus `ip_local_reserved_ports`.
    pub usable: Option<u32>,
    /// TCP sockets of the node's namespace in use.
    pub in_use: Option<u64>,
    /// Sockets in TIME_WAIT.
    pub time_wait: Option<u64>,
    /// NodePorts of IPVS among the usable ports; absent without such a table. With other proxies such a collision is
    /// harmless.
    pub node_ports_in_range: Option<u32>,
    /// The chance that the next connect takes a NodePort of IPVS.
    pub chance_next_connect_hits: Option<f64>,
    /// The processes that connected from the namespace of this record, most connects first; ten at most.
    pub users: Vec<PortUserBody>,
}

impl PortsBody {
    /// No connect can take a NodePort, and the sockets in TIME_WAIT hold less than half of the ports. Ports count for
    /// each destination (`__inet_hash_connect`), so this assumes the worst case of one destination.
    pub fn is_healthy(&self) -> bool {
        let waiting = self.time_wait.unwrap_or_default();
        let has_room = self.usable.is_some_and(|usable| waiting * 2 < u64::from(usable));
        has_room && self.node_ports_in_range.unwrap_or_default() == 0
    }
}

/// Processes of one name that use up ephemeral ports.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortUserBody {
    /// The process with most connects.
    pub pid: u32,
    /// Their name.
    pub comm: String,
    /// How many there were in the window, if more than one.
    pub processes: Option<u32>,
    /// `namespace/name` of their pod, or its uid; absent for processes of the node.
    pub pod: Option<String>,
    /// Their network namespace.
    pub netns: Option<NetnsRef>,
    /// Connects in the window.
    pub connects: u64,
    /// Connects per second.
    pub connects_per_s: f64,
    /// Number of destinations (address and port), estimated; at most about a thousand.
    pub distinct_destinations: u64,
    /// Connects to their own address.
    pub self_connections: u64,
    /// Connections that they closed first: each leaves its port in TIME_WAIT for a minute.
    pub time_wait_left: u64,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkRef {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Up or down, after the event.
    pub up: bool,
}
