//! The first 24 bytes of every event.

/// Version of the wire format; both sides are built together, so a difference is a build error
/// that userspace reports instead of guessing.
pub const WIRE_VERSION: u16 = 1;

numbered! {
    /// The kind of an event. Numbers are never reused.
    pub enum Kind {
        Connect = 1,
        State = 2,
        ConnectResult = 3,
        Retransmit = 4,
        ResetSent = 5,
        ResetReceived = 6,
        Drop = 7,
        Listen = 8,
        TlsHello = 9,
        NetnsOp = 10,
        NetnsOpen = 11,
        Link = 12,
        Icmp = 13,
        Ipvs = 14,
        Answer = 15,
        QueueFull = 16,
        Prober = 17,
    }
}

/// The head of every event.
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
    pub reserved: u16,
    pub cpu: u32,
    /// Size of the whole event in bytes.
    pub len: u32,
}
const _: () = assert!(core::mem::size_of::<Header>() == 24);
