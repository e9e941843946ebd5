//! Does TLS arrive at a watched port? Attached only while somebody asks.

use aya_ebpf::{macros::cgroup_skb, programs::SkBuffContext};
use tracer_common::{
    answer::is_client_hello,
    listen::TlsHello,
    names::Hook,
    packet::{Bytes, payload},
};

use crate::{
    emit::{Urgency, emit_as, now},
    kernel::{Sock, read},
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
    if unsafe { *last } + INTERVAL_NS < time && is_hello(&Contents(&ctx), &mut addr) {
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

/// What arrives, from its IP header on. Helpers copy the bytes, so that it does not matter whether they lie in
/// pages of their own, as what a local client sends does.
pub struct Contents<'a>(pub &'a SkBuffContext);

impl Bytes for Contents<'_> {
    #[inline(always)]
    fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.0.load(at as usize).ok()
    }
}

/// Says to which address.
#[inline(always)]
fn is_hello(contents: &Contents<'_>, addr: &mut [u8; 16]) -> bool {
    let payload = payload(contents, addr);
    payload != 0 && is_client_hello(contents, payload)
}

/// The socket that the packet is for.
#[inline(always)]
pub fn sock(ctx: &SkBuffContext) -> Sock {
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    // To the verifier this is a pointer of its own kind, to which nothing may be added; a copy of the
    // word is a number.
    Sock(read(&raw const sk as u64, 0).unwrap_or(0))
}
