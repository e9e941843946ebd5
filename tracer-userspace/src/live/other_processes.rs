//! Processes that only bear the name of a kubelet: what runs in a pod, where a kubelet runs that does not. A pod's process may
//! call itself `kubelet`, and its connections would be reported as probes of the pod that it dials. A name that a
//! user gives is not judged: an agent that probes may run in a pod.

use std::collections::BTreeSet;

use tracer_model::event::{Actor, Netns, Observation, ObservationKind, is_kubelet_name};
use tracer_model::recent::Recent;
use tracer_sources::{Prober, procfs};

/// Processes that were looked at.
const MAX_KNOWN: usize = 256;
/// Namespaces that kubelets dial from: a machine has one for each node on it.
const MAX_NODES: usize = 64;

/// Tells probers from those.
#[derive(Debug)]
pub(super) struct OtherProcesses {
    /// Where the kubelets are that run in no pod. Those that do (nodes inside a pod) have none such beside them.
    nodes: BTreeSet<Netns>,
    /// Whether a process, in its cgroup, runs in a pod.
    known: Recent<(u32, Option<u64>), bool, MAX_KNOWN>,
    /// Cgroups of theirs that were found since then: the kernel need not report these.
    found: BTreeSet<u64>,
    /// Cgroups of kubelets that run in no pod: of none of these anything is kept back.
    of_kubelets: BTreeSet<u64>,
    /// Their connections are seen, as those of every other process.
    all_connections: bool,
    runs_in_pod: fn(u32) -> Option<bool>,
}

impl OtherProcesses {
    /// With those that probe already.
    pub(super) fn beside(probers: &[Prober], all_connections: bool) -> Self {
        let kubelets = probers.iter().filter(|prober| is_kubelet_name(&prober.comm));
        let outside = kubelets.filter(|prober| procfs::runs_in_pod(prober.pid) == Some(false));
        let nodes = outside.filter_map(|prober| prober.netns).take(MAX_NODES).collect();
        Self { nodes, all_connections, runs_in_pod: procfs::runs_in_pod, ..Self::default() }
    }

    /// The cgroups of those that were found since the last call.
    pub(super) fn take_found(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.found)
    }

    /// The observation as it is to be reported: an attempt of theirs is a connection, or nothing.
    pub(super) fn judge(&mut self, mut seen: Observation) -> Option<Observation> {
        let (actor, prober) = match &mut seen.kind {
            ObservationKind::Connect(connect) => (&connect.actor, &mut connect.prober),
            ObservationKind::ConnectFailed(failed) => (&failed.actor, &mut failed.prober),
            _ => return Some(seen),
        };
        *prober = *prober && !self.is_one(actor);
        (*prober || self.all_connections).then_some(seen)
    }

    fn is_one(&mut self, actor: &Actor) -> bool {
        if !is_kubelet_name(&actor.comm) {
            return false;
        }
        let in_pod = self.is_in_pod(actor);
        if in_pod == Some(false) {
            self.note_kubelet(actor);
        }
        // One that is gone already cannot be asked: a pod mostly has a namespace of its own.
        let elsewhere = || actor.netns.is_some_and(|netns| !self.nodes.contains(&netns));
        let is_one = !self.nodes.is_empty() && in_pod.unwrap_or_else(elsewhere);
        if is_one && in_pod.is_some() {
            self.found.extend(cgroup(actor).filter(|cgroup| !self.of_kubelets.contains(cgroup)));
        }
        is_one
    }

    fn note_kubelet(&mut self, actor: &Actor) {
        if let Some(netns) = actor.netns.filter(|_| self.nodes.len() < MAX_NODES) {
            self.nodes.insert(netns);
        }
        if let Some(cgroup) = cgroup(actor).filter(|_| self.of_kubelets.len() < MAX_NODES) {
            self.of_kubelets.insert(cgroup);
        }
    }

    fn is_in_pod(&mut self, actor: &Actor) -> Option<bool> {
        let key = (actor.pid, cgroup(actor));
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let in_pod = (self.runs_in_pod)(actor.pid)?;
        self.known.insert(key, in_pod);
        Some(in_pod)
    }
}

/// The one by which the kernel's side knows it (`actor::cgroup` of tracer-ebpf); the root's is everybody's.
fn cgroup(actor: &Actor) -> Option<u64> {
    actor.cgroup_memory.or(actor.cgroup).filter(|id| *id > 1)
}

