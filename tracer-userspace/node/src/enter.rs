//! Runs a function inside another network namespace.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::sched::{CloneFlags, setns};

use tracer_terminal::error::os_message;

#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    #[error("cannot open the network namespace {}: {} (needs CAP_SYS_PTRACE and the host's pid namespace)", path.display(), os_message(source))]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot enter the network namespace {}: {} (needs CAP_SYS_ADMIN)", path.display(), os_message(source))]
    Enter { path: PathBuf, source: io::Error },
    #[error("cannot start a thread to enter {}: {}", path.display(), os_message(source))]
    Thread { path: PathBuf, source: io::Error },
    #[error("the task inside the network namespace {} ended without an answer", path.display())]
    Lost { path: PathBuf },
}

impl NetnsError {
    /// The missing capability, if that is the reason.
    pub fn needs(&self) -> Option<&'static str> {
        let (source, capability) = match self {
            Self::Open { source, .. } => (source, "CAP_SYS_PTRACE"),
            Self::Enter { source, .. } => (source, "CAP_SYS_ADMIN"),
            Self::Thread { .. } | Self::Lost { .. } => return None,
        };
        (source.kind() == io::ErrorKind::PermissionDenied).then_some(capability)
    }
}

thread_local! {
    /// The namespace that this thread is in, if it [enters namespaces itself](enter_on_this_thread).
    static CURRENT: RefCell<Option<Rc<File>>> = const { RefCell::new(None) };
}

const OWN: &str = "/proc/thread-self/ns/net";

/// From now on the calling thread enters namespaces itself and comes back. It is for threads that only read namespaces.
///
/// A new thread for each visit costs as much as the visit. Where all processors are busy, a new thread also waits
/// behind the running ones.
pub fn enter_on_this_thread() {
    CURRENT.set(File::open(OWN).ok().map(Rc::new));
}

/// Runs `task` inside the namespace at `path`. The calling thread runs it if that namespace is its own, or if the
/// thread [enters namespaces itself](enter_on_this_thread). Otherwise a short-lived thread runs it.
///
/// Sockets opened inside stay in that namespace. Inside, use `/proc/thread-self`, never `/proc/self`.
pub fn in_netns<T: Send>(path: &Path, task: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let there = File::open(path).map_err(|source| NetnsError::Open { path: path.into(), source })?;
    if is_own(&there) {
        return Ok(task());
    }
    match CURRENT.with_borrow(Option::clone) {
        Some(here) => run_here(path, there, here, task),
        None => run_on_new_thread(path, &there, task),
    }
}

/// Each namespace has its own file on nsfs. Our file is not opened: another running tracer would observe the open.
fn is_own(there: &File) -> bool {
    let place = |it: Metadata| (it.dev(), it.ino());
    let (own, there) = (std::fs::metadata(OWN), there.metadata());
    own.is_ok_and(|own| there.is_ok_and(|there| place(own) == place(there)))
}

fn run_here<T>(path: &Path, there: File, here: Rc<File>, task: impl FnOnce() -> T) -> Result<T, NetnsError> {
    enter(path, &there)?;
    CURRENT.set(Some(Rc::new(there)));
    let _way_back = WayBack(here);
    // A panic ends only this visit, as on a short-lived thread.
    catch_unwind(AssertUnwindSafe(task)).map_err(|_| NetnsError::Lost { path: path.into() })
}

fn run_on_new_thread<T: Send>(path: &Path, there: &File, task: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    std::thread::scope(|scope| {
        let visit = || enter(path, there).map(|()| task());
        let thread = std::thread::Builder::new().name("in-netns".into()).spawn_scoped(scope, visit);
        let thread = thread.map_err(|source| NetnsError::Thread { path: path.into(), source })?;
        thread.join().unwrap_or_else(|_| Err(NetnsError::Lost { path: path.into() }))
    })
}

fn enter(path: &Path, there: &File) -> Result<(), NetnsError> {
    setns(there, CloneFlags::CLONE_NEWNET)
        .map_err(|errno| NetnsError::Enter { path: path.into(), source: errno.into() })
}

/// Returns to the previous namespace when dropped, also after a panic: a thread inside keeps a pod's namespace alive.
struct WayBack(Rc<File>);

impl Drop for WayBack {
    fn drop(&mut self) {
        match setns(&self.0, CloneFlags::CLONE_NEWNET) {
            Ok(()) => CURRENT.set(Some(Rc::clone(&self.0))),
            Err(errno) => tracing::error!("this thread cannot leave a network namespace that it entered: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_gone_is_named() {
        let error = in_netns(Path::new("/proc/0/ns/net"), || ()).expect_err("no process 0");
        assert!(error.to_string().contains("/proc/0/ns/net"), "{error}");
    }

    #[test]
    fn a_task_in_our_own_namespace_runs_on_the_calling_thread() {
        let thread = std::thread::current().id();
        let own = Path::new("/proc/thread-self/ns/net");
        assert_eq!(in_netns(own, || std::thread::current().id()).expect("our own"), thread);
    }
}
