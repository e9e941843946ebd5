//! What the `pod` program does with its connections: one way to behave per mode.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};

pub mod appliance;
pub mod frame;
pub mod tls;

/// How a server treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 200.
    Http,
    /// 503.
    Unavailable,
    /// Accepts, reads, never answers.
    Hang,
    /// Listens, never accepts.
    NoAccept,
    /// Reads the request, then resets (SO_LINGER 0).
    Rst,
    /// Closes with the request unread.
    RstUnread,
    /// Resets at once after accept.
    RstAtAccept,
    /// Reads the request, then closes without a byte.
    Eof,
    /// Answers after a while.
    Slow(Duration),
    /// Answers with half a header, then closes.
    Partial,
    /// 200 in TLS.
    Tls,
    /// Takes the ClientHello, never answers.
    TlsHang,
}

impl Mode {
    /// By its name on the command line.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(millis) = name.strip_prefix("slow:") {
            return millis.parse().ok().map(|m| Self::Slow(Duration::from_millis(m)));
        }
        Some(match name {
            "http" => Self::Http,
            "503" => Self::Unavailable,
            "hang" => Self::Hang,
            "noaccept" => Self::NoAccept,
            "rst" => Self::Rst,
            "rst-unread" => Self::RstUnread,
            "rst-at-accept" => Self::RstAtAccept,
            "eof" => Self::Eof,
            "partial" => Self::Partial,
            "tls" => Self::Tls,
            "tls-hang" => Self::TlsHang,
            _ => return None,
        })
    }
}

/// Clients served at once; one that hangs is let go when it closes.
const THREADS: usize = 8;

/// Listens and serves for ever; says so on stdout once it listens.
pub fn serve(address: &str, mode: Mode) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
    let tls = tls::Acceptor::new()?;
    println!("listening {}", listener.local_addr()?);
    if mode == Mode::NoAccept {
        loop {
            thread::park();
        }
    }
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for stream in listener.incoming().flatten() {
                    // A client that gives up is the point of most modes.
                    let _ = treat(stream, mode, &tls);
                }
            });
        }
    });
    Ok(())
}

fn treat(mut stream: TcpStream, mode: Mode, tls: &tls::Acceptor) -> io::Result<()> {
    match mode {
        Mode::Http => answer(&mut stream, "200 OK"),
        Mode::Unavailable => answer(&mut stream, "503 Service Unavailable"),
        Mode::Hang | Mode::TlsHang | Mode::NoAccept => drain(&mut stream),
        Mode::Rst => {
            read_request(&mut stream)?;
            reset(stream)
        }
        Mode::RstUnread => stream.peek(&mut [0]).map(drop),
        Mode::RstAtAccept => reset(stream),
        Mode::Eof => read_request(&mut stream).map(drop),
        Mode::Slow(pause) => {
            read_request(&mut stream)?;
            thread::sleep(pause);
            write_status(&mut stream, "200 OK")
        }
        Mode::Partial => {
            read_request(&mut stream)?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Le")
        }
        Mode::Tls => tls.answer(stream),
    }
}

/// Reads a request and answers it.
pub fn answer(stream: &mut (impl Read + Write), status: &str) -> io::Result<()> {
    if read_request(stream)? {
        write_status(stream, status)?;
    }
    Ok(())
}

fn write_status(stream: &mut impl Write, status: &str) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")?;
    stream.flush()
}

/// Reads to the end of a header; false if the client closed before.
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
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    io::copy(stream, &mut io::sink()).map(drop)
}

/// Closes with a RST.
fn reset(stream: TcpStream) -> io::Result<()> {
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    drop(stream);
    Ok(())
}
