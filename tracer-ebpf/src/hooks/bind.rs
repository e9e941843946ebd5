//! Who listens, by programs on the root cgroup. Used with `sock_ops` where functions have no probes: a program on
//! `inet_sock_set_state` would run ten times for each connection of the node.
//!
//! No program here changes what the kernel does.

use aya_ebpf::{macros::cgroup_sock, programs::SockContext};
use tracer_common::{listen::Change, names::Hook, state};

use super::{
    ALLOW, is_tcp, sock,
    state::{listen, report_listener},
};

/// A process binds a port. It may listen there soon: userspace looks.
#[cgroup_sock(post_bind4)]
pub fn post_bind4(ctx: SockContext) -> i32 {
    bound(&ctx);
    ALLOW
}

/// See [`post_bind4`].
#[cgroup_sock(post_bind6)]
pub fn post_bind6(ctx: SockContext) -> i32 {
    bound(&ctx);
    ALLOW
}

/// A process closes the last descriptor of a socket, which still has its state (`inet_release`, net/ipv4/af_inet.c).
#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    if unsafe { (*ctx.sock).state } as u8 == state::LISTEN && (is_tcp(&ctx) || is_mptcp(&ctx)) {
        report_listener(Hook::InetCskListen, sock(&ctx), Change::Ends);
    }
    ALLOW
}

#[inline(always)]
fn bound(ctx: &SockContext) {
    if is_tcp(ctx) {
        listen(Hook::InetCskListen, sock(ctx), Change::Bound);
    }
}

/// The process has a socket of MPTCP, with the port of the TCP socket below it. This program does not run for the latter.
#[inline(always)]
fn is_mptcp(ctx: &SockContext) -> bool {
    const IPPROTO_MPTCP: u32 = 262;
    unsafe { (*ctx.sock).protocol == IPPROTO_MPTCP }
}
