//! What the kubelet itself says, joined with the attempts that the kernel showed.
//!
//! A failed network probe belongs to one attempt: its verdict is reported again with the kubelet's words, or reported for
//! the first time if the kernel saw nothing wrong. A command is no connection: its verdict rests on those words alone.

use super::records::{kubelet_outcome, unattached};
use super::{Core, When};
use crate::classify::finding::Finding;
use crate::classify::kubelet::Unattached;
use crate::classify::{SETTLE_NS, kubelet, not_connected};
use tracer_attempts::correlate::KEEP_AFTER_END_NS;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::{Matched, is_pod};
use tracer_model::decision::Decision;
use tracer_model::event::{AnswerKind, ConnId, KubeletProbe, Observation, ProbeOutput};

/// The kubelet writes its line as soon as the attempt is over: this much earlier at most, for a busy one.
const BEFORE_NS: u64 = 1_000_000_000;
/// It counts an attempt as over at its timeout, a moment before the socket is closed.
const AFTER_NS: u64 = 50_000_000;
/// By then the events of an attempt have come, if the kubelet's line about it was read.
const EVENTS_NS: u64 = 250_000_000;

impl Core {
    /// A probe failed, as the kubelet saw it.
    pub(super) fn outcome(&mut self, probe: &KubeletProbe, observation: &Observation, out: &mut Vec<Decision>) {
        if self.kubelet_messages.know(probe) {
            return;
        }
        let command = kubelet::of_command(probe);
        let of_use = if let Some((finding, named)) = kubelet::command(&command, &self.node) {
            out.push(unattached(finding, named, Some(kubelet_outcome(&command))));
            true
        } else if self.join_attempt(probe, observation, observation.time_boot_ns, out) {
            true
        } else if let Some((finding, named)) =
            self.answer_of_several(probe, observation.time_boot_ns).or_else(|| self.not_connected(probe))
        {
            out.push(unattached(finding, named, Some(kubelet_outcome(probe))));
            true
        } else {
            self.wait_for_attempt(probe, observation);
            false
        };
        if of_use || !probe.is_event() {
            self.kubelet_messages.note(probe);
        }
    }

    /// Joins it to the attempt that it is about; says whether there is one.
    pub(super) fn join_attempt(
        &mut self,
        probe: &KubeletProbe,
        observation: &Observation,
        now: u64,
        out: &mut Vec<Decision>,
    ) -> bool {
        let Some(conn) = self.attempt_of(probe, now) else { return false };
        self.correlator.join(conn, observation);
        self.quote(conn, now, out);
        self.release_verdict(conn, now, out);
        true
    }

