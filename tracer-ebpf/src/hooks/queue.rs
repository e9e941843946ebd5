//! SYNs of tracked connections that meet a listener without room: the kernel drops them without a trace.

use aya_ebpf::{
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};
use tracer_common::{
    listen::{Queue, QueueFull},
    names::Hook,
};

use crate::{
    emit::emit,
    kernel::{Net, Packet, Skb, Sock, parse, read},
    maps::global,
    track,
};

/// A SYN arrives at a listener.
///
/// proto v5.10  net/ipv4/tcp_input.c  int tcp_conn_request(struct request_sock_ops *rsk_ops, const struct tcp_request_sock_ops *af_ops, struct sock *sk, struct sk_buff *skb)
/// proto v7.2   net/ipv4/tcp_input.c  the same
#[fentry(function = "tcp_conn_request")]
pub fn fentry_tcp_conn_request(ctx: FEntryContext) -> i32 {
    try_conn_request(Sock(ctx.arg(2)), Skb(ctx.arg(3)));
    0
}

/// See [`fentry_tcp_conn_request`].
#[kprobe]
pub fn kprobe_tcp_conn_request(ctx: ProbeContext) -> u32 {
    try_conn_request(Sock(ctx.arg(2).unwrap_or(0)), Skb(ctx.arg(3).unwrap_or(0)));
    0
}

/// A listener with room, which is nearly every one, costs three reads.
#[inline(always)]
fn try_conn_request(sk: Sock, skb: Skb) {
    let Some((waiting, backlog)) = sk.accept_queue() else { return };
    let half_open = sk.half_open();
    let Some(queue) = full(sk, waiting, backlog, half_open) else { return };
    let mut packet = Packet::EMPTY;
    if !parse(skb, &mut packet) {
        return;
    }
    let Some(found) = track::by_packet(&packet.tuple) else { return };
    emit::<QueueFull>(Hook::TcpConnRequest, |event| {
        event.conn = found.conn;
        event.waiting = waiting;
        event.backlog = backlog;
        event.half_open = half_open;
        event.netns = sk.net().inum();
        event.queue = queue as u16;
    });
}

/// What `tcp_conn_request` itself asks, the same from 5.10 to 7.2: `sk_acceptq_is_full` (more than the maximum),
/// and without cookies `inet_csk_reqsk_queue_is_full` or more than three quarters of `tcp_max_syn_backlog`.
#[inline(always)]
fn full(sk: Sock, waiting: u32, backlog: u32, half_open: u32) -> Option<Queue> {
    if waiting > backlog {
        return Some(Queue::Accept);
    }
    if half_open == 0 {
        return None;
    }
    let Net(net) = sk.net();
    let max = read::<u32>(net, global!(OFFS.net_max_syn_backlog)).unwrap_or(u32::MAX);
    let over = half_open >= backlog || max.saturating_sub(half_open) < max >> 2;
    let cookies = read::<u8>(net, global!(OFFS.net_syncookies)).unwrap_or(1);
    (over && cookies == 0).then_some(Queue::HalfOpen)
}
