//! Large logs and many nodes: the answer is right, and what is kept and printed is bounded.

use std::fmt::Write as _;

use super::*;

/// A log of this many bytes: verdicts of many pods, one in a hundred of `cart-0`.
fn log(node: &str, bytes: usize) -> String {
    let (mut text, mut seq) = (String::with_capacity(bytes + 2048), 0);
    while text.len() < bytes {
        let pod = if seq % 100 == 0 { "cart-0".to_owned() } else { format!("pod-{}", seq % 97) };
        let _ = write!(text, "{}", verdict(seq, node, &now(), &pod, "connection_refused"));
        seq += 1;
    }
    text
}

#[tokio::test]
async fn of_a_log_of_ten_megabytes_the_newest_verdicts_are_kept() {
    let log = log("n1", 10 << 20);
    let newest = log.lines().rfind(|it| it.contains(r#""pod_name":"cart-0""#)).expect("a verdict");
    let newest: Value = serde_json::from_str(newest).expect("a record");
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    let answer = format!("shop/cart-0 is not ready: nobody listens on port {} ", newest["seq"]);
    assert!(ran.out.starts_with(&answer) && ran.out.lines().count() < 200, "{answer}: {}", ran.out.lines().count());
}

#[tokio::test]
async fn two_hundred_nodes_are_counted() {
    const NODES: usize = 200;
    let text = log("n", 128 << 10);
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let logs: Vec<(&str, String)> = names.iter().map(|name| (name.as_str(), text.clone())).collect();
    let fake = Fake::serve(cluster(&[], &logs)).await;
    let ran = ran(&fake, &["top", "-o", "json"]).await;
    assert_eq!(ran.ended, Ok(0));
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!((&page["nodes"]["answered"], &page["causes"][0]["nodes"]), (&json!(NODES), &json!(NODES)));
}
