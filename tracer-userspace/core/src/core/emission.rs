//! Which verdicts are emitted, and when. A failure is emitted once the attempt can no longer succeed, so that none is taken back.
//! A later verdict is emitted only if it says something else than the last one.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Core;
use super::loopbacks::is_first_try;
use super::records::kubelet_outcome;
use super::verdicts::Decided;
use crate::classify::finding::Finding;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Netns, PodRef};
use tracer_model::recent::Recent;
use tracer_model::record::{Body, Cause, Confidence, Culprit, K8s, Outcome, Subject, VerdictBody};

/// Verdicts that wait at once.
const MAX_PENDING: usize = 1024;
/// Emitted verdicts remembered.
const MAX_EMITTED: usize = 8192;
/// Targets of which what stands is remembered.
const MAX_STANDING: usize = 4096;
/// Who dials `localhost` dials its other address at once when the first one refuses: a busy prober takes this long.
const OTHER_ADDRESS_NS: u64 = 100_000_000;
/// Attempts that were forgotten are looked for so often.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;

/// What makes two verdicts on one attempt different for a reader.
#[derive(Debug, PartialEq)]
struct Answer {
    subject: Subject,
    cause: Cause,
    outcome: Outcome,
    confidence: Confidence,
    culprit: Option<Culprit>,
    k8s: Option<K8s>,
}

impl Answer {
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
}

/// Until when an attempt that seems to have failed may succeed.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// Its end: a SYN that is sent again may get through.
    End,
    /// This time: the prober may dial again for the same attempt of the probe.
    Time(u64),
}

/// The verdicts that wait, and what was emitted of the latest attempts.
#[derive(Debug, Default)]
pub(super) struct Emission {
    pending: BTreeMap<ConnId, Decision>,
    /// With the time of each.
    emitted: Recent<ConnId, (u64, Answer), MAX_EMITTED>,
    /// By target, and as whom sees it: what holds for each attempt until somebody changes it.
    standing: Recent<(Option<Netns>, SocketAddr), String, MAX_STANDING>,
    next_sweep: u64,
}

impl Emission {
    /// A verdict was decided and not emitted yet.
    pub(super) fn is_pending(&self, conn: ConnId) -> bool {
        self.pending.contains_key(&conn)
    }

    /// A failure of this pod was emitted whose time lies between these.
    pub(super) fn has_failure(&self, pod: &PodRef, (from, until): (u64, u64)) -> bool {
        let is_of_pod = |k8s: &K8s| {
            let K8s { namespace, pod_name: name, pod_uid: uid, .. } = k8s.clone();
            PodRef { namespace, name, uid }.is_same(pod)
        };
        let is_it = |(time, answer): &(u64, Answer)| {
            let failed = answer.outcome == Outcome::Failure && (from..=until).contains(time);
            failed && answer.k8s.as_ref().is_some_and(is_of_pod)
        };
        self.emitted.values().any(is_it)
    }

    /// The verdict is emitted, unless it repeats the last one.
    fn emit(&mut self, conn: ConnId, record: Decision, out: &mut Vec<Decision>) {
        self.pending.remove(&conn);
        if let Body::Verdict(body) = &record.body {
            let answer = Answer::of(body);
            if self.emitted.get(&conn).is_some_and(|(_, last)| *last == answer) {
                return;
            }
            self.emitted.insert(conn, (record.time_boot_ns, answer));
        }
        out.push(record);
    }
}

/// A verdict that was not emitted yet is replaced by one of the same cause that is surer. Else the first one stands: it was found
/// with what was read at that time, such as the counters of rules.
pub(super) fn refreshes(before: &Decided, finding: &Finding) -> bool {
    let same = (before.cause, before.outcome) == (finding.cause, finding.outcome);
    same && finding.confidence > before.confidence
}

impl Core {
    /// Emits a verdict, now or when the attempt can no longer succeed.
    pub(super) fn emit(&mut self, conn: ConnId, record: Decision, out: &mut Vec<Decision>) {
        let is_failure = matches!(&record.body, Body::Verdict(body) if body.verdict.outcome == Outcome::Failure);
        let is_first = self.emission.emitted.get(&conn).is_none();
        let until = self.may_succeed_until(conn, record.time_boot_ns).filter(|_| is_failure && is_first);
        let Some(until) = until else { return self.emission.emit(conn, record, out) };
        if let Until::Time(time) = until {
            self.waiting.schedule(time, conn);
        }
        let is_full = self.emission.pending.len() >= MAX_PENDING && !self.emission.is_pending(conn);
        if is_full && let Some((oldest, record)) = self.emission.pending.pop_first() {
            self.emission.emit(oldest, record, out);
        }
        self.emission.pending.insert(conn, record);
    }

