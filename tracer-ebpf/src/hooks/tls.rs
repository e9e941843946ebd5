//! Whether clients of a watched port use TLS. Attached only while userspace watches a port.

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

/// The shortest time between two reports about one port.
const INTERVAL_NS: u64 = 1_000_000_000;
/// The kernel continues with the packet.
pub const PASS: i32 = 1;

/// A packet arrives at a socket. The context begins at the IP header.
///
/// Runs for every such packet of the node. A packet for a port that is not watched costs a load and a look-up.
#[cgroup_skb(ingress)]
pub fn cgroup_skb(ctx: SkBuffContext) -> i32 {
    // From the socket, so the packet is not read.
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

/// A packet from its IP header on. A helper copies the bytes, because they may be in separate pages: the payload of
/// local clients is.
pub struct Contents<'a>(pub &'a SkBuffContext);

impl Bytes for Contents<'_> {
    #[inline(always)]
    fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        self.0.load(at as usize).ok()
    }
}

/// Whether the payload is a ClientHello. Sets `addr` to the packet's destination.
#[inline(always)]
fn is_hello(contents: &Contents<'_>, addr: &mut [u8; 16]) -> bool {
    let payload = payload(contents, addr);
    payload != 0 && is_client_hello(contents, payload)
}

/// The address of the receiving socket.
#[inline(always)]
pub fn sock(ctx: &SkBuffContext) -> Sock {
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    // The verifier forbids arithmetic on the typed pointer. A copy of the word is a number.
    Sock(read(&raw const sk as u64, 0).unwrap_or(0))
}
