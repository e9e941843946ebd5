//! The first 24 bytes of every event.

/// Version of the wire format; both sides are built together, so a difference is a build error
/// that userspace reports instead of guessing.
pub const WIRE_VERSION: u16 = 1;

numbered! {
    /// What an event is. Numbers are never reused.
    pub enum Kind {
        /// [`crate::conn::Connect`]
        Connect = 1,
        /// [`crate::conn::State`]
        State = 2,
        /// [`crate::conn::ConnectResult`]
        ConnectResult = 3,
        /// [`crate::conn::Retransmit`]
        Retransmit = 4,
        /// [`crate::reset::ResetSent`]
        ResetSent = 5,
        /// [`crate::reset::ResetReceived`]
        ResetReceived = 6,
        /// [`crate::drop::PacketDrop`]
        Drop = 7,
        /// [`crate::listen::Listen`]
        Listen = 8,
        /// [`crate::listen::TlsHello`]
        TlsHello = 9,
        /// [`crate::netns::NetnsOp`]
        NetnsOp = 10,
        /// [`crate::netns::NetnsOpen`]
        NetnsOpen = 11,
        /// [`crate::link::Link`]
        Link = 12,
        /// [`crate::netfilter::Icmp`]
        Icmp = 13,
        /// [`crate::netfilter::Ipvs`]
        Ipvs = 14,
        /// [`crate::conn::Answer`]
        Answer = 15,
        /// [`crate::listen::QueueFull`]
        QueueFull = 16,
        /// [`crate::actor::Prober`]
        Prober = 17,
    }
}

/// Stands at the head of every event.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// CLOCK_BOOTTIME in nanoseconds (`bpf_ktime_get_boot_ns`).
    pub time_boot_ns: u64,
    /// [`WIRE_VERSION`].
    pub version: u16,
    /// A [`Kind`].
    pub kind: u16,
    /// A [`crate::names::Hook`]: which kernel function or tracepoint wrote this.
    pub hook: u16,
    /// Always 0.
    pub reserved: u16,
    /// The CPU it happened on.
    pub cpu: u32,
    /// Size of the whole event in bytes.
    pub len: u32,
}
const _: () = assert!(core::mem::size_of::<Header>() == 24);
