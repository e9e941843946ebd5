//! A minimal cluster API with the pods of one node. It answers a list, and a watch without events.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Serves until the program ends. Each request has its own thread.
pub(super) struct Api {
    pub(super) kubeconfig: PathBuf,
}

impl Api {
    /// Serves this list, and writes the file `kubeconfig`.
    pub(super) fn serve(pods: &Value, kubeconfig: PathBuf) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listen for the API")?;
        let server = format!("http://{}", listener.local_addr()?);
        fs::write(&kubeconfig, config(&server).to_string()).context("write the kubeconfig")?;
        let list: Arc<str> = pods.to_string().into();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let list = Arc::clone(&list);
                thread::spawn(move || answer(stream, &list));
            }
        });
        Ok(Self { kubeconfig })
    }
}

fn config(server: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "bench",
           "clusters": [{"name": "bench", "cluster": {"server": server}}],
           "users": [{"name": "bench", "user": {}}],
           "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}]})
}

/// Answers as a server before 1.32, without streaming lists.
fn answer(mut stream: TcpStream, list: &str) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
    let request = lines.next()?;
    lines.by_ref().find(String::is_empty)?;
    let (status, kind, body) = match (request.contains("sendInitialEvents="), request.contains("watch=")) {
        (true, _) => ("400 Bad Request", "application/json", r#"{"kind":"Status","code":400}"#),
        (false, true) => return hold(stream, lines),
        (false, false) => ("200 OK", "application/json", list),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok()
}

/// Holds a watch without events until the client closes it.
fn hold(mut stream: TcpStream, lines: impl Iterator<Item = String>) -> Option<()> {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .ok()?;
    lines.for_each(drop);
    Some(())
}
