//! SYNs of tracked connections that arrive at a listener with a full queue. No tracepoint shows that the kernel drops
//! them.

use tracer_common::{
    events::Kind,
    limit::sort,
    listen::{Listener, QueueFull, SynLimits, full},
    names::Hook,
    packet::Packet,
};

use crate::{
    emit::emit,
    kernel::{Net, Skb, Sock, parse, read},
    limit,
    maps::global,
    track,
};

function_hook! {
    /// A SYN arrives at a listener.
    ///
    /// proto v5.10  net/ipv4/tcp_input.c  int tcp_conn_request(struct request_sock_ops *rsk_ops, const struct tcp_request_sock_ops *af_ops, struct sock *sk, struct sk_buff *skb)
    /// proto v7.2   net/ipv4/tcp_input.c  the same
    fentry_tcp_conn_request, kprobe_tcp_conn_request: "tcp_conn_request",
    |sk: 2, skb: 3| try_conn_request(Sock(sk), Skb(skb))
}

/// Nearly every listener is no target of a tracked connect, which costs one read, or has room in its queues, which costs
/// three more.
#[inline(always)]
fn try_conn_request(sk: Sock, skb: Skb) {
    if !track::is_target(sk.num()) {
        return;
    }
    let Some((waiting, backlog)) = sk.accept_queue() else { return };
    let half_open = sk.half_open();
    let Some(queue) = full(waiting, backlog, half_open, &sk) else { return };
    let mut packet = Packet::EMPTY;
    if !parse(skb, &mut packet) {
        return;
    }
    let Some(found) = track::by_packet(&packet.tuple) else { return };
    let sort = sort(Kind::QueueFull, 0, 0, 0, (queue as u64) << 2);
    if !limit::allows_of(found.conn, sort, Hook::TcpConnRequest) {
        return;
    }
    emit::<QueueFull>(Hook::TcpConnRequest, |event| {
        event.conn = found.conn;
        event.waiting = waiting;
        event.backlog = backlog;
        event.half_open = half_open;
        event.netns = sk.net().inum();
        event.queue = queue as u16;
    });
}

impl Listener for Sock {
    #[inline(always)]
    fn limits(&self) -> SynLimits {
        let Net(net) = self.net();
        SynLimits {
            max_backlog: read(net, global!(OFFS.net_max_syn_backlog)).unwrap_or(u32::MAX),
            cookies: read(net, global!(OFFS.net_syncookies)).unwrap_or(1),
        }
    }
}
