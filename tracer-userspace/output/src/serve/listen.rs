//! Listens on a TCP address or a unix socket. If that fails, tracer warns once and retries: the pipeline must go on,
//! even if another process has the port.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use super::http::Pages;
use tracer_terminal::error::{self, os_message};

/// Clients of one listener at once. One more replaces the oldest, so that silent clients do not block others.
const CLIENTS: usize = 32;
/// The wait before the first retry. Each later wait is twice as long.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait between two retries.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// The wait after a failed accept. It fails if no file descriptor is left, and waiting lets others be closed.
const ACCEPT_REST: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    /// The part of tracer that needs this listener.
    const fn part(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "metrics",
            Self::Unix(_) => "health",
        }
    }
}

/// The flag as the user typed it.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "--metrics-listen {address}"),
            Self::Unix(path) => write!(f, "--health-socket {}", path.display()),
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Waits until it can listen, then answers forever.
pub(super) async fn serve(place: Place, pages: Pages) {
    let listener = obtain(&place, &pages).await;
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept(&pages).await {
            Ok(client) => {
                clients.retain(|client| !client.is_finished());
                if clients.len() >= CLIENTS
                    && let Some(oldest) = clients.pop_front()
                {
                    oldest.abort();
                }
                clients.push_back(client);
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Retries until it can listen. Warns once.
async fn obtain(place: &Place, pages: &Pages) -> Listener {
    let mut wait = FIRST_RETRY;
    loop {
        let error = match Listener::open(place).await {
            Ok(listener) => {
                if wait > FIRST_RETRY {
                    tracing::info!("{place}: listening now");
                }
                if matches!(place, Place::Unix(_)) {
                    pages.health.made_socket();
                }
                pages.health.degraded(place.part(), None);
                return listener;
            }
            Err(error) => format!("{place}: {}", os_message(&error)),
        };
        if wait == FIRST_RETRY {
            let part = place.part();
            error::warn(&format!("{error}: no {part} for now; tracer retries, everything else works"));
        }
        pages.health.degraded(place.part(), Some(error));
        sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}

impl Listener {
    async fn open(place: &Place) -> io::Result<Self> {
        match place {
            Place::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Place::Unix(path) => unix(path).map(Self::Unix),
        }
    }

    /// Accepts a client, and begins to answer it.
    async fn accept(&self, pages: &Pages) -> io::Result<AbortHandle> {
        let answering = match self {
            Self::Tcp(listener) => spawn_local(pages.clone().answer(listener.accept().await?.0)),
            Self::Unix(listener) => spawn_local(pages.clone().answer(listener.accept().await?.0)),
        };
        Ok(answering.abort_handle())
    }
}

/// A socket that only its owner can connect to. Creates the directory if it does not exist.
fn unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    clear(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Linux gives the file the mode of the socket, less the umask. So no other user can connect at any time.
    fchmod(&socket, Mode::from_bits_truncate(0o600))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(128)?)?;
    UnixListener::from_std(StdUnixListener::from(socket))
}

/// Removes the socket of an earlier run that was killed: no process listens on it.
fn clear(path: &Path) -> io::Result<()> {
    let stale = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && StdUnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if stale { fs::remove_file(path) } else { Ok(()) }
}
