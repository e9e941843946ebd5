//! What the core keeps from one attempt to the next: failures in a row.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::probe_key::ProbeKey;
use super::records::finding_record;
use super::refusals::Refusals;
use super::verdicts::Verdicts;
use super::{Core, MAX_COUNTERS};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::{Matched, Named};
use tracer_case::finding::Finding;
use tracer_case::ignored::may_be_ignored;
use tracer_case::{EndedByProbe, Failing};
use tracer_model::decision::Decision;
use tracer_model::event::{Answer, AnswerKind, ConnId, ProbeType};
use tracer_model::recent::{Recent, remember};
use tracer_model::record::{Cause, Outcome};

/// Successes kept of each probe: a few attempts may end while a verdict is held.
const MAX_SUCCESSES: usize = 4;
/// The kubelet follows a redirect within this time, if the probe's timeout is not known.
const LONGEST_REDIRECT_NS: u64 = 1_000_000_000;
/// How long the readiness probe may be refused after the end of a container until its next run is seen.
const UNTIL_NEXT_RUN_NS: u64 = 10_000_000_000;

/// Failures in a row of a probe.
#[derive(Clone, Copy, Debug, Default)]
struct InARow {
    count: u32,
    /// When the first one began.
    since: u64,
    /// When the last one began.
    last: u64,
    /// The process that made it: the kubelet.
    prober: u32,
    /// Why the last one failed.
    cause: Option<Cause>,
    /// When the last redirected attempt began. It may have been a success.
    redirected: Option<u64>,
    /// When the first attempt after the last failure began that succeeded. A failure may be counted after it that came
    /// before it: its verdict was held. The kubelet makes one attempt of a probe at a time.
    succeeded: Option<u64>,
}

impl InARow {
    /// Counts one more failure. Five things start the row again:
    /// - An attempt in between has succeeded.
    /// - Another kubelet: it counts in memory, so it begins at zero when it restarts.
    /// - `restarts_at` failures: the kubelet has restarted the container (`doProbe`, pkg/kubelet/prober/worker.go).
    /// - A redirect to another host counted as a success. A failure within the timeout after a redirect belongs to the
    ///   same attempt of the probe.
    /// - No failure for `success_gap_ns`: an attempt in between has succeeded.
    fn add(&mut self, attempt: &Attempt, timeout_ns: u64, success_gap_ns: Option<u64>, restarts_at: Option<u32>) {
        let (began, prober) = (attempt.started, attempt.actor.pid);
        let is_over = self.is_over(began);
        let redirected = self.redirected.take().is_some_and(|at| began.saturating_sub(at) >= timeout_ns);
        let succeeded = success_gap_ns.is_some_and(|gap| began.saturating_sub(self.last) >= gap);
        let restarted = restarts_at.is_some_and(|threshold| self.count >= threshold);
        let is_first = is_over || redirected || succeeded || restarted || prober != self.prober;
        self.count = if is_first { 1 } else { self.count + 1 };
        self.since = if is_first { began } else { self.since };
        (self.last, self.prober) = (began, prober);
    }

    /// An attempt that began before `began` has ended the row.
    fn is_over(&self, began: u64) -> bool {
        self.succeeded.is_some_and(|at| at < began)
    }
}

/// Failures in a row, by probe.
#[derive(Debug, Default)]
pub(super) struct Failures {
    in_a_row: Recent<ProbeKey, InARow, MAX_COUNTERS>,
    /// When the last attempts of each probe that succeeded began.
    succeeded: Recent<ProbeKey, VecDeque<u64>, MAX_COUNTERS>,
    /// When the last attempt of each probe began that only the kubelet knew how to count, and that kubelet's process.
    uncounted: Recent<ProbeKey, (u64, u32), MAX_COUNTERS>,
    pub(super) refusals: Refusals,
}

