//! Does TLS arrive at a watched port? Attached only while somebody asks.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_common::{listen::TlsHello, names::Hook};

use crate::{
    emit::{emit, now},
    kernel::{Skb, Sock, read},
    maps::TLS_WATCH,
};

/// Reports of one port are at least this far apart.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Data or an ACK arrives at an established socket; `skb->data` is its TCP header.
///
/// proto v5.10  include/trace/events/tcp.h  TP_PROTO(struct sock *sk, struct sk_buff *skb)
#[raw_tracepoint(tracepoint = "tcp_probe")]
pub fn tcp_probe(ctx: RawTracePointContext) -> i32 {
    let (sk, skb) = (Sock(ctx.arg(0)), Skb(ctx.arg(1)));
    let port = sk.num();
    let Some(last) = TLS_WATCH.get_ptr_mut(port) else { return 0 };
    let time = now();
    if unsafe { *last } + INTERVAL_NS < time && is_client_hello(skb) {
        unsafe { *last = time };
        emit::<TlsHello>(Hook::TcpProbe, |event| {
            sk.local_addr(&mut event.addr);
            event.netns = sk.net().inum();
            event.port = port;
        });
    }
    0
}

/// A handshake record (22), major version 3, that begins with a ClientHello (1): RFC 8446 5.1, 4.
#[inline(always)]
fn is_client_hello(skb: Skb) -> bool {
    let tcp = skb.data();
    let header = u32::from(read::<u8>(tcp, 12).unwrap_or(0) >> 4) * 4;
    let linear = skb.len().saturating_sub(skb.data_len());
    if header < 20 || linear < header + 6 {
        return false;
    }
    matches!(read::<[u8; 6]>(tcp, header), Some([0x16, 0x03, _, _, _, 0x01]))
}
