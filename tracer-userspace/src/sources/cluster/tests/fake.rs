//! An API server whose answers the test writes itself, over real HTTP on loopback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// No awaited event takes this long.
pub(super) const GUARD: Duration = Duration::from_secs(20);

pub(super) struct Fake {
    listener: TcpListener,
    pub(super) addr: SocketAddr,
    /// Requests so far.
    pub(super) seen: usize,
}

/// A request that waits for its answer.
pub(super) struct Asked {
    socket: TcpStream,
    pub(super) path: String,
    pub(super) query: Vec<String>,
    pub(super) at: Instant,
}

impl Fake {
    pub(super) async fn new() -> Self {
        Self::at(([127, 0, 0, 1], 0).into()).await
    }

    pub(super) async fn at(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).await.expect("loopback");
        let addr = listener.local_addr().expect("address");
        Self { listener, addr, seen: 0 }
    }

    /// The next request.
    pub(super) async fn next(&mut self) -> Asked {
        let accepted = timeout(GUARD, self.listener.accept()).await.expect("a request in time");
        let (mut socket, _) = accepted.expect("connection");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("a whole request"));
        }
        self.seen += 1;
        let head = String::from_utf8(head).expect("text");
        let uri = head.split(' ').nth(1).expect("URI");
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let query = query.split('&').map(Into::into).collect();
        Asked { socket, path: path.into(), query, at: Instant::now() }
    }
}

impl Asked {
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.query.iter().any(|it| it == parameter)
    }

    pub(super) fn is_watch(&self) -> bool {
        self.has("watch=true")
    }

    /// A whole answer.
    pub(super) async fn answer(mut self, status: &str, body: &str) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        self.socket.write_all(head.as_bytes()).await.expect("head");
        // Whoever has read enough may hang up.
        let _ = self.socket.write_all(body.as_bytes()).await;
    }

    /// An answer that goes on.
    pub(super) async fn stream(mut self) -> Stream {
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.socket.write_all(head.as_bytes()).await.expect("head");
        Stream(self.socket)
    }
}

pub(super) struct Stream(TcpStream);

impl Stream {
    /// A piece of the answer.
    pub(super) async fn send(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes()).await.expect("chunk");
    }

    /// A line of a watch.
    pub(super) async fn event(&mut self, kind: &str, object: &str) {
        self.send(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")).await;
    }

    /// The end of what there was at first.
    pub(super) async fn synced(&mut self, version: u32) {
        let mark = format!(
            r#"{{"kind":"Pod","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
        );
        self.event("BOOKMARK", &mark).await;
    }

    /// As a server ends a watch.
    pub(super) async fn end(mut self) {
        let _ = self.0.write_all(b"0\r\n\r\n").await;
    }

    /// Waits until the client has hung up.
    pub(super) async fn closed(mut self) {
        let read = timeout(GUARD, self.0.read_u8()).await.expect("the connection ends in time");
        assert!(read.is_err());
    }
}
