//! One daemon a node: two would print every verdict twice and attach every hook twice.
//!
//! Two locks, because neither sees everything: a file under `/run` is shared by processes of one
//! mount namespace, an abstract socket by processes of one network namespace (two containers with
//! hostNetwork). Both vanish with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket, sockopt::PeerCredentials,
};

use tracer_terminal::error::Error;

const PATH: &str = "/run/tracer.lock";
/// The abstract socket.
const NAME: &str = "tracer-run";

/// Held while the daemon runs.
#[derive(Debug)]
pub struct InstanceLock {
    _file: Option<Flock<File>>,
    _socket: Option<UnixListener>,
}

impl InstanceLock {
    /// Takes the node, or says who has it.
    pub fn take() -> Result<Self, Error> {
        Self::take_at(Path::new(PATH), NAME)
    }

    fn take_at(path: &Path, name: &str) -> Result<Self, Error> {
        let file = lock_file(path)?;
        let socket = lock_socket(name)?;
        if file.is_none() && socket.is_none() {
            tracing::warn!(path = %path.display(), "no lock could be taken: a second daemon would not be noticed");
        }
        Ok(Self { _file: file, _socket: socket })
    }
}

/// Locks the file. `None`: there is no place for it here.
fn lock_file(path: &Path) -> Result<Option<Flock<File>>, Error> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path);
    let Ok(file) = opened else { return Ok(None) };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
            Ok(Some(lock))
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            Err(Error::SecondInstance { pid: pid_in(&mut file), held: path.display().to_string() })
        }
        Err((_, errno)) => {
            tracing::warn!(path = %path.display(), %errno, "cannot lock");
            Ok(None)
        }
    }
}

fn pid_in(file: &mut File) -> Option<i32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Binds the socket. `None`: this system has no abstract sockets for us.
fn lock_socket(name: &str) -> Result<Option<UnixListener>, Error> {
    let Ok(address) = SocketAddr::from_abstract_name(name) else { return Ok(None) };
    match UnixListener::bind_addr(&address) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => holder(name),
        Err(_) => Ok(None),
    }
}

/// Who holds the socket. Anybody may bind an abstract name: a holder who is not root (or us), or no tracer by its name, is no
/// daemon of ours.
fn holder(name: &str) -> Result<Option<UnixListener>, Error> {
    match credentials(name) {
        Some(c) if !is_daemon(&c) => {
            tracing::warn!(pid = c.pid(), uid = c.uid(), "a foreign process holds the socket @{name}: ignored");
            Ok(None)
        }
        other => Err(Error::SecondInstance {
            pid: other.map(|c| c.pid()).filter(|&pid| pid > 0),
            held: format!("socket @{name}"),
        }),
    }
}

fn is_daemon(holder: &UnixCredentials) -> bool {
    let may_run = holder.uid() == 0 || holder.uid() == nix::unistd::getuid().as_raw();
    may_run && is_tracer(holder.pid())
}

/// By its name, or the one that we run by. Of a process that is not seen from here it is not known: one is enough to wait.
fn is_tracer(pid: i32) -> bool {
    let name = |pid: &str| std::fs::read(format!("/proc/{pid}/comm")).ok();
    name(&pid.to_string()).is_none_or(|comm| comm == b"tracer\n" || Some(comm) == name("self"))
}

/// Of who listens there, if that can be known. A full queue, which nobody takes anything from, is EAGAIN and not waited for.
fn credentials(name: &str) -> Option<UnixCredentials> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let peer: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    connect(peer.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).ok()?).ok()?;
    getsockopt(&peer.as_fd(), PeerCredentials).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> (std::path::PathBuf, String) {
        let unique = format!("tracer-test-{name}-{}", std::process::id());
        (std::env::temp_dir().join(&unique), unique)
    }

    #[test]
    fn the_second_is_reported_who_is_first() {
        let (path, name) = place("file");
        let first = InstanceLock::take_at(&path, &name).unwrap();
        let error = InstanceLock::take_at(&path, &name).unwrap_err();
        assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(first);
        InstanceLock::take_at(&path, &name).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_socket_alone_is_enough() {
        let (_, name) = place("socket");
        let nowhere = Path::new("/nonexistent/tracer.lock");
        let _first = InstanceLock::take_at(nowhere, &name).unwrap();
        let error = InstanceLock::take_at(nowhere, &name).unwrap_err();
        assert!(error.to_string().contains("socket @"), "{error}");
        assert!(error.to_string().contains(&format!("(pid {})", std::process::id())), "{error}");
    }

    #[test]
    fn a_process_of_another_name_is_no_daemon() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of = |pid: u32| is_daemon(&UnixCredentials::from(libc::ucred { pid: pid as i32, uid: 0, gid: 0 }));
        let (foreign, own) = (of(other.id()), of(std::process::id()));
        other.kill().and_then(|()| other.wait()).unwrap();
        assert!(own && !foreign);
        assert!(is_tracer(0), "it is in another PID namespace");
    }

    /// Nobody accepts the connections of those who were refused.
    #[test]
    fn a_full_queue_is_a_holder_and_not_waited_for() {
        use std::os::unix::net::UnixStream;
        let (_, name) = place("full");
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
