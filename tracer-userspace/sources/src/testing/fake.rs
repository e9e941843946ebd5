//! A cluster API with answers that the test writes itself, over real HTTP on loopback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A limit for waits: no event that a test awaits takes this long.
pub const GUARD: Duration = Duration::from_secs(20);

pub struct Fake {
    listener: TcpListener,
    pub addr: SocketAddr,
    pub requests: usize,
}

/// A request that waits for its answer.
pub struct FakeRequest {
    socket: TcpStream,
    pub method: String,
    /// Content-Type, where there is a body.
    pub kind: Option<String>,
    pub authorization: Option<String>,
    pub body: Vec<u8>,
    pub path: String,
    pub query: Vec<String>,
    pub at: Instant,
}

impl Fake {
    pub async fn new() -> Self {
        Self::at(([127, 0, 0, 1], 0).into()).await
    }

    pub async fn at(addr: SocketAddr) -> Self {
        let listener = TcpListener::bind(addr).await.expect("loopback");
        let addr = listener.local_addr().expect("address");
        Self { listener, addr, requests: 0 }
    }

    pub async fn next(&mut self) -> FakeRequest {
        let accepted = timeout(GUARD, self.listener.accept()).await.expect("a request in time");
        self.requests += 1;
        FakeRequest::read(accepted.expect("a connection").0).await
    }
}

impl FakeRequest {
    /// The request that arrives at a connection.
    pub async fn read(mut socket: TcpStream) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("a whole request"));
        }
        let head = String::from_utf8(head).expect("text");
        let header = |name: &str| {
            let named = |line: &str| {
                Some(line.split_once(": ")?).filter(|it| it.0.eq_ignore_ascii_case(name)).map(|it| it.1.to_owned())
            };
            head.lines().find_map(named)
        };
        let mut body = vec![0; header("content-length").map_or(0, |it| it.parse().expect("a length"))];
        socket.read_exact(&mut body).await.expect("a whole body");
        let (method, uri) = head.split_once(' ').expect("method");
        let uri = uri.split(' ').next().expect("URI");
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let query = query.split('&').map(Into::into).collect();
        let (method, kind) = (method.into(), header("content-type"));
        let authorization = header("authorization");
        Self { socket, method, kind, authorization, body, path: path.into(), query, at: Instant::now() }
    }

    pub fn has(&self, parameter: &str) -> bool {
        self.query.iter().any(|it| it == parameter)
    }

    pub fn is_watch(&self) -> bool {
        self.has("watch=true")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Sends a whole answer.
    pub async fn answer(mut self, status: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        self.socket.write_all(head.as_bytes()).await.expect("head");
        // The client may close early, once it has read enough.
        let _ = self.socket.write_all(body).await;
        let _ = self.socket.shutdown().await;
    }

    /// Begins an answer that continues later.
    pub async fn stream(mut self) -> Stream {
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.socket.write_all(head.as_bytes()).await.expect("head");
        Stream(self.socket)
    }
}

pub struct Stream(TcpStream);

impl Stream {
    pub async fn send(&mut self, text: &str) {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes()).await.expect("chunk");
    }

    pub async fn event(&mut self, kind: &str, object: &str) {
        self.send(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")).await;
    }

    /// Sends the bookmark that ends the initial events of a watch.
    pub async fn synced(&mut self, version: u32) {
        let mark = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}"#
        );
        self.event("BOOKMARK", &mark).await;
    }

    /// Ends a watch as a server does.
    pub async fn end(mut self) {
        let _ = self.0.write_all(b"0\r\n\r\n").await;
    }

    /// Waits until the client has closed the connection.
    pub async fn closed(mut self) {
        let read = timeout(GUARD, self.0.read_u8()).await.expect("the connection ends in time");
        assert!(read.is_err());
    }
}
