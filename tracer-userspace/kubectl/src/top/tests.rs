use serde_json::{Value, json};

use crate::problem::Problem;
use crate::testing::*;
use tracer_testing::assert_has;

/// What `top` prints for scripts about this cluster, and how it ends.
async fn page(replies: Replies, words: &[&str]) -> (Result<u8, Problem>, Value) {
    let ran = ran(&Fake::serve(replies).await, &[&["top", "-o", "json"], words].concat()).await;
    (ran.ended, serde_json::from_str(&ran.out).expect("one object"))
}

/// One record stands for five verdicts, and one of them is revised.
#[tokio::test]
async fn a_record_counts_for_the_verdicts_that_it_stands_for() {
    let repeated = format!(r#""repeated":{{"count":5,"first_time":"{0}","last_time":"{0}"}},"subject":"#, now());
    let held = verdict(1, "n1", &now(), "cart-0", "connection_refused").replace(r#""subject":"#, &repeated);
    let revision = revising(1, &verdict(2, "n1", &now(), "cart-0", "loopback_down"));
    let fake = Fake::serve(cluster(&[], &[("n1", [held, revision].concat())])).await;
    let ran = ran(&fake, &["top", "-o", "pretty"]).await;
    assert!(ran.out.contains("connection_refused  1 pod on 1 node, 4 failures, "), "{}", ran.out);
    assert!(ran.out.contains("loopback_down  1 pod on 1 node, 1 failure, "), "{}", ran.out);
}

#[tokio::test]
async fn top_counts_pods_nodes_culprits_and_workloads() {
    let culprit = r#""culprit":{"pid":7,"comm":"loopback","exe":"/opt/cni/bin/loopback","ancestors":[{"pid":1,"comm":"crio"}],"op":"link_down"},"k8s""#;
    let down =
        |node: &str, time: &str, pod: &str| verdict(1, node, time, pod, "loopback_down").replace(r#""k8s""#, culprit);
    let revised = revising(2, &verdict(3, "n2", "2026-01-02T03:04:10Z", "c", "slow_response"));
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
    let ran = ran(&fake, &["top", "--since", "15m", "-o", "pretty"]).await;
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
    let log = asked.iter().find(|it| it.contains("/log?")).expect("a log");
    assert_has(log, &["sinceSeconds=900", "limitBytes="]);
}

#[tokio::test]
async fn top_for_scripts_names_what_is_missing() {
    let mut replies =
        cluster(&[], &[("n1", verdict(1, "n1", "2026-01-02T03:05:00Z", "a", "loopback_down")), ("n2", String::new())]);
    replies.insert(log_of("n2"), status(502, "dial tcp: connection refused"));
    let (ended, page) = page(replies, &["n1", "n2", "n7"]).await;
    assert_eq!(ended, Ok(2));
    assert_eq!(page["causes"][0]["cause"], "loopback_down");
    let workload = json!({"namespace": "shop", "kind": "Deployment", "name": "cart", "pods": 1});
    assert_eq!(page["causes"][0]["workloads"][0], workload);
    let without = page["nodes"]["without_answer"].as_array().expect("a list").iter().map(|it| &it["node_name"]);
    assert_eq!(without.collect::<Vec<_>>(), ["n2", "n7"]);
}

#[tokio::test]
async fn a_clock_that_differs_and_a_log_that_is_cut_are_named() {
    let future = (jiff::Timestamp::now() + jiff::SignedDuration::from_mins(5)).to_string();
    let logs = [("n1", verdict(1, "n1", &future, "a", "loopback_down")), ("n2", "x".repeat(5000))];
    let (_, page) = page(cluster(&[], &logs), &["--limit-bytes", "4KiB"]).await;
    assert_eq!(page["nodes"]["log_cut"], json!(["n2"]));
    let clock = &page["nodes"]["clock_differs"][0];
    let ahead = clock["ahead_at_least_s"].as_i64().expect("seconds");
    assert!(clock["node_name"] == "n1" && (290..=300).contains(&ahead), "{page}");
}

#[tokio::test]
async fn two_hundred_nodes_are_counted() {
    const NODES: usize = 200;
    let text = long_log("n", 128 << 10);
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let logs: Vec<(&str, String)> = names.iter().map(|name| (name.as_str(), text.clone())).collect();
    let (ended, page) = page(cluster(&[], &logs), &[]).await;
    assert_eq!(ended, Ok(0));
    assert_eq!((&page["nodes"]["answered"], &page["causes"][0]["nodes"]), (&json!(NODES), &json!(NODES)));
}

/// Zero records are no all-clear.
#[tokio::test]
async fn logs_without_a_record_are_named() {
    let replies = cluster(&[], &[("n1", "tracer: warning: x\n".into()), ("n2", String::new())]);
    let (ended, page) = page(replies.clone(), &[]).await;
    assert_eq!((ended, &page["nodes"]["without_records"]), (Ok(0), &json!(["n1", "n2"])));
    let out = ran(&Fake::serve(replies).await, &["top", "-o", "pretty"]).await.out;
    assert!(out.contains("no record in these logs") && !out.contains("no failure"), "{out}");

    let other =
        verdict(1, "n1", &now(), "a", "tcp_probe_noise").replace(r#""outcome":"failure""#, r#""outcome":"noise""#);
    let fake = Fake::serve(cluster(&[], &[("n1", other), ("n2", String::new())])).await;
    let ran_some = ran(&fake, &["top", "-o", "pretty"]).await;
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
    let (ended, page) = page(replies, &[]).await;
    assert_eq!((ended, &page["nodes"]["not_ready"]), (Ok(0), &json!(["n1"])));
}
