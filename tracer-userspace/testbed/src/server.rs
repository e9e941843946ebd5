//! The process of a pod. Its mode says how it treats connections.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{Backlog, setsockopt, sockopt};
use nix::unistd::fork;
use rustls::{ServerConfig, ServerConnection};

use crate::cgroup;

pub mod appliance;
pub mod frame;
pub mod tls;

/// A server in mode `hang`, `slow-big` or `tls-slow` prints this when it has read a request.
pub const REQUEST_READ: &str = "asked";

/// A step of a server with a connection. After the last one it closes the connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads a request, or until the client closes.
    Read,
    /// Reads a request. If the client closes before its end, there are no more steps.
    Request,
    /// Reads the first bytes. If the client closes instead, there are no more steps.
    Bytes,
    /// Waits for the first bytes, and leaves them unread.
    Peek,
    /// Reads until the client closes.
    Drain,
    /// Prints [`REQUEST_READ`].
    Report,
    /// Waits for as long as the mode says.
    Wait,
    /// Waits for so many milliseconds.
    Pause(u64),
    /// Sends this status with a short body, in a single segment, as from servers that buffer.
    Answer(&'static str),
    /// Sends 200 with a body of so many bytes.
    Body(usize),
    /// The same with the head in a segment of its own, as many servers send it, for example Python's.
    BodyAfterHead(usize),
    Say(&'static [u8]),
    /// Does the handshake of TLS with the next read. All but [`Step::Drain`] is about bytes in TLS from then on.
    Tls,
    /// Sends close_notify.
    CloseNotify,
    /// The first client of the process gets these steps, and none of the next ones.
    First(&'static [Step]),
    /// Closes with a RST.
    Reset,
    /// Ends the process.
    Exit,
    /// Closes, and ends the process a moment later: as if it had so much to release.
    ExitSlowly,
    /// Computes forever.
    Burn,
    /// Takes memory until the process is killed.
    TakeMemory,
}

use Step::{
    Answer, Body, BodyAfterHead, Burn, Bytes, CloseNotify, Drain, Exit, ExitSlowly, First, Pause, Peek, Read, Report,
    Request, Reset, Say, TakeMemory, Tls, Wait,
};

/// How a server treats its clients. A number follows the name of some modes, after a colon.
const MODES: &[(&str, &[Step])] = &[
    ("http", &[Request, Answer("200 OK")]),
    // Gets connections over `lo` only (SO_BINDTODEVICE).
    ("on-lo", &[Request, Answer("200 OK")]),
    // Takes the connections that a TPROXY rule gives it.
    ("transparent", &[Request, Answer("200 OK")]),
    (
        "early-hints",
        &[
            Read,
            Say(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"),
            Pause(20),
            Answer("200 OK"),
        ],
    ),
    ("101", &[Request, Answer("101 Switching Protocols")]),
    ("http-once", &[First(&[Request, Answer("200 OK")]), Read, Say(SHORT)]),
    ("503", &[Request, Answer("503 Service Unavailable")]),
    ("greet-503", &[Answer("503 Service Unavailable"), Drain]),
    // As servers of plain HTTP answer a ClientHello.
    ("400", &[Bytes, Answer("400 Bad Request")]),
    ("no-status", &[Read, Say(b"HTTP/1.1 Forbidden\r\nContent-Length: 0\r\n\r\n")]),
    ("421", &[Request, Answer("421 Misdirected Request")]),
    // On a TLS port: from Go's net/http, `conn.serve`.
    ("go-tls", &[Read, Say(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")]),
    ("redirect", &[Request, Answer("302 Found")]),
    ("hang", HANG),
    // With TCP keepalive (SO_KEEPALIVE), a segment each second.
    (KEEPALIVE, HANG),
    // Listens, never accepts; the second one with this backlog.
    (NO_ACCEPT, &[]),
    (BACKLOG, &[]),
    ("rst", &[Read, Reset]),
    ("rst-after", &[Read, Answer("200 OK"), Reset]),
    // The kernel resets, because the request is unread.
    ("rst-unread", &[Peek]),
    ("rst-at-accept", &[Reset]),
    ("eof-at-accept", &[]),
    ("eof", &[Read]),
    ("burn", &[Read, Burn]),
    ("exit", &[Read, Exit]),
    ("exit-unread", &[Peek, Exit]),
    ("exit-slowly", &[Read, First(&[]), ExitSlowly]),
    ("greedy", &[Read, TakeMemory]),
    // An empty SETTINGS frame (RFC 9113 6.5).
    ("grpc", &[Say(b"\0\0\0\x04\0\0\0\0\0"), Drain]),
    // The same, and a RST_STREAM frame for stream 1 with INTERNAL_ERROR (RFC 9113 6.4).
    ("grpc-reset", &[Read, Say(b"\0\0\0\x04\0\0\0\0\0\0\0\x04\x03\0\0\0\0\x01\0\0\0\x02"), Drain]),
    ("banner", &[Say(b"220 smtp.example ready\r\n"), Read]),
    ("not-http", &[Read, Say(b"-ERR unknown command 'GET', with args beginning with: '/healthz'\r\n")]),
    ("big", &[Read, Body(MANY_SEGMENTS)]),
    // Of nearly the size that Ethernet takes. The kernel passes larger pieces between the ends of a veth whole.
    ("full-segment", &[Read, Body(1300)]),
    ("big-after-head", &[Read, BodyAfterHead(MANY_SEGMENTS)]),
    ("slow", &[Read, Wait, Answer("200 OK")]),
    ("slow-big", &[Read, Report, Wait, Body(MANY_SEGMENTS)]),
    ("short", &[Read, Say(SHORT)]),
    ("bodyless", &[Read, Say(BODYLESS), Drain]),
    ("bodyless-503", &[Read, Say(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\nno\n"), Drain]),
    // Its listener waits for the request before it makes a connection (TCP_DEFER_ACCEPT).
    ("deferred-bodyless", &[Read, Say(BODYLESS), Drain]),
    // A handler that fails after the header of its answer.
    ("bodyless-rst", &[Read, Say(BODYLESS), Pause(100), Reset]),
    ("tls", &[Tls, Request, Answer("200 OK"), CloseNotify]),
    // Refuses the handshake if the client names no host that it serves.
    (tls::REFUSE, &[Tls, Request, Answer("200 OK"), CloseNotify]),
    // Refuses a client without a certificate, after its own part of the handshake.
    (tls::CLIENT_CERT, &[Tls, Request, Answer("200 OK"), CloseNotify]),
    ("tls-eof", &[Tls, Read]),
    ("tls-slow", &[Tls, Read, Report, Wait, Answer("200 OK")]),
    ("tls-hang", &[Drain]),
    // Does not read close_notify, after which a client may take a moment to close.
    ("tls-hang-request", &[Tls, Read, Drain]),
];

const KEEPALIVE: &str = "hang-keepalive";
const NO_ACCEPT: &str = "noaccept";
const BACKLOG: &str = "backlog";
const HANG: &[Step] = &[Read, Report, Drain];
const MANY_SEGMENTS: usize = 100_000;
/// Less than a status line.
const SHORT: &[u8] = b"\x15\x03\x01\x00";
/// A header without the announced body.
const BODYLESS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok\n";

/// Runs the process.
///
/// - `MODE ADDRESS:PORT` serves, and prints `listening …` when it listens.
/// - `appliance DEVICE IPV4` answers every SYN with a RST from a packet socket, `mute DEVICE IPV4` with nothing.
/// - `client ADDRESS:PORT` connects and keeps the connection.
/// - `idle` does nothing.
/// - `blocked PATH ADDRESS:PORT` listens with a backlog of 1, then opens its log at that path.
/// - `spawns PATH ADDRESS:PORT` listens with a backlog of 1, then runs the program at that path.
/// - `workers STOPPED ADDRESS:PORT` serves with two processes: the holder of the connection or the other one is stopped.
pub fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["idle"] => idle(),
        ["client", address] => client(address),
        [what @ ("blocked" | "spawns"), path, address] => {
            let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
            nix::sys::socket::listen(&listener, Backlog::new(1)?).context("set the backlog")?;
            println!("listening {}", listener.local_addr()?);
            // At the end of the scenario, the path is gone.
            if what == "blocked" {
                let _log = File::create(path);
            } else {
                let _child = Command::new(path).spawn();
            }
            idle()
        }
        ["workers", stopped, address] => workers(address, stopped == HOLDER),
        ["appliance", device, address] => appliance::run(device, address.parse()?, true),
        ["mute", device, address] => appliance::run(device, address.parse()?, false),
        [mode, address] => serve(address, mode),
        _ => {
            bail!("usage: pod MODE ADDRESS:PORT | pod appliance|mute DEVICE IPV4 | pod client ADDRESS:PORT | pod idle")
        }
    }
}

/// The process of `workers` that accepts a connection.
pub const HOLDER: &str = "holder";

/// A pre-fork server. One worker stops: the one that has accepted a connection, before it reads; or the other one.
fn workers(address: &str, stops_holder: bool) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    // SAFETY: this process has one thread.
    if unsafe { fork() }?.is_child() {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        let _connection = stops_holder.then(|| listener.accept()).transpose()?;
        raise(Signal::SIGSTOP)?;
        idle()
    }
    println!("listening {}", listener.local_addr()?);
    if !stops_holder {
        Client { socket: listener.accept()?.0, session: None }.serve(HANG, 0, None)?;
    }
    idle()
}

/// A client prints this when it is connected.
pub const CONNECTED: &str = "connected";

fn client(address: &str) -> Result<()> {
    let _connection = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    println!("{CONNECTED}");
    idle()
}

fn idle() -> ! {
    loop {
        thread::park();
    }
}

/// Clients that are served at the same time. A mode that hangs serves its client until it closes.
const THREADS: usize = 8;

/// Listens and serves forever. Prints `listening …` when it listens.
fn serve(address: &str, mode: &str) -> Result<()> {
    let (name, number) = mode.split_once(':').unwrap_or((mode, "0"));
    let number: u64 = number.parse().with_context(|| format!("the number of mode {mode:?}"))?;
    let (_, steps) = MODES.iter().find(|(known, _)| *known == name).with_context(|| format!("no mode {mode:?}"))?;
    let takes_number = name == BACKLOG || steps.iter().any(|it| matches!(it, Wait));
    ensure!(mode.contains(':') == takes_number, "the number of mode {mode:?}");
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    match name {
        // A second call only changes the backlog.
        BACKLOG => nix::sys::socket::listen(&listener, Backlog::new(number as i32)?),
        "on-lo" => setsockopt(&listener, sockopt::BindToDevice, &"lo".into()),
        // Connections inherit the options.
        KEEPALIVE => setsockopt(&listener, sockopt::KeepAlive, &true)
            .and_then(|()| setsockopt(&listener, sockopt::TcpKeepIdle, &1))
            .and_then(|()| setsockopt(&listener, sockopt::TcpKeepInterval, &1)),
        "transparent" => setsockopt(&listener, sockopt::IpTransparent, &true),
        "deferred-bodyless" => defer_accept(&listener),
        _ => Ok(()),
    }
    .with_context(|| format!("set up a listener of mode {mode}"))?;
    let tls = tls::config(name)?;
    println!("listening {}", listener.local_addr()?);
    if [NO_ACCEPT, BACKLOG].contains(&name) {
        idle();
    }
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for socket in listener.incoming().flatten() {
                    // In most modes the client gives up, so errors are normal.
                    let _ = Client { socket, session: None }.serve(steps, number, Some(&tls));
                }
            });
        }
    });
    Ok(())
}

/// Makes the listener wait for data after the handshake, as Apache httpd does. nix lacks this option.
fn defer_accept(listener: &TcpListener) -> nix::Result<()> {
    let seconds: libc::c_int = 30;
    let size = size_of_val(&seconds) as libc::socklen_t;
    // SAFETY: the kernel reads an int from a pointer to an int.
    let set = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size,
        )
    };
    Errno::result(set).map(drop)
}

