//! The task that caused an event. Only events in the context of that task have it (connect, listen, setns, unshare, an active
//! reset, a link change), never events in softirq context.

use crate::{STACK_DEPTH, header::Header};

/// Length of a `comm`, kernel `TASK_COMM_LEN`.
pub const COMM_LEN: usize = 16;

/// A task.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Actor {
    /// Thread group id ("pid" in userspace).
    pub pid: u32,
    pub tid: u32,
    /// `comm` of the thread group's leader where BTF gives it, else of the thread; NUL padded.
    pub comm: [u8; COMM_LEN],
    /// Inode number of its network namespace or [`crate::ABSENT32`].
    pub netns: u32,
    pub reserved: u32,
    /// cgroup v2 id (`bpf_get_current_cgroup_id`); 1 on a hybrid hierarchy.
    pub cgroup: u64,
    /// kernfs id of the memory controller's cgroup or [`crate::ABSENT64`].
    pub cgroup_memory: u64,
}
const _: () = assert!(core::mem::size_of::<Actor>() == 48);

/// A process got a prober's name, or a prober moved to another cgroup.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Prober {
    pub header: Header,
    pub actor: Actor,
}

/// The kernel kills a process for lack of memory, or lets one that ends anyway have the memory for it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OomKill {
    pub header: Header,
    /// The process that is killed. If the kernel gives only its number, its name is empty, and the rest absent.
    pub victim: Actor,
    /// The code that marks it and its callers, nearest first, 0 where the stack ended.
    pub stack: [u64; STACK_DEPTH],
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Ancestor {
    /// Thread group id, 0 where the chain ended.
    pub pid: u32,
    /// `comm`, NUL padded.
    pub comm: [u8; COMM_LEN],
}
const _: () = assert!(core::mem::size_of::<Ancestor>() == 20);

/// How many ancestors an event carries, nearest first.
pub const ANCESTORS: usize = 6;

/// Buckets of process names.
pub const COMM_BUCKETS: u32 = 256;

/// The bucket of a name, by its first eight bytes in memory order. Bytes after a NUL do not count: they may remain from a longer
/// name.
#[inline(always)]
pub const fn comm_bucket(head: u64) -> u32 {
    let head = u64::from_le(head);
    // The high bit of each zero byte; above the lowest one the borrow may set more.
    let zeroes = head.wrapping_sub(0x0101_0101_0101_0101) & !head & 0x8080_8080_8080_8080;
    let before_nul = (zeroes & zeroes.wrapping_neg()).wrapping_sub(1);
    ((head & before_nul).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32
}
