//! Single packets of a connection: dropped, answered with an ICMP error, taken by IPVS.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Actor, ConnId, Flow, IpvsOp, Netns, TcpFlags, Via};

/// A packet of a tracked flow was dropped.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacketDrop {
    pub conn: ConnId,
    /// Direction of the packet.
    pub flow: Flow,
    pub flags: TcpFlags,
    /// Kernel's reason by name, without the `SKB_DROP_REASON_` prefix; absent before 5.17.
    pub reason: Option<String>,
    /// Function that dropped it, if it was needed and kallsyms could be read.
    pub location: Option<String>,
    /// Its callers, nearest first, if they were needed and could be read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stack: Vec<String>,
    pub netns: Option<Netns>,
    pub device: Option<Device>,
    /// Its state in conntrack; absent if the kernel has no conntrack.
    pub tracked: Option<Tracked>,
    pub via: Via,
    /// The process that refused it, to which an NFQUEUE had given it; a rule after the queue looks the same.
    pub refused_by: Option<Actor>,
}

/// The state of a packet in conntrack (`skb->_nfct`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracked {
    /// The packet has an entry.
    Yes,
    /// The packet has no entry: it is invalid, or conntrack has not seen it.
    No,
    /// A rule took the packet out of tracking (`notrack`).
    Untracked,
}

impl PacketDrop {
    /// A copy of the packet, dropped by the stack of another host: a bridge floods packets for unknown addresses. It
    /// shows only the ports of the flow.
    pub fn is_copy(&self) -> bool {
        match (self.reason.as_deref(), self.location.as_deref()) {
            (Some(reason), _) => reason == "OTHERHOST",
            (None, Some(place)) => place.starts_with("ip_rcv_core") || place.starts_with("ip6_rcv_core"),
            (None, None) => false,
        }
    }

    /// A copy for a packet capture with a full buffer (net/packet/af_packet.c). The packet itself goes on. Older kernels
    /// have no such reason: there the function shows it.
    pub fn is_of_capture(&self) -> bool {
        let is_place = |place: &str| place.starts_with("packet_rcv") || place.starts_with("tpacket_rcv");
        match self.reason.as_deref() {
            Some("PACKET_SOCK_ERROR") => true,
            None | Some("NOT_SPECIFIED") => self.location.as_deref().is_some_and(is_place),
            Some(_) => false,
        }
    }
}

/// A network device as an event saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub ifindex: u32,
    pub name: String,
    /// IFF_UP was set.
    pub up: bool,
    /// IFF_LOOPBACK was set.
    pub loopback: bool,
}

/// An ICMP error was sent for a packet of a tracked flow.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Icmp {
    pub conn: ConnId,
    /// Direction of the packet that caused the error.
    pub flow: Flow,
    pub flags: TcpFlags,
    /// ICMPv6.
    pub v6: bool,
    pub icmp_type: u8,
    pub code: u8,
    pub netns: Option<Netns>,
}

/// IPVS took a packet of a tracked flow.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ipvs {
    pub conn: ConnId,
    /// Direction of the packet before translation.
    pub flow: Flow,
    pub flags: TcpFlags,
    pub op: IpvsOp,
    pub via: Via,
    pub netns: Option<Netns>,
}
