//! Recognizes processes that only have the name of a kubelet.
//!
//! A process of a pod may call itself `kubelet`. tracer would report its connections as probes of the pod to which it connects.
//! So a `kubelet` in a pod is no prober. A node may run inside of a pod: there a `kubelet` counts if tracer is in this pod, too,
//! and no kubelet runs outside of pods. Other names that a user gives are not checked: an agent that probes may run in a pod.

use std::collections::BTreeSet;

use tracer_model::event::{Actor, Netns, Observation, ObservationKind, is_kubelet_name};
use tracer_model::recent::Recent;
use tracer_sources::Prober;
use tracer_sources::procfs::{self, Place};

const MAX_KNOWN: usize = 256;
/// How many namespaces and cgroups of kubelets are remembered: a machine may run several nodes.
const MAX_NODES: usize = 64;

/// Distinguishes these processes from probers.
#[derive(Debug)]
pub(super) struct OtherProcesses {
    /// Network namespaces of the kubelets outside of pods. If there is none, nodes run inside of pods.
    nodes: BTreeSet<Netns>,
    /// Where a process, in its cgroup, runs.
    known: Recent<(u32, Option<u64>), Place, MAX_KNOWN>,
    /// Cgroups of such processes, found since the last [`take_found`](Self::take_found). The kernel programs can skip these.
    found: BTreeSet<u64>,
    /// Cgroups of the kubelets outside of pods. These are never skipped.
    of_kubelets: BTreeSet<u64>,
    all_connections: bool,
    place_of: fn(u32) -> Option<Place>,
    is_root: fn(u32) -> bool,
}

impl OtherProcesses {
    /// Starts with the probers that already run.
    pub(super) fn beside(probers: &[Prober], all_connections: bool) -> Self {
        let kubelets = probers.iter().filter(|prober| is_kubelet_name(&prober.comm));
        // Any user can give a process the name.
        let kubelets = kubelets.filter(|prober| procfs::is_root(prober.pid));
        let outside = kubelets.filter(|prober| procfs::place_of(prober.pid) == Some(Place::OutsideOfPods));
        let nodes = outside.filter_map(|prober| prober.netns).take(MAX_NODES).collect();
        let (known, found, of_kubelets) = Default::default();
        // Else the number of a process in an event is that of another one in `/proc`.
        let place_of = if procfs::has_kernel_numbers() { procfs::place_of } else { |_| None };
        Self { nodes, known, found, of_kubelets, all_connections, place_of, is_root: procfs::is_root }
    }

    /// Takes the cgroups that were found since the last call.
    pub(super) fn take_found(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.found)
    }

    /// Corrects `prober` of an attempt of such a process; drops the attempt unless all connections are reported.
    pub(super) fn filter_attempt(&mut self, mut observation: Observation) -> Option<Observation> {
        let (actor, prober) = match &mut observation.kind {
            ObservationKind::Connect(connect) => (&connect.actor, &mut connect.prober),
            ObservationKind::ConnectFailed(failed) => (&failed.actor, &mut failed.prober),
            _ => return Some(observation),
        };
        *prober = *prober && !self.is_other(actor);
        (*prober || self.all_connections).then_some(observation)
    }

    /// Whether a process with the name of a prober is none.
    pub(super) fn is_other(&mut self, actor: &Actor) -> bool {
        if !is_kubelet_name(&actor.comm) {
            return false;
        }
        let place = self.place(actor);
        let is_other = match place {
            Some(Place::OutsideOfPods) => false,
            Some(Place::OtherPod) => true,
            Some(Place::OwnPod) => !self.nodes.is_empty(),
            // The cgroup of an exited process is unknown. Then its network namespace decides: most pods have their own.
            None => !self.nodes.is_empty() && actor.netns.is_some_and(|netns| !self.nodes.contains(&netns)),
        };
        if is_other && place.is_some() {
            self.found.extend(cgroup(actor).filter(|cgroup| !self.of_kubelets.contains(cgroup)));
        }
        is_other
    }

    /// A kubelet outside of pods makes those inside no probers.
    fn note_kubelet(&mut self, actor: &Actor) {
        if let Some(netns) = actor.netns.filter(|_| self.nodes.len() < MAX_NODES) {
            self.nodes.insert(netns);
        }
        if let Some(cgroup) = cgroup(actor).filter(|_| self.of_kubelets.len() < MAX_NODES) {
            self.of_kubelets.insert(cgroup);
        }
    }

    fn place(&mut self, actor: &Actor) -> Option<Place> {
        let key = (actor.pid, cgroup(actor));
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let place = (self.place_of)(actor.pid)?;
        self.known.insert(key, place);
        // Any user can give a process the name.
        if place == Place::OutsideOfPods && (self.is_root)(actor.pid) {
            self.note_kubelet(actor);
        }
        Some(place)
    }
}

