//! The commands against a server that speaks the API.

mod fake;
mod scale;

use serde_json::{Value, json};

use super::cli::{self, Parsed};
use super::*;
use fake::{Fake, Replies, Reply};

const PODS: &str = "GET /api/v1/namespaces/tracer/pods";

/// What a command printed, and its exit code or problem.
struct Ran {
    out: String,
    ended: Result<u8, Problem>,
}

impl Ran {
    fn problem(self) -> (u8, String) {
        let problem = self.ended.expect_err("a problem");
        (problem.exit_code(), problem.to_string())
    }
}

async fn ran(fake: &Fake, words: &[&str]) -> Ran {
    ran_as(fake, "{token: secret}", words).await
}

async fn ran_as(fake: &Fake, user: &str, words: &[&str]) -> Ran {
    let kubeconfig = fake.kubeconfig(user);
    let timeout = ["--timeout", fake.patience];
    let access = ["--kubeconfig", kubeconfig.to_str().expect("a path")];
    let args = words.iter().chain(&access).chain(&timeout).map(OsString::from).collect();
    let Parsed::Command(command) = cli::parse(args, 80) else { unreachable!("{words:?}") };
    let mut out = Vec::new();
    let ended = LocalSet::new().run_until(answer(*command, &mut out)).await;
    let _ = std::fs::remove_file(kubeconfig);
    Ran { out: String::from_utf8(out).expect("text"), ended }
}

fn pod(namespace: &str, name: &str, node: &str, ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-01-02T03:00:00Z"},
        "spec": {"nodeName": node, "containers": [{"name": if namespace == "tracer" { "tracer" } else { "web" }}]},
        "status": {"phase": "Running", "startTime": "2026-01-02T03:00:01Z",
            "conditions": [{"type": "Ready", "status": ready}]},
    })
}

/// A server with these pods, and tracer on these nodes with these logs.
fn cluster(pods: &[Value], logs: &[(&str, String)]) -> Replies {
    let mut replies = Replies::new();
    for pod in pods {
        let (namespace, name) = (pod["metadata"]["namespace"].as_str(), pod["metadata"]["name"].as_str());
        let path = format!("GET /api/v1/namespaces/{}/pods/{}", namespace.expect("a namespace"), name.expect("a name"));
        replies.insert(path, Reply::Json(200, pod.clone()));
    }
    let mut daemons = Vec::new();
    for (node, log) in logs {
        let name = format!("tracer-{node}");
        daemons.push(pod("tracer", &name, node, true));
        replies.insert(log_of(node), Reply::Log(log.clone().into()));
    }
    replies.insert(PODS.into(), Reply::Json(200, json!({"items": daemons})));
    replies
}

fn log_of(node: &str) -> String {
    format!("GET /api/v1/namespaces/tracer/pods/tracer-{node}/log")
}

/// The line of a record, with the fields of `more` added.
fn record(kind: &str, seq: u64, node: &str, time: &str, more: Value) -> String {
    let mut record =
        json!({"schema": "tracer/1", "type": kind, "time": time, "time_boot_ns": seq, "seq": seq, "node_name": node});
    let fields = more.as_object().expect("an object").clone();
    record.as_object_mut().expect("an object").extend(fields);
    format!("{record}\n")
}

fn verdict(seq: u64, node: &str, time: &str, pod: &str, cause: &str) -> String {
    let more = json!({
        "subject": "probe", "attempt_id": seq.to_string(), "severity": "error", "scope": "pod",
        "verdict": {"cause": cause, "outcome": "failure", "confidence": "proven",
            "summary": format!("nobody listens on port {seq}."), "remediation": remediation(),
            "evidence": [], "also": [], "lost_events": 0, "missing_hooks": []},
        "k8s": {"namespace": "shop", "pod_name": pod, "pod_uid": format!("uid-{pod}"), "container_name": "web",
            "workload": {"kind": "Deployment", "name": "cart"}},
    });
    record("verdict", seq, node, time, more)
}

