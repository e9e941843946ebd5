//! Refusals, outages and wrong answers. Known objects stay known, and each outage is logged once.

use std::time::Instant;

use super::*;
use tracer_testing::{assert_ends, assert_has};

/// A watch reports pod `b`.
async fn add_b(watch: &mut fake::Stream, followed: &mut Followed) {
    watch.event("ADDED", &pod("b", 8, "10.0.0.2")).await;
    followed.until_names(&["a", "b"]).await;
}

#[tokio::test(flavor = "local")]
async fn a_forgotten_position_is_read_again_and_what_is_gone_is_gone() {
    let log = Log::new();
    let (mut api, mut followed, mut watch) = following(pace()).await;
    watch
        .event("ERROR", r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version"}"#)
        .await;
    let asked = api.next().await;
    // Not from the cache: its position may be before the forgotten one.
    assert!(asked.has("sendInitialEvents=true") && !asked.has("resourceVersion=0"), "{:?}", asked.query);
    let mut watch = asked.stream().await;
    watch.event("ADDED", &pod("b", 9, "10.0.0.2")).await;
    assert_eq!(followed.view.borrow().pods.len(), 1, "half a list is not shown");
    watch.synced(20).await;
    followed.until_names(&["b"]).await;
    watch.end().await;
    api.next().await.answer("410 Gone", "{}").await;
    assert!(api.next().await.has("sendInitialEvents=true"));
    assert_eq!(log.lines(), Vec::<String>::new());
}

/// After a restart of the server all nodes ask at once.
#[tokio::test(flavor = "local")]
async fn a_forgotten_position_is_read_from_the_cache_if_that_is_not_older() {
    let (mut api, mut followed) = Followed::pods().await;
    api.next().await.answer("400 Bad Request", "{}").await;
    api.next().await.answer("200 OK", &list(4, &[pod("a", 1, "10.0.0.1")])).await;
    followed.until_names(&["a"]).await;
    api.next().await.stream().await.end().await;
    api.next().await.answer("410 Gone", "{}").await;
    let asked = api.next().await;
    assert!(!asked.is_watch() && asked.has("resourceVersion=4"), "{:?}", asked.query);
    asked.answer("410 Gone", "{}").await;
    let asked = api.next().await;
    let is_position = |it: &String| it.starts_with("resourceVersion");
    assert!(!asked.is_watch() && !asked.query.iter().any(is_position), "{:?}", asked.query);
}

#[tokio::test(flavor = "local")]
async fn refused_permissions_are_named_and_what_was_known_stays() {
    let log = Log::new();
    let (mut api, mut followed, watch) = following(pace()).await;
    watch.end().await;
    for _ in 0..3 {
        let forbidden = r#"{"kind":"Status","message":"pods is forbidden","reason":"Forbidden","code":403}"#;
        api.next().await.answer("403 Forbidden", forbidden).await;
    }
    api.next().await.answer("401 Unauthorized", "{}").await;
    let view = followed.until("401", |view| view.failure().is_some_and(|it| it.contains("401"))).await;
    assert_eq!(view.pods.len(), 1);
    let mut watch = api.next().await.stream().await;
    followed.until("back", View::is_complete).await;
    add_b(&mut watch, &mut followed).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert!(lines[0].contains("grant verb `watch` on resource `pods` in a ClusterRole"), "{lines:#?}");
    assert!(lines[0].contains("WARN") && lines[0].ends_with("; tracer keeps the pods that it knows"), "{lines:#?}");
    assert!(lines[1].contains("(401)"), "{lines:#?}");
    assert!(lines[2].contains("INFO") && lines[2].ends_with("the cluster API answers again"), "{lines:#?}");
}

#[tokio::test(flavor = "local")]
async fn the_server_is_left_alone_as_long_as_it_asks() {
    let (mut api, mut followed) = Followed::pods().await;
    let busy = "429 Too Many Requests\r\nRetry-After: 1";
    let before = Instant::now();
    api.next().await.answer(busy, "").await;
    let asked = api.next().await;
    assert!(asked.at - before >= Duration::from_secs(1), "{:?}", asked.at - before);
    let failure = followed.until("429", |view| view.failure().is_some()).await;
    assert_eq!(failure.failure(), Some("answers 429"));
}

#[tokio::test(flavor = "local")]
async fn errors_of_the_server_and_nonsense_are_waited_out() {
    let log = Log::new();
    let (mut api, mut followed, watch) = following(pace()).await;
    watch.end().await;
    api.next().await.answer("500 Internal Server Error", r#"{"kind":"Status","message":"etcd","code":500}"#).await;
    api.next().await.answer("500 Internal Server Error", "<html>").await;
    for _ in 0..2 {
        let mut watch = api.next().await.stream().await;
        watch.send("{\"type\":\"ADDED\",\"object\":{]}\n").await;
        watch.closed().await;
    }
    let view = followed.until("nonsense", |view| view.failure().is_some_and(|it| it.contains("read"))).await;
    assert_eq!(view.pods.len(), 1);
    let asked = api.next().await;
    assert!(asked.has("resourceVersion=7"), "{:?}", asked.query);
    let mut watch = asked.stream().await;
    watch.event("MODIFIED", &pod("b", 8, "10.0.0.2")).await;
    followed.until_names(&["a", "b"]).await;
    followed.until("back", View::is_complete).await;
    let lines = log.lines();
    let count = |level: &str| lines.iter().filter(|line| line.contains(level)).count();
    assert!(lines[0].contains("WARN") && lines[0].contains("cluster API answers 500: etcd"), "{lines:#?}");
    assert_eq!((count("WARN"), count("INFO")), (2, 2), "one outage by 500, one by nonsense: {lines:#?}");
}

/// A proxy answers in the server's place. A watch that is quiet afterwards shows that the server is back.
#[tokio::test(flavor = "local")]
async fn a_watch_that_is_none_is_reported() {
    let log = Log::new();
    let (mut api, mut followed, watch) = following(Pace { stable: Duration::ZERO, ..pace() }).await;
    watch.end().await;
    api.next().await.answer("200 OK", "<html>login</html>").await;
    followed.until("login", |view| view.failure().is_some_and(|it| it.contains("cannot be read"))).await;
    for answer in ["", "{\"type\":\"ADDED\",\"object\":{\"spec\":{\"priority\":-"] {
        api.next().await.answer("200 OK", answer).await;
    }
    followed.until("back", View::is_complete).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "one outage and its end: {lines:#?}");
}

#[tokio::test(flavor = "local")]
async fn one_object_that_cannot_be_read_costs_no_other() {
    let log = Log::new();
    let (mut api, mut followed) = Followed::pods().await;
    api.next().await.answer("400 Bad Request", "{}").await;
    let odd = pod("odd", 2, "10.0.0.2").replace("8080", "\"eighty\"");
    api.next().await.answer("200 OK", &list(4, &[pod("a", 1, "10.0.0.1"), odd.clone(), pod("c", 3, "10.0.0.3")])).await;
    followed.until_names(&["a", "c"]).await;
    let mut watch = api.next().await.stream().await;
    watch.event("MODIFIED", &odd).await;
    watch.event("CONFETTI", "{}").await;
    watch.event("DELETED", &pod("a", 5, "10.0.0.1")).await;
    followed.until_names(&["c"]).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("skips one of the pods") && lines[0].contains("eighty"), "{lines:#?}");
}

