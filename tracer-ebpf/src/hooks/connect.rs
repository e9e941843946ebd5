//! Hooks in the context of the connecting task: the source port, and what `connect(2)` returned.

use aya_ebpf::{
    EbpfContext as _,
    macros::{fentry, fexit, kprobe, kretprobe, tracepoint},
    programs::{FEntryContext, FExitContext, ProbeContext, RetProbeContext, TracePointContext},
};
use tracer_common::{
    ABSENT32,
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
    sockets, user,
};

/// The kernel is about to build the SYN. The source port is known.
///
/// proto v5.10  net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
/// proto v7.2   net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
#[fentry(function = "tcp_connect")]
pub fn fentry_tcp_connect(ctx: FEntryContext) -> i32 {
    // The verifier forbids arithmetic on the typed argument, which the bucket needs. A copy of the word is a number.
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
        // The kernel skipped `inet_sock_set_state`, because another thread on this CPU was running it.
        None if sk.state() == state::SYN_SENT => begin(sk, hook),
        None => {}
    }
}

/// Emits the connect event again, now with the source port, unless the flow is already known.
#[inline(always)]
fn report_port(sk: Sock, mut conn: Conn, hook: Hook) {
    sockets::fill_port(sk, &mut conn.tuple);
    if conn.tuple.sport != 0 && !flows::knows(&conn.tuple, conn.conn) {
        flows::remember(&conn.tuple, conn.conn);
        emit_connect(Urgency::Later, hook, &conn);
    }
}

/// A prober calls `connect(2)`. Keeps the destination.
///
/// proto v5.10  net/socket.c  int __sys_connect(int fd, struct sockaddr __user *uservaddr, int addrlen)
/// proto v7.2   net/socket.c  int __sys_connect(int fd, struct sockaddr __user *uservaddr, int addrlen)
#[kprobe]
pub fn kprobe_sys_connect(ctx: ProbeContext) -> u32 {
    try_sys_enter_connect(ctx.arg::<u64>(0).unwrap_or(0) as u32, ctx.arg(1).unwrap_or(0));
    0
}

/// See [`kprobe_sys_connect`]. For kernels without function probes only, because a single `syscalls:*` tracepoint makes
/// every system call of the node take the slow path.
///
/// proto v5.10  net/socket.c  SYSCALL_DEFINE3(connect, int, fd, struct sockaddr __user *, uservaddr, int, addrlen)
#[tracepoint(category = "syscalls", name = "sys_enter_connect")]
pub fn sys_enter_connect(ctx: TracePointContext) -> u32 {
    try_sys_enter_connect(syscall_field(&ctx, 0) as u32, syscall_field(&ctx, 1));
    0
}

#[inline(always)]
fn try_sys_enter_connect(fd: u32, addr: u64) {
    // Checked first: a read of user memory takes several times as long.
    if actor::is_tracked(actor::tgid())
        && let Some(call) = call(fd, addr)
    {
        let _ = CONNECT_CALLS.insert(actor::tid(), call, 0);
    }
}

/// A `connect(2)` call of this thread to an IP address.
#[inline(always)]
fn call(fd: u32, addr: u64) -> Option<ConnectCall> {
    let head = user::bytes::<8>(addr)?;
    let family = u16::from_ne_bytes([head[0], head[1]]);
    if !(family == AF_INET || family == AF_INET6) {
        return None;
    }
    let mut call =
        ConnectCall { addr: [0; 16], sk: 0, conn: 0, port: u32::from(u16::from_be_bytes([head[2], head[3]])), fd };
    if family == AF_INET {
        map_v4(&mut call.addr, [head[4], head[5], head[6], head[7]]);
    } else {
        // `sin6_addr` follows `sin6_flowinfo`.
        call.addr = user::bytes(addr + 8)?;
    }
    Some(call)
}

/// `connect(2)` of a prober returns.
///
/// A non-blocking connect returns EINPROGRESS even if the answer has arrived already: it waits in the socket's backlog.
/// So only failures of route, port and permission are returned here.
///
/// A trampoline has the arguments at the return, too. So no program is needed at the entry.
#[fexit(function = "__sys_connect")]
pub fn fexit_sys_connect(ctx: FExitContext) -> i32 {
    let fd = ctx.arg::<u64>(0) as u32;
    if actor::is_tracked(actor::tgid())
        && let Some(mut call) = call(fd, ctx.arg(1))
    {
        let tid = actor::tid();
        // A connect that began without a call may be left over. An MPTCP socket has other sockets below it.
        if let Some(begun) = unsafe { CONNECT_CALLS.get(tid) }
            && Task::current().socket(fd).is_none_or(|sk| sk.0 == begun.sk || !sk.is_tcp())
        {
            (call.sk, call.conn) = (begun.sk, begun.conn);
        }
        // The verifier follows the copy from the map once, and `call` once for each family.
        let _ = CONNECT_CALLS.insert(tid, call, 0);
        // The return value follows the three arguments. `bpf_get_func_ret` exists only since 5.17.
        try_sys_exit_connect(ctx.arg::<i32>(3));
    }
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
    let Some(call) = (unsafe { CONNECT_CALLS.get(tid).copied() }) else { return };
    let _ = CONNECT_CALLS.remove(tid);
    // Else it is left over from a connect without a call. This call may be of another family.
    if call.fd != ABSENT32 {
        finish(&call, -returned);
    }
}

#[inline(always)]
fn finish(call: &ConnectCall, errno: i32) {
    let sk = Sock(call.sk);
    if sk.exists()
        && let Some(conn) = sockets::by_socket(sk)
        && conn.conn == call.conn
    {
        report_port(sk, conn, Hook::SysConnect);
    }
    if !has_failed(errno) || !is_tcp_connect(call) {
        return;
    }
    if call.conn == 0 && is_answer(errno) && global!(SETTINGS.prober_hooks) != 0 {
        return;
    }
    let found_no_port = call.conn == 0 && errno == EADDRNOTAVAIL;
    let conn = if found_no_port { report_connect_without_port(call) } else { call.conn };
    emit::<ConnectResult>(Hook::SysConnect, |event| {
        event.conn = conn;
        event.tuple.daddr = call.addr;
        event.tuple.dport = call.port as u16;
        actor::fill(&mut event.actor);
        event.errno = errno;
    });
}

/// Emits the events of a connect that found no source port, and returns its connection.
///
/// The `sock_ops` program does not see such a connect: it runs after the port is chosen. Returns 0 if there was no
/// route or no source address either.
#[inline(always)]
fn report_connect_without_port(call: &ConnectCall) -> u64 {
    let Some(sk) = Task::current().socket(call.fd).filter(|sk| sk.has_route()) else { return 0 };
    let Some(mut conn) = conn_of(sk, actor::tgid()) else { return 0 };
    conn.tuple.dport = call.port as u16;
    emit_connect(Urgency::Later, Hook::SysConnect, &conn);
    change(Hook::SysConnect, sk, &conn, (state::SYN_SENT, state::CLOSE));
    conn.conn
}

/// Resolvers connect UDP sockets only to learn a source address, so their failures mean nothing. If an offset is not
/// known, the connect counts as TCP.
#[inline(always)]
fn is_tcp_connect(call: &ConnectCall) -> bool {
    call.sk != 0 || Task::current().socket(call.fd).is_none_or(Sock::is_tcp)
}
