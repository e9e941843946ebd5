//! The verdict on a pod with probes that the kubelet does not run. It waits until the wall clock reaches the start of
//! the container plus `initialDelaySeconds` (`worker.doProbe`, pkg/kubelet/prober/worker.go).

use std::time::Duration;

use serde_json::json;

use super::{Unattached, container_of, k8s};
use tracer_attempts::correlate::node::Node;
use tracer_case::evidence::evidence_of;
use tracer_case::finding::Finding;
use tracer_case::kubectl;
use tracer_model::event::PodRef;
use tracer_model::plural::duration;
use tracer_model::record::{Cause, Command, Confidence, Evidence, K8s};

/// A step of the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockStep {
    /// CLOCK_BOOTTIME nanoseconds.
    pub time_boot_ns: u64,
    /// How far the clock went forward; negative: back.
    pub by_ns: i64,
}

impl ClockStep {
    /// "set back by 2 h 3 min"
    pub(crate) fn words(&self) -> String {
        let by = duration(Duration::from_nanos(self.by_ns.unsigned_abs()));
        format!("set {} by {by}", if self.by_ns < 0 { "back" } else { "forward" })
    }

    fn evidence(&self) -> Evidence {
        let text = format!("the wall clock was {}", self.words());
        evidence_of("clock", self.time_boot_ns, text, json!({ "step_s": self.by_ns / 1_000_000_000 }))
    }
}

/// Containers of a pod that start in the future by the wall clock, while no attempt of their probes is seen.
#[derive(Clone, Debug)]
pub(crate) struct NotRun<'a> {
    pub pod: &'a PodRef,
    /// Names of the containers.
    pub containers: Vec<&'a str>,
    /// From now to the last of their starts.
    pub ahead_ns: u64,
    /// How long no attempt was seen.
    pub silent_ns: u64,
    /// The last step of the clock that was seen.
    pub step: Option<ClockStep>,
    /// Events that were lost meanwhile.
    pub lost: u64,
}

pub(crate) fn verdict(not_run: &NotRun<'_>, node: &Node, now: u64) -> (Finding, Unattached) {
    let only = match not_run.containers[..] {
        [one] => Some(one.to_owned()),
        _ => None,
    };
    let k8s = k8s(not_run.pod, only.as_ref(), node);
    let (names, ahead) = (not_run.containers.join(", "), duration(Duration::from_nanos(not_run.ahead_ns)));
    let step = not_run.step.map(|step| format!("; the clock was {}", step.words())).unwrap_or_default();
    let summary = format!(
        "the kubelet runs no probe of {names}{}; by the wall clock the start is {ahead} in the future, and the kubelet waits until then; no attempt was seen for {}{step}",
        container_of(&K8s { container_name: None, ..k8s.clone() }),
        duration(Duration::from_nanos(not_run.silent_ns)),
    );
    let fields = json!({ "containers": not_run.containers, "ahead_s": not_run.ahead_ns / 1_000_000_000 });
    let started = evidence_of("container_status", now, format!("{names} started {ahead} from now"), fields);
    let pod = kubectl::pod(&k8s);
    let fix = Cause::ProbeNotRun.fix().run([Command::in_cluster(format!("kubectl delete pod {pod}"))]);
    let mut found = Finding::likely(Cause::ProbeNotRun, vec![started], summary, fix);
    found.evidence.extend(not_run.step.as_ref().map(ClockStep::evidence));
    if not_run.lost > 0 {
        found = Finding { lost_events: not_run.lost, ..found.at_most(Confidence::Possible) };
    }
    (found, Unattached { probe: None, k8s, process: None })
}
