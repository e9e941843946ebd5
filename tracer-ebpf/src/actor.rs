//! The current task, where it is the actor of the event.
//!
//! Programs on a cgroup's sockets have no helper for the current task but the one that gives its address (5.10 to 6.12,
//! `sock_ops_func_proto`): what they call reads the task instead.

use aya_ebpf::helpers::generated::{bpf_get_current_pid_tgid, bpf_probe_read_user_str};
use tracer_common::{
    ABSENT64,
    actor::{ANCESTORS, Actor, Ancestor, COMM_LEN, comm_bucket},
    netns::PATH_LEN,
};

use crate::{
    kernel::{Task, read_str},
    maps::{PRETENDING, PROBER_BUCKETS, PROBERS, global},
};

/// A part of an environment, aligned so that its first bytes are compared in two loads.
#[repr(C, align(8))]
struct Word {
    head: u64,
    tail: u16,
    rest: [u8; Word::LEN as usize - 10],
}

impl Word {
    const LEN: u32 = 64;
    const HEAD: u64 = u64::from_ne_bytes(*b"CNI_NETN");
    const TAIL: u16 = u16::from_ne_bytes(*b"S=");
}

/// Copies the value of `CNI_NETNS` of the current task's environment, NUL padded.
///
/// A runtime puts it behind its own environment; what lies further than the 128 words that are looked
/// at is not found. The verifier walks through each turn: few instructions and one way through it.
#[inline(always)]
pub fn cni_netns(dst: &mut [u8; PATH_LEN]) {
    let Some((mut at, end)) = Task::current().environment() else { return };
    let mut word = Word { head: 0, tail: 0, rest: [0; Word::LEN as usize - 10] };
    // 1: this word goes on where the buffer ended.
    let mut inside = 0;
    for _ in 0..128 {
        if at >= end {
            return;
        }
        let read = unsafe { bpf_probe_read_user_str((&raw mut word).cast(), Word::LEN, at as *const _) };
        if read <= 0 {
            return;
        }
        if (word.head ^ Word::HEAD) | u64::from(word.tail ^ Word::TAIL) | inside == 0 {
            let value = at + 10;
            unsafe { bpf_probe_read_user_str(dst.as_mut_ptr().cast(), PATH_LEN as u32, value as *const _) };
            return;
        }
        // One that fills the buffer goes on behind it, or ends there with a word of no length.
        inside = read as u64 / u64::from(Word::LEN);
        at += read as u64 - inside;
    }
}

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
    if !task.leader().comm(dst) {
        task.comm(dst);
    }
}

/// Whether connections of the current task, which is of this thread group, are tracked.
#[inline(always)]
pub fn is_tracked(tgid: u32) -> bool {
    if tgid == global!(SETTINGS.own_pid) {
        return false;
    }
    global!(SETTINGS.all_connections) != 0 || is_prober(Task::current())
}

/// Whether a task has the name of a prober, and is none that only pretends.
#[inline(always)]
pub fn is_prober(task: Task) -> bool {
    if let Some(head) = task.leader().comm_head()
        && PROBER_BUCKETS.get(comm_bucket(head)).is_some_and(|bucket| *bucket == 0)
    {
        return false;
    }
    let mut comm = [0u8; COMM_LEN];
    leader_comm(task, &mut comm);
    unsafe { PROBERS.get(comm).is_some() && PRETENDING.get(cgroup_of(task)).is_none() }
}

/// Whether this name in the kernel's memory is a prober's.
#[inline(always)]
pub fn is_name_of_prober(name: u64) -> bool {
    let mut comm = [0u8; COMM_LEN];
    read_str(name, 0, &mut comm) && unsafe { PROBERS.get(comm).is_some() }
}

/// What the current task is counted with: the memory controller's cgroup, which is a container's (one that is privileged, or
/// that the hierarchy is delegated to, can make others below it); without that controller the one of the unified hierarchy.
#[inline(always)]
pub fn cgroup() -> u64 {
    cgroup_of(Task::current())
}

#[inline(always)]
fn cgroup_of(task: Task) -> u64 {
    task.memory_cgroup().or_else(|| task.unified_cgroup()).unwrap_or(ABSENT64)
}

/// Describes the current task.
#[inline(always)]
pub fn fill(actor: &mut Actor) {
    let task = Task::current();
    actor.pid = task.tgid();
    actor.tid = task.tid();
    leader_comm(task, &mut actor.comm);
    actor.netns = task.netns();
    actor.cgroup = task.unified_cgroup().unwrap_or(ABSENT64);
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
