//! `struct sock` and the structs that contain it.

use tracer_common::{
    listen::{ONE_DEVICE, ONLY_V6},
    ports,
    tuple::Tuple,
};

use super::{AF_INET, AF_INET6, IPPROTO_TCP, Net, Sock, read, read_addr, read_or_zero};
use crate::maps::global;

/// Where a socket connects to.
#[derive(Clone, Copy)]
pub struct Destination {
    /// Hash of address and port. The high bits are the well mixed ones.
    pub hash: u64,
    /// Whether it is the socket's own address.
    pub itself: bool,
}

impl Sock {
    #[inline(always)]
    pub fn destination(self) -> Option<Destination> {
        let (to, itself) = match read::<u16>(self.0, global!(OFFS.sk_family))? {
            AF_INET => {
                let to = read::<u32>(self.0, global!(OFFS.sk_daddr))?;
                ([u64::from(to), 0], read::<u32>(self.0, global!(OFFS.sk_rcv_saddr)) == Some(to))
            }
            AF_INET6 => {
                let to = read::<[u64; 2]>(self.0, global!(OFFS.sk_v6_daddr))?;
                (to, read::<[u64; 2]>(self.0, global!(OFFS.sk_v6_rcv_saddr)) == Some(to))
            }
            _ => return None,
        };
        Some(Destination { hash: ports::hash(to, self.dport()), itself })
    }

    #[inline(always)]
    pub fn has_source_v4(self, addr: u32) -> bool {
        read::<u32>(self.0, global!(OFFS.sk_rcv_saddr)) == Some(addr)
    }

    #[inline(always)]
    pub fn has_source_v6(self, addr: [u64; 2]) -> bool {
        // Not compared as an `Option`: the compiler may read the value of `None` from an uninitialized register.
        read::<[u64; 2]>(self.0, global!(OFFS.sk_v6_rcv_saddr)).unwrap_or_default() == addr
    }

