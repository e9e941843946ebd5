//! Events of a tracked connection. A prober made it, or any process with `--all-connections`.

use crate::{actor::Actor, header::Header, tuple::Tuple};

numbered! {
    /// How a later event was matched to its connection.
    pub enum Via {
        Socket = 1,
        /// By the exact tuple, one direction or the other.
        Flow = 2,
        /// By addresses and destination port; the source port, read from the waiting socket, is equal, too.
        Pending = 3,
        /// Only by the destination of a waiting connect of the prober.
        Destination = 4,
        /// By destination and source port of the waiting socket. The source address or the target's port differs,
        /// because it was translated.
        Translated = 5,
    }
}

/// The low bits of a connection's identity that have the number of the processor on which it began.
///
/// They replace bits of the time, so there are only as many as the machine needs. Up to 256 processors need eight bits, which leave
/// a resolution of 256 ns. Linux supports at most 8192 processors (`NR_CPUS`, arch/x86/Kconfig).
pub const fn cpu_mask(processors: usize) -> u32 {
    let processors = if processors < 256 { 256 } else { processors };
    let processors = if processors > 8192 { 8192 } else { processors };
    processors.next_power_of_two() as u32 - 1
}

/// The identity of a connection that begins `now` (CLOCK_BOOTTIME) on this processor: see [`Connect::conn`].
///
/// Two connections of one processor begin further apart than the replaced bits of the time: the program and the system call take
/// more than a microsecond.
#[inline(always)]
pub const fn id(now: u64, cpu: u32, cpu_mask: u32) -> u64 {
    (now & !(cpu_mask as u64)) | (cpu & cpu_mask) as u64
}

/// Nanoseconds since a connection began. The error is at most two values of the low bits, and the result is never negative.
#[inline(always)]
pub const fn age(now: u64, conn: u64, cpu_mask: u32) -> u64 {
    (now | cpu_mask as u64).wrapping_sub(conn)
}

/// No source port is free, or there is no source address.
pub const EADDRNOTAVAIL: i32 = 99;

/// Whether `connect(2)` fails with this errno only after an answer, or a missing one, to its packets.
#[inline(always)]
pub const fn is_answer(errno: i32) -> bool {
    const ECONNRESET: i32 = 104;
    const ETIMEDOUT: i32 = 110;
    const ECONNREFUSED: i32 = 111;
    matches!(errno, ECONNRESET | ETIMEDOUT | ECONNREFUSED)
}

/// Whether `connect(2)` failed. Some errnos only mean that the connect continues or is already complete.
#[inline(always)]
pub const fn has_failed(errno: i32) -> bool {
    const EINTR: i32 = 4;
    const EISCONN: i32 = 106;
    const EALREADY: i32 = 114;
    const EINPROGRESS: i32 = 115;
    !(errno <= 0 || matches!(errno, EINTR | EISCONN | EALREADY | EINPROGRESS))
}

/// Whether a socket with this error failed to connect. All others are errors of a connection, or the process's own.
#[inline(always)]
pub const fn is_unreachable(errno: i32) -> bool {
    const ENETUNREACH: i32 = 101;
    const ETIMEDOUT: i32 = 110;
    const ECONNREFUSED: i32 = 111;
    const EHOSTUNREACH: i32 = 113;
    matches!(errno, ENETUNREACH | ETIMEDOUT | ECONNREFUSED | EHOSTUNREACH)
}

/// A connect of a pod with a failed probe gets this error.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PodConnect {
    pub header: Header,
    /// Destination, v4-mapped.
    pub addr: [u8; 16],
    /// The pod's namespace.
    pub netns: u32,
    /// `sk->sk_err` (positive).
    pub errno: i32,
    pub port: u16,
    /// 1: UDP, else TCP.
    pub udp: u16,
    pub reserved: u32,
}

/// A connect began (`CLOSE -> SYN_SENT`), in the connecting task's own context.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Connect {
    pub header: Header,
    /// Identity of the connection: unique while this boot lasts, never a reused pointer or port.
    pub conn: u64,
    /// From the client's side; `sport` is 0 where the hook runs before the port is chosen.
    pub tuple: Tuple,
    pub actor: Actor,
    /// Inode number of the socket's network namespace.
    pub netns: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct State {
    pub header: Header,
    pub conn: u64,
    /// From the client's side, with the source port from `inet_sport`.
    pub tuple: Tuple,
    /// `tcp_sock.bytes_received`, [`crate::ABSENT64`] if unknown.
    pub bytes_received: u64,
    /// `tcp_sock.bytes_sent`, retransmits included.
    pub bytes_sent: u64,
    /// `tcp_sock.bytes_acked`; the SYN counts one.
    pub bytes_acked: u64,
    /// `sk->sk_err` (positive), or [`crate::ABSENT_ERRNO`].
    pub errno: i32,
    /// Kernel `TCP_*` state before.
    pub old: u8,
    /// Kernel `TCP_*` state after.
    pub new: u8,
    /// 1 if this is a close, and the current task belongs to the thread group that connected.
    pub own_context: u8,
    /// 1 if the process has written bytes that were not sent: the peer's window is closed. Not known: 0.
    pub unsent: u8,
    pub reserved: [u8; 4],
    /// Microseconds since the last segment of either side (`tcp_sock.tcp_mstamp`), [`crate::ABSENT32`] if unknown.
    /// While nothing was received: since data was acknowledged (`tcp_sock.rack`).
    pub quiet_us: u32,
}