    /// The one attempt that it can be about: of that probe, not reported before, and over at that time or not yet seen to
    /// be. One that failed goes first, the last of several; one that the kernel found well must be the only one left.
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
        if let Some(last) = failed.max_by_key(|a| a.ended.map(|(end, _)| end)) {
            return Some(last.conn);
        }
        let [only] = fitting.as_slice() else { return None };
        Some(only.conn)
    }

    /// The one attempt to a pod without a name that ended as this was written, if it had the status that the kubelet read of a pod
    /// that is not listed yet. Not before the events of others have come, too.
    fn attempt_of_unlisted(&self, probe: &KubeletProbe, now: u64) -> Option<ConnId> {
        let ProbeOutput::Status(status) = probe.says else { return None };
        let written = probe.written_boot_ns;
        if now < written.saturating_add(EVENTS_NS) || self.node.pods.iter().any(|pod| is_pod(pod, &probe.pod)) {
            return None;
        }
        let about = |(end, _)| written.abs_diff(end) <= AFTER_NS;
        let of_that_time = |a: &&Attempt| a.started <= written && a.ended.is_none_or(about);
        let unnamed = |a: &&Attempt| {
            a.prober && self.node.has_pod(a.flow.dst.ip()) && Matched::new(a, &self.node).named_pod().is_none()
        };
        let mut all = self.correlator.all().filter(of_that_time).filter(unnamed);
        let only = all.next().filter(|_| all.next().is_none())?;
        let read = only.answer().is_some_and(|(_, answer)| answer.status == Some(status));
        (read && only.ended.is_some() && only.kubelet().is_none()).then_some(only.conn)
    }

    /// The attempts that it can be about.
    pub(super) fn fitting(&self, probe: &KubeletProbe) -> Vec<&Attempt> {
        // A probe that could not be made dialled nobody.
        let not_made = probe.says.is_of_command() || !probe.is_counted() && probe.says == ProbeOutput::Other;
        if not_made || not_connected::not_connected(probe).is_some() {
            return Vec::new();
        }
        let waits = |a: &Attempt| !is_long_over(a, probe, Matched::new(a, &self.node).longest_timeout_ns());
        let is_free = |a: &Attempt| a.prober && a.kubelet().is_none();
        let fits = |a: &&Attempt| is_free(a) && is_in_time(a, probe) && waits(a) && self.is_of(a, probe);
        let fitting: Vec<&Attempt> = self.correlator.all().filter(fits).collect();
        preferred(&fitting, |a| !seems_unanswered(a, probe))
    }

    /// It was answered with a no, on one of several connections that went well for the kernel: the words alone decide. Not of an
    /// Event where one of them failed, or may have and be forgotten: that is reported already.
    fn answer_of_several(&self, probe: &KubeletProbe, now: u64) -> Option<(Finding, Unattached)> {
        let fitting = self.fitting(probe);
        let reported = fitting.iter().any(|a| self.has_failed(a));
        let late = now > probe.written_boot_ns.saturating_add(KEEP_AFTER_END_NS);
        let is_new = fitting.len() > 1 && !(probe.is_event() && (reported || late));
        is_new.then(|| kubelet::answer(probe, fitting.len(), &self.node)).flatten()
    }

    /// Those that ended within the second of the Event go first, of them those that failed. Several that are left: the
    /// Event may be about any of them, and nothing is joined. Nor to one that the kernel found well by an Event that comes so
    /// late that the one which failed may be forgotten.
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
    }

    fn is_of(&self, attempt: &Attempt, probe: &KubeletProbe) -> bool {
        let dialled = probe.dst.is_none_or(|dst| dst == attempt.flow.dst);
        let from = probe.src.is_none_or(|src| src == attempt.flow.src);
        dialled && from && !denies(attempt, probe) && Matched::new(attempt, &self.node).is_probe_of(probe)
    }

    /// Says its verdict again, with what the kubelet reported; or for the first time.
    fn quote(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        let Some(before) = self.verdicts.of(conn) else {
            // The companions of its last event may still be on their way; one that is open is judged at its end.
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
        self.emit_verdict(conn, finding, also, true, out);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Core {
    /// What the kubelet reported of which attempt.
    pub(crate) fn joined(&self) -> Vec<(u64, ProbeOutput)> {
        self.correlator.all().filter_map(|it| Some((it.conn.0, it.kubelet()?.1.says))).collect()
    }
}

/// Those of which this holds, if it does of any; else all.
fn preferred<'a>(attempts: &[&'a Attempt], holds: impl Fn(&Attempt) -> bool) -> Vec<&'a Attempt> {
    let some: Vec<&Attempt> = attempts.iter().copied().filter(|a| holds(a)).collect();
    if some.is_empty() { attempts.to_vec() } else { some }
}

/// It was over at that time, or not yet seen to be.
pub(super) fn is_in_time(attempt: &Attempt, probe: &KubeletProbe) -> bool {
    let (from, until) = (probe.written_boot_ns, probe.written_until());
    match attempt.ended {
        Some((end, _)) => end <= until.saturating_add(AFTER_NS) && from <= end.saturating_add(BEFORE_NS),
        None => attempt.started <= until,
    }
}

/// It is open, and the probe that it can be must have given up on it well before: it is something else (an API server's client).
fn is_long_over(attempt: &Attempt, probe: &KubeletProbe, timeout_ns: Option<u64>) -> bool {
    let over = timeout_ns.map(|it| attempt.started.saturating_add(it).saturating_add(BEFORE_NS));
    attempt.ended.is_none() && over.is_some_and(|over| over < probe.written_boot_ns)
}

/// Its answer had another status than the one that the kubelet read, or cannot have had one.
fn denies(attempt: &Attempt, probe: &KubeletProbe) -> bool {
    let (ProbeOutput::Status(kubelet_outcome), Some((_, answer))) = (probe.says, attempt.answer()) else {
        return false;
    };
    let is_other = answer.status.is_some_and(|status| status != kubelet_outcome);
    answer.kind == AnswerKind::Alert || is_other && !answer.is_interim()
}

