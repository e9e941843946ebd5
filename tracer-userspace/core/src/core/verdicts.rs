//! The verdict on each attempt: the last decision, whether it waits to be emitted, and what was emitted.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Core;
use super::probe_key::ProbeKey;
use tracer_attempts::enrich::Matched;
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Netns, PodRef};
use tracer_model::recent::Recent;
use tracer_model::record::{Body, Cause, Confidence, Culprit, K8s, Outcome, Subject, Verdict, VerdictBody};

/// How many attempts are remembered, so that none is decided twice.
const MAX: usize = 8192;
const MAX_PENDING: usize = 1024;

/// The verdicts on the latest attempts.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    by_attempt: Recent<ConnId, AttemptVerdict, MAX>,
    /// The verdicts that wait to be emitted.
    pending: BTreeMap<ConnId, Decision>,
    /// Attempts that are over, with a verdict or without.
    finished: Recent<ConnId, (), MAX>,
}

#[derive(Debug)]
struct AttemptVerdict {
    decided: Decided,
    /// The probe with failures in a row that include this attempt, and how many those were in its first verdict.
    counted: Option<(ProbeKey, Option<u32>)>,
    /// The time and content of the last emitted verdict.
    emitted: Option<(u64, VerdictKey)>,
    /// A later connection of the same attempt of the probe has the verdict.
    superseded: bool,
}

/// What was decided about an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decided {
    pub(super) cause: Cause,
    pub(super) outcome: Outcome,
    pub(super) confidence: Confidence,
    /// When the event that decided it happened.
    pub(super) decided_at: u64,
    /// The namespace of the rule that stopped it.
    pub(super) place: Option<Netns>,
    /// The dropped packet, if the rules had been read since: its namespace and its time.
    pub(super) read_for: Option<(Netns, u64)>,
    /// The connection was not established when it was decided.
    pub(super) in_handshake: bool,
    /// The cause is right only until an answer comes.
    pub(super) rests_on_lost_packet: bool,
    pub(super) revised: bool,
    /// An earlier connect of the same attempt of the probe had failed.
    pub(super) is_retry: bool,
    /// The programs that dropped a packet had not been read.
    pub(super) lacks_programs: bool,
}

/// What makes two verdicts on one attempt different for a reader.
#[derive(Debug, PartialEq)]
struct VerdictKey {
    subject: Subject,
    cause: Cause,
    outcome: Outcome,
    confidence: Confidence,
    culprit: Option<Culprit>,
    k8s: Option<K8s>,
}

impl VerdictKey {
    fn of(body: &VerdictBody) -> Self {
        let verdict = &body.verdict;
        Self {
            subject: body.subject,
            cause: verdict.cause,
            outcome: verdict.outcome,
            confidence: verdict.confidence,
            culprit: body.culprit.clone(),
            // What made the pod comes with the list of pods and changes nobody's identity.
            k8s: body.k8s.clone().map(|k8s| K8s { workload: None, ..k8s }),
        }
    }

    fn is_failure_of(&self, pod: &PodRef) -> bool {
        let is_of_pod = |k8s: &K8s| {
            let K8s { namespace, pod_name: name, pod_uid: uid, .. } = k8s.clone();
            PodRef { namespace, name, uid }.is_same(pod)
        };
        self.outcome == Outcome::Failure && self.k8s.as_ref().is_some_and(is_of_pod)
    }
}

impl Verdicts {
    /// What was decided about an attempt.
    pub(super) fn of(&self, conn: ConnId) -> Option<Decided> {
        self.by_attempt.get(&conn).map(|it| it.decided)
    }

    /// What was decided about an attempt, if that was a failure.
    pub(super) fn failure(&self, conn: ConnId) -> Option<Decided> {
        self.of(conn).filter(|it| it.outcome == Outcome::Failure)
    }

    /// Keeps a decision. If the table is full, it drops the attempt that was decided longest ago. It spares attempts with
    /// a pending verdict, and those that are kept: they may be decided again.
    fn decide(&mut self, conn: ConnId, decided: Decided, is_kept: impl Fn(ConnId) -> bool) {
        if let Some(verdict) = self.by_attempt.get_mut(&conn) {
            verdict.decided = decided;
            return;
        }
        let verdict = AttemptVerdict { decided, counted: None, emitted: None, superseded: false };
        self.by_attempt.insert_sparing(conn, verdict, |conn| self.pending.contains_key(conn) || is_kept(*conn));
    }

    /// Counts the attempt as a failure of this probe; returns as which one it was counted before, and the number then.
    pub(super) fn count_as(&mut self, conn: ConnId, probe: ProbeKey) -> Option<(ProbeKey, Option<u32>)> {
        self.by_attempt.get_mut(&conn)?.counted.replace((probe, None))
    }

