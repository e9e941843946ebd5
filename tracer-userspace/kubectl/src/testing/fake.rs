//! A server with the API endpoints that the plugin uses, over HTTP on loopback.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The answer to a request.
#[derive(Clone)]
pub(crate) enum Reply {
    Json(u16, Value),
    Log(Bytes),
    /// No answer.
    Silence,
}

/// The server, until its runtime ends.
pub(crate) struct Fake {
    pub(crate) addr: SocketAddr,
    /// `METHOD path?query` of each request.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
    pub(crate) bodies: Arc<Mutex<Vec<Value>>>,
    /// The timeout of commands. It is long if the server answers everything, so that no test depends on its speed.
    pub(crate) patience: &'static str,
}

/// Answers by `METHOD path`, the query left out.
pub(crate) type Replies = HashMap<String, Reply>;

impl Fake {
    pub(crate) async fn serve(replies: Replies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("an address");
        let (asked, bodies) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<Value>>>::default());
        let patience = if replies.values().any(|it| matches!(it, Reply::Silence)) { "500ms" } else { "10m" };
        let (replies, log, sent) = (Arc::new(replies), Arc::clone(&asked), Arc::clone(&bodies));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (replies, log, sent) = (Arc::clone(&replies), Arc::clone(&log), Arc::clone(&sent));
                let service = service_fn(move |request| {
                    answer(request, Arc::clone(&replies), Arc::clone(&log), Arc::clone(&sent))
                });
                tokio::spawn(
                    async move { http1::Builder::new().serve_connection(TokioIo::new(socket), service).await },
                );
            }
        });
        Self { addr, asked, bodies, patience }
    }

    /// A kubeconfig for it, in namespace `shop`. `user` is YAML.
    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("kubectl-tracer-{}-{}", std::process::id(), self.addr.port()));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u, namespace: shop}}}}]\n",
            self.addr
        );
        std::fs::write(&path, text).expect("a kubeconfig");
        path
    }
}

async fn answer(
    request: Request<Incoming>,
    replies: Arc<Replies>,
    asked: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let uri = request.uri();
    let key = format!("{} {}", request.method(), uri.path());
    asked.lock().expect("a list").push(format!("{key}?{}", uri.query().unwrap_or_default()));
    // The list of one node's pods is made from the list of all.
    let node = uri
        .query()
        .and_then(|it| it.split("spec.nodeName%3D").nth(1))
        .map(|it| it.split('&').next().unwrap_or(it).to_owned());
    let body = request.into_body().collect().await.map(|it| it.to_bytes()).unwrap_or_default();
    if let Ok(body) = serde_json::from_slice(&body) {
        bodies.lock().expect("a list").push(body);
    }
    let missing = || Reply::Json(404, json!({"kind": "Status", "code": 404, "message": "not found"}));
    let (code, body) = match replies.get(&key).cloned().unwrap_or_else(missing) {
        Reply::Json(code, mut value) => {
            if let (Some(node), Some(items)) = (node, value["items"].as_array_mut()) {
                items.retain(|pod| pod["spec"]["nodeName"] == *node);
            }
            (code, Bytes::from(value.to_string()))
        }
        Reply::Log(bytes) => (200, bytes),
        Reply::Silence => std::future::pending().await,
    };
    Ok(Response::builder().status(code).body(Full::new(body)).unwrap_or_default())
}
