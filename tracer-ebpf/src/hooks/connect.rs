//! The connecting side, in its own context: the source port, and what `connect(2)` returned.

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_probe_read_user,
    macros::{fentry, fexit, kprobe, kretprobe, tracepoint},
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext, TracePointContext},
};
use tracer_common::{
    conn::{ConnectResult, EADDRNOTAVAIL, has_failed, is_answer},
    names::Hook,
    state,
    tuple::map_v4,
};

use crate::{
    actor,
    emit::{Urgency, emit},
    flows,
    hooks::state::{begin, change, conn_of, emit_connect},
    kernel::{AF_INET, AF_INET6, Sock, Task, read, syscall_field},
    maps::{CONNECT_CALLS, Conn, ConnectCall, global},
    sockets,
};

/// The SYN is about to be built: the source port is chosen.
///
/// proto v5.10  net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
/// proto v7.2   net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
#[fentry(function = "tcp_connect")]
pub fn fentry_tcp_connect(ctx: FEntryContext) -> i32 {
    // To the verifier the argument is a pointer of its own kind, of which no bucket can be made; a copy of the word is a
    // number.
    try_tcp_connect(Sock(read(ctx.as_ptr() as u64, 0).unwrap_or(0)), Hook::TcpConnect);
    0
}

/// See [`fentry_tcp_connect`].
#[kprobe]
pub fn kprobe_tcp_connect(ctx: ProbeContext) -> u32 {
    try_tcp_connect(Sock(ctx.arg(0).unwrap_or(0)), Hook::TcpConnect);
    0
}

#[inline(always)]
fn try_tcp_connect(sk: Sock, hook: Hook) {
    match sockets::by_socket(sk) {
        Some(conn) => report_port(sk, conn, hook),
        // The kernel skipped the run that would have reported it: another thread of this processor was in that program.
        None if sk.state() == state::SYN_SENT => begin(sk, hook),
        None => {}
    }
}

/// Repeats the connect event, now with its source port, unless the flow is known already.
#[inline(always)]
fn report_port(sk: Sock, mut conn: Conn, hook: Hook) {
    sockets::fill_port(sk, &mut conn.tuple);
    if conn.tuple.sport != 0 && !flows::knows(&conn.tuple, conn.conn) {
        flows::remember(&conn.tuple, conn.conn);
        emit_connect(Urgency::Later, hook, &conn);
    }
}

/// A prober calls `connect(2)`: what it dials.
///
/// proto v5.10  net/socket.c  int __sys_connect(int fd, struct sockaddr __user *uservaddr, int addrlen)
/// proto v7.2   net/socket.c  int __sys_connect(int fd, struct sockaddr __user *uservaddr, int addrlen)
#[fentry(function = "__sys_connect")]
pub fn fentry_sys_connect(ctx: FEntryContext) -> i32 {
    try_sys_enter_connect(ctx.arg::<u64>(0) as u32, ctx.arg(1));
    0
}

/// See [`fentry_sys_connect`].
#[kprobe]
pub fn kprobe_sys_connect(ctx: ProbeContext) -> u32 {
    try_sys_enter_connect(ctx.arg::<u64>(0).unwrap_or(0) as u32, ctx.arg(1).unwrap_or(0));
    0
}

/// See [`fentry_sys_connect`]: for kernels without function probes. One `syscalls:*` tracepoint makes every
/// system call of the node take the slow path.
///
/// proto v5.10  net/socket.c  SYSCALL_DEFINE3(connect, int, fd, struct sockaddr __user *, uservaddr, int, addrlen)
#[tracepoint(category = "syscalls", name = "sys_enter_connect")]
pub fn sys_enter_connect(ctx: TracePointContext) -> u32 {
    try_sys_enter_connect(syscall_field(&ctx, 0) as u32, syscall_field(&ctx, 1));
    0
}

