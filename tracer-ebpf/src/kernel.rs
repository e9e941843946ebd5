//! Typed views of kernel objects: the only folder that adds an offset to an address of the kernel.
//!
//! A view is an address and nothing more. Every read goes through `bpf_probe_read_kernel`, so a
//! stale or wild address gives `None`, which is counted (of a string it is not); a field
//! that this kernel does not have gives `None` without counting.

mod dev;
mod packet;
mod skb;
mod sock;
mod task;

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::{bpf_probe_read_kernel as read_raw, bpf_probe_read_kernel_str as read_str_raw},
    programs::TracePointContext,
};
use tracer_common::{ABSENT32, stats::Counter};

pub use self::{
    dev::qdisc_dev,
    packet::parse,
    task::{binprm_path, differ_in_network_alone, nsproxy_netns},
};
use crate::emit::count;

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const IPPROTO_TCP: u16 = 6;

/// Copies `dst.len()` bytes from `base + offset`.
#[inline(always)]
pub fn read_into<T>(base: u64, offset: u32, dst: &mut T) -> bool {
    if offset == ABSENT32 || base == 0 {
        return false;
    }
    let from = (base + u64::from(offset)) as *const _;
    let failed = unsafe { read_raw((&raw mut *dst).cast(), size_of::<T>() as u32, from) } != 0;
    if failed {
        count(Counter::ReadFailed);
    }
    !failed
}

/// Reads a `T` at `base + offset`.
#[inline(always)]
pub fn read<T: Copy + Default>(base: u64, offset: u32) -> Option<T> {
    let mut value = T::default();
    read_into(base, offset, &mut value).then_some(value)
}

/// Copies a NUL-terminated string from `base + offset`; what follows the NUL is left as it was.
#[inline(always)]
pub fn read_str<const N: usize>(base: u64, offset: u32, dst: &mut [u8; N]) -> bool {
    if offset == ABSENT32 || base == 0 {
        return false;
    }
    let from = (base + u64::from(offset)) as *const _;
    unsafe { read_str_raw(dst.as_mut_ptr().cast(), N as u32, from) > 0 }
}

macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub u64);
        impl $name {
            #[inline(always)]
            #[allow(dead_code, reason = "not asked of every object")]
            pub fn exists(self) -> bool {
                self.0 != 0
            }
        }
    };
}

view!(
    /// `struct sock`, full or mini: for the latter only what lies in `sock_common` is meaningful.
    Sock
);
view!(
    /// `struct sk_buff`
    Skb
);
view!(
    /// `struct net_device`
    Dev
);
view!(
    /// `struct net`
    Net
);
view!(
    /// `struct task_struct`
    Task
);

/// Argument `n` of a syscall, or its result (0) at exit: a word of the tracepoint's record, which a
/// program may load directly (`struct syscall_trace_enter`, the same since 3.x).
#[inline(always)]
pub fn syscall_field(ctx: &TracePointContext, n: usize) -> u64 {
    unsafe { *ctx.as_ptr().cast::<u64>().add(2 + n) }
}
