//! Failures that the kubelet counted, against those that verdicts were told of.
//!
//! A count says how many attempts of a probe failed between two readings, not when and not why. So it is compared with what
//! was told of that probe around that time; what is left over was seen by the kubelet alone. Of a command that is a verdict
//! of its own, since nothing else tells of it; of a network probe it is a disagreement, which is said, and no cause.

use std::collections::VecDeque;

use super::records::{finding_record, unattached};
use crate::classify::counts::{Counted, disagreement, handler, of_command};
use crate::correlate::attempt::Attempt;
use crate::correlate::node::Node;
use crate::enrich::Named;
use tracer_model::decision::Decision;
use tracer_model::event::{FailureCount, Handler, KubeletProbe, Pod, PodRef, ProbeCounts, ProbeType};
use tracer_model::recent::Recent;
use tracer_model::record::Subject;

/// Words of the kubelet and the ends of attempts may come this much later than the count.
const GRACE_NS: u64 = 10_000_000_000;
/// A verdict may be told this much before the kubelet counts the attempt: at its first dropped SYN, say.
const EARLY_NS: u64 = 60_000_000_000;
/// Readings that are further apart (the kubelet did not answer) are not compared.
const WINDOW_NS: u64 = 120_000_000_000;
/// A disagreement about a probe is told again after this.
const AGAIN_NS: u64 = 3_600_000_000_000;
/// Probes remembered.
const MAX_PROBES: usize = 4096;
/// Failures remembered of each.
const MAX_TIMES: usize = 256;
/// Readings that wait.
const MAX_WAITING: usize = 16;

/// A probe, as far as it is known which one; a pod without names stands for any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod: PodRef,
    container: Option<String>,
    probe_type: Option<ProbeType>,
}

/// What was seen of it.
#[derive(Debug, Default)]
struct Tally {
    /// When verdicts told of failures that no count has been matched with.
    failed: VecDeque<u64>,
    /// When an attempt last went well.
    well: Option<u64>,
}

/// Failures of a command that were told by their count.
#[derive(Debug)]
struct Told {
    key: Key,
    within: (u64, u64),
    left: u64,
}

/// What was counted and what was told.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// The kubelet's counters are read: before, nothing is kept.
    following: bool,
    /// What happened before was not seen.
    since: u64,
    tallies: Recent<Key, Tally, MAX_PROBES>,
    waiting: VecDeque<ProbeCounts>,
    disagreements: Recent<Key, u64, MAX_PROBES>,
    commands: VecDeque<Told>,
}

impl Counts {
    /// The stream begins.
    pub(super) const fn begin(&mut self, time: u64) {
        self.since = time;
    }

    /// The kubelet's counters are read.
    pub(super) const fn is_following(&self) -> bool {
        self.following
    }

    /// A reading; it is compared when the rest had the time to arrive.
    pub(super) fn take(&mut self, counts: &ProbeCounts) {
        self.following = true;
        if self.waiting.len() < MAX_WAITING && !counts.failed.is_empty() {
            self.waiting.push_back(counts.clone());
        }
    }

    /// When the next one is to be compared.
    pub(super) fn due(&self) -> Option<u64> {
        self.waiting.front().map(|it| it.to_boot_ns.saturating_add(GRACE_NS))
    }

