//! Joins kubelet outcomes to attempts.
//!
//! A failed network probe belongs to one attempt. Its verdict is emitted again with the kubelet outcome, or for the
//! first time if the kernel showed no failure. A command makes no connection: its verdict rests on the kubelet outcome
//! alone.

use super::records::{kubelet_outcome, unattached};
use super::{Core, When};
use crate::kubelet::{self, Unattached, not_connected};
use tracer_attempts::correlate::KEEP_AFTER_END_NS;
use tracer_attempts::correlate::attempt::{Attempt, End};
use tracer_attempts::enrich::{Matched, is_pod};
use tracer_case::SETTLE_NS;
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::{AnswerKind, ConnId, KubeletProbe, Observation, Pod, ProbeOutput};

/// The kubelet writes its log line after the end of the attempt, at most this long after it on a busy node.
const BEFORE_NS: u64 = 1_000_000_000;
/// The kubelet counts an attempt as over at its timeout, up to this long before it closes the socket.
const AFTER_NS: u64 = 50_000_000;
/// This long after the log line was written, the events of its attempt have arrived.
const EVENTS_NS: u64 = 250_000_000;

impl Core {
    /// Takes a kubelet outcome in: joins it to an attempt, makes a verdict of it, or lets it wait. The log is opened
    /// before the hooks are attached: outcomes of that time are skipped.
    pub(super) fn outcome(&mut self, probe: &KubeletProbe, observation: &Observation, out: &mut Vec<Decision>) {
        if probe.written_until() < self.node.since() || self.kubelet_messages.has(probe) {
            return;
        }
        let command = kubelet::of_command(probe);
        let is_used = if let Some(record) = self.command_record(&command) {
            if !self.wait_for_limits(&command, observation) {
                out.push(record);
            }
            true
        } else if self.join_attempt(probe, observation, observation.time_boot_ns, out) {
            true
        } else if let Some((finding, named)) =
            self.answer_of_several(probe, observation.time_boot_ns).or_else(|| self.not_connected(probe))
        {
            out.push(unattached(finding, Vec::new(), named, Some(kubelet_outcome(probe))));
            true
        } else {
            let lost = self.wait_for_attempt(probe, observation);
            out.extend(lost.and_then(|loss| self.node_reports.lost(observation.time_boot_ns, &loss)));
            false
        };
        // An Event that could not be used must not suppress the log line, which is exact.
        if is_used || !probe.is_event() {
            self.kubelet_messages.add(probe);
        }
    }

    /// The verdict on a command that failed.
    pub(super) fn command_record(&self, command: &KubeletProbe) -> Option<Decision> {
        let (finding, also, named) = kubelet::command(command, &self.node)?;
        Some(unattached(finding, also, named, Some(kubelet_outcome(command))))
    }

    /// A verdict for a probe that failed before it made a connection. If the prober tried another address of the same
    /// name, the verdict on that attempt is enough.
    pub(super) fn not_connected(&self, probe: &KubeletProbe) -> Option<(Finding, Unattached)> {
        let elsewhere = |a: &Attempt| probe.dst.is_some_and(|dst| dst != a.flow.dst) && a.kubelet().is_none();
        let is_same =
            |a: &Attempt| elsewhere(a) && is_in_time(a, probe) && Matched::new(a, &self.node).is_probe_of(probe);
        let has_attempt = self.correlator.all().any(|a| is_same(a) && (a.ended.is_none() || self.has_failed(a)));
        not_connected::verdict(probe, &self.node).filter(|_| !has_attempt)
    }

    /// Joins an outcome to its attempt; returns whether there is one.
    pub(super) fn join_attempt(
        &mut self,
        probe: &KubeletProbe,
        observation: &Observation,
        now: u64,
        out: &mut Vec<Decision>,
    ) -> bool {
        let Some(conn) = self.attempt_of(probe, now) else { return false };
        self.correlator.join(conn, observation);
        self.emit_with_outcome(conn, now, out);
        self.release_verdict(conn, now, out);
        true
    }

