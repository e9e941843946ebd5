use serde_json::{Value, json};

use crate::testing::*;

const LOG: &str = "GET /api/v1/namespaces/kube-system/pods/tracer-attach-x/log";

fn made() -> Value {
    json!({"metadata": {"namespace": "kube-system", "name": "tracer-attach-x"}})
}

fn pod(phase: &str, state: Value) -> Reply {
    let mut pod = made();
    pod["status"] = json!({"phase": phase, "containerStatuses": [{"name": "tracer", "state": state}]});
    Reply::Json(200, pod)
}

const DAEMON: &str = "GET /api/v1/namespaces/tracer/pods";

/// The DaemonSet's pods, with this image.
fn daemon(image: &str) -> Reply {
    let spec = json!({"containers": [{"name": "tracer", "image": image}], "imagePullSecrets": [{"name": "registry"}]});
    Reply::Json(200, json!({"items": [{"metadata": {"namespace": "tracer", "name": "tracer-x"}, "spec": spec}]}))
}

/// A cluster in which the pod can be made, read as `pod`, and deleted.
fn attaching(pod: Reply) -> Replies {
    let path = "/api/v1/namespaces/kube-system/pods";
    Replies::from([
        ("GET /api/v1/nodes/n1".into(), Reply::Json(200, json!({}))),
        (DAEMON.into(), daemon("x/tracer:1")),
        (format!("POST {path}"), Reply::Json(201, made())),
        (format!("GET {path}/tracer-attach-x"), pod),
        (format!("DELETE {path}/tracer-attach-x"), Reply::Json(200, json!({}))),
    ])
}

#[tokio::test]
async fn attach_makes_a_pod_prints_its_log_and_deletes_it() {
    let mut replies = attaching(pod("Running", json!({"terminated": {"exitCode": 3}})));
    replies.insert(LOG.into(), Reply::Log(verdict(1, "n1", &now(), "cart-0", "connection_refused").into()));
    let fake = Fake::serve(replies).await;
    let ran = ran(&fake, &["attach", "n1", "-o", "json", "--duration", "30s"]).await;
    assert_eq!(ran.ended, Ok(3), "as tracer in the pod ended");
    assert!(ran.out.contains("connection_refused"), "{}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.last().is_some_and(|it| it.starts_with("DELETE")), "{asked:?}");
    assert!(asked.iter().any(|it| it.contains("follow=true")), "{asked:?}");
    let sent = fake.bodies.lock().expect("a list")[0].clone();
    assert_eq!(sent["spec"]["containers"][0]["image"], "x/tracer:1", "that of the DaemonSet");
    assert_eq!(sent["spec"]["imagePullSecrets"], json!([]), "the Secret is in another namespace");
    assert_eq!((&sent["spec"]["nodeName"], &sent["spec"]["activeDeadlineSeconds"]), (&json!("n1"), &json!(150)));
}

/// Something between here and the API server cuts the silent log, and the container's end is known late.
#[tokio::test]
async fn a_log_that_breaks_off_is_followed_again_until_tracer_has_ended() {
    let running = || pod("Running", json!({"running": {}}));
    let ended = pod("Running", json!({"terminated": {"exitCode": 3}}));
    let first = verdict(1, "n1", "2026-01-02T03:04:05Z", "cart-0", "connection_refused");
    let both = [first.clone(), verdict(2, "n1", &now(), "cart-0", "slow_response")].concat();
    let logs = [first, both].map(|log| Reply::Log(log.into())).to_vec();
    let mut replies = attaching(Reply::InOrder(vec![running(), running(), ended]));
    replies.insert(LOG.into(), Reply::InOrder(logs));
    let fake = Fake::serve(replies).await;
    let ran = ran(&fake, &["attach", "n1", "-o", "json"]).await;
    assert_eq!(ran.ended, Ok(3), "the end of the log is not that of tracer");
    assert_eq!(ran.out.lines().count(), 2, "each record once: {}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().any(|it| it.contains("sinceTime=2026-01-02T03%3A04%3A05Z")), "{asked:?}");
}

#[tokio::test]
async fn a_pod_that_cannot_start_is_deleted_and_the_reason_named() {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    let mut replies = attaching(pod("Pending", waiting));
    // The right to create pods does not need the right to read nodes.
    let forbidden = r#"nodes "n1" is forbidden: User "jane" cannot get resource "nodes""#;
    replies.insert("GET /api/v1/nodes/n1".into(), status(403, forbidden));
    let fake = Fake::serve(replies).await;
    let (code, problem) = ran(&fake, &["attach", "n1"]).await.problem();
    assert!(code == 2 && problem.contains("ErrImagePull: no such image"), "{problem}");
    assert!(fake.asked.lock().expect("a list").iter().any(|it| it.starts_with("DELETE")));
}

#[tokio::test]
async fn the_image_is_the_named_one_or_that_of_the_daemon_set() {
    let path = "POST /api/v1/namespaces/tracer/pods";
    let sent = async |replies: Replies, words: &[&str]| {
        let fake = Fake::serve(replies).await;
        let ran = ran(&fake, &[&["attach", "n1", "--attach-namespace", "tracer"], words].concat()).await;
        (ran.problem().1, fake.bodies.lock().expect("a list").first().map(|it| it["spec"].clone()))
    };
    let mut replies = attaching(Reply::Json(200, json!({})));
    replies.insert(path.into(), status(409, "stop here"));
    let spec = sent(replies.clone(), &[]).await.1.expect("a pod");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "registry"}]), "the Secret is in this namespace");
    let spec = sent(replies.clone(), &["--image", "y/tracer:2"]).await.1.expect("a pod");
    assert_eq!((&spec["containers"][0]["image"], &spec["imagePullSecrets"]), (&json!("y/tracer:2"), &json!([])));
    for reply in [status(403, "no"), Reply::Json(200, json!({"items": []}))] {
        replies.insert(DAEMON.into(), reply);
        let (problem, pod) = sent(replies.clone(), &[]).await;
        assert!(pod.is_none() && problem.starts_with("name the image of tracer with --image"), "{problem}");
    }
}

#[tokio::test]
async fn attach_to_a_node_that_does_not_exist_makes_no_pod() {
    let fake = Fake::serve(Replies::new()).await;
    assert_eq!(ran(&fake, &["attach", "n7"]).await.problem(), (2, "node n7 not found".to_owned()));
    assert_eq!(*fake.asked.lock().expect("a list"), ["GET /api/v1/nodes/n7?"]);
}
