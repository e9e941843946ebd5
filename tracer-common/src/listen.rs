//! Listening sockets.

use crate::{actor::Actor, header::Header};

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Listen {
    pub header: Header,
    /// Bound address, v4-mapped; all zero for any address (IPv4's any is `::ffff:0.0.0.0`).
    pub addr: [u8; 16],
    pub actor: Actor,
    pub netns: u32,
    pub port: u16,
    /// A [`Change`].
    pub change: u8,
    /// What else limits what it takes: [`ONLY_V6`], [`ONE_DEVICE`].
    pub limits: u8,
}

/// `IPV6_V6ONLY`: no connections over IPv4.
pub const ONLY_V6: u8 = 1;
/// `SO_BINDTODEVICE`: only connections over one device.
pub const ONE_DEVICE: u8 = 2;

numbered! {
    /// What happens to a socket that listens, or may listen soon.
    pub enum Change {
        Ends = 0,
        Begins = 1,
        /// It has a port now.
        Bound = 2,
    }
}

numbered! {
    /// Which queue of a listener has no room.
    pub enum Queue {
        /// Connections that wait to be accepted.
        Accept = 1,
        /// Half-open handshakes, while SYN cookies are off.
        HalfOpen = 2,
    }
}

/// The limits of a network namespace that `tcp_conn_request` checks.
#[derive(Clone, Copy, Debug)]
pub struct SynLimits {
    /// `net.ipv4.tcp_max_syn_backlog`
    pub max_backlog: u32,
    /// `net.ipv4.tcp_syncookies`
    pub cookies: u8,
}

/// A listener. Its limits are only read if needed. It is a trait, because the compiler may compile a closure as a separate
/// function.
pub trait Listener {
    /// The limits of its network namespace.
    fn limits(&self) -> SynLimits;
}

/// The queue without room, by the checks of `tcp_conn_request`. It checks `sk_acceptq_is_full` (more than the maximum).
/// Without cookies it also checks `inet_csk_reqsk_queue_is_full` and three quarters of `tcp_max_syn_backlog`.
/// Until 6.13, as many half-open handshakes as the backlog fill it, and later one more. Stable kernels may have the later
/// rule.
#[inline(always)]
pub fn full(waiting: u32, backlog: u32, half_open: u32, listener: &impl Listener) -> Option<Queue> {
    if waiting > backlog {
        return Some(Queue::Accept);
    }
    if half_open == 0 {
        return None;
    }
    let SynLimits { max_backlog: max, cookies } = listener.limits();
    let over = half_open >= backlog || max.saturating_sub(half_open) < max >> 2;
    (over && cookies == 0).then_some(Queue::HalfOpen)
}

/// The SYN of a tracked connection met a listener with a full queue: the kernel drops it (exceptions: [`full`]).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QueueFull {
    pub header: Header,
    pub conn: u64,
    /// `sk_ack_backlog`
    pub waiting: u32,
    /// `sk_max_ack_backlog`
    pub backlog: u32,
    /// `icsk_accept_queue.qlen`
    pub half_open: u32,
    /// Namespace of the listener, or [`ABSENT32`](crate::ABSENT32).
    pub netns: u32,
    /// A [`Queue`].
    pub queue: u16,
    pub reserved: [u16; 3],
}

/// A TLS ClientHello arrived at a watched port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TlsHello {
    pub header: Header,
    /// The server's address, v4-mapped.
    pub addr: [u8; 16],
    /// Namespace of the server's socket, [`ABSENT32`](crate::ABSENT32) if it cannot be read.
    pub netns: u32,
    pub port: u16,
    pub reserved: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Listener for SynLimits {
        fn limits(&self) -> SynLimits {
            *self
        }
    }

    fn without_cookies(max_backlog: u32) -> SynLimits {
        SynLimits { max_backlog, cookies: 0 }
    }

    #[test]
    fn a_queue_takes_one_more_than_its_backlog() {
        let limits = without_cookies(0);
        assert_eq!(full(5, 5, 0, &limits), None);
        assert_eq!(full(6, 5, 0, &limits), Some(Queue::Accept));
        // `listen(fd, 0)` lets one connection wait.
        assert_eq!((full(0, 0, 0, &limits), full(1, 0, 0, &limits)), (None, Some(Queue::Accept)));
    }

    #[test]
    fn half_open_handshakes_fill_a_queue_only_without_cookies() {
        assert_eq!(full(0, 128, 127, &without_cookies(1024)), None);
        assert_eq!(full(0, 128, 128, &without_cookies(1024)), Some(Queue::HalfOpen));
        for cookies in [1, 2] {
            assert_eq!(full(0, 128, 128, &SynLimits { max_backlog: 1024, cookies }), None);
        }
    }

    #[test]
    fn the_last_quarter_of_the_backlog_is_for_known_peers() {
        assert_eq!(full(0, 4096, 768, &without_cookies(1024)), None);
        assert_eq!(full(0, 4096, 769, &without_cookies(1024)), Some(Queue::HalfOpen));
        // More handshakes than a maximum that was lowered meanwhile; then a maximum that cannot be read.
        assert_eq!(full(0, 4096, 2000, &without_cookies(1024)), Some(Queue::HalfOpen));
        assert_eq!(full(0, 4096, 2000, &without_cookies(u32::MAX)), None);
    }
}