    /// The attempt that an outcome is about. The exact source address decides, then the failed attempt that ended nearest
    /// to the line: another one may have ended before tracer reads it. An attempt without a failure in the kernel must be
    /// the only one that fits, and follow none that failed.
    fn attempt_of(&self, probe: &KubeletProbe, now: u64) -> Option<ConnId> {
        let fitting = self.fitting(probe);
        if probe.is_event() {
            return self.attempt_of_event(&fitting, probe, now);
        }
        if let Some(exact) = fitting.iter().find(|a| probe.src == Some(a.flow.src)) {
            return Some(exact.conn);
        }
        if fitting.is_empty() {
            return self.attempt_of_unlisted(probe, now);
        }
        let failed = fitting.iter().filter(|a| a.ended.is_some() && self.has_failed(a));
        let apart = |a: &&&Attempt| a.ended.map(|(end, _)| end.abs_diff(probe.written_boot_ns));
        if let Some(nearest) = failed.min_by_key(apart) {
            return Some(nearest.conn);
        }
        let only = match fitting.as_slice() {
            [only] => only,
            several => last_alike(several).filter(|_| probe.reason == ProbeOutput::Network && !probe.is_counted())?,
        };
        (!self.failed_while_connecting(probe)).then_some(only.conn)
    }

    /// For a pod without a known address: the only attempt to an unnamed pod or to the node that ended when the line was written. Its
    /// status must be the one that the kubelet read. Decided only when the events of other attempts have arrived, too.
    fn attempt_of_unlisted(&self, probe: &KubeletProbe, now: u64) -> Option<ConnId> {
        let status = probe.reason.status()?;
        let written = probe.written_boot_ns;
        let listed = self.node.pods.iter().find(|pod| is_pod(pod, &probe.pod));
        // Of a pod on the host's network, the cgroups show no address.
        let has_address = |pod: &Pod| !pod.host_network || pod.has_specs();
        if now < written.saturating_add(EVENTS_NS) || listed.is_some_and(has_address) {
            return None;
        }
        let ends_then = |(end, _)| written.abs_diff(end) <= AFTER_NS;
        let of_that_time = |a: &&Attempt| a.started <= written && a.ended.is_none_or(ends_then);
        let unnamed = |a: &&Attempt| {
            let matched = Matched::new(a, &self.node);
            let is_listed = matched.named_pod().is_some() || !matched.possible_probes().is_empty();
            let may_be_its_own = listed.is_none() || !self.node.has_pod(a.flow.dst.ip());
            a.prober && self.node.is_at_pod(a) && !is_listed && may_be_its_own && !a.sent_nothing()
        };
        let mut all = self.correlator.all().filter(of_that_time).filter(unnamed);
        let only = all.next().filter(|_| all.next().is_none())?;
        let same_status = only.answer().is_some_and(|(_, answer)| answer.status == Some(status));
        (same_status && only.ended.is_some() && only.kubelet().is_none()).then_some(only.conn)
    }

    /// The attempts that an outcome can be about.
    pub(super) fn fitting(&self, probe: &KubeletProbe) -> Vec<&Attempt> {
        // A command, or a probe that could not be made, has no target.
        let not_made = probe.reason.is_of_command() || !probe.is_counted() && probe.reason == ProbeOutput::Other;
        if not_made || kubelet::is_printed(probe, &self.node) || not_connected::not_connected(probe).is_some() {
            return Vec::new();
        }
        let may_wait = |a: &Attempt| !is_open_too_long(a, probe, Matched::new(a, &self.node).longest_timeout_ns());
        let is_free = |a: &Attempt| a.prober && a.kubelet().is_none();
        let fits = |a: &&Attempt| is_free(a) && is_in_time(a, probe) && may_wait(a) && self.is_of(a, probe);
        let fitting: Vec<&Attempt> = self.correlator.all().filter(fits).collect();
        preferred(&fitting, |a| !seems_unanswered(a, probe))
    }

