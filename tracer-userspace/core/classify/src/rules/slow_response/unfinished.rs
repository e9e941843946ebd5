//! The target began to answer, and the prober closed before it had the whole answer.

use super::super::*;
use super::fix;
use crate::rules::app_status_failure::failed_answer;
use tracer_attempts::enrich::BEFORE_TIMEOUT_NS;
use tracer_case::giving_up::{closed_at_a_second, closed_late, timeout_clause, timeout_ns};
use tracer_model::event::{Answer, AnswerKind, ProbeOutput};

/// The target sent bytes that tracer cannot read, and the prober closed at its timeout. The kubelet may have read a
/// failure status just before its timeout; its log line decides.
pub(super) fn closed_at_timeout(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let elapsed = case.matched.timed_out_after_ns().or_else(|| waited_for_rest(case))?;
    let lost = attempt.retransmits.1 != 0 || attempt.answer_lost() || !silent(case);
    let read_failure = attempt.kubelet().is_some_and(|(_, reported)| reported.reason.is_of_answer());
    let has_other_cause = read_failure || case.matched.mismatched_protocol().is_some();
    if lost || has_other_cause || closed_late(case) {
        return None;
    }
    let (ended, _) = attempt.ended?;
    let began = match case.matched.expects_http() {
        Some(true) | None => endless_answer(case).unwrap_or_else(|| describe_answer(case)),
        _ => HANDSHAKE.to_owned(),
    };
    let summary = format!(
        "{} {began}, and the prober closed after {}, at its timeout{}: a prober that has its answer closes at once",
        attempt.flow.dst,
        ms(elapsed),
        timeout_clause(case)
    );
    let evidence = vec![of_state(ended, attempt.last.as_ref()?)];
    Some(Finding::likely(Cause::SlowResponse, evidence, summary, fix(case)).rests_on_lost_packet())
}

const HANDSHAKE: &str = "answered the handshake (TLS or HTTP/2)";

/// The duration of a connection that a kubelet closed at a whole second, if no probe of the port is known. It still waited
/// for the rest of an answer with a status that is a failure.
fn waited_for_rest(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let (_, End::ClosedByProber) = attempt.ended? else { return None };
    let waited = attempt.is_refused_by_status() && attempt.was_quiet() && closed_at_a_second(case);
    attempt.lasted().filter(|_| waited && failed_answer(case).is_some())
}

/// A status line came within a tenth of the timeout, and the rest did not end. Only the kubelet's words show whether the
/// head had ended.
pub(super) fn endless_answer(case: &Case<'_>) -> Option<String> {
    let (time, answer) = case.attempt.answer().filter(|(_, answer)| !answer.is_interim())?;
    let (after, status) = (time.saturating_sub(case.attempt.started), answer.status?);
    let bytes = case.attempt.received().unwrap_or_default();
    let part = match case.attempt.kubelet() {
        Some((_, it)) if it.reason == ProbeOutput::TimeoutInBody => "its body",
        Some((_, it)) if it.output.as_deref().is_some_and(|it| it.contains("while awaiting headers")) => "its head",
        _ => "it",
    };
    (after <= timeout_ns(case) / 10).then(|| {
        format!(
            "began its answer after {} (status {status}), but {part} did not end in time ({bytes} bytes in all)",
            ms(after)
        )
    })
}

/// Describes what came in plain HTTP, and when.
fn describe_answer(case: &Case<'_>) -> String {
    let bytes = case.attempt.received().unwrap_or_default();
    let first = case.attempt.answer().map(|(time, answer)| {
        let status = answer.status.map(|status| format!(", status {status}")).unwrap_or_default();
        format!(" after {}{status}", ms(time.saturating_sub(case.attempt.started)))
    });
    format!("began to answer{} ({bytes} bytes in all)", first.unwrap_or_default())
}

