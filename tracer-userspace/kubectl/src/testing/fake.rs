//! A server with the API endpoints that the plugin uses, over HTTP on loopback.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tracer_sources::testing::fake::FakeRequest;
use tracer_testing::TestFile;

/// The answer to a request.
#[derive(Clone)]
pub(crate) enum Reply {
    Json(u16, Value),
    Log(Vec<u8>),
    /// One after the other, and then always the last.
    InOrder(Vec<Reply>),
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
                tokio::spawn(answer(socket, Arc::clone(&replies), Arc::clone(&log), Arc::clone(&sent)));
            }
        });
        Self { addr, asked, bodies, patience }
    }

    /// A kubeconfig for it, in namespace `shop`. `user` is YAML.
    pub(crate) fn kubeconfig(&self, user: &str) -> TestFile {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\nusers: [{{name: u, user: {user}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u, namespace: shop}}}}]\n",
            self.addr
        );
        TestFile::new("kubeconfig", &text)
    }
}

async fn answer(
    socket: TcpStream,
    replies: Arc<Replies>,
    asked: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<Value>>>,
) {
    let request = FakeRequest::read(socket).await;
    let (key, query) = (format!("{} {}", request.method, request.path), request.query.join("&"));
    let earlier = {
        let mut asked = asked.lock().expect("a list");
        asked.push(format!("{key}?{query}"));
        asked.iter().filter(|it| it.split('?').next() == Some(&key)).count() - 1
    };
    if let Ok(body) = serde_json::from_slice(&request.body) {
        bodies.lock().expect("a list").push(body);
    }
    let missing = || Reply::Json(404, json!({"kind": "Status", "code": 404, "message": "not found"}));
    let reply = match replies.get(&key).cloned() {
        Some(Reply::InOrder(all)) => all[earlier.min(all.len() - 1)].clone(),
        reply => reply.unwrap_or_else(missing),
    };
    let (code, body) = match reply {
        Reply::Json(code, mut value) => {
            // The list of one node's pods is made from the list of all.
            let node = query.split("spec.nodeName%3D").nth(1).and_then(|it| it.split('&').next());
            if let (Some(node), Some(items)) = (node, value["items"].as_array_mut()) {
                items.retain(|pod| pod["spec"]["nodeName"] == *node);
            }
            (code, value.to_string().into())
        }
        Reply::Log(bytes) => (200, bytes),
        Reply::InOrder(_) | Reply::Silence => std::future::pending().await,
    };
    request.answer(&code.to_string(), body).await;
}
