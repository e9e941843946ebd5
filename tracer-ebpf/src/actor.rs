//! The current task, where it is the actor of the event.

use aya_ebpf::helpers::generated::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid};
use tracer_common::{
    ABSENT64,
    actor::{ANCESTORS, Actor, Ancestor, COMM_LEN},
};

use crate::{
    kernel::Task,
    maps::{PROBERS, global},
};

/// Thread group of the current task.
#[inline(always)]
pub fn tgid() -> u32 {
    unsafe { (bpf_get_current_pid_tgid() >> 32) as u32 }
}

/// Thread id of the current task.
#[inline(always)]
pub fn tid() -> u32 {
    unsafe { bpf_get_current_pid_tgid() as u32 }
}

/// Whether the current task is the tracer itself.
#[inline(always)]
pub fn is_tracer() -> bool {
    tgid() == global!(SETTINGS.own_pid)
}

/// Name of the thread group's leader: Go and Java rename their threads.
#[inline(always)]
pub fn leader_comm(task: Task, dst: &mut [u8; COMM_LEN]) {
    if !task.leader().comm(dst)
        && let Ok(comm) = aya_ebpf::helpers::bpf_get_current_comm()
    {
        *dst = comm;
    }
}

/// Whether connections of the current task are tracked.
#[inline(always)]
pub fn is_tracked() -> bool {
    if is_tracer() {
        return false;
    }
    if global!(SETTINGS.all_connections) != 0 {
        return true;
    }
    let mut comm = [0u8; COMM_LEN];
    leader_comm(Task::current(), &mut comm);
    unsafe { PROBERS.get(comm).is_some() }
}

/// Describes the current task.
#[inline(always)]
pub fn fill(actor: &mut Actor) {
    let task = Task::current();
    actor.pid = tgid();
    actor.tid = tid();
    leader_comm(task, &mut actor.comm);
    actor.netns = task.netns();
    actor.cgroup = unsafe { bpf_get_current_cgroup_id() };
    actor.cgroup_memory = task.memory_cgroup().unwrap_or(ABSENT64);
}

/// The parents of the current task, nearest first.
#[inline(always)]
pub fn fill_ancestors(ancestors: &mut [Ancestor; ANCESTORS]) {
    let mut task = Task::current().leader();
    for ancestor in ancestors {
        task = task.parent().leader();
        let pid = task.tgid();
        if pid == 0 {
            break;
        }
        ancestor.pid = pid;
        task.comm(&mut ancestor.comm);
    }
}
