//! Which process sets a link up or down, and the path of its program.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_common::{
    ABSENT32,
    limit::Limited,
    link::{EXE_LEN, IFF_UP, Link, is_going_down},
    names::Hook,
};

use crate::{
    actor,
    emit::{emit, now},
    kernel::{Dev, binprm_path, qdisc_dev, read_into},
    limit,
    maps::{EXEC, LINK_DOWN},
};

function_hook! {
    /// The flags of a device have changed, through netlink or ioctl. Runs in the context of the task that changed them.
    ///
    /// proto v5.10  net/core/dev.c  void __dev_notify_flags(struct net_device *dev, unsigned int old_flags, unsigned int gchanges)
    /// proto v6.12  net/core/dev.c  void __dev_notify_flags(struct net_device *dev, unsigned int old_flags, unsigned int gchanges, u32 portid, const struct nlmsghdr *nlh)
    fentry_dev_notify_flags, kprobe_dev_notify_flags: "__dev_notify_flags",
    |dev: 0, old_flags: 1| try_notify_flags(Dev(dev), old_flags as u32)
}

#[inline(always)]
fn try_notify_flags(dev: Dev, old: u32) {
    let new = dev.flags();
    if new == ABSENT32 || (old ^ new) & IFF_UP == 0 {
        return;
    }
    // The reset of its queues comes first, and has reported a link that goes down.
    let is_reported = LINK_DOWN.remove(dev.0).is_ok();
    if new & IFF_UP != 0 || !is_reported {
        report(Hook::DevNotifyFlags, dev, new);
    }
}

/// A queue of a device is reset, as when a link is set down, removed or moved (`dev_close_many`, net/core/dev.c). The latter two
/// do not call [`fentry_dev_notify_flags`].
///
/// It shows only links that go down, before the flag is cleared.
///
/// proto v5.10  include/trace/events/qdisc.h  TP_PROTO(struct Qdisc *q)
#[raw_tracepoint(tracepoint = "qdisc_reset")]
pub fn qdisc_reset(ctx: RawTracePointContext) -> i32 {
    try_qdisc_reset(qdisc_dev(ctx.arg(0)));
    0
}

#[inline(always)]
fn try_qdisc_reset(dev: Dev) {
    let flags = dev.flags();
    if !is_going_down(flags, dev.state()) {
        return;
    }
    // Runs once for each queue of the device; one report is enough.
    const INTERVAL_NS: u64 = 5_000_000;
    let time = now();
    if unsafe { LINK_DOWN.get(dev.0) }.is_some_and(|last| time - *last < INTERVAL_NS) {
        return;
    }
    let _ = LINK_DOWN.insert(dev.0, time, 0);
    report(Hook::QdiscReset, dev, ABSENT32);
}

#[inline(always)]
fn report(hook: Hook, dev: Dev, new_flags: u32) {
    // In a namespace of its own, any process can set links up and down as often as it likes.
    if !limit::allows(Limited::Link) {
        return;
    }
    emit::<Link>(hook, |event| {
        actor::fill(&mut event.actor);
        actor::fill_ancestors(&mut event.ancestors);
        if let Some(exe) = EXEC.get_ptr(event.actor.pid) {
            read_into(exe as u64, 0, &mut event.exe);
        }
        actor::cni_netns(&mut event.cni_netns);
        event.netns = dev.net().inum();
        event.ifindex = dev.ifindex();
        dev.name(&mut event.ifname);
        event.new_flags = new_flags;
    });
}

/// A program is executed. Keeps its path for a later event, because the culprit may have ended when userspace asks for
/// it.
///
/// proto v5.10  include/trace/events/sched.h  TP_PROTO(struct task_struct *p, pid_t old_pid, struct linux_binprm *bprm)
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn sched_process_exec(ctx: RawTracePointContext) -> i32 {
    let mut path = [0u8; EXE_LEN];
    if binprm_path(ctx.arg(2), &mut path) {
        let _ = EXEC.insert(actor::tgid(), path, 0);
    }
    0
}
