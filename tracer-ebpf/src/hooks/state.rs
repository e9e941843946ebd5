//! TCP state changes: connects, their later states, and listeners.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_common::{
    ABSENT_ERRNO, ABSENT32, ABSENT64,
    conn::{self, Connect, Retransmit, State},
    events::Kind,
    limit::{Limited, sort},
    listen::{Change, Listen},
    names::Hook,
    state,
    tuple::Tuple,
};

use crate::{
    actor,
    emit::{Urgency, cpu, emit, emit_as, monotonic_ns, now},
    flows,
    hooks::ports,
    kernel::{Skb, Sock, Task},
    limit,
    maps::{CONNECT_CALLS, Conn, ConnectCall, LAST_STATE, global},
    sockets, track,
};

/// A TCP socket changes its state.
///
/// proto v5.10  include/trace/events/sock.h  TP_PROTO(const struct sock *sk, const int oldstate, const int newstate)
/// proto v7.2   include/trace/events/sock.h  TP_PROTO(const struct sock *sk, const int oldstate, const int newstate)
///
/// The task is the actor only at `CLOSE -> SYN_SENT` and `CLOSE -> LISTEN`. The source port is 0 at the former.
/// An untracked connection costs a look-up of the task's name at the connect, and one load at each later change.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: RawTracePointContext) -> i32 {
    let (sk, old, new) = change_of(&ctx);
    #[cfg(feature = "kernel-log")]
    aya_log_ebpf::debug!(&ctx, "state {} to {}", old, new);
    if let Some(reported) = LAST_STATE.get_ptr_mut(0) {
        unsafe { *reported = state::key(sk.0, old, new) };
    }
    try_inet_sock_set_state(sk, old, new);
    0
}

/// Handles the changes for which the kernel skipped [`inet_sock_set_state`].
///
/// The kernel skips a program that is already running on the same CPU (`__bpf_trace_run`, kernel/trace/bpf_trace.c, 6.1
/// and later). An interrupt, or on newer kernels another task (observed on 7.2), may come in between.
///
/// It is attached after that program, if runs were skipped or are likely to be. A change may be reported twice if
/// another one comes between the two runs.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn inet_sock_set_state_again(ctx: RawTracePointContext) -> i32 {
    let (sk, old, new) = change_of(&ctx);
    let is_reported = LAST_STATE.get(0).is_some_and(|reported| *reported == state::key(sk.0, old, new));
    // If another change came between the two runs, `LAST_STATE` has that one. A connect must still not begin twice.
    let has_begun = || (old, new) == (state::CLOSE, state::SYN_SENT) && sockets::has_just_begun(sk);
    if !is_reported && !has_begun() {
        try_inet_sock_set_state(sk, old, new);
    }
    0
}

#[inline(always)]
fn change_of(ctx: &RawTracePointContext) -> (Sock, u8, u8) {
    (Sock(ctx.arg(0)), ctx.arg::<u64>(1) as u8, ctx.arg::<u64>(2) as u8)
}

/// Reports only listeners. Used with `sock_ops`, which reports the probers' connections, if the programs of `hooks::bind`
/// cannot be attached.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn inet_sock_set_state_rest(ctx: RawTracePointContext) -> i32 {
    let (sk, old, new) = change_of(&ctx);
    match (old, new) {
        (state::CLOSE, state::LISTEN) => listen(Hook::InetCskListen, sk, Change::Begins),
        (state::LISTEN, state::CLOSE) => listen(Hook::InetCskListen, sk, Change::Ends),
        _ => {}
    }
    0
}

function_hook! {
    /// A socket begins to listen.
    ///
    /// proto v5.10  net/ipv4/inet_connection_sock.c  int inet_csk_listen_start(struct sock *sk, int backlog)
    /// proto v7.2   net/ipv4/inet_connection_sock.c  int inet_csk_listen_start(struct sock *sk)
    fentry_inet_csk_listen_start, kprobe_inet_csk_listen_start: "inet_csk_listen_start",
    |sk: 0| listen(Hook::InetCskListen, Sock(sk), Change::Begins)
}

function_hook! {
    /// A socket stops listening.
    ///
    /// proto v5.10  net/ipv4/inet_connection_sock.c  void inet_csk_listen_stop(struct sock *sk)
    /// proto v7.2   net/ipv4/inet_connection_sock.c  void inet_csk_listen_stop(struct sock *sk)
    fentry_inet_csk_listen_stop, kprobe_inet_csk_listen_stop: "inet_csk_listen_stop",
    |sk: 0| listen(Hook::InetCskListen, Sock(sk), Change::Ends)
}

#[inline(always)]
fn try_inet_sock_set_state(sk: Sock, old: u8, new: u8) {
    if (old, new) == (state::ESTABLISHED, state::FIN_WAIT1) {
        ports::count_close(sk);
    }
    match (old, new) {
        (state::CLOSE, state::SYN_SENT) => connect_without_port(sk),
        (state::CLOSE, state::LISTEN) => listen(Hook::InetSockSetState, sk, Change::Begins),
        (state::LISTEN, state::CLOSE) => listen(Hook::InetSockSetState, sk, Change::Ends),
        // The server's side of a new connection is never tracked.
        (state::LISTEN, _) => {}
        _ => {
            if let Some(conn) = sockets::by_socket(sk) {
                change(Hook::InetSockSetState, sk, &conn, (old, new));
            }
        }
    }
}

