//! Large logs and many nodes: time and memory are bounded.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

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
async fn a_log_of_ten_megabytes_is_read_in_two_seconds() {
    let log = log("n1", 10 << 20);
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await;
    let begun = Instant::now();
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    let took = begun.elapsed();
    assert!(ran.out.contains("because") && ran.out.lines().count() < 200, "{}", ran.out.lines().count());
    // Tests are not optimised, and machines are busy: the release takes a tenth.
    assert!(took < Duration::from_secs(20), "{took:?}");
    eprintln!("10 MB: {took:?}");
}

#[tokio::test]
async fn two_hundred_nodes_are_counted() {
    const NODES: usize = 200;
    let text = log("n", 128 << 10);
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let logs: Vec<(&str, String)> = names.iter().map(|name| (name.as_str(), text.clone())).collect();
    let fake = Fake::serve(cluster(&[], &logs)).await;
    let begun = Instant::now();
    let ran = ran(&fake, &["top", "-o", "json", "--timeout", "20s"]).await;
    let took = begun.elapsed();
    assert_eq!(ran.ended, Ok(0));
    let page: Value = serde_json::from_str(&ran.out).expect("one object");
    assert_eq!((&page["nodes"]["answered"], &page["causes"][0]["nodes"]), (&json!(NODES), &json!(NODES)));
    eprintln!("{NODES} nodes: {took:?}");
}
