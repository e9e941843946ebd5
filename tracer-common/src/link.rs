//! A network device was set up or down.

use crate::{
    actor::{ANCESTORS, Actor, Ancestor},
    header::Header,
    netns::PATH_LEN,
};

/// Kernel `IFNAMSIZ`.
pub const IFNAME_LEN: usize = 16;
pub const EXE_LEN: usize = 128;

/// A device's IFF_UP changed (or, from `qdisc_reset`, is about to be cleared).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    pub header: Header,
    pub actor: Actor,
    /// Its ancestors, nearest first.
    pub ancestors: [Ancestor; ANCESTORS],
    /// Path given to exec, NUL padded, empty if the process began before the tracer did.
    pub exe: [u8; EXE_LEN],
    pub netns: u32,
    pub ifindex: u32,
    /// Name, NUL padded.
    pub ifname: [u8; IFNAME_LEN],
    /// Flags after, [`crate::ABSENT32`] if the hook does not have them.
    pub new_flags: u32,
    pub reserved: u32,
    /// `CNI_NETNS` of its environment, in which a container runtime passes the namespace to a network plugin. NUL padded, empty if
    /// it has none.
    pub cni_netns: [u8; PATH_LEN],
}

/// `include/uapi/linux/if.h`
pub const IFF_UP: u32 = 1;
pub const IFF_LOOPBACK: u32 = 8;

/// Whether a device is going down when its queue is reset. `state`: `net_device.state`, if it could be read.
///
/// `__dev_close_many` clears `__LINK_STATE_START` (bit 0) before it stops the queues, and IFF_UP after that. In between the device
/// is going down. A lost carrier or a replaced qdisc does not clear bit 0.
#[inline(always)]
pub const fn is_going_down(flags: u32, state: Option<u64>) -> bool {
    let stopped = match state {
        Some(state) => state & 1 == 0,
        None => flags & IFF_LOOPBACK != 0,
    };
    !(flags == crate::ABSENT32 || flags & IFF_UP == 0 || !stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ABSENT32;

    #[test]
    fn a_device_is_going_down_between_the_two_flags() {
        const NOCARRIER: u64 = 1 << 2;
        assert!(is_going_down(IFF_UP, Some(0)) && is_going_down(IFF_UP, Some(NOCARRIER)));
        assert!(!is_going_down(IFF_UP, Some(1 | NOCARRIER)), "the carrier is lost, the device is up");
        assert!(!is_going_down(0, Some(0)), "it is down already");
    }

    #[test]
    fn unreadable_values_are_no_link_down() {
        assert!(!is_going_down(ABSENT32, Some(0)) && !is_going_down(ABSENT32, None));
        // The queue of the loopback device is only reset when it goes down.
        assert!(is_going_down(IFF_UP | IFF_LOOPBACK, None) && !is_going_down(IFF_UP, None));
    }
}
