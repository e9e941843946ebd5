//! What the kubelet says of a probe that made no connection.

use super::Core;
use super::outcomes::is_in_time;
use crate::classify::finding::Finding;
use crate::classify::kubelet::Unattached;
use crate::classify::not_connected;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_model::event::KubeletProbe;

impl Core {
    /// It failed before it made a connection. Where the name has other addresses that were dialled, the verdict on those is the one.
    pub(super) fn not_connected(&self, probe: &KubeletProbe) -> Option<(Finding, Unattached)> {
        let elsewhere = |a: &Attempt| probe.dst.is_some_and(|dst| dst != a.flow.dst) && a.kubelet().is_none();
        let is_it =
            |a: &Attempt| elsewhere(a) && is_in_time(a, probe) && Matched::new(a, &self.node).is_probe_of(probe);
        let dialled = self.correlator.all().any(|a| is_it(a) && (a.ended.is_none() || self.has_failed(a)));
        not_connected::verdict(probe, &self.node).filter(|_| !dialled)
    }
}
