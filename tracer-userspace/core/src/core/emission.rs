//! When verdicts are emitted. A failure is emitted once the attempt can no longer succeed, so that none is taken back.

use super::Core;
use super::loopbacks::is_first_try;
use super::records::kubelet_outcome;
use super::verdicts::Decided;
use crate::classify::finding::Finding;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_model::decision::Decision;
use tracer_model::event::ConnId;
use tracer_model::record::{Body, Cause, Outcome};

/// Who dials `localhost` dials its other address at once when the first one refuses: a busy prober takes this long.
const OTHER_ADDRESS_NS: u64 = 100_000_000;
/// Attempts that were forgotten are looked for so often.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;

/// Until when an attempt that seems to have failed may succeed.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// Its end: a SYN that is sent again may get through.
    End,
    /// This time: the prober may dial again for the same attempt of the probe.
    Time(u64),
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
        let is_first = !self.verdicts.is_emitted(conn);
        let until = self.may_succeed_until(conn, record.time_boot_ns).filter(|_| is_failure && is_first);
        let Some(until) = until else { return self.verdicts.emit(conn, record, out) };
        if let Until::Time(time) = until {
            self.waiting.schedule(time, conn);
        }
        if let Some((oldest, record)) = self.verdicts.hold(conn, record) {
            self.verdicts.emit(oldest, record, out);
        }
    }

    /// Emits the verdict that waits for this attempt, if it can no longer succeed.
    pub(super) fn release_verdict(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        if !self.verdicts.is_pending(conn) {
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
        let Some(mut record) = self.verdicts.take_pending(conn) else { return };
        if let (Some(attempt), Body::Verdict(body)) = (self.correlator.get(conn), &mut record.body) {
            body.kubelet = body.kubelet.take().or_else(|| attempt.kubelet().map(|(_, probe)| kubelet_outcome(probe)));
            record.time_boot_ns = record.time_boot_ns.max(attempt.ended.map_or(0, |(end, _)| end));
        }
        self.verdicts.emit(conn, record, out);
    }

    /// Emits the verdicts on attempts that were forgotten: their ends will not be seen.
    pub(super) fn release_forgotten(&mut self, now: u64, out: &mut Vec<Decision>) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now.saturating_add(SWEEP_EVERY_NS);
        let forgotten = |conn: &ConnId| self.correlator.get(*conn).is_none();
        let forgotten: Vec<ConnId> = self.verdicts.pending().filter(forgotten).collect();
        forgotten.into_iter().for_each(|conn| self.emit_pending(conn, out));
    }

    /// The run ends: emits all that waits.
    pub(super) fn release_all(&mut self, out: &mut Vec<Decision>) {
        let conns: Vec<ConnId> = self.verdicts.pending().collect();
        conns.into_iter().for_each(|conn| self.emit_pending(conn, out));
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
        waits || self.verdicts.is_pending(attempt.conn) && !self.verdicts.is_finished(attempt.conn)
    }

    /// The other address of `localhost` may be dialled, or is.
    fn may_try_other_until(&self, attempt: &Attempt, now: u64) -> Option<u64> {
        if !Matched::new(attempt, &self.node).may_be_localhost() {
            return None;
        }
        let end = attempt.ended.map_or(now, |(end, _)| end);
        let waits = self.correlator.all().any(|it| it.ended.is_none() && is_first_try(attempt, it));
        Some(if waits { now.max(end) } else { end }.saturating_add(OTHER_ADDRESS_NS))
    }
}