impl Failures {
    /// Failures in a row of the attempt's probe, with this attempt.
    pub(super) fn failing(&self, attempt: &Attempt, node: &Node, verdicts: &Verdicts) -> Option<Failing> {
        let counted = verdicts.is_counted(attempt.conn);
        let named = Matched::new(attempt, node).name();
        let key = ProbeKey::of(attempt.flow.dst, &named)?;
        let threshold = named.probe.as_ref().and_then(|probe| probe.failure_threshold);
        let is_over = |row: &&InARow| !counted && threshold.is_some_and(|threshold| row.count >= threshold);
        let is_its = |row: &&InARow| row.prober == attempt.actor.pid && !row.is_over(attempt.started) && !is_over(row);
        let row = self.in_a_row.get(&key).filter(is_its);
        let count = row.map_or(1, |row| {
            let later = if attempt.started < row.last { verdicts.counted_after(attempt.conn, &key) } else { 0 };
            (row.count + u32::from(!counted)).saturating_sub(later).max(1)
        });
        let since = row.map_or(attempt.started, |row| row.since);
        Some(Failing { count, since, succeeded: self.successes(&key).max() })
    }

    /// When the last attempts of this probe that succeeded began.
    fn successes(&self, key: &ProbeKey) -> impl Iterator<Item = u64> {
        self.succeeded.get(key).into_iter().flatten().copied()
    }

    /// When the last one of these began before that time; 0: none did.
    fn succeeded_before(&self, key: &ProbeKey, time: u64) -> u64 {
        self.successes(key).filter(|at| *at < time).max().unwrap_or_default()
    }

    /// The startup or liveness probe of the attempt's container for which the kubelet ended its last run: the failures
    /// in a row reached the threshold shortly before, and nothing shows a later run.
    pub(super) fn ended_by(&self, attempt: &Attempt, node: &Node) -> Option<EndedByProbe> {
        let matched = Matched::new(attempt, node);
        let (named, (_, container)) = (matched.name(), matched.probed_container()?);
        let specs = container.probes.iter().filter(|spec| spec.probe_type != ProbeType::Readiness);
        let spent = specs.filter_map(|spec| {
            let dst = SocketAddr::new(attempt.flow.dst.ip(), spec.port);
            let row = self.in_a_row.get(&ProbeKey::of_type(dst, &named, spec.probe_type))?;
            let is_it = row.prober == attempt.actor.pid && row.count >= spec.failure_threshold.max(1);
            let longest = spec.grace_ns().saturating_add(UNTIL_NEXT_RUN_NS);
            let is_just_before = row.last <= attempt.started && attempt.started - row.last <= longest;
            let is_later_run = matched.run_began(attempt.started).is_some_and(|began| began > row.last);
            let succeeded = [dst, attempt.flow.dst].iter().any(|dst| node.has_succeeded_since(*dst, row.last));
            let by = EndedByProbe { probe_type: spec.probe_type, failures: row.count, cause: row.cause?, at: row.last };
            let is_over = row.is_over(attempt.started) || is_later_run || succeeded;
            (is_it && is_just_before && !is_over).then_some(by)
        });
        spent.max_by_key(|it| it.at)
    }

    /// Ends the failures in a row of this attempt's probe, also those counted before the pod was known. If the kind or
    /// the container of the probe is not known, no row ends: another probe of the port may still fail.
    pub(super) fn end(&mut self, attempt: &Attempt, named: &Named) {
        self.refusals.end(attempt.flow.dst);
        let Some(key) = ProbeKey::of(attempt.flow.dst, named) else { return };
        remember(MAX_SUCCESSES, self.succeeded.or_default(key.clone()), attempt.started);
        self.end_row(key, attempt);
    }

    /// The attempt may have succeeded: until one surely does, the failures in a row are not known.
    fn may_have_succeeded(&mut self, attempt: &Attempt, named: &Named) {
        let Some(key) = ProbeKey::of(attempt.flow.dst, named) else { return };
        self.uncounted.insert(key.clone(), (attempt.started, attempt.actor.pid));
        self.end_row(key, attempt);
    }

    fn end_row(&mut self, key: ProbeKey, attempt: &Attempt) {
        for key in [key.without_pod(), key] {
            if let Some(row) = self.in_a_row.get_mut(&key).filter(|row| row.last <= attempt.started) {
                row.succeeded.get_or_insert(attempt.started);
            }
        }
    }

