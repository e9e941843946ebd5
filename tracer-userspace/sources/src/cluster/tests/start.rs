//! The way in: a kubeconfig, the thread, the start record, the sources' observations.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;

use super::*;
use crate::testing::TestFile;
use crate::{Snapshot, SourceConfig, snapshot, watch};
use tracer_model::event::ObservationKind;

/// A kubeconfig for a server, gone when the test ends.
pub(super) struct TestConfig(pub(super) TestFile);

impl TestConfig {
    fn new(text: &str) -> Self {
        Self(TestFile::new("kubeconfig", text))
    }

    pub(super) fn to(addr: SocketAddr) -> Self {
        Self::to_user(addr, "")
    }

    fn to_user(addr: SocketAddr, user: &str) -> Self {
        Self::new(&format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
            clusters: [{{name: k, cluster: {{server: 'http://{addr}'}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        ))
    }

    fn cluster(&self) -> ClusterConfig {
        ClusterConfig { access: Access::Kubeconfig(self.0.path.clone()), ..config(true) }
    }
}

/// Beside the test's own runtime, as it blocks.
pub(super) async fn start(config: ClusterConfig) -> Result<Cluster, ConnectError> {
    spawn_blocking(move || {
        Cluster::start(config, channel(1).0, &Background::new("cluster", &crate::Supervisor::new().0))
    })
    .await
    .expect("start")
}

/// Reads the sources again when they change. Gives the task, and its observations.
pub(super) fn kept_fresh(config: SourceConfig, snapshot: Snapshot) -> (LocalSet, Receiver<ObservationKind>) {
    let (tx, observations) = channel(16);
    let kept_fresh = LocalSet::new();
    kept_fresh.spawn_local(watch(config, snapshot, Arc::new(Notify::new()), tx, crate::Supervisor::new().0));
    (kept_fresh, observations)
}

#[tokio::test]
async fn the_pods_of_the_api_become_facts_and_the_end_of_the_run_ends_it() {
    let mut api = Fake::new().await;
    let file = TestConfig::to(api.addr);
    let answer = async {
        let mut watch = api.next().await.stream().await;
        watch.event("ADDED", &pod("a", 1, "10.0.0.1")).await;
        watch.synced(7).await;
        watch
    };
    let (cluster, mut stream) = tokio::join!(start(file.cluster()), answer);
    let cluster = cluster.expect("cluster");
    assert_eq!(cluster.sources(), ["pods and probes (cluster API)"]);
    let config = SourceConfig { cluster: Some(cluster), ..SourceConfig::default() };
    let snapshot = snapshot(&config).expect("snapshot");
    assert!(!snapshot.problems.iter().any(|it| it.contains("--node-name")), "{:?}", snapshot.problems);
    assert!(snapshot.sources.contains(&"pods and probes (cluster API)".to_owned()));
    let named = |kind: &ObservationKind, name: &str| matches!(kind, ObservationKind::Pods(list) if list.pods.iter().any(|pod| pod.name.as_deref() == Some(name)));
    assert!(snapshot.observations.iter().any(|kind| named(kind, "a")));

    let (kept_fresh, mut observations) = kept_fresh(config, snapshot);
    let run = async {
        stream.event("ADDED", &pod("b", 8, "10.0.0.2")).await;
        while !named(&timeout(GUARD, observations.recv()).await.expect("in time").expect("facts"), "b") {}
    };
    kept_fresh.run_until(run).await;
    drop((observations, kept_fresh));
    stream.closed().await;
}

/// `kubectl create token` ends its output with a newline.
#[tokio::test]
async fn the_token_of_a_file_is_trimmed() {
    let mut api = Fake::new().await;
    let token = TestFile::new("token", "secret\n");
    // A plugin that would fail.
    let plugin = "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /no/plugin}";
    let file = TestConfig::to_user(api.addr, &format!("{plugin}, tokenFile: {}", token.path.display()));
    let (cluster, asked) = tokio::join!(start(file.cluster()), api.next());
    cluster.expect("cluster");
    assert_eq!(asked.authorization.as_deref(), Some("Bearer secret"));
    std::fs::remove_file(&token.path).expect("a file");
    let error = start(file.cluster()).await.expect_err("no token").to_string();
    assert!(error.contains("failed to read token file"), "{error}");
}

#[tokio::test]
async fn a_refused_connection_holds_nothing_up_and_is_reported() {
    let addr = Fake::new().await.addr;
    let file = TestConfig::to(addr);
    let began = Instant::now();
    let cluster = start(file.cluster()).await.expect("cluster");
    assert!(began.elapsed() < FIRST, "{:?}", began.elapsed());
    assert_eq!(cluster.sources(), ["cluster API: unreachable: Connection refused"]);
}

#[test]
fn what_works_is_listed_beside_what_does_not() {
    let (reported, cluster) = Cluster::fixed();
    assert_eq!(cluster.sources(), ["cluster API: no answer within 2 s"]);
    reported.send_modify(|view| {
        view.states.insert("pods".into(), State::Following);
        view.states.insert("services".into(), State::Failing("answers 500".into()));
    });
    assert_eq!(cluster.sources(), ["pods and probes (cluster API)", "cluster API: answers 500"]);
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_the_start_up_for_two_seconds() {
    let mut api = Fake::new().await;
    let file = TestConfig::to(api.addr);
    let began = Instant::now();
    let (cluster, asked) = tokio::join!(start(file.cluster()), api.next());
    let mut cluster = cluster.expect("cluster");
    assert!(began.elapsed() >= FIRST && began.elapsed() < 2 * FIRST, "{:?}", began.elapsed());
    assert_eq!(cluster.sources(), ["cluster API: no answer within 2 s"]);
    let mut stream = asked.stream().await;
    stream.event("ADDED", &pod("a", 1, "10.0.0.1")).await;
    stream.synced(7).await;
    while cluster.take().pods.is_empty() {
        timeout(GUARD, cluster.changed()).await.expect("late, but there");
    }
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let empty = TestConfig::new("apiVersion: v1\nkind: Config\n");
    let error = start(empty.cluster()).await.expect_err("no context").to_string();
    assert!(error.starts_with(&format!("--kubeconfig {}: ", empty.0.path.display())), "{error}");
    let broken = TestConfig::new("{{{{");
    let error = start(broken.cluster()).await.expect_err("no YAML").to_string();
    assert!(error.contains(&format!("{}: ", broken.0.path.display())), "{error}");
}

#[tokio::test]
async fn a_credential_plugin_that_fails_once_is_run_again_and_what_it_printed_is_not_reported() {
    let mut api = Fake::new().await;
    let credential = TestFile::new("credential", "");
    let exec = format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
        args: [-c, 'grep token {} || {{ echo secret; exit 3; }}'], env: [{{name: A, value: secret}}], interactiveMode: Never}}",
        credential.path.display()
    );
    let file = TestConfig::to_user(api.addr, &exec);
    let mut cluster = start(file.cluster()).await.expect("cluster");
    assert_eq!(cluster.sources(), ["cluster API: unreachable: the credential plugin sh failed: exit status: 3"]);
    let good = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}"#;
    std::fs::write(&credential.path, good).expect("a file");
    api.next().await.stream().await.synced(7).await;
    while !cluster.take().is_complete() {
        timeout(GUARD, cluster.changed()).await.expect("in time");
    }
}
