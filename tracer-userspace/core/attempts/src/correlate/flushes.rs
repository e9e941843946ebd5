//! Bulk removals of rules and routes.

use std::collections::VecDeque;

use tracer_model::event::{Netns, RulesFlushed};
use tracer_model::recent::remember;

const MAX: usize = 32;

/// The last flushes.
#[derive(Debug, Default)]
pub struct Flushes(VecDeque<RulesFlushed>);

impl Flushes {
    pub(super) fn observe(&mut self, flushed: &RulesFlushed) {
        remember(MAX, &mut self.0, flushed.clone());
    }

    /// The flushes of a namespace that began before `time`, the last one first.
    pub fn before(&self, netns: Netns, time: u64) -> impl Iterator<Item = &RulesFlushed> {
        self.0.iter().rev().filter(move |it| it.netns == netns && it.since_boot_ns <= time)
    }
}
