//! Tests of the watcher: what is told when.
#![expect(clippy::disallowed_methods, reason = "the watcher is driven by the clock")]

use tokio::sync::mpsc;

use super::*;
use crate::sources::snapshot;

#[test]
fn the_clusters_pods_are_not_told_before_the_node_was_read() {
    let (told, cluster) = Cluster::fixed("n1");
    let config = SourceConfig { cluster: Some(cluster), ..SourceConfig::default() };
    let snapshot = snapshot(&config).expect("snapshot");
    let (tx, mut rx) = mpsc::channel(16);
    let mut watcher = Watcher::new(config, snapshot, tx);
    let pod = |name: &str| Pod { name: Some(name.into()), uid: Some(name.into()), ..Pod::default() };
    told.send_modify(|view| view.pods = vec![pod("a")]);
    assert!(watcher.read_cluster().is_ok());
    assert!(rx.try_recv().is_err(), "told without the namespaces of the node");

    watcher.node_due = Instant::now() + NODE_EVERY;
    watcher.discovered = vec![Pod { netns: Some(crate::event::Netns(7)), ..pod("b") }];
    told.send_modify(|view| view.pods = vec![pod("a"), pod("b")]);
    assert!(watcher.read_cluster().is_ok());
    let Ok(Fact::Pods(list)) = rx.try_recv() else { panic!("nothing was told") };
    let namespaces: Vec<_> = list.pods.iter().map(|pod| pod.netns.map(|netns| netns.0)).collect();
    assert_eq!(namespaces, [None, Some(7)]);
}
