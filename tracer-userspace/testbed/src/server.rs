//! The process of a pod. Its mode says how it treats connections.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, raise};
use nix::sys::socket::{Backlog, setsockopt, sockopt};
use nix::unistd::fork;
use rustls::{ServerConnection, StreamOwned};

use crate::node::cgroup;

pub mod appliance;
pub mod frame;
pub mod tls;

/// A server in mode `hang`, `slow-big` or `tls-slow` prints this when it has read a request.
pub const REQUEST_READ: &str = "asked";

/// How a server treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// 200.
    Http,
    /// Gets connections over `lo` only (SO_BINDTODEVICE).
    OnLo,
    /// Takes the connections that a TPROXY rule gives it.
    Transparent,
    /// 103 and, a moment later, 200.
    EarlyHints,
    /// 101, as to a request for an upgrade.
    #[value(name = "101")]
    Upgrade,
    /// 200 to the first client, then as `short`.
    HttpOnce,
    /// 503.
    #[value(name = "503")]
    Unavailable,
    /// 503 right after accept, before any request.
    #[value(name = "greet-503")]
    Greet,
    /// Answers the first bytes with 400, as servers of plain HTTP answer a ClientHello.
    #[value(name = "400")]
    BadRequest,
    /// A status line without a status.
    NoStatus,
    /// 421.
    #[value(name = "421")]
    Misdirected,
    /// The plain HTTP answer of Go's server on a TLS port.
    GoTls,
    /// 302.
    Redirect,
    /// Reads the request, prints [`REQUEST_READ`], and never answers.
    Hang,
    /// Listens, never accepts.
    #[value(name = "noaccept")]
    NoAccept,
    /// Reads the request, then resets (SO_LINGER 0).
    Rst,
    /// Answers, then resets.
    RstAfter,
    /// Closes without reading the request, so that the kernel resets.
    RstUnread,
    /// Resets right after accept.
    RstAtAccept,
    /// Closes right after accept, without a RST.
    EofAtAccept,
    /// Reads the request, then closes without an answer.
    Eof,
    /// Reads the request, then computes forever.
    Burn,
    /// Reads the request, then the process ends.
    Exit,
    /// The process ends when the request has come, and does not read it.
    ExitUnread,
    /// Closes its first connection. Then the same as `exit`, but the process has so much to release that its listener
    /// ends a moment later.
    ExitSlowly,
    /// Reads the request, then takes memory until the process is killed.
    Greedy,
    /// Sends the first frame of a server of HTTP/2.
    Grpc,
    /// Reads a request over HTTP/2, and resets its stream.
    GrpcReset,
    /// Answers every client at once with something that is not HTTP.
    Banner,
    /// Reads the request, and answers with something that is not HTTP.
    NotHttp,
    /// 200 with a body of many segments.
    Big,
    /// 200 in one segment of nearly the size that Ethernet takes. The kernel passes larger pieces between the ends of a
    /// veth whole, whatever their MTU.
    FullSegment,
    /// Listens with this backlog, never accepts.
    #[value(skip)]
    Backlog(u16),
    /// The same, with its head in a segment of its own.
    BigAfterHead,
    /// Answers after a while.
    #[value(skip)]
    Slow(Duration),
    /// Reads the request, prints [`REQUEST_READ`], and answers after a while with a body of many segments.
    #[value(skip)]
    SlowBig(Duration),
    /// Reads the request in TLS, prints [`REQUEST_READ`], and answers after a while.
    #[value(skip)]
    TlsSlow(Duration),
    /// Answers with less than a status line, then closes.
    Short,
    /// Answers with a header, and never sends the announced body.
    Bodyless,
    /// The same with 503.
    #[value(name = "bodyless-503")]
    BodylessUnavailable,
    /// The same as `bodyless`, and its listener waits for the request before it makes a connection (TCP_DEFER_ACCEPT).
    DeferredBodyless,
    /// The same as `bodyless`, then resets after a while.
    BodylessRst,
    /// 200 in TLS.
    Tls,
    /// Refuses the TLS handshake if the client names no host that it serves.
    TlsRefuse,
    /// Refuses a client without a certificate, after its own part of the handshake.
    TlsClientCert,
    /// Finishes the handshake, reads the request, then closes.
    TlsEof,
    /// Reads the ClientHello, never answers.
    TlsHang,
    /// Finishes the handshake, reads the request, never answers.
    TlsHangRequest,
}

