//! Which process enters or makes a network namespace, and when one ends.

use aya_ebpf::{
    macros::{raw_tracepoint, tracepoint},
    programs::{RawTracePointContext, TracePointContext},
};
use tracer_common::{
    ABSENT32,
    limit::Limited,
    names::Hook,
    netns::{NetnsOp, Op},
};

use crate::{
    actor,
    emit::emit,
    kernel::{Net, Task, differ_only_in_netns, nsproxy_netns, syscall_field},
    limit,
    maps::{ENTERING, OPENED},
};

function_hook! {
    /// A task gets another set of namespaces, by `setns` or `unshare`, or it exits (`new` is NULL).
    ///
    /// proto v5.10  kernel/nsproxy.c  void switch_task_namespaces(struct task_struct *p, struct nsproxy *new)
    /// proto v7.2   kernel/nsproxy.c  void switch_task_namespaces(struct task_struct *p, struct nsproxy *new)
    fentry_switch_task_ns, kprobe_switch_task_ns: "switch_task_namespaces",
    |task: 0, new: 1| try_switch(Task(task), new)
}

#[inline(always)]
fn try_switch(task: Task, new: u64) {
    if new == 0 || actor::is_tracer() {
        return;
    }
    let (from, to) = (task.netns(), nsproxy_netns(new));
    if from != to || differ_only_in_netns(task.nsproxy(), new) {
        report(Hook::SwitchTaskNamespaces, Op::Switch, from, to);
    }
}

/// Reports that a task entered a network namespace.
///
/// If it was in that namespace already, this is reported only once after the process opened the file of a namespace.
/// A CNI plugin that got the wrong path enters the node's own namespace that way.
#[inline(always)]
fn report(hook: Hook, op: Op, old: u32, new: u32) {
    if new == ABSENT32 {
        return;
    }
    let opened = OPENED.remove(actor::tgid()).is_ok();
    if (old == new && !opened) || !limit::allows(Limited::Namespace) {
        return;
    }
    emit::<NetnsOp>(hook, |event| {
        actor::fill(&mut event.actor);
        event.actor.netns = old;
        actor::fill_ancestors(&mut event.ancestors);
        event.netns = new;
        event.op = op as u16;
    });
}

/// `setns(2)` begins. Keeps the current network namespace.
///
/// A process that executes in a container also enters other namespaces, one call each. Those calls are skipped.
///
/// proto v5.10  kernel/nsproxy.c  SYSCALL_DEFINE2(setns, int, fd, int, flags)
#[tracepoint(category = "syscalls", name = "sys_enter_setns")]
pub fn sys_enter_setns(ctx: TracePointContext) -> u32 {
    // Flags of 0 mean the kind of the file.
    if syscall_field(&ctx, 1) as u32 == 0 || has_newnet(&ctx, 1) {
        remember();
    }
    0
}

/// `unshare(2)` begins.
///
/// proto v5.10  kernel/fork.c  SYSCALL_DEFINE1(unshare, unsigned long, unshare_flags)
#[tracepoint(category = "syscalls", name = "sys_enter_unshare")]
pub fn sys_enter_unshare(ctx: TracePointContext) -> u32 {
    if has_newnet(&ctx, 0) {
        remember();
    }
    0
}

/// Whether the flags in this argument include network namespaces.
#[inline(always)]
fn has_newnet(ctx: &TracePointContext, argument: usize) -> bool {
    /// `include/uapi/linux/sched.h`
    const CLONE_NEWNET: u64 = 0x4000_0000;
    syscall_field(ctx, argument) & CLONE_NEWNET != 0
}

#[inline(always)]
fn remember() {
    if !actor::is_tracer() {
        let _ = ENTERING.insert(actor::tid(), Task::current().netns(), 0);
    }
}

/// `setns(2)` returns. The task is in the new namespace already.
#[tracepoint(category = "syscalls", name = "sys_exit_setns")]
pub fn sys_exit_setns(ctx: TracePointContext) -> u32 {
    try_exit(&ctx, Hook::SysSetns, Op::Setns);
    0
}

/// `unshare(2)` returns.
#[tracepoint(category = "syscalls", name = "sys_exit_unshare")]
pub fn sys_exit_unshare(ctx: TracePointContext) -> u32 {
    try_exit(&ctx, Hook::SysUnshare, Op::Unshare);
    0
}

#[inline(always)]
fn try_exit(ctx: &TracePointContext, hook: Hook, op: Op) {
    let tid = actor::tid();
    let Some(old) = (unsafe { ENTERING.get(tid).copied() }) else { return };
    let _ = ENTERING.remove(tid);
    if syscall_field(ctx, 0) == 0 {
        report(hook, op, old, Task::current().netns());
    }
}

/// A task is forked, perhaps with CLONE_NEWNET.
///
/// proto v5.10  include/trace/events/sched.h  TP_PROTO(struct task_struct *parent, struct task_struct *child)
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn sched_process_fork(ctx: RawTracePointContext) -> i32 {
    let (parent, child) = (Task(ctx.arg(0)), Task(ctx.arg(1)));
    let (from, to) = (parent.nsproxy(), child.nsproxy());
    if from != to && to != 0 {
        let (old, new) = (nsproxy_netns(from), nsproxy_netns(to));
        if old != new && new != ABSENT32 {
            report(Hook::SchedProcessFork, Op::Clone, old, new);
        }
    }
    0
}

function_hook! {
    /// The last reference to a network namespace is gone.
    ///
    /// The current task is not the actor. There is no rate limit, because a new namespace may reuse the inode number at
    /// once. The kernel makes and ends a few thousand namespaces per second at most.
    ///
    /// proto v5.10  net/core/net_namespace.c  void __put_net(struct net *net)
    /// proto v7.2   net/core/net_namespace.c  void __put_net(struct net *net)
    fentry_put_net, kprobe_put_net: "__put_net", |net: 0| try_put_net(Net(net))
}

#[inline(always)]
fn try_put_net(net: Net) {
    emit::<NetnsOp>(Hook::PutNet, |event| {
        event.actor.netns = ABSENT32;
        event.netns = net.inum();
        event.op = Op::End as u16;
    });
}
