//! Probes that the kubelet does not run, because the wall clock was set back to before the start of their container.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::records::unattached;
use crate::kubelet::not_run::{self, ClockStep};
use crate::node_events;
use tracer_attempts::correlate::node::Node;
use tracer_model::decision::Decision;
use tracer_model::event::{Container, Observation, ObservationKind, Pod, PodRef, ProbeType};
use tracer_model::record::Body;

/// Smaller steps are ignored: the status of a container has whole seconds.
const STEP_NS: i64 = 1_000_000_000;
/// After this many periods without an attempt, the probe is reported.
const PERIODS: u64 = 2;

/// The wall clock, and the pods with a start in its future.
#[derive(Debug, Default)]
pub(super) struct FutureStarts {
    /// Wall clock minus boot clock.
    to_wall_ns: Option<i64>,
    step: Option<ClockStep>,
    pods: BTreeMap<PodRef, Pending>,
}

/// A pod with containers that started in the future.
#[derive(Debug)]
struct Pending {
    since: u64,
    /// When to report the pod if no attempt comes; absent after that.
    due: Option<u64>,
    /// The latest start of its containers, by the wall clock.
    started_wall_ns: i64,
    /// The containers without an attempt since then, with the targets of their probes.
    containers: BTreeMap<String, Vec<SocketAddr>>,
}

impl FutureStarts {
    /// Takes an observation in; `node` has it already. Returns a record if the clock was set.
    pub(super) fn observe(&mut self, observation: &Observation, node: &Node) -> Option<Decision> {
        let time = observation.time_boot_ns;
        match &observation.kind {
            ObservationKind::NodeSettings(settings) => {
                let before = self.to_wall_ns.replace(settings.boot_to_wall_ns?)?;
                let by_ns = settings.boot_to_wall_ns?.saturating_sub(before);
                if by_ns.saturating_abs() < STEP_NS {
                    return None;
                }
                let step = ClockStep { time_boot_ns: time, by_ns };
                self.step = Some(step);
                self.update_pods(time, node);
                let body = node_events::clock_step(&step);
                return Some(Decision::new(time, None, Body::Node(Box::new(body))));
            }
            ObservationKind::Pods(_) => self.update_pods(time, node),
            ObservationKind::Connect(connect) if connect.prober => {
                for pod in self.pods.values_mut() {
                    pod.containers.retain(|_, targets| !targets.contains(&connect.flow.dst));
                }
            }
            _ => {}
        }
        None
    }

    /// When the first pod is to be reported.
    pub(super) fn due(&self) -> Option<u64> {
        self.pods.values().filter_map(|pod| pod.due).min()
    }

    pub(super) fn fire(&mut self, now: u64, node: &Node, out: &mut Vec<Decision>) {
        let Some(to_wall_ns) = self.to_wall_ns.filter(|_| self.due().is_some_and(|due| due <= now)) else { return };
        for (pod, pending) in &mut self.pods {
            let Some(due) = pending.due.take_if(|due| *due <= now) else { continue };
            let ahead_ns = pending.started_wall_ns.saturating_sub(due.saturating_add_signed(to_wall_ns).cast_signed());
            if pending.containers.is_empty() || ahead_ns < STEP_NS {
                continue;
            }
            let reading = not_run::NotRun {
                pod,
                containers: pending.containers.keys().map(String::as_str).collect(),
                ahead_ns: ahead_ns.unsigned_abs(),
                silent_ns: due.saturating_sub(pending.since),
                step: self.step,
                lost: node.lost_between(pending.since, due),
            };
            let (finding, named) = not_run::verdict(&reading, node, due);
            out.push(unattached(finding, Vec::new(), named, None));
        }
    }

    /// Finds the pods that start in the future, after the pods or the clock changed.
    fn update_pods(&mut self, time: u64, node: &Node) {
        let Some(to_wall_ns) = self.to_wall_ns else { return };
        let now = time.saturating_add_signed(to_wall_ns).cast_signed();
        let mut before = std::mem::take(&mut self.pods);
        for pod in node.pods.iter().filter(|pod| pod.netns.is_some() && !pod.deleting) {
            let key = PodRef { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() };
            let Some(new) = Pending::of(pod, time, now) else { continue };
            let pending = match before.remove(&key).filter(|old| old.started_wall_ns == new.started_wall_ns) {
                Some(mut old) => {
                    old.containers.retain(|name, _| new.containers.contains_key(name));
                    old
                }
                None => new,
            };
            self.pods.insert(key, pending);
        }
    }
}

