//! Packets of tracked connections that the kernel drops.

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_current_pid_tgid, generated::bpf_get_stack},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tracer_common::{
    ABSENT32, STACK_DEPTH,
    conn::Via,
    drop::PacketDrop,
    events::Kind,
    limit::sort,
    names::Hook,
    packet::{FLAG_RST, FLAG_SYN, Packet},
};

use crate::{
    actor,
    emit::{Urgency, emit_as},
    flows,
    kernel::{Skb, Task, parse},
    limit,
    maps::global,
    sockets,
    track::{self, Match},
};

/// A packet is dropped, with the reason.
///
/// proto v6.1   include/trace/events/skb.h  TP_PROTO(struct sk_buff *skb, void *location, enum skb_drop_reason reason)
/// proto v6.12  include/trace/events/skb.h  TP_PROTO(struct sk_buff *skb, void *location, enum skb_drop_reason reason, struct sock *rx_sk)
///
/// Kernels with two arguments refuse to attach it.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub fn kfree_skb(ctx: RawTracePointContext) -> i32 {
    let reason = ctx.arg::<u64>(2) as u32;
    if reason != global!(ENUMS.skb_consumed) && reason != global!(ENUMS.queue_purge) {
        try_kfree_skb(&ctx, reason);
    }
    0
}

/// The same for kernels before 5.17.
///
/// proto v5.10  include/trace/events/skb.h  TP_PROTO(struct sk_buff *skb, void *location)
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub fn kfree_skb_2(ctx: RawTracePointContext) -> i32 {
    try_kfree_skb(&ctx, ABSENT32);
    0
}

#[inline(always)]
fn try_kfree_skb(ctx: &RawTracePointContext, reason: u32) {
    let (skb, location) = (Skb(ctx.arg(0)), ctx.arg::<u64>(1));
    let mut packet = Packet::EMPTY;
    if !parse(skb, &mut packet) {
        return;
    }
    let Some(found) = find(skb, &packet) else { return };
    let netns = skb.netns();
    let sort = sort(Kind::Drop, netns, packet.tuple.sport, packet.flags, location ^ u64::from(reason) << 40);
    if !limit::allows_of(found.conn, sort, Hook::KfreeSkb) {
        return;
    }
    emit_as::<PacketDrop>(urgency(&packet), Hook::KfreeSkb, |event| {
        event.conn = found.conn;
        event.via = found.via as u16;
        event.tuple = packet.tuple;
        event.tcp_flags = packet.flags;
        event.location = location;
        event.reason = reason;
        event.netns = netns;
        event.nfct = skb.nfct();
        describe_device(skb, event);
        event.pid_tgid = bpf_get_current_pid_tgid();
        actor::leader_comm(Task::current(), &mut event.comm);
        // A shorter stack leaves the rest 0.
        unsafe { bpf_get_stack(ctx.as_ptr(), (&raw mut event.stack).cast(), (STACK_DEPTH * 8) as u32, 0) };
    });
}

/// The last segment of a good connection is dropped, too, when its socket is already closed. By then, what failed was
/// decided, or waits for a timer.
#[inline(always)]
fn urgency(packet: &Packet) -> Urgency {
    let ended = || flows::has_ended(&packet.tuple) || flows::has_ended(&packet.tuple.reversed());
    let is_last = packet.flags & (FLAG_SYN | FLAG_RST) == 0 && ended();
    if is_last { Urgency::Later } else { Urgency::Now }
}

#[inline(always)]
fn find(skb: Skb, packet: &Packet) -> Option<Match> {
    let sk = skb.sock();
    if sk.exists()
        && let Some(conn) = sockets::by_socket(sk)
    {
        return Some(Match { conn: conn.conn, via: Via::Socket });
    }
    // The kernel drops the last segment of nearly every connection, which finds its socket in TIME_WAIT.
    if track::may_be_tracked(packet) { track::of_tracked_packet(skb, packet) } else { None }
}

#[inline(always)]
fn describe_device(skb: Skb, event: &mut PacketDrop) {
    let dev = skb.dev();
    event.if_flags = ABSENT32;
    if dev.exists() {
        event.ifindex = dev.ifindex();
        event.if_flags = dev.flags();
        dev.name(&mut event.ifname);
    }
}
