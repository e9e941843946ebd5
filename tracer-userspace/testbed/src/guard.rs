//! Removes what a selftest leaves behind, even if it is killed.
//!
//! A child does the work in its own mount namespace. Its files and the names of network namespaces are in a tmpfs,
//! which ends with the child. Its processes get SIGKILL when it ends. The parent removes the cgroups; if it was killed
//! too, the next selftest does.

use std::process;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

use super::node::sweep;
use tracer_terminal::error::{self, Error};

/// Does the work in a child, waits for the child and its descendants, and returns the child's exit code.
/// This process must have a single thread.
pub(super) fn guarded(work: impl FnOnce() -> Result<u8, Error>) -> Result<u8, Error> {
    sweep::remove_cgroups();
    let ends: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
    let usual = ends.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(refused("signals"))?;
    // Orphans of the child become ours, so that their end can be awaited.
    prctl::set_child_subreaper(true).map_err(refused("child subreaper"))?;
    let parent = getpid();
    // SAFETY: with a single thread, the child may do anything that the parent may.
    match unsafe { fork() }.map_err(refused("fork"))? {
        ForkResult::Child => process::exit(i32::from(child(parent, &usual, work))),
        ForkResult::Parent { child } => watch(child, &ends, &usual),
    }
}

fn child(parent: Pid, usual: &SigSet, work: impl FnOnce() -> Result<u8, Error>) -> u8 {
    let bound = prctl::set_pdeathsig(Signal::SIGKILL).and_then(|()| usual.thread_set_mask());
    let ended = bound.map_err(refused("signals")).and_then(|()| match getppid() == parent {
        true => work(),
        false => Err(Error::Kernel("its parent has ended".into())),
    });
    ended.unwrap_or_else(|error| {
        error::report(&error);
        error.exit_code()
    })
}

/// Waits until the child ends, or a signal asks to end it.
fn watch(child: Pid, ends: &SigSet, usual: &SigSet) -> Result<u8, Error> {
    loop {
        match ends.wait().map_err(refused("signals"))? {
            Signal::SIGCHLD => match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => {
                    clear(child);
                    return Ok(u8::try_from(code).unwrap_or(3));
                }
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    clear(child);
                    // Ctrl-C goes to both processes.
                    return if ends.contains(signal) { end_by(signal, usual) } else { Err(killed(signal)) };
                }
                _ => {}
            },
            signal => {
                let _ = kill(child, Signal::SIGKILL);
                clear(child);
                return end_by(signal, usual);
            }
        }
    }
}

fn killed(signal: Signal) -> Error {
    Error::Kernel(format!("selftest was ended by {signal}: is memory too short?"))
}

/// Waits for all descendants of the child, and removes its cgroups.
fn clear(child: Pid) {
    while waitpid(None, None).is_ok() {}
    sweep::remove_cgroups_of(child.as_raw().cast_unsigned());
}

/// Ends by the signal itself, so that the parent of this process sees it.
fn end_by(signal: Signal, usual: &SigSet) -> Result<u8, Error> {
    let _ = usual.thread_set_mask();
    let _ = raise(signal);
    Err(Error::Kernel(format!("selftest was ended by {signal}")))
}

/// Gives this process a private `/run` and a writable `/proc/sys`, which is read-only in a container.
/// Scenarios only write settings of the network namespaces that they made.
pub(super) fn private_mounts() -> Result<(), Error> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).map_err(refused("a mount namespace (CAP_SYS_ADMIN)"))?;
    // A slave mount, so that unmounts of the machine also happen here.
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE).map_err(refused("private mounts"))?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .map_err(refused("a file system in memory at /run"))?;
    if statvfs("/proc/sys").is_ok_and(|it| it.flags().contains(FsFlags::ST_RDONLY)) {
        mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), NONE).map_err(refused("a writable /proc"))?;
    }
    Ok(())
}

fn refused(what: &'static str) -> impl Fn(nix::Error) -> Error {
    move |error| Error::Kernel(format!("selftest needs {what}: {}", error.desc()))
}
