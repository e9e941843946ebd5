//! When verdicts are emitted. A failure waits until the attempt can no longer succeed, so that no verdict is taken
//! back.

use super::Core;
use super::loopbacks::is_first_try;
use super::records::{kubelet_outcome, set_time};
use super::revision::is_of_later_syn;
use super::verdicts::Decided;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, ResetSent};
use tracer_model::record::{Body, Cause, Confidence, Outcome, Trait};

/// If one address of `localhost` refuses, the prober tries the other one at once. A busy prober takes up to this long.
const OTHER_ADDRESS_NS: u64 = 100_000_000;
/// How long a verdict waits for the line in the kubelet's log that names its probe. The kubelet writes it within a
/// millisecond; on a busy node tracer had read it after 28 ms in half of the cases, and after 243 ms in nine of ten.
const LINE_NS: u64 = 250_000_000;
/// How often the core searches for pending verdicts on attempts that the correlator has dropped.
const SWEEP_EVERY_NS: u64 = 1_000_000_000;
/// A SYN without an answer is sent again after one second (`TCP_TIMEOUT_INIT`), and a little for the timer.
const SYN_AGAIN_NS: u64 = 1_200_000_000;

/// Until when an attempt that seems to have failed may still succeed.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// Its end: a retransmitted SYN may get through.
    End,
    /// This time: the prober may connect again within the same attempt of the probe.
    Time(u64),
}

/// A pending verdict is replaced by one of the same cause with a higher confidence, with the names of programs, or with
/// what became of the answer. Or it is about a rule that stopped a later SYN in another namespace. Otherwise the first
/// one stays: its evidence was read closest to the failure, such as the counters of rules.
pub(super) fn refreshes(before: &Decided, finding: &Finding) -> bool {
    let same = (before.cause, before.outcome) == (finding.cause, finding.outcome);
    let elsewhere = finding.waits_for.is_some_and(|(netns, _)| before.place.is_some_and(|place| place != netns));
    let named = before.lacks_programs && !finding.lacks_programs;
    let lost = finding.cause.has(Trait::Refusal)
        && finding.confidence >= before.confidence
        && before.rests_on_lost_packet != finding.rests_on_lost_packet;
    same && (finding.confidence > before.confidence || named || lost || elsewhere && is_of_later_syn(*before, finding))
}

impl Core {
    /// Emits a verdict, now or when the attempt can no longer succeed.
    pub(super) fn emit(&mut self, conn: ConnId, mut record: Decision, out: &mut Vec<Decision>) {
        if self.verdicts.is_superseded(conn) {
            return;
        }
        let is_failure = matches!(&record.body, Body::Verdict(body) if body.verdict.outcome == Outcome::Failure);
        let is_first = !self.verdicts.is_emitted(conn);
        let until = self.may_succeed_until(conn, record.time_boot_ns).filter(|_| is_failure && is_first);
        let Some(until) = until else {
            self.note_end(conn, &mut record);
            return self.verdicts.emit(conn, record, out);
        };
        if let Until::Time(time) = until {
            self.waiting.schedule(time, conn);
        }
        if let Some(oldest) = self.verdicts.oldest_of_too_many(conn) {
            self.emit_pending(oldest, record.time_boot_ns, out);
        }
        self.verdicts.hold(conn, record);
    }

    /// Emits the verdict that waits for this attempt, if it can no longer succeed.
    pub(super) fn release_verdict(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        // What is decided next replaces it. How a connection ends shows what came of it.
        let is_open = self.correlator.get(conn).is_some_and(|it| it.established.is_some() && it.ended.is_none());
        if !self.verdicts.is_pending(conn) || self.waiting.is_past_end(conn) || is_open {
            return;
        }
        match self.may_succeed_until(conn, now) {
            Some(Until::Time(time)) if now < time => self.waiting.schedule(time, conn),
            Some(Until::End) => {}
            Some(Until::Time(_)) | None => self.emit_pending(conn, now, out),
        }
    }

