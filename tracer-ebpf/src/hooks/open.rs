//! Files that name a network namespace.

use aya_ebpf::{macros::tracepoint, programs::TracePointContext};
use tracer_common::{
    limit::Limited,
    names::Hook,
    netns::{self, NetnsOpen, PATH_LEN},
};

use crate::{actor, emit::emit, kernel::syscall_field, limit, maps::OPENED, user};

function_hook! {
    /// A file of a network namespace is opened: `/proc/PID/ns/net`, `/run/netns/NAME`, `/var/run/netns/NAME`.
    ///
    /// proto v5.10  fs/open.c  static long do_sys_openat2(int dfd, const char __user *filename, struct open_how *how)
    /// proto v6.18  fs/open.c  static int do_sys_openat2(int dfd, const char __user *filename, struct open_how *how)
    ///
    /// The first bytes of the path rule out most opens.
    fentry_do_sys_openat2, kprobe_do_sys_openat2: "do_sys_openat2", |filename: 1| try_open(filename)
}

/// See [`fentry_do_sys_openat2`]. For kernels without function probes.
///
/// proto v5.10  fs/open.c  SYSCALL_DEFINE4(openat, int, dfd, const char __user *, filename, int, flags, umode_t, mode)
#[tracepoint(category = "syscalls", name = "sys_enter_openat")]
pub fn sys_enter_openat(ctx: TracePointContext) -> u32 {
    try_open(syscall_field(&ctx, 1));
    0
}

#[inline(always)]
fn try_open(name: u64) {
    if let Some(head) = user::head(name)
        && netns::may_name(u64::from_be(head))
    {
        report(name);
    }
}

#[inline(always)]
fn report(name: u64) {
    let mut path = [0u8; PATH_LEN];
    if user::string(path.as_mut_ptr(), PATH_LEN as u32, name) <= 0 || !netns::names(&path) || actor::is_tracer() {
        return;
    }
    let _ = OPENED.insert(actor::tgid(), 1, 0);
    if !limit::allows(Limited::Open) {
        return;
    }
    emit::<NetnsOpen>(Hook::SysOpenat, |event| {
        actor::fill(&mut event.actor);
        event.path = path;
    });
}
