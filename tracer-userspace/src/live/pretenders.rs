//! Processes that only bear the name of a kubelet: what runs in a pod, where a kubelet runs that does not. A pod's process may
//! call itself `kubelet`, and what it dials would be told of the pod that it dials. Of the names that a user gives others are
//! not judged: an agent that probes may run in a pod.

use std::collections::BTreeSet;

use crate::correlate::recent::Recent;
use crate::event::{Actor, Fact, Netns, Observation, is_kubelet_name};
use crate::sources::{Prober, procfs};

/// Processes that were looked at.
const MAX_KNOWN: usize = 256;
/// Namespaces that kubelets dial from: a machine has one for each node on it.
const MAX_NODES: usize = 64;

/// Tells probers from those.
#[derive(Debug)]
pub(super) struct Pretenders {
    /// Where the kubelets are that run in no pod. Those that do (nodes inside a pod) have none such beside them.
    nodes: BTreeSet<Netns>,
    /// Whether a process, in its cgroup, runs in a pod.
    known: Recent<(u32, Option<u64>), bool, MAX_KNOWN>,
    /// Their connections are seen, as those of every other process.
    all_connections: bool,
    runs_in_pod: fn(u32) -> Option<bool>,
}

impl Pretenders {
    /// With those that probe already.
    pub(super) fn beside(probers: &[Prober], all_connections: bool) -> Self {
        let kubelets = probers.iter().filter(|prober| is_kubelet_name(&prober.comm));
        let outside = kubelets.filter(|prober| procfs::runs_in_pod(prober.pid) == Some(false));
        let nodes = outside.filter_map(|prober| prober.netns).take(MAX_NODES).collect();
        Self { nodes, known: Recent::default(), all_connections, runs_in_pod: procfs::runs_in_pod }
    }

    /// The observation as it is to be told: an attempt of theirs is a connection, or nothing.
    pub(super) fn judge(&mut self, mut seen: Observation) -> Option<Observation> {
        let (actor, prober) = match &mut seen.fact {
            Fact::Connect(connect) => (&connect.actor, &mut connect.prober),
            Fact::ConnectFailed(failed) => (&failed.actor, &mut failed.prober),
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
        if let (Some(false), Some(netns)) = (in_pod, actor.netns)
            && self.nodes.len() < MAX_NODES
        {
            self.nodes.insert(netns);
        }
        // One that is gone already cannot be asked: a pod mostly has a namespace of its own.
        let elsewhere = || actor.netns.is_some_and(|netns| !self.nodes.contains(&netns));
        !self.nodes.is_empty() && in_pod.unwrap_or_else(elsewhere)
    }

    fn is_in_pod(&mut self, actor: &Actor) -> Option<bool> {
        let key = (actor.pid, actor.cgroup);
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let in_pod = (self.runs_in_pod)(actor.pid)?;
        self.known.insert(key, in_pod);
        Some(in_pod)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NODE, POD, Stream};

    /// Process 10, which is in the node's namespace, makes the stream's attempts.
    fn beside(nodes: &[Netns], all_connections: bool, runs_in_pod: fn(u32) -> Option<bool>) -> Pretenders {
        Pretenders { nodes: nodes.iter().copied().collect(), known: Recent::default(), all_connections, runs_in_pod }
    }

    fn judged(pretenders: &mut Pretenders) -> Option<bool> {
        let mut stream = Stream::new();
        stream.connect();
        let is_connect = |it: &Observation| matches!(it.fact, Fact::Connect(_));
        let dialled = stream.observations.into_iter().find(is_connect).expect("an attempt");
        pretenders.judge(dialled).map(|seen| matches!(seen.fact, Fact::Connect(connect) if connect.prober))
    }

    #[test]
    fn what_runs_in_a_pod_is_no_prober_beside_one() {
        assert_eq!(judged(&mut beside(&[NODE], false, |_| Some(true))), None);
        assert_eq!(judged(&mut beside(&[NODE], true, |_| Some(true))), Some(false), "a connection like others");
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
        let mut pretenders = beside(&[], false, |_| Some(true));
        assert_eq!(judged(&mut pretenders), Some(true));
        let kubelet = Actor { pid: 11, ..crate::testing::prober() };
        pretenders.runs_in_pod = |_| Some(false);
        assert!(!pretenders.is_one(&kubelet));
        assert_eq!(judged(&mut pretenders), None);
    }

    /// `--prober kubelet --prober curl`
    #[test]
    fn a_name_that_only_the_user_gave_is_meant_wherever_it_runs() {
        let mut pretenders = beside(&[NODE], false, |_| Some(true));
        let curl = |netns| Actor { pid: 12, comm: "curl".into(), netns: Some(netns), ..crate::testing::prober() };
        assert!(!pretenders.is_one(&curl(POD)));
        assert_eq!(judged(&mut pretenders), None, "a kubelet by its name only");
        let mut nested = beside(&[], false, |_| Some(false));
        assert!(!nested.is_one(&curl(NODE)));
        nested.runs_in_pod = |_| Some(true);
        assert_eq!(judged(&mut nested), Some(true), "no kubelet runs outside of pods, whoever else does");
    }

    #[test]
    fn a_process_is_asked_once() {
        let mut pretenders = beside(&[NODE], false, |_| Some(true));
        assert_eq!(judged(&mut pretenders), None);
        pretenders.runs_in_pod = |pid| unreachable!("{pid} was asked before");
        assert_eq!(judged(&mut pretenders), None);
    }
}
