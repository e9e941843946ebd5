//! An Event of this node's kubelet as an observation. Its text is that of the log line, its time has whole seconds
//! only.
//!
//! The kubelet counts equal Events in one, and combines different ones after the tenth within ten minutes. It sends at
//! most 25 Events of a pod, and then one in five minutes (client-go, `tools/record/events_cache.go`). Therefore a
//! missing Event proves nothing.

use super::line::{LogOutcome, sandbox_of};
use tracer_model::event::{KubeletResult, ObservationKind, PodRef, ProbeType};

/// The start of the message of a combined Event. Its container is that of the first Event.
const COMBINED: &str = "(combined from similar events): ";

/// The fields of an Event that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeletEvent {
    /// The uid of the Event itself.
    pub(crate) uid: String,
    pub(crate) pod: PodRef,
    pub(crate) container: Option<String>,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// How often it was counted.
    pub(crate) count: u32,
    /// When it last happened, wall clock, in whole seconds.
    pub(crate) last_s: i64,
}

impl KubeletEvent {
    /// The observation, if tracer uses this kind of Event.
    pub(crate) fn kind(&self, boot_to_wall_ns: i64) -> Option<ObservationKind> {
        let wall_ns = self.last_s.saturating_mul(1_000_000_000);
        let written = u64::try_from(wall_ns.saturating_sub(boot_to_wall_ns)).ok()?;
        match self.reason.as_str() {
            "Unhealthy" => {
                let mut probe = self.reported()?.into_probe(written, None)?;
                probe.event_count = Some(self.count);
                Some(ObservationKind::KubeletProbe(Box::new(probe)))
            }
            "FailedCreatePodSandBox" | "NetworkNotReady" => {
                let words = self.words().strip_prefix("Failed to create pod sandbox: ").unwrap_or(self.words());
                sandbox_of(self.pod.clone(), words, written, None)
                    .map(|it| ObservationKind::SandboxFailure(Box::new(it)))
            }
            _ => None,
        }
    }

    fn words(&self) -> &str {
        self.message.strip_prefix(COMBINED).unwrap_or(&self.message)
    }

    /// `Readiness probe failed: …`, `… errored: …`, from 1.32 on `… errored and resulted in failure state: …`
    fn reported(&self) -> Option<LogOutcome> {
        let (kind, rest) = self.words().split_once(" probe ")?;
        let (how, output) = rest.split_once(':')?;
        let result = match how {
            "failed" => KubeletResult::Failure,
            _ if how.starts_with("errored") => KubeletResult::Error,
            _ => return None,
        };
        let is_combined = self.message.starts_with(COMBINED);
        Some(LogOutcome {
            pod: self.pod.clone(),
            container: self.container.clone().filter(|_| !is_combined),
            probe_type: ProbeType::from_kubelet(kind)?,
            result,
            output: output.trim().to_owned(),
            names_timeouts: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::{KubeletProbe, ProbeOutput, SandboxCause};

    fn event(reason: &str, message: &str) -> KubeletEvent {
        KubeletEvent {
            uid: "e".into(),
            pod: PodRef { namespace: Some("shop".into()), name: Some("cart".into()), uid: Some("u".into()) },
            container: Some("web".into()),
            reason: reason.into(),
            message: message.into(),
            count: 4,
            last_s: 1_000,
        }
    }

    fn probe(message: &str) -> Option<KubeletProbe> {
        match event("Unhealthy", message).kind(600_000_000_000)? {
            ObservationKind::KubeletProbe(probe) => Some(*probe),
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn messages_about_failed_probes_become_outcomes() {
        let reported = probe("Readiness probe failed: HTTP probe failed with statuscode: 503").unwrap();
        assert_eq!((reported.reason, reported.result), (ProbeOutput::Status(503), KubeletResult::Failure));
        assert_eq!((reported.written_boot_ns, reported.written_until()), (400_000_000_000, 401_000_000_000));
        assert_eq!((reported.container.as_deref(), reported.event_count), (Some("web"), Some(4)));
        let refused = "Liveness probe failed: Get \"http://10.88.0.5:8081/live\": dial tcp 10.88.0.5:8081: connect: connection refused";
        let reported = probe(refused).unwrap();
        assert_eq!((reported.probe_type, reported.dst), (ProbeType::Liveness, "10.88.0.5:8081".parse().ok()));
        for errored in
            ["errored: ", "errored and resulted in unknown state: ", "errored and resulted in failure state: "]
        {
            let words = "rpc error: code = Unknown desc = failed to exec in container";
            let reported = probe(&format!("Startup probe {errored}{words}")).unwrap();
            let expected = (KubeletResult::Error, ProbeOutput::CommandNotRun);
            assert_eq!((reported.result, reported.reason), expected, "{errored}");
        }
        assert_eq!(probe("Readiness probe failed: ").unwrap().reason, ProbeOutput::Nothing);
    }

    #[test]
    fn other_messages_are_no_outcome() {
        for message in
            ["Readiness probe warning: mode 302\n", "Back-off restarting failed container", "", "probe failed:"]
        {
            assert_eq!(probe(message), None, "{message}");
        }
        assert_eq!(event("Killing", "Readiness probe failed: x").kind(0), None);
    }

    #[test]
    fn an_event_with_an_invalid_pod_name_is_skipped() {
        for name in ["../cart", "cart?x", "cart/log", ""] {
            let mut of = event("Unhealthy", "Readiness probe failed: EOF");
            of.pod.name = Some(name.into());
            assert_eq!(of.kind(0), None, "{name}");
        }
    }

    /// A combined Event names the container of its first Event only.
    #[test]
    fn a_combined_event_has_no_container() {
        let reported =
            probe("(combined from similar events): Readiness probe failed: dial tcp 10.0.0.1:80: i/o timeout");
        assert_eq!(reported.map(|it| (it.container, it.reason)), Some((None, ProbeOutput::Timeout)));
    }

    #[test]
    fn a_sandbox_without_network_is_reported() {
        let message = "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \"a1\": open /run/flannel/subnet.env: no such file or directory";
        let Some(ObservationKind::SandboxFailure(failure)) = event("FailedCreatePodSandBox", message).kind(0) else {
            unreachable!()
        };
        assert_eq!(failure.cause, SandboxCause::SubnetFile);
        assert!(failure.words.starts_with("rpc error"), "{}", failure.words);
        let waits = "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized";
        let Some(ObservationKind::SandboxFailure(failure)) = event("NetworkNotReady", waits).kind(0) else {
            unreachable!()
        };
        assert_eq!(failure.cause, SandboxCause::NoConfig);
        let no_space = "Failed to create pod sandbox: no space left on device";
        assert_eq!(event("FailedCreatePodSandBox", no_space).kind(0), None);
    }
}
