use serde_json::{Value, json};

use crate::testing::*;

/// One record stands for five verdicts, and one of them is revised.
#[tokio::test]
async fn a_record_counts_for_the_verdicts_that_it_stands_for() {
    let repeated = format!(r#""repeated":{{"count":5,"first_time":"{0}","last_time":"{0}"}},"subject":"#, now());
    let held = verdict(1, "n1", &now(), "cart-0", "connection_refused").replace(r#""subject":"#, &repeated);
    let revision = verdict(2, "n1", &now(), "cart-0", "loopback_down");
    let revision = revision.replace(r#""subject":"#, r#""revises":1,"subject":"#);
    let fake = Fake::serve(cluster(&[], &[("n1", [held, revision].concat())])).await;
    let ran = ran(&fake, &["top"]).await;
    assert!(ran.out.contains("connection_refused  1 pod on 1 node, 4 failures, "), "{}", ran.out);
    assert!(ran.out.contains("loopback_down  1 pod on 1 node, 1 failure, "), "{}", ran.out);
}

#[tokio::test]
async fn top_counts_pods_nodes_culprits_and_workloads() {
    let culprit = r#""culprit":{"pid":7,"comm":"loopback","exe":"/opt/cni/bin/loopback","ancestors":[{"pid":1,"comm":"crio"}],"op":"link_down"},"k8s""#;
    let down =
        |node: &str, time: &str, pod: &str| verdict(1, node, time, pod, "loopback_down").replace(r#""k8s""#, culprit);
    let revised = verdict(3, "n2", "2026-01-02T03:04:10Z", "c", "slow_response")
        .replace(r#""subject":"#, r#""revises":2,"subject":"#);
    let logs = [
        ("n1", down("n1", "2026-01-02T03:05:00Z", "a")),
        (
            "n2",
            down("n2", "2026-01-02T03:04:00Z", "b")
                + &verdict(2, "n2", "2026-01-02T03:04:09Z", "c", "unexplained")
                + &revised
                + &verdict(4, "n2", "2026-01-02T03:04:12Z", "etcd", "slow_response")
                    .replace(r#","workload":{"kind":"Deployment","name":"cart"}"#, ""),
        ),
        ("n3", String::new()),
    ];
    let mut replies = cluster(&[], &logs);
    replies.insert(log_of("n3"), Reply::Silence);
    let fake = Fake::serve(replies).await;
    let ran = ran(&fake, &["top", "--since", "15m"]).await;
    assert_eq!(ran.ended, Ok(2), "a node is missing");
    let expected = "\
2 of 3 nodes answered; failures of the last 15 min, times in UTC

loopback_down  2 pods on 2 nodes, 2 failures, 2026-01-02 03:04:00 to 2026-01-02 03:05:00
  first on n2 2026-01-02 03:04:00, n1 2026-01-02 03:05:00
  culprit  loopback (/opt/cni/bin/loopback), child of crio: link down; the same on 2 nodes since 2026-01-02 03:04:00, first n2
  workload Deployment shop/cart (2 pods)
  explain  kubectl tracer explain loopback_down

slow_response  2 pods on 1 node, 2 failures, 2026-01-02 03:04:10 to 2026-01-02 03:04:12
  workload Deployment shop/cart (1 pod), Pod shop/etcd (1 pod)
  explain  kubectl tracer explain slow_response
";
    assert_eq!(ran.out, expected);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(
        asked.iter().any(|it| it.contains("/log?") && it.contains("sinceSeconds=900") && it.contains("limitBytes=")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn top_for_scripts_names_what_is_missing() {
    let mut replies =
        cluster(&[], &[("n1", verdict(1, "n1", "2026-01-02T03:05:00Z", "a", "loopback_down")), ("n2", String::new())]);
    replies.insert(log_of("n2"), status(502, "dial tcp: connection refused"));
    let ran = ran(&Fake::serve(replies).await, &["top", "-o", "json", "n1", "n2", "n7"]).await;
    assert_eq!(ran.ended, Ok(2));
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!(page["causes"][0]["cause"], "loopback_down");
    assert_eq!(
        page["causes"][0]["workloads"][0],
        json!({"namespace": "shop", "kind": "Deployment", "name": "cart", "pods": 1})
    );
    let without: Vec<_> =
        page["nodes"]["without_answer"].as_array().expect("a list").iter().map(|it| it["node_name"].clone()).collect();
    assert_eq!(without, ["n2", "n7"]);
}

#[tokio::test]
async fn a_clock_that_differs_and_a_log_that_is_cut_are_named() {
    let future = (jiff::Timestamp::now() + jiff::SignedDuration::from_mins(5)).to_string();
    let logs = [("n1", verdict(1, "n1", &future, "a", "loopback_down")), ("n2", "x".repeat(5000))];
    let ran = ran(&Fake::serve(cluster(&[], &logs)).await, &["top", "-o", "json", "--limit-bytes", "4KiB"]).await;
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!(page["nodes"]["log_cut"], json!(["n2"]));
    let clock = &page["nodes"]["clock_differs"][0];
    assert!(
        clock["node_name"] == "n1" && clock["ahead_at_least_s"].as_i64().is_some_and(|s| (290..=300).contains(&s)),
        "{page}"
    );
}

#[tokio::test]
async fn two_hundred_nodes_are_counted() {
    const NODES: usize = 200;
    let text = long_log("n", 128 << 10);
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let logs: Vec<(&str, String)> = names.iter().map(|name| (name.as_str(), text.clone())).collect();
    let fake = Fake::serve(cluster(&[], &logs)).await;
    let ran = ran(&fake, &["top", "-o", "json"]).await;
    assert_eq!(ran.ended, Ok(0));
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!((&page["nodes"]["answered"], &page["causes"][0]["nodes"]), (&json!(NODES), &json!(NODES)));
}

/// Zero records are no all-clear.
#[tokio::test]
async fn logs_without_a_record_are_named() {
    let fake = Fake::serve(cluster(&[], &[("n1", "tracer: warning: x\n".into()), ("n2", String::new())])).await;
    let ran_json = ran(&fake, &["top", "-o", "json"]).await;
    assert_eq!(ran_json.ended, Ok(0));
    let page: Value = serde_json::from_str(&ran_json.out).expect("one object");
    assert_eq!(page["nodes"]["without_records"], json!(["n1", "n2"]));
    let out = ran(&fake, &["top"]).await.out;
    assert!(out.contains("no record in these logs") && !out.contains("no failure"), "{out}");

    let other =
        verdict(1, "n1", &now(), "a", "tcp_probe_noise").replace(r#""outcome":"failure""#, r#""outcome":"noise""#);
    let fake = Fake::serve(cluster(&[], &[("n1", other), ("n2", String::new())])).await;
    let ran_some = ran(&fake, &["top"]).await;
    assert_eq!(ran_some.ended, Ok(0));
    assert!(ran_some.out.contains("no failure on 1 node, and no record of 1 other node\n"), "{}", ran_some.out);

    // A line that begins like a record may be a failure.
    let fake = Fake::serve(cluster(&[], &[("n1", "{\"schema\":\n".into())])).await;
    assert_eq!(ran(&fake, &["top"]).await.ended, Ok(2));
}

#[tokio::test]
async fn a_node_where_tracer_is_not_ready_is_named() {
    let mut replies = cluster(&[], &[("n1", verdict(1, "n1", &now(), "a", "loopback_down"))]);
    replies.insert(PODS.into(), Reply::Json(200, json!({"items": [pod("tracer", "tracer-n1", "n1", false)]})));
    let ran = ran(&Fake::serve(replies).await, &["top", "-o", "json"]).await;
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!((ran.ended, &page["nodes"]["not_ready"]), (Ok(0), &json!(["n1"])));
}
