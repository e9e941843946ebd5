//! Reads the pods of this node from the kubelet, over gRPC on a socket that only root may open (KEP-4188, on by default
//! since Kubernetes 1.37). So the settings of probes are known without the cluster API.

mod proto;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::files;
use proto::ListPodsResponse;
use tracer_model::event::Pod;
use tracer_node::procfs::NodeNetns;

const SOCKET: &str = "/var/lib/kubelet/pods/kubelet.sock";
/// `staging/src/k8s.io/kubelet/pkg/apis/pods/v1alpha1/api.proto`. A kubelet serves a later version beside this one.
const METHOD: &str = "http://kubelet/v1alpha1.Pods/ListPods";
/// An empty message after gRPC's prefix: not compressed, length 0.
const EMPTY: &[u8] = &[0; PREFIX];
const PREFIX: usize = 5;
/// The kubelet answers from memory, in milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// The shortest time between two requests while no pod or container is new. A busy node is read twice a second.
const EVERY: Duration = Duration::from_secs(5);
/// 250 pods of 8 KiB are 2 MiB.
const ANSWER_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{}", tracer_terminal::error::os_message(.0))]
    Io(#[from] io::Error),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("gRPC status {0}")]
    Status(String),
    #[error("its answer cannot be read: {0}")]
    Garbage(String),
}

type Answer = Result<Vec<Pod>, String>;

/// The last answer of the kubelet.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeletPods {
    last: Option<Last>,
    /// When to ask next, if the last reading reused an earlier answer.
    pub(crate) again: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Last {
    asked: Instant,
    /// The pods and containers of the node at that time.
    found: HashSet<String>,
    answer: Answer,
}

impl KubeletPods {
    /// The pods, if the kubelet of this node serves them. `found`: the pods that were found on the node.
    pub(crate) fn read(&mut self, node: &NodeNetns, found: &[Pod]) -> Option<Answer> {
        let socket = PathBuf::from(format!("/proc/{}/root{SOCKET}", node.pid));
        if !socket.try_exists().unwrap_or(false) {
            *self = Self::default();
            return None;
        }
        let ask = || list(&socket).map_err(|problem| format!("pods of the kubelet ({SOCKET}): {problem}"));
        Some(self.answer(Instant::now(), found, ask))
    }

    fn answer(&mut self, now: Instant, found: &[Pod], ask: impl FnOnce() -> Answer) -> Answer {
        let ids = |pod: &Pod| pod.containers.iter().filter_map(|it| it.id.clone()).chain(pod.uid.clone()).collect();
        let found: HashSet<String> = found.iter().flat_map::<Vec<_>, _>(ids).collect();
        let recent = self.last.as_ref().filter(|last| now < last.asked + EVERY && found.is_subset(&last.found));
        self.again = recent.map(|last| last.asked + EVERY);
        if let Some(last) = recent {
            return last.answer.clone();
        }
        let answer = ask();
        self.last = Some(Last { asked: now, found, answer: answer.clone() });
        answer
    }
}

fn list(socket: &Path) -> Result<Vec<Pod>, Problem> {
    // The thread of the caller may belong to a runtime, which allows no second one on its thread.
    let answer = thread::scope(|scope| scope.spawn(|| wait(socket)).join());
    pods_of(answer.unwrap_or_else(|_| Err(Problem::Garbage("its reader ended".into())))?)
}

fn wait(socket: &Path) -> Result<Bytes, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { timeout(PATIENCE, ask(socket)).await.map_err(|_| Problem::Late)? })
}

/// The message of the answer.
async fn ask(socket: &Path) -> Result<Bytes, Problem> {
    let stream = TokioIo::new(UnixStream::connect(socket).await?);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
    tokio::spawn(connection);
    let request = Request::post(METHOD).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(Full::new(Bytes::from_static(EMPTY)));
    let answer = sender.send_request(request.map_err(|error| Problem::Garbage(error.to_string()))?).await?;
    // A refusal has its status in the headers.
    refused(answer.headers())?;
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await.map_err(Problem::Body)?;
    refused(body.trailers().unwrap_or(&HeaderMap::new()))?;
    let mut body = body.to_bytes();
    if body.len() < PREFIX || body[0] != 0 {
        return Err(Problem::Garbage("no message, or a compressed one".into()));
    }
    let length = body.slice(1..PREFIX).get_u32() as usize;
    body.advance(PREFIX);
    if body.len() == length { Ok(body) } else { Err(Problem::Garbage("it is cut".into())) }
}

fn refused(headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned());
    match text("grpc-status") {
        Some(code) if code != "0" => {
            Err(Problem::Status(format!("{code}: {}", text("grpc-message").unwrap_or_default())))
        }
        _ => Ok(()),
    }
}

fn pods_of(message: Bytes) -> Result<Vec<Pod>, Problem> {
    let list = ListPodsResponse::decode(message).map_err(|error| Problem::Garbage(error.to_string()))?;
    list.pods.into_iter().map(pod_of).collect()
}

/// Converts a pod through the API's JSON, so that one place knows its fields and their defaults.
fn pod_of(bytes: Bytes) -> Result<Pod, Problem> {
    let pod = proto::Pod::decode(bytes).map_err(|error| Problem::Garbage(error.to_string()))?;
    let pod = serde_json::to_value(pod).and_then(serde_json::from_value::<files::api::Pod>);
    pod.map(files::pod_of).map_err(|error| Problem::Garbage(error.to_string()))
}

/// Fuzz target: the message of an answer.
pub(crate) fn fuzz(bytes: &[u8]) {
    let _ = pods_of(Bytes::copy_from_slice(bytes));
}

#[cfg(test)]
mod tests;
