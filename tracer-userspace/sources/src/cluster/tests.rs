//! The follower beside an API server on loopback: its requests, and how it reacts to each failure.

mod endpoints;
mod events;
mod faults;
mod runs;
mod start;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::*;
use crate::testing::fake::{self, Fake, GUARD};
use crate::testing::{Log, client_of, pace};

const NODE: &str = "n1";

fn pod(name: &str, version: u32, addr: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{name}","uid":"u-{name}","resourceVersion":"{version}","managedFields":[{{"fieldsV1":{{"f:spec":{{}}}}}}]}},
        "spec":{{"nodeName":"n1","containers":[{{"name":"web","ports":[{{"name":"http","containerPort":8080}}],"readinessProbe":{{"httpGet":{{"port":"http"}}}}}}]}},
        "status":{{"phase":"Running","podIP":"{addr}","podIPs":[{{"ip":"{addr}"}}]}}}}"#
    )
    .replace('\n', "")
}

fn list(version: u32, pods: &[String]) -> String {
    format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{}]}}"#,
        pods.join(",")
    )
}

fn config(pods: bool) -> ClusterConfig {
    let (access, node_name) = (Access::InCluster, NODE.into());
    ClusterConfig { access, node_name, pods, endpoints: false, events: Vec::new() }
}

impl Cluster {
    /// A cluster with a view that the test writes.
    pub(crate) fn fixed() -> (watch::Sender<View>, Self) {
        let config = config(true);
        let (tx, view) = watch::channel(View::of(&config));
        (tx, Self { config, queries: channel(1).0, view })
    }
}

/// The followers of a cluster, and their view.
struct Followed {
    view: watch::Receiver<View>,
    queries: Queries,
    answers: Receiver<ObservationKind>,
}

impl Followed {
    /// An API, and its followers. Must run where tasks may be local.
    async fn start(config: ClusterConfig, pace: Pace) -> (Fake, Self) {
        let api = Fake::new().await;
        let client = client_of(api.addr);
        let (tx, view) = watch::channel(View::of(&config));
        let (sent, answers) = channel(1);
        let (queries, answering) = answering(sent);
        tokio::task::spawn_local(async move {
            let (first, _begun) = mpsc::sync_channel(1);
            follow_with(client, &config, answering, pace, tx, &first).await;
        });
        (api, Self { view, queries, answers })
    }

    async fn pods() -> (Fake, Self) {
        Self::start(config(true), pace()).await
    }

    async fn until(&mut self, what: &str, is: impl FnMut(&View) -> bool) -> View {
        let view = timeout(GUARD, self.view.wait_for(is)).await;
        view.unwrap_or_else(|_| panic!("never: {what}")).expect("followers").clone()
    }

    async fn until_names(&mut self, names: &[&str]) -> View {
        let is = |view: &View| view.pods.iter().filter_map(|pod| pod.name.as_deref()).eq(names.iter().copied());
        self.until(&format!("pods {names:?}"), is).await
    }
}

/// An API, a follower that knows pod `a`, and its open watch.
async fn following(pace: Pace) -> (Fake, Followed, fake::Stream) {
    let (mut api, mut followed) = Followed::start(config(true), pace).await;
    let mut watch = api.next().await.stream().await;
    watch.event("ADDED", &pod("a", 1, "10.0.0.1")).await;
    watch.synced(7).await;
    followed.until_names(&["a"]).await;
    (api, followed, watch)
}