/// Bytes came, but the kubelet reports that the answer did not, or not all of it. The target answered the handshake of
/// TLS or HTTP/2, or began its answer.
pub(super) fn unfinished(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (_, reported) = attempt.kubelet()?;
    let (ended, end) = attempt.ended?;
    let at_timeout = reported.reason == ProbeOutput::Timeout && is_at_timeout(case);
    // Many servers close right after their answer, before the prober does.
    if !(end == End::ClosedByProber || end == End::ClosedByServer && at_timeout) {
        return None;
    }
    let handshake = has_handshake(case);
    let begun = || endless_answer(case).unwrap_or_else(|| "began to answer, but did not finish in time".to_owned());
    let what = match reported.reason {
        ProbeOutput::TimeoutInBody => begun(),
        ProbeOutput::Timeout if handshake || reported.is_rpc_timeout() => {
            let begun = if reported.is_rpc_timeout() { "exchanged HTTP/2 settings" } else { HANDSHAKE };
            format!("{begun}, but did not answer the request in time")
        }
        ProbeOutput::Timeout if has_part_of_head(case) => begun(),
        ProbeOutput::Timeout if at_timeout => format!("{}, too late for the prober", describe_answer(case)),
        _ => return None,
    };
    let has_other_cause = case.matched.mismatched_protocol().is_some() || case.matched.rest_lost_since().is_some();
    if attempt.received().is_none_or(|n| n == 0) || gave_up_early(case) || has_other_cause {
        return None;
    }
    let summary = format!("{} {what}{}", attempt.flow.dst, timeout_clause(case));
    let state = attempt.last.as_ref().map(|state| of_state(ended, state));
    let evidence = state.into_iter().chain([of_outcome(reported)]).collect();
    Some(Finding::likely(Cause::SlowResponse, evidence, summary, fix(case)))
}

/// The beginning of an answer in plain HTTP came, and the prober still waited. After a redirect the timeout may be that
/// of the next connection.
fn has_part_of_head(case: &Case<'_>) -> bool {
    let is_redirect = |answer: &Answer| answer.status.is_some_and(|status| (300..400).contains(&status));
    let answer = case.attempt.answer().map(|(_, answer)| answer);
    answer.is_some_and(|it| it.kind == AnswerKind::Http && !is_redirect(it)) && case.matched.still_waited()
}