    /// A verdict by the kubelet outcome alone: one of several connections without a failure in the kernel had an answer
    /// with a failure. `None` for an Event if one of them failed, or may have failed and be dropped: that was reported.
    /// `None` while one of them is open: a busy kubelet writes its line before it closes the socket.
    fn answer_of_several(&self, probe: &KubeletProbe, now: u64) -> Option<(Finding, Unattached)> {
        let fitting = self.fitting(probe);
        let reported = fitting.iter().any(|a| self.has_failed(a));
        let late = now > probe.written_boot_ns.saturating_add(KEEP_AFTER_END_NS);
        let have_ended = fitting.iter().all(|a| a.ended.is_some());
        let is_new = fitting.len() > 1 && have_ended && !(probe.is_event() && (reported || late));
        is_new.then(|| kubelet::answer(probe, fitting.len(), &self.node)).flatten()
    }

    /// The attempt that an Event is about. Attempts that ended within its second go first, of them the failed ones. If
    /// several are left, the Event may be about any of them. If the Event comes late, the failed attempt may be
    /// dropped: an attempt without a failure is then not taken.
    fn attempt_of_event(&self, fitting: &[&Attempt], probe: &KubeletProbe, now: u64) -> Option<ConnId> {
        let from = probe.written_boot_ns;
        let within = preferred(fitting, |a| a.ended.is_none_or(|(end, _)| from <= end.saturating_add(AFTER_NS)));
        let failed = preferred(&within, |a| a.ended.is_some() && self.has_failed(a));
        let [only] = failed.as_slice() else { return None };
        let all_known = now <= from.saturating_add(KEEP_AFTER_END_NS);
        (all_known || self.has_failed(only)).then_some(only.conn)
    }

    pub(super) fn has_failed(&self, attempt: &Attempt) -> bool {
        attempt.failed_by_itself()
            || Matched::new(attempt, &self.node).failed()
            || self.verdicts.failure(attempt.conn).is_some()
            || self.waiting.is_held_failure(attempt.conn)
    }

    fn is_of(&self, attempt: &Attempt, probe: &KubeletProbe) -> bool {
        let fits = probe.dst.is_none_or(|dst| dst == attempt.flow.dst);
        let from = probe.src.is_none_or(|src| src == attempt.flow.src);
        fits && from && self.may_have_ended_as(attempt, probe)
    }

    /// The attempt may be of this probe, and its answer does not contradict the outcome.
    pub(super) fn may_have_ended_as(&self, attempt: &Attempt, probe: &KubeletProbe) -> bool {
        let matched = Matched::new(attempt, &self.node);
        matched.is_probe_of(probe) && !contradicts(attempt, probe, matched.may_be_grpc_in_tls())
    }

    /// Emits the verdict on an attempt again, with the kubelet outcome, or for the first time.
    fn emit_with_outcome(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        let Some(before) = self.verdicts.of(conn) else {
            // Other events of its last packet may still arrive. An open attempt is classified at its end.
            if let Some((end, _)) = self.correlator.get(conn).and_then(|a| a.ended) {
                self.waiting.schedule(now.max(end.saturating_add(SETTLE_NS)), conn);
            }
            self.fire_deadlines(now, out);
            return;
        };
        let Some((finding, also)) = self.classified(conn, When::Settled(now)) else { return };
        if finding.cause != before.cause || finding.outcome != before.outcome {
            self.decide(conn, When::Settled(now), out);
            return;
        }
        self.remember_refusal(conn, &finding, true);
        self.emit_verdict(conn, finding, also, true, out);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Core {
    /// The attempts with a kubelet outcome.
    pub(crate) fn joined(&self) -> Vec<(u64, ProbeOutput)> {
        self.correlator.all().filter_map(|it| Some((it.conn.0, it.kubelet()?.1.reason))).collect()
    }
}

/// The attempts for which this holds; all attempts if there is none.
fn preferred<'a>(attempts: &[&'a Attempt], holds: impl Fn(&Attempt) -> bool) -> Vec<&'a Attempt> {
    let some: Vec<&Attempt> = attempts.iter().copied().filter(|a| holds(a)).collect();
    if some.is_empty() { attempts.to_vec() } else { some }
}

