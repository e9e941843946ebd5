//! Messages of the kubelet about the readiness probe of the pod, and about others.

use super::parts::readiness_failed;
use super::*;

impl Stream {
    /// The kubelet's line about the readiness probe of the pod, now, with these changes.
    pub fn kubelet_with(&mut self, reason: ProbeOutput, fill: impl FnOnce(&mut KubeletProbe)) -> &mut Self {
        let mut probe = KubeletProbe { written_boot_ns: self.now, ..readiness_failed(reason) };
        fill(&mut probe);
        self.push(ObservationKind::KubeletProbe(Box::new(probe)))
    }

    /// The kubelet's line about the readiness probe of the pod, now.
    pub fn kubelet(&mut self, reason: ProbeOutput) -> &mut Self {
        self.kubelet_with(reason, |_| ())
    }

    /// The same, written at this time and read now.
    pub fn kubelet_at(&mut self, reason: ProbeOutput, written_boot_ns: u64) -> &mut Self {
        self.kubelet_with(reason, |probe| probe.written_boot_ns = written_boot_ns)
    }

    /// The same about another of its probes.
    pub fn kubelet_of(&mut self, probe_type: ProbeType, reason: ProbeOutput) -> &mut Self {
        self.kubelet_with(reason, |probe| probe.probe_type = probe_type)
    }

    /// The same, which names the target.
    pub fn kubelet_at_target(&mut self, reason: ProbeOutput) -> &mut Self {
        let dst = self.flow.dst;
        self.kubelet_with(reason, |probe| probe.dst = Some(dst))
    }

    /// The kubelet reports that the probe of this kind errored, in these words.
    pub fn kubelet_error(&mut self, probe_type: ProbeType, reason: ProbeOutput, words: &str) -> &mut Self {
        self.kubelet_with(reason, |probe| {
            (probe.probe_type, probe.result, probe.output) = (probe_type, KubeletResult::Error, Some(words.into()));
        })
    }

    /// The kubelet reports that the probe of this kind failed on the network, in these words.
    pub fn kubelet_messages(&mut self, probe_type: ProbeType, words: &str) -> &mut Self {
        let connected = words.split_once("dial tcp ").and_then(|it| it.1.split_once(": "));
        self.kubelet_with(ProbeOutput::Network, |probe| {
            (probe.probe_type, probe.output) = (probe_type, Some(words.into()));
            probe.dst = connected.and_then(|(dst, _)| dst.parse().ok());
        })
    }

    /// The kubelet reports that the request of this scheme to the target failed, in these words.
    pub fn kubelet_request(&mut self, reason: ProbeOutput, scheme: &str, why: &str) -> &mut Self {
        let dst = self.flow.dst;
        self.kubelet_with(reason, |probe| {
            (probe.output, probe.dst) = (Some(format!("Get \"{scheme}://{dst}\": {why}")), Some(dst));
        })
    }

    /// An Event about the readiness probe of the pod, of the second that began this long ago.
    pub fn kubelet_event(&mut self, reason: ProbeOutput, ago_ms: u64) -> &mut Self {
        self.kubelet_with(reason, |probe| {
            probe.written_boot_ns -= ago_ms * 1_000_000;
            (probe.pid, probe.event_count) = (None, Some(3));
        })
    }
}
