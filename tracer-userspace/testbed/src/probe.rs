//! One probe attempt, made as the kubelet makes it.
//!
//! It does a non-blocking connect, waits until the socket is ready, reads SO_ERROR, and sets TCP_NODELAY and keepalive.
//! Then comes the handler's part. It closes the socket when the time is over.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, IntoRawFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt};
use serde::{Deserialize, Serialize};

pub mod http;
pub mod tls;

/// What a probe does after it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Connect and close.
    Tcp,
    /// Send a GET, read the answer.
    Http,
    /// The same with TLS, without verifying the certificate.
    Https,
    /// A GET, unless bytes of the server came before: Go's client then takes them for the answer.
    LateHttp,
    /// Send the preface of HTTP/2, read the first frames.
    Grpc,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProbeRequest {
    pub dst: SocketAddr,
    pub kind: Kind,
    /// For the whole attempt.
    pub timeout_ms: u64,
    /// Keep the socket connecting after the timeout, as an httpGet probe of a kubelet built with Go 1.23 does.
    pub keeps_connecting: bool,
    /// How long it waits after it connected, like a kubelet without CPU time.
    pub idle_ms: u64,
    /// The same after it sent its first bytes.
    pub stalls_ms: u64,
}

impl ProbeRequest {
    /// A probe of a current kubelet.
    pub const fn new(kind: Kind, dst: SocketAddr, timeout: Duration) -> Self {
        Self { dst, kind, timeout_ms: timeout.as_millis() as u64, keeps_connecting: false, idle_ms: 0, stalls_ms: 0 }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Success: connected (tcp), or a status below 400.
    Ok,
    /// An answer with status 400 or above.
    Status,
    /// ECONNREFUSED.
    Refused,
    /// ECONNRESET or EPIPE.
    Reset,
    Timeout,
    /// The server closed before the answer was complete.
    Eof,
    Error,
}

/// The result of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Absent if the kernel chose no source address and port.
    pub src: Option<SocketAddr>,
    pub dst: SocketAddr,
    pub ending: Ending,
    /// The error message.
    pub error: Option<String>,
    pub elapsed_ms: f64,
}

/// Makes an attempt.
pub fn probe(what: &ProbeRequest) -> Outcome {
    let began = Instant::now();
    let mut attempt = ProbeTry { src: None, deadline: began + Duration::from_millis(what.timeout_ms) };
    let result = attempt.run(what);
    let (ending, error) = match result {
        Ok(Some(400..)) => (Ending::Status, None),
        Ok(_) => (Ending::Ok, None),
        Err(error) => (ending_of(&error), Some(error.to_string())),
    };
    let elapsed_ms = began.elapsed().as_secs_f64() * 1e3;
    Outcome { src: attempt.src, dst: what.dst, ending, error, elapsed_ms }
}

fn ending_of(error: &io::Error) -> Ending {
    match error.kind() {
        ErrorKind::ConnectionRefused => Ending::Refused,
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ending::Reset,
        ErrorKind::TimedOut => Ending::Timeout,
        ErrorKind::UnexpectedEof => Ending::Eof,
        _ => Ending::Error,
    }
}

struct ProbeTry {
    src: Option<SocketAddr>,
    deadline: Instant,
}

impl ProbeTry {
    fn run(&mut self, what: &ProbeRequest) -> io::Result<Option<u16>> {
        let stream = self.connect(what)?;
        thread::sleep(Duration::from_millis(what.idle_ms));
        let stall = Duration::from_millis(what.stalls_ms);
        let mut stream = Timed { stream, deadline: self.deadline, stall };
        match what.kind {
            Kind::Tcp => Ok(None),
            Kind::Http => http::get(&mut stream, what.dst).map(Some),
            Kind::Https => tls::get(stream, what.dst).map(Some),
            Kind::LateHttp => http::get_unless_answered(&mut stream, what.dst).map(Some),
            Kind::Grpc => http::begin_http2(&mut stream).map(|()| None),
        }
    }

    fn connect(&mut self, what: &ProbeRequest) -> io::Result<TcpStream> {
        let family = if what.dst.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(family, SockType::Stream, flags, None)?;
        // As the kubelet does since 1.27.
        setsockopt(&fd, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 1 })?;
        let started = connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(what.dst));
        let stream = TcpStream::from(fd);
        self.src = stream.local_addr().ok().filter(|a| a.port() != 0);
        match started {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        if let Err(error) = wait(&stream, PollFlags::POLLOUT, self.deadline) {
            // Stays open until the prober ends.
            let _left_open = what.keeps_connecting.then(|| stream.into_raw_fd());
            return Err(error);
        }
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        // The connection failed between the two calls. Now the socket has the reason.
        if let Err(gone) = stream.peer_addr() {
            return Err(stream.take_error()?.unwrap_or(gone));
        }
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &15)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &15)?;
        Ok(stream)
    }
}

/// Waits until the socket is ready, or the time is over.
fn wait(stream: &TcpStream, flags: PollFlags, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(timed_out());
        }
        let mut fds = [PollFd::new(stream.as_fd(), flags)];
        let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX);
        match poll(&mut fds, PollTimeout::from(millis)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "context deadline exceeded")
}

/// A non-blocking stream that blocks until a deadline.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    deadline: Instant,
    /// How long it waits after the next write.
    stall: Duration,
}

impl Timed {
    fn until<T>(&mut self, flags: PollFlags, mut step: impl FnMut(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        loop {
            // As Go does, which reads nothing after its deadline.
            if Instant::now() >= self.deadline {
                return Err(timed_out());
            }
            match step(&mut self.stream) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => wait(&self.stream, flags, self.deadline)?,
                done => return done,
            }
        }
    }

    /// Waits until the server has sent something, or closed. False if nothing came in time.
    fn has_bytes(&mut self) -> io::Result<bool> {
        self.until(PollFlags::POLLIN, |stream| stream.peek(&mut [0])).map(|count| count > 0)
    }
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.until(PollFlags::POLLIN, |s| s.read(buf))
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.until(PollFlags::POLLOUT, |s| s.write(buf))?;
        thread::sleep(std::mem::take(&mut self.stall));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
