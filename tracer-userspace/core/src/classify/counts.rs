//! What is said of failures that the kubelet counted and nobody told of.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::evidence::evidence;
use super::finding::Finding;
use super::kubectl;
use super::kubelet::{Unattached, k8s, pod, probe_of, whose};
use crate::correlate::node::Node;
use tracer_model::event::{Container, FailureCount, FindingBody, Handler, Status};
use tracer_model::plural;
use tracer_model::record::{Cause, Confidence};

/// A count, and what was seen in its time.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Failures that the kubelet counted.
    pub failures: u64,
    /// Verdicts on failures that were told.
    pub told: u64,
    /// An attempt of the probe was seen that went well on the network.
    pub well: bool,
    /// Between these readings, CLOCK_BOOTTIME nanoseconds.
    pub window: (u64, u64),
}

impl Counted {
    /// Failures that nobody told of.
    #[must_use]
    pub const fn unseen(&self) -> u64 {
        self.failures.saturating_sub(self.told)
    }

    fn window_s(&self) -> u64 {
        self.window.1.saturating_sub(self.window.0).div_ceil(1_000_000_000)
    }
}

/// How the probe asks, if a list of pods tells.
#[must_use]
pub fn handler(count: &FailureCount, node: &Node) -> Option<Handler> {
    let container = container(count, node)?;
    let network = container.probes.iter().find(|it| it.probe_type == count.probe_type).map(|it| it.handler);
    network.or_else(|| container.exec.iter().any(|it| it.probe_type == count.probe_type).then_some(Handler::Exec))
}

fn container<'a>(count: &FailureCount, node: &'a Node) -> Option<&'a Container> {
    pod(&count.pod, node)?.containers.iter().find(|it| it.name.as_ref() == Some(&count.container))
}

/// The verdict on a command of which only the count is known: that it failed, and not how.
#[must_use]
pub fn of_command(count: &FailureCount, counted: &Counted, node: &Node) -> (Finding, Unattached) {
    let spec = container(count, node).and_then(|it| it.exec.iter().find(|it| it.probe_type == count.probe_type));
    let (unseen, within) = (counted.unseen(), counted.window_s());
    let k8s = k8s(&count.pod, Some(&count.container), node);
    let timeout_s = spec.map_or(1, |it| it.timeout_s);
    let summary = format!(
        "the kubelet counted {} of the command of the {} probe{} within {within} s: it ended with an error or not within {timeout_s} s, and no word of the kubelet tells which",
        plural::counted(unseen, "failure"),
        count.probe_type.name(),
        whose(&k8s),
    );
    let fix = format!(
        "run it by hand and look at both: time {}. The kubelet's log (--kubelet-log) or its Events (--api-events) tell the two apart",
        kubectl::exec(&k8s, count.probe_type)
    );
    let says = format!("prober_probe_total of the kubelet went up by {} in {within} s", counted.failures);
    let fields = json!({ "failures": counted.failures, "told": counted.told, "container": count.container });
    let seen = evidence("kubelet", counted.window.1, says, fields);
    let named = Unattached { probe: Some(probe_of(count.probe_type, spec)), k8s, process: None };
    let found = Finding::failure(Cause::Unexplained, vec![seen], summary, fix);
    (found.with_confidence(Confidence::Possible), named)
}

/// The kubelet counted failures of a network probe, and no verdict tells of them.
#[must_use]
pub fn disagreement(count: &FailureCount, counted: &Counted, node: &Node) -> FindingBody {
    let k8s = k8s(&count.pod, Some(&count.container), node);
    let text = |word: &Option<String>| word.clone().unwrap_or_else(|| "?".into());
    let (namespace, name) = (text(&k8s.namespace), text(&k8s.pod_name));
    let kind = count.probe_type.name();
    let (seen, why) = seen(counted, handler(count, node));
    let mut body = FindingBody::new("probe_counts", Status::Warn);
    body.observed = format!(
        "{kind} probe of {namespace}/{name} {}: the kubelet counted {} within {} s, verdicts tell of {}; {seen}",
        count.container,
        plural::counted(counted.failures, "failure"),
        counted.window_s(),
        counted.told,
    );
    body.expected = "a verdict on each failure that the kubelet counted".into();
    body.why = why.into();
    body.remediation = Some(format!("kubectl describe pod -n {namespace} {name}"));
    let names = [("namespace", k8s.namespace), ("pod_name", k8s.pod_name), ("container_name", k8s.container_name)];
    let names = names.into_iter().filter_map(|(name, value)| Some((name, json!(value?))));
    let numbers = [
        ("probe", json!(count.probe_type)),
        ("counted", json!(counted.failures)),
        ("told", json!(counted.told)),
        ("window_s", json!(counted.window_s())),
    ];
    body.fields =
        names.chain(numbers).map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<String, Value>>();
    body
}

/// What was seen of its attempts, and what that can mean.
const fn seen(counted: &Counted, handler: Option<Handler>) -> (&'static str, &'static str) {
    match (counted.well, handler) {
        (_, None) => (
            "no list of pods tells how it asks",
            "a command makes no connection, and what it did is not seen: the kubelet's Unhealthy Event has its words",
        ),
        (true, _) => (
            "attempts of it were seen that went well on the network",
            "what was answered was not what the probe wants, and over TLS or gRPC that is not seen: the kubelet's Unhealthy Event, or its log (--kubelet-log), has its words",
        ),
        (false, _) => (
            "no attempt of it was seen",
            "the kubelet made no connection (the name of its port is no port of the container), or one that this kernel does not show (the start record and `tracer hooks` say what is missing): its Unhealthy Event has its words",
        ),
    }
}
