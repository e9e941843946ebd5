//! Listening sockets.

use crate::{actor::Actor, header::Header, header::Kind, wire_event};

/// A socket began or ceased to listen.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Listen {
    /// See [`Header`].
    pub header: Header,
    /// Bound address, v4-mapped; all zero for any address (IPv4's any is `::ffff:0.0.0.0`).
    pub addr: [u8; 16],
    /// Who did it.
    pub actor: Actor,
    /// Namespace of the socket.
    pub netns: u32,
    /// Port.
    pub port: u16,
    /// 1 begins, 0 ends.
    pub begins: u8,
    /// Always 0.
    pub reserved: u8,
}
wire_event!(Listen, Kind::Listen, 96);

numbered! {
    /// Which queue of a listener has no room.
    pub enum Queue {
        /// Connections that wait to be accepted.
        Accept = 1,
        /// Handshakes that are half done; SYN cookies are off.
        HalfOpen = 2,
    }
}

/// The SYN of a tracked connection met a listener with a full queue: the kernel drops it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct QueueFull {
    /// See [`Header`].
    pub header: Header,
    /// See [`crate::conn::Connect::conn`].
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
    /// Always 0.
    pub reserved: [u16; 3],
}
wire_event!(QueueFull, Kind::QueueFull, 56);

/// A TLS ClientHello arrived at a port that is watched for it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TlsHello {
    /// See [`Header`].
    pub header: Header,
    /// The server's address, v4-mapped.
    pub addr: [u8; 16],
    /// Namespace of the server's socket, [`ABSENT32`](crate::ABSENT32) if it cannot be read.
    pub netns: u32,
    /// The server's port.
    pub port: u16,
    /// Always 0.
    pub reserved: u16,
}
wire_event!(TlsHello, Kind::TlsHello, 48);
