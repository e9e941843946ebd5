//! Typed views of kernel objects. Only this folder adds an offset to a kernel address.
//!
//! A view is just an address. Every read uses `bpf_probe_read_kernel`, so a stale, wild or null address gives `None`, as a field
//! that this kernel lacks does. Nothing is decided before or after a read but that: each branch doubles what the verifier follows.
//! With the feature `typed-loads` it is [`typed`] that reads, for kernels that withhold this helper. There a wild address gives 0.

mod dev;
mod packet;
mod skb;
mod sock;
mod task;
#[cfg(feature = "typed-loads")]
mod typed;

use aya_ebpf::{EbpfContext as _, programs::TracePointContext};
use tracer_common::{ABSENT32, tuple::map_v4};

#[cfg(feature = "typed-loads")]
use self::typed::{copy, copy_str};

pub use self::{
    dev::qdisc_dev,
    packet::parse,
    task::{binprm_path, differ_only_in_netns, nsproxy_netns},
};

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const IPPROTO_TCP: u16 = 6;

/// Copies `dst.len()` bytes from `base + offset`.
#[inline(always)]
pub fn read_into<T>(base: u64, offset: u32, dst: &mut T) -> bool {
    if offset == ABSENT32 {
        return false;
    }
    copy(base, offset, dst)
}

#[cfg(not(feature = "typed-loads"))]
#[inline(always)]
fn copy<T>(base: u64, offset: u32, dst: &mut T) -> bool {
    use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
    let from = (base + u64::from(offset)) as *const _;
    unsafe { bpf_probe_read_kernel((&raw mut *dst).cast(), size_of::<T>() as u32, from) == 0 }
}

/// Reads a `T` at `base + offset`.
#[inline(always)]
pub fn read<T: Copy + Default>(base: u64, offset: u32) -> Option<T> {
    let mut value = T::default();
    read_into(base, offset, &mut value).then_some(value)
}

/// Reads a number at `base + offset`, or 0: if the helper fails, it zeroes the destination.
#[inline(always)]
pub fn read_or_zero<T: Copy + Default>(base: u64, offset: u32) -> T {
    let mut value = T::default();
    read_into(base, offset, &mut value);
    value
}

/// Copies an address of this family, v4-mapped. Its offset depends on the family: IPv4, IPv6.
#[inline(always)]
pub fn read_addr(family: u16, base: u64, [v4, v6]: [u32; 2], dst: &mut [u8; 16]) -> bool {
    match family {
        AF_INET => read(base, v4).map(|addr| map_v4(dst, addr)).is_some(),
        AF_INET6 => read_into(base, v6, dst),
        _ => false,
    }
}

/// Copies a NUL-terminated string from `base + offset`. `dst` must be zeroed: what follows the NUL is not written.
#[inline(always)]
pub fn read_str<const N: usize>(base: u64, offset: u32, dst: &mut [u8; N]) -> bool {
    if offset == ABSENT32 {
        return false;
    }
    copy_str(base, offset, dst)
}

#[cfg(not(feature = "typed-loads"))]
#[inline(always)]
fn copy_str<const N: usize>(base: u64, offset: u32, dst: &mut [u8; N]) -> bool {
    use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
    let from = (base + u64::from(offset)) as *const _;
    unsafe { bpf_probe_read_kernel_str(dst.as_mut_ptr().cast(), N as u32, from) > 0 }
}

macro_rules! views {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub u64);
        impl $name {
            #[inline(always)]
            #[allow(dead_code, reason = "some views do not use it")]
            pub fn exists(self) -> bool {
                self.0 != 0
            }
        }
    )*};
}

views! {
    /// `struct sock`, full or mini. A mini socket has only the fields of `sock_common`.
    Sock;
    /// `struct sk_buff`
    Skb;
    /// `struct net_device`
    Dev;
    /// `struct net`
    Net;
    /// `struct task_struct`
    Task;
}

/// Argument `n` of a system call; at exit, `n` = 0 is its result.
///
/// A program may load the words of the tracepoint's record directly (`struct syscall_trace_enter`, the same since 3.x).
#[inline(always)]
pub fn syscall_field(ctx: &TracePointContext, n: usize) -> u64 {
    unsafe { *ctx.as_ptr().cast::<u64>().add(2 + n) }
}