    /// This attempt was counted as a failure of this probe, and is none.
    fn uncount(&mut self, probe: &ProbeKey, attempt: &Attempt) {
        let row = self.in_a_row.get_mut(probe).filter(|row| row.since <= attempt.started);
        let Some(row) = row else { return };
        row.count = row.count.saturating_sub(1);
        if row.count == 0 {
            self.in_a_row.remove(probe);
        }
    }

    /// Only the kubelet saw this attempt fail. tracer may have taken it, and others before it, for a success: until one
    /// succeeds, the failures in a row are not known.
    pub(super) fn uncounted(&mut self, attempt: &Attempt, named: &Named) {
        let is_counted = attempt.kubelet().is_some_and(|(_, reported)| reported.is_counted());
        if let Some(key) = ProbeKey::of(attempt.flow.dst, named).filter(|_| is_counted) {
            self.uncounted.insert(key, (attempt.started, attempt.actor.pid));
        }
    }

    /// Since the last success before this attempt, this kubelet counted what tracer could not. It counts in memory.
    fn is_unknown(&self, key: &ProbeKey, attempt: &Attempt) -> bool {
        let succeeded = self.succeeded_before(key, attempt.started);
        let uncounted = self.uncounted.get(key).filter(|(_, prober)| *prober == attempt.actor.pid);
        uncounted.is_some_and(|(at, _)| (succeeded..attempt.started).contains(at))
    }

    /// An attempt succeeded. The kubelet follows a redirect within the same host, and the next answer decides. It does
    /// not follow a redirect to another host: that is a success with a warning (`RedirectChecker`, pkg/probe/http).
    /// tracer does not see where a redirect leads.
    fn succeeded(&mut self, attempt: &Attempt, named: &Named) {
        if !attempt.prober || attempt.redirect_status().is_none() {
            return self.end(attempt, named);
        }
        self.refusals.end(attempt.flow.dst);
        let key = ProbeKey::of(attempt.flow.dst, named);
        if let Some(in_a_row) = key.and_then(|key| self.in_a_row.get_mut(&key)) {
            in_a_row.redirected = Some(attempt.started);
        }
    }
}

/// The kubelet may not count the attempt as a failure of its probe. Of a redirect, the attempt before it is the one that
/// counts.
fn may_be_uncounted(attempt: &Attempt, matched: &Matched<'_>, cause: Cause) -> bool {
    let is_after_timeout = || attempt.kubelet().is_none() && matched.timed_out_after_ns().is_some();
    matched.redirected_from().is_some()
        || matched.other_reason().is_some()
        || cause == Cause::AppStatusFailure && is_after_timeout()
        || may_be_ignored(attempt, matched, cause)
}

impl Core {
    /// Failures in a row of this probe, with this attempt. `None` if the attempt may be no probe, if the kubelet may not
    /// count it, or if several probes fit and the kubelet did not name one: their failures would be added up.
    pub(super) fn count_failure(&mut self, conn: ConnId, named: &Named, finding: &Finding) -> Option<u32> {
        if finding.outcome != Outcome::Failure {
            self.uncount_failure(conn);
            return None;
        }
        let attempt = self.correlator.get(conn)?;
        let key = ProbeKey::of(attempt.flow.dst, named)?;
        let matched = Matched::new(attempt, &self.node);
        if may_be_uncounted(attempt, &matched, finding.cause) {
            return None;
        }
        let success_gap_ns = success_gap_ns(attempt, named, &matched)?;
        let is_retry = self.is_grpc_retry(attempt);
        let timeout_ns = matched.longest_timeout_ns().unwrap_or(LONGEST_REDIRECT_NS);
        // A later verdict may be the first that knows which probe it was.
        let probe_type = key.probe_type;
        let before = self.verdicts.count_as(conn, key.clone()).filter(|_| !is_retry);
        let is_new = before.as_ref().is_none_or(|(before, _)| before.probe_type != probe_type);
        let kept = before.as_ref().and_then(|(_, count)| *count).filter(|_| !is_new);
        if let Some((before, _)) = before.filter(|_| is_new) {
            self.failures.uncount(&before, attempt);
        }
        let is_unknown = self.failures.is_unknown(&key, attempt);
        // The order of the attempts counts, not that of their verdicts.
        let earlier = self.held_before(attempt, &key);
        let is_late = self.failures.in_a_row.get(&key).is_some_and(|row| attempt.started < row.last);
        let later = if is_late { self.verdicts.counted_after(conn, &key) } else { 0 };
        // The verdict on this failure may have been held until then.
        let succeeded = self.failures.successes(&key).filter(|at| *at > attempt.started).min();
        let in_a_row = self.failures.in_a_row.or_default(key);
        if is_new && !is_retry && is_late {
            // Its verdict was held: a later failure was counted before.
            if succeeded.is_some_and(|at| at < in_a_row.last) {
                return Some(1);
            }
            in_a_row.count += 1;
            in_a_row.since = in_a_row.since.min(attempt.started);
        } else if is_new && !is_retry {
            let threshold = named.probe.as_ref().and_then(|probe| probe.failure_threshold);
            let restarts_at = threshold.filter(|_| probe_type != ProbeType::Readiness);
            in_a_row.add(attempt, timeout_ns, success_gap_ns, restarts_at);
            in_a_row.succeeded = succeeded;
        }
        in_a_row.cause = Some(finding.cause);
        if is_unknown {
            return None;
        }
        let of_row = || (in_a_row.count + earlier).saturating_sub(later).max(1);
        let count = if in_a_row.is_over(attempt.started) { 1 } else { of_row() };
        let count = kept.unwrap_or(count);
        self.verdicts.keep_count(conn, count);
        Some(count)
    }