/// Begins to track a connect, and counts its port.
///
/// The event has no source port. If `tcp_connect` or `sys_exit_connect` is attached, it emits a second event with the
/// same `conn` and the port.
#[inline(always)]
fn connect_without_port(sk: Sock) {
    ports::count_connect(sk);
    sockets::forget(sk);
    begin(sk, Hook::InetSockSetState);
}

/// Tracks a connect of a prober.
#[inline(always)]
pub fn begin(sk: Sock, hook: Hook) {
    let Some(conn) = conn_of(sk, actor::tgid()) else { return };
    track::begin(sk, &conn);
    note_call(actor::tid(), sk, &conn);
    emit_begin(hook, &conn);
}

/// Tracks a connect of a prober that has its source port. False if the task is no prober.
#[inline(always)]
pub fn begin_with_port(sk: Sock, hook: Hook) -> bool {
    let Some(conn) = conn_of(sk, Task::current().tgid()) else { return false };
    track::begin_with_port(sk, &conn);
    note_call(Task::current().tid(), sk, &conn);
    emit_begin(hook, &conn);
    true
}

/// Adds the connection to the `connect(2)` call of this thread. If no program has seen a call, the descriptor is not known:
/// there is none at the entry, or the connect began by `sendto(2)` (MSG_FASTOPEN) or io_uring.
#[inline(always)]
fn note_call(tid: u32, sk: Sock, conn: &Conn) {
    if let Some(call) = CONNECT_CALLS.get_ptr_mut(tid) {
        unsafe {
            (*call).sk = sk.0;
            (*call).conn = conn.conn;
        }
    } else {
        let call = ConnectCall { addr: [0; 16], sk: sk.0, conn: conn.conn, port: 0, fd: ABSENT32 };
        let _ = CONNECT_CALLS.insert(tid, call, 0);
    }
}

/// A new connection of the current task, if that is tracked; `tgid` is its thread group.
#[inline(always)]
pub fn conn_of(sk: Sock, tgid: u32) -> Option<Conn> {
    if !actor::is_tracked(tgid) || !sk.is_tcp() {
        return None;
    }
    let mut conn = Conn {
        conn: conn::id(now(), cpu(), global!(SETTINGS.cpu_mask)),
        tuple: Default::default(),
        tgid,
        netns: sk.net().inum(),
        answered: 0,
        reserved: 0,
    };
    if !sk.tuple(&mut conn.tuple) {
        return None;
    }
    // Not `inet_sport`: an earlier connect on this socket may have set it.
    conn.tuple.sport = sk.num();
    Some(conn)
}

#[inline(always)]
fn emit_begin(hook: Hook, conn: &Conn) {
    // Urgent for a new target, so that userspace inspects it before its state can change.
    let urgency = if track::is_known_or_add(&conn.tuple) { Urgency::Later } else { Urgency::Now };
    emit_connect(urgency, hook, conn);
}

/// Reports a connect. Runs in the context of the connecting task.
#[inline(always)]
pub fn emit_connect(urgency: Urgency, hook: Hook, conn: &Conn) {
    emit_as::<Connect>(urgency, hook, |event| {
        event.conn = conn.conn;
        event.tuple = conn.tuple;
        event.netns = conn.netns;
        actor::fill(&mut event.actor);
    });
}

/// Reports a state change of a tracked socket.
#[inline(always)]
pub fn change(hook: Hook, sk: Sock, conn: &Conn, (old, new): (u8, u8)) {
    let mut tuple = conn.tuple;
    sockets::fill_port(sk, &mut tuple);
    if old == state::SYN_SENT {
        track::stop_waiting(&tuple, conn.conn);
    }
    if new == state::CLOSE {
        sockets::remove(sk);
        if tuple.sport != 0 {
            flows::end(&tuple, conn.conn);
        }
    } else if tuple.sport != 0 && !flows::knows(&tuple, conn.conn) {
        flows::remember(&tuple, conn.conn);
    }
    // Not an `Option`: the compiler may read the value of `None` from an uninitialized register, which the verifier
    // rejects.
    let errno = sk.err().unwrap_or(ABSENT_ERRNO);
    emit_as::<State>(urgency(sk, conn, (old, new), errno), hook, |event| {
        event.conn = conn.conn;
        event.tuple = tuple;
        event.bytes_received = sk.bytes_received().unwrap_or(ABSENT64);
        event.bytes_sent = sk.bytes_sent().unwrap_or(ABSENT64);
        event.bytes_acked = sk.bytes_acked().unwrap_or(ABSENT64);
        event.errno = errno;
        event.old = old;
        event.new = new;
        event.unsent = u8::from(sk.has_unsent());
        event.own_context = u8::from(state::is_close(old, new, Some(errno)) && Task::current().tgid() == conn.tgid);
        event.quiet_us = quiet_us(sk).unwrap_or(ABSENT32);
    });
}

