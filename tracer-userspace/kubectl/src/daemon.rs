//! Finds the pod of tracer's DaemonSet that has the log of a node.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::api::Api;
use super::cli::DaemonSet;
use super::clock::ago;
use super::objects::{Container, Pod};
use super::problem::Problem;
use super::records::Reading;
use tracer_output::sink::plain::date_and_time;

/// The pod of tracer with the log of a node.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    pub(super) pod: Pod,
    pub(super) container: String,
    /// Other ready pods of tracer on this node.
    pub(super) others: Vec<String>,
}

impl Daemon {
    pub(super) fn node(&self) -> &str {
        &self.pod.spec.node_name
    }

    /// `tracer/tracer-x7k2p on node-3`
    pub(super) fn name(&self) -> String {
        format!("{} on {}", self.pod.full_name(), self.node())
    }

    /// A warning that tracer may not run there, and since when it has no record.
    pub(super) fn down(&self, reading: &Reading, now: Timestamp) -> Option<String> {
        let why = self.not_ready()?;
        let since = match &reading.times {
            Some((_, last)) => format!("its last record is of {} UTC ({})", date_and_time(last), ago(last, now)),
            None => "its log has no record".to_owned(),
        };
        Some(format!("{} is not ready{why}: {since}; later failures may be missing", self.name()))
    }

    /// ` (CrashLoopBackOff)`, or an empty text, if tracer's pod is not ready.
    pub(super) fn not_ready(&self) -> Option<String> {
        let why = self.pod.waiting().next().map(|(_, waiting)| format!(" ({})", waiting.reason));
        (!self.pod.is_ready()).then(|| why.unwrap_or_default())
    }

    /// A warning if several pods of tracer run on one node.
    pub(super) fn warning(&self) -> Option<String> {
        let (count, others) = (self.others.len() + 1, self.others.join(", "));
        let (node, read) = (self.node(), self.pod.full_name());
        (count > 1).then(|| format!("{count} tracer pods run on {node}: {read} is read, not {others}"))
    }
}

pub(super) async fn of_node(api: &Api, daemonset: &DaemonSet, node: &str) -> Result<Daemon, Problem> {
    let DaemonSet { namespace, selector } = daemonset;
    let daemon = by_node(api.pods(namespace, selector, Some(node)).await?).remove(node);
    let none = || {
        format!(
            "no tracer runs on {node}: no pod of `{selector}` in namespace `{namespace}` is there (--daemonset-namespace, --daemonset-selector); `kubectl tracer attach {node}` runs it there for a while, with --image if there is no DaemonSet"
        )
    };
    daemon.ok_or_else(|| Problem::Found(none()))
}

/// The daemons of these nodes, or of all if the list is empty, and those of the nodes that have no daemon.
pub(super) async fn of_nodes(
    api: &Api,
    daemonset: &DaemonSet,
    nodes: &[String],
) -> Result<(Vec<Daemon>, Vec<String>), Problem> {
    let DaemonSet { namespace, selector } = daemonset;
    let mut daemons = by_node(api.pods(namespace, selector, None).await?);
    if daemons.is_empty() {
        return Err(Problem::Found(format!(
            "no tracer runs in this cluster: no pod of `{selector}` in namespace `{namespace}` (--daemonset-namespace, --daemonset-selector)"
        )));
    }
    let mut without: Vec<String> = nodes.iter().filter(|node| !daemons.contains_key(*node)).cloned().collect();
    without.dedup();
    daemons.retain(|node, _| nodes.is_empty() || nodes.contains(node));
    Ok((daemons.into_values().collect(), without))
}

/// The container that runs tracer.
pub(super) fn tracer_of(pod: &Pod) -> Option<&Container> {
    pod.spec.containers.iter().find(|it| it.name == "tracer").or(pod.spec.containers.first())
}

/// Chooses one pod for each node: a ready one if possible, then the oldest. A second `tracer run` on a node ends by itself,
/// so the others are not the daemon.
fn by_node(pods: Vec<Pod>) -> BTreeMap<String, Daemon> {
    let mut nodes: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in pods.into_iter().filter(|pod| !pod.spec.node_name.is_empty()) {
        nodes.entry(pod.spec.node_name.clone()).or_default().push(pod);
    }
    let daemon = |(node, mut pods): (String, Vec<Pod>)| {
        pods.sort_by_key(|pod| (pod.is_over(), !pod.is_ready(), pod.metadata.creation_timestamp));
        let others = pods[1..].iter().filter(|pod| !pod.is_over() && pod.is_ready()).map(Pod::full_name).collect();
        let pod = pods.swap_remove(0);
        let container = tracer_of(&pod).map_or_else(|| "tracer".to_owned(), |it| it.name.clone());
        (node, Daemon { pod, container, others })
    };
    nodes.into_iter().map(daemon).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use serde_json::json;

    fn pod(name: &str, ready: bool, made: &str) -> Pod {
        let mut pod = testing::pod("tracer", name, "n1", ready);
        pod["metadata"]["creationTimestamp"] = json!(format!("2026-01-02T{made}Z"));
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn of_two_ready_pods_on_a_node_the_oldest_is_read_and_the_other_named() {
        let pods = vec![pod("c", false, "01:00:00"), pod("b", true, "03:00:00"), pod("a", true, "02:00:00")];
        let daemon = by_node(pods).remove("n1").expect("a daemon");
        assert_eq!(daemon.pod.metadata.name, "a");
        let warning = daemon.warning().expect("a warning");
        assert_eq!(warning, "2 tracer pods run on n1: tracer/a is read, not tracer/b");
    }

    #[test]
    fn a_daemon_that_is_down_is_named_with_the_time_of_its_last_record() {
        let mut down = pod("a", false, "01:00:00");
        let waiting = r#"[{"name":"tracer","state":{"waiting":{"reason":"CrashLoopBackOff"}}}]"#;
        down.status.container_statuses = serde_json::from_str(waiting).expect("a status");
        let daemon = |pod| by_node(vec![pod]).remove("n1").expect("a daemon");
        let times = Some(("2026-01-02T03:00:00Z".to_owned(), "2026-01-02T03:04:05.123Z".to_owned()));
        let reading = Reading { records: 2, times, ..Reading::default() };
        let now = "2026-01-02T06:04:05Z".parse().expect("a time");
        let warning = daemon(down).down(&reading, now);
        let text = "tracer/a on n1 is not ready (CrashLoopBackOff): its last record is of 2026-01-02 03:04:05 UTC \
                    (3 h ago); later failures may be missing";
        assert_eq!(warning.as_deref(), Some(text));
        let silent = daemon(pod("a", false, "01:00:00")).down(&Reading::default(), now);
        assert!(silent.is_some_and(|it| it.contains("its log has no record")));
        assert_eq!(daemon(pod("a", true, "01:00:00")).down(&reading, now), None);
    }

    #[test]
    fn a_pod_that_is_not_scheduled_is_no_daemon() {
        let mut waiting = pod("a", false, "01:00:00");
        waiting.spec.node_name = String::new();
        assert!(by_node(vec![waiting]).is_empty());
    }
}
