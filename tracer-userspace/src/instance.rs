//! Allows only one daemon on a node: two would print each verdict twice and attach each hook twice.
//!
//! The lock is an abstract socket: daemons in the node's network namespace share it, with systemd or as pods with
//! hostNetwork, and no file has to be writable. The kernel releases it when the process ends.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket, sockopt::PeerCredentials,
};

use tracer_terminal::error::Error;

/// The abstract socket.
const NAME: &str = "tracer-run";

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

/// The error that names the holder of the socket, if it is a tracer. Any user may bind an abstract name, so other holders are
/// ignored.
fn check_holder(name: &str) -> Result<Option<UnixListener>, Error> {
    match credentials(name) {
        Some(c) if !may_be_daemon(&c) => {
            tracing::warn!(pid = c.pid(), uid = c.uid(), "another program holds the socket @{name}: ignored");
            Ok(None)
        }
        other => Err(Error::SecondInstance {
            pid: other.map(|c| c.pid()).filter(|&pid| pid > 0),
            held: format!("socket @{name}"),
        }),
    }
}

fn may_be_daemon(holder: &UnixCredentials) -> bool {
    let is_allowed_user = holder.uid() == 0 || holder.uid() == nix::unistd::getuid().as_raw();
    is_allowed_user && may_be_tracer(holder.pid())
}

/// Whether the process is named `tracer` or as this one. A process of another PID namespace has no name here: it may be one.
fn may_be_tracer(pid: i32) -> bool {
    let name = |pid: &str| std::fs::read(format!("/proc/{pid}/comm")).ok();
    name(&pid.to_string()).is_none_or(|comm| comm == b"tracer\n" || Some(comm) == name("self"))
}

/// The credentials of the listener, if they can be read. If its queue is full, connect() fails with EAGAIN at once.
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

    /// The daemon does not accept the connections of refused daemons, so its queue can be full.
    #[test]
    fn a_holder_with_a_full_queue_is_reported_at_once() {
        use std::os::unix::net::UnixStream;
        let name = unique("full");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let first = UnixListener::bind_addr(&address).unwrap();
        nix::sys::socket::listen(&first, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let _waiting = UnixStream::connect_addr(&address).unwrap();
        let (tx, taken) = std::sync::mpsc::channel();
        std::thread::spawn(move || tx.send(lock_socket(&name).map(drop).map_err(|error| error.to_string())));
        let refused = taken.recv_timeout(std::time::Duration::from_secs(10)).unwrap().unwrap_err();
        assert!(refused.starts_with("another `tracer run` has this node (socket @"), "{refused}");
    }
}
