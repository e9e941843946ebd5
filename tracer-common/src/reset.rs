//! RST segments of a tracked connection.

use crate::{actor::Actor, header::Header, tuple::Tuple};

/// This host's stack emits a RST.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ResetSent {
    pub header: Header,
    pub conn: u64,
    /// Direction of the RST itself: its source sends it.
    pub tuple: Tuple,
    /// The emitting task; meaningful only if `active` is 1.
    pub actor: Actor,
    /// `enum sk_rst_reason` of the running kernel, or [`crate::ABSENT32`].
    pub reason: u32,
    /// Namespace of the emitting side, or [`crate::ABSENT32`].
    pub netns: u32,
    /// TCP flags (byte 13 of the header) of the segment that the RST answers; 0 if it answers none.
    pub answered_flags: u8,
    /// Kernel `TCP_*` state of the emitting socket, 0 without a socket.
    pub state: u8,
    /// 1: the stack found no socket for the segment.
    pub no_socket: u8,
    /// 1: sent by close or abort in the task's own context, not in answer to a segment.
    pub active: u8,
    /// A [`crate::conn::Via`].
    pub via: u16,
    /// Of an active one: 1 if the socket had data that its process had not read, 2 if it had none, 0 if that is unknown.
    pub unread: u8,
    pub reserved: u8,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ResetReceived {
    pub header: Header,
    pub conn: u64,
    /// From the client's side.
    pub tuple: Tuple,
    /// `tcp_sock.bytes_received`, [`crate::ABSENT64`] if unknown.
    pub bytes_received: u64,
    /// Payload that the client has not read yet (`rcv_nxt` - `copied_seq`), or [`crate::ABSENT32`].
    pub unread: u32,
    /// Kernel `TCP_*` state when the RST arrived.
    pub state: u8,
    pub reserved: [u8; 3],
}
