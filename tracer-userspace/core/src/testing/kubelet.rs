//! What the kubelet says of the readiness probe of the pod, and of others.

use super::Stream;
use super::facts::readiness_failed;
use tracer_model::event::{KubeletProbe, KubeletResult, ObservationKind, ProbeOutput, ProbeType};

impl Stream {
    /// The kubelet's line about the readiness probe of the pod, now.
    pub fn kubelet(&mut self, says: ProbeOutput) -> &mut Self {
        let written_boot_ns = self.now;
        self.push(ObservationKind::KubeletProbe(Box::new(KubeletProbe { written_boot_ns, ..readiness_failed(says) })))
    }

    /// The same, written at this time and read now.
    pub fn kubelet_at(&mut self, says: ProbeOutput, written_boot_ns: u64) -> &mut Self {
        self.push(ObservationKind::KubeletProbe(Box::new(KubeletProbe { written_boot_ns, ..readiness_failed(says) })))
    }

    /// The kubelet says that the probe of this kind errored, in these words.
    pub fn kubelet_error(&mut self, probe_type: ProbeType, says: ProbeOutput, words: &str) -> &mut Self {
        let (written_boot_ns, result) = (self.now, KubeletResult::Error);
        let reported = KubeletProbe { written_boot_ns, probe_type, result, ..readiness_failed(says) };
        self.push(ObservationKind::KubeletProbe(Box::new(KubeletProbe { output: Some(words.into()), ..reported })))
    }

    /// The kubelet says that the probe of this kind failed on the network, in these words.
    pub fn kubelet_messages(&mut self, probe_type: ProbeType, words: &str) -> &mut Self {
        let (written_boot_ns, dialled) = (self.now, words.split_once("dial tcp ").and_then(|it| it.1.split_once(": ")));
        let (output, dst) = (Some(words.into()), dialled.and_then(|(dst, _)| dst.parse().ok()));
        let reported = readiness_failed(ProbeOutput::Network);
        self.push(ObservationKind::KubeletProbe(Box::new(KubeletProbe {
            written_boot_ns,
            probe_type,
            output,
            dst,
            ..reported
        })))
    }

    /// The same about another of its probes.
    pub fn kubelet_of(&mut self, probe_type: ProbeType, says: ProbeOutput) -> &mut Self {
        let written_boot_ns = self.now;
        let reported = KubeletProbe { written_boot_ns, probe_type, ..readiness_failed(says) };
        self.push(ObservationKind::KubeletProbe(Box::new(reported)))
    }

    /// An Event about the readiness probe of the pod, of the second that began this long ago.
    pub fn kubelet_event(&mut self, says: ProbeOutput, ago_ms: u64) -> &mut Self {
        let written_boot_ns = self.now - ago_ms * 1_000_000;
        self.push(ObservationKind::KubeletProbe(Box::new(KubeletProbe {
            written_boot_ns,
            pid: None,
            event_count: Some(3),
            ..readiness_failed(says)
        })))
    }
}
