//! A network device was set up or down.

use crate::{
    actor::{ANCESTORS, Actor, Ancestor},
    header::Header,
    header::Kind,
    netns::PATH_LEN,
    wire_event,
};

/// Kernel `IFNAMSIZ`.
pub const IFNAME_LEN: usize = 16;
/// Longest executable path that is carried.
pub const EXE_LEN: usize = 128;

/// A device's IFF_UP changed (or, from `qdisc_reset`, is about to be cleared).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    /// See [`Header`].
    pub header: Header,
    /// Who did it.
    pub actor: Actor,
    /// Its ancestors, nearest first.
    pub ancestors: [Ancestor; ANCESTORS],
    /// Path given to exec, NUL padded, empty if the process began before the tracer did.
    pub exe: [u8; EXE_LEN],
    /// Namespace of the device.
    pub netns: u32,
    /// Interface index.
    pub ifindex: u32,
    /// Name, NUL padded.
    pub ifname: [u8; IFNAME_LEN],
    /// Flags before, [`crate::ABSENT32`] if the hook cannot tell.
    pub old_flags: u32,
    /// Flags after, [`crate::ABSENT32`] if the hook cannot tell.
    pub new_flags: u32,
    /// `CNI_NETNS` of its environment, by which a container runtime tells a network plugin the
    /// namespace to work in; NUL padded, empty if it has none.
    pub cni_netns: [u8; PATH_LEN],
}
wire_event!(Link, Kind::Link, 448);
