//! Probes that failed before they made a connection, as the kubelet reports.

use super::Core;
use super::outcomes::is_in_time;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_classify::finding::Finding;
use tracer_classify::kubelet::Unattached;
use tracer_classify::not_connected;
use tracer_model::event::KubeletProbe;

impl Core {
    /// A verdict for a probe that failed before it made a connection. If the prober tried another address of the same
    /// name, the verdict on that attempt is enough.
    pub(super) fn not_connected(&self, probe: &KubeletProbe) -> Option<(Finding, Unattached)> {
        let elsewhere = |a: &Attempt| probe.dst.is_some_and(|dst| dst != a.flow.dst) && a.kubelet().is_none();
        let is_same =
            |a: &Attempt| elsewhere(a) && is_in_time(a, probe) && Matched::new(a, &self.node).is_probe_of(probe);
        let has_attempt = self.correlator.all().any(|a| is_same(a) && (a.ended.is_none() || self.has_failed(a)));
        not_connected::verdict(probe, &self.node).filter(|_| !has_attempt)
    }
}
