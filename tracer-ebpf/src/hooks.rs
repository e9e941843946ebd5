//! One file per hook family.
//!
//! Each program is named after the kernel function that it is attached to. If there are several program types for one
//! hook, the name begins with the type, and they share one body.

/// A hook on a kernel function: a fentry program and a kprobe with the same body. `|name: number|` are the arguments of
/// the function that the body uses.
macro_rules! function_hook {
    // `tt`, since the attribute does not accept the invisible group around a `literal`.
    ($(#[$doc:meta])* $fentry:ident, $kprobe:ident: $function:tt, |$($argument:ident: $number:literal),+| $body:expr) => {
        $(#[$doc])*
        #[aya_ebpf::macros::fentry(function = $function)]
        pub fn $fentry(ctx: aya_ebpf::programs::FEntryContext) -> i32 {
            $(let $argument: u64 = ctx.arg($number);)+
            $body;
            0
        }

        #[doc = concat!("See [`", stringify!($fentry), "`].")]
        #[aya_ebpf::macros::kprobe]
        pub fn $kprobe(ctx: aya_ebpf::programs::ProbeContext) -> u32 {
            $(let $argument: u64 = ctx.arg($number).unwrap_or(0);)+
            $body;
            0
        }
    };
}

mod answer;
mod bind;
mod connect;
mod drop;
mod icmp;
mod ipvs;
mod link;
mod netns;
mod oom;
mod open;
mod pod_connect;
mod ports;
mod prober;
mod queue;
mod reset;
mod state;
mod tls;

use aya_ebpf::programs::SockContext;

use crate::kernel::{IPPROTO_TCP, Sock};

/// A program on a cgroup returns it: the kernel continues.
const ALLOW: i32 = 1;

#[inline(always)]
fn is_tcp(ctx: &SockContext) -> bool {
    unsafe { (*ctx.sock).protocol == u32::from(IPPROTO_TCP) }
}

/// The context is the address of the socket.
#[inline(always)]
fn sock(ctx: &SockContext) -> Sock {
    Sock(ctx.sock as u64)
}
