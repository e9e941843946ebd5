//! The connecting side, in its own context: the source port, and what `connect(2)` returned.

use aya_ebpf::{
    helpers::bpf_probe_read_user,
    macros::{fentry, kprobe, tracepoint},
    programs::{FEntryContext, ProbeContext, TracePointContext},
};
use tracer_common::{conn::ConnectResult, names::Hook};

use crate::{
    actor,
    emit::emit,
    kernel::{AF_INET, AF_INET6, Sock, Task, map_v4},
    maps::{Conn, DIALS, Dial},
    hooks::state::emit_connect,
    track,
};

const EINTR: i64 = 4;
const EISCONN: i64 = 106;
const EALREADY: i64 = 114;
const EINPROGRESS: i64 = 115;

/// The SYN is about to be built: the source port is chosen.
///
/// proto v5.10  net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
/// proto v7.2   net/ipv4/tcp_output.c  int tcp_connect(struct sock *sk)
#[fentry(function = "tcp_connect")]
pub fn fentry_tcp_connect(ctx: FEntryContext) -> i32 {
    try_tcp_connect(Sock(ctx.arg(0)), Hook::TcpConnect);
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
    if let Some(conn) = track::by_socket(sk) {
        report_port(sk, conn, hook);
    }
}

/// Repeats the connect event, now with its source port, unless the flow is known already.
#[inline(always)]
fn report_port(sk: Sock, mut conn: Conn, hook: Hook) {
    track::fill_port(sk, &mut conn.tuple);
    if conn.tuple.sport != 0 && !track::knows_flow(&conn.tuple, conn.conn) {
        track::remember_flow(&conn.tuple, conn.conn);
        emit_connect(hook, &conn);
    }
}

/// A prober calls `connect(2)`: what it dials.
///
/// proto v5.10  net/socket.c  SYSCALL_DEFINE3(connect, int, fd, struct sockaddr __user *, uservaddr, int, addrlen)
#[tracepoint(category = "syscalls", name = "sys_enter_connect")]
pub fn sys_enter_connect(ctx: TracePointContext) -> u32 {
    let (Ok(fd), Ok(addr)) = (unsafe { ctx.read_at::<u64>(16) }, unsafe { ctx.read_at::<u64>(24) }) else { return 0 };
    try_sys_enter_connect(fd as u32, addr);
    0
}

#[inline(always)]
fn try_sys_enter_connect(fd: u32, addr: u64) {
    let Ok(head) = (unsafe { bpf_probe_read_user::<[u8; 8]>(addr as *const _) }) else { return };
    let family = u16::from_ne_bytes([head[0], head[1]]);
    if !(family == AF_INET || family == AF_INET6) || !actor::is_tracked() {
        return;
    }
    let mut dial =
        Dial { addr: [0; 16], sk: 0, conn: 0, port: u32::from(u16::from_be_bytes([head[2], head[3]])), fd };
    if family == AF_INET {
        map_v4(&mut dial.addr, [head[4], head[5], head[6], head[7]]);
    } else {
        // `sin6_addr` follows `sin6_flowinfo`.
        let Ok(v6) = (unsafe { bpf_probe_read_user::<[u8; 16]>((addr + 8) as *const _) }) else { return };
        dial.addr = v6;
    }
    let _ = DIALS.insert(actor::tid(), dial, 0);
}

/// `connect(2)` of a prober returns.
///
/// A non-blocking connect gets EINPROGRESS even if the answer is there already (it waits in the
/// backlog): only failures of route, port and permission are returned here.
#[tracepoint(category = "syscalls", name = "sys_exit_connect")]
pub fn sys_exit_connect(ctx: TracePointContext) -> u32 {
    let tid = actor::tid();
    let Some(dial) = (unsafe { DIALS.get(tid).copied() }) else { return 0 };
    let _ = DIALS.remove(tid);
    let Ok(ret) = (unsafe { ctx.read_at::<i64>(16) }) else { return 0 };
    try_sys_exit_connect(&dial, -ret);
    0
}

#[inline(always)]
fn try_sys_exit_connect(dial: &Dial, errno: i64) {
    let sk = Sock(dial.sk);
    if sk.exists()
        && let Some(conn) = track::by_socket(sk)
        && conn.conn == dial.conn
    {
        report_port(sk, conn, Hook::SysConnect);
    }
    if errno <= 0 || matches!(errno, EINTR | EISCONN | EALREADY | EINPROGRESS) || !dialled_tcp(dial) {
        return;
    }
    emit::<ConnectResult>(Hook::SysConnect, |event| {
        event.conn = dial.conn;
        event.tuple.daddr = dial.addr;
        event.tuple.dport = dial.port as u16;
        actor::fill(&mut event.actor);
        event.errno = errno as i32;
    });
}

/// Resolvers connect UDP sockets to learn a source address; their failures mean nothing. A kernel
/// whose layout is not known gets the benefit of the doubt.
#[inline(always)]
fn dialled_tcp(dial: &Dial) -> bool {
    dial.sk != 0 || Task::current().socket(dial.fd).is_none_or(Sock::is_tcp)
}
