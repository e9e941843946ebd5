//! Observations of the node: namespaces, links, NodePorts, settings.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tracer_common::names::Hook;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Actor, Netns, NetnsOpKind, Prefix};

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
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    pub netns: Netns,
    /// Its `net_cookie` (5.14 and later): unlike the inode number, the kernel never reuses it.
    pub cookie: Option<u64>,
    pub links: Vec<LinkState>,
}

/// A task entered or made a namespace, or one ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetnsOp {
    /// The task; its `netns` is the one that it leaves.
    pub actor: Actor,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
    /// The namespace that it enters or makes, or that ends.
    pub netns: Netns,
    pub op: NetnsOpKind,
}

impl NetnsOp {
    /// The namespace ended or was just made: earlier observations with its number are of another one.
    pub const fn begins_again(&self) -> bool {
        matches!(self.op, NetnsOpKind::Unshare | NetnsOpKind::Clone | NetnsOpKind::End)
    }
}

/// A process set a link up or down.
#[skip_serializing_none]
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
    pub exe: Option<String>,
    /// If the process is a network plugin: the path of the namespace that the container runtime gave it.
    pub cni_netns: Option<String>,
    pub hook: Hook,
}

/// A link, as netlink shows it.
#[skip_serializing_none]
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
    pub running: Option<bool>,
    /// Index of its other end (veth, netkit), in that end's namespace. Older recordings have the device under a link here.
    pub peer_ifindex: Option<u32>,
    /// Index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// The device under it; only for a macvlan or ipvlan of a target.
    pub parent: Option<ParentLink>,
    /// What it is if it has no other end (`bridge`, `bond`); only for a link of a target.
    pub kind: Option<String>,
    /// Its own reverse-path filter, `net.ipv4.conf.LINK.rp_filter`; absent in older recordings, and if it has no IPv4.
    pub rp_filter: Option<u32>,
}

/// The device under a macvlan or ipvlan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// The kind of the upper link: `macvlan`, `macvtap`, `ipvlan`, `ipvtap`.
    pub kind: String,
    /// Its index, in its own namespace.
    pub ifindex: u32,
    /// Its namespace is the one from which the target is reached.
    pub is_of_prober: bool,
}

impl LinkState {
    /// One of its subnets contains the address.
    pub fn covers(&self, addr: IpAddr) -> bool {
        self.prefix_of(addr).is_some()
    }

    /// The length of the prefix of its smallest subnet that contains the address.
    pub fn prefix_of(&self, addr: IpAddr) -> Option<u8> {
        self.subnets().filter(|subnet| subnet.holds(addr)).map(|subnet| subnet.len).max()
    }

    /// Its addresses with their prefixes.
    pub fn subnets(&self) -> impl Iterator<Item = Prefix> {
        self.addrs.iter().zip(&self.prefixes).map(|(own, len)| Prefix { addr: *own, len: *len })
    }
}

/// The kind of the NodePort tables.
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

display_as_serialized!(ProxyMode);

/// The NodePorts of one table of the node; replaces the ones before of that table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePorts {
    pub netns: Netns,
    pub mode: ProxyMode,
    pub ports: Vec<NodePort>,
    /// Virtual services of IPVS without a backend that takes new connections, on any address.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub without_backend: Vec<SocketAddr>,
    /// External addresses of Services that are the node's own, with `namespace/name[:port]` (iptables, nftables).
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub external: BTreeMap<SocketAddr, String>,
}

impl NodePorts {
    /// A table of which only the NodePorts are known.
    pub const fn new(netns: Netns, mode: ProxyMode, ports: Vec<NodePort>) -> Self {
        Self { netns, mode, ports, without_backend: Vec::new(), external: BTreeMap::new() }
    }
}

#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePort {
    pub port: u16,
    /// Addresses of the node with this NodePort: IPVS has one virtual service for each. An unspecified one is any address
    /// of its family (iptables, nftables). Empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// `namespace/name[:port]` of the Service, from the table (iptables comments, nftables maps) or a list of Services.
    pub service: Option<String>,
    /// Backends (IPVS); empty: none, or the table does not have them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub backends: Vec<SocketAddr>,
    /// A process listens on it, as kube-proxy does before kubernetes#108496: connect() does not choose the port.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub listened: bool,
}

impl NodePort {
    pub fn is_at(&self, addr: IpAddr) -> bool {
        let is_any = |own: &IpAddr| own.is_unspecified() && own.is_ipv4() == addr.is_ipv4();
        self.addrs.is_empty() || self.addrs.iter().any(|own| *own == addr || is_any(own))
    }

    /// Whether it is at addresses of this family.
    pub fn is_of_family(&self, v4: bool) -> bool {
        self.addrs.is_empty() || self.addrs.iter().any(|own| own.is_ipv4() == v4)
    }
}

/// Settings of the node that verdicts quote.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// `net.ipv4.ip_local_port_range` of the node's namespace.
    pub local_port_range: Option<(u16, u16)>,
    /// `net.ipv4.ip_local_reserved_ports`, as inclusive ranges.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reserved_ports: Vec<(u16, u16)>,
    /// Other settings, by sysctl name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub sysctls: BTreeMap<String, String>,
    /// Wall clock minus boot clock, nanoseconds. It changes only when the wall clock is set.
    pub boot_to_wall_ns: Option<i64>,
}

impl NodeSettings {
    pub fn is_reserved(&self, port: u16) -> bool {
        self.reserved_ports.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Whether connect() takes this port, see [`preferred`](super::port_ranges::preferred).
    pub fn is_preferred(&self, port: u16) -> bool {
        let is_in = |(first, last): (u16, u16)| (first..=last).contains(&port) && (port - first).is_multiple_of(2);
        self.local_port_range.is_some_and(is_in) && !self.is_reserved(port)
    }
}
