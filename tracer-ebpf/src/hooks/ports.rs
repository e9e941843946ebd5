//! Counts the ephemeral ports that each process uses, without an event for each connect.
#![expect(clippy::needless_borrows_for_generic_args, reason = "a value is copied to the stack of 512 bytes")]

use aya_ebpf::{
    helpers::generated::bpf_get_current_cgroup_id,
    macros::{cgroup_sock, cgroup_sock_addr},
    programs::{SockAddrContext, SockContext},
};
use tracer_common::{
    ABSENT64,
    ports::{self, PortUse, SLOTS},
    state,
};

use super::{ALLOW, is_tcp, sock};
use crate::{
    actor,
    atomic::add,
    kernel::{AF_INET, IPPROTO_TCP, Sock, Task, read},
    maps::{NOEXIST, PORT_SLOTS, PORTS, global},
};

function_hook! {
    /// Counts a connect, where no program on `inet_sock_set_state` does it.
    ///
    /// proto v5.10  net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
    /// proto v7.2   net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
    fentry_count_connect, kprobe_count_connect: "tcp_connect", |sk: 0| count_connect(Sock(sk))
}

function_hook! {
    /// A process closes or shuts down a connection, and the kernel is about to send the FIN.
    ///
    /// proto v5.10  net/ipv4/tcp_output.c  void tcp_send_fin(struct sock *sk)
    /// proto v7.2   net/ipv4/tcp_output.c  void tcp_send_fin(struct sock *sk)
    fentry_tcp_send_fin, kprobe_tcp_send_fin: "tcp_send_fin", |sk: 0| try_tcp_send_fin(Sock(sk))
}

/// The side that closes second is in LAST_ACK.
#[inline(always)]
fn try_tcp_send_fin(sk: Sock) {
    if sk.state() == state::FIN_WAIT1 {
        count_close(sk);
    }
}

/// A process connects, where functions have no probes. The kernel has not chosen the source yet (`tcp_v4_pre_connect`,
/// net/ipv4/tcp_ipv4.c).
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

/// A process closes the last descriptor of a socket: see `hooks::bind::sock_release`.
#[cgroup_sock(sock_release)]
pub fn release_port(ctx: SockContext) -> i32 {
    // Else it never had a connection, or has none any more.
    let state = unsafe { (*ctx.sock).state } as u8;
    if ![state::CLOSE, state::LISTEN].contains(&state) && is_tcp(&ctx) {
        count_release(&ctx, sock(&ctx), state);
    }
    ALLOW
}

#[inline(always)]
fn connects(ctx: &SockAddrContext, to: [u64; 2]) {
    let (protocol, port) = unsafe { ((*ctx.sock_addr).protocol, (*ctx.sock_addr).user_port as u16) };
    if protocol == u32::from(IPPROTO_TCP) {
        let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
        // A copy of the word is a number: the verifier forbids arithmetic on the typed pointer.
        let sk = || Sock(read(&raw const sk as u64, 0).unwrap_or(0));
        count_attempt(sk, ports::hash(to, u16::from_be(port)));
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

/// Counts a connect of the current process, unless that is tracer.
#[inline(always)]
pub fn count_connect(sk: Sock) {
    let tgid = actor::tgid();
    if tgid != global!(SETTINGS.own_pid)
        && let (Some(usage), Some(to)) = (slot(|| sk, tgid), sk.destination())
    {
        count(usage, to.hash);
        if to.itself {
            usage.to_itself += 1;
        }
    }
}

/// Counts a connect of the current process before the kernel has chosen a source. `to` is the hash of its destination.
#[inline(always)]
fn count_attempt(sk: impl FnOnce() -> Sock, to: u64) {
    let tgid = actor::tgid();
    if tgid != global!(SETTINGS.own_pid)
        && let Some(usage) = slot(sk, tgid)
    {
        count(usage, to);
    }
}

#[inline(always)]
fn count(usage: &mut PortUse, to: u64) {
    usage.connects += 1;
    let (word, bit) = ports::bit(to);
    usage.destinations[word] |= bit;
}

/// Counts a socket that its process closes while it is in this state, as [`count_close`] does, and whether it was
/// connected to its own address.
///
/// A close that resets the connection (SO_LINGER) counts, although no port stays in TIME_WAIT.
#[inline(always)]
fn count_release(ctx: &SockContext, sk: Sock, state: u8) {
    if !is_ephemeral(sk) {
        return;
    }
    let Some(usage) = slot_of_client(sk) else { return };
    if is_to_itself(ctx, sk) {
        usage.to_itself += 1;
    }
    if ![state::SYN_SENT, state::CLOSE_WAIT, state::LAST_ACK].contains(&state) {
        usage.closes += 1;
    }
}

/// Counts a socket that its own side closes first. Such a socket keeps its port in TIME_WAIT.
///
/// Only ephemeral ports count: later connects cannot use them. The port of a server remains usable for its listener.
#[inline(always)]
pub fn count_close(sk: Sock) {
    if is_ephemeral(sk)
        && let Some(usage) = slot_of_client(sk)
    {
        usage.closes += 1;
    }
}

/// The slot of the current process, if it has connected before.
#[inline(always)]
fn slot_of_client(sk: Sock) -> Option<&'static mut PortUse> {
    let tgid = actor::tgid();
    let usage = unsafe { &mut *PORT_SLOTS.get_ptr_mut(tgid % SLOTS)? };
    if usage.tgid != tgid {
        unsafe { PORTS.get(tgid) }?;
        assign(usage, sk, tgid);
    }
    Some(usage)
}

/// The slot of this process on this CPU. Nobody else uses it, but for a program that interrupts this one: then one
/// count is lost, or goes to the other process.
#[inline(always)]
fn slot(sk: impl FnOnce() -> Sock, tgid: u32) -> Option<&'static mut PortUse> {
    let usage = unsafe { &mut *PORT_SLOTS.get_ptr_mut(tgid % SLOTS)? };
    if usage.tgid != tgid {
        assign(usage, sk(), tgid);
    }
    Some(usage)
}

/// Gives the slot to the current process. The counts of the one before it go to `PORTS`.
#[inline(always)]
fn assign(usage: &mut PortUse, sk: Sock, tgid: u32) {
    if usage.tgid != 0 {
        match PORTS.get_ptr_mut(usage.tgid) {
            Some(total) => unsafe { add_to(total, usage) },
            None => _ = PORTS.insert(usage.tgid, &*usage, 0),
        }
    }
    let task = Task::current();
    *usage = PortUse {
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        cgroup_memory: task.memory_cgroup().unwrap_or(ABSENT64),
        netns: sk.net().inum(),
        tgid,
        ..PortUse::default()
    };
    actor::leader_comm(task, &mut usage.comm);
    // Shows that the process connects, also on other CPUs. Fails if it is known.
    let _ = PORTS.insert(tgid, &*usage, NOEXIST);
}

/// A lost bit of `destinations` does no harm.
#[inline(always)]
unsafe fn add_to(total: *mut PortUse, usage: &PortUse) {
    unsafe {
        add(&raw mut (*total).connects, usage.connects);
        add(&raw mut (*total).closes, usage.closes);
        add(&raw mut (*total).to_itself, usage.to_itself);
        for (word, bits) in usage.destinations.iter().enumerate() {
            (*total).destinations[word] |= bits;
        }
    }
}

/// Whether the kernel may have chosen its source port.
#[inline(always)]
fn is_ephemeral(sk: Sock) -> bool {
    (global!(SETTINGS.port_first)..=global!(SETTINGS.port_last)).contains(&u32::from(sk.num()))
}
