//! What is reported about the node itself, apart from its attempts.

use super::losses::Losses;
use super::records::finding_record;
use crate::node_events;
use crate::node_events::findings::{Known, new_records};
use crate::node_events::firewall_drop::Dropping;
use tracer_attempts::correlate::node::Node;
use tracer_model::decision::Decision;
use tracer_model::event::{Loss, Observation, ObservationKind};

/// What was reported about it so far.
#[derive(Debug, Default)]
pub(super) struct NodeNews {
    dropping: Dropping,
    checks: Known,
    losses: Losses,
}

impl NodeNews {
    /// The records that an observation makes; `node` is the node as it was before.
    pub(super) fn push(&mut self, observation: &Observation, node: &Node, out: &mut Vec<Decision>) {
        let time = observation.time_boot_ns;
        out.extend(node_events::decide(observation, node));
        out.extend(self.dropping.new_records(observation, node));
        match &observation.kind {
            ObservationKind::Loss(loss) => out.extend(self.lost(time, loss)),
            ObservationKind::Findings(findings) => {
                out.extend(new_records(findings, &mut self.checks).into_iter().map(|it| finding_record(time, it)));
            }
            _ => {}
        }
    }

    /// Something was lost; its record, if it is to be written now.
    pub(super) fn lost(&mut self, time: u64, loss: &Loss) -> Option<Decision> {
        self.losses.push(time, loss)
    }

    /// When the first of those that wait is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.losses.due()
    }

    /// Tells of those that are due.
    pub(super) fn fire(&mut self, now: u64, out: &mut Vec<Decision>) {
        self.losses.fire(now, out);
    }
}