/// The process has had a client with [`Step::First`].
static SERVED: AtomicBool = AtomicBool::new(false);

/// A connection, and its TLS.
struct Client {
    socket: TcpStream,
    session: Option<ServerConnection>,
}

impl Client {
    fn serve(mut self, steps: &[Step], wait_ms: u64, tls: Option<&Arc<ServerConfig>>) -> io::Result<()> {
        for step in steps {
            match step {
                Read => drop(self.read_request()?),
                Request if !self.read_request()? => return Ok(()),
                Bytes if self.read(&mut [0; 4096])? == 0 => return Ok(()),
                Request | Bytes => {}
                Peek => drop(self.socket.peek(&mut [0])?),
                Drain => drop(io::copy(&mut self.socket, &mut io::sink())?),
                Report => writeln!(io::stdout(), "{REQUEST_READ}")?,
                Wait => thread::sleep(Duration::from_millis(wait_ms)),
                Pause(millis) => thread::sleep(Duration::from_millis(*millis)),
                Answer(status) => {
                    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
                    self.write_all(answer.as_bytes())?;
                }
                Body(bytes) => self.write_all(&[head(*bytes), vec![b'x'; *bytes]].concat())?,
                BodyAfterHead(bytes) => {
                    self.write_all(&head(*bytes))?;
                    self.write_all(&vec![b'x'; *bytes])?;
                }
                Say(words) => self.write_all(words)?,
                Tls => {
                    let session = tls.map(|config| ServerConnection::new(Arc::clone(config))).transpose();
                    self.session = session.map_err(io::Error::other)?;
                }
                CloseNotify => {
                    self.session.iter_mut().for_each(|session| session.send_close_notify());
                    self.flush()?;
                }
                First(steps) if !SERVED.swap(true, Ordering::Relaxed) => return self.serve(steps, wait_ms, tls),
                First(_) => {}
                Reset => {
                    return Ok(setsockopt(&self.socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?);
                }
                Exit => exit(0),
                ExitSlowly => {
                    drop(self);
                    thread::sleep(Duration::from_millis(5));
                    exit(0)
                }
                Burn => loop {
                    std::hint::spin_loop();
                },
                TakeMemory => drop(std::hint::black_box(vec![1_u8; 2 * cgroup::MEMORY])),
            }
        }
        Ok(())
    }

    /// Reads until the end of the header. False if the client closed before.
    fn read_request(&mut self) -> io::Result<bool> {
        let mut request = Vec::new();
        let mut chunk = [0; 1024];
        while !request.windows(4).any(|w| w == b"\r\n\r\n") {
            match self.read(&mut chunk)? {
                0 => return Ok(false),
                n => request.extend_from_slice(&chunk[..n]),
            }
        }
        Ok(true)
    }
}

impl io::Read for Client {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => rustls::Stream::new(session, &mut self.socket).read(buf),
            None => self.socket.read(buf),
        }
    }
}

impl io::Write for Client {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            Some(session) => rustls::Stream::new(session, &mut self.socket).write(buf),
            None => self.socket.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            Some(session) => rustls::Stream::new(session, &mut self.socket).flush(),
            None => Ok(()),
        }
    }
}

/// The head of an answer with a body of so many bytes.
fn head(bytes: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n").into_bytes()
}