    /// Failures of this probe that began before this attempt, after its last success, and have no verdict yet: they wait
    /// for an answer.
    fn held_before(&self, attempt: &Attempt, key: &ProbeKey) -> u32 {
        let since = self.failures.succeeded_before(key, attempt.started);
        let is_earlier = |it: &&Attempt| {
            (since < it.started && it.started < attempt.started)
                && (it.flow.dst, it.actor.pid) == (attempt.flow.dst, attempt.actor.pid)
                && it.ended.is_some()
                && self.verdicts.of(it.conn).is_none()
                && !self.is_grpc_retry(it)
        };
        let is_counted = |it: &&Attempt| {
            let matched = Matched::new(it, &self.node);
            !may_be_uncounted(it, &matched, Cause::Unexplained)
                && ProbeKey::of(it.flow.dst, &matched.name()).as_ref() == Some(key)
        };
        self.waiting.held().filter_map(|conn| self.correlator.get(conn)).filter(is_earlier).filter(is_counted).count()
            as u32
    }

    /// The attempt was counted as a failure, and is none: its verdict was dropped, or became noise.
    pub(super) fn uncount_failure(&mut self, conn: ConnId) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let is_retry = self.is_grpc_retry(attempt);
        if let Some(probe) = self.verdicts.take_counted(conn).filter(|_| !is_retry) {
            self.failures.uncount(&probe, attempt);
        }
    }

    /// An attempt ended of which only an interim answer was read, or a part in TLS. It may have been a success.
    pub(super) fn answered_so_far(&mut self, conn: ConnId) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let matched = Matched::new(attempt, &self.node);
        if attempt.is_interim() || matched.may_have_answered_in_tls() {
            self.failures.may_have_succeeded(attempt, &matched.name());
        }
    }

    /// An attempt succeeded: ends its probe's failures in a row, and notes what its port speaks.
    pub(super) fn succeeded(&mut self, conn: ConnId, time: u64, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let named = Matched::new(attempt, &self.node).name();
        self.node.observe_success(attempt);
        let findings = self.budgets.answered(attempt, &named, &self.node).into_iter();
        out.extend(findings.map(|it| finding_record(time, it)));
        self.failures.succeeded(attempt, &named);
        if speaks_tls(attempt, &named) {
            self.node.tls.observe_answer(time, attempt.flow.dst, attempt.answer().is_some());
        }
        let is_http = |answer: &Answer| answer.kind == AnswerKind::Http && answer.status.is_some_and(|it| it < 400);
        if attempt.answer().is_some_and(|(_, answer)| is_http(answer)) {
            self.node.tls.note(attempt.flow.dst, |it| it.http = true);
        }
        if Matched::new(attempt, &self.node).is_answered_in_http2() {
            self.node.tls.note(attempt.flow.dst, |it| it.http2 = true);
        }
    }
}

