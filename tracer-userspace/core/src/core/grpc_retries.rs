//! A gRPC probe connects again until its timeout: one attempt of the probe is several connections.
//!
//! The kubelet connects with `grpc.WithBlock()` and without `FailOnNonTempDialError` (pkg/probe/grpc): a connect that
//! is refused or ends before the server's first frame is repeated 1 s later, then after 1.28 to 1.92 s, 2.05 to 3.07 s
//! and so on (grpc-go, `backoff.DefaultConfig`). Two gRPC probes of one port each have a series of their own.
//! The last failed connect of a series has the verdict.

use std::net::SocketAddr;

use super::records::withdraw;
use super::verdicts::Decided;
use super::{Core, MAX_COUNTERS};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::{self, Matched};
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::{Answer, AnswerKind, ConnId};
use tracer_model::recent::Recent;
use tracer_model::record::Cause;

/// The shortest time between two connects of a series, minus a margin for the timers of a busy node.
const LEAST_NS: u64 = 950_000_000;
/// A connect that begins this shortly before the timeout of a series belongs to the next attempt of the probe: a margin
/// for the timers of a busy node.
const EARLY_NS: u64 = 50_000_000;
/// Series kept for one target: each of its probes has one.
const MAX_SERIES: usize = 8;

/// The failed connects of one attempt of a probe: when the first and the last one began, and which one was the last.
#[derive(Clone, Copy, Debug)]
struct Series {
    first: u64,
    last: u64,
    last_conn: ConnId,
}

/// The attempts of gRPC probes that may connect again, by process and target.
#[derive(Debug, Default)]
pub(super) struct GrpcRetries(Recent<(u32, SocketAddr), Vec<Series>, MAX_COUNTERS>);

impl GrpcRetries {
    /// The position of the series that this connect continues.
    fn position(&self, attempt: &Attempt, window_ns: u64) -> Option<usize> {
        let is_continued = |it: &Series| {
            let after = |from: u64| attempt.started.saturating_sub(from);
            after(it.last) >= LEAST_NS && after(it.first) < window_ns.saturating_sub(EARLY_NS)
        };
        self.0.get(&key(attempt))?.iter().position(is_continued)
    }

    /// When the first connect began of the series that this connect continues.
    fn first_before(&self, attempt: &Attempt, window_ns: u64) -> Option<u64> {
        let position = self.position(attempt, window_ns)?;
        self.0.get(&key(attempt))?.get(position).map(|series| series.first)
    }

    /// When the first connect began of the series that ends with this connect.
    fn first_of(&self, attempt: &Attempt) -> Option<u64> {
        let series = self.0.get(&key(attempt))?.iter().find(|it| it.last == attempt.started);
        series.map(|it| it.first)
    }

    /// Ends the series that this connect continues. Series of other probes of the target stay.
    fn end(&mut self, attempt: &Attempt, window_ns: u64) {
        let position = self.position(attempt, window_ns);
        if let (Some(position), Some(series)) = (position, self.0.get_mut(&key(attempt))) {
            series.remove(position);
        }
    }

    /// Adds a failed connect to its series, or begins a series with it. Returns the connect before it.
    fn add(&mut self, attempt: &Attempt, window_ns: u64) -> Option<ConnId> {
        let (position, began) = (self.position(attempt, window_ns), attempt.started);
        let series = self.0.or_default(key(attempt));
        match position.and_then(|position| series.get_mut(position)) {
            Some(continued) => {
                continued.last = began;
                Some(std::mem::replace(&mut continued.last_conn, attempt.conn))
            }
            None => {
                series.retain(|it| began.saturating_sub(it.first) < window_ns);
                series.truncate(MAX_SERIES - 1);
                series.push(Series { first: began, last: began, last_conn: attempt.conn });
                None
            }
        }
    }
}

fn key(attempt: &Attempt) -> (u32, SocketAddr) {
    (attempt.actor.pid, attempt.flow.dst)
}

impl Core {
    /// An earlier connect of the same attempt of the probe has failed.
    pub(super) fn is_grpc_retry(&self, attempt: &Attempt) -> bool {
        let decided = self.verdicts.of(attempt.conn).map(|it| it.is_retry);
        let series = || self.grpc_retries.position(attempt, Matched::new(attempt, &self.node).grpc_timeouts_ns()?.1);
        decided.unwrap_or_else(|| series().is_some())
    }