    /// Emits the verdict that waits for this attempt, if it can no longer succeed.
    pub(super) fn release_verdict(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        if !self.emission.is_pending(conn) {
            return;
        }
        match self.may_succeed_until(conn, now) {
            Some(Until::Time(time)) if now < time => self.waiting.schedule(time, conn),
            Some(Until::End) => {}
            Some(Until::Time(_)) | None => self.emit_pending(conn, out),
        }
    }

    /// Emits what waits for this attempt. What decided it is the end of the attempt.
    fn emit_pending(&mut self, conn: ConnId, out: &mut Vec<Decision>) {
        let Some(mut record) = self.emission.pending.remove(&conn) else { return };
        if let (Some(attempt), Body::Verdict(body)) = (self.correlator.get(conn), &mut record.body) {
            body.kubelet = body.kubelet.take().or_else(|| attempt.kubelet().map(|(_, probe)| kubelet_outcome(probe)));
            record.time_boot_ns = record.time_boot_ns.max(attempt.ended.map_or(0, |(end, _)| end));
        }
        self.emission.emit(conn, record, out);
    }

    /// Emits the verdicts on attempts that were forgotten: their ends will not be seen.
    pub(super) fn release_forgotten(&mut self, now: u64, out: &mut Vec<Decision>) {
        if self.emission.pending.is_empty() || now < self.emission.next_sweep {
            return;
        }
        self.emission.next_sweep = now.saturating_add(SWEEP_EVERY_NS);
        let forgotten = |conn: &ConnId| self.correlator.get(*conn).is_none();
        let forgotten: Vec<ConnId> = self.emission.pending.keys().copied().filter(forgotten).collect();
        forgotten.into_iter().for_each(|conn| self.emit_pending(conn, out));
    }

    /// The run ends: emits all that waits.
    pub(super) fn release_all(&mut self, out: &mut Vec<Decision>) {
        let conns: Vec<ConnId> = self.emission.pending.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.emit_pending(conn, out));
    }

    /// It was emitted of an attempt before, and holds for each until the pod is changed.
    pub(super) fn stands(&mut self, conn: ConnId, finding: &Finding) -> bool {
        let Some(attempt) = self.correlator.get(conn).filter(|_| finding.cause == Cause::ProbeProvesNothing) else {
            return false;
        };
        let (target, standing) = ((attempt.netns, attempt.flow.dst), &mut self.emission.standing);
        let stands = standing.get(&target) == Some(&finding.summary);
        standing.insert(target, finding.summary.clone());
        stands
    }

    /// Until when this attempt may succeed; `None`: it has failed.
    fn may_succeed_until(&self, conn: ConnId, now: u64) -> Option<Until> {
        let attempt = self.correlator.get(conn).filter(|it| it.kubelet().is_none())?;
        if self.may_get_through(attempt) {
            return Some(Until::End);
        }
        self.may_retry_until(attempt).or_else(|| self.may_try_other_until(attempt, now)).map(Until::Time)
    }

    /// A SYN that is sent again may still be answered. Not where the target's stack refused it, nor where IPVS took the answer: it takes
    /// each answer to that port.
    fn may_get_through(&self, attempt: &Attempt) -> bool {
        let collides = self.verdicts.of(attempt.conn).is_some_and(|it| it.cause == Cause::NodeportEphemeralCollision);
        let refused = attempt.resets_sent().any(|(_, reset)| reset.answered.is_syn());
        let waits = attempt.established.is_none() && attempt.ended.is_none() && !collides && !refused;
        waits || self.emission.is_pending(attempt.conn) && !self.verdicts.is_finished(attempt.conn)
    }

    /// The other address of `localhost` may be dialled, or is.
    fn may_try_other_until(&self, attempt: &Attempt, now: u64) -> Option<u64> {
        if !enrich::may_be_localhost(attempt, &self.node) {
            return None;
        }
        let end = attempt.ended.map_or(now, |(end, _)| end);
        let waits = self.correlator.all().any(|it| it.ended.is_none() && is_first_try(attempt, it));
        Some(if waits { now.max(end) } else { end }.saturating_add(OTHER_ADDRESS_NS))
    }
}

#[cfg(test)]
impl Core {
    /// How long the emitted verdicts are in text, of which no more than [`MAX_EMITTED`] are remembered.
    pub(super) fn emitted_in_text(&self) -> usize {
        format!("{:?}", self.emission.emitted).len()
    }
}
