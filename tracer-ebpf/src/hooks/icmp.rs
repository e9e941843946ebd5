//! ICMP errors that this host sends about packets of tracked connections.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_common::{events::Kind, limit::sort, names::Hook, netfilter::Icmp, packet::Packet};

use crate::{
    emit::emit,
    kernel::{Skb, parse},
    limit, track,
};

/// An ICMP error is sent about `skb`.
///
/// proto v6.1  include/trace/events/icmp.h  TP_PROTO(const struct sk_buff *skb, int type, int code)
#[raw_tracepoint(tracepoint = "icmp_send")]
pub fn icmp_send(ctx: RawTracePointContext) -> i32 {
    try_icmp_send(Hook::IcmpSend, Skb(ctx.arg(0)), ctx.arg(1), ctx.arg(2));
    0
}

function_hook! {
    /// The same for kernels without this tracepoint.
    ///
    /// proto v5.10  net/ipv4/icmp.c  void __icmp_send(struct sk_buff *skb_in, int type, int code, __be32 info, const struct ip_options *opt)
    fentry_icmp_send, kprobe_icmp_send: "__icmp_send",
    |skb: 0, icmp_type: 1, code: 2| try_icmp_send(Hook::IcmpSend, Skb(skb), icmp_type, code)
}

function_hook! {
    /// An ICMPv6 error is sent about `skb`.
    ///
    /// proto v5.10  net/ipv6/icmp.c  void icmp6_send(struct sk_buff *skb, u8 type, u8 code, __u32 info, const struct in6_addr *force_saddr)
    fentry_icmp6_send, kprobe_icmp6_send: "icmp6_send",
    |skb: 0, icmp_type: 1, code: 2| try_icmp_send(Hook::Icmp6Send, Skb(skb), icmp_type, code)
}

#[inline(always)]
fn try_icmp_send(hook: Hook, skb: Skb, icmp_type: u64, code: u64) {
    let mut packet = Packet::EMPTY;
    if !parse(skb, &mut packet) {
        return;
    }
    let Some(found) = track::of_tracked_packet(skb, &packet) else { return };
    let netns = skb.netns();
    let sort = sort(Kind::Icmp, netns, packet.tuple.sport, packet.flags, icmp_type << 32 | code << 2);
    if !limit::allows_of(found.conn, sort, hook) {
        return;
    }
    emit::<Icmp>(hook, |event| {
        event.conn = found.conn;
        event.tuple = packet.tuple;
        event.netns = netns;
        event.icmp_type = icmp_type as u8;
        event.code = code as u8;
        event.tcp_flags = packet.flags;
        event.v6 = u8::from(hook as u16 == Hook::Icmp6Send as u16);
    });
}
