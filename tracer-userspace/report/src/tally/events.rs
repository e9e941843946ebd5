//! Events of the nodes, and the times in which kernel events were lost.

use std::collections::BTreeMap;

use super::ends::Ends;
use super::scale::{Scale, Series};
use tracer_model::record::{LossBody, NodeBody};

/// How many of the first events, and of the last events, are kept.
const KEPT: usize = 200;
/// Kinds of events, and nodes, that are counted apart.
const KINDS: usize = 64;
/// Gaps that are kept apart.
const GAPS: usize = 512;
/// The port usage of a node, which comes once a minute. Only the newest of each node is kept.
const PORT_PRESSURE: &str = "port_pressure";

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) node: String,
    /// When, µs.
    pub(crate) us: i64,
    pub(crate) body: NodeBody,
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) kept: Ends<Event, KEPT>,
    pub(crate) series: BTreeMap<String, Series>,
    /// The newest port usage of each node.
    pub(crate) ports: BTreeMap<String, Event>,
    /// Port usages that there was no room for.
    pub(crate) ports_left_out: u64,
}

impl Events {
    pub(super) fn push(&mut self, event: Event, scale: &Scale) {
        if event.body.event == PORT_PRESSURE {
            if self.ports.len() < KINDS || self.ports.contains_key(&event.node) {
                self.ports.insert(event.node.clone(), event);
            } else {
                self.ports_left_out += 1;
            }
            return;
        }
        let kind = &event.body.event;
        let kind = if self.series.len() < KINDS || self.series.contains_key(kind) { kind } else { "other" };
        self.series.entry(kind.to_owned()).or_default().add(event.us, 1, scale);
        self.kept.push(event);
    }
}

/// How many events were lost, and when.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    gaps: Vec<(i64, i64)>,
    /// How many, by place.
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Losses {
    pub(super) fn push(&mut self, loss: &LossBody, boot_ns: u64, us: i64) {
        // What these lack, the records have.
        if ["events", "otlp"].contains(&loss.where_.as_str()) {
            return;
        }
        let wall = |at: u64| us.saturating_sub(i64::try_from(boot_ns.saturating_sub(at) / 1000).unwrap_or(i64::MAX));
        let (from, to) = (wall(loss.from_boot_ns), wall(loss.to_boot_ns));
        self.gaps.push((from.min(to), to));
        let known = self.counts.len() < KINDS || self.counts.contains_key(&loss.where_);
        let place = if known { loss.where_.as_str() } else { "other" };
        let count = self.counts.entry(place.to_owned()).or_default();
        *count = count.saturating_add(loss.count);
        if self.gaps.len() > GAPS {
            self.merge();
        }
    }

    /// The gaps, sorted and without overlap.
    pub(crate) fn into_gaps(mut self) -> Vec<(i64, i64)> {
        self.join(0);
        self.gaps
    }

    /// Joins gaps that are close to each other until there is room again.
    fn merge(&mut self) {
        let mut near = 1_000_000;
        self.join(near);
        while self.gaps.len() > GAPS / 2 {
            near = near.saturating_mul(2);
            self.join(near);
        }
    }

    fn join(&mut self, near: i64) {
        self.gaps.sort_unstable();
        self.gaps.dedup_by(|next, before| {
            let touches = next.0 <= before.1.saturating_add(near);
            before.1 = if touches { before.1.max(next.1) } else { before.1 };
            touches
        });
    }
}
