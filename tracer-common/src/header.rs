//! The first 16 bytes of every event.

/// The head of every event.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// CLOCK_BOOTTIME in nanoseconds (`bpf_ktime_get_boot_ns`).
    pub time_boot_ns: u64,
    /// [`crate::events::WIRE_VERSION`].
    pub version: u16,
    /// A [`crate::events::Kind`].
    pub kind: u16,
    /// A [`crate::names::Hook`]: which kernel function or tracepoint wrote this.
    pub hook: u16,
    pub reserved: u16,
}
const _: () = assert!(core::mem::size_of::<Header>() == 16);
