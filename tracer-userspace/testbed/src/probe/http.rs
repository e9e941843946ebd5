//! HTTP of a probe: one GET, and the complete answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

/// Sends the kubelet's request, reads the answer and returns its status.
pub fn get(stream: &mut (impl Read + Write), dst: SocketAddr) -> io::Result<u16> {
    let request = format!(
        "GET /healthz HTTP/1.1\r\nHost: {dst}\r\nUser-Agent: kube-probe/1.31\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
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
