//! The poller against a kubelet on loopback, over HTTPS: what it asks, whom it trusts, what it makes of trouble.

mod rig;

use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::timeout;

use self::rig::{Rig, certificate, kubeconfig, speaks};
use super::*;
use crate::testing::Log;
use crate::testing::Scratch;
use crate::testing::fake::{Fake, GUARD};

const COUNTS: &str = include_str!("../../../testdata/kubelet-metrics-probes.txt");
const PODS: &str = include_str!("../../../testdata/kubelet-pods.json");

#[tokio::test]
async fn what_a_kubelet_answers_is_read() {
    let run = async {
        let mut rig = Rig::start(true, None, true).await;
        let asked = rig.asked("/metrics/probes").await;
        assert_eq!((asked.method.as_str(), asked.authorization.as_deref()), ("GET", Some("Bearer secret")));
        asked.answer("200 OK", COUNTS).await;
        assert!(rig.fact().await.failed.is_empty(), "the count begins");
        rig.answer("/pods", "200 OK", PODS).await;
        rig.until_pods(3).await;
        let names: Vec<_> = rig.api.pods().into_iter().flatten().filter_map(|pod| pod.name).collect();
        assert_eq!(names, ["web-rig-node", "target-rig-node", "hostnet-rig-node"]);
        let more = COUNTS.replace("result=\"failed\"} 2\n", "result=\"failed\"} 4\n");
        rig.asked_for_counts().await.answer("200 OK", &more).await;
        let counts = rig.fact().await;
        assert!(counts.from_boot_ns < counts.to_boot_ns);
        assert_eq!((counts.failed[0].container.as_str(), counts.failed[0].failures), ("exec", 2));
        rig.asked("/pods").await;
        let (states, port) = (rig.states(), rig.fake.addr.port());
        assert!(
            states.contains(&format!("counts of failed probes (kubelet API https://127.0.0.1:{port})")),
            "{states}"
        );
        assert!(states.contains("pods and probes (kubelet API"), "{states}");
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn a_stranger_is_shown_no_token() {
    let run = async {
        let log = Log::new();
        let mut rig = Rig::start(false, None, false).await;
        let view = &mut rig.api.view.clone();
        let failing = async {
            while !rig.api.sources().join("").contains("is not trusted, and nothing was sent") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = rig.fake.next() => panic!("it was asked"),
            told = timeout(GUARD, failing) => told.expect("in time"),
        }
        assert!(!view.has_changed().expect("the poller"), "no news of pods");
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        for words in [
            "WARN",
            "--kubelet-ca FILE",
            "no kubelet that runs as root in this network namespace",
            "ca (without a certificate)",
        ] {
            assert!(lines[0].contains(words), "{words}: {lines:#?}");
        }
        // Whoever runs it has named the certificate.
        rig.trust(&rig.own);
        rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        rig.fact().await;
        rig.asked("/metrics/probes").await;
        assert!(log.lines().iter().any(|line| line.contains("answers again")));
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn an_outage_is_told_once_and_its_end_once() {
    let run = async {
        let log = Log::new();
        let mut rig = Rig::start(true, None, true).await;
        rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        rig.fact().await;
        rig.answer("/pods", "200 OK", PODS).await;
        rig.until_pods(3).await;
        let addr = rig.fake.addr;
        // Its port is closed: whoever asks is refused.
        rig.fake = Fake::new().await;
        while rig.states().matches("unreachable: ").count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(rig.api.pods().map(|pods| pods.len()), Some(3), "what was known stays");
        // It comes back with another certificate.
        let new = certificate();
        rig.trust(&new);
        rig.fake = Fake::at(addr).await;
        rig.fake.tls = speaks(&new);
        let more = COUNTS.replace("result=\"failed\"} 2\n", "result=\"failed\"} 3\n");
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 2 || rig.states().contains("unreachable") {
            let asked = rig.fake.next().await;
            let body = if asked.path == "/pods" { PODS } else { &more };
            seen.insert(asked.path.clone());
            asked.answer("200 OK", body).await;
        }
        assert_eq!(rig.fact().await.failed[0].failures, 1, "since it was last read");
        let lines = log.lines();
        let of = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
        assert_eq!((of("WARN"), of("INFO")), (1, 2), "{lines:#?}");
        assert!(lines[0].contains("WARN") && lines[0].contains(" unreachable: "), "{lines:#?}");
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn what_is_refused_is_named_and_the_rest_goes_on() {
    let run = async {
        let log = Log::new();
        let mut rig = Rig::start(true, None, true).await;
        let mut answers = 0;
        while answers < 3 {
            let asked = rig.fake.next().await;
            if asked.path == "/pods" {
                asked.answer("403 Forbidden", "Forbidden (user=u, verb=get, resource=nodes, subresource=pods)").await;
                answers += 1;
            } else {
                asked.answer("200 OK", COUNTS).await;
            }
        }
        assert!(rig.fact().await.failed.is_empty());
        let states = rig.states();
        assert!(states.contains("counts of failed probes"), "{states}");
        assert!(states.contains("/pods does not permit it (403): grant verb `get`"), "the start record: {states}");
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("grant verb `get` on resource `nodes/pods`"), "{lines:#?}");
        assert!(lines[0].contains("before 1.33") && lines[0].contains("not to be granted"), "{lines:#?}");
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn every_refusal_and_all_nonsense_is_waited_out() {
    let run = async {
        let log = Log::new();
        let mut rig = Rig::start(false, None, true).await;
        rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        rig.fact().await;
        let answers = [
            ("401 Unauthorized", "Unauthorized", "refuses the credentials (401)"),
            ("404 Not Found", "404 page not found", "does not know nodes/metrics (404)"),
            ("500 Internal Server Error", "boom", "answers 500: boom"),
            ("302 Found\r\nLocation: https://example.invalid/", "", "answers 302"),
            ("200 OK", "<html>hello</html>", "cannot be read: not a line of metrics: <html>"),
            ("200 OK", "prober_probe_total{broken", "cannot be read"),
            ("403 Forbidden", "", "grant verb `get` on resource `nodes/metrics`"),
        ];
        for (status, body, words) in answers {
            rig.answer("/metrics/probes", status, body).await;
            // The next question comes after the answer was judged.
            let next = rig.asked("/metrics/probes").await;
            assert!(rig.states().contains(words), "{words}: {}", rig.states());
            next.answer("500 Internal Server Error", "again").await;
        }
        let mut cut = rig.asked("/metrics/probes").await.stream().await;
        cut.send("prober_probe_total{container=").await;
        drop(cut);
        let next = rig.asked("/metrics/probes").await;
        assert!(rig.states().contains("stopped before the end"), "{}", rig.states());
        next.answer("200 OK", COUNTS).await;
        rig.asked("/metrics/probes").await;
        assert!(rig.states().contains("counts of failed probes"), "{}", rig.states());
        let lines = log.lines();
        assert!(lines.iter().all(|line| line.len() < 500), "{lines:#?}");
        assert!(rig.facts.try_recv().is_err(), "nothing was counted that did not fail");
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn the_kubelet_is_left_alone_as_long_as_it_asks() {
    let run = async {
        let mut rig = Rig::start(false, None, true).await;
        let asked = rig.asked("/metrics/probes").await;
        let at = asked.at;
        asked.answer("429 Too Many Requests\r\nRetry-After: 1", "").await;
        let again = rig.asked("/metrics/probes").await.at - at;
        assert!(again >= Duration::from_secs(1), "{again:?}");
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn pods_are_asked_for_only_while_the_cluster_does_not_list_them() {
    let run = async {
        let (told, cluster) = Cluster::fixed("n1");
        let mut rig = Rig::start(true, Some(cluster), true).await;
        rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        rig.answer("/pods", "200 OK", PODS).await;
        rig.until_pods(3).await;
        told.send_modify(super::super::cluster::View::follow_pods);
        let gone = |view: &View| view.pods.is_none();
        let mut view = rig.api.view.clone();
        let serve = async {
            loop {
                let asked = rig.fake.next().await;
                let body = if asked.path == "/pods" { PODS } else { COUNTS };
                asked.answer("200 OK", body).await;
            }
        };
        tokio::select! {
            () = serve => {}
            gone = timeout(GUARD, view.wait_for(gone)) => { gone.expect("in time").expect("the poller"); }
        }
        for _ in 0..3 {
            rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        }
    };
    LocalSet::new().run_until(run).await;
}

#[tokio::test]
async fn a_list_of_five_thousand_pods_is_read_and_no_other_takes_its_place() {
    let run = async {
        let pod = |n: u32| {
            let filler = "x".repeat(2000);
            format!(
                r#"{{"metadata":{{"name":"p{n}","namespace":"shop","uid":"u{n}","annotations":{{"a":"{filler}"}}}},"spec":{{"containers":[]}}}}"#
            )
        };
        let items: Vec<String> = (0..5_000).map(pod).collect();
        let list = format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{}]}}"#, items.join(","));
        let mut rig = Rig::start(true, None, true).await;
        rig.answer("/metrics/probes", "200 OK", COUNTS).await;
        rig.answer("/pods", "200 OK", &list).await;
        rig.until_pods(5_000).await;
        for wrong in [r#"{"kind":"Status","items":[]}"#, &list[..list.len() - 40], "[]", "hello"] {
            rig.until_asked_for_pods(wrong).await;
        }
        rig.until_asked_for_pods(PODS).await;
        rig.until_pods(3).await;
    };
    LocalSet::new().run_until(run).await;
}

/// On the thread that a run has.
#[test]
fn a_kubelet_that_is_not_there_holds_nothing_up() {
    let files = Scratch::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("loopback").port();
    let config = KubeletApiConfig {
        endpoint: Endpoint { host: "127.0.0.1".into(), port },
        ca: None,
        access: Some(Access::Kubeconfig(kubeconfig(&files))),
        node_name: "n1".into(),
        probers: vec!["no-such-kubelet".into()],
        pods: true,
    };
    let (tx, mut facts) = mpsc::channel(1);
    let api = KubeletApi::start(config, None, tx).expect("a thread");
    let sources = api.sources();
    assert!(sources.iter().all(|it| it.contains("unreachable: ") && it.contains("refused")), "{sources:?}");
    assert_eq!((sources.len(), api.pods()), (2, None));
    assert!(facts.try_recv().is_err());
}

#[test]
fn the_kubelet_is_named_by_a_url() {
    let of = |text: &str| text.parse::<Endpoint>().map(|it| it.authority());
    assert_eq!(of("auto").as_deref(), Ok("127.0.0.1:10250"));
    assert_eq!(of("https://[fd00::1]").as_deref(), Ok("[fd00::1]:10250"));
    assert_eq!(of("https://node-1:443/").as_deref(), Ok("node-1:443"));
    assert!(of("http://127.0.0.1:10255").is_err());
}
