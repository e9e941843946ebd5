//! Does TLS arrive at a watched port? Attached only while somebody asks.

use aya_ebpf::{macros::cgroup_skb, programs::SkBuffContext};
use tracer_common::{listen::TlsHello, names::Hook};

use crate::{
    emit::{Urgency, emit_as, now},
    kernel::{IPPROTO_TCP, Sock, map_v4, read},
    maps::TLS_WATCH,
};

/// Reports of one port are at least this far apart.
const INTERVAL_NS: u64 = 1_000_000_000;
/// The packet goes on its way.
pub const PASS: i32 = 1;

/// A packet arrives at a socket; the context begins at its IP header. Runs for every such packet of
/// the node: one that is for no watched port costs a load and a look-up.
#[cgroup_skb(ingress)]
pub fn cgroup_skb(ctx: SkBuffContext) -> i32 {
    // The port of the socket, without touching the packet.
    let port = unsafe { (*ctx.skb.skb).local_port } as u16;
    let Some(last) = TLS_WATCH.get_ptr_mut(port) else { return PASS };
    let time = now();
    let mut addr = [0; 16];
    if unsafe { *last } + INTERVAL_NS < time && is_client_hello(&ctx, &mut addr) {
        unsafe { *last = time };
        let sk = sock(&ctx);
        emit_as::<TlsHello>(Urgency::Later, Hook::CgroupSkb, |event| {
            event.addr = addr;
            event.netns = sk.net().inum();
            event.port = port;
        });
    }
    PASS
}

/// A handshake record (22), major version 3, that begins with a ClientHello (1): RFC 8446 5.1, 4.
/// Says to which address. Helpers copy the bytes, so that it does not matter whether they lie in
/// pages of their own, as what a local client sends does.
#[inline(always)]
fn is_client_hello(ctx: &SkBuffContext, addr: &mut [u8; 16]) -> bool {
    let payload = payload(ctx, addr);
    payload != 0 && matches!(ctx.load::<[u8; 6]>(payload), Ok([0x16, 0x03, _, _, _, 0x01]))
}

/// Where the payload of a TCP packet begins, or 0; and to which address it goes.
#[inline(always)]
pub fn payload(ctx: &SkBuffContext, addr: &mut [u8; 16]) -> usize {
    let tcp = match ctx.load::<u8>(0).map_or(0, |first| first >> 4) {
        4 => parse_v4(ctx, addr),
        6 => parse_v6(ctx, addr),
        _ => 0,
    };
    if tcp == 0 {
        return 0;
    }
    ctx.load::<u8>(tcp + 12).map_or(0, |words| tcp + usize::from(words >> 4) * 4)
}

/// Where the TCP header begins, or 0.
#[inline(always)]
fn parse_v4(ctx: &SkBuffContext, addr: &mut [u8; 16]) -> usize {
    let Ok(header) = ctx.load::<[u8; 20]>(0) else { return 0 };
    if header[9] != IPPROTO_TCP as u8 {
        return 0;
    }
    map_v4(addr, [header[16], header[17], header[18], header[19]]);
    usize::from(header[0] & 0xf) * 4
}

/// The same for IPv6 without extension headers.
#[inline(always)]
fn parse_v6(ctx: &SkBuffContext, addr: &mut [u8; 16]) -> usize {
    let Ok(header) = ctx.load::<[u8; 40]>(0) else { return 0 };
    if header[6] != IPPROTO_TCP as u8 {
        return 0;
    }
    let mut i = 0;
    while i < 16 {
        addr[i] = header[24 + i];
        i += 1;
    }
    40
}

/// The socket that the packet is for.
#[inline(always)]
pub fn sock(ctx: &SkBuffContext) -> Sock {
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    // To the verifier this is a pointer of its own kind, to which nothing may be added; a copy of the
    // word is a number.
    Sock(read(&raw const sk as u64, 0).unwrap_or(0))
}