/// The kubelet read an answer, and this one had none, as far as its bytes were counted (a sockmap's are not).
fn seems_unanswered(attempt: &Attempt, probe: &KubeletProbe) -> bool {
    let answered = probe.says.is_of_answer() || probe.says == ProbeOutput::TimeoutInBody;
    answered && attempt.ended.is_some() && attempt.received() == Some(0)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    #[test]
    fn the_kubelets_words_alone_revise_nothing() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().gives_up().wait_ms(10).kubelet(ProbeOutput::Timeout);
        assert_eq!(stream.quoted(), [("unexplained", false)]);
    }

    #[test]
    fn what_only_the_kubelet_can_read_is_its_word() {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.closes((100, 101, 200)).kubelet(ProbeOutput::Status(503));
        assert_eq!(stream.quoted(), [("app_status_failure", true)]);
    }

    #[test]
    fn a_disagreement_is_reported() {
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.closes((100, 101, 200)).kubelet(ProbeOutput::Network);
        let verdicts = stream.verdicts();
        assert_eq!(stream.quoted(), [("unexplained", true)]);
        assert_has(&verdicts[0].verdict.summary, &["so the kubelet says"]);
    }

    /// Liveness and readiness on one port: one has no answer in time, the other one that is a no. Each line finds its own.
    #[test]
    fn a_status_is_not_of_the_attempt_that_had_none() {
        let mut stream = Stream::new();
        stream.http_readiness().http_liveness_too().connect().established().wait_ms(960);
        stream.again(9).connect().established().answers(503).wait_ms(40).back_to(7).closes((100, 101, 0)).wait_ms(5);
        stream.kubelet_of(ProbeType::Readiness, ProbeOutput::Status(503));
        stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Timeout);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Timeout), (9, ProbeOutput::Status(503))]);
    }

    /// Liveness and readiness on one port in the same second: one fails, the other does not.
    #[test]
    fn the_healthy_attempt_beside_the_failed_one_is_left_alone() {
        let healthy = |stream: &mut Stream| {
            stream.again(9).connect().established().answers(200);
        };
        let mut refusing = Stream::new().http_readiness().connect().established().answers(503).clone();
        healthy(&mut refusing);
        refusing.kubelet(ProbeOutput::Status(503));
        assert_eq!(refusing.quoted(), [("app_status_failure", false)]);
        assert_eq!(refusing.joined(), [(7, ProbeOutput::Status(503))]);
        // The kubelet writes its line before the socket of the one that timed out is closed.
        let mut waiting = Stream::new().http_readiness().connect().established().wait_ms(990).clone();
        healthy(&mut waiting);
        waiting.wait_ms(10).kubelet(ProbeOutput::Timeout);
        assert!(waiting.joined().is_empty(), "which of the two it was is not known");
    }

    /// Liveness and readiness of one port, over TLS: which of the two answered with a failure is not seen, that one did is.
    #[test]
    fn a_no_that_one_of_several_gave_is_reported_without_a_connection() {
        let asked = |tell: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new().https_readiness().https_liveness_too().clone();
            for conn in 100..102 {
                stream.again(conn).connect().established().closes((100, 101, 200));
            }
            tell(stream.wait_ms(300));
            stream
        };
        let both =
            asked(|stream| stream.kubelet(ProbeOutput::Status(500)).kubelet_event(ProbeOutput::Status(500), 300));
        assert_eq!(both.quoted(), [("app_status_failure", true)], "the Event says the same");
        let verdict = both.verdicts().remove(0);
        assert_eq!((verdict.verdict.confidence, verdict.dst), (Confidence::Likely, None));
        let words = "the readiness probe of container app of pod default/web was answered: HTTP status 500, as the kubelet read it; tracer cannot see which of 2 connections it was";
        assert_eq!(verdict.verdict.summary, words);
        let event = asked(|stream| stream.kubelet_event(ProbeOutput::Status(500), 300));
        assert_eq!(event.quoted(), [("app_status_failure", true)]);
        let late = asked(|stream| stream.wait_ms(2_000).kubelet_event(ProbeOutput::Status(500), 2_300));
        assert!(late.quoted().is_empty(), "one that failed may be forgotten, and reported");
        let timeout = asked(|stream| stream.kubelet(ProbeOutput::Timeout));
        assert_eq!(timeout.quoted(), [("unexplained", true)], "that says nothing of the cause");
    }

    /// The kubelet's connection to the API server that it probes is open for as long as it likes.
    #[test]
    fn what_is_open_for_longer_than_the_timeout_is_no_probe() {
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
        assert_eq!(stream.quoted(), [("unexplained", true)]);
    }

    #[test]
    fn a_command_is_reported_by_the_kubelets_words_alone() {
        let mut stream = Stream::new();
        stream.exec_readiness().kubelet(ProbeOutput::Other).kubelet(ProbeOutput::CommandTimeout);
        assert_eq!(stream.quoted(), [("exec_failed", true), ("exec_timeout", true)]);
        let silent = Stream::new().exec_readiness().kubelet(ProbeOutput::Nothing).clone();
        assert_eq!(silent.quoted(), [("unexplained", true)], "a timeout, or not");
        let unknown = Stream::new().kubelet(ProbeOutput::Other).clone();
        assert_eq!(unknown.quoted(), [("exec_failed", true)], "no connection, and no words of a probe that dials");
    }

    #[test]
    fn the_kubelet_outcome_alone_proves_nothing_and_names_the_command() {
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

    /// The runtime's words are about no connection.
    #[test]
    fn a_probe_that_could_not_be_made_joins_no_attempt() {
        for says in [ProbeOutput::ContainerEnds, ProbeOutput::Other] {
            let mut stream = Stream::new().http_readiness().connect().established().closes((100, 101, 200)).clone();
            stream.kubelet_error(ProbeType::Readiness, says, "x").wait_ms(2_000);
            assert!(stream.quoted().is_empty(), "{:?}", stream.quoted());
        }
    }
}