    /// Emits the pending verdict of this attempt. Its time is the end of the attempt, if that is later. Drops it if it is no
    /// longer right: the attempt is then no failure.
    fn emit_pending(&mut self, conn: ConnId, now: u64, out: &mut Vec<Decision>) {
        let Some(mut record) = self.verdicts.take_pending(conn) else { return };
        if self.is_overcome(conn, now) {
            return self.uncount_failure(conn);
        }
        self.lower_if_unseen(conn, &mut record, now);
        self.note_end(conn, &mut record);
        if let (Some(attempt), Body::Verdict(body)) = (self.correlator.get(conn), &mut record.body) {
            body.kubelet = body.kubelet.take().or_else(|| attempt.kubelet().map(|(_, probe)| kubelet_outcome(probe)));
            let time = record.time_boot_ns.max(attempt.ended.map_or(0, |(end, _)| end));
            set_time(&mut record, time, attempt);
        }
        self.verdicts.emit(conn, record, out);
    }

    /// Notes what the end of the attempt shows about a cause that stopped an earlier SYN.
    fn note_end(&self, conn: ConnId, record: &mut Decision) {
        let both = self.correlator.get(conn).zip(self.verdicts.of(conn));
        if let (Some((attempt, decided)), Body::Verdict(body)) = (both, &mut record.body) {
            decided.note_late_handshake(attempt, &mut body.verdict);
            decided.note_missing_syn(attempt, &self.node, &mut body.verdict);
        }
    }

    /// Lowers the confidence if events were lost since the decision and no end was seen: a later SYN may have got
    /// through.
    fn lower_if_unseen(&self, conn: ConnId, record: &mut Decision, now: u64) {
        let lost = self.node.lost_between(record.time_boot_ns, now);
        let is_unseen = self.correlator.get(conn).is_none_or(is_unanswered);
        if let Body::Verdict(body) = &mut record.body
            && (is_unseen && lost > 0 && body.verdict.lost_events == 0)
        {
            body.verdict.confidence = body.verdict.confidence.lowered();
            body.verdict.lost_events = lost;
        }
    }

