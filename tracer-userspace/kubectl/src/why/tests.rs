use serde_json::{Value, json};

use crate::testing::*;
use tracer_testing::{assert_has, assert_lacks, assert_starts};

/// What is printed about pod `cart-0`, which is not ready, by this log of its node.
async fn why(log: String) -> String {
    why_in(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await
}

/// The same in this cluster.
async fn why_in(replies: Replies) -> String {
    ran(&Fake::serve(replies).await, &["why", "cart-0", "-o", "pretty"]).await.out
}

fn finding(seq: u64, node: &str, status: &str) -> String {
    let more = json!({"check": "ip_forward", "status": status, "observed": "net.ipv4.ip_forward = 0", "expected": "1",
        "why": "pods need it", "remediation": {"text": "Set it", "commands": [{"run": "sysctl -w net.ipv4.ip_forward=1", "where": "node"}]}});
    record("finding", seq, node, &now(), more)
}

#[tokio::test]
async fn the_answer_comes_first_and_then_the_verdicts() {
    let log = [
        "tracer: warning: not a record\n".to_owned(),
        verdict(1, "n1", &now(), "cart-0", "connection_refused"),
        verdict(2, "n1", &now(), "other", "firewall_drop"),
        verdict(3, "n1", &now(), "cart-0", "connection_refused"),
    ];
    let fake = one_unready(log.concat()).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    assert_eq!(ran.ended, Ok(0));
    let answer = "shop/cart-0 on n1 is not ready: nobody listens on port 3 (connection_refused, proven); fix: start the server\n";
    assert_starts(&ran.out, answer);
    assert_has(&ran.out, &["connection_refused  shop/cart-0 web"]);
    assert_lacks(&ran.out, &["firewall_drop"]);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().all(|it| it.starts_with("GET ") && !it.contains("exec")), "{asked:?}");
}

#[tokio::test]
async fn an_old_failure_does_not_explain_unreadiness() {
    let log = verdict(1, "n1", "2026-01-02T03:04:05.000000000Z", "cart-0", "connection_refused");
    let out = ran(&one_unready(log).await, &["why", "pod/cart-0", "-o", "pretty"]).await.out;
    assert_starts(&out, "shop/cart-0 on n1 is not ready; its last probe failure that tracer saw was");
    assert_lacks(&out, &["is not ready: "]);
}

