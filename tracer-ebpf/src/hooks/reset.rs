//! RST segments, sent and received.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_common::{
    ABSENT32, ABSENT64,
    conn::Via,
    events::Kind,
    limit::sort,
    names::Hook,
    packet::Packet,
    reset::{ResetReceived, ResetSent},
    state,
};

use crate::{
    actor,
    emit::emit,
    kernel::{Skb, Sock, parse},
    limit, sockets,
    track::{self, Match},
};

/// This host sends a RST, with the reason.
///
/// proto v6.12  include/trace/events/tcp.h  TP_PROTO(const struct sock *sk, const struct sk_buff *skb__nullable, const enum sk_rst_reason reason)
///
/// `sk` is NULL if no socket was found. `skb` is the segment that the RST answers. It is NULL if the task closes or
/// aborts the socket itself. Kernels with two arguments refuse to attach it.
#[raw_tracepoint(tracepoint = "tcp_send_reset")]
pub fn tcp_send_reset(ctx: RawTracePointContext) -> i32 {
    try_send_reset(Hook::TcpSendReset, Sock(ctx.arg(0)), Skb(ctx.arg(1)), ctx.arg::<u64>(2) as u32);
    0
}

/// The same for kernels before 6.12, where it does not run without a socket.
///
/// proto v5.10  include/trace/events/tcp.h  DEFINE_EVENT(tcp_event_sk_skb, tcp_send_reset, TP_PROTO(const struct sock *sk, const struct sk_buff *skb))
#[raw_tracepoint(tracepoint = "tcp_send_reset")]
pub fn tcp_send_reset_2(ctx: RawTracePointContext) -> i32 {
    try_send_reset(Hook::TcpSendReset, Sock(ctx.arg(0)), Skb(ctx.arg(1)), ABSENT32);
    0
}

function_hook! {
    /// A RST without a socket, or by one in TIME_WAIT, for kernels where the tracepoint does not show it.
    ///
    /// proto v5.10  net/ipv4/tcp_ipv4.c  static void tcp_v4_send_reset(const struct sock *sk, struct sk_buff *skb)
    /// proto v6.12  net/ipv4/tcp_ipv4.c  static void tcp_v4_send_reset(const struct sock *sk, struct sk_buff *skb, enum sk_rst_reason reason)
    fentry_tcp_v4_send_reset, kprobe_tcp_v4_send_reset: "tcp_v4_send_reset",
    |sk: 0, skb: 1| try_send_unseen_reset(Hook::TcpV4SendReset, Sock(sk), Skb(skb))
}

function_hook! {
    /// The same for IPv6.
    ///
    /// proto v5.10  net/ipv6/tcp_ipv6.c  static void tcp_v6_send_reset(const struct sock *sk, struct sk_buff *skb)
    fentry_tcp_v6_send_reset, kprobe_tcp_v6_send_reset: "tcp_v6_send_reset",
    |sk: 0, skb: 1| try_send_unseen_reset(Hook::TcpV6SendReset, Sock(sk), Skb(skb))
}

/// Reports only the cases that the tracepoint does not show, so no RST is reported twice. Before 6.10 it shows full sockets only,
/// and one in TIME_WAIT is none.
///
/// These RSTs answer a segment. [`find_aborted`] is for others, and its arithmetic on a typed argument is forbidden.
#[inline(always)]
fn try_send_unseen_reset(hook: Hook, sk: Sock, skb: Skb) {
    /// `include/net/tcp_states.h`
    const TIME_WAIT: u8 = 6;
    let mut packet = Packet::EMPTY;
    if (!sk.exists() || sk.state() == TIME_WAIT)
        && let Some(found) = find_answered(sk, skb, &mut packet)
    {
        report(hook, sk, skb, (ABSENT32, 0), &packet, &found);
    }
}

#[inline(always)]
fn try_send_reset(hook: Hook, sk: Sock, skb: Skb, reason: u32) {
    let mut packet = Packet::EMPTY;
    let (found, unread) = if skb.exists() {
        (find_answered(sk, skb, &mut packet), 0)
    } else {
        (find_aborted(sk, &mut packet), sk.unread().map_or(0, |bytes| if bytes > 0 { 1 } else { 2 }))
    };
    if let Some(found) = found {
        report(hook, sk, skb, (reason, unread), &packet, &found);
    }
}

/// `packet` has the tuple in the direction of the RST: the functions below set it.
#[inline(always)]
fn report(hook: Hook, sk: Sock, skb: Skb, (reason, unread): (u32, u8), packet: &Packet, found: &Match) {
    let active = !skb.exists();
    let (netns, state) = if sk.exists() { (sk.net().inum(), sk.state()) } else { (skb.netns(), 0) };
    let sort = sort(Kind::ResetSent, netns, packet.tuple.sport, packet.flags, u64::from(state) << 2);
    if !limit::allows_of(found.conn, sort, hook) {
        return;
    }
    emit::<ResetSent>(hook, |event| {
        event.conn = found.conn;
        event.via = found.via as u16;
        event.tuple = packet.tuple;
        event.reason = reason;
        event.netns = netns;
        event.answered_flags = packet.flags;
        event.state = state;
        event.no_socket = u8::from(!sk.exists());
        event.active = u8::from(active);
        event.unread = unread;
        if active {
            actor::fill(&mut event.actor);
        }
    });
}

/// The connection of a RST that answers a segment.
///
/// A SYN-ACK without a connection may belong to a connect that waits for its sender. That is an IPVS collision: IPVS
/// rewrote the SYN-ACK, so its tuple matches no connection, and it arrives at a listener or at no socket. This also
/// works on kernels where the functions of IPVS cannot be hooked.
#[inline(always)]
fn find_answered(sk: Sock, skb: Skb, packet: &mut Packet) -> Option<Match> {
    if !parse(skb, packet) {
        return None;
    }
    let found = if packet.is_syn_ack() {
        track::by_packet(&packet.tuple).or_else(|| {
            let is_misdirected = !sk.exists() || sk.state() == state::LISTEN;
            if is_misdirected { track::waiting_for(&packet.tuple.saddr, packet.tuple.sport) } else { None }
        })
    } else {
        track::of_packet(packet)
    };
    packet.tuple = packet.tuple.reversed();
    found
}

/// The connection of a RST that the task sends itself, by close or abort.
#[inline(always)]
fn find_aborted(sk: Sock, packet: &mut Packet) -> Option<Match> {
    if !sk.tuple(&mut packet.tuple) {
        return None;
    }
    match sockets::by_socket(sk) {
        Some(conn) => Some(Match { conn: conn.conn, via: Via::Socket }),
        None => track::by_packet(&packet.tuple),
    }
}

/// A tracked socket receives a RST.
///
/// proto v5.10  include/trace/events/tcp.h  DEFINE_EVENT(tcp_event_sk, tcp_receive_reset, TP_PROTO(struct sock *sk))
#[raw_tracepoint(tracepoint = "tcp_receive_reset")]
pub fn tcp_receive_reset(ctx: RawTracePointContext) -> i32 {
    let sk = Sock(ctx.arg(0));
    if let Some(conn) = sockets::by_socket(sk) {
        let mut tuple = conn.tuple;
        sockets::fill_port(sk, &mut tuple);
        emit::<ResetReceived>(Hook::TcpReceiveReset, |event| {
            event.conn = conn.conn;
            event.tuple = tuple;
            event.bytes_received = sk.bytes_received().unwrap_or(ABSENT64);
            event.unread = sk.unread().unwrap_or(ABSENT32);
            event.state = sk.state();
        });
    }
    0
}
