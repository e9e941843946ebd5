//! Sees a prober's connections with a program on its cgroup, which does not run for other processes of the node.
//!
//! No program here changes what the kernel does.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG,
        BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_SOCK_OPS_TIMEOUT_INIT,
    },
    macros::{raw_tracepoint, sock_ops},
    programs::{RawTracePointContext, SockOpsContext},
};
use tracer_common::{
    actor::{COMM_LEN, Prober},
    limit::Limited,
    names::Hook,
    state,
};

use crate::{
    actor,
    emit::emit,
    hooks::state::{begin_with_port, change},
    kernel::{Sock, Task, read, read_str},
    limit,
    maps::LAST_STATE,
    sockets,
};

/// No reply: the kernel uses its defaults (`tcp_call_bpf`, include/net/tcp.h).
const NO_REPLY: u32 = 1;

/// A socket of a prober's cgroup connects, or changes its state.
///
/// `TCP_CONNECT_CB` runs in the context of the connecting task, before the SYN is built. The source port is chosen
/// (`tcp_connect`, net/ipv4/tcp_output.c). `STATE_CB` runs only for sockets that enabled it. `tcp_set_state` calls it
/// before the state changes.
///
/// Another program on the cgroup, or on one above it, may replace the flags that ours has set. Two more calls come
/// whatever the flags are: `TIMEOUT_INIT` between `TCP_CONNECT_CB` and the SYN, and `ACTIVE_ESTABLISHED_CB`.
#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => try_connect(&ctx),
        BPF_SOCK_OPS_STATE_CB => try_state(&ctx),
        BPF_SOCK_OPS_TIMEOUT_INIT | BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => try_enable_again(&ctx),
        _ => {}
    }
    NO_REPLY
}

#[inline(always)]
fn try_connect(ctx: &SockOpsContext) {
    let sk = sock(ctx);
    // The program runs once for each cgroup above the socket that has it: a prober may move to a cgroup below its own.
    if sockets::has_just_begun_from(sk, sk.num()) {
        return;
    }
    sockets::forget(sk);
    if begin_with_port(sk, Hook::SockOps) {
        enable_state(ctx);
    }
}

#[inline(always)]
fn try_enable_again(ctx: &SockOpsContext) {
    if ctx.cb_flags() & BPF_SOCK_OPS_STATE_CB_FLAG == 0 && sockets::has_just_begun(sock(ctx)) {
        enable_state(ctx);
    }
}

/// Keeps the flags that other programs set.
#[inline(always)]
fn enable_state(ctx: &SockOpsContext) {
    let _ = ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
}

#[inline(always)]
fn try_state(ctx: &SockOpsContext) {
    let sk = sock(ctx);
    let (old, new) = (ctx.arg(0) as u8, ctx.arg(1) as u8);
    let Some(conn) = sockets::by_socket(sk) else { return };
    let Some(last) = LAST_STATE.get_ptr_mut(0) else { return };
    // Another connection may have the same memory.
    let key = state::key(sk.0, old, new) ^ conn.conn;
    // See `try_connect`.
    if unsafe { *last } == key {
        return;
    }
    unsafe { *last = key };
    change(Hook::SockOps, sk, &conn, (old, new));
}

/// The address of the socket as a number: see `hooks::tls::sock`.
#[inline(always)]
fn sock(ctx: &SockOpsContext) -> Sock {
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    Sock(read(&raw const sk as u64, 0).unwrap_or(0))
}

/// A task gets another name, by exec or `prctl(2)`. It may be a prober now.
///
/// proto v5.10  include/trace/events/task.h  TP_PROTO(struct task_struct *task, const char *comm)
/// proto v7.2   include/trace/events/task.h  TP_PROTO(struct task_struct *task, const char *comm)
#[raw_tracepoint(tracepoint = "task_rename")]
pub fn task_rename(ctx: RawTracePointContext) -> i32 {
    let (task, name) = (Task(ctx.arg(0)), ctx.arg::<u64>(1));
    let mut comm = [0u8; COMM_LEN];
    if task.tgid() == task.tid() && read_str(name, 0, &mut comm) && actor::is_prober_name(task, &comm) {
        report(Hook::TaskRename, task, Some(comm));
    }
    0
}

/// A task or its whole thread group moved to another cgroup.
///
/// proto v5.10  include/trace/events/cgroup.h  TP_PROTO(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup)
/// proto v7.2   include/trace/events/cgroup.h  the same
#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(2));
    if actor::is_prober(task) {
        report(Hook::CgroupAttachTask, task, None);
    }
    0
}

/// Any process can rename itself at any rate. `comm`: the name that the task does not have yet.
///
/// A move is charged to the process that moves the other one: it decides how often. The cgroup of the moved process is the
/// new one already, so a process that is moved around would have new tokens each time.
#[inline(always)]
fn report(hook: Hook, task: Task, comm: Option<[u8; COMM_LEN]>) {
    if !limit::allows(Limited::Prober) {
        return;
    }
    emit::<Prober>(hook, |event| {
        actor::fill_from(task, &mut event.actor);
        if let Some(comm) = comm {
            event.actor.comm = comm;
        }
    });
}
