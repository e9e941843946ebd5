//! What is written, against an API server on loopback.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::note::FailedPod;
use super::*;
use crate::sink::tests::verdict;
use tracer_model::event::{AnswerKind, ConnId};
use tracer_model::record::Cause;
use tracer_sources::testing::fake::{Fake, FakeRequest};
use tracer_sources::testing::{Log, client_of, pace};
use tracer_testing::assert_has;

const EVENTS: &str = "/api/v1/namespaces/shop/events";
const STATUS: &str = "/api/v1/nodes/n1/status";

/// Short waits, except those that a test is about.
fn rates() -> Rates {
    Rates {
        settle: Duration::ZERO,
        every: Duration::from_millis(50),
        gap: Duration::from_millis(20),
        burst: 100,
        ..Rates::default()
    }
}

fn config(explain: bool, condition: bool) -> ClusterOutput {
    ClusterOutput { access: Access::InCluster, node_name: "n1".into(), explain, condition }
}

/// A sink with an API server that runs beside the test.
fn start(api: &Fake, explain: bool, rates: Rates) -> (ClusterSink, JoinHandle<()>) {
    let (sink, inbox) = ClusterSink::new(&config(explain, !explain));
    let client = client_of(api.addr);
    (sink, tokio::task::spawn_local(write(client, "n1", inbox, pace(), rates)))
}

fn note(pod: &str, attempt: u64) -> Note {
    let about =
        FailedPod { namespace: "shop".into(), pod: pod.into(), uid: Some("u1".into()), container: Some("web".into()) };
    let says = (Cause::ConnectionRefused, "connection_refused: nobody listens. Fix: start it".to_owned());
    Note { about, attempt: Some(ConnId(attempt)), says: Some(says) }
}

impl ClusterSink {
    fn queue_note(&self, note: Note) {
        self.notes.as_ref().expect("open").try_send(note).expect("room");
    }
}

/// Ends the sink and its task; gives how many notes were dropped.
async fn finished(mut sink: ClusterSink, written: JoinHandle<()>) -> u64 {
    sink.finish();
    written.await.expect("it ends");
    sink.dropped()
}

async fn created(api: &mut Fake) -> FakeRequest {
    let asked = api.next().await;
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("POST", EVENTS));
    asked
}

#[tokio::test(flavor = "local")]
async fn an_event_is_made_once_and_then_counted() {
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, rates());
    sink.queue_note(note("cart", 1));
    let asked = created(&mut api).await;
    let event = asked.json();
    let about = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "cart", "uid": "u1", "fieldPath": "spec.containers{web}"});
    assert_eq!((&event["involvedObject"], &event["reason"]), (&about, &"ProbeFailureExplained".into()));
    assert_eq!(
        (&event["count"], &event["type"], &event["source"]["host"]),
        (&1.into(), &"Warning".into(), &"n1".into())
    );
    let name = event["metadata"]["name"].as_str().expect("a name").to_owned();
    assert!(name.starts_with("cart."), "{name}");
    asked.answer("201 Created", "{}").await;

    sink.queue_note(note("cart", 2));
    sink.queue_note(note("cart", 2));
    let asked = api.next().await;
    assert_eq!((asked.method.as_str(), asked.path.clone()), ("PATCH", format!("{EVENTS}/{name}")));
    assert_eq!(asked.kind.as_deref(), Some("application/merge-patch+json"));
    assert_eq!(asked.json()["count"], 2);
    // The API deletes Events after an hour.
    asked.answer("404 Not Found", "{}").await;
    let asked = created(&mut api).await;
    assert_eq!(asked.json()["count"], 1, "of the new one");
    asked.answer("201 Created", "{}").await;
    assert_eq!((finished(sink, written).await, api.requests), (0, 3));
}

#[tokio::test(flavor = "local")]
async fn a_node_writes_no_more_than_its_burst_and_counts_the_rest_as_dropped() {
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, Rates { burst: 2, ..rates() });
    for (pod, attempt) in [("a", 1), ("b", 2), ("c", 3)] {
        sink.queue_note(note(pod, attempt));
    }
    created(&mut api).await.answer("201 Created", "{}").await;
    created(&mut api).await.answer("201 Created", "{}").await;
    assert_eq!(finished(sink, written).await, 1);
    assert_eq!(api.requests, 2);
}

