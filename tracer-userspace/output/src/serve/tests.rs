use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use super::*;
use tracer_testing::{Scratch, soon};

fn started(serve: &Serve) -> (Server, Option<Metrics>) {
    start(serve, &Background::new("serve", &tracer_sources::Supervisor::new().0))
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The socket is in a directory that is not there yet.
fn config(scratch: &Scratch, metrics_listen: Option<SocketAddr>) -> Serve {
    Serve { metrics_listen, health_socket: scratch.path("run/health.sock"), metrics_pod_labels: false }
}

/// Status line and body.
fn request(address: SocketAddr, text: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

fn get(address: SocketAddr, path: &str) -> Option<(String, String)> {
    request(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

#[test]
fn the_pages_are_served() {
    let scratch = Scratch::new();
    let address = free_port();
    let serve = config(&scratch, Some(address));
    let (server, metrics) = started(&serve);
    metrics.unwrap().set_dropped("stdout", 3);
    let (status, text) = soon("an answer", || get(address, "/metrics"));
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(text.contains("tracer_sink_dropped_total{sink=\"stdout\"} 3\n"), "{text}");
    assert_eq!(get(address, "/healthz").unwrap().0, "HTTP/1.1 200 OK");
    assert_eq!(get(address, "/readyz").unwrap().0, "HTTP/1.1 503 Service Unavailable");
    server.health.ready(3, 1);
    let (status, body) = get(address, "/readyz").unwrap();
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert_eq!(serde_json::from_str::<Report>(&body).unwrap().hooks_attached, 3);
    assert_eq!(get(address, "/").unwrap().0, "HTTP/1.1 404 Not Found");
    let posted = request(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n").unwrap();
    assert_eq!(posted.0, "HTTP/1.1 405 Method Not Allowed");
}

#[test]
fn the_socket_is_private_and_goes_with_the_run() {
    let scratch = Scratch::new();
    let serve = config(&scratch, None);
    // The socket that a killed run left behind.
    std::fs::create_dir_all(serve.health_socket.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&serve.health_socket).unwrap());
    let (server, metrics) = started(&serve);
    assert!(metrics.is_none());
    let (report, line) = soon("an answer", || ask::ask(&serve.health_socket).ok());
    assert!(report.live && !report.ready && line.starts_with("{\"live\":true"), "{line}");
    assert_eq!(std::fs::metadata(&serve.health_socket).unwrap().permissions().mode() & 0o777, 0o600);
    server.health.ready(1, 0);
    assert!(ask::ask(&serve.health_socket).unwrap().0.ready);
    drop(server);
    assert!(!serve.health_socket.exists());
    let error = ask::ask(&serve.health_socket).unwrap_err().to_string();
    assert!(error.contains("no `tracer run` listens there"), "{error}");
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let scratch = Scratch::new();
    let serve = config(&scratch, None);
    scratch.file("run/health.sock", "mine");
    let (server, _) = started(&serve);
    let degraded = soon("a problem", || server.health.report().degraded.pop());
    assert!(degraded.starts_with("health: --health-socket ") && degraded.contains("in use"), "{degraded}");
    drop(server);
    assert_eq!(std::fs::read(&serve.health_socket).unwrap(), b"mine");
}

#[test]
fn listening_is_retried_until_the_port_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let scratch = Scratch::new();
    let serve = config(&scratch, Some(taken.local_addr().unwrap()));
    let (server, _metrics) = started(&serve);
    let report =
        soon("an answer", || ask::ask(&serve.health_socket).ok().map(|(r, _)| r).filter(|r| !r.degraded.is_empty()));
    assert!(report.degraded[0].starts_with("metrics: --metrics-listen 127.0.0.1:"), "{report:?}");
    drop(taken);
    soon("an answer", || get(serve.metrics_listen.unwrap(), "/metrics"));
    assert_eq!(server.health.report().degraded, Vec::<String>::new());
    drop(server);
}

#[test]
fn silent_clients_do_not_block_others() {
    let scratch = Scratch::new();
    let address = free_port();
    let serve = config(&scratch, Some(address));
    let (server, _metrics) = started(&serve);
    soon("an answer", || get(address, "/healthz"));
    let silent: Vec<_> = (0..48).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut dribbling = TcpStream::connect(address).unwrap();
    dribbling.write_all(b"GET /metr").unwrap();
    assert_eq!(get(address, "/metrics").unwrap().0, "HTTP/1.1 200 OK");
    // A newer client replaced the oldest one.
    silent[0].set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let left = (&silent[0]).read(&mut [0; 16]);
    assert!(!left.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let refused = request(address, &long);
    assert!(refused.is_none_or(|(status, _)| status.contains(" 431 ") || status.contains(" 400 ")));
    assert!(ask::ask(&serve.health_socket).is_ok(), "the limit of clients is per listener");
    drop((silent, dribbling, server));
}

#[test]
fn another_server_on_the_health_socket_is_an_error() {
    let scratch = Scratch::new();
    let path = scratch.path("socket");
    let other = UnixListener::bind(&path).unwrap();
    let answering = std::thread::spawn(move || {
        let mut stream = other.accept().unwrap().0;
        // Closing with an unread request would reset the connection.
        let read = stream.read(&mut [0; 256]).unwrap();
        stream.write_all(b"hello\n").map(|()| read)
    });
    let error = ask::ask(Path::new(&path)).unwrap_err().to_string();
    assert!(answering.join().unwrap().unwrap() > 0);
    assert!(error.contains("is no `tracer run`"), "{error}");
}
