//! The latest kubelet outcomes. The kubelet writes a failure to its log and as an Event: tracer reports it once, and
//! prefers the log. tracer may read a line of the log twice, after a rotation.

use std::collections::VecDeque;

use super::records::unattached;
use crate::kubelet::sandbox;
use tracer_attempts::correlate::node::Node;
use tracer_model::decision::Decision;
use tracer_model::event::{KubeletProbe, PodRef, SandboxCause, SandboxFailure};
use tracer_model::recent::Recent;

const MAX_MESSAGES: usize = 1024;
/// An Event comes at most this long after the log line.
const KEPT_NS: u64 = 120_000_000_000;
/// The kubelet makes the Event this long after the log line, at most.
const MARGIN_NS: u64 = 50_000_000;
/// The time of a line is turned into boot time at each reading, which differs by less than this. The kubelet may run a
/// probe again 2 ms after its failure, when another probe of the container changes its result.
const SAME_LINE_NS: u64 = 500_000;
/// A pod without network is reported again after this.
const SANDBOX_AGAIN_NS: u64 = 300_000_000_000;
const MAX_SANDBOXES: usize = 1024;

/// The latest kubelet outcomes.
#[derive(Debug, Default)]
pub(super) struct KubeletMessages {
    /// Without their texts.
    messages: VecDeque<KubeletProbe>,
    /// When each pod without network was last reported.
    sandboxes: Recent<(PodRef, SandboxCause), u64, MAX_SANDBOXES>,
}

impl KubeletMessages {
    /// The other of the two sources has reported it, or it is a line of the log that was read before.
    pub(super) fn has(&self, probe: &KubeletProbe) -> bool {
        self.messages.iter().any(|it| is_same(it, probe))
    }

    /// tracer follows the kubelet's log: it has read a line of it.
    pub(super) fn follow_log(&self) -> bool {
        self.messages.iter().any(|it| !it.is_event())
    }

    /// Keeps an outcome, so that the other source does not report it again.
    pub(super) fn add(&mut self, probe: &KubeletProbe) {
        let old = probe.written_boot_ns.saturating_sub(KEPT_NS);
        while self.messages.len() >= MAX_MESSAGES || self.messages.front().is_some_and(|it| it.written_until() < old) {
            self.messages.pop_front();
        }
        self.messages.push_back(KubeletProbe { output: None, ..probe.clone() });
    }

    /// A pod has no network yet: reported once for each cause, and again every five minutes.
    pub(super) fn sandbox(&mut self, failure: &SandboxFailure, node: &Node, time: u64) -> Option<Decision> {
        let is_new = sandbox::concerns(failure, node) && self.is_new(failure, time);
        let (finding, named) = is_new.then(|| sandbox::verdict(failure, node))?;
        Some(unattached(finding, Vec::new(), named, None))
    }

    fn is_new(&mut self, failure: &SandboxFailure, time: u64) -> bool {
        // An Event names the uid of the pod, a log line not always.
        let uid = failure.pod.uid.clone().filter(|_| failure.pod.name.is_none());
        let key = (PodRef { uid, ..failure.pod.clone() }, failure.cause);
        if self.sandboxes.get(&key).is_some_and(|last| time < last.saturating_add(SANDBOX_AGAIN_NS)) {
            return false;
        }
        self.sandboxes.insert(key, time);
        true
    }
}

/// The same failure, reported by the other source or in the same line.
fn is_same(left: &KubeletProbe, right: &KubeletProbe) -> bool {
    let overlap = left.written_boot_ns <= right.written_until().saturating_add(MARGIN_NS)
        && right.written_boot_ns <= left.written_until().saturating_add(MARGIN_NS);
    let is_by_other_source = left.is_event() != right.is_event() && overlap;
    (is_by_other_source || is_same_line(left, right)) && is_of_same_probe(left, right)
}

fn is_same_line(left: &KubeletProbe, right: &KubeletProbe) -> bool {
    let of_line = |it: &KubeletProbe| (it.is_event(), it.result, it.reason, it.src);
    let at_once = left.written_boot_ns.abs_diff(right.written_boot_ns) <= SAME_LINE_NS;
    !left.is_event() && of_line(left) == of_line(right) && at_once
}

