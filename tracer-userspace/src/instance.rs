//! Allows only one daemon on a node: two would print each verdict twice and attach each hook twice.
//!
//! The lock is an abstract socket: daemons in the node's network namespace share it, with systemd or as pods with
//! hostNetwork, and no file has to be writable. The kernel releases it when the process ends.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket, sockopt::PeerCredentials,
};

use rustix::thread::{CapabilitySet, Pid, capabilities};
use tracer_terminal::error::Error;

/// The abstract socket.
const NAME: &str = "tracer-run";
/// The pause after a connection that could not be taken.
const RETRY: Duration = Duration::from_secs(1);

/// Takes the lock, which is held until it is dropped; the error names the process that holds it.
pub(crate) fn lock() -> Result<Option<UnixListener>, Error> {
    let socket = lock_socket(NAME)?;
    if socket.is_none() {
        tracing::warn!("no lock could be taken: tracer would not notice a second daemon");
    }
    Ok(socket)
}

/// Binds the socket. `None` if this system does not allow it.
fn lock_socket(name: &str) -> Result<Option<UnixListener>, Error> {
    let Ok(address) = SocketAddr::from_abstract_name(name) else { return Ok(None) };
    match UnixListener::bind_addr(&address) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => check_holder(name),
        Err(_) => Ok(None),
    }
}

/// The error that names the holder of the socket, if it may be a daemon. Any process of the node's network namespace may bind an
/// abstract name, also one of a pod with hostNetwork, so other holders are ignored. A daemon can always be asked who it is: see
/// [`answer`].
fn check_holder(name: &str) -> Result<Option<UnixListener>, Error> {
    match credentials(name) {
        Some(c) if may_be_daemon(&c) => {
            Err(Error::SecondInstance { pid: Some(c.pid()).filter(|&pid| pid > 0), held: format!("socket @{name}") })
        }
        other => {
            let (pid, uid) = (other.map(|c| c.pid()), other.map(|c| c.uid()));
            tracing::warn!(pid, uid, "a program that is no daemon holds the socket @{name}: tracer runs without it");
            Ok(None)
        }
    }
}

/// Takes the connections of daemons that are refused, so that the queue of the lock is never full. Does not end: an error,
/// such as too many open files, must not release the lock.
pub(crate) async fn answer(lock: UnixListener) {
    let copy = lock.set_nonblocking(true).and_then(|()| lock.try_clone());
    let Ok(listener) = copy.and_then(tokio::net::UnixListener::from_std) else { return std::future::pending().await };
    loop {
        if listener.accept().await.is_err() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn may_be_daemon(holder: &UnixCredentials) -> bool {
    let is_allowed_user = holder.uid() == 0 || holder.uid() == nix::unistd::getuid().as_raw();
    is_allowed_user && may_be_tracer(holder.pid()) && (can_trace(Pid::from_raw(holder.pid())) || !can_trace(None))
}

/// Whether a process has the capabilities to attach programs; without a process: this one. CAP_SYS_ADMIN includes the others.
fn can_trace(pid: Option<Pid>) -> bool {
    let all = CapabilitySet::BPF | CapabilitySet::PERFMON;
    let effective = capabilities(pid).map_or(CapabilitySet::empty(), |sets| sets.effective);
    effective.contains(CapabilitySet::SYS_ADMIN) || effective.contains(all)
}

/// Whether the process is named `tracer` or as this one. A process of another PID namespace has no name here: it may be one.
fn may_be_tracer(pid: i32) -> bool {
    let name = |pid: &str| std::fs::read(format!("/proc/{pid}/comm")).ok();
    name(&pid.to_string()).is_none_or(|comm| comm == b"tracer\n" || Some(comm) == name("self"))
}

/// The credentials of the listener; `None` if it does not listen, or its queue is full. In neither case connect() waits.
fn credentials(name: &str) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let peer: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(peer.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).ok()?).ok()?;
    getsockopt(&peer.as_fd(), PeerCredentials).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unique(name: &str) -> String {
        format!("tracer-test-{name}-{}", std::process::id())
    }

    #[test]
    fn the_error_names_the_process_that_holds_the_lock() {
        let name = unique("socket");
        let first = lock_socket(&name).unwrap();
        let error = lock_socket(&name).unwrap_err().to_string();
        assert!(error.contains("socket @") && error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        assert!(lock_socket(&name).unwrap().is_some());
    }

    #[test]
    fn a_process_with_another_name_is_no_daemon() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of = |pid: u32| may_be_daemon(&UnixCredentials::from(libc::ucred { pid: pid as i32, uid: 0, gid: 0 }));
        let (sleep, own) = (of(other.id()), of(std::process::id()));
        other.kill().and_then(|()| other.wait()).unwrap();
        assert!(own && !sleep);
        assert!(may_be_tracer(0), "it is in another PID namespace");
    }

    /// A container with hostNetwork is root, and may give its process any name.
    #[test]
    fn a_process_that_cannot_attach_programs_is_no_daemon() {
        use std::os::unix::process::CommandExt as _;
        let directory = tracer_testing::Scratch::new();
        let program = directory.path("tracer");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let start = |securebits: libc::c_int| {
            let mut command = std::process::Command::new(&program);
            // SAFETY: the call is async-signal-safe. Only root may make it, and only root has what it takes away.
            unsafe {
                command.pre_exec(move || {
                    libc::prctl(libc::PR_SET_SECUREBITS, securebits);
                    Ok(())
                })
            };
            command.arg("60").spawn().unwrap()
        };
        let judged = [0, libc::SECBIT_NOROOT].map(|securebits| {
            let mut child = start(securebits);
            let credentials = libc::ucred { pid: child.id().cast_signed(), uid: 0, gid: 0 };
            let may_be = may_be_daemon(&UnixCredentials::from(credentials));
            child.kill().and_then(|()| child.wait()).unwrap();
            may_be
        });
        assert_eq!(judged, [true, !can_trace(None)]);
    }

    /// Nobody can ask such a holder who it is.
    #[test]
    fn a_holder_with_a_full_queue_is_ignored_at_once_and_a_daemon_has_none() {
        use std::os::unix::net::UnixStream;
        let name = unique("full");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let first = UnixListener::bind_addr(&address).unwrap();
        nix::sys::socket::listen(&first, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let _waiting = UnixStream::connect_addr(&address).unwrap();
        let (tx, taken) = std::sync::mpsc::channel();
        let refused = name.clone();
        std::thread::spawn(move || tx.send(lock_socket(&refused).unwrap().is_none()));
        assert_eq!(taken.recv_timeout(std::time::Duration::from_secs(10)), Ok(true));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(answer(first)));
        tracer_testing::soon("an answer", || lock_socket(&name).err());
    }

    #[test]
    fn a_connection_that_cannot_be_taken_does_not_release_the_lock() {
        // This one does not listen: accept() fails, as with too many open files.
        let lock = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).map(UnixListener::from);
        let lock = lock.unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_millis(100), answer(lock)).await });
        assert!(ended.is_err());
    }
}
