//! The few requests to the cluster API. kube's client does sign-in and TLS. Each request has a timeout.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use jiff::Timestamp;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde::de::DeserializeOwned;

use super::cli::Access;
use super::objects::{Node, Pod, PodList, Workload};
use super::problem::{Problem, Right};
use tracer_sources::cluster::request::{next, refusal, respond, whole};
use tracer_sources::cluster::{Failure, client_of, config_of, percent_encoded, reason};

/// A log that is followed may be silent this long. Then a proxy may have dropped the connection without a word.
const SILENCE: Duration = Duration::from_secs(45);

/// Pods of one page of a list: a pod is some 8 KiB.
const PAGE: usize = 500;

/// The API, and how long a request may wait for data.
pub(super) struct Api {
    client: Client,
    /// The URL of the API server, for messages.
    server: String,
    pub(super) namespace: String,
    patience: Duration,
    /// How many seconds the server's clock is ahead of ours.
    ahead_s: AtomicI64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LogOptions {
    pub(super) since: Option<Duration>,
    /// RFC 3339, in place of `since`.
    pub(super) since_time: Option<String>,
    pub(super) limit_bytes: Option<u64>,
    pub(super) follow: bool,
}

impl Api {
    /// Makes a client. It sends nothing yet.
    pub(super) async fn connect(access: &Access) -> Result<Self, Problem> {
        // The first provider stays installed. It is ring in any case, because no other is linked.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(access).await?;
        // A user waits for the answer, so a fast failure is better than a silent retry.
        config.default_retry = false;
        config.connect_timeout = Some(access.timeout);
        let namespace = config.default_namespace.clone();
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = client_of(config).map_err(|error| Problem::Found(reason(&error)))?;
        Ok(Self { client, server, namespace, patience: access.timeout, ahead_s: AtomicI64::new(0) })
    }

    /// The time by the clock of the API server, as far as its difference is known.
    pub(super) fn now(&self) -> Timestamp {
        let ahead = jiff::SignedDuration::from_secs(self.ahead_s.load(Ordering::Relaxed));
        Timestamp::now().checked_add(ahead).unwrap_or(Timestamp::MAX)
    }

    pub(super) async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Problem> {
        let right = Right { verb: "get", resource: "pods", namespace };
        self.object(&format!("/api/v1/namespaces/{namespace}/pods/{name}"), &right, &format!("pod {namespace}/{name}"))
            .await
    }

    /// Fails if the cluster has no such node. Gives what is known of it: nothing without the right to read nodes.
    pub(super) async fn node(&self, name: &str) -> Result<Node, Problem> {
        let right = Right { verb: "get", resource: "nodes", namespace: "" };
        let path = format!("/api/v1/nodes/{}", percent_encoded(name));
        match self.object(&path, &right, &format!("node {name}")).await {
            Err(Problem::Forbidden(_)) => Ok(Node::default()),
            read => read,
        }
    }

    pub(super) async fn pods_of(&self, resource: &str, namespace: &str, name: &str) -> Result<Vec<Pod>, Problem> {
        let what = format!("{} {namespace}/{name}", resource.trim_end_matches('s'));
        let right = Right { verb: "get", resource: &format!("{resource}.apps"), namespace };
        let path = format!("/apis/apps/v1/namespaces/{namespace}/{resource}/{name}");
        let workload: Workload = self.object(&path, &right, &what).await?;
        let selector =
            workload.selector().ok_or_else(|| Problem::Found(format!("{what}: its selector cannot be read")))?;
        self.pods(namespace, &selector.to_string(), None).await
    }

