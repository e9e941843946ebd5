//! 5,000 pods in one list: far more than a node holds.

use std::time::Instant;

use super::*;

const PODS: usize = 5_000;

/// Memory of this process in KiB, now.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
}

/// A pod as the API has it: the real one of a kubelet, with 4 KiB of what nobody reads.
fn large_pod(index: usize) -> String {
    let sample: serde_json::Value =
        serde_json::from_str(include_str!("../../../../testdata/kubelet-pods.json")).expect("JSON");
    let mut pod = sample["items"][0].clone();
    pod["metadata"]["name"] = format!("p{index:05}").into();
    pod["metadata"]["uid"] = format!("u{index:05}").into();
    pod["metadata"]["managedFields"] = serde_json::json!([{ "fieldsV1": "x".repeat(4096) }]);
    pod["spec"]["nodeName"] = NODE.into();
    pod.to_string()
}

#[tokio::test]
async fn five_thousand_pods_are_read_one_at_a_time() {
    let run = async {
        let mut api = Fake::new().await;
        let mut followed = Followed::pods(api.addr);
        api.next().await.answer("422 Unprocessable Entity", "{}").await;
        let mut stream = api.next().await.stream().await;
        let pod = large_pod(0);
        let before = resident_kib();
        let began = Instant::now();
        stream.send(r#"{"kind":"PodList","metadata":{"resourceVersion":"9"},"items":["#).await;
        for index in 0..PODS {
            let number = format!("{index:05}");
            let comma = if index > 0 { "," } else { "" };
            stream
                .send(&format!(
                    "{comma}{}",
                    pod.replace("p00000", &format!("p{number}")).replace("u00000", &format!("u{number}"))
                ))
                .await;
        }
        stream.send("]}").await;
        stream.end().await;
        let view = followed.until("all", |view| view.pods.len() == PODS).await;
        let grown = resident_kib().saturating_sub(before);
        let sent = pod.len() * PODS / 1024;
        println!("{PODS} pods, {sent} KiB of JSON: {:?}, memory grew by {grown} KiB", began.elapsed());
        assert_eq!(view.pods[PODS - 1].name.as_deref(), Some("p04999"));
        assert!(!view.pods[17].containers[0].probes.is_empty());
        // The bound is tested in `frames`: other tests of this process use memory, too.
    };
    LocalSet::new().run_until(run).await;
}