fn remediation() -> Value {
    json!({"text": "start the server"})
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
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
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log.concat())])).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    assert_eq!(ran.ended, Ok(0));
    let answer =
        "shop/cart-0 is not ready: nobody listens on port 3 (connection_refused, proven); fix: start the server\n";
    assert!(ran.out.starts_with(answer), "{}", ran.out);
    assert!(
        ran.out.contains("connection_refused  shop/cart-0 web") && !ran.out.contains("firewall_drop"),
        "{}",
        ran.out
    );
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().all(|it| it.starts_with("GET ") && !it.contains("exec")), "{asked:?}");
}

#[tokio::test]
async fn an_old_failure_does_not_explain_unreadiness() {
    let log = verdict(1, "n1", "2026-01-02T03:04:05.000000000Z", "cart-0", "connection_refused");
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await;
    let ran = ran(&fake, &["why", "pod/cart-0", "-o", "pretty"]).await;
    assert!(ran.out.starts_with("shop/cart-0 is not ready; its last probe failure that tracer saw was"), "{}", ran.out);
    assert!(!ran.out.contains("is not ready: "), "{}", ran.out);
}

/// The verdict of a connection of another process, or of a probe of this type.
fn verdict_of(seq: u64, kind: &str) -> String {
    let line = verdict(seq, "n1", &now(), "cart-0", "connection_refused");
    match kind {
        "connection" => line.replace(r#""subject":"probe""#, r#""subject":"connection""#),
        kind => {
            let probe = format!(r#""probe":{{"type":"{kind}","failure_threshold":3}},"subject":"#);
            line.replace(r#""subject":"#, &probe)
        }
    }
}

/// The answer for a pod that is not ready, of verdicts of these kinds; the newest is the last.
async fn answer_of(kinds: &[&str]) -> String {
    let log: String = (1..).zip(kinds).map(|(seq, kind)| verdict_of(seq, kind)).collect();
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await;
    let out = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await.out;
    out.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn only_a_probe_that_decides_readiness_explains_unreadiness() {
    let because = "shop/cart-0 is not ready: nobody listens on port 1 ";
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
        assert!(answer.starts_with("shop/cart-0 is not ready; its liveness probe failed "), "{answer}");
        let restart =
            "UTC), and the kubelet restarts the container after 3 failures in a row: nobody listens on port 1 ";
        assert!(answer.contains(restart) && !answer.contains("is not ready: "), "{answer}");
    }
}

#[tokio::test]
async fn a_failed_connection_is_no_failed_probe() {
    let answer = answer_of(&["connection"]).await;
    assert!(answer.starts_with("shop/cart-0 is not ready; tracer has no failed probe of it from "), "{answer}");
    assert!(answer.contains("; a connection to it failed ") && !answer.contains("is not ready: "), "{answer}");
}

#[tokio::test]
async fn a_verdict_that_was_revised_to_noise_is_no_answer() {
    let noise = verdict(2, "n1", &now(), "cart-0", "slow_response")
        .replace(r#""outcome":"failure""#, r#""outcome":"noise","revises":1"#);
    let noise = noise.replace(r#""subject":"#, r#""revises":1,"subject":"#);
    let log = [verdict(1, "n1", &now(), "cart-0", "connection_refused"), noise].concat();
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", true)], &[("n1", log)])).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    assert!(ran.out.starts_with("shop/cart-0 is ready; tracer has no failure of it"), "{}", ran.out);
}

#[tokio::test]
async fn without_a_verdict_the_findings_of_the_node_are_shown() {
    let log = [finding(1, "n1", "ok"), finding(2, "n1", "fail"), verdict(3, "n1", &now(), "other", "firewall_drop")];
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log.concat())])).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "pretty"]).await;
    assert!(ran.out.starts_with("shop/cart-0 is not ready; tracer has no failure of it"), "{}", ran.out);
    for part in [
        "3 records of tracer/tracer-n1 on n1: 1 verdict of other pods",
        "fail    ip_forward",
        "sysctl -w net.ipv4.ip_forward=1",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
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
    assert!(ran.out.starts_with("shop/cart-b is not ready: ") && !ran.out.contains("cart-a"), "{}", ran.out);
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().any(|it| it.contains("labelSelector=app%3Dcart")), "{asked:?}");
}

