//! Events of the kubelet: by namespace, from now on, and only of this node.

use jiff::Timestamp;

use super::start::{TestConfig, kept_fresh, start};
use super::*;
use crate::{SourceConfig, snapshot};
use tracer_model::event::{ObservationKind, ProbeOutput};

const REFUSED: &str = "Readiness probe failed: HTTP probe failed with statuscode: 503";

fn event(uid: &str, host: &str, count: u32, version: u32, last: &str) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"shop","name":"a.1","uid":"{uid}","resourceVersion":"{version}"}},"involvedObject":{{"kind":"Pod","namespace":"shop","name":"a","uid":"u-a","fieldPath":"spec.containers{{web}}"}},"reason":"Unhealthy","message":"{REFUSED}","source":{{"component":"kubelet","host":"{host}"}},"firstTimestamp":"2026-11-20T16:05:16Z","lastTimestamp":"{last}","count":{count},"type":"Warning","eventTime":null,"reportingComponent":"","reportingInstance":""}}"#
    )
}

fn of(namespaces: &[Namespace]) -> ClusterConfig {
    ClusterConfig { events: namespaces.to_vec(), ..config(false) }
}

fn shop() -> Namespace {
    Namespace::Named("shop".into())
}

fn counts(view: &View) -> Vec<u32> {
    view.events.values().flatten().map(|event| event.count).collect()
}

/// The position where a watch begins: only one object of the list is asked for.
async fn position(api: &mut Fake, path: &str, version: u32) {
    let asked = api.next().await;
    assert_eq!((asked.path.as_str(), asked.query.as_slice()), (path, ["limit=1".to_owned()].as_slice()));
    asked.answer("200 OK", &list(version, &[])).await;
}

#[tokio::test(flavor = "local")]
async fn only_what_is_new_in_the_namespace_is_asked_for() {
    let (mut api, mut followed) = Followed::start(of(&[shop()]), pace()).await;
    position(&mut api, "/api/v1/namespaces/shop/events", 70).await;
    let asked = api.next().await;
    assert_eq!(asked.path, "/api/v1/namespaces/shop/events");
    let selector = "fieldSelector=source%3Dkubelet%2Ctype%3DWarning%2CinvolvedObject.kind%3DPod%2Creason!%3DBackOff%2Creason!%3DFailed%2Creason!%3DFailedMount";
    for parameter in ["watch=true", "resourceVersion=70", selector] {
        assert!(asked.has(parameter), "{parameter}: {:?}", asked.query);
    }
    let mut watch = asked.stream().await;
    watch.event("MODIFIED", &event("e1", "n2", 9, 71, "2026-11-20T16:05:44Z")).await;
    watch.event("ADDED", &event("e2", NODE, 1, 72, "2026-11-20T16:05:45Z")).await;
    watch.event("MODIFIED", &event("e2", NODE, 2, 73, "2026-11-20T16:05:47Z")).await;
    followed.until("the count", |view| counts(view) == [2]).await;
    // Deleted after an hour, as the server does.
    watch.event("DELETED", &event("e2", NODE, 2, 80, "2026-11-20T16:05:47Z")).await;
    followed.until("gone", |view| counts(view).is_empty()).await;
}

#[tokio::test(flavor = "local")]
async fn a_forgotten_position_is_given_up_for_the_present() {
    let log = Log::new();
    let (mut api, mut followed) = Followed::start(of(&[Namespace::All]), pace()).await;
    position(&mut api, "/api/v1/events", 70).await;
    api.next().await.answer("410 Gone", "{}").await;
    position(&mut api, "/api/v1/events", 90).await;
    let asked = api.next().await;
    assert!(asked.has("resourceVersion=90") && !asked.has("sendInitialEvents=true"), "{:?}", asked.query);
    let mut watch = asked.stream().await;
    watch.event("ADDED", &event("e2", NODE, 1, 91, "2026-11-20T16:05:45Z")).await;
    followed.until("the event", |view| counts(view) == [1]).await;
    assert_eq!(log.lines(), Vec::<String>::new());
}

#[tokio::test(flavor = "local")]
async fn each_namespace_is_followed_and_fails_by_itself() {
    let log = Log::new();
    let (mut api, mut followed) = Followed::start(of(&[shop(), Namespace::Named("bank".into())]), pace()).await;
    let mut open = Vec::new();
    // The Events of `bank` are asked for again, because they were refused.
    while open.is_empty() || api.requests < 5 {
        let asked = api.next().await;
        match asked.path.as_str() {
            "/api/v1/namespaces/bank/events" => asked.answer("403 Forbidden", "{}").await,
            "/api/v1/namespaces/shop/events" if !asked.is_watch() => asked.answer("200 OK", &list(7, &[])).await,
            "/api/v1/namespaces/shop/events" => open.push(asked.stream().await),
            other => panic!("asked for {other}"),
        }
    }
    open[0].event("ADDED", &event("e1", NODE, 1, 8, "2026-11-20T16:05:45Z")).await;
    let view = followed.until("shop", |view| counts(view) == [1]).await;
    assert!(view.failure().is_some_and(|it| it.contains("verb `list` on resource `events`")), "{:?}", view.failure());
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].ends_with("; tracer keeps the events of namespace bank that it knows"), "{lines:#?}");
}

#[tokio::test]
async fn an_event_becomes_a_fact_once_for_each_count() {
    let mut api = Fake::new().await;
    let file = TestConfig::to(api.addr);
    let config = ClusterConfig { access: Access::Kubeconfig(file.0.path.clone()), ..of(&[shop()]) };
    let answer = async {
        position(&mut api, "/api/v1/namespaces/shop/events", 70).await;
        api.next().await.stream().await
    };
    let (cluster, mut stream) = tokio::join!(start(config), answer);
    let cluster = cluster.expect("cluster");
    assert_eq!(cluster.sources(), ["probe outcomes (the kubelet's events of namespace shop, cluster API)"]);
    let config = SourceConfig { cluster: Some(cluster), ..SourceConfig::default() };
    let snapshot = snapshot(&config).expect("snapshot");
    let (kept_fresh, mut observations) = kept_fresh(config, snapshot);
    let run = async {
        let now = format!("{:.0}", Timestamp::now());
        let old = "2026-01-01T00:00:00Z";
        stream.event("ADDED", &event("old", NODE, 7, 71, old)).await;
        for count in [1, 2] {
            stream.event("MODIFIED", &event("e1", NODE, count, 71 + count, &now)).await;
            let reported = loop {
                let kind = timeout(GUARD, observations.recv()).await.expect("in time").expect("facts");
                if let ObservationKind::KubeletProbe(reported) = kind {
                    break reported;
                }
            };
            assert_eq!((reported.event_count, reported.reason), (Some(count), ProbeOutput::Status(503)));
        }
    };
    kept_fresh.run_until(run).await;
}