    pub(super) async fn pods(&self, namespace: &str, labels: &str, node: Option<&str>) -> Result<Vec<Pod>, Problem> {
        let right = Right { verb: "list", resource: "pods", namespace };
        let node =
            node.map(|node| format!("&fieldSelector=spec.nodeName%3D{}", percent_encoded(node))).unwrap_or_default();
        let first =
            format!("/api/v1/namespaces/{namespace}/pods?limit={PAGE}&labelSelector={}{node}", percent_encoded(labels));
        let (mut pods, mut page) = (Vec::new(), String::new());
        loop {
            let list: PodList = self.object(&format!("{first}{page}"), &right, "the list of pods").await?;
            pods.extend(list.items);
            if list.metadata.r#continue.is_empty() {
                return Ok(pods);
            }
            page = format!("&continue={}", percent_encoded(&list.metadata.r#continue));
        }
    }

    /// The log of a container, as it arrives.
    pub(super) async fn log(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<Log, Problem> {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let since = options.since.map(|it| format!("&sinceSeconds={}", it.as_secs().max(1))).unwrap_or_default();
        let since = options.since_time.as_ref().map_or(since, |time| format!("&sinceTime={}", percent_encoded(time)));
        let limit = options.limit_bytes.map(|it| format!("&limitBytes={it}")).unwrap_or_default();
        let follow = if options.follow { "&follow=true" } else { "" };
        let path =
            format!("/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}{since}{limit}{follow}");
        let right = Right { verb: "get", resource: "pods/log", namespace };
        let body = self.answer(Request::get(path), Vec::new(), &right, &format!("log of {namespace}/{name}")).await?;
        Ok(Log { body, patience: if options.follow { SILENCE } else { self.patience } })
    }

    pub(super) async fn create_pod(&self, namespace: &str, pod: &serde_json::Value) -> Result<Pod, Problem> {
        let right = Right { verb: "create", resource: "pods", namespace };
        let request =
            Request::post(format!("/api/v1/namespaces/{namespace}/pods")).header("Content-Type", "application/json");
        let what = format!("namespace {namespace}");
        let body = self.answer(request, pod.to_string().into_bytes(), &right, &what).await?;
        self.read(body, &what).await
    }

    /// Deletes a pod. It is no error if the pod does not exist.
    pub(super) async fn delete_pod(&self, namespace: &str, name: &str) -> Result<(), Problem> {
        let right = Right { verb: "delete", resource: "pods", namespace };
        let request = Request::delete(format!("/api/v1/namespaces/{namespace}/pods/{name}"));
        match self.answer(request, Vec::new(), &right, name).await {
            Ok(_) | Err(Problem::NotFound(_)) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    async fn object<T: DeserializeOwned>(&self, path: &str, right: &Right<'_>, what: &str) -> Result<T, Problem> {
        let request = Request::get(path).header("Accept", "application/json");
        let body = self.answer(request, Vec::new(), right, what).await?;
        self.read(body, what).await
    }

    /// Reads a whole answer as an object.
    async fn read<T: DeserializeOwned>(&self, body: Body, what: &str) -> Result<T, Problem> {
        let bytes = whole(body, self.patience).await.map_err(|failure| match failure {
            Failure::Garbage(why) => Problem::Garbage(format!("{what}: {why}")),
            other => Problem::of_failure(other, self.patience),
        })?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Problem::Garbage(format!("{what}: {}", tracer_terminal::error::without_value(&error.to_string())))
        })
    }

    /// Sends a request. Gives the body of a successful answer.
    async fn answer(
        &self,
        request: http::request::Builder,
        body: Vec<u8>,
        right: &Right<'_>,
        what: &str,
    ) -> Result<Body, Problem> {
        let request = request.body(Body::from(body)).map_err(|error| Problem::Found(format!("{what}: {error}")))?;
        let answer = respond(&self.client, request, self.patience).await.map_err(|failure| match failure {
            Failure::Unreachable(why) => Problem::Unreachable(format!("{}: {why}", self.server)),
            failure => Problem::of_failure(failure, self.patience),
        })?;
        let (parts, body) = answer.into_parts();
        self.set_clock(&parts.headers);
        if parts.status.is_success() {
            return Ok(body);
        }
        Err(Problem::of_answer(parts.status.as_u16(), &refusal(body, self.patience).await, right, what))
    }

    fn set_clock(&self, headers: &HeaderMap) {
        let date = headers.get(http::header::DATE).and_then(|it| it.to_str().ok());
        let date = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
        if let Some(date) = date {
            let ahead = date.timestamp().as_second() - Timestamp::now().as_second();
            // The header has whole seconds, so a difference of one second shows nothing.
            self.ahead_s.store(if ahead.abs() > 1 { ahead } else { 0 }, Ordering::Relaxed);
        }
    }
}

/// A log that arrives in pieces.
pub(super) struct Log {
    body: Body,
    /// Timeout of each piece.
    patience: Duration,
}

impl Log {
    /// The next piece; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        let piece = next(&mut self.body, self.patience).await;
        piece.map_err(|failure| Problem::of_failure(failure, self.patience))
    }
}

/// The files of `KUBECONFIG` that exist: kubectl skips the others. Absent if none exists.
fn listed(variable: Option<OsString>) -> Option<Vec<PathBuf>> {
    let files: Vec<_> = std::env::split_paths(&variable?).filter(|path| path.try_exists().unwrap_or(true)).collect();
    (!files.is_empty()).then_some(files)
}

async fn config(access: &Access) -> Result<Config, Problem> {
    let mut named = "~/.kube/config".to_owned();
    let file = match &access.kubeconfig {
        Some(path) => {
            named = format!("--kubeconfig {}", path.display());
            Some(Kubeconfig::read_from(path))
        }
        // A pod normally has a service account and no kubeconfig.
        None if std::env::var_os("KUBECONFIG").is_none() && tracer_sources::cluster::in_cluster() => None,
        None => Some(match listed(std::env::var_os("KUBECONFIG")) {
            // The first file that has a value wins. An error is about the last one that was read.
            Some(files) => files.iter().try_fold(Kubeconfig::default(), |all, file| {
                named = format!("KUBECONFIG {}", file.display());
                all.merge(Kubeconfig::read_from(file)?)
            }),
            None => Kubeconfig::read(),
        }),
    };
    let options = KubeConfigOptions { context: access.context.clone(), ..KubeConfigOptions::default() };
    if let (None, Some(Err(KubeconfigError::ReadConfig(_, path)))) = (&access.kubeconfig, &file) {
        named = format!("kubeconfig {}", path.display());
    }
    let wrong = |problem: String| Problem::Found(format!("{named}: {problem}"));
    match file {
        None if access.context.is_some() => {
            Err(Problem::Found("--context: a service account has none: name a --kubeconfig".into()))
        }
        None => Config::incluster().map_err(|error| Problem::Found(format!("in-cluster access: {}", reason(&error)))),
        Some(file) => {
            let file = file.map_err(|error| wrong(reason(&error)))?;
            if let Some(context) =
                access.context.as_ref().filter(|name| file.contexts.iter().all(|it| it.name != **name))
            {
                return Err(Problem::Found(format!("--context `{context}`: not in {named}")));
            }
            config_of(file, &options).await.map_err(|error| wrong(reason(&error)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use serde_json::json;
    use tracer_testing::assert_has;

    #[tokio::test]
    async fn credential_plugins_sign_in_or_say_why_not() {
        let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
        let fake = one_unready(log).await;
        let plugin = |script: &str| {
            format!(
                "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: ['-c', '{script}']}}}}"
            )
        };
        let credential = r#"echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}""#;
        let signed_in = ran_as(&fake, &plugin(credential), &["why", "cart-0", "-o", "pretty"]).await;
        assert_eq!(signed_in.ended, Ok(0));
        let (code, problem) = ran_as(&fake, &plugin("echo secret; exit 3"), &["why", "cart-0"]).await.problem();
        assert!(code == 2 && problem.contains("the credential plugin sh failed: exit status: 3"), "{problem}");
        assert!(!problem.contains("secret"), "{problem}");
        let absent =
            "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /no/plugin}}";
        let (code, problem) = ran_as(&fake, absent, &["why", "cart-0"]).await.problem();
        assert_eq!(code, 2);
        assert_has(&problem, &["the credential plugin of the kubeconfig cannot be started: "]);
    }

    #[test]
    fn a_file_of_the_list_that_does_not_exist_is_skipped() {
        let there = std::env::current_exe().expect("a file");
        let list = |paths: &[&str]| Some(std::env::join_paths(paths).expect("a list"));
        let name = there.to_str().expect("a name");
        assert_eq!(listed(list(&["/none", name, ""])), Some(vec![there.clone()]));
        assert_eq!(listed(list(&["/none"])), None, "then its error names it");
        assert_eq!(listed(None), None);
    }

    #[tokio::test]
    async fn a_long_list_is_read_in_pages() {
        let mut replies = cluster(&[pod("shop", "cart-0", "n1", false)], &[]);
        let page = json!({"metadata": {"continue": "next page"}, "items": []});
        replies.insert(PODS.into(), Reply::Json(200, page));
        let fake = Fake::serve(replies).await;
        let is_next = |it: &String| it.contains("continue=next%20page") && it.contains("limit=500");
        let asked = async {
            while !fake.asked.lock().expect("a list").iter().any(is_next) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        // The fake always gives the same page, so the list has no end.
        tokio::select! {
            _ = ran(&fake, &["why", "cart-0"]) => panic!("it asked for no other page"),
            () = asked => (),
        }
    }
}
