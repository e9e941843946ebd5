//! Parses TCP over IPv4 or IPv6.

use crate::tuple::{Tuple, map_v4};

const IPPROTO_TCP: u8 = 6;

pub const FLAG_FIN: u8 = 0x01;
/// `th_flags` (byte 13 of the TCP header): the segment begins a connection.
pub const FLAG_SYN: u8 = 0x02;
pub const FLAG_RST: u8 = 0x04;
pub const FLAG_PSH: u8 = 0x08;
pub const FLAG_ACK: u8 = 0x10;

/// The bytes of a packet from its IP header on.
pub trait Bytes {
    /// Copies `N` bytes, or nothing if the packet is shorter or cannot be read.
    fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]>;

    /// Copies `N` bytes to `dst`; false if they cannot be read.
    #[inline(always)]
    fn copy<const N: usize>(&self, at: u64, dst: &mut [u8; N]) -> bool {
        match self.load(at) {
            Some(bytes) => {
                *dst = bytes;
                true
            }
            None => false,
        }
    }
}

/// The parsed fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Addresses and ports in the packet's own direction.
    pub tuple: Tuple,
    /// Byte 13 of the TCP header.
    pub flags: u8,
}

impl Packet {
    /// The value before a packet is parsed.
    pub const EMPTY: Self =
        Self { tuple: Tuple { saddr: [0; 16], daddr: [0; 16], sport: 0, dport: 0, reserved: 0 }, flags: 0 };

    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        self.flags & FLAG_SYN != 0
    }

    #[inline(always)]
    pub const fn is_syn_ack(&self) -> bool {
        self.flags & (FLAG_SYN | FLAG_ACK) == FLAG_SYN | FLAG_ACK
    }
}

/// Reads addresses, ports and flags of a TCP packet; false for anything else.
#[inline(always)]
pub fn parse(bytes: &impl Bytes, packet: &mut Packet) -> bool {
    // Both kinds of header have at least as many bytes.
    let mut header = [0u8; 20];
    if !bytes.copy(0, &mut header) {
        return false;
    }
    let tcp = match header[0] >> 4 {
        4 => parse_v4(&header, packet),
        6 if header[6] == IPPROTO_TCP => parse_v6(bytes, packet),
        _ => 0,
    };
    tcp != 0 && parse_tcp(bytes, tcp, packet)
}

/// Returns where the TCP header begins, or 0.
#[inline(always)]
fn parse_v4(header: &[u8; 20], packet: &mut Packet) -> u64 {
    let fragment = (u16::from(header[6] & 0x1f) << 8) | u16::from(header[7]);
    let length = u64::from(header[0] & 0xf) * 4;
    if header[9] != IPPROTO_TCP || fragment != 0 || length < 20 {
        return 0;
    }
    map_v4(&mut packet.tuple.saddr, [header[12], header[13], header[14], header[15]]);
    map_v4(&mut packet.tuple.daddr, [header[16], header[17], header[18], header[19]]);
    length
}

/// Parses IPv6 without extension headers in the same way.
#[inline(always)]
fn parse_v6(bytes: &impl Bytes, packet: &mut Packet) -> u64 {
    if !bytes.copy(8, &mut packet.tuple.saddr) || !bytes.copy(24, &mut packet.tuple.daddr) {
        return 0;
    }
    40
}

#[inline(always)]
fn parse_tcp(bytes: &impl Bytes, tcp: u64, packet: &mut Packet) -> bool {
    let mut header = [0u8; 14];
    if !bytes.copy(tcp, &mut header) {
        return false;
    }
    packet.tuple.sport = u16::from_be_bytes([header[0], header[1]]);
    packet.tuple.dport = u16::from_be_bytes([header[2], header[3]]);
    packet.flags = header[13];
    true
}

/// Returns where the payload of an arriving TCP packet begins, or 0, and writes its destination address.
///
/// The kernel has already checked the IP header and reassembled fragments.
#[inline(always)]
pub fn payload(bytes: &impl Bytes, addr: &mut [u8; 16]) -> u64 {
    let tcp = match bytes.load(0).map_or(0, |[first]: [u8; 1]| first >> 4) {
        4 => arrived_v4(bytes, addr),
        6 => arrived_v6(bytes, addr),
        _ => 0,
    };
    if tcp == 0 {
        return 0;
    }
    bytes.load(tcp + 12).map_or(0, |[words]: [u8; 1]| tcp + u64::from(words >> 4) * 4)
}