/// The target answered an HTTPS probe, and no byte that was read contradicts TLS.
fn speaks_tls(attempt: &Attempt, named: &Named) -> bool {
    let https = named.probe.as_ref().and_then(|p| p.scheme.as_deref()) == Some("https");
    let in_tls = attempt.answer().is_none_or(|(_, answer)| answer.kind == AnswerKind::Tls);
    https && in_tls && attempt.received().is_some_and(|n| n > 0)
}

/// How long without a failure means that this probe has succeeded in between. Needed if several probes fit, as the
/// kubelet names only those that fail. `None`: only an Event named the probe, and the kubelet does not send all Events.
fn success_gap_ns(attempt: &Attempt, named: &Named, matched: &Matched<'_>) -> Option<Option<u64>> {
    if !matched.is_one_of_several() {
        return Some(None);
    }
    let (_, reported) = attempt.kubelet().filter(|(_, reported)| !reported.is_event())?;
    let probe = named.probe.as_ref().filter(|it| it.probe_type == Some(reported.probe_type))?;
    let longest_s = u64::from(probe.period_s?.max(probe.timeout_s.unwrap_or_default()));
    Some(Some(longest_s * 1_500_000_000))
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn refuse(stream: &mut Stream) {
        stream.connect().refused().wait_ms(10);
    }

    /// A prober that connects just before its timeout closes the connection without a request.
    #[test]
    fn a_connection_without_a_request_does_not_end_the_failures_in_a_row() {
        let mut stream = Stream::new().http_readiness().clone();
        refuse(&mut stream);
        stream.again(8).connect().wait_ms(990).established().closes((0, 1, 0)).wait_ms(9_000);
        refuse(stream.again(9));
        assert_eq!(stream.in_a_row(), [Some(1), Some(2)]);
    }

    #[test]
    fn a_revision_has_the_number_of_its_first_verdict() {
        let mut stream = Stream::new().http_readiness().clone();
        refuse(&mut stream);
        refuse(stream.wait_ms(9_990).again(8));
        stream.wait_ms(2_000).listens(POD, 8080, true).wait_ms(10).tick();
        assert_eq!(stream.in_a_row(), [1, 2, 1, 2].map(Some), "{:?}", stream.causes());
    }

    /// The first SYN is lost, and the verdict on that waits. What comes of a later one shows no failure.
    #[test]
    fn a_failure_that_is_none_after_all_is_not_counted() {
        let in_a_row = |probe: fn(&mut Stream) -> &mut Stream, end: fn(&mut Stream)| {
            let mut stream = probe(&mut Stream::new()).clone();
            refuse(&mut stream);
            stream.wait_ms(9_990).again(8).connect().queue_full(ListenQueue::Accept).wait_ms(500).syn_again();
            end(stream.established());
            refuse(stream.wait_ms(9_490).again(9));
            let failed = stream.verdicts().into_iter().filter(|it| it.verdict.outcome == Outcome::Failure);
            failed.map(|it| it.probe?.consecutive_failures).collect::<Vec<_>>()
        };
        let resets: fn(&mut Stream) = |stream| _ = stream.resets((0, 1, 0)).wait_ms(5).tick();
        assert_eq!(in_a_row(Stream::tcp_readiness, resets), [1, 2].map(Some), "the verdict is dropped");
        let unread: fn(&mut Stream) = |stream| _ = stream.closes((100, 101, 200));
        assert_eq!(in_a_row(Stream::http_readiness, unread), [1, 2].map(Some), "the verdict becomes noise");
        let answered: fn(&mut Stream) = |stream| _ = stream.answers(200);
        assert_eq!(in_a_row(Stream::http_readiness, answered), [1, 1].map(Some));
    }

    /// The server sends SETTINGS and GOAWAY, and closes. The kubelet has no answer, and its log is not read.
    #[test]
    fn a_grpc_server_that_goes_away_does_not_end_the_failures_in_a_row() {
        let in_a_row = |end: fn(&mut Stream)| {
            let mut stream = Stream::new().grpc_readiness(5).clone();
            refuse(&mut stream);
            end(stream.wait_ms(9_000).again(8).connect().established().answer(AnswerKind::Other, None));
            refuse(stream.wait_ms(9_000).again(9));
            stream.in_a_row()
        };
        assert_eq!(in_a_row(|stream| _ = stream.server_closes((100, 101, 60))), [Some(1), Some(2)]);
        assert_eq!(in_a_row(|stream| _ = stream.closes((100, 101, 160))), [Some(1), Some(1)]);
    }

    /// A server with `SO_LINGER` 0 ends each connection with a RST, also after a whole answer.
    #[test]
    fn a_reset_after_an_answer_in_tls_may_be_a_success_and_leaves_the_number_unknown() {
        let in_a_row = |received: u64| {
            let mut stream = Stream::new().https_readiness().clone();
            refuse(&mut stream);
            stream.wait_ms(9_990).again(8).connect().established();
            stream.answer_with(AnswerKind::Tls, None, |it| it.len = Some(1_400));
            stream.reset_received(TcpState::Established, received);
            stream.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, (600, 601, received));
            refuse(stream.wait_ms(9_990).again(9));
            stream.in_a_row()
        };
        assert_eq!(in_a_row(2_200), [Some(1), None]);
        assert_eq!(in_a_row(1_400), [Some(1), Some(2)], "the server's first flight");
    }

    /// Of a kubelet that starts while tracer runs, the first answer may come before the program that reads it.
    #[test]
    fn an_answer_that_no_hook_read_ends_no_failures_in_a_row_and_has_no_outcome() {
        let reported = |missing: &[Hook]| {
            let mut stream = Stream::new().http_readiness().clone();
            missing.iter().for_each(|hook| _ = stream.missing(*hook));
            refuse(&mut stream);
            stream.wait_ms(9_990).again(8).connect().established().closes((100, 101, 200)).wait_ms(9_990);
            refuse(stream.again(9));
            let outcomes = stream.decisions().into_iter().filter_map(|it| match it.body {
                Body::Attempt(attempt) if it.attempt == Some(ConnId(8)) => Some(attempt.outcome),
                _ => None,
            });
            (outcomes.collect::<Vec<_>>(), stream.in_a_row())
        };
        assert_eq!(reported(&[]), (vec![None], vec![Some(1), Some(2)]));
        assert_eq!(reported(&[Hook::CgroupAnswer]), (vec![Some(Outcome::Success)], vec![Some(1), Some(1)]));
    }

    /// `100 Continue`, and then an answer in a segment that no hook reads. Where each answer begins so, any of them may
    /// have been a success.
    #[test]
    fn an_interim_answer_is_no_success_and_leaves_the_number_unknown() {
        let reported = |status: u16| {
            let mut stream = Stream::new().http_readiness().clone();
            refuse(&mut stream);
            answered(stream.wait_ms(9_990).again(8), 8, status);
            refuse(stream.wait_ms(9_990).again(9));
            refuse(stream.wait_ms(9_990).again(10));
            let attempts = stream.decisions().into_iter().filter_map(|it| match it.body {
                Body::Attempt(attempt) if it.attempt == Some(ConnId(8)) => Some((attempt.outcome, attempt.http_status)),
                _ => None,
            });
            (attempts.collect::<Vec<_>>(), stream.in_a_row())
        };
        assert_eq!(reported(100), (vec![(None, None)], vec![Some(1), None, None]));
        assert_eq!(reported(200), (vec![(Some(Outcome::Success), Some(200))], vec![Some(1), Some(1), Some(2)]));
    }

    fn answered(stream: &mut Stream, conn: u64, status: u16) {
        stream.again(conn).connect().established().answers(status).wait_ms(1);
    }

    #[test]
    fn a_redirect_that_leads_to_a_failure_does_not_end_the_failures_in_a_row() {
        let mut stream = Stream::new().http_readiness().clone();
        for attempt in 0..3 {
            answered(&mut stream, 100 + 2 * attempt, 302);
            answered(&mut stream, 101 + 2 * attempt, 500);
            stream.wait_ms(9_998);
        }
        // Refused before it could be redirected; then redirected to another host, which is a success.
        refuse(stream.again(200));
        answered(stream.wait_ms(9_990), 201, 302);
        answered(stream.wait_ms(9_999), 202, 500);
        assert_eq!(stream.in_a_row(), [1, 2, 3, 4, 1].map(Some));
    }

    /// The verdicts on a pod of the node's network wait for half a second. With a timeout as long as the period, the next
    /// attempt of the probe begins at once.
    #[test]
    fn a_success_that_comes_before_the_verdict_on_a_failure_is_after_it() {
        let in_a_row = |answers: &[(u16, u64)]| {
            let mut stream =
                Stream::new().links(true, &["10.88.0.2"]).http_readiness().on_host_network().unread().clone();
            for (conn, (status, ticks)) in (100..).zip(answers) {
                answered(&mut stream, conn, *status);
                (0..*ticks).for_each(|_| _ = stream.wait_ms(5).tick());
            }
            stream.in_a_row()
        };
        let answers = [(500, 400), (500, 20), (200, 20), (500, 400), (500, 400)];
        assert_eq!(in_a_row(&answers), [1, 2, 1, 2].map(Some));
        let twice = [(500, 4), (200, 4), (500, 4), (200, 400), (500, 400)];
        assert_eq!(in_a_row(&twice), [1, 1, 1].map(Some), "each success ends a row");
    }

    #[test]
    fn the_next_pod_with_the_address_and_the_next_kubelet_count_from_one() {
        let mut failed = Stream::new().http_readiness().clone();
        answered(&mut failed, 100, 500);
        answered(&mut failed, 101, 500);
        let mut next_pod = failed.clone();
        answered(next_pod.http_readiness_of("other"), 102, 500);
        assert_eq!(next_pod.in_a_row(), [1, 2, 1].map(Some));
        failed.again(102).connect().prober_with_pid(4_321).established().answers(500).wait_ms(1);
        assert_eq!(failed.in_a_row(), [1, 2, 1].map(Some), "the kubelet restarted");
    }

    /// The kubelet restarts the container at failureThreshold, which is 3, and begins at zero.
    #[test]
    fn a_restart_of_the_container_starts_at_one_failure() {
        let in_a_row = |specs: fn(&mut Stream) -> &mut Stream| {
            let mut stream = specs(&mut Stream::new()).clone();
            (0..5).for_each(|attempt| answered(&mut stream, 100 + attempt, 500));
            stream.in_a_row()
        };
        assert_eq!(in_a_row(|stream| stream.liveness(10, 3)), [1, 2, 3, 1, 2].map(Some));
        assert_eq!(in_a_row(Stream::http_readiness), [1, 2, 3, 4, 5].map(Some));
    }

    /// The head of the answer came, and the body not in time. The kubelet tries that three times at once.
    #[test]
    fn an_answer_that_the_kubelet_cannot_read_to_the_end_is_not_counted() {
        let mut stream = Stream::new().http_readiness().clone();
        answered(&mut stream, 100, 500);
        for (conn, reported) in [(101, true), (102, false)] {
            stream.again(conn).connect().established().answer(AnswerKind::Http, Some(200)).wait_ms(1_000);
            if reported {
                stream.kubelet_error(ProbeType::Readiness, ProbeOutput::TimeoutInBody, "x");
            }
            stream.closes_quiet((100, 101, 141), 999_000_000).wait_ms(10);
        }
        answered(&mut stream, 103, 500);
        assert_eq!(stream.in_a_row(), [Some(1), None, None, Some(2)]);
    }

    /// The kubelet's line of a pod on the host's network nearly always comes before the verdict, which waits for the
    /// reading of the port's holder.
    #[test]
    fn a_failure_is_counted_if_the_line_of_the_kubelet_comes_before_its_verdict() {
        let mut stream = Stream::new().links(true, &["10.88.0.2"]).http_readiness().on_host_network().clone();
        for conn in 100..103 {
            answered(&mut stream, conn, 503);
            stream.kubelet(ProbeOutput::Status(503)).wait_ms(600).tick();
        }
        assert_eq!(stream.in_a_row(), [1, 2, 3].map(Some));
    }

    /// tracer takes the first attempt for a success until it reads the kubelet's line.
    #[test]
    fn after_a_failure_that_only_the_kubelet_saw_the_number_is_not_known_until_a_success() {
        let mut stream = Stream::new().http_readiness().clone();
        stream.connect().established().closes((100, 101, 200)).kubelet(ProbeOutput::Status(503)).wait_ms(2_000);
        answered(&mut stream, 101, 503);
        let mut restarted = stream.clone();
        answered(stream.wait_ms(2_000), 102, 200);
        answered(stream.wait_ms(2_000), 103, 503);
        assert_eq!(stream.in_a_row(), [None, None, Some(1)]);
        restarted.wait_ms(2_000).again(102).connect().prober_with_pid(4_321).established().answers(503).wait_ms(1);
        assert_eq!(restarted.in_a_row(), [None, None, Some(1)], "another kubelet");
    }

    /// The verdict on an answer waits until it is read who accepted. The next attempt is refused, which needs no reading.
    #[test]
    fn a_verdict_that_waits_is_counted_in_the_order_of_the_attempts() {
        let mut stream = Stream::new().http_readiness().pod_in(POD).unread().clone();
        refuse(&mut stream);
        stream.again(101).connect().established().answers(503).wait_ms(20);
        stream.again(102).connect().refused().wait_ms(20).tick().wait_ms(600).tick();
        let numbers: Vec<_> = stream.causes().into_iter().zip(stream.in_a_row().into_iter().flatten()).collect();
        assert_eq!(numbers, [("connection_refused", 1), ("connection_refused", 3), ("app_status_failure", 2)]);
    }

    /// Failures in a row of each probe, at the end.
    fn in_a_row(stream: &Stream) -> Vec<u32> {
        let (core, _) = push_all(&stream.with_readings());
        core.failures.in_a_row.values().filter(|it| it.succeeded.is_none()).map(|it| it.count).collect()
    }

    type Name = fn(&mut KubeletProbe);
    const READINESS: Name = |_| ();
    const LIVENESS: Name = |it| it.probe_type = ProbeType::Liveness;

    /// Two probes of a port, 5 s apart, every 10 s, get these answers. The kubelet names the probe of each failure.
    fn in_turn(stream: &mut Stream, names: Option<[Name; 2]>, answers: &[u16]) -> Vec<u32> {
        for (attempt, status) in answers.iter().enumerate() {
            answered(stream, 100 + attempt as u64, *status);
            if let Some(names) = names.filter(|_| *status == 503) {
                stream.kubelet_with(ProbeOutput::Status(503), names[attempt % 2]);
            }
            stream.wait_ms(4_998);
        }
        in_a_row(stream)
    }

    /// tracer cannot tell which probe succeeded. A success of the liveness probe ends no failures of the readiness
    /// probe; a success of the readiness probe does.
    #[test]
    fn failures_of_two_probes_of_one_port_are_counted_apart() {
        let probed = || Stream::new().http_readiness().http_liveness_too().clone();
        assert!(in_turn(&mut probed(), None, &[503; 6]).is_empty());
        assert_eq!(in_turn(&mut probed(), Some([READINESS, LIVENESS]), &[503; 6]), [3, 3]);
        let answers = [[503, 200], [503, 200], [503, 200], [200, 200], [503, 200], [503, 200]].concat();
        assert_eq!(in_turn(&mut probed(), Some([READINESS, LIVENESS]), &answers), [2]);
    }

    #[test]
    fn failures_of_two_containers_on_one_port_are_not_added_up() {
        let of_b: Name = |it| (it.probe_type, it.container) = (ProbeType::Liveness, Some("b".into()));
        let mut stream = Stream::new().liveness(10, 5).probed_container_too("b").clone();
        assert_eq!(in_turn(&mut stream.clone(), Some([LIVENESS, of_b]), &[503; 6]), [3, 3]);
        assert_eq!(in_turn(&mut stream, Some([LIVENESS, of_b]), &[503, 200].repeat(3)), [3]);
    }
}
