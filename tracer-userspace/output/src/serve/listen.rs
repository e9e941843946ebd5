//! Where clients come in: a TCP address or a unix socket. What cannot be had is reported once and tried
//! again: the kernel side must go on, even if another process has the port.

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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::http::Pages;
use tracer_terminal::error::{self, os_message};

/// Clients of one place at once. One more takes the place of the oldest, so that a client that sends nothing blocks no other.
const CLIENTS: usize = 32;
/// The second try comes after this time, each later one after twice the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// But not later than this.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// After an accept that failed (no descriptors left): whatever is short must come back first.
const ACCEPT_REST: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Place {
    /// The part of the tracer that does not work without it.
    const fn part(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "metrics",
            Self::Unix(_) => "health",
        }
    }
}

/// As it was asked for.
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

/// A client of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Listens, sooner or later, and answers forever.
pub(super) async fn serve(place: Place, pages: Pages) {
    let listener = obtain(&place, &pages).await;
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok(stream) => {
                clients.retain(|client| !client.is_finished());
                if clients.len() >= CLIENTS
                    && let Some(oldest) = clients.pop_front()
                {
                    oldest.abort();
                }
                clients.push_back(tokio::task::spawn_local(pages.clone().answer(stream)).abort_handle());
            }
            Err(error) => {
                tracing::debug!(%error, "a client could not be taken");
                sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Tries until it can be listened there; one warning.
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
            error::warn(&format!("{error}: no {part} for now; it is tried again, everything else works"));
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

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// A socket that only its owner can connect to, in a directory that is made if it is not there.
fn unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    clear(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Linux gives the file the mode of the socket (less the umask): it is never open to others, not for a moment.
    fchmod(&socket, Mode::from_bits_truncate(0o600))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(128)?)?;
    UnixListener::from_std(StdUnixListener::from(socket))
}

/// Takes away a socket that nobody listens on any more: a run before this one was killed.
fn clear(path: &Path) -> io::Result<()> {
    let stale = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
        && StdUnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if stale { fs::remove_file(path) } else { Ok(()) }
}
