//! The current task, where it is the actor of the event.

use aya_ebpf::helpers::generated::{bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_probe_read_user_str};
use tracer_common::{
    ABSENT64,
    actor::{ANCESTORS, Actor, Ancestor, COMM_LEN, comm_bucket},
    netns::PATH_LEN,
};

use crate::{
    kernel::Task,
    maps::{PROBER_BUCKETS, PROBERS, global},
};

/// Copies the value of `CNI_NETNS` of the current task's environment, NUL padded.
///
/// A runtime puts it behind its own environment; what lies further than the 128 words that are looked
/// at is not found.
#[inline(always)]
pub fn cni_netns(dst: &mut [u8; PATH_LEN]) {
    const WORD: u32 = 64;
    let Some((mut at, end)) = Task::current().environment() else { return };
    let mut inside = false;
    for _ in 0..128 {
        if at >= end {
            return;
        }
        let mut word = [0u8; WORD as usize];
        let read = unsafe { bpf_probe_read_user_str(word.as_mut_ptr().cast(), WORD, at as *const _) };
        if read <= 0 {
            return;
        }
        if !inside && names_cni_netns(&word) {
            let value = at + 10;
            unsafe { bpf_probe_read_user_str(dst.as_mut_ptr().cast(), PATH_LEN as u32, value as *const _) };
            return;
        }
        // One that fills the buffer goes on behind it, or ends there with a word of no length.
        inside = read == i64::from(WORD);
        at += if inside { u64::from(WORD) - 1 } else { read as u64 };
    }
}

/// Whether a variable is `CNI_NETNS`.
#[inline(always)]
fn names_cni_netns(word: &[u8]) -> bool {
    const HEAD: u64 = u64::from_be_bytes(*b"CNI_NETN");
    let mut head = 0;
    for byte in &word[..8] {
        head = (head << 8) | u64::from(*byte);
    }
    head == HEAD && word[8] == b'S' && word[9] == b'='
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
    let task = Task::current();
    if let Some(head) = task.leader().comm_head()
        && PROBER_BUCKETS.get(comm_bucket(head)).is_some_and(|bucket| *bucket == 0)
    {
        return false;
    }
    let mut comm = [0u8; COMM_LEN];
    leader_comm(task, &mut comm);
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