    /// Emits the pending verdicts on attempts that the correlator has dropped, and on those that lack their end: nobody
    /// will see it.
    pub(super) fn release_forgotten(&mut self, now: u64, out: &mut Vec<Decision>) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now.saturating_add(SWEEP_EVERY_NS);
        let forgotten = |conn: &ConnId| self.correlator.get(*conn).is_none_or(|it| self.lacks_end(it, now));
        let forgotten: Vec<ConnId> = self.verdicts.pending().filter(forgotten).collect();
        forgotten.into_iter().for_each(|conn| self.emit_pending(conn, now, out));
    }

    /// Events were lost, and a RST answered the SYN. The prober did not send its SYN again, so the RST arrived. No other
    /// connect of the same probe may follow.
    fn lacks_end(&self, attempt: &Attempt, now: u64) -> bool {
        let refuses = |r: &ResetSent| r.no_socket && r.answered.is_syn() && r.flow.src == attempt.flow.dst;
        let refused = attempt.resets_sent().find(|(_, reset)| refuses(reset));
        let is_over = |at: u64| attempt.syns_sent_again().next().is_none() && at.saturating_add(SYN_AGAIN_NS) < now;
        let is_open = attempt.established.is_none() && attempt.ended.is_none();
        let lost = || self.node.lost_between(attempt.started, now) > 0;
        let retries = || self.may_retry_until(attempt).is_some_and(|until| until > now);
        is_open && refused.is_some_and(|(at, _)| is_over(at)) && lost() && !retries()
    }

    /// The run ends: emits all pending verdicts.
    pub(super) fn release_all(&mut self, now: u64, out: &mut Vec<Decision>) {
        let conns: Vec<ConnId> = self.verdicts.pending().collect();
        conns.into_iter().for_each(|conn| self.emit_pending(conn, now, out));
    }

    /// Until when this attempt may succeed, or may get its name; `None`: it has failed.
    fn may_succeed_until(&self, conn: ConnId, now: u64) -> Option<Until> {
        let attempt = self.correlator.get(conn).filter(|it| it.kubelet().is_none())?;
        if self.may_get_through(attempt) {
            return Some(Until::End);
        }
        let until = self.may_retry_until(attempt).or_else(|| self.may_try_other_until(attempt, now));
        until.or_else(|| self.may_be_named_until(attempt)).map(Until::Time)
    }

    /// Until when the kubelet's log may name the probe, if several of different types fit. tracer follows the log if it
    /// read a line of it before.
    fn may_be_named_until(&self, attempt: &Attempt) -> Option<u64> {
        let matched = Matched::new(attempt, &self.node);
        let is_unnamed = || matched.probe_type().is_none() && !matched.possible_probes().is_empty();
        if !self.kubelet_messages.follow_log() || !is_unnamed() {
            return None;
        }
        let decided = || self.verdicts.of(attempt.conn).map(|it| it.decided_at);
        let failed = attempt.ended.map(|(end, _)| end).or_else(decided)?;
        Some(failed.saturating_add(LINE_NS))
    }

    /// A retransmitted SYN may still be answered, unless IPVS took the answer, as it takes each answer to a NodePort.
    /// If that is only possible, the table of NodePorts may be older than the NodePort: it is read again.
    fn may_get_through(&self, attempt: &Attempt) -> bool {
        let is_collision =
            |it: Decided| it.cause == Cause::NodeportEphemeralCollision && it.confidence > Confidence::Possible;
        let collides = self.verdicts.of(attempt.conn).is_some_and(is_collision);
        let waits = is_unanswered(attempt) && !collides;
        waits || self.verdicts.is_pending(attempt.conn) && !self.verdicts.is_finished(attempt.conn)
    }

    /// Until when the prober may try the other address of `localhost`; later while that connection is open.
    fn may_try_other_until(&self, attempt: &Attempt, now: u64) -> Option<u64> {
        if !Matched::new(attempt, &self.node).may_be_localhost() {
            return None;
        }
        let end = attempt.ended.map_or(now, |(end, _)| end);
        let waits = self.correlator.all().any(|it| it.ended.is_none() && is_first_try(attempt, it));
        Some(if waits { now.max(end) } else { end }.saturating_add(OTHER_ADDRESS_NS))
    }
}

