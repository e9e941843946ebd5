//! A cluster API on loopback that has the EndpointSlices of one Service.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result};

use crate::pods;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const OF_CIRCLE: &str = "labelSelector=kubernetes.io%2Fservice-name%3Dcircle";

/// Serves the API until the program ends. Returns a kubeconfig in that folder.
pub(crate) fn serve(folder: &Path) -> Result<PathBuf> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen as a cluster API")?;
    let addr = listener.local_addr().context("the address of the cluster API")?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A client that goes away early has its answer, or wants none.
            let _ = answer(client);
        }
    });
    let path = folder.join("kubeconfig.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
        clusters: [{{name: k, cluster: {{server: 'http://{addr}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

fn answer(mut client: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(client.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The rest of the head.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (path, query) = request.split(' ').nth(1).and_then(|uri| uri.split_once('?')).unwrap_or_default();
    let (status, body) = match path == SLICES && query.split('&').any(|it| it == OF_CIRCLE) {
        true => ("200 OK", pods::slices().to_string()),
        false => ("404 Not Found", String::new()),
    };
    let length = body.len();
    write!(client, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}
