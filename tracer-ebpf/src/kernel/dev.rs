//! `struct net_device` and `struct net`.

use tracer_common::ABSENT32;

use super::{Dev, Net, read, read_or_zero, read_str};
use crate::maps::global;

impl Dev {
    #[inline(always)]
    pub fn net(self) -> Net {
        Net(read_or_zero(self.0, global!(OFFS.dev_net)))
    }

    #[inline(always)]
    pub fn ifindex(self) -> u32 {
        read_or_zero(self.0, global!(OFFS.dev_ifindex))
    }

    #[inline(always)]
    pub fn flags(self) -> u32 {
        read(self.0, global!(OFFS.dev_flags)).unwrap_or(ABSENT32)
    }

    /// `net_device.state`; bit 0 is `__LINK_STATE_START`.
    #[inline(always)]
    pub fn state(self) -> Option<u64> {
        read(self.0, global!(OFFS.dev_state))
    }

    #[inline(always)]
    pub fn name(self, dst: &mut [u8; 16]) {
        read_str(self.0, global!(OFFS.dev_name), dst);
    }
}

impl Net {
    /// Inode number, or absent.
    #[inline(always)]
    pub fn inum(self) -> u32 {
        read(self.0, global!(OFFS.net_inum)).unwrap_or(ABSENT32)
    }
}

/// Device of a `struct Qdisc`.
#[inline(always)]
pub fn qdisc_dev(qdisc: u64) -> Dev {
    let queue = read_or_zero::<u64>(qdisc, global!(OFFS.qdisc_dev_queue));
    Dev(read_or_zero(queue, global!(OFFS.queue_dev)))
}