#[tokio::test(flavor = "local")]
async fn one_streaming_list_is_one_request_and_follows_every_change() {
    let (mut api, mut followed) = Followed::pods().await;
    let asked = api.next().await;
    assert_eq!(asked.path, "/api/v1/pods");
    for parameter in [
        "watch=true",
        "allowWatchBookmarks=true",
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "resourceVersion=0",
        "fieldSelector=spec.nodeName%3Dn1",
    ] {
        assert!(asked.has(parameter), "{parameter}: {:?}", asked.query);
    }
    let mut watch = asked.stream().await;
    watch.event("ADDED", &pod("a", 1, "10.0.0.1")).await;
    watch.event("ADDED", &pod("b", 2, "10.0.0.2")).await;
    watch.synced(7).await;
    let view = followed.until_names(&["a", "b"]).await;
    let probe = &view.pods[0].containers[0].probes[0];
    assert_eq!((probe.port, probe.path.as_deref()), (8080, Some("/")));
    assert!(view.is_complete());

    watch.event("MODIFIED", &pod("a", 8, "10.0.0.9")).await;
    let moved = |view: &View| view.pods[0].addrs == ["10.0.0.9".parse::<std::net::IpAddr>().expect("address")];
    followed.until("another address", moved).await;
    watch.event("ADDED", &pod("c", 9, "10.0.0.3")).await;
    watch.event("DELETED", &pod("b", 10, "10.0.0.2")).await;
    followed.until_names(&["a", "c"]).await;
    watch.event("BOOKMARK", r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"55"}}"#).await;
    watch.end().await;
    let again = api.next().await;
    assert!(again.is_watch() && again.has("resourceVersion=55") && !again.has("sendInitialEvents=true"));
    assert!(again.has("allowWatchBookmarks=true") && again.has("fieldSelector=spec.nodeName%3Dn1"));
    assert_eq!(api.requests, 2);
    followed.until_names(&["a", "c"]).await;
}

#[tokio::test(flavor = "local")]
async fn changes_that_follow_each_other_are_one_view() {
    let debounce = Duration::from_millis(300);
    let (mut api, mut followed) = Followed::start(config(true), Pace { debounce, ..pace() }).await;
    let mut watch = api.next().await.stream().await;
    watch.synced(1).await;
    followed.until("nothing yet", View::is_complete).await;
    let began = std::time::Instant::now();
    let many: Vec<String> = (0..50).map(|n| format!("p{n:03}")).collect();
    for name in &many {
        watch.event("ADDED", &pod(name, 2, "10.0.0.1")).await;
    }
    // A change of fields that tracer does not read is no change.
    watch.event("MODIFIED", &pod("p000", 3, "10.0.0.1")).await;
    let (mut views, mut count) = (0, 0);
    while count < many.len() {
        timeout(GUARD, followed.view.changed()).await.expect("in time").expect("followers");
        views += 1;
        // All changes within that time make one view, however long a busy machine takes, and none comes earlier.
        assert!(began.elapsed() >= debounce * views, "{views} views after {:?}", began.elapsed());
        count = followed.view.borrow_and_update().pods.len();
    }
}

#[tokio::test(flavor = "local")]
async fn a_server_without_streaming_lists_gets_one_list_and_one_watch() {
    let (mut api, mut followed) = Followed::pods().await;
    // The answer of a 1.20: kubernetes/apimachinery, ValidateListOptions.
    let text = r#"{"kind":"Status","status":"Failure","message":"ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch","reason":"Invalid","code":422}"#;
    api.next().await.answer("422 Unprocessable Entity", text).await;
    let asked = api.next().await;
    assert!(!asked.is_watch() && asked.has("resourceVersion=0") && asked.has("fieldSelector=spec.nodeName%3Dn1"));
    let elsewhere = pod("x", 3, "10.9.9.9").replace("\"n1\"", "\"n2\"");
    asked.answer("200 OK", &list(40, &[pod("a", 1, "10.0.0.1"), elsewhere])).await;
    let asked = api.next().await;
    assert!(asked.is_watch() && asked.has("resourceVersion=40") && asked.has("allowWatchBookmarks=true"));
    assert!(asked.has("fieldSelector=spec.nodeName%3Dn1"));
    let mut watch = asked.stream().await;
    followed.until_names(&["a"]).await;
    watch.event("ADDED", &pod("b", 41, "10.0.0.2")).await;
    followed.until_names(&["a", "b"]).await;
    assert_eq!(api.requests, 3);
}

#[tokio::test(flavor = "local")]
async fn a_server_that_ignores_what_it_was_asked_is_listed() {
    let pace = Pace { sync: Duration::from_millis(100), ..pace() };
    let (mut api, mut followed) = Followed::start(config(true), pace).await;
    let mut watch = api.next().await.stream().await;
    watch.event("ADDED", &pod("a", 1, "10.0.0.1")).await;
    let asked = api.next().await;
    assert!(!asked.is_watch());
    asked.answer("200 OK", &list(4, &[pod("a", 1, "10.0.0.1")])).await;
    followed.until_names(&["a"]).await;
}