/// An Event into which the kubelet combined several does not name the container.
fn is_of_same_probe(left: &KubeletProbe, right: &KubeletProbe) -> bool {
    let containers = left.container.iter().zip(&right.container).all(|(left, right)| left == right);
    containers && left.probe_type == right.probe_type && left.pod.is_same(&right.pod)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// Two failures within one second.
    fn two_failures(stream: &mut Stream) {
        stream.http_readiness().connect().established().answers(503).wait_ms(400);
        stream.again(9).connect().established().answers(503).wait_ms(100);
    }

    /// The log of this kubelet cannot be read. Its Event comes a moment later, and its time is in whole seconds.
    #[test]
    fn an_event_is_joined_to_the_only_attempt_of_its_second() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().gives_up().wait_ms(300).kubelet_event(ProbeOutput::Timeout, 800);
        assert_eq!(stream.quoted(), [("unexplained", false)]);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Timeout)]);
        let mut encrypted = Stream::new().http_readiness().connect().established().closes((100, 101, 200)).clone();
        encrypted.wait_ms(300).kubelet_event(ProbeOutput::Status(503), 900);
        assert_eq!(encrypted.quoted(), [("app_status_failure", true)]);
        let reported = encrypted.verdicts()[0].kubelet.clone().and_then(|it| it.event_count);
        assert_eq!(reported, Some(3));
    }

    /// One attempt each second, over TLS: the kernel shows no failure. When a late event comes, the failed attempt may be
    /// dropped, and the one beside it did not fail.
    #[test]
    fn an_event_is_not_joined_to_the_attempt_of_another_second() {
        let quoted = |after_ms, age_ms| {
            let mut stream = Stream::new().https_readiness().connect().established().clone();
            stream.closes((100, 101, 200)).wait_ms(900).again(9).connect().established().closes((100, 101, 200));
            stream.wait_ms(after_ms).kubelet_event(ProbeOutput::Status(503), age_ms).quoted()
        };
        assert_eq!(quoted(300, 700), [("app_status_failure", true)]);
        assert_eq!(quoted(1600, 2500), [], "a late event");
    }

    #[test]
    fn an_event_without_an_attempt_in_its_second_joins_nothing() {
        let mut stream = Stream::new().http_readiness().connect().established().closes((100, 101, 200)).clone();
        stream.wait_ms(1900).kubelet_event(ProbeOutput::Status(503), 700);
        assert!(stream.quoted().is_empty());
    }

    #[test]
    fn a_failure_in_the_log_and_in_an_event_is_reported_once() {
        let mut log_first = Stream::new();
        log_first.http_readiness().connect().gives_up().wait_ms(10).kubelet(ProbeOutput::Timeout);
        log_first.wait_ms(200).kubelet_event(ProbeOutput::Timeout, 700);
        assert_eq!(log_first.quoted().len(), 1, "{:?}", log_first.quoted());
        let mut event_first = Stream::new();
        event_first.exec_readiness().wait_ms(2000).kubelet_event(ProbeOutput::CommandTimeout, 300);
        event_first.kubelet(ProbeOutput::CommandTimeout);
        assert_eq!(event_first.quoted(), [("exec_timeout", true)]);
        // The next failure is reported, too.
        event_first.wait_ms(3000).kubelet(ProbeOutput::CommandTimeout);
        assert_eq!(event_first.quoted().len(), 2);
    }

    /// The log was rotated.
    #[test]
    fn a_line_that_is_read_twice_is_reported_once() {
        let line = |reason, again_ms: u64| {
            let mut stream = Stream::new().exec_readiness().wait_ms(2_000).clone();
            let written = stream.now();
            stream.kubelet_at(reason, written).wait_ms(700);
            stream.kubelet_at(reason, written + again_ms * 1_000_000).wait_ms(600).tick().quoted().len()
        };
        for reason in [ProbeOutput::CommandTimeout, ProbeOutput::Other] {
            assert_eq!([0, 2, 500].map(|again_ms| line(reason, again_ms)), [1, 2, 2], "{reason:?}");
        }
        let mut unmatched = Stream::new().http_readiness().wait_ms(2_000).clone();
        let written = unmatched.now();
        for _ in 0..2 {
            unmatched.kubelet_at(ProbeOutput::Timeout, written);
        }
        assert_eq!(unmatched.wait_ms(600).tick().quoted(), [("unexplained", true)]);
    }

    #[test]
    fn a_line_about_the_next_pod_of_a_name_is_reported() {
        let mut stream = Stream::new().exec_readiness().wait_ms(2_000).clone();
        stream.kubelet_event(ProbeOutput::CommandTimeout, 300).last_kubelet_probe().pod.uid = Some("old".into());
        stream.kubelet_with(ProbeOutput::CommandTimeout, |line| line.pod.uid = Some("new".into()));
        assert_eq!(stream.quoted().len(), 2);
    }

    #[test]
    fn a_log_line_is_joined_after_an_event_that_could_not_be_joined() {
        let mut stream = Stream::new();
        two_failures(&mut stream);
        stream.kubelet_event(ProbeOutput::Status(503), 700);
        assert!(stream.joined().is_empty(), "{:?}", stream.joined());
        assert_eq!(stream.kubelet(ProbeOutput::Status(503)).joined().len(), 1);
    }

    /// An Event may stand for several failures of a command.
    #[test]
    fn a_command_that_only_an_event_names_is_likely() {
        let stream = Stream::new().exec_readiness().wait_ms(2000).kubelet_event(ProbeOutput::Other, 500).clone();
        assert_eq!(stream.verdict().confidence, Confidence::Likely);
    }

    fn sandbox(namespace: &str, name: &str, cause: SandboxCause, words: &str) -> ObservationKind {
        let pod = PodRef { namespace: Some(namespace.into()), name: Some(name.into()), uid: None };
        let failure = SandboxFailure { pod, cause, words: words.into(), written_boot_ns: 1, pid: None };
        ObservationKind::SandboxFailure(Box::new(failure))
    }

    #[test]
    fn a_pod_without_network_is_reported_once() {
        let mut stream = Stream::new();
        let words = "open /run/flannel/subnet.env: no such file or directory";
        for _ in 0..3 {
            stream.wait_ms(10_000).push(sandbox("shop", "cart", SandboxCause::SubnetFile, words));
        }
        assert_eq!(stream.quoted(), [("cni_not_ready", false)]);
        let verdict = stream.verdict();
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_starts(&verdict.summary, "the sandbox of pod shop/cart has no network");
    }

    /// While the runtime has no network, the kubelet logs this for each pod that it syncs.
    #[test]
    fn a_pod_that_has_its_network_is_not_reported() {
        let mut stream = Stream::new();
        let words = "network is not ready: container runtime network not ready: NetworkReady=false";
        stream.http_readiness().push(sandbox("default", "web", SandboxCause::NoConfig, words));
        assert!(stream.quoted().is_empty());
    }
}
