//! Who listens and who uses up source ports, by programs on the root cgroup. Used with `sock_ops` where functions have no
//! probes: a program on `inet_sock_set_state` would run ten times for each connection of the node.
//!
//! No program here changes what the kernel does.

use aya_ebpf::{
    macros::{cgroup_sock, cgroup_sock_addr},
    programs::{SockAddrContext, SockContext},
};
use tracer_common::{listen::Change, names::Hook, ports::hash, state};

use crate::{
    hooks::{ports, state::listen},
    kernel::{AF_INET, IPPROTO_TCP, Sock, read},
};

/// The kernel continues.
const ALLOW: i32 = 1;

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
    if is_tcp(&ctx) {
        match unsafe { (*ctx.sock).state } as u8 {
            // It never had a connection, or has none any more.
            state::CLOSE => {}
            state::LISTEN => listen(Hook::InetCskListen, sock(&ctx), Change::Ends),
            state => {
                let sk = sock(&ctx);
                ports::count_release(sk, state, || is_to_itself(&ctx, sk));
            }
        }
    }
    ALLOW
}

#[inline(always)]
fn bound(ctx: &SockContext) {
    if is_tcp(ctx) {
        listen(Hook::InetCskListen, sock(ctx), Change::Bound);
    }
}

#[inline(always)]
fn is_tcp(ctx: &SockContext) -> bool {
    unsafe { (*ctx.sock).protocol == u32::from(IPPROTO_TCP) }
}

/// A process connects. The kernel has not chosen the source yet (`tcp_v4_pre_connect`, net/ipv4/tcp_ipv4.c).
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    let to = unsafe { (*ctx.sock_addr).user_ip4 };
    connects(&ctx, [u64::from(to), 0]);
    ALLOW
}

/// See [`connect4`].
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    let to = unsafe { (*ctx.sock_addr).user_ip6 };
    connects(&ctx, words(to));
    ALLOW
}

#[inline(always)]
fn connects(ctx: &SockAddrContext, to: [u64; 2]) {
    let (protocol, port) = unsafe { ((*ctx.sock_addr).protocol, (*ctx.sock_addr).user_port as u16) };
    if protocol == u32::from(IPPROTO_TCP) {
        let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
        // A copy of the word is a number: the verifier forbids arithmetic on the typed pointer.
        let sk = || Sock(read(&raw const sk as u64, 0).unwrap_or(0));
        ports::count_attempt(sk, hash(to, u16::from_be(port)));
    }
}

/// Whether the socket is connected to its own address. The context costs less than reads of kernel memory.
#[inline(always)]
fn is_to_itself(ctx: &SockContext, sk: Sock) -> bool {
    let (family, v4, v6) = unsafe { ((*ctx.sock).family as u16, (*ctx.sock).dst_ip4, (*ctx.sock).dst_ip6) };
    if family == AF_INET { sk.has_source_v4(v4) } else { sk.has_source_v6(words(v6)) }
}

#[inline(always)]
fn words([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
}

/// The context is the address of the socket.
#[inline(always)]
fn sock(ctx: &SockContext) -> Sock {
    Sock(ctx.sock as u64)
}
