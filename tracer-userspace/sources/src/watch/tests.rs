//! Tests of the watcher: what is reported when.

use tokio::sync::mpsc;

use super::*;
use crate::snapshot;
use crate::testing::TestFile;

/// A watcher of this node, and what it sends.
fn watcher(config: SourceConfig) -> (Watcher, mpsc::Receiver<ObservationKind>) {
    let snapshot = snapshot(&config).expect("snapshot");
    let (tx, rx) = mpsc::channel(16);
    (Watcher::new(config, snapshot, Flushes::default(), tx), rx)
}

#[test]
fn the_clusters_pods_are_not_reported_before_the_node_was_read() {
    let (reported, cluster) = Cluster::fixed();
    let (mut watcher, mut rx) = watcher(SourceConfig { cluster: Some(cluster), ..SourceConfig::default() });
    let pod = |name: &str| Pod { name: Some(name.into()), uid: Some(name.into()), ..Pod::default() };
    reported.send_modify(|view| view.pods = vec![pod("a")]);
    assert!(watcher.read_cluster().is_ok());
    assert!(rx.try_recv().is_err(), "reported without the namespaces of the node");

    watcher.node_due = Instant::now() + NODE_EVERY;
    watcher.discovered = vec![Pod { netns: Some(tracer_model::event::Netns(7)), ..pod("b") }];
    reported.send_modify(|view| view.pods = vec![pod("a"), pod("b")]);
    assert!(watcher.read_cluster().is_ok());
    let Ok(ObservationKind::Pods(list)) = rx.try_recv() else { panic!("nothing was reported") };
    let namespaces: Vec<_> = list.pods.iter().map(|pod| pod.netns.map(|netns| netns.0)).collect();
    assert_eq!(namespaces, [None, Some(7)]);
}

/// The kernel reported that a link went down. Only a reading, which equals the one before, shows that it is up again.
#[test]
fn links_are_reported_after_one_went_down_even_if_they_are_as_before() {
    let (mut watcher, mut rx) = watcher(SourceConfig::default());
    let mut reported =
        || std::iter::from_fn(|| rx.try_recv().ok()).filter(|kind| matches!(kind, ObservationKind::Links(_))).count();
    assert!(watcher.read_node().is_ok());
    assert_eq!(reported(), 1, "they may have changed before the subscription");
    assert!(watcher.read_node().is_ok());
    assert_eq!(reported(), 0, "nothing changed");
    assert!(watcher.read_links().is_ok());
    assert_eq!(reported(), 0, "an address came, and went");
    watcher.sent.forget_links();
    assert!(watcher.read_links().is_ok() && watcher.read_links().is_ok());
    assert_eq!(reported(), 1, "a link went down");
    watcher.links = None;
    assert!(watcher.read_node().is_ok());
    assert_eq!(reported(), 1, "without a subscription, each reading is reported");
}

/// Its previous contents stay known. It is reported as broken, and as readable again.
#[test]
fn a_file_that_is_gone_or_broken_is_reported() {
    const LIST: &str = r#"{"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"shop","uid":"u"}}]}"#;
    let file = TestFile::new("watched-pods", LIST);
    let (mut watcher, mut rx) = watcher(SourceConfig { pods: Some(file.path.clone()), ..SourceConfig::default() });
    let mut after = |change: &dyn Fn()| {
        change();
        assert!(watcher.read_files().is_ok());
        let reported = std::iter::from_fn(|| rx.try_recv().ok()).find_map(|kind| match kind {
            ObservationKind::ListTrouble(trouble) => Some((trouble.list, trouble.problem)),
            _ => None,
        });
        assert_eq!(watcher.listed.pods.len(), 1, "the pod stays known");
        reported
    };
    let write = |text: &str| std::fs::write(&file.path, text).expect("written");
    assert_eq!(after(&|| {}), None);
    let (list, problem) = after(&|| write("{\n")).expect("reported");
    let problem = problem.expect("a problem");
    assert!(list == ListFile::Pods && problem.ends_with("; tracer keeps the pods read before"), "{problem}");
    let gone = after(&|| std::fs::remove_file(&file.path).expect("removed")).expect("reported").1;
    assert!(gone.is_some_and(|problem| problem.contains("cannot be read: No such file")));
    assert_eq!(after(&|| write(LIST)), Some((ListFile::Pods, None)), "it can be read again");
    assert_eq!(after(&|| {}), None);
}

#[test]
fn changed_services_make_tracer_read_the_node_at_its_pace() {
    let file = TestFile::new("paced-services", r#"{"kind":"ServiceList","items":[]}"#);
    let (mut watcher, _rx) = watcher(SourceConfig { services: Some(file.path.clone()), ..SourceConfig::default() });
    // After a slow reading the next one may come in five seconds, and is due in ten.
    let now = Instant::now();
    watcher.pace.read(now, Duration::from_secs(1));
    watcher.node_due = now + NODE_EVERY;
    std::fs::write(&file.path, r#"{"kind":"ServiceList", "items":[]}"#).expect("written");
    assert!(watcher.read_files().is_ok());
    assert_eq!(watcher.node_due, watcher.pace.next);
}
