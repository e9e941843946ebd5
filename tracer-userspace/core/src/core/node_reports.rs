//! Records about the node itself: losses, flushed rules, findings and events of the node.

use super::paced::Paced;
use super::records::{finding_record, loss_record};
use crate::node_events::findings::{Known, new_records};
use crate::node_events::firewall_drop::Dropping;
use crate::node_events::links_read::LinksRead;
use crate::node_events::{self, rules_flushed};
use tracer_attempts::correlate::node::Node;
use tracer_model::decision::Decision;
use tracer_model::event::{Loss, Observation, ObservationKind, RulesFlushed};

/// What was reported about the node so far.
#[derive(Debug, Default)]
pub(super) struct NodeReports {
    dropping: Dropping,
    links: LinksRead,
    checks: Known,
    losses: Paced<Loss>,
    flushes: Paced<RulesFlushed>,
}

impl NodeReports {
    /// Adds the records that follow from an observation; `node` is its state before the observation.
    pub(super) fn push(&mut self, observation: &Observation, node: &Node, out: &mut Vec<Decision>) {
        let time = observation.time_boot_ns;
        out.extend(node_events::decide(observation, node));
        out.extend(self.links.new_records(observation, node));
        out.extend(self.dropping.new_records(observation, node));
        match &observation.kind {
            ObservationKind::Loss(loss) => out.extend(self.lost(time, loss)),
            ObservationKind::RulesFlushed(reading) if rules_flushed::is_event(reading, node) => {
                let sum = self.flushes.push(&rules_flushed::kind(reading), time, reading);
                out.extend(sum.map(|sum| rules_flushed::record(time, &sum, node)));
            }
            ObservationKind::Findings(findings) => {
                out.extend(new_records(findings, &mut self.checks).into_iter().map(|it| finding_record(time, it)));
            }
            _ => {}
        }
    }

    /// Takes a loss in; returns a record if one is due now.
    pub(super) fn lost(&mut self, time: u64, loss: &Loss) -> Option<Decision> {
        self.losses.push(&loss.where_, time, loss).map(|sum| loss_record(time, &sum))
    }

    /// When the first waiting record is due.
    pub(super) fn due(&self) -> Option<u64> {
        [self.losses.due(), self.flushes.due(), self.links.due()].into_iter().flatten().min()
    }

    /// Adds the records that are due.
    pub(super) fn fire(&mut self, now: u64, node: &Node, out: &mut Vec<Decision>) {
        out.extend(self.links.fire(now, node));
        out.extend(self.losses.fire(now).iter().map(|(time, sum)| loss_record(*time, sum)));
        out.extend(self.flushes.fire(now).iter().map(|(time, sum)| rules_flushed::record(*time, sum, node)));
    }
}
