//! Counts failures by cause and culprit: first for one node while its log is read, then for all nodes.

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{Hash as _, Hasher as _};

use jiff::Timestamp;

use super::super::logs::Sink;
use super::super::records::Head;
use tracer_model::record::{Cause, Culprit, K8s, Outcome, Repeated, Workload};
use tracer_report::Fields;

/// Verdicts of a node that a revision can still take back. It comes at most seconds after the attempt's end.
const OPEN: usize = 512;
/// Culprits of a cause that are counted apart; the others count as one.
const CULPRITS: usize = 256;
/// Workloads of a cause that are counted; others are skipped.
const WORKLOADS: usize = 4096;
/// Pods of one node and group that are counted: tracer is designed for nodes with 250 pods.
const PODS: usize = 4096;

pub(crate) type Owner = (String, Workload);

struct Open {
    seq: u64,
    us: i64,
    key: (Cause, Option<String>),
    pod: u64,
    owner: Option<Owner>,
    count: u64,
}

/// Failures of one cause and culprit on a node.
#[derive(Debug, Default)]
pub(crate) struct Group {
    verdicts: u64,
    pods: HashSet<u64>,
    owners: HashMap<Owner, HashSet<u64>>,
    first_us: i64,
    last_us: i64,
}

#[derive(Default)]
pub(crate) struct NodeTally {
    open: VecDeque<Open>,
    groups: HashMap<(Cause, Option<String>), Group>,
}

impl NodeTally {
    /// The counts without the revised verdicts.
    pub(crate) fn finish(mut self) -> HashMap<(Cause, Option<String>), Group> {
        while let Some(open) = self.open.pop_front() {
            self.count(open);
        }
        self.groups
    }

    fn add(&mut self, fields: Fields<'_>, us: i64) {
        if let Some(seq) = fields.revises {
            // A revision replaces one of the verdicts that the record stands for.
            self.open.iter_mut().filter(|it| it.seq == seq).for_each(|it| it.count -= 1);
            self.open.retain(|it| it.count > 0);
        }
        let Some(verdict) = fields.verdict.as_ref().filter(|it| it.outcome == Outcome::Failure) else { return };
        let count = Repeated::count_of(fields.repeated.as_ref());
        let pod = hash_of(&fields);
        let culprit = fields.culprit.as_ref().map(text_of);
        // A pod without a workload stands for itself.
        let pod_alone = |name| Workload { kind: "Pod".into(), name };
        let owner = fields.k8s.and_then(|k8s| Some((k8s.namespace?, k8s.workload.or(k8s.pod_name.map(pod_alone))?)));
        self.open.push_back(Open { seq: fields.seq, us, key: (verdict.cause, culprit), pod, owner, count });
        if self.open.len() > OPEN
            && let Some(oldest) = self.open.pop_front()
        {
            self.count(oldest);
        }
    }

    fn count(&mut self, open: Open) {
        let Open { us, key, pod, owner, count, .. } = open;
        let has_room = self.groups.len() < CULPRITS || self.groups.contains_key(&key);
        let key = if has_room { key } else { (key.0, Some("others".to_owned())) };
        let group = self.groups.entry(key).or_insert_with(|| Group { first_us: us, ..Group::default() });
        group.verdicts = group.verdicts.saturating_add(count);
        group.first_us = group.first_us.min(us);
        group.last_us = group.last_us.max(us);
        if group.pods.len() < PODS {
            group.pods.insert(pod);
        }
        if let Some(owner) = owner.filter(|it| group.owners.len() < PODS || group.owners.contains_key(it)) {
            group.owners.entry(owner).or_default().insert(pod);
        }
    }
}

impl Sink for NodeTally {
    fn take(&mut self, head: &Head<'_>, line: &[u8]) -> bool {
        if head.kind != "verdict" {
            return true;
        }
        let us = head.time.parse::<Timestamp>().map(Timestamp::as_microsecond);
        match (us, serde_json::from_slice::<Fields<'_>>(line)) {
            (Ok(us), Ok(fields)) if fields.verdict.is_some() => self.add(fields, us),
            _ => return false,
        }
        true
    }
}

/// A hash of the pod; of the target address if no pod is known.
fn hash_of(fields: &Fields<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match &fields.k8s {
        Some(K8s { pod_uid: Some(uid), .. }) => uid.hash(&mut hasher),
        Some(K8s { namespace, pod_name, .. }) => (namespace, pod_name).hash(&mut hasher),
        None => fields.dst.map(|dst| (dst.addr, dst.port)).hash(&mut hasher),
    }
    hasher.finish()
}

