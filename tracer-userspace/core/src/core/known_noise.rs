//! Some noise is the same for each attempt until the pod changes. It is emitted once for each target.

use std::net::SocketAddr;

use super::Core;
use tracer_case::finding::Finding;
use tracer_model::event::{ConnId, Netns};
use tracer_model::recent::Recent;
use tracer_model::record::Cause;

const MAX_TARGETS: usize = 4096;

/// The summary that was emitted last, by target and by the namespace that connects to it.
#[derive(Debug, Default)]
pub(super) struct KnownNoise(Recent<(Option<Netns>, SocketAddr), String, MAX_TARGETS>);

impl Core {
    /// The same was emitted for an earlier attempt to this target.
    pub(super) fn is_known_noise(&mut self, conn: ConnId, finding: &Finding) -> bool {
        let attempt = self.correlator.get(conn).filter(|_| finding.cause == Cause::ProbeProvesNothing);
        let Some(target) = attempt.map(|it| (it.netns, it.flow.dst)) else { return false };
        let is_known = self.known_noise.0.get(&target) == Some(&finding.summary);
        self.known_noise.0.insert(target, finding.summary.clone());
        is_known
    }
}