impl Default for OtherProcesses {
    fn default() -> Self {
        let (nodes, known) = (BTreeSet::new(), Recent::default());
        let (found, of_kubelets) = (BTreeSet::new(), BTreeSet::new());
        Self { nodes, known, found, of_kubelets, all_connections: false, runs_in_pod: procfs::runs_in_pod }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::{NODE, POD, Stream};

    /// Process 10, which is in the node's namespace, makes the stream's attempts.
    fn beside(nodes: &[Netns], all_connections: bool, runs_in_pod: fn(u32) -> Option<bool>) -> OtherProcesses {
        OtherProcesses {
            nodes: nodes.iter().copied().collect(),
            all_connections,
            runs_in_pod,
            ..OtherProcesses::default()
        }
    }

    fn judged(other_processes: &mut OtherProcesses) -> Option<bool> {
        let mut stream = Stream::new();
        stream.connect();
        let is_connect = |it: &Observation| matches!(it.kind, ObservationKind::Connect(_));
        let dialled = stream.observations.into_iter().find(is_connect).expect("an attempt");
        other_processes
            .judge(dialled)
            .map(|seen| matches!(seen.kind, ObservationKind::Connect(connect) if connect.prober))
    }

    #[test]
    fn what_runs_in_a_pod_is_no_prober_beside_one() {
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(true))), None);
        assert_eq!(judged(&mut beside(&[NODE], true, |_| Some(true))), Some(false), "a connection like others");
    }

    /// If the cgroup of a kubelet were skipped by mistake, tracer would not see its probes any more.
    #[test]
    fn only_a_pods_own_cgroup_is_left_out() {
        const NONE: [u64; 0] = [];
        let found =
            |nodes: &[Netns], cgroups: (Option<u64>, Option<u64>), in_pod: fn(u32) -> Option<bool>| -> Vec<u64> {
                let mut other_processes = beside(nodes, false, in_pod);
                let (cgroup, cgroup_memory) = cgroups;
                other_processes.is_one(&Actor { pid: 11, cgroup, cgroup_memory, ..tracer_core::testing::prober() });
                other_processes.take_found().into_iter().collect()
            };
        assert_eq!(found(&[NODE], (Some(50), Some(40)), |_| Some(true)), [40]);
        assert_eq!(found(&[NODE], (Some(50), None), |_| Some(true)), [50]);
        assert_eq!(found(&[NODE], (None, Some(1)), |_| Some(true)), NONE, "the root is everybody's");
        assert_eq!(found(&[], (Some(50), Some(40)), |_| Some(true)), NONE, "a node inside a pod");
        assert_eq!(found(&[POD], (Some(50), Some(40)), |_| None), NONE, "it is gone: nobody knows where it ran");
        let mut other_processes = beside(&[NODE], false, |pid| Some(pid == 12));
        for pid in [11, 12] {
            other_processes.is_one(&Actor { pid, cgroup_memory: Some(40), ..tracer_core::testing::prober() });
        }
        assert_eq!(other_processes.take_found(), BTreeSet::new(), "a kubelet's, too");
        // A kubelet that gets the number of a pod's process.
        let mut other_processes = beside(&[NODE], false, |_| Some(true));
        let at = |cgroup| Actor { pid: 11, cgroup_memory: Some(cgroup), ..tracer_core::testing::prober() };
        assert!(other_processes.is_one(&at(40)));
        other_processes.runs_in_pod = |_| Some(false);
        assert!(!other_processes.is_one(&at(50)) && other_processes.take_found() == BTreeSet::from([40]));
    }

    #[test]
    fn a_node_inside_a_pod_has_its_prober() {
        assert_eq!(judged(&mut beside(&[], false, |_| Some(true))), Some(true));
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(false))), Some(true));
        assert_eq!(judged(&mut beside(&[POD], false, |_| Some(false))), Some(true), "one of several nodes");
    }

    #[test]
    fn who_is_gone_is_known_by_its_namespace() {
        assert_eq!(judged(&mut beside(&[NODE], false, |_| None)), Some(true));
        assert_eq!(judged(&mut beside(&[], false, |_| None)), Some(true));
        assert_eq!(judged(&mut beside(&[POD], false, |_| None)), None);
    }

    #[test]
    fn the_first_prober_outside_of_pods_ends_that() {
        let mut other_processes = beside(&[], false, |_| Some(true));
        assert_eq!(judged(&mut other_processes), Some(true));
        let kubelet = Actor { pid: 11, ..tracer_core::testing::prober() };
        other_processes.runs_in_pod = |_| Some(false);
        assert!(!other_processes.is_one(&kubelet));
        assert_eq!(judged(&mut other_processes), None);
    }

    /// `--prober kubelet --prober curl`
    #[test]
    fn a_name_that_only_the_user_gave_is_meant_wherever_it_runs() {
        let mut other_processes = beside(&[NODE], false, |_| Some(true));
        let curl = |netns| Actor { pid: 12, comm: "curl".into(), netns: Some(netns), ..tracer_core::testing::prober() };
        assert!(!other_processes.is_one(&curl(POD)));
        assert_eq!(judged(&mut other_processes), None, "a kubelet by its name only");
        let mut nested = beside(&[], false, |_| Some(false));
        assert!(!nested.is_one(&curl(NODE)));
        nested.runs_in_pod = |_| Some(true);
        assert_eq!(judged(&mut nested), Some(true), "no kubelet runs outside of pods, whoever else does");
    }

    #[test]
    fn a_process_is_asked_once() {
        let mut other_processes = beside(&[NODE], false, |_| Some(true));
        assert_eq!(judged(&mut other_processes), None);
        other_processes.runs_in_pod = |pid| unreachable!("{pid} was asked before");
        assert_eq!(judged(&mut other_processes), None);
    }
}
