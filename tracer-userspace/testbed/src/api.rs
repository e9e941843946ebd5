//! A cluster API on loopback, for the tracer under test.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::pods;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const OF_CIRCLE: &str = "labelSelector=kubernetes.io%2Fservice-name%3Dcircle";

/// The answer to a request.
pub enum Answer {
    /// A status, and the body.
    Whole(&'static str, String),
    /// A watch without events, until the client closes it.
    Watch,
}

/// Serves the API until the program ends, with the answers to these paths and queries. Each request has its own thread.
/// Writes a kubeconfig, and returns its path.
pub fn serve(kubeconfig: PathBuf, answer: impl Fn(&str, &str) -> Answer + Send + Sync + 'static) -> Result<PathBuf> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen as a cluster API")?;
    let server = format!("http://{}", listener.local_addr().context("the address of the cluster API")?);
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}],
    });
    fs::write(&kubeconfig, config.to_string()).with_context(|| format!("write {}", kubeconfig.display()))?;
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client that goes away early has its answer, or wants none.
            thread::spawn(move || respond(client, &*answer));
        }
    });
    Ok(kubeconfig)
}

/// The EndpointSlices of one Service.
pub(crate) fn slices(path: &str, query: &str) -> Answer {
    match path == SLICES && query.split('&').any(|it| it == OF_CIRCLE) {
        true => Answer::Whole("200 OK", pods::slices().to_string()),
        false => Answer::Whole("404 Not Found", String::new()),
    }
}

fn respond(mut client: TcpStream, answer: &dyn Fn(&str, &str) -> Answer) -> io::Result<()> {
    let mut lines = BufReader::new(client.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The rest of the head.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let uri = request.split(' ').nth(1).unwrap_or_default();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    match answer(path, query) {
        Answer::Whole(status, body) => {
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all((head + &body).as_bytes())
        }
        Answer::Watch => {
            client.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            lines.for_each(drop);
            Ok(())
        }
    }
}