/// The last of several attempts, if the target ended each of them in the same way, after as many bytes. A cut answer is
/// an error for the kubelet: it tries three times (`runProbeWithRetries`, pkg/kubelet/prober), and reports the last one.
fn last_alike<'a>(attempts: &[&'a Attempt]) -> Option<&'a Attempt> {
    let end = |a: &Attempt| Some((a.ended?.1, a.received()?));
    let by_target = |(end, _): &(End, u64)| matches!(end, End::ClosedByServer | End::Reset);
    let first = end(attempts.first()?).filter(by_target)?;
    let alike = attempts.iter().all(|a| end(a) == Some(first));
    attempts.iter().copied().filter(|_| alike).max_by_key(|a| a.ended.map(|(end, _)| end))
}

/// The attempt was over when the outcome was written, or is not known to be over.
pub(super) fn is_in_time(attempt: &Attempt, probe: &KubeletProbe) -> bool {
    let (from, until) = (probe.written_boot_ns, probe.written_until());
    match attempt.ended {
        Some((end, _)) => end <= until.saturating_add(AFTER_NS) && from <= end.saturating_add(BEFORE_NS),
        None => attempt.started <= until,
    }
}

/// The attempt is open although the probe would have given up well before: it is no probe, but an API server's client.
fn is_open_too_long(attempt: &Attempt, probe: &KubeletProbe, timeout_ns: Option<u64>) -> bool {
    let over = timeout_ns.map(|it| attempt.started.saturating_add(it).saturating_add(BEFORE_NS));
    attempt.ended.is_none() && over.is_some_and(|over| over < probe.written_boot_ns)
}

/// The answer had another status than the one that the kubelet read, or cannot have had a status; or it was no answer of
/// gRPC.
fn contradicts(attempt: &Attempt, probe: &KubeletProbe, grpc_in_tls: bool) -> bool {
    let Some((_, answer)) = attempt.answer() else { return false };
    let ProbeOutput::Status(read) = probe.reason else {
        let is_other = answer.kind == AnswerKind::Http || answer.is_no_frame();
        return probe.is_answered_in_grpc() && (is_other || answer.kind.is_tls() && !grpc_in_tls);
    };
    let is_other = answer.status.is_some_and(|status| status != read);
    answer.kind == AnswerKind::Alert || is_other && !answer.is_interim()
}