    /// Until when a gRPC probe may connect again after this failed connect, within the same attempt of the probe.
    pub(super) fn may_retry_until(&self, attempt: &Attempt) -> Option<u64> {
        let (shortest, _) = Matched::new(attempt, &self.node).grpc_timeouts_ns().filter(|_| is_unheard(attempt))?;
        let over = self.grpc_retries.first_of(attempt)?.saturating_add(shortest);
        let has_time = attempt.started.saturating_add(LEAST_NS) < over.saturating_sub(EARLY_NS);
        has_time.then_some(over)
    }

    /// A connect failed: the probe may connect again until its timeout. The verdict on the connect before it is not
    /// needed if it still waits, and if this one is explained.
    pub(super) fn note_connect(&mut self, conn: ConnId, cause: Cause) {
        let Some(attempt) = self.correlator.get(conn).filter(|it| is_unheard(it)) else { return };
        let Some((_, longest)) = Matched::new(attempt, &self.node).grpc_timeouts_ns() else { return };
        let until = attempt.started.saturating_add(longest).saturating_add(LEAST_NS);
        let before = self.grpc_retries.add(attempt, longest).filter(|_| cause != Cause::Unexplained);
        self.correlator.keep(conn, until);
        if let Some(before) = before {
            self.verdicts.supersede(before);
        }
    }

    /// A connect was answered: earlier failed connects of the same attempt of the probe cannot be why the probe fails.
    pub(super) fn withdraw_retried(&mut self, conn: ConnId, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let Some((shortest, _)) = Matched::new(attempt, &self.node).grpc_timeouts_ns() else { return };
        let Some(first) = self.grpc_retries.first_before(attempt, shortest) else { return };
        // The server began to answer, but the connection was closed at the probe's timeout: the probe failed.
        let over = first.saturating_add(shortest).saturating_sub(enrich::BEFORE_TIMEOUT_NS);
        if attempt.ended.is_some_and(|(ended, _)| ended >= over) {
            return;
        }
        let fits = |it: &&Attempt| it.started >= first && is_earlier_connect(it, attempt);
        let before = self.correlator.all().filter(fits).filter_map(|it| Some((it, self.verdicts.failure(it.conn)?)));
        let withdrawn: Vec<(ConnId, Finding)> =
            before.map(|(it, decided)| (it.conn, later_connect(it, attempt, decided))).collect();
        self.grpc_retries.end(attempt, shortest);
        for (other, finding) in withdrawn {
            self.remember(other, &finding, true);
            self.emit_verdict(other, finding, Vec::new(), true, out);
        }
    }
}

/// The server sent no HTTP/2, and the kubelet has reported no failure.
fn is_unheard(attempt: &Attempt) -> bool {
    let is_other = |it: &Answer| it.kind == AnswerKind::Http || it.kind.is_tls() || it.is_no_frame();
    let in_another = attempt.answer().is_some_and(|(_, it)| is_other(it));
    (in_another || attempt.received().is_none_or(|n| n == 0)) && attempt.kubelet().is_none()
}

/// Same process and target, and at least grpc-go's shortest wait before the second.
fn is_earlier_connect(first: &Attempt, second: &Attempt) -> bool {
    let same = key(first) == key(second) && first.netns == second.netns && first.prober;
    same && is_unheard(first) && second.started.saturating_sub(first.started) >= LEAST_NS
}