#[tokio::test(flavor = "local")]
async fn a_list_that_is_cut_or_is_none_leaves_what_was_known() {
    let (mut api, mut followed, watch) = following(pace()).await;
    watch.end().await;
    api.next().await.answer("410 Gone", "").await;
    api.next().await.answer("422 Unprocessable Entity", "").await;
    let mut half = api.next().await.stream().await;
    half.send(r#"{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":[{"metadata":"#).await;
    drop(half);
    api.next().await.answer("200 OK", "{}").await;
    api.next().await.answer("200 OK", "hello").await;
    let asked = api.next().await;
    assert_eq!(followed.view.borrow().pods.len(), 1);
    asked.answer("200 OK", &list(9, &[])).await;
    followed.until_names(&[]).await;
}

#[tokio::test(flavor = "local")]
async fn an_outage_is_reported_once_and_its_end_once() {
    let log = Log::new();
    let (api, mut followed, watch) = following(pace()).await;
    let addr = api.addr;
    drop(api);
    drop(watch);
    let view = followed.until("refused", |view| view.failure().is_some_and(|it| it.contains("refused"))).await;
    assert_eq!(view.pods.len(), 1);
    let mut api = Fake::at(addr).await;
    let mut watch = api.next().await.stream().await;
    followed.until("back", View::is_complete).await;
    add_b(&mut watch, &mut followed).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_has(&lines[0], &["cluster API unreachable: "]);
    assert_ends(&lines[0], "; tracer keeps the pods that it knows");
    assert!(lines[1].contains("INFO"), "{lines:#?}");
}

#[tokio::test(flavor = "local")]
async fn a_connection_that_broke_is_no_outage() {
    let log = Log::new();
    let (mut api, mut followed, watch) = following(pace()).await;
    drop(watch);
    let asked = api.next().await;
    assert!(asked.has("resourceVersion=7"), "{:?}", asked.query);
    let mut watch = asked.stream().await;
    add_b(&mut watch, &mut followed).await;
    assert_eq!(log.lines(), Vec::<String>::new());
}

#[tokio::test(flavor = "local")]
async fn a_connection_that_fell_silent_is_made_again_from_where_it_stood() {
    let log = Log::new();
    let (mut api, mut followed, watch) = following(Pace { silence: Duration::from_secs(1), ..pace() }).await;
    followed.until("synced", View::is_complete).await;
    assert!(api.next().await.has("resourceVersion=7"));
    watch.closed().await;
    assert_eq!(log.lines(), Vec::<String>::new());
}
