//! HTTP of a probe: one GET, and the complete answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use super::Timed;

/// Sends the kubelet's request, reads the answer and returns its status.
pub fn get(stream: &mut (impl Read + Write), dst: SocketAddr) -> io::Result<u16> {
    let request = format!(
        "GET /healthz HTTP/1.1\r\nHost: {dst}\r\nUser-Agent: kube-probe/1.31\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    read_answer(stream)
}

/// Waits for the first bytes of the server. Sends no request if there are some.
pub fn get_unless_answered(stream: &mut Timed, dst: SocketAddr) -> io::Result<u16> {
    if stream.has_bytes()? { read_answer(stream) } else { get(stream, dst) }
}

/// The preface and the first SETTINGS of a client (RFC 9113 3.4), and a request of only its header on stream 1.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x83\x86\x84";

/// Sends the preface of HTTP/2 and reads the first frames. The second one may reset the stream.
pub fn begin_http2(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(PREFACE)?;
    let mut frames = [0; 4096];
    match stream.read(&mut frames)? {
        0 => Err(io::Error::new(ErrorKind::UnexpectedEof, "EOF")),
        _ if frames[3] != SETTINGS => Err(io::Error::new(ErrorKind::InvalidData, "not HTTP/2")),
        _ if frames[9 + 3] == RST_STREAM => Err(io::Error::new(ErrorKind::InvalidData, "stream reset")),
        _ => Ok(()),
    }
}

/// The types of these frames (RFC 9113 6.4, 6.5), in the fourth byte of the header.
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

fn read_answer(stream: &mut impl Read) -> io::Result<u16> {
    let mut answer = Vec::new();
    loop {
        if let Some(whole) = complete(&answer) {
            return whole;
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk)? {
            0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "EOF")),
            n => answer.extend_from_slice(&chunk[..n]),
        }
    }
}

/// The status, if the header and its announced length of body have arrived.
fn complete(answer: &[u8]) -> Option<io::Result<u16>> {
    // A frame of HTTP/2.
    if answer.first() == Some(&0) {
        return Some(Err(io::Error::new(ErrorKind::InvalidData, "malformed HTTP response")));
    }
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    let Some(status) = status.filter(|_| head.starts_with("HTTP/")) else {
        return Some(Err(io::Error::new(ErrorKind::InvalidData, "malformed HTTP response")));
    };
    // An interim answer is skipped.
    if (100..200).contains(&status) {
        return complete(&answer[end + 4..]);
    }
    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.parse::<usize>().ok()).unwrap_or(0);
    (answer.len() >= end + 4 + length).then_some(Ok(status))
}