#[tokio::test]
async fn json_output_is_the_record_of_the_log() {
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log.clone())])).await;
    let ran = ran(&fake, &["why", "cart-0", "-o", "json"]).await;
    let printed: Value = serde_json::from_str(&ran.out).expect("one record");
    assert_eq!(printed["verdict"], serde_json::from_str::<Value>(&log).expect("a record")["verdict"]);
}

#[tokio::test]
async fn bad_input_is_one_line_and_an_exit_code() {
    let mut waiting = pod("shop", "waits", "", false);
    waiting["status"]["conditions"] =
        json!([{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]);
    let mut replies = cluster(
        &[pod("shop", "cart-0", "n1", false), pod("shop", "far", "n9", false), waiting],
        &[("n1", record("verdict", 1, "n1", &now(), json!({})).replace("tracer/1", "tracer/2"))],
    );
    replies.insert("GET /api/v1/namespaces/shop/pods/late".into(), Reply::Silence);
    let fake = Fake::serve(replies).await;
    for (words, part) in [
        (&["why", "none"][..], "pod shop/none not found"),
        (&["why", "waits"], "shop/waits is not scheduled, so no node probes it: 0/3 nodes are available"),
        (&["why", "far"], "no tracer runs on n9"),
        (
            &["why", "cart-0"],
            "the log of tracer/tracer-n1 on n1 has records of tracer/2, and this plugin reads tracer/1",
        ),
        (&["why", "late"], "no answer within 500 ms"),
        (&["why", "deploy/none"], "deployment shop/none not found"),
        (&["why", "cart-0", "--context", "none"], "kubeconfig"),
    ] {
        let (code, problem) = ran(&fake, words).await.problem();
        assert!(code == 2 && problem.contains(part) && !problem.contains('\n'), "{words:?}: {code} {problem}");
    }
}

fn status(code: u16, message: &str) -> Reply {
    Reply::Json(code, json!({"kind": "Status", "code": code, "message": message}))
}

#[tokio::test]
async fn each_missing_right_is_named() {
    let all = || cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", String::new())]);
    let forbidden = r#"x is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "shop""#;
    for (path, right) in [
        ("GET /api/v1/namespaces/shop/pods/cart-0", "verb `get` on `pods` in namespace `shop`"),
        (PODS, "verb `list` on `pods` in namespace `tracer`"),
        (&log_of("n1"), "verb `get` on `pods/log` in namespace `tracer`"),
    ] {
        let mut replies = all();
        replies.insert(path.into(), status(403, forbidden));
        let (code, problem) = ran(&Fake::serve(replies).await, &["why", "cart-0"]).await.problem();
        assert!(code == 3 && problem.contains(&format!("`jane` needs {right}")), "{path}: {code} {problem}");
    }
    let mut replies = all();
    replies.insert(log_of("n1"), status(403, forbidden));
    let (code, problem) = ran(&Fake::serve(replies).await, &["top"]).await.problem();
    assert!(code == 3 && problem.contains("`pods/log`"), "{code} {problem}");
}

#[tokio::test]
async fn an_expired_token_is_named() {
    let replies = Replies::from([("GET /api/v1/namespaces/shop/pods/cart-0".into(), status(401, "Unauthorized"))]);
    let (code, problem) = ran(&Fake::serve(replies).await, &["why", "cart-0"]).await.problem();
    assert!(code == 2 && problem.contains("refuses the credentials (401)") && !problem.contains("secret"), "{problem}");
}

#[tokio::test]
async fn credential_plugins_sign_in_or_say_why_not() {
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let fake = Fake::serve(cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)])).await;
    let plugin = |script: &str| {
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: ['-c', '{script}']}}}}"
        )
    };
    let credential = r#"echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}""#;
    let signed_in = ran_as(&fake, &plugin(credential), &["why", "cart-0", "-o", "pretty"]).await;
    assert_eq!(signed_in.ended, Ok(0));
    let (code, problem) = ran_as(&fake, &plugin("echo secret; exit 3"), &["why", "cart-0"]).await.problem();
    assert!(code == 2 && problem.contains("the credential plugin sh failed: exit status: 3"), "{problem}");
    assert!(!problem.contains("secret"), "{problem}");
    let absent = "{exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: /no/plugin}}";
    let (code, problem) = ran_as(&fake, absent, &["why", "cart-0"]).await.problem();
    assert!(code == 2 && problem.contains("the credential plugin of the kubeconfig cannot be started: "), "{problem}");
}