/// The kubelet read an answer, but this attempt received no bytes. The kernel does not count the bytes of a sockmap.
fn seems_unanswered(attempt: &Attempt, probe: &KubeletProbe) -> bool {
    let answered = probe.reason.is_of_answer() || probe.reason == ProbeOutput::TimeoutInBody;
    answered && attempt.ended.is_some() && attempt.received() == Some(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    #[test]
    fn an_outcome_from_before_the_start_is_skipped() {
        let quoted = |before_ns: u64| {
            let mut stream = Stream::new().exec_readiness().clone();
            let written = stream.now() - before_ns;
            stream.kubelet_at(ProbeOutput::CommandTimeout, written).quoted().len()
        };
        assert_eq!([1_000, 1_001].map(quoted), [1, 0], "the list of pods comes 1 µs after the start");
    }

    #[test]
    fn a_kubelet_outcome_does_not_change_the_cause() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().gives_up().wait_ms(10).kubelet(ProbeOutput::Timeout);
        assert_eq!(stream.quoted(), [("unexplained", false)]);
    }

    #[test]
    fn a_status_that_only_the_kubelet_can_read_gives_the_cause_and_another_failure_none() {
        let reported = |reason| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream.closes((100, 101, 200)).kubelet(reason).clone()
        };
        assert_eq!(reported(ProbeOutput::Status(503)).quoted(), [("app_status_failure", true)]);
        let other = reported(ProbeOutput::Network);
        assert_eq!(other.quoted(), [("unexplained", true)]);
        assert_has(&other.verdict().summary, &["as the kubelet reports"]);
    }

    /// Liveness and readiness on one port: one has no answer in time, the other one an answer with status 503.
    #[test]
    fn a_status_is_joined_to_the_attempt_that_was_answered() {
        let mut stream = Stream::new();
        stream.http_readiness().http_liveness_too().connect().established().wait_ms(960);
        stream.again(9).connect().established().answers(503).wait_ms(40).back_to(7).closes((100, 101, 0)).wait_ms(5);
        stream.kubelet_of(ProbeType::Readiness, ProbeOutput::Status(503));
        stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Timeout);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Timeout), (9, ProbeOutput::Status(503))]);
    }

    /// Liveness and readiness on one port, both with status 503. A busy kubelet writes its lines before it closes the
    /// sockets.
    #[test]
    fn outcomes_before_the_end_of_their_attempts_give_one_verdict_each() {
        let mut stream = Stream::new();
        stream.http_readiness().http_liveness_too();
        stream.connect().established().answer(AnswerKind::Http, Some(503)).wait_ms(1);
        stream.again(9).connect().established().answer(AnswerKind::Http, Some(503)).wait_ms(1);
        stream.kubelet_of(ProbeType::Readiness, ProbeOutput::Status(503));
        stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Status(503));
        stream.wait_ms(100).closes((100, 101, 200)).back_to(7).closes((100, 101, 200)).wait_ms(2_000).tick();
        assert_eq!(stream.causes(), ["app_status_failure", "app_status_failure"]);
    }

    /// Liveness and readiness on one port in the same second: one fails, the other does not.
    #[test]
    fn an_outcome_is_joined_to_the_failed_attempt_not_to_the_healthy_one() {
        let healthy = |stream: &mut Stream| {
            stream.again(9).connect().established().answers(200);
        };
        let mut refusing = Stream::new().http_readiness().connect().established().answers(503).clone();
        healthy(&mut refusing);
        refusing.kubelet(ProbeOutput::Status(503));
        assert_eq!(refusing.quoted(), [("app_status_failure", false)]);
        assert_eq!(refusing.joined(), [(7, ProbeOutput::Status(503))]);
        // The kubelet writes its line before it closes the socket of the attempt that timed out.
        let mut waiting = Stream::new().http_readiness().connect().established().wait_ms(990).clone();
        healthy(&mut waiting);
        waiting.wait_ms(10).kubelet(ProbeOutput::Timeout);
        assert!(waiting.joined().is_empty(), "which of the two it was is not known");
    }

    /// Liveness and readiness of one port, over TLS: tracer cannot see which of the two answers was the failure.
    #[test]
    fn a_failure_status_of_one_of_several_attempts_is_reported_without_a_connection() {
        let after = |report: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new().https_readiness().https_liveness_too().clone();
            for conn in 100..102 {
                stream.again(conn).connect().established().closes((100, 101, 200));
            }
            report(stream.wait_ms(300));
            stream
        };
        let both =
            after(|stream| stream.kubelet(ProbeOutput::Status(500)).kubelet_event(ProbeOutput::Status(500), 300));
        assert_eq!(both.quoted(), [("app_status_failure", true)], "the Event says the same");
        let verdict = both.verdicts().remove(0);
        assert_eq!((verdict.verdict.confidence, verdict.dst), (Confidence::Likely, None));
        let words = "the readiness probe of container app of pod default/web was answered: HTTP status 500, as the kubelet read it; tracer cannot see which of 2 connections it was";
        assert_eq!(verdict.verdict.summary, words);
        let event = after(|stream| stream.kubelet_event(ProbeOutput::Status(500), 300));
        assert_eq!(event.quoted(), [("app_status_failure", true)]);
        let late = after(|stream| stream.wait_ms(2_000).kubelet_event(ProbeOutput::Status(500), 2_300));
        assert!(late.quoted().is_empty(), "one that failed may be forgotten, and reported");
        let timeout = after(|stream| stream.kubelet(ProbeOutput::Timeout));
        assert_eq!(timeout.quoted(), [("unexplained", true)], "that says nothing of the cause");
    }

    #[test]
    fn a_grpc_probe_in_tls_is_answered_in_tls() {
        let joined = |speaks: Option<ProbeProtocol>| {
            let mut stream = Stream::new().grpc_readiness(1).clone();
            speaks.into_iter().for_each(|it| _ = stream.speaking(it));
            stream.connect().established().answer(AnswerKind::Tls, None).closes((100, 101, 200));
            stream.kubelet(ProbeOutput::NotServing).joined().len()
        };
        assert_eq!((joined(Some(ProbeProtocol::Tls)), joined(None)), (1, 0));
    }

    /// The text of another server is longer than the header of a frame. A first segment may be cut within that header.
    #[test]
    fn an_outcome_of_grpc_joins_no_answer_that_is_no_frame() {
        let joined = |len: u16| {
            let mut stream = Stream::new().grpc_readiness(1).connect().established().clone();
            stream.answer_with(AnswerKind::Other, None, |it| it.len = Some(len)).closes((100, 101, 200));
            stream.kubelet(ProbeOutput::NotServing).joined().len()
        };
        assert_eq!((joined(8), joined(70)), (1, 0));
    }

    /// The kubelet probes an API server, and has another connection to it that stays open.
    #[test]
    fn a_connection_that_is_open_for_longer_than_the_timeout_is_no_probe() {
        let mut stream = Stream::new().https_readiness().connect().established().wait_ms(30_000).clone();
        stream.again(9).connect().established().closes((100, 101, 200)).kubelet(ProbeOutput::Status(500));
        let verdicts = stream.verdicts();
        assert_eq!(stream.quoted(), [("app_status_failure", true)]);
        assert!(verdicts[0].dst.is_some());
    }

    #[test]
    fn an_outcome_that_comes_before_the_end_waits_for_it() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().wait_ms(1000).kubelet(ProbeOutput::Timeout);
        assert!(stream.quoted().is_empty());
        stream.closes((100, 101, 0));
        assert_eq!(stream.quoted(), [("slow_response", true)]);
    }

    #[test]
    fn an_outcome_of_another_time_or_probe_joins_nothing() {
        let mut stream = Stream::new().http_readiness().connect().established().closes((100, 101, 200)).clone();
        stream.wait_ms(1500).kubelet(ProbeOutput::Status(503));
        assert!(stream.joined().is_empty(), "too late");
        assert_eq!(stream.quoted(), [("app_status_failure", true)]);
        let verdict = stream.verdict();
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_ends(&verdict.summary, "HTTP status 503, as the kubelet read it; no connection of it was seen");
        let command = Stream::new().kubelet(ProbeOutput::Status(503)).wait_ms(600).tick().clone();
        assert_eq!(command.quoted(), [("unexplained", true)], "a command may have printed that");
    }

    #[test]
    fn a_command_gets_its_cause_from_the_kubelet_outcome_alone() {
        let mut stream = Stream::new();
        stream.exec_readiness().kubelet(ProbeOutput::Other).kubelet(ProbeOutput::CommandTimeout);
        assert_eq!(stream.quoted(), [("exec_failed", true), ("exec_timeout", true)]);
        let silent = Stream::new().exec_readiness().kubelet(ProbeOutput::Nothing).clone();
        assert_eq!(silent.quoted(), [("unexplained", true)], "a timeout, or not");
        let ended = Stream::new().exec_readiness().kubelet(ProbeOutput::PrintedNothing).clone();
        assert_eq!(ended.all_decided(), [("exec_failed", Confidence::Likely)]);
        assert_ends(&ended.verdict().summary, "ended with an error, and printed nothing");
        let unknown = Stream::new().kubelet(ProbeOutput::Other).clone();
        assert_eq!(unknown.quoted(), [("exec_failed", true)], "no connection, and no output of a network probe");
    }

    #[test]
    fn a_failed_command_is_likely_and_its_summary_names_the_probe() {
        let mut stream = Stream::new();
        stream.exec_readiness().kubelet(ProbeOutput::Other).kubelet(ProbeOutput::CommandTimeout);
        let verdicts = stream.verdicts();
        assert!(verdicts.iter().all(|it| it.verdict.confidence == Confidence::Likely));
        let [failed, late] = verdicts.as_slice() else { panic!("two verdicts") };
        let command = "the command of the readiness probe of container app of pod default/web ";
        assert_starts(&failed.verdict.summary, &format!("{command}ended with an error"));
        assert_eq!(late.verdict.summary, format!("{command}did not end in time (timeoutSeconds 1)"));
        let fix = &failed.verdict.remediation;
        assert_has(&fix, &["kubectl exec -n default web -c app -- COMMAND"]);
    }

    /// Without specs, each connection to the pod could be of the failed probe.
    #[test]
    fn what_a_command_printed_is_of_no_connection() {
        let after = |reason: ProbeOutput, fill: fn(&mut Stream)| {
            let mut stream = Stream::new().without_specs().clone();
            fill(&mut stream);
            stream.kubelet(reason).wait_ms(600).tick();
            let last = stream.verdicts().pop().expect("a verdict");
            assert_eq!((last.dst, last.kubelet.is_some()), (None, true), "{:?}", last.verdict.summary);
            stream.causes()
        };
        let healthy = |stream: &mut Stream| _ = stream.connect().established().answers(200);
        let two = |stream: &mut Stream| {
            stream.connect().established().answers(200).again(9).connect().established().answers(200);
        };
        let refused = |stream: &mut Stream| _ = stream.connect().refused();
        for reason in [ProbeOutput::Other, ProbeOutput::PrintedNothing] {
            assert_eq!(after(reason, healthy), ["exec_failed"]);
            assert_eq!(after(reason, two), ["exec_failed"]);
            assert_eq!(after(reason, refused), ["connection_refused", "exec_failed"]);
        }
        assert_eq!(after(ProbeOutput::Nothing, healthy), ["unexplained"], "a timeout, or not");
        // `grpc_health_probe` prints what the kubelet says of a gRPC probe.
        let failed = |stream: &mut Stream| _ = stream.connect().established().answers(503);
        assert_eq!(after(ProbeOutput::NotServing, healthy), ["unexplained"]);
        assert_eq!(after(ProbeOutput::NotServing, failed), ["app_status_failure", "unexplained"]);
    }

    /// A message that tracer does not know, about a probe that connects.
    #[test]
    fn an_unknown_message_about_a_known_probe_is_of_its_connection() {
        let mut stream = Stream::new().http_readiness().connect().established().answers(200).clone();
        stream.kubelet(ProbeOutput::Other);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Other)]);
    }

    /// An error of the container runtime is about no connection.
    #[test]
    fn a_probe_that_could_not_be_made_joins_no_attempt() {
        for reason in [ProbeOutput::ContainerEnds, ProbeOutput::Other] {
            let mut stream = Stream::new().http_readiness().connect().established().closes((100, 101, 200)).clone();
            stream.kubelet_error(ProbeType::Readiness, reason, "x").wait_ms(2_000);
            assert!(stream.quoted().is_empty(), "{:?}", stream.quoted());
        }
    }
}