    /// The run ends: what would still have arrived is not known.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
    }

    /// A verdict tells of a failed attempt of the prober.
    pub(super) fn failed(&mut self, attempt: &Attempt, named: &Named, node: &Node, time: u64) {
        if self.following && attempt.prober && may_be_a_probe(named, node) {
            self.note(Key::of(named), time);
        }
    }

    /// An attempt of the prober went well.
    pub(super) fn went_well(&mut self, attempt: &Attempt, named: &Named, node: &Node, time: u64) {
        if self.following && attempt.prober && may_be_a_probe(named, node) {
            self.tallies.or_default(Key::of(named)).well = Some(time);
        }
    }

    /// A verdict tells of a probe that failed by the kubelet's words alone: a command, or a no on one of several connections.
    pub(super) fn unattached(&mut self, probe: &KubeletProbe) {
        if self.following && probe.is_counted() {
            self.note(Key::told(probe), probe.written_boot_ns);
        }
    }

    /// Its failure was told by the count already.
    pub(super) fn know(&mut self, probe: &KubeletProbe) -> bool {
        let (key, from, until) = (Key::told(probe), probe.written_boot_ns, probe.written_until());
        let is = |it: &&mut Told| it.left > 0 && it.key.fits(&key) && it.within.0 <= until && from <= it.within.1;
        let known = self.commands.iter_mut().find(is).filter(|_| probe.is_counted());
        known.map(|it| it.left -= 1).is_some()
    }

    fn note(&mut self, key: Key, time: u64) {
        let tally = self.tallies.or_default(key);
        if tally.failed.len() >= MAX_TIMES {
            tally.failed.pop_front();
        }
        tally.failed.push_back(time);
    }

    /// The next reading whose time has come.
    fn next(&mut self, now: u64) -> Option<ProbeCounts> {
        self.due().filter(|due| *due <= now)?;
        self.waiting.pop_front()
    }

    /// Matches what was counted of a probe with what was told of it, each once.
    fn matched(&mut self, count: &FailureCount, window: (u64, u64)) -> Counted {
        let key = Key::counted(count);
        let (from, until) = (window.0.saturating_sub(EARLY_NS), window.1.saturating_add(GRACE_NS));
        let mut counted = Counted { failures: count.failures, told: 0, well: false, window };
        for (_, tally) in self.tallies.iter_mut().filter(|(of, _)| of.fits(&key)) {
            tally.failed.retain(|at| {
                let is_it = counted.told < count.failures && (from..=until).contains(at);
                counted.told += u64::from(is_it);
                !is_it && *at >= from
            });
            counted.well |= tally.well.is_some_and(|at| at >= window.0);
        }
        counted
    }

    /// Whether a disagreement is to be told.
    fn is_news(&mut self, count: &FailureCount, now: u64) -> bool {
        let key = Key::counted(count);
        if self.disagreements.get(&key).is_some_and(|last| now < last.saturating_add(AGAIN_NS)) {
            return false;
        }
        self.disagreements.insert(key, now);
        true
    }

    fn note_command(&mut self, count: &FailureCount, counted: &Counted) {
        if self.commands.len() >= MAX_TIMES {
            self.commands.pop_front();
        }
        let left = counted.unseen();
        self.commands.push_back(Told { key: Key::counted(count), within: counted.window, left });
    }

    /// Compares the readings whose time has come.
    pub(super) fn compare(&mut self, now: u64, node: &Node, out: &mut Vec<Decision>) {
        while let Some(counts) = self.next(now) {
            let window = (counts.from_boot_ns, counts.to_boot_ns);
            // A loss record has told already that verdicts may be missing.
            let lost = node.lost_between(window.0, window.1) > 0;
            for count in &counts.failed {
                let counted = self.matched(count, window);
                if counted.unseen() > 0 && !lost && self.is_comparable(window) {
                    out.extend(self.tell(count, &counted, now, node));
                }
            }
        }
    }

    fn tell(&mut self, count: &FailureCount, counted: &Counted, now: u64, node: &Node) -> Option<Decision> {
        if handler(count, node) == Some(Handler::Exec) {
            self.note_command(count, counted);
            let (finding, named) = of_command(count, counted, node);
            return Some(unattached(finding, named, None));
        }
        self.is_news(count, now).then(|| finding_record(now, disagreement(count, counted, node)))
    }

    /// What happened in between was seen.
    const fn is_comparable(&self, (from, until): (u64, u64)) -> bool {
        from >= self.since && until.saturating_sub(from) <= WINDOW_NS
    }
}

impl Key {
    fn of(named: &Named) -> Self {
        let k8s = named.k8s.clone().unwrap_or_default();
        Self {
            pod: PodRef { namespace: k8s.namespace, name: k8s.pod_name, uid: k8s.pod_uid },
            container: k8s.container_name,
            probe_type: named.probe.as_ref().and_then(|it| it.probe_type),
        }
    }

    fn told(probe: &KubeletProbe) -> Self {
        Self { pod: probe.pod.clone(), container: probe.container.clone(), probe_type: Some(probe.probe_type) }
    }

    fn counted(count: &FailureCount) -> Self {
        Self { pod: count.pod.clone(), container: Some(count.container.clone()), probe_type: Some(count.probe_type) }
    }

    /// It may be the same: what is not known fits everything, so that nothing is said too much.
    fn fits(&self, other: &Self) -> bool {
        fn may<T: PartialEq>(left: Option<&T>, right: Option<&T>) -> bool {
            left.zip(right).is_none_or(|(left, right)| left == right)
        }
        let pod = self.pod == PodRef::default() || self.pod.is_same(&other.pod);
        pod && may(self.container.as_ref(), other.container.as_ref())
            && may(self.probe_type.as_ref(), other.probe_type.as_ref())
    }
}

/// What the kubelet dials besides (the API server) counts for no probe; where no list tells what is probed, all may be.
fn may_be_a_probe(named: &Named, node: &Node) -> bool {
    let is_known = |pod: &Pod| pod.containers.iter().any(|it| !it.probes.is_empty() || !it.exec.is_empty());
    named.k8s.is_some() || named.subject == Subject::Probe || !node.pods.iter().any(is_known)
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
