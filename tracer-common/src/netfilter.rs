//! What netfilter and IPVS did with a packet of a tracked connection.

use crate::{header::Header, tuple::Tuple};

/// The host answers a packet of a tracked flow with an ICMP error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Icmp {
    pub header: Header,
    pub conn: u64,
    /// Direction of the packet that the ICMP error is about.
    pub tuple: Tuple,
    /// Namespace, or [`crate::ABSENT32`].
    pub netns: u32,
    /// ICMP type (ICMPv6 types keep their own numbers).
    pub icmp_type: u8,
    pub code: u8,
    /// TCP flags of that packet.
    pub tcp_flags: u8,
    /// 1 for ICMPv6.
    pub v6: u8,
}

numbered! {
    pub enum IpvsOp {
        /// `ip_vs_nat_xmit`: the packet belongs to an IPVS connection and is sent to its backend.
        Translate = 1,
        /// `ip_vs_leave`: the packet matched a virtual service that has no backend.
        NoBackend = 2,
    }
}

/// IPVS took a packet of a tracked flow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ipvs {
    pub header: Header,
    pub conn: u64,
    /// Direction of the packet, before translation.
    pub tuple: Tuple,
    /// Namespace, or [`crate::ABSENT32`].
    pub netns: u32,
    /// An [`IpvsOp`].
    pub op: u16,
    pub tcp_flags: u8,
    /// A [`crate::conn::Via`].
    pub via: u8,
}
