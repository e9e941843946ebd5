//! A prober's connections, seen at its own cgroup: no other process of the node passes here.
//!
//! Every program lets the kernel go on as it would without it.

use aya_ebpf::{
    bindings::{BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB},
    macros::{raw_tracepoint, sock_ops},
    programs::{RawTracePointContext, SockOpsContext},
};
use tracer_common::{actor::Prober, names::Hook};

use crate::{
    actor,
    emit::emit,
    hooks::state::{begin_with_port, change},
    kernel::{Sock, Task, read},
    sockets,
};

/// No reply: the kernel takes what it would have taken (`tcp_call_bpf`, include/net/tcp.h).
const NO_REPLY: u32 = 1;

/// A socket of a prober's cgroup connects, or changes its state.
///
/// The SYN is about to be built at `TCP_CONNECT_CB`, in the connecting task's own context and with the source port chosen
/// (`tcp_connect`, net/ipv4/tcp_output.c). Only sockets that ask for it come here with their states: `tcp_set_state` calls
/// this before the state changes.
#[sock_ops]
pub fn sock_ops(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => try_connect(&ctx),
        BPF_SOCK_OPS_STATE_CB => try_state(&ctx),
        _ => {}
    }
    NO_REPLY
}

#[inline(always)]
fn try_connect(ctx: &SockOpsContext) {
    let sk = sock(ctx);
    sockets::forget(sk);
    if begin_with_port(sk, Hook::SockOps) {
        // Others may have asked for theirs.
        let _ = ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
    }
}

#[inline(always)]
fn try_state(ctx: &SockOpsContext) {
    let sk = sock(ctx);
    if let Some(conn) = sockets::by_socket(sk) {
        change(Hook::SockOps, sk, &conn, (ctx.arg(0) as u8, ctx.arg(1) as u8));
    }
}

/// The socket, as a number: see `hooks::tls::sock`.
#[inline(always)]
fn sock(ctx: &SockOpsContext) -> Sock {
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    Sock(read(&raw const sk as u64, 0).unwrap_or(0))
}

/// A task gets a name, by exec or of its own: it may be a prober now.
///
/// proto v5.10  include/trace/events/task.h  TP_PROTO(struct task_struct *task, const char *comm)
/// proto v7.2   include/trace/events/task.h  TP_PROTO(struct task_struct *task, const char *comm)
#[raw_tracepoint(tracepoint = "task_rename")]
pub fn task_rename(ctx: RawTracePointContext) -> i32 {
    let (task, name) = (Task(ctx.arg(0)), ctx.arg::<u64>(1));
    if task.tgid() == task.tid() && actor::is_name_of_prober(name) {
        report(Hook::TaskRename, task);
    }
    0
}

/// A task, or its whole thread group, came into another cgroup.
///
/// proto v5.10  include/trace/events/cgroup.h  TP_PROTO(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup)
/// proto v7.2   include/trace/events/cgroup.h  the same
#[raw_tracepoint(tracepoint = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: RawTracePointContext) -> i32 {
    let task = Task(ctx.arg(2));
    if actor::is_prober(task) {
        report(Hook::CgroupAttachTask, task);
    }
    0
}

#[inline(always)]
fn report(hook: Hook, task: Task) {
    emit::<Prober>(hook, |event| event.pid = task.tgid());
}
