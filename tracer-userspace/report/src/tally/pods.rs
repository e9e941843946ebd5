//! Counts by pod and cause, with the first and the last verdict of each.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use super::super::line::{Group, PodKey};
use super::scale::{Scale, Series};
use tracer_model::record::Confidence;

/// Pods that are counted apart; all others are counted as one.
const PODS: usize = 2048;
/// Bytes of verdicts that are kept for the page.
const EXAMPLE_BYTES: usize = 32 << 20;

/// A verdict as it is in the file.
#[derive(Debug)]
pub(crate) struct Example {
    /// The verdict's number on the page.
    pub(crate) id: u64,
    /// When, µs.
    pub(crate) us: i64,
    pub(crate) line: Box<[u8]>,
}

/// One cause at one pod.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Verdicts that are not revised.
    pub(crate) count: u64,
    /// The verdicts by confidence: possible, likely, proven.
    pub(crate) confidences: [u64; 3],
    pub(crate) series: Series,
    /// The first kept verdict that is not revised.
    pub(crate) first: Option<Rc<Example>>,
    pub(crate) last: Option<Rc<Example>>,
}

#[derive(Debug, Default)]
pub(crate) struct Pod {
    /// Attempts that succeeded.
    pub(crate) passed: u64,
    /// When attempts succeeded.
    pub(crate) passed_when: Series,
    /// The attempts with a verdict, by cause.
    pub(crate) lanes: BTreeMap<Group, Lane>,
}

/// Where a verdict was counted, so that it can be taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    id: u64,
    us: i64,
    pod: usize,
    group: Group,
    confidence: Confidence,
}

pub(super) struct CountedVerdict<'a> {
    pub(super) us: i64,
    /// How many verdicts the record stands for.
    pub(super) count: u64,
    pub(super) group: Group,
    pub(super) confidence: Confidence,
    pub(super) line: &'a [u8],
}

#[derive(Debug)]
pub(crate) struct Pods {
    index: HashMap<PodKey, usize>,
    /// The first entry counts all pods beyond the limit.
    pods: Vec<(PodKey, Pod)>,
    /// Whether there were more pods than are counted apart.
    pub(crate) too_many: bool,
    next_id: u64,
    bytes: usize,
    /// Whether a verdict was not kept because there was no room.
    pub(crate) full: bool,
}

impl Default for Pods {
    fn default() -> Self {
        let others = PodKey { node: String::new(), name: "all other pods".into() };
        let pods = vec![(others, Pod::default())];
        Self { index: HashMap::new(), pods, too_many: false, next_id: 0, bytes: 0, full: false }
    }
}

impl Pods {
    /// Counts an attempt that succeeded.
    pub(super) fn pass(&mut self, key: PodKey, us: i64, scale: &Scale) {
        let pod = self.place(key);
        let pod = &mut self.pods[pod].1;
        pod.passed += 1;
        pod.passed_when.add(us, 1, scale);
    }

    pub(super) fn count(&mut self, key: PodKey, reported: &CountedVerdict<'_>, scale: &Scale) -> Counted {
        let pod = self.place(key);
        let id = self.next_id;
        self.next_id += 1;
        let lane = self.pods[pod].1.lanes.entry(reported.group).or_default();
        lane.count += reported.count;
        lane.confidences[reported.confidence as usize] += reported.count;
        lane.series.add(reported.us, reported.count, scale);
        let before = lane.kept_bytes();
        if self.bytes - before + 2 * reported.line.len() <= EXAMPLE_BYTES {
            lane.keep(id, reported);
        } else {
            self.full = true;
        }
        self.bytes = self.bytes + lane.kept_bytes() - before;
        Counted { id, us: reported.us, pod, group: reported.group, confidence: reported.confidence }
    }

    /// Takes back a verdict.
    pub(super) fn retract(&mut self, counted: Counted, scale: &Scale) {
        let lanes = &mut self.pods[counted.pod].1.lanes;
        let Some(lane) = lanes.get_mut(&counted.group) else { return };
        let before = lane.kept_bytes();
        lane.count -= 1;
        lane.confidences[counted.confidence as usize] -= 1;
        lane.series.take(counted.us, scale);
        lane.forget(counted.id);
        self.bytes = self.bytes + lane.kept_bytes() - before;
        if lane.count == 0 {
            lanes.remove(&counted.group);
        }
    }

    /// Failures with a verdict that is not revised.
    pub(super) fn failures(&self) -> u64 {
        let lanes = self.pods.iter().flat_map(|(_, pod)| &pod.lanes);
        lanes.filter(|(group, _)| !group.noise).map(|(_, lane)| lane.count).sum()
    }

    pub(crate) fn into_pods(self) -> impl Iterator<Item = (PodKey, Pod)> {
        self.pods.into_iter().filter(|(_, pod)| pod.passed > 0 || !pod.lanes.is_empty())
    }

    fn place(&mut self, key: PodKey) -> usize {
        if let Some(&place) = self.index.get(&key) {
            return place;
        }
        if self.pods.len() > PODS {
            self.too_many = true;
            return 0;
        }
        self.pods.push((key.clone(), Pod::default()));
        self.index.insert(key, self.pods.len() - 1);
        self.pods.len() - 1
    }
}

impl Lane {
    /// Keeps a verdict if it is the first or the last one.
    fn keep(&mut self, id: u64, reported: &CountedVerdict<'_>) {
        let first = self.first.as_ref().is_none_or(|first| reported.us < first.us);
        let last = self.last.as_ref().is_none_or(|last| reported.us >= last.us);
        if first || last {
            let example = Rc::new(Example { id, us: reported.us, line: reported.line.into() });
            self.last = if last { Some(Rc::clone(&example)) } else { self.last.take() };
            self.first = if first { Some(example) } else { self.first.take() };
        }
    }

    /// Removes a kept verdict. The other kept verdict then is both the first and the last.
    fn forget(&mut self, id: u64) {
        let other_than = |example: &Rc<Example>| example.id != id;
        let (first, last) = (self.first.take().filter(other_than), self.last.take().filter(other_than));
        self.first = first.clone().or_else(|| last.clone());
        self.last = last.or(first);
    }

    fn kept_bytes(&self) -> usize {
        let bytes = |example: &Option<Rc<Example>>| example.as_ref().map_or(0, |it| it.line.len());
        bytes(&self.first) + bytes(&self.last)
    }
}
