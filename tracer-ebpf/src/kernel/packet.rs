//! TCP over IPv4 or IPv6 in the memory of a packet.

use tracer_common::packet::{self, Bytes, Packet};

use super::{Skb, read_into};

/// The address of an IP header.
struct Header(u64);

impl Bytes for Header {
    #[inline(always)]
    fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.copy(at, &mut bytes).then_some(bytes)
    }

    #[inline(always)]
    fn copy<const N: usize>(&self, at: u64, dst: &mut [u8; N]) -> bool {
        read_into(self.0 + at, 0, dst)
    }
}

/// Addresses, ports and flags of a TCP packet; false for anything else.
///
/// Uses the version nibble and the header length. `skb->protocol` is not set yet on output, and `transport_header` not
/// yet on input.
#[inline(always)]
pub fn parse(skb: Skb, packet: &mut Packet) -> bool {
    let ip = skb.network();
    ip != 0 && packet::parse(&Header(ip), packet)
}