    /// Whether a connect found a route and a source address.
    ///
    /// Then `tcp_v4_connect` sets the destination address, and `tcp_v6_connect` caches the route. Neither undoes that
    /// if it fails later.
    #[inline(always)]
    pub fn has_route(self) -> bool {
        match read::<u16>(self.0, global!(OFFS.sk_family)) {
            Some(AF_INET) => read::<u32>(self.0, global!(OFFS.sk_daddr)).is_some_and(|to| to != 0),
            Some(AF_INET6) => read::<u64>(self.0, global!(OFFS.sk_dst_cache)).is_some_and(|route| route != 0),
            _ => false,
        }
    }

    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        read::<u16>(self.0, global!(OFFS.sk_protocol)) == Some(IPPROTO_TCP)
    }

    #[inline(always)]
    pub fn state(self) -> u8 {
        read_or_zero(self.0, global!(OFFS.sk_state))
    }

    #[inline(always)]
    pub fn err(self) -> Option<i32> {
        read(self.0, global!(OFFS.sk_err))
    }

    /// The error of the newest packet in the error queue; 0 without one. An ICMP error about a SYN is only there while
    /// connect(2) holds the socket (`tcp_v4_err`). IPv6 queues it only for sockets with IPV6_RECVERR.
    #[inline(always)]
    pub fn queued_err(self) -> i32 {
        // `struct sk_buff_head`: `next`, `prev`. Both lead back to it if it is empty.
        let newest = read_or_zero::<u64>(self.0 + 8, global!(OFFS.sk_error_queue));
        if newest == 0 || newest == self.0 + u64::from(global!(OFFS.sk_error_queue)) {
            return 0;
        }
        // `struct sock_extended_err` begins with the errno.
        read_or_zero(newest + u64::from(global!(OFFS.skb_cb)), global!(OFFS.exterr_ee))
    }

    #[inline(always)]
    pub fn net(self) -> Net {
        Net(read_or_zero(self.0, global!(OFFS.sk_net)))
    }

    /// Source port from `inet_sport`, because `skc_num` is 0 again after the socket is closed.
    #[inline(always)]
    pub fn sport(self) -> u16 {
        u16::from_be(read_or_zero(self.0, global!(OFFS.inet_sport)))
    }

    #[inline(always)]
    pub fn num(self) -> u16 {
        read_or_zero(self.0, global!(OFFS.sk_num))
    }

    #[inline(always)]
    pub fn dport(self) -> u16 {
        u16::from_be(read_or_zero(self.0, global!(OFFS.sk_dport)))
    }

    #[inline(always)]
    pub fn bytes_received(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_received))
    }

    /// Whether the peer has sent its SYN (`tcp_connect_init` sets the next sequence number to 0).
    #[inline(always)]
    pub fn has_received(self) -> bool {
        read_or_zero::<u32>(self.0, global!(OFFS.tcp_rcv_nxt)) != 0
    }

    /// Bytes that are in order and not read yet. In CLOSE_WAIT the peer's FIN is one of them.
    #[inline(always)]
    pub fn unread(self) -> Option<u32> {
        let next: u32 = read(self.0, global!(OFFS.tcp_rcv_nxt))?;
        Some(next.wrapping_sub(read(self.0, global!(OFFS.tcp_copied_seq))?))
    }

    #[inline(always)]
    pub fn bytes_sent(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_sent))
    }

    #[inline(always)]
    pub fn bytes_acked(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_bytes_acked))
    }

    /// Whether the process has written bytes that were not sent yet, if that is known.
    #[inline(always)]
    pub fn has_unsent(self) -> bool {
        let next: u32 = read_or_zero(self.0, global!(OFFS.tcp_snd_nxt));
        let written: u32 = read_or_zero(self.0, global!(OFFS.tcp_write_seq));
        next != 0 && written != 0 && next != written
    }

    /// When the last segment was sent or received, in microseconds of CLOCK_MONOTONIC (`tcp_mstamp_refresh`).
    #[inline(always)]
    pub fn last_segment_us(self) -> Option<u64> {
        read(self.0, global!(OFFS.tcp_mstamp))
    }

    /// When the peer acknowledged the newest data (or the SYN), in the same clock (`tcp_rack_advance`); absent if it is
    /// not known, or if a peer does not support SACK.
    #[inline(always)]
    pub fn last_acknowledged_us(self) -> Option<u64> {
        let sent: u64 = read_or_zero(self.0, global!(OFFS.tcp_rack_mstamp));
        let rtt: u32 = read(self.0, global!(OFFS.tcp_rack_rtt_us))?;
        if sent == 0 { None } else { Some(sent + u64::from(rtt)) }
    }

    /// Which connections a listener does not take, whatever its address: [`ONLY_V6`], [`ONE_DEVICE`].
    #[inline(always)]
    pub fn limits(self) -> u8 {
        // `skc_ipv6only` is a bit between `skc_state` and `skc_bound_dev_if`, since 3.14.
        const ONLY_V6_BIT: u8 = 1 << 5;
        let (state, device) = (global!(OFFS.sk_state), global!(OFFS.sk_bound_dev_if));
        let bits = if device == state + 2 { read_or_zero::<u8>(self.0, state + 1) } else { 0 };
        let only_v6 = if bits & ONLY_V6_BIT != 0 { ONLY_V6 } else { 0 };
        only_v6 | if read_or_zero::<u32>(self.0, device) != 0 { ONE_DEVICE } else { 0 }
    }

    /// Connections that wait to be accepted, and the limit.
    #[inline(always)]
    pub fn accept_queue(self) -> Option<(u32, u32)> {
        Some((read(self.0, global!(OFFS.sk_ack_backlog))?, read(self.0, global!(OFFS.sk_max_ack_backlog))?))
    }

    /// Half-open connections of a listener.
    #[inline(always)]
    pub fn half_open(self) -> u32 {
        read_or_zero(self.0, global!(OFFS.icsk_qlen))
    }

    /// Local address, v4-mapped.
    #[inline(always)]
    pub fn local_addr(self, dst: &mut [u8; 16]) -> bool {
        self.addr(dst, global!(OFFS.sk_rcv_saddr), global!(OFFS.sk_v6_rcv_saddr))
    }

    #[inline(always)]
    fn addr(self, dst: &mut [u8; 16], v4: u32, v6: u32) -> bool {
        read_addr(read_or_zero(self.0, global!(OFFS.sk_family)), self.0, [v4, v6], dst)
    }

    /// Addresses and ports from the socket's own side.
    #[inline(always)]
    pub fn tuple(self, dst: &mut Tuple) -> bool {
        dst.sport = self.sport();
        dst.dport = self.dport();
        dst.reserved = 0;
        self.local_addr(&mut dst.saddr) && self.addr(&mut dst.daddr, global!(OFFS.sk_daddr), global!(OFFS.sk_v6_daddr))
    }
}