    /// Keeps the number of failures in a row for later verdicts on this attempt.
    pub(super) fn keep_count(&mut self, conn: ConnId, count: u32) {
        let counted = self.by_attempt.get_mut(&conn).and_then(|it| it.counted.as_mut());
        counted.into_iter().for_each(|(_, kept)| *kept = Some(count));
    }

    /// How many attempts after this one are counted as failures of this probe.
    pub(super) fn counted_after(&self, conn: ConnId, probe: &ProbeKey) -> u32 {
        let later = self.by_attempt.range((Bound::Excluded(conn), Bound::Unbounded)).map(|(_, it)| it);
        let is_counted = |it: &&AttemptVerdict| it.counted.as_ref().is_some_and(|(counted, _)| counted == probe);
        later.filter(|it| !it.decided.is_retry).filter(is_counted).count() as u32
    }

    /// Counts the attempt no more; returns as a failure of which probe it was counted.
    pub(super) fn take_counted(&mut self, conn: ConnId) -> Option<ProbeKey> {
        self.by_attempt.get_mut(&conn)?.counted.take().map(|(probe, _)| probe)
    }

    /// The attempt is counted as a failure of a probe.
    pub(super) fn is_counted(&self, conn: ConnId) -> bool {
        self.by_attempt.get(&conn).is_some_and(|it| it.counted.is_some())
    }

    /// A verdict on the attempt waits to be emitted.
    pub(super) fn is_pending(&self, conn: ConnId) -> bool {
        self.pending.contains_key(&conn)
    }

    /// The verdict on the attempt that waits to be emitted.
    pub(super) fn held(&self, conn: ConnId) -> Option<&Verdict> {
        match &self.pending.get(&conn)?.body {
            Body::Verdict(body) => Some(&body.verdict),
            _ => None,
        }
    }

    /// The attempts with a pending verdict, the oldest first.
    pub(super) fn pending(&self) -> impl Iterator<Item = ConnId> {
        self.pending.keys().copied()
    }

    /// The attempt with the oldest pending verdict, if there is no room for one more.
    pub(super) fn oldest_of_too_many(&self, conn: ConnId) -> Option<ConnId> {
        let is_full = self.pending.len() >= MAX_PENDING && !self.is_pending(conn);
        self.pending().next().filter(|_| is_full)
    }

    /// Keeps a verdict as pending.
    pub(super) fn hold(&mut self, conn: ConnId, record: Decision) {
        self.pending.insert(conn, record);
    }

    pub(super) fn take_pending(&mut self, conn: ConnId) -> Option<Decision> {
        self.pending.remove(&conn)
    }

    /// Drops the pending verdict on the attempt, and all later ones.
    pub(super) fn supersede(&mut self, conn: ConnId) {
        if self.take_pending(conn).is_some()
            && let Some(verdict) = self.by_attempt.get_mut(&conn)
        {
            verdict.superseded = true;
        }
    }

    pub(super) fn is_superseded(&self, conn: ConnId) -> bool {
        self.by_attempt.get(&conn).is_some_and(|it| it.superseded)
    }

    pub(super) fn is_emitted(&self, conn: ConnId) -> bool {
        self.by_attempt.get(&conn).is_some_and(|it| it.emitted.is_some())
    }

    /// Emits a verdict with the cause and the outcome that it replaces, unless it repeats the last one.
    pub(super) fn emit(&mut self, conn: ConnId, mut record: Decision, out: &mut Vec<Decision>) {
        self.pending.remove(&conn);
        if let (Some(verdict), Body::Verdict(body)) = (self.by_attempt.get_mut(&conn), &record.body) {
            let answer = VerdictKey::of(body);
            let last = verdict.emitted.as_ref().map(|(_, last)| last);
            if last == Some(&answer) {
                return;
            }
            record.replaces = last.map(|last| (last.cause, last.outcome));
            verdict.emitted = Some((record.time_boot_ns, answer));
        }
        out.push(record);
    }

    /// A failure of this pod was emitted with a time in this range.
    pub(super) fn has_failure(&self, pod: &PodRef, (from, until): (u64, u64)) -> bool {
        let mut emitted = self.by_attempt.values().filter_map(|it| it.emitted.as_ref());
        emitted.any(|(time, answer)| (from..=until).contains(time) && answer.is_failure_of(pod))
    }

    pub(super) fn is_finished(&self, conn: ConnId) -> bool {
        self.finished.contains_key(&conn)
    }

