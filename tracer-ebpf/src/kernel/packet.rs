//! TCP over IPv4 or IPv6 as it lies in a packet.

use tracer_common::tuple::Tuple;

use super::{IPPROTO_TCP, Skb, map_v4, read, read_into};

/// What is kept of a packet.
#[derive(Clone, Copy)]
pub struct Packet {
    pub tuple: Tuple,
    /// Byte 13 of the TCP header.
    pub flags: u8,
}

pub const FLAG_SYN: u8 = 0x02;
pub const FLAG_ACK: u8 = 0x10;

/// Addresses, ports and flags of a TCP packet; false for anything else.
///
/// `skb->protocol` and `transport_header` are not trusted: the first is unset on the way out, the
/// second on the way in. The version nibble and the header length decide.
#[inline(always)]
pub fn parse(skb: Skb, packet: &mut Packet) -> bool {
    let ip = skb.network();
    if ip == 0 {
        return false;
    }
    let Some(first) = read::<u8>(ip, 0) else { return false };
    let tcp = match first >> 4 {
        4 => parse_v4(ip, first, packet),
        6 => parse_v6(ip, packet),
        _ => 0,
    };
    tcp != 0 && parse_tcp(tcp, packet)
}

/// Address of the TCP header, or 0.
#[inline(always)]
fn parse_v4(ip: u64, first: u8, packet: &mut Packet) -> u64 {
    let mut header = [0u8; 20];
    if !read_into(ip, 0, &mut header) {
        return 0;
    }
    let fragment = (u16::from(header[6] & 0x1f) << 8) | u16::from(header[7]);
    let length = u64::from(first & 0xf) * 4;
    if header[9] != IPPROTO_TCP as u8 || fragment != 0 || length < 20 {
        return 0;
    }
    map_v4(&mut packet.tuple.saddr, [header[12], header[13], header[14], header[15]]);
    map_v4(&mut packet.tuple.daddr, [header[16], header[17], header[18], header[19]]);
    ip + length
}

/// The same for IPv6 without extension headers.
#[inline(always)]
fn parse_v6(ip: u64, packet: &mut Packet) -> u64 {
    let next = read::<u8>(ip, 6).unwrap_or(0);
    if next != IPPROTO_TCP as u8
        || !read_into(ip, 8, &mut packet.tuple.saddr)
        || !read_into(ip, 24, &mut packet.tuple.daddr)
    {
        return 0;
    }
    ip + 40
}

#[inline(always)]
fn parse_tcp(tcp: u64, packet: &mut Packet) -> bool {
    let mut header = [0u8; 14];
    if !read_into(tcp, 0, &mut header) {
        return false;
    }
    packet.tuple.sport = u16::from_be_bytes([header[0], header[1]]);
    packet.tuple.dport = u16::from_be_bytes([header[2], header[3]]);
    packet.flags = header[13];
    true
}

impl Packet {
    pub const EMPTY: Self =
        Self { tuple: Tuple { saddr: [0; 16], daddr: [0; 16], sport: 0, dport: 0, reserved: 0 }, flags: 0 };

    #[inline(always)]
    pub fn is_syn(&self) -> bool {
        self.flags & FLAG_SYN != 0
    }

    #[inline(always)]
    pub fn is_syn_ack(&self) -> bool {
        self.flags & (FLAG_SYN | FLAG_ACK) == FLAG_SYN | FLAG_ACK
    }
}