fn later_connect(first: &Attempt, second: &Attempt, before: Decided) -> Finding {
    let summary = format!(
        "the prober's gRPC client connected to {} again {:.1} s later and was answered. A gRPC probe retries until its timeout. tracer cannot read the status in the answer",
        first.flow.dst,
        second.started.saturating_sub(first.started) as f64 / 1e9
    );
    let fix = "Nothing for this connection: the probe connected again and was answered in time";
    withdraw(before, second, summary, fix)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn refused(stream: &mut Stream, conn: u64, until_next_ms: u64) {
        stream.again(conn).connect().refused().wait_ms(until_next_ms);
    }

    fn answered(stream: &mut Stream, conn: u64) {
        stream.again(conn).connect().established().answer(AnswerKind::Http2, None).closes((200, 201, 150)).wait_ms(10);
    }

    /// Refused connects with these waits after them, then a connect that is answered.
    fn answered_after(timeout_s: u32, refused_ms: &[u64]) -> Stream {
        let mut stream = Stream::new().grpc_readiness(timeout_s).clone();
        for (conn, until_next) in (100..).zip(refused_ms) {
            refused(&mut stream, conn, *until_next);
        }
        answered(&mut stream, 200);
        stream
    }

    #[test]
    fn refused_connects_are_noise_if_a_later_connect_of_the_attempt_is_answered() {
        use Outcome::{Failure, Noise};
        let third = |timeout_s| answered_after(timeout_s, &[1_000, 1_600]).outcomes();
        assert_eq!(third(5), [Noise], "none is a failure before its probe is over");
        assert_eq!(third(2), [Failure], "the attempt was over by then");
        assert_eq!(third(1), [Failure, Failure], "each was an attempt of its own");
        let mut http = Stream::new().http_readiness().clone();
        refused(&mut http, 100, 1_000);
        http.again(101).connect().established().answers(200);
        assert_eq!(http.outcomes(), [Failure], "nobody connects again for HTTP");
    }

    /// HTTP/2 frames of a `grpc.health.v1` answer are not read: SERVING and NOT_SERVING look alike.
    #[test]
    fn an_answer_is_not_reported_as_a_success() {
        let withdrawn = answered_after(5, &[1_000]).verdict();
        let reported = format!("{} {}", withdrawn.summary, withdrawn.remediation);
        assert_has(&reported, &["cannot read the status", "Nothing for this connection"]);
        assert_lacks(&reported, &["succe"]);
    }

    /// First connects at 0, 1 and 2.6 s, a timeout of 3 s, and the next attempt of the probe at 5 s. Then periodSeconds 2 and
    /// timeoutSeconds 2: the kubelet's ticker is never exact.
    #[test]
    fn a_connect_in_the_next_attempt_of_the_probe_withdraws_no_failure() {
        assert_eq!(answered_after(3, &[1_000, 1_600, 2_400]).outcomes(), [Outcome::Failure]);
        assert_eq!(answered_after(2, &[1_999, 2_001, 1_998]).in_a_row(), [1, 2, 3].map(Some));
    }

    /// An HTTP/1 server answers each connect, or a Redis server.
    #[test]
    fn connects_that_are_answered_in_another_protocol_count_as_one_failure() {
        for (kind, status, len) in [(AnswerKind::Http, Some(400), None), (AnswerKind::Other, None, Some(70))] {
            let mut stream = Stream::new().grpc_readiness(5).clone();
            for (conn, until_next) in [(100, 1_000), (101, 1_600), (102, 7_400), (103, 1_000)] {
                stream.again(conn).connect().established().answer_with(kind, status, |it| it.len = len);
                stream.closes((90, 91, 103)).wait_ms(until_next);
            }
            assert_eq!(stream.in_a_row(), [1, 2].map(Some), "{kind:?}");
        }
    }

    /// The timeout of 3 s ends while the second connect waits for an answer after its handshake.
    #[test]
    fn a_connect_that_was_closed_at_the_timeout_withdraws_no_failure() {
        let after = |ms: u64| {
            let mut stream = Stream::new().grpc_readiness(3).clone();
            refused(&mut stream, 100, 1_000);
            stream.again(101).connect().established().answer(AnswerKind::Other, None).wait_ms(ms);
            stream.closes((200, 201, 60)).wait_ms(10).outcomes()
        };
        assert_eq!(after(1_999), [Outcome::Failure]);
        assert_eq!(after(1_900), [Outcome::Noise]);
    }

    /// tracer sees the process begin to listen before the connect that succeeds.
    #[test]
    fn a_refusal_before_the_process_listened_is_noise_if_a_later_connect_is_answered() {
        let mut stream = Stream::new().grpc_readiness(5).clone();
        refused(&mut stream, 100, 400);
        stream.listens(POD, 8080, true).wait_ms(600);
        answered(&mut stream, 101);
        assert_eq!(stream.causes(), ["not_listening_yet"]);
        assert_eq!(stream.outcomes().last(), Some(&Outcome::Noise));
    }

    #[test]
    fn each_attempt_of_the_probe_counts_once() {
        let mut stream = Stream::new().grpc_readiness(5).clone();
        for attempt in 0..2 {
            for (connect, until_next) in [(0, 1_000), (1, 1_600), (2, 7_400)] {
                refused(&mut stream, 100 + 10 * attempt + connect, until_next);
            }
        }
        assert_eq!(stream.in_a_row(), [1, 2].map(Some));
        // The last attempt was answered. The next one begins before the timeout of the last one.
        let mut quick = Stream::new().grpc_readiness(5).clone();
        refused(&mut quick, 100, 1_000);
        answered(&mut quick, 101);
        quick.wait_ms(1_500);
        refused(&mut quick, 102, 1_000);
        assert_eq!(quick.in_a_row().last(), Some(&Some(1)));
    }

    /// The probe does not connect again after an answer: the next connect is the next attempt of the probe.
    #[test]
    fn a_connect_after_not_serving_is_a_new_attempt_of_the_probe() {
        let mut stream = Stream::new().grpc_readiness(5).clone();
        answered(&mut stream, 100);
        stream.kubelet(ProbeOutput::NotServing).wait_ms(3_000);
        refused(&mut stream, 101, 10_000);
        refused(&mut stream, 102, 10_000);
        let (core, _) = push_all(&stream.observations);
        assert_eq!(core.verdicts.of(ConnId(101)).map(|it| it.is_retry), Some(false));
        assert_eq!(stream.in_a_row(), [None; 3], "only the kubelet saw the first one fail");
    }

    /// The kubelet 1.36 reports once, at its timeout. Two milliseconds later it may run the probe again.
    #[test]
    fn a_failure_of_several_connects_has_one_verdict_also_if_a_process_listens_later() {
        let mut stream = Stream::new().grpc_readiness(3).clone();
        refused(&mut stream, 100, 1_000);
        refused(&mut stream, 101, 1_600);
        refused(&mut stream, 102, 401);
        let words = "timeout: failed to connect service \"10.88.0.2:8080\" within 3s: context deadline exceeded";
        stream.kubelet_messages(ProbeType::Readiness, words).wait_ms(2);
        assert_eq!((stream.causes(), stream.in_a_row()), (vec!["connection_refused"], vec![Some(1)]));
        refused(&mut stream, 103, 2_000);
        assert_eq!(stream.in_a_row(), [1, 2].map(Some));
        stream.listens(POD, 8080, true).wait_ms(600).tick();
        let causes = ["connection_refused", "not_listening_yet", "not_listening_yet"];
        assert_eq!(stream.causes(), causes, "a revision of the first failure, and the second one");
    }

    /// Liveness and readiness connect 0.3 s apart, and each connects again.
    #[test]
    fn two_probes_of_one_port_have_two_series() {
        let mut stream = Stream::new().grpc_readiness(5).grpc_liveness_too(5).clone();
        for (conn, until_next) in [(100, 300), (101, 700), (102, 300), (103, 8_700)] {
            refused(&mut stream, conn, until_next);
        }
        let (core, _) = push_all(&stream.observations);
        let grpc_retries = (100..104).map(|conn| core.verdicts.of(ConnId(conn)).map(|it| it.is_retry));
        assert_eq!(grpc_retries.collect::<Vec<_>>(), [false, false, true, true].map(Some));
        assert_eq!(stream.in_a_row(), [None; 2], "the kubelet did not name the probe of each failure");
    }

    /// Connects at 0 and 0.3 s are refused, those at 1.0 and 1.3 s answered.
    #[test]
    fn an_answer_to_one_probe_does_not_end_the_series_of_the_other() {
        let mut stream = Stream::new().grpc_readiness(5).grpc_liveness_too(5).clone();
        refused(&mut stream, 100, 300);
        refused(&mut stream, 101, 700);
        answered(&mut stream, 102);
        stream.wait_ms(290);
        answered(&mut stream, 103);
        assert_eq!(stream.outcomes(), [Outcome::Noise; 2]);
    }
}
