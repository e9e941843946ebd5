//! Facts of the node: namespaces, links, NodePorts, settings.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tracer_common::names::Hook;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Actor, Netns, NetnsOpKind};

/// An ancestor of a culprit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ancestor {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
}

/// A task opened a file that names a network namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetnsOpen {
    pub actor: Actor,
    pub path: String,
}

/// State of all links of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    pub netns: Netns,
    /// Its `net_cookie` (5.14 and later): unlike the number it is never used again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cookie: Option<u64>,
    pub links: Vec<LinkState>,
}

/// A task entered or made a namespace, or one ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetnsOp {
    /// Who; its `netns` is where it came from.
    pub actor: Actor,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
    /// Where to.
    pub netns: Netns,
    pub op: NetnsOpKind,
}

impl NetnsOp {
    /// What was known of the namespace's number is over: it ended, or was made just now.
    pub const fn begins_again(&self) -> bool {
        matches!(self.op, NetnsOpKind::Unshare | NetnsOpKind::Clone | NetnsOpKind::End)
    }
}

/// Somebody set a link up or down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkChange {
    pub netns: Netns,
    pub ifindex: u32,
    pub name: String,
    pub up: bool,
    pub actor: Actor,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    /// The namespace's path that a container runtime gave it, if it is a network plugin.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cni_netns: Option<String>,
    pub hook: Hook,
}

/// A link as netlink has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    pub ifindex: u32,
    pub name: String,
    /// IFF_UP.
    pub up: bool,
    /// IFF_LOOPBACK.
    pub loopback: bool,
    pub addrs: Vec<IpAddr>,
    /// Length of each address's prefix, in the same order; empty if not read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub prefixes: Vec<u8>,
    /// IFF_RUNNING: it has a carrier.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub running: Option<bool>,
    /// Index of its other end (veth), in the namespace where that is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer_ifindex: Option<u32>,
    /// The device that it is a part of: of a target's macvlan or ipvlan only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<ParentLink>,
}

/// The device under a macvlan or ipvlan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// What is made of it: `macvlan`, `macvtap`, `ipvlan`, `ipvtap`.
    pub kind: String,
    /// Its index, in its own namespace.
    pub ifindex: u32,
    /// That is the namespace from which the target is reached.
    pub is_of_prober: bool,
}

impl LinkState {
    /// One of its subnets holds the address.
    pub fn covers(&self, addr: IpAddr) -> bool {
        self.addrs.iter().zip(&self.prefixes).any(|(own, len)| same_subnet(*own, addr, *len))
    }
}

/// The first `len` bits are the same.
pub fn same_subnet(left: IpAddr, right: IpAddr, len: u8) -> bool {
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0);
    left.is_ipv4() == right.is_ipv4() && bits(left) & mask == bits(right) & mask
}

/// Who keeps the NodePort tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyMode {
    /// IPVS virtual services.
    Ipvs,
    /// iptables chains (legacy or nft backend).
    Iptables,
    /// kube-proxy's nftables mode.
    Nftables,
}

/// The NodePorts of the node, as one of its tables has them; replaces what that table reported before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePorts {
    pub netns: Netns,
    pub mode: ProxyMode,
    pub ports: Vec<NodePort>,
    /// Virtual services of IPVS that have no backend, on whichever address.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub without_backend: Vec<SocketAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePort {
    pub port: u16,
    /// Addresses of the node it is served on (IPVS has one virtual service for each); empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// `namespace/name[:port]` of the Service, where the table carries it (iptables comments, nftables maps) or a Service list does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Backends (IPVS); empty: none, or the table does not carry them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub backends: Vec<SocketAddr>,
    /// A process listens on it, as kube-proxy does before kubernetes#108496: connect() passes over the port.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub listened: bool,
}

/// Settings of the node that verdicts quote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// `net.ipv4.ip_local_port_range` of the node's namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub local_port_range: Option<(u16, u16)>,
    /// `net.ipv4.ip_local_reserved_ports`, as inclusive ranges.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reserved_ports: Vec<(u16, u16)>,
    /// Anything else, by sysctl name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub sysctls: BTreeMap<String, String>,
    /// Wall clock minus boot clock, nanoseconds; the same number until somebody sets the wall clock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub boot_to_wall_ns: Option<i64>,
}