/// Returns where the TCP header begins, or 0.
#[inline(always)]
fn arrived_v4(bytes: &impl Bytes, addr: &mut [u8; 16]) -> u64 {
    let Some(header) = bytes.load::<20>(0) else { return 0 };
    if header[9] != IPPROTO_TCP {
        return 0;
    }
    map_v4(addr, [header[16], header[17], header[18], header[19]]);
    u64::from(header[0] & 0xf) * 4
}

/// Parses IPv6 without extension headers in the same way.
#[inline(always)]
fn arrived_v6(bytes: &impl Bytes, addr: &mut [u8; 16]) -> u64 {
    let Some(header) = bytes.load::<40>(0) else { return 0 };
    if header[6] != IPPROTO_TCP {
        return 0;
    }
    let mut i = 0;
    while i < 16 {
        addr[i] = header[24 + i];
        i += 1;
    }
    40
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;

    use std::{vec, vec::Vec};

    use super::*;

    impl Bytes for &[u8] {
        fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
            self.get(at as usize..)?.first_chunk().copied()
        }
    }

    impl Bytes for Vec<u8> {
        fn load<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
            self.as_slice().load(at)
        }
    }

    const SYN_ACK: u8 = FLAG_SYN | FLAG_ACK;

    /// A segment from port 8080 to port 40000, with this many bytes of TCP options.
    fn segment(flags: u8, options: usize, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x1f, 0x90, 0x9c, 0x40, 0, 0, 0, 1, 0, 0, 0, 2];
        bytes.extend([((20 + options) / 4 * 16) as u8, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(vec![1; options]);
        bytes.extend(payload);
        bytes
    }

    /// A packet with this segment from 10.0.0.1 to 192.168.0.2, with this many bytes of IP options.
    pub(crate) fn v4(options: usize, segment: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x40 | ((20 + options) / 4) as u8, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, 6, 0, 0];
        bytes.extend([10, 0, 0, 1, 192, 168, 0, 2]);
        bytes.extend(vec![1; options]);
        bytes.extend(segment);
        bytes
    }

    /// A packet with this segment from fd00::1 to fd00::2.
    fn v6(next: u8, segment: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 20, next, 64];
        for last in [1, 2] {
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        bytes.extend(segment);
        bytes
    }

    /// A packet over IPv4 that carries this payload.
    pub(crate) fn carrying(payload: &[u8]) -> Vec<u8> {
        v4(0, &segment(FLAG_ACK, 12, payload))
    }

    fn parsed(bytes: &[u8]) -> Option<Packet> {
        let mut packet = Packet::EMPTY;
        parse(&bytes, &mut packet).then_some(packet)
    }

    fn payload_of(bytes: &[u8]) -> (u64, [u8; 16]) {
        let mut addr = [0; 16];
        (payload(&bytes, &mut addr), addr)
    }

    fn mapped(addr: [u8; 4]) -> [u8; 16] {
        core::net::Ipv4Addr::from(addr).to_ipv6_mapped().octets()
    }

    #[test]
    fn an_ipv4_packet_with_any_options_gives_mapped_addresses() {
        for options in [0, 4, 40] {
            let packet = parsed(&v4(options, &segment(SYN_ACK, 20, b""))).expect("TCP");
            assert_eq!((packet.tuple.saddr, packet.tuple.daddr), (mapped([10, 0, 0, 1]), mapped([192, 168, 0, 2])));
            assert_eq!((packet.tuple.sport, packet.tuple.dport, packet.tuple.reserved), (8080, 40000, 0));
            assert!(packet.is_syn() && packet.is_syn_ack());
        }
    }

    #[test]
    fn an_ipv6_packet_keeps_its_addresses() {
        let packet = parsed(&v6(6, &segment(FLAG_SYN, 0, b""))).expect("TCP");
        assert_eq!((packet.tuple.saddr[0], packet.tuple.saddr[15], packet.tuple.daddr[15]), (0xfd, 1, 2));
        assert_eq!((packet.tuple.sport, packet.tuple.dport), (8080, 40000));
        assert!(packet.is_syn() && !packet.is_syn_ack());
    }

    /// ECN sets more bits (RFC 3168 6.1.1). For a SYN-ACK only the two flags count.
    #[test]
    fn other_flags_do_not_hide_a_syn_ack() {
        let flags = |flags| Packet { flags, ..Packet::EMPTY };
        assert!(flags(SYN_ACK | 0x40).is_syn_ack() && flags(0xc2).is_syn());
        assert!(!flags(0xc2).is_syn_ack() && !flags(FLAG_ACK).is_syn() && !flags(0x14).is_syn_ack());
    }

    #[test]
    fn an_incomplete_tcp_header_is_no_packet() {
        let whole = segment(FLAG_SYN, 0, b"");
        let change = |at: usize, value: u8| {
            let mut bytes = v4(0, &whole);
            bytes[at] = value;
            bytes
        };
        assert_eq!(parsed(&change(9, 17)), None, "UDP");
        assert_eq!(parsed(&change(0, 0x44)), None, "a header of 16 bytes");
        assert_eq!(parsed(&change(0, 0x55)), None, "IP version 5");
        assert_eq!(parsed(&change(7, 1)), None, "a later fragment: its first bytes are no header");
        assert_eq!(parsed(&change(6, 0x1f)), None, "one with the high bits of its offset alone");
        assert!(parsed(&change(6, 0x20)).is_some(), "the first fragment has the header");
        // Hop-by-hop options, routing, fragment, destination options: not followed.
        assert!([0, 43, 44, 60].into_iter().all(|next| parsed(&v6(next, &whole)).is_none()));
        for bytes in [v4(0, &whole), v4(8, &whole), v6(6, &whole)] {
            // The flags are at byte 13; later bytes are not needed.
            let needed = bytes.len() - 20 + 14;
            for length in 0..bytes.len() {
                assert_eq!(parsed(&bytes[..length]).is_some(), length >= needed, "{length} of {}", bytes.len());
            }
        }
    }

    /// Both directions of one connection, as packets show them.
    #[test]
    fn an_answer_packet_has_the_reversed_tuple() {
        let there = parsed(&v4(0, &segment(FLAG_SYN, 0, b""))).expect("TCP").tuple;
        let mut back = v4(0, &segment(SYN_ACK, 0, b""));
        back[12..20].rotate_left(4);
        back[20..24].rotate_left(2);
        assert_eq!(parsed(&back).expect("TCP").tuple, there.reversed());
    }

    #[test]
    fn the_payload_begins_after_the_options_of_both_headers() {
        for (ip, tcp) in [(0, 0), (0, 12), (40, 40)] {
            let bytes = v4(ip, &segment(FLAG_ACK, tcp, b"payload"));
            let (at, addr) = payload_of(&bytes);
            assert_eq!((&bytes[at as usize..], addr), (&b"payload"[..], mapped([192, 168, 0, 2])));
        }
        let bytes = v6(6, &segment(FLAG_ACK, 12, b"payload"));
        let (at, addr) = payload_of(&bytes);
        assert_eq!((&bytes[at as usize..], addr[0], addr[15]), (&b"payload"[..], 0xfd, 2));
    }

    #[test]
    fn a_packet_without_tcp_has_no_payload() {
        let whole = segment(FLAG_ACK, 0, b"payload");
        let mut udp = v4(0, &whole);
        udp[9] = 17;
        assert_eq!(payload_of(&udp).0, 0);
        assert!([0, 43, 44, 60].into_iter().all(|next| payload_of(&v6(next, &whole)).0 == 0));
        // The length of the TCP header is in its thirteenth byte.
        assert_eq!(payload_of(&v4(0, &whole[..12])).0, 0);
        assert_eq!(payload_of(&v6(6, &whole)[..39]).0, 0);
        assert_eq!(payload_of(b"").0, 0);
    }
}
