//! IPVS handles a packet of a tracked connection.
//!
//! The functions are in a kernel module. Only kprobes are used, and they are attached when the module is loaded.

use aya_ebpf::{macros::kprobe, programs::ProbeContext};
use tracer_common::{
    events::Kind,
    limit::sort,
    names::Hook,
    netfilter::{Ipvs, IpvsOp},
    packet::Packet,
};

use crate::{
    emit::emit,
    kernel::{Skb, parse},
    limit, track,
};

/// A packet of an IPVS connection is about to be translated and sent to its backend.
///
/// proto v5.10  net/netfilter/ipvs/ip_vs_xmit.c  int ip_vs_nat_xmit(struct sk_buff *skb, struct ip_vs_conn *cp, struct ip_vs_protocol *pp, struct ip_vs_iphdr *ipvsh)
#[kprobe]
pub fn ip_vs_nat_xmit(ctx: ProbeContext) -> u32 {
    try_ipvs(Hook::IpvsNatXmit, Skb(ctx.arg(0).unwrap_or(0)), IpvsOp::Translate);
    0
}

/// The same for IPv6.
///
/// proto v5.10  net/netfilter/ipvs/ip_vs_xmit.c  int ip_vs_nat_xmit_v6(struct sk_buff *skb, struct ip_vs_conn *cp, struct ip_vs_protocol *pp, struct ip_vs_iphdr *ipvsh)
#[kprobe]
pub fn ip_vs_nat_xmit_v6(ctx: ProbeContext) -> u32 {
    try_ipvs(Hook::IpvsNatXmitV6, Skb(ctx.arg(0).unwrap_or(0)), IpvsOp::Translate);
    0
}

/// A packet matched a virtual service that has no backend.
///
/// proto v5.10  net/netfilter/ipvs/ip_vs_core.c  int ip_vs_leave(struct ip_vs_service *svc, struct sk_buff *skb, struct ip_vs_proto_data *pd, struct ip_vs_iphdr *iph)
#[kprobe]
pub fn ip_vs_leave(ctx: ProbeContext) -> u32 {
    try_ipvs(Hook::IpvsLeave, Skb(ctx.arg(1).unwrap_or(0)), IpvsOp::NoBackend);
    0
}

/// Reports only segments of the handshake: no other shows a collision, and IPVS may carry much traffic.
#[inline(always)]
fn try_ipvs(hook: Hook, skb: Skb, op: IpvsOp) {
    let mut packet = Packet::EMPTY;
    if !parse(skb, &mut packet) || !packet.is_syn() {
        return;
    }
    let Some(found) = track::by_packet(&packet.tuple) else { return };
    let netns = skb.netns();
    let sort = sort(Kind::Ipvs, netns, packet.tuple.sport, packet.flags, (op as u64) << 2);
    if !limit::allows_of(found.conn, sort, hook) {
        return;
    }
    emit::<Ipvs>(hook, |event| {
        event.conn = found.conn;
        event.via = found.via as u8;
        event.tuple = packet.tuple;
        event.netns = netns;
        event.op = op as u16;
        event.tcp_flags = packet.flags;
    });
}