#[tokio::test(flavor = "local")]
async fn a_missing_permission_is_warned_about_once_and_retried_late() {
    let log = Log::new();
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, Rates { refused: Duration::from_millis(300), ..rates() });
    sink.queue_note(note("cart", 1));
    let refused = created(&mut api).await;
    let before = refused.at;
    refused.answer("403 Forbidden", r#"{"kind":"Status","message":"events is forbidden","code":403}"#).await;
    sink.queue_note(note("bank", 2));
    sink.queue_note(note("cart", 3));
    let again = created(&mut api).await;
    assert!(again.at - before >= Duration::from_millis(300), "{:?}", again.at - before);
    again.answer("403 Forbidden", "{}").await;
    assert_eq!(finished(sink, written).await, 3);
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let words = "Events on pods: cluster API does not permit it (403): grant verb `create` on resource `events`";
    assert_has(&lines[0], &[words]);
}

#[tokio::test(flavor = "local")]
async fn failures_during_an_outage_are_counted_in_the_next_write() {
    let log = Log::new();
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, rates());
    sink.queue_note(note("cart", 1));
    created(&mut api).await.answer("500 Internal Server Error", "etcd").await;
    let busy = created(&mut api).await;
    let before = Instant::now();
    busy.answer("429 Too Many Requests\r\nRetry-After: 1", "").await;
    sink.queue_note(note("cart", 2));
    sink.queue_note(note("cart", 3));
    let asked = created(&mut api).await;
    assert!(asked.at - before >= Duration::from_secs(1), "{:?}", asked.at - before);
    assert_eq!(asked.json()["count"], 3);
    asked.answer("201 Created", "{}").await;
    assert_eq!(finished(sink, written).await, 0);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert_has(&lines[0], &["WARN", "answers 500: etcd; tracer writes them later"]);
    assert!(lines[1].contains("INFO"), "{lines:#?}");
}

/// The answer to the first request is lost: the second must not make another Event.
#[tokio::test(flavor = "local")]
async fn a_retry_after_a_lost_answer_updates_the_event_that_exists() {
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, rates());
    sink.queue_note(note("cart", 1));
    let lost = created(&mut api).await;
    let name = lost.json()["metadata"]["name"].as_str().expect("a name").to_owned();
    drop(lost);
    sink.queue_note(note("cart", 2));
    let again = created(&mut api).await;
    assert_eq!(again.json()["metadata"]["name"], name.as_str());
    again.answer("409 Conflict", "{}").await;
    let asked = api.next().await;
    assert_eq!((asked.method.as_str(), asked.path.clone()), ("PATCH", format!("{EVENTS}/{name}")));
    assert_eq!(asked.json()["count"], 2);
    asked.answer("200 OK", "{}").await;
    assert_eq!(finished(sink, written).await, 0);
}

#[tokio::test(flavor = "local")]
async fn an_event_that_the_api_rejects_for_good_stops_no_other() {
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, rates());
    let ends = r#"{"kind":"Status","message":"events \"a.1\" is forbidden: unable to create new content in namespace shop because it is being terminated","reason":"Forbidden","code":403}"#;
    for (pod, answer, body) in
        [("a", "403 Forbidden", ends), ("b", "404 Not Found", "{}"), ("c", "422 Unprocessable Entity", "{}")]
    {
        sink.queue_note(note(pod, 1));
        created(&mut api).await.answer(answer, body).await;
    }
    sink.queue_note(note("d", 1));
    created(&mut api).await.answer("201 Created", "{}").await;
    assert_eq!(finished(sink, written).await, 3);
}

#[tokio::test(flavor = "local")]
async fn the_end_does_not_wait_for_a_silent_server() {
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, true, rates());
    sink.queue_note(note("cart", 1));
    let silent = created(&mut api).await;
    let began = Instant::now();
    sink.queue_note(note("bank", 2));
    assert_eq!(finished(sink, written).await, 2);
    assert!(began.elapsed() < 2 * AT_END, "{:?}", began.elapsed());
    drop(silent);
}

