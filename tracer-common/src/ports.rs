//! Who uses up ephemeral ports: counted in the kernel, taken by userspace once a minute.

use crate::actor::COMM_LEN;

/// Words of [`PortUse::destinations`].
pub const DESTINATION_WORDS: usize = 4;
/// Bits of it.
pub const DESTINATION_BITS: u32 = DESTINATION_WORDS as u32 * 64;

/// What one process did since it was last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PortUse {
    /// Connects that got as far as SYN_SENT.
    pub connects: u64,
    /// Connections that it closed first, from an ephemeral port: each leaves the port in TIME_WAIT.
    pub closes: u64,
    /// Connects to the address that they came from.
    pub to_itself: u64,
    /// One bit for each destination, by a hash of its address and port: how many are set tells how
    /// many destinations there were.
    pub destinations: [u64; DESTINATION_WORDS],
    /// See [`crate::actor::Actor::cgroup`].
    pub cgroup: u64,
    /// See [`crate::actor::Actor::cgroup_memory`].
    pub cgroup_memory: u64,
    /// Name of the thread group's leader, NUL padded.
    pub comm: [u8; COMM_LEN],
    /// Namespace of its first socket.
    pub netns: u32,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<PortUse>() == 96);