#[inline(always)]
fn try_sys_enter_connect(fd: u32, addr: u64) {
    // First, as a read of user memory takes several times as long.
    if !actor::is_tracked(actor::tgid()) {
        return;
    }
    let Ok(head) = (unsafe { bpf_probe_read_user::<[u8; 8]>(addr as *const _) }) else { return };
    let family = u16::from_ne_bytes([head[0], head[1]]);
    if !(family == AF_INET || family == AF_INET6) {
        return;
    }
    let mut dial =
        ConnectCall { addr: [0; 16], sk: 0, conn: 0, port: u32::from(u16::from_be_bytes([head[2], head[3]])), fd };
    if family == AF_INET {
        map_v4(&mut dial.addr, [head[4], head[5], head[6], head[7]]);
    } else {
        // `sin6_addr` follows `sin6_flowinfo`.
        let Ok(v6) = (unsafe { bpf_probe_read_user::<[u8; 16]>((addr + 8) as *const _) }) else { return };
        dial.addr = v6;
    }
    let _ = CONNECT_CALLS.insert(actor::tid(), dial, 0);
}

/// `connect(2)` of a prober returns.
///
/// A non-blocking connect gets EINPROGRESS even if the answer is there already (it waits in the
/// backlog): only failures of route, port and permission are returned here.
#[fexit(function = "__sys_connect")]
pub fn fexit_sys_connect(ctx: FExitContext) -> i32 {
    // What a function returned comes after its three arguments: `bpf_get_func_ret` is of 5.17.
    try_sys_exit_connect(ctx.arg::<i32>(3));
    0
}

/// See [`fexit_sys_connect`].
#[kretprobe]
pub fn kretprobe_sys_connect(ctx: RetProbeContext) -> u32 {
    try_sys_exit_connect(ctx.ret());
    0
}

/// See [`fexit_sys_connect`].
#[tracepoint(category = "syscalls", name = "sys_exit_connect")]
pub fn sys_exit_connect(ctx: TracePointContext) -> u32 {
    try_sys_exit_connect(syscall_field(&ctx, 0) as i32);
    0
}

#[inline(always)]
fn try_sys_exit_connect(returned: i32) {
    let tid = actor::tid();
    let Some(dial) = (unsafe { CONNECT_CALLS.get(tid).copied() }) else { return };
    let _ = CONNECT_CALLS.remove(tid);
    finish(&dial, -returned);
}

#[inline(always)]
fn finish(dial: &ConnectCall, errno: i32) {
    let sk = Sock(dial.sk);
    if sk.exists()
        && let Some(conn) = sockets::by_socket(sk)
        && conn.conn == dial.conn
    {
        report_port(sk, conn, Hook::SysConnect);
    }
    if !has_failed(errno) || !is_tcp_connect(dial) {
        return;
    }
    if dial.conn == 0 && is_answer(errno) && global!(SETTINGS.prober_hooks) != 0 {
        return;
    }
    let is_unseen = dial.conn == 0 && errno == EADDRNOTAVAIL;
    let conn = if is_unseen { without_port(dial) } else { dial.conn };
    emit::<ConnectResult>(Hook::SysConnect, |event| {
        event.conn = conn;
        event.tuple.daddr = dial.addr;
        event.tuple.dport = dial.port as u16;
        actor::fill(&mut event.actor);
        event.errno = errno;
    });
}

/// Where only the probers' sockets are watched, one that found no source port was not seen, as it got no further: what it did is
/// reported now. 0 where it had no route and no source address either.
#[inline(always)]
fn without_port(dial: &ConnectCall) -> u64 {
    let Some(sk) = Task::current().socket(dial.fd).filter(|sk| sk.has_route()) else { return 0 };
    let Some(mut conn) = conn_of(sk, actor::tgid()) else { return 0 };
    conn.tuple.dport = dial.port as u16;
    emit_connect(Urgency::Later, Hook::SysConnect, &conn);
    change(Hook::SysConnect, sk, &conn, (state::SYN_SENT, state::CLOSE));
    conn.conn
}

/// Resolvers connect UDP sockets to learn a source address; their failures mean nothing. If the
/// layout of the kernel is not known, the connect counts as TCP.
#[inline(always)]
fn is_tcp_connect(dial: &ConnectCall) -> bool {
    dial.sk != 0 || Task::current().socket(dial.fd).is_none_or(Sock::is_tcp)
}
