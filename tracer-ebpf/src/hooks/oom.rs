//! Processes that the kernel kills for lack of memory.

use aya_ebpf::{
    EbpfContext as _, helpers::generated::bpf_get_stack, macros::raw_tracepoint, programs::RawTracePointContext,
};
use tracer_common::{
    ABSENT32, ABSENT64, STACK_DEPTH,
    actor::{COMM_LEN, OomKill},
    names::Hook,
};

use crate::{actor, emit::emit, kernel::Task};

/// The kernel kills a process to free memory.
///
/// Newer kernels give the task (6.9, and stable kernels into which the change was taken), older ones its number, which is
/// below any address. The current task asked for the memory. It is usually the one that is killed.
///
/// proto v5.10  include/trace/events/oom.h  TP_PROTO(int pid)
/// proto v7.2   include/trace/events/oom.h  TP_PROTO(struct task_struct *task, uid_t uid)
#[raw_tracepoint(tracepoint = "mark_victim")]
pub fn mark_victim(ctx: RawTracePointContext) -> i32 {
    let given: u64 = ctx.arg(0);
    let number = u32::try_from(given).ok();
    let task = if number.is_some() { Task::current() } else { Task(given) };
    emit::<OomKill>(Hook::MarkVictim, |event| {
        let victim = &mut event.victim;
        actor::fill_from(task, victim);
        if let Some(number) = number
            && number != victim.tid
            && number != victim.pid
        {
            (victim.pid, victim.tid, victim.comm, victim.netns) = (number, number, [0; COMM_LEN], ABSENT32);
            (victim.cgroup, victim.cgroup_memory) = (ABSENT64, ABSENT64);
        }
        // A shorter stack leaves the rest 0.
        unsafe { bpf_get_stack(ctx.as_ptr(), (&raw mut event.stack).cast(), (STACK_DEPTH * 8) as u32, 0) };
    });
    0
}
