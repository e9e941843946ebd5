use serde_json::json;

use crate::testing::*;

#[tokio::test]
async fn attach_makes_a_pod_prints_its_log_and_deletes_it() {
    let made = json!({"metadata": {"namespace": "kube-system", "name": "tracer-attach-x"}});
    let mut running = made.clone();
    running["status"] = json!({"phase": "Running", "containerStatuses": [{"name": "tracer", "state": {"terminated": {"exitCode": 3}}}]});
    let of_pod = "/api/v1/namespaces/kube-system/pods/tracer-attach-x";
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let fake = Fake::serve(Replies::from([
        ("GET /api/v1/nodes/n1".into(), Reply::Json(200, json!({}))),
        ("POST /api/v1/namespaces/kube-system/pods".into(), Reply::Json(201, made)),
        (format!("GET {of_pod}"), Reply::Json(200, running)),
        (format!("GET {of_pod}/log"), Reply::Log(log.into())),
        (format!("DELETE {of_pod}"), Reply::Json(200, json!({}))),
    ]))
    .await;
    let ran = ran(&fake, &["attach", "n1", "-o", "json", "--duration", "30s"]).await;
    assert_eq!(ran.ended, Ok(3), "as tracer in the pod ended");
    assert!(ran.out.contains("connection_refused"), "{}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.last().is_some_and(|it| it.starts_with("DELETE")), "{asked:?}");
    assert!(asked.iter().any(|it| it.contains("follow=true")), "{asked:?}");
    let sent = fake.bodies.lock().expect("a list")[0].clone();
    assert_eq!((&sent["spec"]["nodeName"], &sent["spec"]["activeDeadlineSeconds"]), (&json!("n1"), &json!(150)));
}

/// Something between here and the API server cuts the silent log, and the container's end is known late.
#[tokio::test]
async fn a_log_that_breaks_off_is_followed_again_until_tracer_has_ended() {
    let made = json!({"metadata": {"namespace": "kube-system", "name": "tracer-attach-x"}});
    let with = |state: serde_json::Value| {
        let mut pod = made.clone();
        pod["status"] = json!({"phase": "Running", "containerStatuses": [{"name": "tracer", "state": state}]});
        Reply::Json(200, pod)
    };
    let running = || with(json!({"running": {}}));
    let of_pod = "/api/v1/namespaces/kube-system/pods/tracer-attach-x";
    let first = verdict(1, "n1", "2026-01-02T03:04:05Z", "cart-0", "connection_refused");
    let both = [first.clone(), verdict(2, "n1", &now(), "cart-0", "slow_response")].concat();
    let logs = [first, both].map(|log| Reply::Log(log.into())).to_vec();
    let fake = Fake::serve(Replies::from([
        ("GET /api/v1/nodes/n1".into(), Reply::Json(200, json!({}))),
        ("POST /api/v1/namespaces/kube-system/pods".into(), Reply::Json(201, made.clone())),
        (
            format!("GET {of_pod}"),
            Reply::InOrder(vec![running(), running(), with(json!({"terminated": {"exitCode": 3}}))]),
        ),
        (format!("GET {of_pod}/log"), Reply::InOrder(logs)),
        (format!("DELETE {of_pod}"), Reply::Json(200, json!({}))),
    ]))
    .await;
    let ran = ran(&fake, &["attach", "n1", "-o", "json"]).await;
    assert_eq!(ran.ended, Ok(3), "the end of the log is not that of tracer");
    assert_eq!(ran.out.lines().count(), 2, "each record once: {}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().any(|it| it.contains("sinceTime=2026-01-02T03%3A04%3A05Z")), "{asked:?}");
}

#[tokio::test]
async fn a_pod_that_cannot_start_is_deleted_and_the_reason_named() {
    let made = json!({"metadata": {"namespace": "kube-system", "name": "tracer-attach-x"}});
    let mut waits = made.clone();
    waits["status"] = json!({"phase": "Pending", "containerStatuses": [
        {"name": "tracer", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]});
    let of_pod = "/api/v1/namespaces/kube-system/pods/tracer-attach-x";
    let forbidden = r#"nodes "n1" is forbidden: User "jane" cannot get resource "nodes""#;
    let fake = Fake::serve(Replies::from([
        // The right to create pods does not need the right to read nodes.
        ("GET /api/v1/nodes/n1".into(), status(403, forbidden)),
        ("POST /api/v1/namespaces/kube-system/pods".into(), Reply::Json(201, made)),
        (format!("GET {of_pod}"), Reply::Json(200, waits)),
        (format!("DELETE {of_pod}"), Reply::Json(200, json!({}))),
    ]))
    .await;
    let (code, problem) = ran(&fake, &["attach", "n1"]).await.problem();
    assert!(code == 2 && problem.contains("ErrImagePull: no such image"), "{problem}");
    assert!(fake.asked.lock().expect("a list").iter().any(|it| it.starts_with("DELETE")));
}

#[tokio::test]
async fn attach_to_a_node_that_does_not_exist_makes_no_pod() {
    let fake = Fake::serve(Replies::new()).await;
    assert_eq!(ran(&fake, &["attach", "n7"]).await.problem(), (2, "node n7 not found".to_owned()));
    assert_eq!(*fake.asked.lock().expect("a list"), ["GET /api/v1/nodes/n7?"]);
}