/// The first bytes of an answer came when the time was over, or just before. It is no refusal and no redirect.
fn is_at_timeout(case: &Case<'_>) -> bool {
    let (Some((time, answer)), Some(seconds)) = (case.attempt.answer(), case.matched.timeout_s()) else { return false };
    let after = time.saturating_sub(case.attempt.started).saturating_add(BEFORE_TIMEOUT_NS);
    let is_success = answer.status.is_none_or(|status| status < 300);
    is_success && after >= u64::from(seconds) * 1_000_000_000 && !closed_late(case)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A status line comes at once, and nothing else. The kubelet's words show which part did not end.
    #[test]
    fn the_part_of_the_answer_that_did_not_end_is_that_of_the_kubelet_outcome() {
        let reported = |reason: ProbeOutput, words: &str| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream
                .answer(AnswerKind::Http, Some(200))
                .wait_ms(1_000)
                .kubelet_with(reason, |it| it.output = Some(words.into()));
            stream.closes_quiet((100, 101, 28), 999_000_000).wait_ms(5).tick().last_verdict().summary.clone()
        };
        let awaiting = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        assert_has(&reported(ProbeOutput::Timeout, awaiting), &["(status 200), but its head did not end in time"]);
        let reading = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
        assert_has(&reported(ProbeOutput::TimeoutInBody, reading), &["(status 200), but its body did not end in time"]);
    }

    /// The head of the answer comes at once, and the body never.
    #[test]
    fn an_unfinished_answer_at_the_timeout_is_slow() {
        let decided_after = |head_ms: u64, status: u16, lasted_ms: u64, quiet_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().wait_ms(head_ms);
            stream.answer(AnswerKind::Http, Some(status)).wait_ms(lasted_ms - head_ms);
            let causes = stream.closes_quiet((100, 101, 141), quiet_ms * 1_000_000).causes();
            (causes, stream.verdicts().into_iter().next().map(|it| (it.verdict.summary, it.verdict.remediation)))
        };
        let decided = |status, lasted_ms, quiet_ms| decided_after(0, status, lasted_ms, quiet_ms);
        for (head_ms, words) in [
            (90, "began its answer after 90.0 ms (status 200), but it did not end in time"),
            (110, "began to answer after 110.0 ms, status 200"),
        ] {
            let (causes, verdict) = decided_after(head_ms, 200, 1_000, 800);
            assert_eq!(causes, ["slow_response"]);
            let (summary, fix) = verdict.expect("a verdict");
            assert_has(&summary, &[words, "141 bytes in all"]);
            assert_eq!(fix.text.starts_with("Let the health path end its answer"), head_ms < 100);
        }
        assert!(decided(200, 1_000, 1).0.is_empty(), "it got its answer just before its timeout");
        assert!(decided(200, 600, 599).0.is_empty(), "the prober was stopped");
        assert_eq!(decided(503, 1_000, 1).0, ["app_status_failure"]);
        let mut unknown = Stream::new();
        unknown.connect().established().answer(AnswerKind::Http, Some(200)).wait_ms(5_000);
        assert!(unknown.closes_quiet((100, 101, 141), 4_000_000_000).causes().is_empty(), "no probe is known");
    }

    /// The kubelet ignores an answer that it cannot read to its end, whatever its status is.
    #[test]
    fn a_failure_status_without_the_end_of_its_body_is_slow() {
        let closed = |specs: bool, lasted_ms: u64, quiet_ms: u64| {
            let mut stream = Stream::new();
            if specs {
                stream.http_readiness();
            }
            stream.connect().established().answer(AnswerKind::Http, Some(503)).wait_ms(lasted_ms);
            assert!(stream.clone().tick().verdicts_before_the_end().is_empty(), "the rest may come");
            stream.closes_quiet((100, 101, 141), quiet_ms * 1_000_000).settles();
            assert_eq!(stream.verdicts().len(), 1);
            let count = stream.in_a_row()[0];
            (stream.verdict(), count)
        };
        let (endless, count) = closed(true, 1_000, 999);
        assert_eq!((endless.cause.name(), endless.confidence), ("slow_response", Confidence::Likely));
        assert_eq!((&*endless.also, count), (&[Cause::AppStatusFailure][..], None));
        assert_has(&endless.summary, &["(status 503), but it did not end in time", "the kubelet ignores this result"]);
        assert_has(&endless.remediation, &["Let the health path end its answer", "what the health handler checks"]);
        let (unlisted, _) = closed(false, 5_003, 4_999);
        assert_eq!((unlisted.cause.name(), unlisted.confidence), ("slow_response", Confidence::Likely));
        for (specs, lasted_ms, quiet_ms) in [(true, 1_000, 1), (true, 600, 20), (false, 1_000, 1), (false, 600, 20)] {
            let (whole, count) = closed(specs, lasted_ms, quiet_ms);
            assert_eq!((whole.cause.name(), whole.confidence), ("app_status_failure", Confidence::Proven));
            assert_eq!(count, specs.then_some(1), "{lasted_ms} {quiet_ms}");
        }
        let (late, count) = closed(true, 1_300, 1_299);
        assert_eq!((late.cause.name(), late.confidence), ("app_status_failure", Confidence::Likely));
        assert_eq!(count, None, "the kubelet may have ignored it");
        assert_has(&late.summary, &["may not have got all of it"]);
    }

    /// The whole answer came when the kubelet's time was over, or just before. Some servers close then.
    #[test]
    fn an_answer_at_the_timeout_is_slow_if_the_kubelet_reports_a_timeout() {
        let prober: fn(&mut Stream) = |stream| _ = stream.closes_quiet((100, 101, 141), 1_000);
        let server: fn(&mut Stream) = |stream| _ = stream.server_closes((100, 101, 142));
        let decided = |status: u16, lasted_ms: u64, ends: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(lasted_ms).clone();
            ends(stream.answer(AnswerKind::Http, Some(status)));
            stream.wait_ms(1).kubelet(ProbeOutput::Timeout).settles().last_verdict()
        };
        for (lasted_ms, ends) in [(996, prober), (1_001, prober), (996, server), (1_001, server)] {
            let verdict = decided(200, lasted_ms, ends);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("slow_response", Confidence::Likely));
            let words = format!("began to answer after {lasted_ms}.0 ms, status 200 (141 bytes in all), too late");
            assert_has(&verdict.summary, &[&words]);
        }
        for ends in [prober, server] {
            assert_eq!(decided(200, 900, ends).cause.name(), "unexplained");
            assert_eq!(decided(200, 1_500, ends).cause.name(), "unexplained", "the prober was late itself");
            assert_eq!(decided(302, 1_001, ends).cause.name(), "unexplained", "it may be its next connection");
        }
    }

    /// The listener has TCP_DEFER_ACCEPT, as that of Apache httpd.
    #[test]
    fn an_unfinished_answer_of_a_listener_that_waits_for_the_request_is_slow() {
        let decided = |fill: fn(&mut PacketDrop)| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().drop_with(TcpFlags(0x10), POD, |drop| {
                (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("tcp_v4_rcv".into()));
                fill(drop);
            });
            stream.answer(AnswerKind::Http, Some(200)).wait_ms(1_000);
            stream.closes_quiet((100, 101, 141), 999_000_000).causes()
        };
        assert_eq!(decided(|_| ()), ["slow_response"]);
        assert!(decided(|drop| drop.flags = TcpFlags(0x18)).is_empty(), "a segment with data");
        assert!(decided(|drop| drop.flow = drop.flow.reversed()).is_empty(), "of the target");
        assert!(decided(|drop| drop.location = Some("ip_rcv_finish_core".into())).is_empty(), "on the way");
    }

    /// The kubelet connected late, so that the connection was shorter than its timeout.
    #[test]
    fn a_head_that_is_not_complete_at_the_kubelets_timeout_is_slow() {
        let decided = |status: u16, lasted_ms: u64, reason: ProbeOutput| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(status)).wait_ms(lasted_ms);
            stream.closes_quiet((100, 101, 141), 900_000_000);
            let first = stream.kubelet(reason).wait_ms(5).tick().verdicts().into_iter().next();
            first.map(|it| (it.verdict.cause.name(), it.verdict.confidence))
        };
        let slow = Some(("slow_response", Confidence::Likely));
        assert_eq!(decided(100, 960, ProbeOutput::Timeout), slow);
        assert_eq!(decided(200, 960, ProbeOutput::Timeout), slow);
        let redirected = decided(302, 960, ProbeOutput::Timeout);
        assert_eq!(redirected.map(|it| it.0), Some("unexplained"), "the next connection may have timed out");
    }

    fn closed_after(probed: fn(&mut Stream) -> &mut Stream, ms: u64) -> Stream {
        let mut stream = Stream::new();
        probed(&mut stream).connect().established().wait_ms(2).answer(AnswerKind::Tls, None).wait_ms(ms - 2);
        stream.own(|stream| _ = stream.closes((600, 601, 2200)));
        stream
    }

    /// A prober that has its answer closes at once.
    #[test]
    fn a_close_at_the_timeout_after_an_answered_handshake_is_slow() {
        let noted = |probed, ms| {
            let verdict = closed_after(probed, ms).verdicts().pop()?.verdict;
            Some((verdict.cause.name(), verdict.confidence))
        };
        let slow = Some(("slow_response", Confidence::Likely));
        assert_eq!(noted(Stream::https_readiness, 1_000), slow);
        assert_eq!(noted(Stream::https_readiness, 998), slow, "its time began before its connect");
        for ms in [992, 980] {
            assert_eq!(noted(Stream::https_readiness, ms), None, "it may have got its answer just in time");
        }
        assert_eq!(
            noted(Stream::https_readiness, 1_500),
            None,
            "the prober was late itself, and may have had its answer"
        );
        assert_eq!(noted(|it| it.https_readiness().lifecycle(LifecycleEvent::PreStop, 8080), 1_000), None);
        assert_eq!(
            noted(|it| it.https_readiness().readiness_too(), 1_000),
            None,
            "it may be the HTTP probe, and no status was seen"
        );
        let mut grpc = Stream::new();
        grpc.grpc_readiness(1).connect().established().answer(AnswerKind::Other, None).wait_ms(1_000);
        grpc.closes((200, 201, 60));
        assert_eq!(grpc.causes(), ["slow_response"]);
    }

    /// Readiness has a timeout of 1 s, and liveness one of 5 s. Which of them it was is not known.
    #[test]
    fn a_close_at_the_shorter_one_of_two_timeouts_after_a_silence_is_slow() {
        let decided = |https: bool, ms: u64, quiet_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness_over_tls(https).like_liveness_too(5).connect().established();
            let (kind, status) = if https { (AnswerKind::Tls, None) } else { (AnswerKind::Http, Some(200)) };
            stream.answer(kind, status).wait_ms(ms);
            stream.closes_quiet((100, 101, 141), quiet_ms * 1_000_000).settles().all_decided().pop().map(|it| it.0)
        };
        for https in [false, true] {
            assert_eq!(decided(https, 1_000, 999), Some("slow_response"));
            assert_eq!(decided(https, 5_000, 4_999), Some("slow_response"));
            assert_eq!(decided(https, 1_000, 1), None, "the answer to the liveness probe may have come just then");
            assert_eq!(decided(https, 2_000, 1_999), None, "at no timeout");
        }
    }

    #[test]
    fn the_kubelet_outcome_goes_before_the_time() {
        let reported = |reason| {
            let mut stream = closed_after(Stream::https_readiness, 1_000);
            stream.wait_ms(3).kubelet(reason).wait_ms(10).tick().quoted()
        };
        assert_eq!(reported(ProbeOutput::Timeout), [("slow_response", false)]);
        assert_eq!(reported(ProbeOutput::Status(503)), [("slow_response", false), ("app_status_failure", true)]);
    }

    /// The target refuses twice, then hangs, then refuses again.
    #[test]
    fn a_timeout_after_the_handshake_is_no_success_in_between() {
        for (ms, expected) in
            [(1_000, vec![1, 2, 3, 4]), (1_500, vec![1, 2, 3]), (992, vec![1, 2, 3]), (500, vec![1, 2, 1])]
        {
            let mut stream = Stream::new().https_readiness().clone();
            for conn in 100..104 {
                stream.again(conn).connect();
                if conn == 102 {
                    stream.established().answer(AnswerKind::Tls, None).wait_ms(ms);
                    stream.closes((600, 601, 2200)).wait_ms(9_000);
                    continue;
                }
                stream.refused().wait_ms(10_000);
            }
            assert_eq!(stream.in_a_row().into_iter().flatten().collect::<Vec<_>>(), expected, "{ms}");
        }
    }

    /// The redirect leads to another port, which speaks TLS.
    #[test]
    fn a_timeout_after_a_redirect_to_https_is_slow() {
        let decided = |scheme: &str| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().established().answer(AnswerKind::Http, Some(302));
            stream.closes((100, 101, 90)).again_to(8, "10.88.0.2:8443").connect().established().wait_ms(990);
            stream.closes((400, 401, 1500)).kubelet_at_target(ProbeOutput::Timeout);
            let words = format!("Get \"{scheme}://10.88.0.2:8443\": context deadline exceeded");
            stream.last_kubelet_probe().output = Some(words);
            stream.wait_ms(5).tick().causes()
        };
        assert_eq!((decided("https"), decided("http")), (vec!["slow_response"], vec!["unexplained"]));
    }
}
