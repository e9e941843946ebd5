//! Classic tracepoints need tracefs, which not every machine has mounted.

use std::path::Path;

/// Runs `f` with a readable tracefs. If it is not mounted, `f` runs on a thread with its own mount namespace, and tracefs is mounted
/// only there.
///
/// Programs that `f` attaches stay attached after the thread ends.
pub(super) fn with<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    if is_mounted() {
        return f();
    }
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            if let Err(error) = mount() {
                tracing::info!(%error, "tracefs cannot be mounted");
            }
            f()
        });
        match worker.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Whether tracefs is already mounted and readable.
pub(super) fn is_mounted() -> bool {
    ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"].iter().any(|p| Path::new(p).is_dir())
}

/// Detaches the calling thread from the machine's mounts and mounts tracefs for it alone.
fn mount() -> nix::Result<()> {
    use nix::mount::{MsFlags, mount};
    const NONE: Option<&str> = None;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
    mount(Some("tracefs"), "/sys/kernel/tracing", Some("tracefs"), MsFlags::empty(), NONE)
}