impl Mode {
    /// Parses the name on the command line.
    pub fn parse(name: &str) -> Option<Self> {
        let slow = Self::Slow as fn(Duration) -> Self;
        for (prefix, mode) in [("slow:", slow), ("slow-big:", Self::SlowBig), ("tls-slow:", Self::TlsSlow)] {
            if let Some(millis) = name.strip_prefix(prefix) {
                return millis.parse().ok().map(|millis| mode(Duration::from_millis(millis)));
            }
        }
        if let Some(backlog) = name.strip_prefix("backlog:") {
            return backlog.parse().ok().map(Self::Backlog);
        }
        Self::from_str(name, false).ok()
    }
}

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
        [mode, address] => serve(address, Mode::parse(mode).with_context(|| format!("no mode {mode:?}"))?),
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
        hang(&mut listener.accept()?.0)?;
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
pub fn serve(address: &str, mode: Mode) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    if let Mode::Backlog(backlog) = mode {
        // A second call only changes the backlog.
        nix::sys::socket::listen(&listener, Backlog::new(i32::from(backlog))?).context("set the backlog")?;
    }
    if mode == Mode::OnLo {
        setsockopt(&listener, sockopt::BindToDevice, &"lo".into()).context("bind to lo")?;
    }
    if mode == Mode::Transparent {
        setsockopt(&listener, sockopt::IpTransparent, &true).context("set IP_TRANSPARENT")?;
    }
    if mode == Mode::DeferredBodyless {
        defer_accept(&listener).context("wait for the request")?;
    }
    let tls = tls::Acceptor::new(mode)?;
    println!("listening {}", listener.local_addr()?);
    if matches!(mode, Mode::NoAccept | Mode::Backlog(_)) {
        idle();
    }
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for stream in listener.incoming().flatten() {
                    // In most modes the client gives up, so errors are normal.
                    let _ = treat(stream, mode, &tls);
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

/// Acts like a handler that fails after the header of its answer.
fn fail_after_header(mut stream: TcpStream) -> io::Result<()> {
    say(&mut stream, BODYLESS)?;
    // Such a handler takes some time.
    thread::sleep(Duration::from_millis(100));
    reset(stream)
}

/// The server in mode `http-once` or `exit-slowly` has had a client.
static ANSWERED: AtomicBool = AtomicBool::new(false);

fn treat(mut stream: TcpStream, mode: Mode, tls: &tls::Acceptor) -> io::Result<()> {
    match mode {
        Mode::Http | Mode::OnLo | Mode::Transparent => answer(&mut stream, "200 OK"),
        Mode::Upgrade => answer(&mut stream, "101 Switching Protocols"),
        Mode::HttpOnce if !ANSWERED.swap(true, Ordering::Relaxed) => answer(&mut stream, "200 OK"),
        Mode::Unavailable => answer(&mut stream, "503 Service Unavailable"),
        Mode::Greet => {
            write_status(&mut stream, "503 Service Unavailable")?;
            drain(&mut stream)
        }
        Mode::NoStatus => say(&mut stream, b"HTTP/1.1 Forbidden\r\nContent-Length: 0\r\n\r\n"),
        Mode::BadRequest => reject(&mut stream),
        Mode::Misdirected => answer(&mut stream, "421 Misdirected Request"),
        Mode::GoTls => say(&mut stream, GO_TLS),
        Mode::Redirect => answer(&mut stream, "302 Found"),
        Mode::Short | Mode::HttpOnce => say(&mut stream, b"\x15\x03\x01\x00"),
        Mode::Bodyless | Mode::DeferredBodyless | Mode::BodylessUnavailable => {
            say(&mut stream, if mode == Mode::BodylessUnavailable { BODYLESS_503 } else { BODYLESS })?;
            drain(&mut stream)
        }
        Mode::BodylessRst => fail_after_header(stream),
        Mode::EarlyHints => hint_early(&mut stream),
        Mode::Hang => hang(&mut stream),
        Mode::TlsHang | Mode::NoAccept | Mode::Backlog(_) => drain(&mut stream),
        Mode::Burn => burn(&mut stream),
        Mode::Grpc => {
            stream.write_all(SETTINGS)?;
            drain(&mut stream)
        }
        Mode::GrpcReset => {
            say(&mut stream, RESET_STREAM)?;
            drain(&mut stream)
        }
        Mode::Banner => {
            stream.write_all(b"220 smtp.example ready\r\n")?;
            read_request(&mut stream).map(drop)
        }
        Mode::NotHttp => say(&mut stream, b"-ERR unknown command 'GET', with args beginning with: '/healthz'\r\n"),
        Mode::Big => answer_big(&mut stream, MANY_SEGMENTS, false),
        Mode::FullSegment => answer_big(&mut stream, 1300, false),
        Mode::BigAfterHead => answer_big(&mut stream, MANY_SEGMENTS, true),
        Mode::Slow(pause) => {
            read_request(&mut stream)?;
            thread::sleep(pause);
            write_status(&mut stream, "200 OK")
        }
        Mode::SlowBig(pause) => {
            take_request(&mut stream, pause)?;
            write_big(&mut stream, MANY_SEGMENTS, false)
        }
        Mode::TlsSlow(pause) => {
            let mut session = tls.accept(stream)?;
            take_request(&mut session, pause)?;
            write_status(&mut session, "200 OK")
        }
        Mode::Tls | Mode::TlsRefuse | Mode::TlsClientCert => tls.answer(stream),
        Mode::TlsEof => read_request(&mut tls.accept(stream)?).map(drop),
        Mode::TlsHangRequest => hang_in_tls(tls.accept(stream)?),
        ending => end(stream, ending),
    }
}

/// Ends the connection, or the process, in one of the ways that are no answer.
fn end(mut stream: TcpStream, mode: Mode) -> io::Result<()> {
    match mode {
        Mode::Exit => {
            read_request(&mut stream)?;
            std::process::exit(0)
        }
        Mode::ExitUnread => {
            stream.peek(&mut [0])?;
            std::process::exit(0)
        }
        Mode::ExitSlowly => {
            read_request(&mut stream)?;
            if !ANSWERED.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            drop(stream);
            thread::sleep(Duration::from_millis(5));
            std::process::exit(0)
        }
        Mode::Greedy => {
            read_request(&mut stream)?;
            take(2 * cgroup::MEMORY);
            Ok(())
        }
        Mode::Rst => {
            read_request(&mut stream)?;
            reset(stream)
        }
        Mode::RstAfter => {
            read_request(&mut stream)?;
            write_status(&mut stream, "200 OK")?;
            reset(stream)
        }
        Mode::RstUnread => stream.peek(&mut [0]).map(drop),
        Mode::RstAtAccept => reset(stream),
        Mode::Eof => read_request(&mut stream).map(drop),
        _ => Ok(()),
    }
}

/// Takes so much memory, and uses it.
fn take(bytes: usize) {
    std::hint::black_box(vec![1_u8; bytes]);
}

/// Reads a request and computes from then on.
fn burn(stream: &mut TcpStream) -> io::Result<()> {
    read_request(stream)?;
    loop {
        std::hint::spin_loop();
    }
}

/// From Go's net/http, `conn.serve`.
const GO_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// An empty SETTINGS frame (RFC 9113 6.5).
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
/// The same, and a RST_STREAM frame for stream 1 with INTERNAL_ERROR (RFC 9113 6.4).
const RESET_STREAM: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x04\x03\0\0\0\0\x01\0\0\0\x02";
const BODYLESS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok\n";
const BODYLESS_503: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\nno\n";

/// Reads a request and sends these bytes.
fn say(stream: &mut TcpStream, words: &[u8]) -> io::Result<()> {
    read_request(stream)?;
    stream.write_all(words)
}

/// Reads a request and answers with this status.
pub fn answer(stream: &mut (impl Read + Write), status: &str) -> io::Result<()> {
    if read_request(stream)? {
        write_status(stream, status)?;
    }
    Ok(())
}

fn reject(stream: &mut TcpStream) -> io::Result<()> {
    if stream.read(&mut [0; 4096])? > 0 {
        write_status(stream, "400 Bad Request")?;
    }
    Ok(())
}

fn hint_early(stream: &mut TcpStream) -> io::Result<()> {
    read_request(stream)?;
    stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n")?;
    thread::sleep(Duration::from_millis(20));
    write_status(stream, "200 OK")
}

fn hang(stream: &mut TcpStream) -> io::Result<()> {
    take_request(stream, Duration::ZERO)?;
    drain(stream)
}

/// Reads a request, prints [`REQUEST_READ`], and works on it for a while.
fn take_request(stream: &mut impl Read, pause: Duration) -> io::Result<()> {
    read_request(stream)?;
    writeln!(io::stdout(), "{REQUEST_READ}")?;
    thread::sleep(pause);
    Ok(())
}

/// Does not read close_notify, after which a client may take a moment to close.
fn hang_in_tls(mut session: StreamOwned<ServerConnection, TcpStream>) -> io::Result<()> {
    read_request(&mut session)?;
    drain(&mut session.sock)
}

fn answer_big(stream: &mut TcpStream, bytes: usize, head_apart: bool) -> io::Result<()> {
    read_request(stream)?;
    write_big(stream, bytes, head_apart)
}

const MANY_SEGMENTS: usize = 100_000;

/// Writes an answer with a body of this size. Many servers write the head by itself, for example Python's.
fn write_big(stream: &mut TcpStream, bytes: usize, head_apart: bool) -> io::Result<()> {
    let body = vec![b'x'; bytes];
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    if head_apart {
        stream.write_all(head.as_bytes())?;
        return stream.write_all(&body);
    }
    stream.write_all(&[head.into_bytes(), body].concat())
}

fn write_status(stream: &mut impl Write, status: &str) -> io::Result<()> {
    // A single segment, as from servers that buffer.
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
    stream.write_all(answer.as_bytes())?;
    stream.flush()
}

/// Reads until the end of the header. False if the client closed before.
fn read_request(stream: &mut impl Read) -> io::Result<bool> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut chunk)? {
            0 => return Ok(false),
            n => request.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(true)
}

/// Reads until the client closes.
fn drain(stream: &mut impl Read) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}

/// Closes with a RST.
fn reset(stream: TcpStream) -> io::Result<()> {
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    drop(stream);
    Ok(())
}
