//! The current task: the actor of the event.
//!
//! Of the helpers for the current task, `sock_ops` programs may only call `bpf_get_current_task`
//! (`sock_ops_func_proto`, 5.10 to 6.12). Functions that they use therefore read pid and tid from the `task_struct`.

use aya_ebpf::helpers::generated::bpf_get_current_pid_tgid;
use tracer_common::{
    ABSENT64,
    actor::{ANCESTORS, Actor, Ancestor, COMM_LEN, comm_bucket},
    netns::PATH_LEN,
};

use crate::{
    kernel::Task,
    maps::{PRETENDING, PROBER_BUCKETS, PROBERS, global},
    user,
};

/// A piece of an environment. It is aligned so that two loads compare its first ten bytes.
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
/// A runtime appends it to its own environment. A variable after the first 128 pieces is not found.
/// The verifier unrolls the loop, so the body is short and has a single path.
#[inline(always)]
pub fn cni_netns(dst: &mut [u8; PATH_LEN]) {
    let Some((mut at, end)) = Task::current().environment() else { return };
    let mut word = Word { head: 0, tail: 0, rest: [0; Word::LEN as usize - 10] };
    // 1 if this piece continues a variable that was longer than the buffer.
    let mut continued = 0;
    for _ in 0..128 {
        if at >= end {
            return;
        }
        let read = user::string((&raw mut word).cast(), Word::LEN, at);
        if read <= 0 {
            return;
        }
        if (word.head ^ Word::HEAD) | u64::from(word.tail ^ Word::TAIL) | continued == 0 {
            let value = at + 10;
            user::string(dst.as_mut_ptr(), PATH_LEN as u32, value);
            return;
        }
        // A full buffer holds a variable that continues, or one that ends here: then the next piece is empty.
        continued = read as u64 / u64::from(Word::LEN);
        at += read as u64 - continued;
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

/// Name of the thread group's leader, because Go and Java rename their threads.
#[inline(always)]
pub fn leader_comm(task: Task, dst: &mut [u8; COMM_LEN]) {
    if !task.leader().comm(dst) {
        task.comm(dst);
    }
}

/// Whether connections of the current task are tracked; `tgid` is its thread group.
#[inline(always)]
pub fn is_tracked(tgid: u32) -> bool {
    if tgid == global!(SETTINGS.own_pid) {
        return false;
    }
    global!(SETTINGS.all_connections) != 0 || is_prober(Task::current())
}

/// Whether a task has the name of a prober and is not a pod's process with the same name.
#[inline(always)]
pub fn is_prober(task: Task) -> bool {
    if let Some(head) = task.leader().comm_head()
        && PROBER_BUCKETS.get(comm_bucket(head)).is_some_and(|bucket| *bucket == 0)
    {
        return false;
    }
    let mut comm = [0u8; COMM_LEN];
    leader_comm(task, &mut comm);
    is_prober_name(task, &comm)
}

/// The same for a name that the task may not have yet.
#[inline(always)]
pub fn is_prober_name(task: Task, comm: &[u8; COMM_LEN]) -> bool {
    unsafe { PROBERS.get(comm).is_some() && PRETENDING.get(cgroup_of(task)).is_none() }
}

/// The cgroup that limits count the current task under.
///
/// It is the memory controller's cgroup, usually the container's. (A privileged container, or one with a delegated
/// hierarchy, can make cgroups below it.) Without that controller it is the cgroup of the unified hierarchy.
#[inline(always)]
pub fn cgroup() -> u64 {
    cgroup_of(Task::current())
}

#[inline(always)]
fn cgroup_of(task: Task) -> u64 {
    task.memory_cgroup().or_else(|| task.unified_cgroup()).unwrap_or(ABSENT64)
}

#[inline(always)]
pub fn fill(actor: &mut Actor) {
    fill_from(Task::current(), actor);
}

#[inline(always)]
pub fn fill_from(task: Task, actor: &mut Actor) {
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
