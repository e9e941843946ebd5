//! Files that name a network namespace.

use aya_ebpf::{
    helpers::{bpf_probe_read_user, generated::bpf_probe_read_user_str},
    macros::tracepoint,
    programs::TracePointContext,
};
use tracer_common::{
    names::Hook,
    netns::{NetnsOpen, PATH_LEN},
};

use crate::{actor, emit::emit, maps::OPENED};

/// A file is opened: `/proc/PID/ns/net`, `/run/netns/NAME`, `/var/run/netns/NAME`.
///
/// proto v5.10  fs/open.c  SYSCALL_DEFINE4(openat, int, dfd, const char __user *, filename, int, flags, umode_t, mode)
///
/// Most opens are told apart by their first five bytes.
#[tracepoint(category = "syscalls", name = "sys_enter_openat")]
pub fn sys_enter_openat(ctx: TracePointContext) -> u32 {
    let Ok(name) = (unsafe { ctx.read_at::<u64>(24) }) else { return 0 };
    let Ok(head) = (unsafe { bpf_probe_read_user::<[u8; 5]>(name as *const _) }) else { return 0 };
    if matches!(&head, b"/proc" | b"/run/" | b"/var/") {
        try_openat(name);
    }
    0
}

#[inline(always)]
fn try_openat(name: u64) {
    let mut path = [0u8; PATH_LEN];
    let read = unsafe { bpf_probe_read_user_str(path.as_mut_ptr().cast(), PATH_LEN as u32, name as *const _) };
    if read <= 0 || !names_netns(&path) || actor::is_tracer() {
        return;
    }
    let _ = OPENED.insert(actor::tgid(), 1, 0);
    emit::<NetnsOpen>(Hook::SysOpenat, |event| {
        actor::fill(&mut event.actor);
        event.path = path;
    });
}

/// Whether a path ends in `/ns/net` or has `/netns/` in it: its last eight bytes slide through a
/// register.
#[inline(always)]
fn names_netns(path: &[u8; PATH_LEN]) -> bool {
    const FILE: u64 = u64::from_be_bytes(*b"/ns/net\0");
    const FOLDER: u64 = u64::from_be_bytes(*b"\0/netns/");
    let mut window = 0u64;
    for byte in path {
        window = (window << 8) | u64::from(*byte);
        if window == FILE || window & (u64::MAX >> 8) == FOLDER {
            return true;
        }
    }
    false
}