/// Time since the last segment in either direction. A close changes the state before it sends the FIN
/// (`tcp_close_state`).
///
/// While nothing was received, it is the time since data was acknowledged: keepalive segments of the peer do not count.
#[inline(always)]
fn quiet_us(sk: Sock) -> Option<u32> {
    let acknowledged = if sk.bytes_received() == Some(0) { sk.last_acknowledged_us() } else { None };
    let last = match acknowledged {
        Some(last) => last,
        None => sk.last_segment_us()?,
    };
    let since = (monotonic_ns() / 1000).saturating_sub(last);
    u32::try_from(since).ok()
}

#[inline(always)]
fn urgency(sk: Sock, conn: &Conn, (old, new): (u8, u8), errno: i32) -> Urgency {
    let is_content = || conn.answered != 0 || sk.bytes_sent() == Some(0) && !sk.has_unsent();
    if state::goes_well(old, new, Some(errno), is_content) { Urgency::Later } else { Urgency::Now }
}

/// A socket of any process begins or stops listening, or may begin soon.
#[inline(always)]
pub fn listen(hook: Hook, sk: Sock, change: Change) {
    if sk.is_tcp() {
        report_listener(hook, sk, change);
    }
}

#[inline(always)]
pub fn report_listener(hook: Hook, sk: Sock, change: Change) {
    if !limit::allows(Limited::Listen) {
        return;
    }
    emit::<Listen>(hook, |event| {
        sk.local_addr(&mut event.addr);
        actor::fill(&mut event.actor);
        event.netns = sk.net().inum();
        // When it stops, `skc_num` is already 0. Before an autobind, both are 0.
        let (sport, num) = (sk.sport(), sk.num());
        event.port = if num != 0 { num } else { sport };
        event.change = change as u8;
        event.limits = sk.limits();
    });
}

/// A segment is retransmitted, or that fails.
///
/// proto v6.18  include/trace/events/tcp.h  TP_PROTO(const struct sock *sk, const struct sk_buff *skb, int err)
///
/// Kernels with two arguments refuse to attach it. Often runs in a timer, so the current task is not the actor.
#[raw_tracepoint(tracepoint = "tcp_retransmit_skb")]
pub fn tcp_retransmit_skb(ctx: RawTracePointContext) -> i32 {
    /// netfilter dropped it on its way out: it left TCP.
    const DROPPED: i32 = -1;
    if [0, DROPPED].contains(&(ctx.arg::<u64>(2) as i32)) {
        try_retransmit(Sock(ctx.arg(0)), Skb(ctx.arg(1)));
    }
    0
}

/// The same for kernels before 6.17, where it runs only for a segment that is sent.
///
/// proto v5.10  include/trace/events/tcp.h  TP_PROTO(const struct sock *sk, const struct sk_buff *skb)
#[raw_tracepoint(tracepoint = "tcp_retransmit_skb")]
pub fn tcp_retransmit_skb_2(ctx: RawTracePointContext) -> i32 {
    try_retransmit(Sock(ctx.arg(0)), Skb(ctx.arg(1)));
    0
}

#[inline(always)]
fn try_retransmit(sk: Sock, skb: Skb) {
    let payload = skb.len();
    match sockets::by_socket(sk) {
        Some(conn) => report_retransmit(sk, &conn, payload),
        None => report_target_retransmit(sk, payload),
    }
}

/// The prober retransmits a segment.
#[inline(always)]
fn report_retransmit(sk: Sock, conn: &Conn, payload: u32) {
    let mut tuple = conn.tuple;
    sockets::fill_port(sk, &mut tuple);
    if tuple.sport != 0 && !flows::knows(&tuple, conn.conn) {
        flows::remember(&tuple, conn.conn);
    }
    emit_retransmit(sk, conn.conn, payload, false);
}

/// The target retransmits a segment of its answer. Segments without payload are skipped.
#[inline(always)]
fn report_target_retransmit(sk: Sock, payload: u32) {
    let mut tuple = Tuple { saddr: [0; 16], daddr: [0; 16], sport: 0, dport: 0, reserved: 0 };
    if payload == 0 || !sk.tuple(&mut tuple) {
        return;
    }
    let Some(found) = track::by_packet(&tuple) else { return };
    emit_retransmit(sk, found.conn, payload, true);
}

#[inline(always)]
fn emit_retransmit(sk: Sock, conn: u64, payload: u32, by_target: bool) {
    let state = sk.state();
    let sort = sort(Kind::Retransmit, 0, u16::from(by_target), 0, u64::from(state) << 2);
    if !limit::allows_of(conn, sort, Hook::TcpRetransmit) {
        return;
    }
    emit::<Retransmit>(Hook::TcpRetransmit, |event| {
        event.conn = conn;
        event.payload = payload;
        event.state = state;
        event.by_target = u8::from(by_target);
    });
}