/// The culprit as text, without what differs between nodes: process ids and paths in `/proc`.
fn text_of(culprit: &Culprit) -> String {
    let exe = culprit.exe.as_ref().filter(|exe| !exe.starts_with("/proc/"));
    let name = exe.map_or_else(|| culprit.comm.clone(), |exe| format!("{} ({exe})", culprit.comm));
    let family: Vec<_> = culprit.ancestors.iter().map(|it| it.comm.as_str()).filter(|it| *it != "systemd").collect();
    let family = if family.is_empty() { String::new() } else { format!(", child of {}", family.join(" < ")) };
    format!("{name}{family}: {}", culprit.op.replace('_', " "))
}

#[derive(Debug, Default)]
pub(crate) struct CauseTally {
    pub(crate) verdicts: u64,
    pub(crate) pods: u64,
    /// Nodes, and the first failure on each, µs.
    pub(crate) nodes: BTreeMap<String, i64>,
    pub(crate) last_us: i64,
    pub(crate) culprits: BTreeMap<String, Nodes>,
    pub(crate) owners: BTreeMap<Owner, u64>,
}

/// Nodes that have something in common.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) count: u64,
    pub(crate) first_us: i64,
    pub(crate) first: String,
}

#[derive(Debug, Default)]
pub(crate) struct Causes(BTreeMap<Cause, CauseTally>);

impl Causes {
    pub(crate) fn add(&mut self, node: &str, groups: HashMap<(Cause, Option<String>), Group>) {
        let mut pods: HashMap<Cause, HashSet<u64>> = HashMap::new();
        let mut owners: HashMap<(Cause, Owner), HashSet<u64>> = HashMap::new();
        for ((cause, culprit), group) in groups {
            let tally = self.0.entry(cause).or_default();
            tally.verdicts = tally.verdicts.saturating_add(group.verdicts);
            tally.last_us = tally.last_us.max(group.last_us);
            let first = tally.nodes.entry(node.to_owned()).or_insert(group.first_us);
            *first = (*first).min(group.first_us);
            if let Some(culprit) = culprit {
                tally.add_culprit(culprit, node, group.first_us);
            }
            // A pod that fails by two culprits is one pod.
            pods.entry(cause).or_default().extend(group.pods);
            group.owners.into_iter().for_each(|(owner, of)| owners.entry((cause, owner)).or_default().extend(of));
        }
        for (cause, pods) in pods {
            self.0.entry(cause).or_default().pods += pods.len() as u64;
        }
        for ((cause, owner), pods) in owners {
            let known = &mut self.0.entry(cause).or_default().owners;
            if known.len() < WORKLOADS || known.contains_key(&owner) {
                *known.entry(owner).or_default() += pods.len() as u64;
            }
        }
    }

    /// The causes with most pods first; `unexplained` last.
    pub(crate) fn ranked(self) -> Vec<(Cause, CauseTally)> {
        let mut all: Vec<_> = self.0.into_iter().collect();
        all.sort_by_key(|(cause, it)| (*cause == Cause::Unexplained, Reverse((it.pods, it.nodes.len(), it.verdicts))));
        all
    }
}

impl CauseTally {
    fn add_culprit(&mut self, culprit: String, node: &str, us: i64) {
        let has_room = self.culprits.len() < CULPRITS || self.culprits.contains_key(&culprit);
        let culprit = if has_room { culprit } else { "others".to_owned() };
        let nodes = self.culprits.entry(culprit).or_default();
        if nodes.count == 0 || us < nodes.first_us {
            nodes.first_us = us;
            node.clone_into(&mut nodes.first);
        }
        nodes.count += 1;
    }

    /// The first failure, µs.
    pub(crate) fn first_us(&self) -> i64 {
        self.nodes.values().copied().min().unwrap_or_default()
    }

    pub(crate) fn first_nodes(&self, most: usize) -> Vec<(&str, i64)> {
        let mut nodes: Vec<_> = self.nodes.iter().map(|(node, us)| (node.as_str(), *us)).collect();
        nodes.sort_by_key(|(_, us)| *us);
        nodes.truncate(most);
        nodes
    }
}
