//! The commands against a server that speaks the API, for the tests of each module.

mod fake;

use std::ffi::OsString;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::answer;
use super::cli;
use super::problem::Problem;
pub(crate) use fake::{Fake, Replies, Reply};
use tracer_terminal::typed::Parsed;

pub(crate) const PODS: &str = "GET /api/v1/namespaces/tracer/pods";

/// What a command printed, and its exit code or problem.
pub(crate) struct Ran {
    pub(crate) out: String,
    pub(crate) ended: Result<u8, Problem>,
}

impl Ran {
    pub(crate) fn problem(self) -> (u8, String) {
        let problem = self.ended.expect_err("a problem");
        (problem.exit_code(), problem.to_string())
    }
}

pub(crate) async fn ran(fake: &Fake, words: &[&str]) -> Ran {
    ran_as(fake, "{token: secret}", words).await
}

pub(crate) async fn ran_as(fake: &Fake, user: &str, words: &[&str]) -> Ran {
    let kubeconfig = fake.kubeconfig(user);
    let timeout = ["--timeout", fake.patience];
    let access = ["--kubeconfig", kubeconfig.path.to_str().expect("a path")];
    let args = words.iter().chain(&access).chain(&timeout).map(OsString::from).collect();
    let Parsed::Command(command) = cli::parse(args) else { unreachable!("{words:?}") };
    let mut out = Vec::new();
    let ended = LocalSet::new().run_until(answer(*command, &mut out)).await;
    Ran { out: String::from_utf8(out).expect("text"), ended }
}

pub(crate) fn pod(namespace: &str, name: &str, node: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-01-02T03:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": if namespace == "tracer" { "tracer" } else { "web" }}]},
        "status": {"phase": "Running", "startTime": "2026-01-02T03:00:01Z",
            "conditions": [{"type": "Ready", "status": ready}]},
    })
}

/// A server with these pods, and tracer on these nodes with these logs.
pub(crate) fn cluster(pods: &[Value], logs: &[(&str, String)]) -> Replies {
    let mut replies = Replies::new();
    for pod in pods {
        let (namespace, name) = (pod["metadata"]["namespace"].as_str(), pod["metadata"]["name"].as_str());
        let path = format!("GET /api/v1/namespaces/{}/pods/{}", namespace.expect("a namespace"), name.expect("a name"));
        replies.insert(path, Reply::Json(200, pod.clone()));
    }
    let mut daemons = Vec::new();
    for (node, log) in logs {
        let name = format!("tracer-{node}");
        daemons.push(pod("tracer", &name, node, true));
        replies.insert(log_of(node), Reply::Log(log.clone().into()));
    }
    replies.insert(PODS.into(), Reply::Json(200, json!({"items": daemons})));
    replies
}

/// A server with the pod `shop/cart-0`, which is not ready, and this log of its node.
pub(crate) async fn one_unready(log: String) -> Fake {
    Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await
}

pub(crate) fn log_of(node: &str) -> String {
    format!("GET /api/v1/namespaces/tracer/pods/tracer-{node}/log")
}

pub(crate) fn status(code: u16, message: &str) -> Reply {
    Reply::Json(code, json!({"kind": "Status", "code": code, "message": message}))
}

/// The line of a record, with the fields of `more` added.
pub(crate) fn record(kind: &str, seq: u64, node: &str, time: &str, more: Value) -> String {
    let mut record =
        json!({"schema": "tracer/1", "type": kind, "time": time, "time_boot_ns": seq, "seq": seq, "node_name": node});
    let fields = more.as_object().expect("an object").clone();
    record.as_object_mut().expect("an object").extend(fields);
    format!("{record}\n")
}

pub(crate) fn verdict(seq: u64, node: &str, time: &str, pod: &str, cause: &str) -> String {
    let more = json!({
        "subject": "probe", "attempt_id": seq.to_string(), "severity": "error", "scope": "pod",
        "verdict": {"cause": cause, "outcome": "failure", "confidence": "proven",
            "summary": format!("nobody listens on port {seq}."), "remediation": {"text": "start the server"},
            "evidence": [], "also": [], "lost_events": 0, "missing_hooks": []},
        "k8s": {"namespace": "shop", "pod_name": pod, "pod_uid": format!("uid-{pod}"), "container_name": "web",
            "workload": {"kind": "Deployment", "name": "cart"}},
    });
    record("verdict", seq, node, time, more)
}

/// The line of a verdict that revises the record of this number.
pub(crate) fn revising(seq: u64, verdict: &str) -> String {
    verdict.replace(r#""subject":"#, &format!(r#""revises":{seq},"subject":"#))
}

pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// A log of this many bytes: verdicts of many pods, one in a hundred of `cart-0`.
pub(crate) fn long_log(node: &str, bytes: usize) -> String {
    let (mut text, mut seq) = (String::with_capacity(bytes + 2048), 0);
    while text.len() < bytes {
        let pod = if seq % 100 == 0 { "cart-0".to_owned() } else { format!("pod-{}", seq % 97) };
        let _ = write!(text, "{}", verdict(seq, node, &now(), &pod, "connection_refused"));
        seq += 1;
    }
    text
}