/// The cgroup that the kernel programs compare (`actor::cgroup` of tracer-ebpf). The root cgroup does not count.
fn cgroup(actor: &Actor) -> Option<u64> {
    actor.cgroup_memory.or(actor.cgroup).filter(|id| *id > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::{NODE, POD, Stream};

    /// Process 10, which is in the node's namespace, makes the stream's attempts.
    fn beside(nodes: &[Netns], all_connections: bool, place_of: fn(u32) -> Option<Place>) -> OtherProcesses {
        let nodes = nodes.iter().copied().collect();
        OtherProcesses { nodes, place_of, is_root: |_| true, ..OtherProcesses::beside(&[], all_connections) }
    }

    fn judged(other_processes: &mut OtherProcesses) -> Option<bool> {
        let mut stream = Stream::new();
        stream.connect();
        let is_connect = |it: &Observation| matches!(it.kind, ObservationKind::Connect(_));
        let attempt = stream.observations.into_iter().find(is_connect).expect("an attempt");
        other_processes
            .filter_attempt(attempt)
            .map(|observation| matches!(observation.kind, ObservationKind::Connect(connect) if connect.prober))
    }

    #[test]
    fn a_kubelet_in_a_pod_is_no_prober_beside_another_outside_of_pods() {
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(Place::OtherPod))), None);
        let reported = judged(&mut beside(&[NODE], true, |_| Some(Place::OtherPod)));
        assert_eq!(reported, Some(false), "a connection like others");
    }

    /// If the cgroup of a kubelet were skipped by mistake, tracer would not see its probes any more.
    #[test]
    fn only_the_cgroup_of_a_pod_is_skipped() {
        const NONE: [u64; 0] = [];
        let found =
            |nodes: &[Netns], cgroups: (Option<u64>, Option<u64>), place_of: fn(u32) -> Option<Place>| -> Vec<u64> {
                let mut other_processes = beside(nodes, false, place_of);
                let (cgroup, cgroup_memory) = cgroups;
                other_processes.is_other(&Actor { pid: 11, cgroup, cgroup_memory, ..tracer_core::testing::prober() });
                other_processes.take_found().into_iter().collect()
            };
        assert_eq!(found(&[NODE], (Some(50), Some(40)), |_| Some(Place::OtherPod)), [40]);
        assert_eq!(found(&[NODE], (Some(50), None), |_| Some(Place::OtherPod)), [50]);
        assert_eq!(found(&[], (Some(50), Some(40)), |_| Some(Place::OtherPod)), [40], "the kubelet is down");
        assert_eq!(
            found(&[NODE], (None, Some(1)), |_| Some(Place::OtherPod)),
            NONE,
            "all processes are in the root cgroup"
        );
        assert_eq!(found(&[], (Some(50), Some(40)), |_| Some(Place::OwnPod)), NONE, "a node inside a pod");
        assert_eq!(found(&[POD], (Some(50), Some(40)), |_| None), NONE, "it has exited: its cgroup is unknown");
        let mut other_processes =
            beside(&[NODE], false, |pid| Some(if pid == 12 { Place::OtherPod } else { Place::OutsideOfPods }));
        for pid in [11, 12] {
            other_processes.is_other(&Actor { pid, cgroup_memory: Some(40), ..tracer_core::testing::prober() });
        }
        assert_eq!(other_processes.take_found(), BTreeSet::new(), "a kubelet is in this cgroup, too");
        // A kubelet gets the process number of an exited process of a pod.
        let mut other_processes = beside(&[NODE], false, |_| Some(Place::OtherPod));
        let at = |cgroup| Actor { pid: 11, cgroup_memory: Some(cgroup), ..tracer_core::testing::prober() };
        assert!(other_processes.is_other(&at(40)));
        other_processes.place_of = |_| Some(Place::OutsideOfPods);
        assert!(!other_processes.is_other(&at(50)) && other_processes.take_found() == BTreeSet::from([40]));
    }

    /// The node's kubelet may be down, or restart.
    #[test]
    fn a_kubelet_in_another_pod_is_no_prober_without_another_kubelet_either() {
        assert_eq!(judged(&mut beside(&[], false, |_| Some(Place::OtherPod))), None);
    }

    #[test]
    fn a_kubelet_in_our_pod_is_a_prober_if_none_runs_outside_of_pods() {
        assert_eq!(judged(&mut beside(&[], false, |_| Some(Place::OwnPod))), Some(true));
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(Place::OwnPod))), None);
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(Place::OutsideOfPods))), Some(true));
        let outside = judged(&mut beside(&[POD], false, |_| Some(Place::OutsideOfPods)));
        assert_eq!(outside, Some(true), "one of several nodes");
    }

    #[test]
    fn an_exited_process_is_judged_by_its_namespace() {
        assert_eq!(judged(&mut beside(&[NODE], false, |_| None)), Some(true));
        assert_eq!(judged(&mut beside(&[], false, |_| None)), Some(true));
        assert_eq!(judged(&mut beside(&[POD], false, |_| None)), None);
    }

    #[test]
    fn the_first_kubelet_outside_of_pods_makes_those_in_pods_no_probers() {
        let mut other_processes = beside(&[], false, |_| Some(Place::OwnPod));
        assert_eq!(judged(&mut other_processes), Some(true));
        let kubelet = Actor { pid: 11, ..tracer_core::testing::prober() };
        other_processes.place_of = |_| Some(Place::OutsideOfPods);
        assert!(!other_processes.is_other(&kubelet));
        assert_eq!(judged(&mut other_processes), None);
    }

    /// The nodes run inside of pods. A user of the machine gives a process a kubelet's name.
    #[test]
    fn a_process_that_root_does_not_run_is_no_kubelet_of_the_node() {
        let mut other_processes = beside(&[], false, |_| Some(Place::OutsideOfPods));
        other_processes.is_root = |_| false;
        assert!(!other_processes.is_other(&Actor { pid: 11, ..tracer_core::testing::prober() }));
        other_processes.place_of = |_| Some(Place::OwnPod);
        assert_eq!(judged(&mut other_processes), Some(true));
    }

    /// `--prober kubelet --prober curl`
    #[test]
    fn another_name_from_the_user_is_a_prober_also_in_a_pod() {
        let mut other_processes = beside(&[NODE], false, |_| Some(Place::OtherPod));
        let curl = |netns| Actor { pid: 12, comm: "curl".into(), netns: Some(netns), ..tracer_core::testing::prober() };
        assert!(!other_processes.is_other(&curl(POD)));
        assert_eq!(judged(&mut other_processes), None, "a kubelet by its name only");
        let mut nested = beside(&[], false, |_| Some(Place::OutsideOfPods));
        assert!(!nested.is_other(&curl(NODE)));
        nested.place_of = |_| Some(Place::OwnPod);
        assert_eq!(judged(&mut nested), Some(true), "no kubelet runs outside of pods, only another prober");
    }

    #[test]
    fn a_process_is_inspected_once() {
        let mut other_processes = beside(&[NODE], false, |_| Some(Place::OtherPod));
        assert_eq!(judged(&mut other_processes), None);
        other_processes.place_of = |pid| unreachable!("{pid} was inspected before");
        assert_eq!(judged(&mut other_processes), None);
    }
}