    /// Marks the attempt as over; returns whether it was not over before.
    pub(super) fn finish(&mut self, conn: ConnId) -> bool {
        let is_new = !self.is_finished(conn);
        self.finished.insert(conn, ());
        is_new
    }
}

impl Core {
    /// Remembers a verdict, and what later verdicts need of it: a failed connect, a port without TLS.
    pub(super) fn remember(&mut self, conn: ConnId, finding: &Finding, revised: bool) {
        let attempt = self.correlator.get(conn);
        // The rules are read for the flow of the dropped packet. A translation may have changed it.
        let dropped = finding.waits_for.zip(attempt).and_then(|((netns, time), attempt)| {
            attempt.drops().find(|(at, drop)| (drop.netns, *at) == (Some(netns), time))
        });
        let flow = dropped.map(|(_, drop)| drop.flow).or(attempt.map(|it| it.flow));
        let in_handshake = attempt.is_some_and(|it| it.established.is_none());
        let is_retry = attempt.is_some_and(|it| self.is_grpc_retry(it));
        let without_tls = attempt.filter(|it| Matched::new(it, &self.node).is_without_tls()).map(|it| it.flow.dst);
        if self.verdicts.of(conn).is_none() && finding.outcome == Outcome::Failure {
            self.note_connect(conn, finding.cause);
        }
        if let Some(dst) = without_tls {
            self.node.tls.observe_plain(dst);
        }
        let Finding { cause, outcome, confidence, decided_at, rests_on_lost_packet, lacks_programs, .. } = *finding;
        let place = finding.waits_for.map(|(netns, _)| netns);
        let is_read = |netns: Netns, time: u64| {
            let reading = self.node.firewalls.reading(netns).filter(|reading| reading.covers(time));
            flow.zip(reading).is_some_and(|(flow, reading)| reading.firewall.is_complete_for(flow))
        };
        let read_for = finding.waits_for.filter(|(netns, time)| is_read(*netns, *time));
        let decided = Decided {
            cause,
            outcome,
            confidence,
            decided_at,
            place,
            read_for,
            in_handshake,
            rests_on_lost_packet,
            revised,
            is_retry,
            lacks_programs,
        };
        self.verdicts.decide(conn, decided, |conn| self.correlator.get(conn).is_some());
    }
}

#[cfg(test)]
impl Core {
    /// The length of all verdicts as text, without the pending ones. No more than [`MAX`] are remembered.
    pub(crate) fn decided_in_text(&self) -> usize {
        let verdicts = &self.verdicts.by_attempt;
        let decided = verdicts.values().count();
        assert!(decided <= MAX, "{decided} decided attempts");
        verdicts.values().map(|it| format!("{:?}{:?}", it.decided, it.emitted).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECIDED: Decided = Decided {
        cause: Cause::ConnectionRefused,
        outcome: Outcome::Failure,
        confidence: Confidence::Proven,
        decided_at: 0,
        place: None,
        read_for: None,
        in_handshake: true,
        rests_on_lost_packet: false,
        revised: false,
        is_retry: false,
        lacks_programs: false,
    };

    #[test]
    fn a_revision_drops_no_other_attempt_from_a_full_table() {
        let mut verdicts = Verdicts::default();
        (0..MAX as u64).for_each(|conn| verdicts.decide(ConnId(conn), DECIDED, |_| false));
        verdicts.decide(ConnId(5), Decided { revised: true, ..DECIDED }, |_| false);
        assert!(verdicts.of(ConnId(0)).is_some() && verdicts.of(ConnId(5)).is_some_and(|it| it.revised));
        verdicts.decide(ConnId(MAX as u64), DECIDED, |_| false);
        assert!(verdicts.of(ConnId(0)).is_none() && verdicts.of(ConnId(1)).is_some());
        verdicts.decide(ConnId(MAX as u64 + 1), DECIDED, |conn| conn == ConnId(1));
        assert!(verdicts.of(ConnId(1)).is_some() && verdicts.of(ConnId(2)).is_none(), "it can be decided again");
    }

    /// A connection that was open for long has a lower number than all that are kept.
    #[test]
    fn the_verdict_and_the_end_of_an_old_attempt_stay_in_a_full_table() {
        let mut verdicts = Verdicts::default();
        for conn in (1..=MAX as u64).chain([0]) {
            verdicts.decide(ConnId(conn), DECIDED, |_| false);
            assert!(verdicts.finish(ConnId(conn)));
        }
        verdicts.decide(ConnId(MAX as u64 + 1), DECIDED, |_| false);
        assert!(!verdicts.finish(ConnId(0)), "its record was emitted");
        assert!(verdicts.of(ConnId(0)).is_some() && verdicts.of(ConnId(2)).is_none());
    }
}
