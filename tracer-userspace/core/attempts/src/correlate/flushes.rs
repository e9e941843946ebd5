//! Bulk removals of rules and routes.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use tracer_model::event::{FlushedRules, Netns, RulesFlushed};
use tracer_model::recent::remember;

const MAX: usize = 32;
/// How many reached targets are kept of each.
const MAX_REACHED: usize = 4096;

/// The last flushes, each with the targets that were reached after its report: for these it was repaired, or it did no
/// harm.
#[derive(Debug, Default)]
pub struct Flushes(VecDeque<(RulesFlushed, BTreeSet<IpAddr>)>);

impl Flushes {
    pub(super) fn observe(&mut self, flushed: &RulesFlushed) {
        remember(MAX, &mut self.0, (flushed.clone(), BTreeSet::new()));
    }

    /// A connection from this namespace to this target was established. `node`: the namespace of its node, if it is that
    /// of a pod. The rules there are also for the node's pods.
    pub fn observe_reached(&mut self, netns: Netns, node: Option<Netns>, target: IpAddr) {
        let passes = |it: &RulesFlushed| node == Some(it.netns) && matches!(it.rules, FlushedRules::Nftables { .. });
        let applies = |it: &RulesFlushed| it.netns == netns || passes(it);
        for (_, reached) in self.0.iter_mut().filter(|(it, reached)| applies(it) && reached.len() < MAX_REACHED) {
            reached.insert(target);
        }
    }

    /// The flushes of a namespace that began before `time` and may still keep packets from the target, the last one
    /// first. Without a target: all of them.
    pub fn before(
        &self,
        netns: Netns,
        time: u64,
        target: impl Into<Option<IpAddr>>,
    ) -> impl Iterator<Item = &RulesFlushed> {
        let target = target.into();
        let fits = move |it: &RulesFlushed| it.netns == netns && it.since_boot_ns <= time;
        let was_reached = move |reached: &BTreeSet<IpAddr>| target.is_some_and(|target| reached.contains(&target));
        self.0.iter().rev().filter(move |(it, reached)| fits(it) && !was_reached(reached)).map(|(it, _)| it)
    }
}