/// `connect()` of a prober returned an error other than EINPROGRESS.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ConnectResult {
    pub header: Header,
    /// The connection if SYN_SENT was reached, else 0.
    pub conn: u64,
    /// The destination of the call; the source is zero.
    pub tuple: Tuple,
    pub actor: Actor,
    /// Positive errno.
    pub errno: i32,
    pub reserved: u32,
}

/// A socket of the connection retransmitted a segment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Retransmit {
    pub header: Header,
    pub conn: u64,
    /// Payload bytes of the segment.
    pub payload: u32,
    /// Kernel `TCP_*` state of the socket.
    pub state: u8,
    /// 1: the target's socket retransmits, not the prober's.
    pub by_target: u8,
    pub reserved: [u8; 2],
}

/// Events of the connection are held back: it has too many.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Held {
    pub header: Header,
    pub conn: u64,
}

numbered! {
    /// What the first bytes of an answer are.
    pub enum AnswerKind {
        /// An HTTP/1 status line. Without a status if Go's client rejects it.
        Http = 1,
        /// A TLS record.
        Tls = 2,
        /// Anything else of five bytes or more.
        Other = 3,
        /// Too short to classify.
        Short = 4,
        /// A TLS record that is a fatal alert (RFC 8446 6).
        Alert = 5,
        /// A frame with which a server of HTTP/2 begins (RFC 9113 3.4).
        Http2 = 6,
    }
}

impl AnswerKind {
    pub const fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Alert)
    }
}

/// The first payload that arrives at a tracked socket.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Answer {
    pub header: Header,
    pub conn: u64,
    /// An [`AnswerKind`].
    pub kind: u16,
    /// HTTP status, 0 if there is none.
    pub status: u16,
    /// Payload of the segment in bytes, at most 65535; 0 if it is not known.
    pub len: u16,
    /// [`ANSWER_AFTER_REQUEST`] and the flags after it.
    pub flags: u16,
}

/// The prober had sent payload before.
pub const ANSWER_AFTER_REQUEST: u16 = 1;
/// The prober had sent no payload before.
pub const ANSWER_WITHOUT_REQUEST: u16 = 2;
/// The answer reports that the port expects TLS.
pub const ANSWER_MENTIONS_TLS: u16 = 4;

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;

    /// How many values the low bits have.
    fn slot(mask: u32) -> u64 {
        u64::from(mask) + 1
    }

    /// With always eight bits, processor 256 would get the same identity as processor 0.
    #[test]
    fn connections_that_begin_at_once_on_each_processor_have_different_identities() {
        let now = 3600 * 1_000_000_000 + 77;
        for processors in [1, 2, 255, 256, 257, 512, 768, 1024, 4096, 8192] {
            let mask = cpu_mask(processors);
            let ids: BTreeSet<u64> = (0..processors as u32).map(|cpu| id(now, cpu, mask)).collect();
            assert_eq!(ids.len(), processors);
            let later: BTreeSet<u64> = (0..processors as u32).map(|cpu| id(now + slot(mask), cpu, mask)).collect();
            assert!(ids.last() < later.first(), "{processors}: those of a later moment are greater");
        }
    }

    #[test]
    fn an_identity_is_the_time_except_for_the_low_bits() {
        for (processors, bits) in [(1, 8), (256, 8), (257, 9), (512, 9), (513, 10), (8192, 13), (1 << 20, 13)] {
            let mask = cpu_mask(processors);
            assert_eq!(slot(mask), 1 << bits, "{processors}");
            for now in [slot(mask), 123_456_789_012, u64::MAX] {
                assert_eq!(id(now, 5, mask) >> bits, now >> bits);
            }
        }
        assert_eq!(id(0x1234_5678, 3, cpu_mask(4)), 0x1234_5603);
        // A processor that was added after the start must not change the bits of the time.
        assert_eq!(id(0x1234_5678, 0x103, cpu_mask(4)), 0x1234_5603);
    }

    /// The number of the processor may be greater than the replaced bits of the time.
    #[test]
    fn the_age_of_a_connection_is_never_negative() {
        for processors in [2, 256, 1024] {
            let mask = cpu_mask(processors);
            for (now, cpu) in [(slot(mask), processors as u32 - 1), (slot(mask) * 9 - 1, 0), (slot(mask) * 9, 1)] {
                let conn = id(now, cpu, mask);
                for later in [0, 1, 50, 1_000_000_000] {
                    let age = age(now + later, conn, mask);
                    assert!(age.abs_diff(later) < 2 * slot(mask), "{processors}: {age} after {later}");
                }
            }
        }
    }

    #[test]
    fn a_connect_that_continues_has_not_failed() {
        assert!([0, -111, 4, 106, 114, 115, i32::MIN].into_iter().all(|errno| !has_failed(errno)));
        // EACCES, EADDRNOTAVAIL, ENETUNREACH, ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH
        assert!([13, 99, 101, 110, 111, 113].into_iter().all(has_failed));
    }
}