/// The verdict of a connection of another process, or of a probe of this type.
fn verdict_of(seq: u64, kind: &str) -> String {
    let line = verdict(seq, "n1", &now(), "cart-0", "connection_refused");
    match kind {
        "connection" => line.replace(r#""subject":"probe""#, r#""subject":"connection""#),
        kind => {
            let probe =
                format!(r#""probe":{{"type":"{kind}","failure_threshold":3,"consecutive_failures":1}},"subject":"#);
            line.replace(r#""subject":"#, &probe)
        }
    }
}

/// The answer for a pod that is not ready, of verdicts of these kinds; the newest is the last.
async fn answer_of(kinds: &[&str]) -> String {
    let log: String = (1..).zip(kinds).map(|(seq, kind)| verdict_of(seq, kind)).collect();
    why(log).await.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn only_a_probe_that_decides_readiness_explains_unreadiness() {
    let because = "shop/cart-0 on n1 is not ready: nobody listens on port 1 ";
    for kinds in
        [&["readiness"][..], &["startup"], &["readiness", "connection"], &["startup", "liveness", "connection"]]
    {
        let answer = answer_of(kinds).await;
        assert!(answer.starts_with(because), "{kinds:?}: {answer}");
    }
    let answer = answer_of(&[&["readiness"][..], &["connection"; 100]].concat()).await;
    assert!(answer.starts_with(because), "many clients: {answer}");
}

#[tokio::test]
async fn a_failed_liveness_probe_restarts_the_container() {
    for kinds in [&["liveness"][..], &["liveness", "connection"]] {
        let answer = answer_of(kinds).await;
        assert!(answer.starts_with("shop/cart-0 on n1 is not ready; its liveness probe failed "), "{answer}");
        let restart =
            "UTC), and the kubelet restarts the container after 3 failures in a row: nobody listens on port 1 ";
        assert!(answer.contains(restart) && !answer.contains("is not ready: "), "{answer}");
    }
    let mut job = pod("shop", "cart-0", "n1", false);
    job["spec"]["restartPolicy"] = json!("Never");
    let out = why_in(cluster(&[job], &[("n1", verdict_of(1, "liveness"))])).await;
    assert!(out.contains(", and the kubelet ends the container after 3 failures in a row: "), "{out}");
    // The kubelet may ignore a failure that tracer does not count.
    let log = verdict_of(1, "liveness")
        .replace(r#","consecutive_failures":1"#, "")
        .replace("connection_refused", "slow_response");
    let out = why(log).await;
    assert!(out.contains("its liveness probe failed ") && !out.contains("restarts the container"), "{out}");
}

/// A failed probe of one container does not hide that another one does not run.
#[tokio::test]
async fn a_container_that_waits_is_named() {
    let mut pod = pod("shop", "cart-0", "n1", false);
    pod["status"]["containerStatuses"] = json!([
        {"name": "web", "restartCount": 0, "state": {"running": {}}},
        {"name": "mail", "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 3}}},
    ]);
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let out = why_in(cluster(&[pod], &[("n1", log)])).await;
    let state = "shop/cart-0 on n1 is not ready (container mail restarted 4 times; \
                 container mail waits: CrashLoopBackOff, its last run ended with exit code 3): nobody listens";
    assert!(out.starts_with(state), "{out}");
}

#[tokio::test]
async fn a_failed_connection_is_no_failed_probe() {
    let answer = answer_of(&["connection"]).await;
    assert!(answer.starts_with("shop/cart-0 on n1 is not ready; tracer has no failed probe of it since "), "{answer}");
    assert!(answer.contains("; a connection to it failed ") && !answer.contains("is not ready: "), "{answer}");
}

#[tokio::test]
async fn a_verdict_that_was_revised_to_noise_is_no_answer() {
    let noise = verdict(2, "n1", &now(), "cart-0", "slow_response");
    let noise = revising(1, &noise.replace(r#""outcome":"failure""#, r#""outcome":"noise""#));
    let log = [verdict(1, "n1", &now(), "cart-0", "connection_refused"), noise].concat();
    let out = why_in(cluster(&[pod("shop", "cart-0", "n1", true)], &[("n1", log)])).await;
    assert_starts(&out, "shop/cart-0 on n1 is ready; tracer has no failure of it");
}

#[tokio::test]
async fn a_revised_verdict_is_counted_once() {
    let revises = |seq: u64| revising(seq - 1, &verdict(seq, "n1", &now(), "cart-0", "slow_response"));
    let failed = |seq| verdict(seq, "n1", &now(), "cart-0", "unexplained");
    let log = (0..3).flat_map(|n| [failed(2 * n), revises(2 * n + 1)]).collect::<String>();
    let ran = ran(&one_unready(log).await, &["why", "cart-0", "-o", "pretty", "--tail", "1"]).await;
    assert_has(&ran.out, &["3 verdicts since ", ": slow_response (3); the newest 1:"]);
}

#[tokio::test]
async fn without_a_verdict_the_findings_of_the_node_are_shown() {
    let log = [finding(1, "n1", "ok"), finding(2, "n1", "fail"), verdict(3, "n1", &now(), "other", "firewall_drop")];
    let mut replies = cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log.concat())]);
    if let Some(Reply::Json(_, daemons)) = replies.get_mut(PODS) {
        daemons["items"][0]["status"]["containerStatuses"] = json!([{"name": "tracer", "restartCount": 1}]);
    }
    let out = why_in(replies).await;
    assert_starts(&out, "shop/cart-0 on n1 is not ready; tracer has no failure of it");
    assert_has(&out, &["kubectl logs -n tracer tracer-n1 -p has", "fail    ip_forward"]);
    assert_has(
        &out,
        &["sysctl -w net.ipv4.ip_forward=1", "3 records of tracer/tracer-n1 on n1: 1 verdict of other pods"],
    );
}

#[tokio::test]
async fn the_failing_pods_of_a_workload_are_explained() {
    let pods = [pod("shop", "cart-a", "n1", true), pod("shop", "cart-b", "n2", false)];
    let log = verdict(1, "n2", &now(), "cart-b", "connection_refused");
    let mut replies = cluster(&pods, &[("n1", String::new()), ("n2", log)]);
    let deployment = json!({"spec": {"selector": {"matchLabels": {"app": "cart"}}}});
    replies.insert("GET /apis/apps/v1/namespaces/shop/deployments/cart".into(), Reply::Json(200, deployment));
    replies.insert("GET /api/v1/namespaces/shop/pods".into(), Reply::Json(200, json!({"items": pods})));
    let fake = Fake::serve(replies).await;
    let ran = ran(&fake, &["why", "deploy/cart", "-o", "pretty"]).await;
    assert!(ran.out.starts_with("shop/cart-b on n2 is not ready: ") && !ran.out.contains("cart-a"), "{}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().any(|it| it.contains("labelSelector=app%3Dcart")), "{asked:?}");
}

#[tokio::test]
async fn json_output_is_the_record_of_the_log() {
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let fake = one_unready(log.clone()).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "json"]).await;
    let printed: Value = serde_json::from_str(&ran.out).expect("one record");
    assert_eq!(printed["verdict"], serde_json::from_str::<Value>(&log).expect("a record")["verdict"]);
}

#[tokio::test]
async fn of_a_log_of_ten_megabytes_the_newest_verdicts_are_kept() {
    let log = long_log("n1", 10 << 20);
    let newest = log.lines().rfind(|it| it.contains(r#""pod_name":"cart-0""#)).expect("a verdict");
    let newest: Value = serde_json::from_str(newest).expect("a record");
    let out = why(log).await;
    let answer = format!("shop/cart-0 on n1 is not ready: nobody listens on port {} ", newest["seq"]);
    assert!(out.starts_with(&answer) && out.lines().count() < 200, "{answer}: {}", out.lines().count());
}

/// The reader is not on the node, and the commands are for it.
#[tokio::test]
async fn the_answer_names_the_node_and_where_its_commands_run() {
    let of = async |commands: &str| {
        let fix = format!(r#""remediation":{{"commands":[{commands}],"text":"Set lo up."}}"#);
        let log = verdict(1, "n1", &now(), "cart-0", "loopback_down");
        why(log.replace(r#""remediation":{"text":"start the server"}"#, &fix)).await
    };
    let one = r#"{"run":"ip link set lo up","where":"node"}"#;
    let out = of(one).await;
    let answer = "fix: Set lo up; run on the node n1: ip link set lo up";
    assert!(out.lines().next().is_some_and(|line| line.ends_with(answer)), "{out}");
    assert!(out.contains("           run on the node n1:\n             ip link set lo up\n"), "{out}");
    // Several commands are never in one line.
    let out = of(&format!(r#"{one},{{"run":"kubectl get pods","where":"cluster"}}"#)).await;
    let (answer, rows) = out.split_once('\n').expect("lines");
    assert!(answer.ends_with("fix: Set lo up."), "{out}");
    let each = "           run on the node n1:\n             ip link set lo up\n           run in the cluster:\n             kubectl get pods\n";
    assert_starts(&rows, each);
}

#[tokio::test]
async fn a_container_that_the_pod_lacks_is_refused() {
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let (code, problem) = ran(&one_unready(log).await, &["why", "cart-0", "-c", "nope"]).await.problem();
    assert_eq!((code, problem.as_str()), (2, "shop/cart-0 has no container nope; it has: web"));
}

#[tokio::test]
async fn verdicts_of_the_other_containers_are_not_those_of_other_pods() {
    let mut two = pod("shop", "cart-0", "n1", false);
    two["spec"]["containers"] = json!([{"name": "web"}]);
    two["spec"]["initContainers"] = json!([{"name": "proxy"}]);
    let log: String = (1..=12).map(|seq| verdict(seq, "n1", &now(), "cart-0", "connection_refused")).collect();
    let fake = Fake::serve(cluster(&[two], &[("n1", log)])).await;
    let out = ran(&fake, &["why", "cart-0", "-c", "proxy", "-o", "pretty"]).await.out;
    let answer = "shop/cart-0 on n1 is not ready; tracer has no failure of container proxy since ";
    assert!(out.starts_with(answer), "{out}");
    assert_has(&out, &["; 12 verdicts of the pod are not of this container\n"]);
    assert_has(&out, &[": 0 verdicts of other pods and connections\n"]);
}

#[tokio::test]
async fn a_log_without_a_record_is_no_good_news() {
    let out = why("tracer: warning: x\n".into()).await;
    assert!(out.contains("nothing is known of the node"), "{out}");
    assert!(!out.contains("nothing that is wrong") && !out.contains("found on"), "{out}");
}

#[tokio::test]
async fn verdicts_of_several_days_have_their_dates() {
    let log = [
        verdict(1, "n1", "2026-01-02T23:59:59.000000000Z", "cart-0", "connection_refused"),
        verdict(2, "n1", "2026-01-02T23:59:59.500000000Z", "cart-0", "loopback_down"),
        verdict(3, "n1", "2026-01-03T00:00:01.000000000Z", "cart-0", "connection_refused"),
    ];
    let out = why(log.concat()).await;
    let days: Vec<_> = out.lines().filter(|line| line.ends_with(" UTC") && line.starts_with("2026-")).collect();
    assert_eq!(days, ["2026-01-02 UTC", "2026-01-03 UTC"], "{out}");
}