impl Pending {
    fn of(pod: &Pod, time: u64, now_wall_ns: i64) -> Option<Self> {
        // A startup probe ends with its first success, so its silence shows nothing.
        let probes = |it: &Container| it.probes.iter().filter(|spec| spec.probe_type != ProbeType::Startup).count();
        let start = |it: &Container| it.runs.as_ref()?.started_wall_ns.filter(|start| start - now_wall_ns > STEP_NS);
        let ahead = || pod.containers.iter().filter(|it| probes(it) > 0 && start(it).is_some());
        let period_s = ahead().flat_map(|it| &it.probes).map(|spec| u64::from(spec.period_s)).max()?;
        Some(Self {
            since: time,
            due: Some(time.saturating_add((PERIODS * period_s + 1) * 1_000_000_000)),
            started_wall_ns: ahead().filter_map(start).max()?,
            containers: ahead().filter_map(|it| Some((it.name.clone()?, targets(pod, it)))).collect(),
        })
    }
}

/// The targets of the probes of a container.
fn targets(pod: &Pod, container: &Container) -> Vec<SocketAddr> {
    let hosts = |spec: &tracer_model::event::ProbeSpec| match spec.host.as_ref().and_then(|it| it.parse().ok()) {
        Some(host) => vec![host],
        None => pod.addrs.clone(),
    };
    let to = |spec| hosts(spec).into_iter().map(|addr| SocketAddr::new(addr, spec.port));
    container.probes.iter().flat_map(to).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const SECOND: i64 = 1_000_000_000;

    fn clock(stream: &mut Stream, to_wall_s: i64) -> &mut Stream {
        let boot_to_wall_ns = Some(to_wall_s * SECOND);
        stream.push(ObservationKind::NodeSettings(NodeSettings { boot_to_wall_ns, ..NodeSettings::default() }))
    }

    /// A pod that started an hour before the wall clock is set back by this much.
    fn set_back(by_s: i64) -> Stream {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        let started_wall_ns = Some(10_000 * SECOND);
        stream.runs(Runs { started_wall_ns, ..Runs::default() });
        clock(&mut stream, 13_600);
        clock(&mut stream, 13_600 - by_s);
        stream
    }

    fn reported(stream: &mut Stream) -> Vec<(&'static str, Confidence)> {
        stream.wait_ms(21_500).tick().all_decided()
    }

    #[test]
    fn a_clock_set_back_to_before_the_start_of_a_container_stops_its_probes() {
        let mut stream = set_back(7_200);
        assert_eq!(reported(&mut stream), [("probe_not_run", Confidence::Likely)]);
        let words = "the kubelet runs no probe of app of pod default/web; by the wall clock the start is 59 min 37 s in the future, and the kubelet waits until then; no attempt was seen for 21 s; the clock was set back by 2 h";
        assert_eq!(stream.verdict().summary, words);
        let events = stream.node_events();
        let expected = ("clock_step", "the wall clock of the node was set back by 2 h");
        assert_eq!((events[0].event.as_str(), events[0].summary.as_str(), events.len()), (expected.0, expected.1, 1));
        stream.pod_in(POD);
        assert_eq!(reported(&mut stream).len(), 1, "once for each start");
    }

    #[test]
    fn lost_events_make_the_verdict_possible_only() {
        let mut stream = set_back(7_200);
        stream.lost(1);
        assert_eq!(reported(&mut stream), [("probe_not_run", Confidence::Possible)]);
    }

    #[test]
    fn a_start_in_the_past_or_a_probe_that_runs_is_not_reported() {
        assert!(reported(&mut set_back(3_500)).is_empty(), "it started 100 s ago");
        assert!(reported(&mut set_back(-7_200)).is_empty(), "set forward");
        assert!(reported(&mut set_back(3_610)).is_empty(), "the clock reaches its start within two periods");
        let mut probed = set_back(7_200);
        probed.wait_ms(5_000).connect().established().closes((100, 101, 200));
        assert!(reported(&mut probed).is_empty());
        let mut ends = set_back(7_200);
        ends.deleting();
        assert!(reported(&mut ends).is_empty());
        let mut back = set_back(7_200);
        clock(back.wait_ms(5_000), 13_600);
        assert!(reported(&mut back).is_empty(), "set right again");
    }

    #[test]
    fn a_container_that_starts_again_is_not_reported() {
        let mut stream = set_back(7_200);
        stream.wait_ms(5_000).runs(Runs { started_wall_ns: Some(6_400 * SECOND), ..Runs::default() });
        assert!(reported(&mut stream).is_empty());
    }
}
