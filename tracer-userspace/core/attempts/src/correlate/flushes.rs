//! Bulk removals of rules and routes.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tracer_model::event::{FlushedRules, Netns, RulesFlushed};
use tracer_model::recent::remember;

const MAX: usize = 32;
/// How many reached targets are kept of each.
const MAX_REACHED: usize = 4096;

/// The last flushes, each with the targets that were reached after its report, and when: for these it was repaired, or it
/// did no harm.
#[derive(Debug, Default)]
pub struct Flushes(VecDeque<(RulesFlushed, BTreeMap<IpAddr, u64>)>);

impl Flushes {
    pub(super) fn observe(&mut self, flushed: &RulesFlushed) {
        remember(MAX, &mut self.0, (flushed.clone(), BTreeMap::new()));
    }

    /// A connection from this namespace to this target was established. `node`: the namespace of its node, if it is that
    /// of a pod. The rules there are also for the node's pods.
    pub fn observe_reached(&mut self, time: u64, netns: Netns, node: Option<Netns>, target: IpAddr) {
        let passes = |it: &RulesFlushed| node == Some(it.netns) && matches!(it.rules, FlushedRules::Nftables { .. });
        let applies = |it: &RulesFlushed| it.netns == netns || passes(it);
        for (_, reached) in self.0.iter_mut().filter(|(it, reached)| applies(it) && reached.len() < MAX_REACHED) {
            reached.entry(target).or_insert(time);
        }
    }

    /// The flushes of a namespace that began before `time` and kept packets from the target until `over`, the last one
    /// first. Without a target: all of them.
    pub fn before(
        &self,
        netns: Netns,
        time: u64,
        reached: impl Into<Option<(IpAddr, u64)>>,
    ) -> impl Iterator<Item = &RulesFlushed> {
        let reached = reached.into();
        let fits = move |it: &RulesFlushed| it.netns == netns && it.since_boot_ns <= time;
        let is_reached = |of: &BTreeMap<IpAddr, u64>, (target, over)| of.get(&target).is_some_and(|at| *at <= over);
        let was_reached = move |of: &BTreeMap<IpAddr, u64>| reached.is_some_and(|reached| is_reached(of, reached));
        self.0.iter().rev().filter(move |(it, reached)| fits(it) && !was_reached(reached)).map(|(it, _)| it)
    }
}