impl ClusterSink {
    /// A sink with a task that runs as long as the sender is held.
    pub(in crate::sink) fn stuck() -> (Self, std_mpsc::Sender<()>) {
        let (runs, running) = std_mpsc::channel();
        let (mut sink, _) = Self::new(&config(true, true));
        sink.running = Some(running);
        (sink, runs)
    }
}

#[test]
fn a_task_that_does_not_end_is_abandoned_after_the_patience() {
    let log = Log::new();
    let (sink, _runs) = ClusterSink::stuck();
    let began = Instant::now();
    drop(sink);
    assert!(began.elapsed() >= PATIENCE && began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
    assert!(log.lines().concat().contains("did not finish in time"), "{:?}", log.lines());
}

#[test]
fn a_full_queue_drops_and_counts_without_blocking() {
    let (mut sink, mut inbox) = ClusterSink::new(&config(true, false));
    let mut stream = tracer_core::testing::Stream::new();
    stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(503));
    stream.closes((100, 101, 200));
    let refused = stream.decisions().into_iter().find(|it| note::of(it).is_some()).expect("a verdict worth an Event");
    let reported = note::of(&refused).and_then(|it| it.says).expect("it says something").1;
    assert!(reported.starts_with("app_status_failure: ") && reported.contains("HTTP status 503. Fix: "), "{reported}");
    for _ in 0..QUEUE + 3 {
        sink.take_decision(&refused, true);
    }
    sink.take_decision(&refused, false);
    assert_eq!((sink.take_dropped(), sink.dropped()), (0, 3), "reported once there is room again");
    inbox.notes.as_mut().expect("asked for").try_recv().expect("a note");
    assert_eq!((sink.take_dropped(), sink.take_dropped(), sink.dropped()), (3, 0, 3));
}

async fn condition(api: &mut Fake) -> (FakeRequest, String, String) {
    let asked = api.next().await;
    assert_eq!((asked.method.as_str(), asked.path.as_str()), ("PATCH", STATUS));
    assert_eq!(asked.kind.as_deref(), Some("application/strategic-merge-patch+json"));
    let written = asked.json()["status"]["conditions"][0].clone();
    assert_eq!(written["type"], "TracerNodeFault");
    let word = |field: &str| written[field].as_str().expect("text").to_owned();
    let found = (word("status"), word("reason"));
    (asked, found.0, found.1)
}

#[tokio::test(flavor = "local")]
async fn the_nodes_condition_follows_its_faults_and_ends_unknown() {
    let mut api = Fake::new().await;
    let hold = Duration::from_millis(200);
    let (sink, written) = start(&api, false, Rates { hold, ..rates() });
    for (status, reason) in [("False", "NoNodeFault"), ("True", "LoopbackDown"), ("False", "NoNodeFault")] {
        let (asked, is, why) = condition(&mut api).await;
        assert_eq!((is.as_str(), why.as_str()), (status, reason));
        if api.requests == 1 {
            sink.take_decision(&Decision::new(1, None, verdict(Cause::LoopbackDown)), true);
        }
        asked.answer("200 OK", "{}").await;
    }
    let answer = async {
        let (asked, is, why) = condition(&mut api).await;
        asked.answer("200 OK", "{}").await;
        (is, why)
    };
    let (last, _) = tokio::join!(answer, finished(sink, written));
    assert_eq!(last, ("Unknown".to_owned(), "TracerStopped".to_owned()));
}

#[tokio::test(flavor = "local")]
async fn a_condition_is_confirmed_and_a_wrong_name_is_reported() {
    let log = Log::new();
    let mut api = Fake::new().await;
    let (sink, written) = start(&api, false, Rates { heartbeat: Duration::from_millis(50), ..rates() });
    let (asked, ..) = condition(&mut api).await;
    asked.answer("404 Not Found", "{}").await;
    for _ in 0..3 {
        let (asked, is, _) = condition(&mut api).await;
        assert_eq!(is, "False");
        asked.answer("200 OK", "{}").await;
    }
    drop((sink, written));
    let lines = log.lines();
    assert!(lines[0].contains("conditions of the node: cluster API does not know a node of this name"), "{lines:#?}");
}