/// The handshake is neither completed nor over, and no RST has arrived.
fn is_unanswered(attempt: &Attempt) -> bool {
    attempt.established.is_none() && attempt.ended.is_none() && attempt.reset_received().is_none()
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// Refused at 8080, where a liveness and a readiness probe fit. Of each verdict its time, and the type of the probe.
    fn refused(fill: impl FnOnce(&mut Stream)) -> (usize, Option<ProbeType>) {
        let mut stream = Stream::new().http_readiness().http_liveness_too().clone();
        // The first line shows that tracer follows the log.
        stream.again(7).connect().refused().wait_ms(1).kubelet(ProbeOutput::Network).wait_ms(5_000);
        let before = stream.verdicts().len();
        fill(stream.again(8).connect().refused());
        let verdicts = stream.verdicts().split_off(before);
        (verdicts.len(), verdicts.last().and_then(|it| it.probe.as_ref()?.probe_type))
    }

    /// Under load. Without the RST that arrived and the end of the attempt, nothing else shows that it is over.
    #[test]
    fn a_refusal_is_emitted_if_the_end_of_its_attempt_was_lost() {
        let emitted = |stream: &mut Stream| {
            let emitted = stream.wait_ms(10_000).tick().verdicts_before_the_end();
            emitted.iter().map(|it| it.verdict.cause.name()).collect::<Vec<_>>()
        };
        let refused = || Stream::new().http_readiness().connect().reset_sent(SYN, true, None).wait_ms(5).tick().clone();
        assert_eq!(emitted(refused().lost(2)), ["connection_refused"]);
        assert!(emitted(refused().wait_ms(1_000).syn_again().lost(2)).is_empty(), "the RST did not arrive");
        let mut twice = refused().wait_ms(1_000).syn_again().clone();
        assert!(emitted(twice.reset_sent(SYN, true, None).lost(2)).is_empty(), "nor did the second one");
        assert!(emitted(refused().wait_ms(1_000).lost(2).established()).is_empty());
    }

    /// Its later SYN may have got through.
    #[test]
    fn a_verdict_without_an_end_is_less_sure_if_events_were_lost() {
        let decided = |lost: u64| {
            let mut stream = Stream::new().http_readiness().connect().filtered(SYN, POD).clone();
            stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)])).settles();
            if lost > 0 {
                stream.wait_ms(500).lost(lost);
            }
            let verdict = stream.verdict();
            assert_eq!(stream.wait_ms(890_000).tick().verdicts_before_the_end().len(), usize::from(lost == 0));
            assert_eq!(stream.wait_ms(20_000).tick().wait_ms(1_000).tick().verdicts_before_the_end().len(), 1);
            [verdict, stream.verdict()].map(|it| (it.confidence, it.lost_events))
        };
        assert_eq!(decided(0), [(Confidence::Proven, 0); 2]);
        assert_eq!(decided(2), [(Confidence::Likely, 2); 2]);
    }

    #[test]
    fn a_pending_verdict_wakes_the_core_that_looks_for_its_end() {
        let deadline = |stream: &Stream| push_all(&stream.observations).0.next_deadline();
        let mut stream = Stream::new().connect().reset_sent(SYN, true, None).settles().clone();
        // No inspection is due by then.
        stream.wait_ms(70_000).tick();
        let due = deadline(&stream).filter(|due| (stream.now()..=stream.now() + 1_000_000_000).contains(due));
        assert!(due.is_some(), "{:?}", deadline(&stream));
        assert_eq!(deadline(stream.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)).settles()), None);
    }

    /// The NodePort is newer than the table, or the answer was taken by firewall mark.
    #[test]
    fn a_possible_collision_waits_for_the_end() {
        let connected = || {
            let mut stream = Stream::new().http_readiness().node_port(ProxyMode::Ipvs, 30_001, &[]).clone();
            stream.connect().ipvs(SYN_ACK, IpvsOp::Translate).settles().wait_ms(900).clone()
        };
        assert!(connected().verdicts_before_the_end().is_empty());
        let mut through = connected().syn_again().established().answers(200).clone();
        assert_eq!(through.settles().outcomes(), [Outcome::Noise]);
        let found = |confidence| [("nodeport_ephemeral_collision", confidence)];
        assert_eq!(connected().gives_up().settles().all_decided(), found(Confidence::Possible));
        let read = connected().node_port(ProxyMode::Ipvs, 40_000, &[]).gives_up().settles().clone();
        assert_eq!(read.all_decided(), found(Confidence::Proven));
        assert!(read.verdict().summary.starts_with("source port 40000 of this attempt"));
        let mut known = Stream::new().node_port(ProxyMode::Ipvs, 40_000, &[]).connect().clone();
        assert_eq!(known.ipvs(SYN_ACK, IpvsOp::Translate).settles().verdicts_before_the_end().len(), 1);
    }

    #[test]
    fn a_verdict_waits_a_moment_for_the_line_that_names_its_probe() {
        let liveness = |stream: &mut Stream| _ = stream.kubelet_of(ProbeType::Liveness, ProbeOutput::Network);
        assert_eq!(refused(|stream| liveness(stream.wait_ms(200))), (1, Some(ProbeType::Liveness)));
        assert_eq!(refused(|stream| _ = stream.wait_ms(260).tick()), (1, None), "without the line");
        let emitted = |ms: u64| {
            let mut stream = Stream::new().http_readiness().http_liveness_too().clone();
            stream.again(7).connect().refused().wait_ms(1).kubelet(ProbeOutput::Network).wait_ms(5_000);
            stream.again(8).connect().refused().wait_ms(ms).tick().verdicts_before_the_end().len()
        };
        assert_eq!([200, 260].map(emitted), [1, 2]);
        assert_eq!(refused(|_| ()), (1, None), "the run ends");
    }
}