#[tokio::test]
async fn a_server_that_is_down_is_named() {
    let fake = Fake { addr: ([127, 0, 0, 1], 1).into(), ..Fake::serve(Replies::new()).await };
    let (code, problem) = ran(&fake, &["why", "cart-0"]).await.problem();
    assert!(code == 2 && problem.contains("does not answer: http://127.0.0.1:1: Connection refused"), "{problem}");
}

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
                + &revised,
        ),
        ("n3", String::new()),
    ];
    let mut replies = cluster(&[], &logs);
    replies.insert(log_of("n3"), Reply::Silence);
    let fake = Fake::serve(replies).await;
    let ran = ran(&fake, &["top", "--since", "15m"]).await;
    assert_eq!(ran.ended, Ok(2), "a node is missing");
    let expected = "\
2 nodes answered; failures of the last 15 min, times in UTC

loopback_down  2 pods on 2 nodes, 2 failures, 03:04:00 to 03:05:00
  first on n2 03:04:00, n1 03:05:00
  culprit  loopback (/opt/cni/bin/loopback), child of crio: link down; the same on 2 nodes since 03:04:00, first n2
  workload Deployment shop/cart (2 pods)
  explain  tracer explain loopback_down

slow_response  1 pod on 1 node, 1 failure, 03:04:10 to 03:04:10
  workload Deployment shop/cart (1 pod)
  explain  tracer explain slow_response
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
async fn of_two_tracers_on_a_node_the_ready_one_is_read() {
    let log = verdict(1, "n1", &now(), "cart-0", "connection_refused");
    let mut replies = cluster(&[pod("shop", "cart-0", "n1", false)], &[("n1", log)]);
    let daemons = json!({"items": [pod("tracer", "other", "n1", false), pod("tracer", "tracer-n1", "n1", true)]});
    replies.insert(PODS.into(), Reply::Json(200, daemons));
    let ran = ran(&Fake::serve(replies).await, &["why", "cart-0", "-o", "pretty"]).await;
    assert!(ran.out.contains("is not ready: "), "{}", ran.out);
}

#[tokio::test]
async fn a_long_list_is_read_in_pages() {
    let mut replies = cluster(&[pod("shop", "cart-0", "n1", false)], &[]);
    let page = json!({"metadata": {"continue": "next page"}, "items": []});
    replies.insert(PODS.into(), Reply::Json(200, page));
    let fake = Fake::serve(replies).await;
    // The fake always gives the same page. Two requests are enough to see the token.
    let _ = tokio::time::timeout(std::time::Duration::from_millis(300), ran(&fake, &["why", "cart-0"])).await;
    let asked = fake.asked.lock().expect("a list").clone();
    assert!(asked.iter().any(|it| it.contains("continue=next%20page") && it.contains("limit=500")), "{asked:?}");
}

#[tokio::test]
async fn the_page_is_made_of_all_logs() {
    let logs = [
        ("n1", "tracer: warning: no record\n".to_owned() + &verdict(1, "n1", &now(), "cart-0", "connection_refused")),
        ("n2", verdict(1, "n2", &now(), "cart-1", "loopback_down")),
    ];
    let fake = Fake::serve(cluster(&[], &logs)).await;
    let file = std::env::temp_dir().join(format!("kubectl-tracer-{}.html", std::process::id()));
    let name = file.to_str().expect("a path");
    let ran = ran(&fake, &["report", "--output-file", name]).await;
    let page = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    assert_eq!(ran.ended, Ok(0));
    for part in ["shop/cart-0", "shop/cart-1", "connection_refused", "loopback_down", "tracer/tracer-n1 on n1"] {
        assert!(page.contains(part), "{part}");
    }
}

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
    assert_eq!((&sent["spec"]["nodeName"], &sent["spec"]["activeDeadlineSeconds"]), (&json!("n1"), &json!(90)));
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
