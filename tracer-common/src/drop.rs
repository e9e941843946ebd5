//! A packet of a tracked connection was dropped.

use crate::{STACK_DEPTH, actor::COMM_LEN, header::Header, link::IFNAME_LEN, tuple::Tuple};

/// `kfree_skb` of a packet of a tracked flow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PacketDrop {
    pub header: Header,
    pub conn: u64,
    /// Direction of the dropped packet.
    pub tuple: Tuple,
    /// Address of the code that dropped it.
    pub location: u64,
    /// Callers of it, nearest first, 0 where the stack ended.
    pub stack: [u64; STACK_DEPTH],
    /// `enum skb_drop_reason` of the running kernel, or [`crate::ABSENT32`] (5.10).
    pub reason: u32,
    /// Namespace of the device, else of the socket, else [`crate::ABSENT32`].
    pub netns: u32,
    /// Interface index of `skb->dev`, 0 without a device.
    pub ifindex: u32,
    /// `dev->flags`, [`crate::ABSENT32`] without a device.
    pub if_flags: u32,
    /// Name of the device, NUL padded.
    pub ifname: [u8; IFNAME_LEN],
    pub tcp_flags: u8,
    pub reserved: [u8; 5],
    /// A [`crate::conn::Via`].
    pub via: u16,
    /// `skb->_nfct`: the conntrack entry with its state in the low three bits, 0 without one, or [`crate::ABSENT64`].
    pub nfct: u64,
    /// `bpf_get_current_pid_tgid`. Only where a process refuses a packet of its NFQUEUE has it to do with the drop.
    pub pid_tgid: u64,
    /// `comm` of that process, NUL padded.
    pub comm: [u8; COMM_LEN],
}
