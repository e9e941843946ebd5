//! The target took the request, and gave no answer, or not all of it, before the prober closed.

use super::super::giving_up::{closed_at_a_second, closed_late, is_timeout, round_trip_ns, timeout_ns};
use super::super::serving;
use super::super::sidecar;
use super::*;
use tracer_attempts::enrich::BEFORE_TIMEOUT_NS;
use tracer_model::event::{Answer, AnswerKind, ProbeOutput};

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let found = silent(case).or_else(|| unfinished(case)).or_else(|| closed_at_timeout(case))?;
    Some(sidecar::add_node_port(case, found))
}

/// The target sent bytes that tracer cannot read, and the prober closed at its timeout. The kubelet may have read a
/// failure status just before its timeout; its log line decides.
fn closed_at_timeout(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let elapsed = case.matched.timed_out_after_ns()?;
    let lost = attempt.retransmits != (0, 0) || attempt.answer_lost() || !super::silent(case);
    let read_failure = attempt.kubelet().is_some_and(|(_, reported)| reported.reason.is_of_answer());
    let has_other_cause = read_failure || case.matched.mismatched_protocol().is_some();
    if lost || has_other_cause || closed_late(case) {
        return None;
    }
    let (ended, _) = attempt.ended?;
    let began = match case.matched.expects_http() {
        Some(true) => endless_answer(case).unwrap_or_else(|| describe_answer(case)),
        _ => "answered the handshake".to_owned(),
    };
    let summary = format!(
        "{} {began}, and the prober closed after {}, at its timeout{}: a prober that has its answer closes at once",
        attempt.flow.dst,
        ms(elapsed),
        budget(case)
    );
    let evidence = vec![of_state(ended, attempt.last.as_ref()?)];
    Some(Finding::likely(Cause::SlowResponse, evidence, summary, fix(case)).rests_on_lost_packet())
}

/// A status line came within a tenth of the timeout, and the rest did not end. Only the kubelet's words show whether the
/// head had ended.
fn endless_answer(case: &Case<'_>) -> Option<String> {
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
fn unfinished(case: &Case<'_>) -> Option<Finding> {
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
            "answered the handshake, but not the request in time".to_owned()
        }
        ProbeOutput::Timeout if has_part_of_head(case) => begun(),
        ProbeOutput::Timeout if at_timeout => format!("{}, too late for the prober", describe_answer(case)),
        _ => return None,
    };
    let has_other_cause = case.matched.mismatched_protocol().is_some() || case.matched.rest_lost_since().is_some();
    if attempt.received().is_none_or(|n| n == 0) || gave_up_early(case) || has_other_cause {
        return None;
    }
    let summary = format!("{} {what}{}", attempt.flow.dst, budget(case));
    let state = attempt.last.as_ref().map(|state| of_state(ended, state));
    let evidence = state.into_iter().chain([of_outcome(reported)]).collect();
    Some(Finding::likely(Cause::SlowResponse, evidence, summary, fix(case)))
}

/// The bytes of the target began with the handshake of TLS or HTTP/2: the probe does not use plain HTTP.
pub(super) fn has_handshake(case: &Case<'_>) -> bool {
    // A redirect may have led to a port that no probe asks.
    let by_outcome = || case.attempt.kubelet().and_then(|(_, it)| it.scheme()) == Some("https");
    case.matched.expects_http().map_or_else(by_outcome, |plain| !plain)
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

fn silent(case: &Case<'_>) -> Option<Finding> {
    let Wait { reached, waited, late, target_was_silent, evidence } = measure_wait(case)?;
    let summary = format!(
        "{} was reached in {reached} and acknowledged the request; no byte of an answer in {waited}{}{late}",
        case.attempt.flow.dst,
        budget(case)
    );
    let found = Finding::failure(Cause::SlowResponse, vec![evidence], summary, fix(case));
    let mut found = Finding { target_was_silent, ..found };
    serving::add(case, &mut found);
    Some(if late.is_empty() { found } else { found.with_confidence(Confidence::Likely) })
}

fn fix(case: &Case<'_>) -> Remediation {
    let fix: Remediation = by_subject(case, Cause::SlowResponse.fix(), |client| {
        format!(
            "Raise the timeout of {client} above the target's real latency, give the target more CPU, or make the answer independent of slow work"
        )
    });
    let endless = endless_answer(case).is_some();
    with_log(case, if endless { fix.reword(|text| format!("{END_ANSWER}{text}")) } else { fix })
}

const END_ANSWER: &str = "Let the health path end its answer: no empty line ends its head, its Content-Length is larger than the body, or it is a stream. If the answer is only slow: ";

/// A prober that waited for an answer in vain.
pub(super) struct Wait {
    /// How long the handshake took.
    pub reached: String,
    /// How long the target had for its answer.
    pub waited: String,
    /// What to add to the summary if the target had the smaller part of the time, or the prober was late; else empty.
    pub late: String,
    /// The target had the greater part of the time.
    pub target_was_silent: bool,
    pub evidence: Evidence,
}

pub(super) fn measure_wait(case: &Case<'_>) -> Option<Wait> {
    let attempt = case.attempt;
    let ended = taken_and_silent(case).filter(|_| !target_starved::is_cause(case))?;
    let (established, state) = (attempt.established_at()?, attempt.last.as_ref()?);
    // A request that was sent again may have got through only then.
    let again = attempt.sent_again.filter(|at| *at > established && *at < ended);
    let (since, late) = match (again, sent_request_late(case)) {
        (Some(at), _) => (at, SENT_AGAIN),
        (None, Some(at)) => (at, REQUEST_SENT_LATE),
        (None, None) => (established, HANDSHAKE_LATE),
    };
    let (before, waited) = (since.saturating_sub(attempt.started), ended.saturating_sub(since));
    let on_the_way = round_trip_ns(case).unwrap_or_default();
    let late = match late {
        _ if before > waited => late,
        HANDSHAKE_LATE if before.saturating_add(on_the_way) > waited.saturating_sub(on_the_way) => PATH_SLOW,
        _ => "",
    };
    Some(Wait {
        reached: ms(established.saturating_sub(attempt.started)),
        waited: ms(waited),
        late: format!("{late}{}", prober_late(case)),
        target_was_silent: late.is_empty(),
        evidence: of_state(ended, state),
    })
}

/// The request was on its way for longer than the target had for its answer.
const SENT_AGAIN: &str =
    " since the request was sent for the last time; most of the time had passed before: it was lost on the way";
/// The handshake took more of the time than the target had for its answer.
const HANDSHAKE_LATE: &str =
    "; most of the time had gone into the handshake: a SYN was lost on the way, or the path is slow";
/// The target had the smaller part of the time, since the request was on its way to it, and its answer would be.
const PATH_SLOW: &str = "; the path is slow: the request and an answer take as long again as the handshake";

/// The prober sent its request when most of the time was over.
const REQUEST_SENT_LATE: &str = " since the request; most of the time had passed before: the prober sent it late";

/// What to add to the summary, with a lower confidence, if the prober closed long after its timeout, or before it, or if
/// nothing shows that its timeout was over. The kernel closes the sockets of a prober that ends in the same way.
fn prober_late(case: &Case<'_>) -> &'static str {
    let soon = case.attempt.lasted().is_some_and(|lasted| lasted < timeout_ns(case) / 10 * 9);
    let at_timeout = || case.matched.ended_at_a_timeout() || closed_at_a_second(case);
    let has_timed_out = case.matched.timeout_s().is_some() || is_timeout(case) || at_timeout();
    match soon {
        _ if closed_late(case) => PROBER_LATE,
        _ if !has_timed_out => TIMEOUT_UNKNOWN,
        false => "",
        true if is_timeout(case) => BEGAN_BEFORE,
        true => CLOSED_SOON,
    }
}

const PROBER_LATE: &str = "; the prober closed long after its timeout, and may have sent its request late";

const TIMEOUT_UNKNOWN: &str =
    "; nothing shows that the prober's timeout was over then: it may have been stopped or restarted";
const BEGAN_BEFORE: &str = "; the probe's time had begun before this connection: the prober connected late, or again";
const CLOSED_SOON: &str =
    "; the prober closed the connection before the timeout was over: it had connected late, or was stopped";

/// The timeout of the probe in words, if it is known.
pub(super) fn budget(case: &Case<'_>) -> String {
    case.matched.timeout_s().map(|s| format!(" (timeoutSeconds {s})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The verdict waits for the reading of who accepted. The answer comes before that, and the prober has closed.
    #[test]
    fn an_answer_after_the_end_is_not_lost() {
        let mut stream = Stream::new().http_readiness().unread().connect().established().wait_ms(1_000).clone();
        stream.closes((100, 101, 0)).wait_ms(30).drop_back(TcpFlags(0x18), "TCP_ABORT_ON_DATA").wait_ms(600).tick();
        assert_eq!(stream.decided(), ("slow_response", Confidence::Proven));
    }

    /// The pod lost its link, its route or its address while its process worked: the answer could not leave.
    #[test]
    fn an_answer_that_cannot_leave_is_not_slow() {
        let noted_with = |bytes: u32, read: fn(&mut Inspection)| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).http_readiness().connect().established().wait_ms(200);
            let serving = |bytes| {
                let connection = Some(ServedConnection { unacknowledged: Some(bytes), ..served(0, true) });
                Some(Box::new(Serving { connection, ..Serving::default() }))
            };
            stream.inspection(|reading| {
                reading.serving = serving(0);
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
            });
            stream.wait_ms(500);
            stream.inspection(|reading| {
                reading.serving = serving(bytes);
                read(reading);
            });
            stream.wait_ms(300).closes((100, 101, 0)).wait_ms(5).tick();
            stream.verdict()
        };
        let noted = |read| noted_with(42, read);
        let stuck = noted(|_| ());
        assert_has(
            &noted_with(1, |_| ()).summary,
            &["the target sent one byte, or closed without one, and nothing arrived"],
        );
        assert_eq!(stuck.cause.name(), "unexplained");
        assert_has(
            &stuck.summary,
            &["(established and the request acknowledged; the target sent 42 bytes, and none arrived)"],
        );
        let no_route = noted(|reading| {
            let to = address("10.88.0.1");
            reading.no_way_back = Some(NoWayBack { to, errno: libc::ENETUNREACH });
        });
        assert_eq!((no_route.cause.name(), no_route.confidence), ("route_unreachable", Confidence::Likely));
        assert_has(&no_route.summary, &["drops the answer without a trace"]);
        let no_link = noted(|reading| {
            reading.links = vec![LinkState { up: false, ..link(2, "eth0", &["10.88.0.2"]) }];
        });
        assert_eq!((no_link.cause.name(), no_link.confidence), ("pod_link_down", Confidence::Likely));
        let gone = noted(|reading| (reading.netns, reading.serving) = (None, None));
        assert_eq!(gone.cause.name(), "unexplained");
        assert_has(&gone.summary, &["no network namespace of this node had the target's address"]);
        let moved = noted(|reading| {
            (reading.netns, reading.serving) = (Some(Netns(9)), None);
            reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
        });
        assert_eq!(moved.cause.name(), "unexplained", "another pod has its address now");
        assert_has(&moved.summary, &["then network namespace 9 had the target's address, and no longer 2"]);
        assert_eq!(
            noted(|reading| reading.serving = None).cause.name(),
            "slow_response",
            "the target had sent nothing at the last inspection"
        );
    }

    /// The address or the link went before tracer had read the server.
    #[test]
    fn a_target_that_nobody_has_before_the_first_reading_is_not_proven_slow() {
        let waits = |stream: &mut Stream, goes: fn(&mut Stream)| {
            stream.connect().established().wait_ms(100);
            goes(stream);
            for _ in 0..3 {
                stream.wait_ms(250).inspection(|reading| reading.netns = None);
            }
            stream.wait_ms(150).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let of_pod = |goes| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().clone();
            let pod = &mut stream.last_pods().pods[0];
            (pod.uid, pod.netns) = (Some("uid".into()), Some(POD));
            waits(&mut stream, goes)
        };
        let removed = of_pod(|stream| {
            // The next list does not find the pod's address.
            let mut list = stream.observations.iter().find_map(|it| match &it.kind {
                ObservationKind::Pods(pods) => Some(pods.clone()),
                _ => None,
            });
            list.iter_mut().for_each(|list| list.pods[0].netns = None);
            stream.link_set(POD, 2, "eth0", false).push(ObservationKind::Pods(list.expect("a list")));
        });
        assert_eq!((removed.cause.name(), removed.confidence), ("pod_link_down", Confidence::Likely));
        assert_has(&removed.summary, &["eth0 in pod default/web is gone or down (set down by pid"]);
        let unknown = of_pod(|_| ());
        assert_eq!((unknown.cause.name(), unknown.confidence), ("slow_response", Confidence::Likely));
        assert_has(&unknown.summary, &["the pod lost it meanwhile, or has a network stack of its own"]);
        let mut own = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).http_readiness().clone();
        let own = waits(own.on_host_network(), |stream| _ = stream.links(true, &[]));
        assert_eq!(own.cause.name(), "unexplained");
        assert_has(&own.summary, &["then no link on the node had the target's address"]);
        let mut unlisted = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).clone();
        let fix = waits(&mut unlisted, |stream| _ = stream.links(true, &[])).remediation;
        assert_has(&fix, &["Find what took 10.88.0.1 from the node (keepalived", "ip addr show to 10.88.0.1"]);
        assert_lacks(&fix, &["sandbox"]);
    }

    /// Until then the target was silent, with its address.
    #[test]
    fn an_address_that_goes_late_leaves_a_slow_target_slow() {
        let own = |gone_ms: u64| {
            let mut stream = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).connect().established().clone();
            stream.wait_ms(gone_ms);
            let gone = |stream: &mut Stream| _ = stream.links(true, &[]);
            if gone_ms < 1_000 {
                gone(&mut stream);
                stream.wait_ms(1_000 - gone_ms).closes((100, 101, 0));
            } else {
                gone(stream.closes((100, 101, 0)));
            }
            stream.wait_ms(5).tick().last_decided()
        };
        let [late, after] = [700, 1_000].map(own);
        assert_eq!((own(400).0, late.0, after.0), ("unexplained", "slow_response", "slow_response"));
        assert!(late.1 < after.1, "an answer after the loss could not arrive");
        let of_pod = |held_ms: u64| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().connect().established().clone();
            stream.wait_ms(held_ms).inspection(|reading| {
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.serving = Some(Box::new(Serving { connection: Some(served(0, true)), ..Serving::default() }));
            });
            stream.wait_ms(900 - held_ms).inspection(|reading| reading.netns = None);
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick().verdict().cause.name()
        };
        assert_eq!([400, 700].map(of_pod), ["unexplained", "slow_response"]);
    }

    /// The reading was of a server of another host, or it came before the handshake was over: a SYN was lost.
    #[test]
    fn only_a_target_on_this_node_is_expected_in_a_namespace() {
        let silent = |is_pod: bool, is_later: bool| {
            let mut stream = Stream::new();
            if is_pod {
                stream.links(true, &["10.88.0.1"]).http_readiness();
                stream.last_pods().pods[0].containers[0].probes[0].timeout_s = 5;
            }
            let read = |stream: &mut Stream| _ = stream.inspection(|reading| reading.netns = None);
            stream.connect().wait_ms(500);
            if !is_later {
                read(&mut stream);
            }
            stream.wait_ms(520).syn_again().established().wait_ms(2_000);
            if is_later {
                read(&mut stream);
            }
            stream.wait_ms(1_980).closes((100, 101, 0)).wait_ms(5).tick().verdict().confidence
        };
        assert_eq!([silent(false, false), silent(true, false), silent(false, true)], [Confidence::Proven; 3]);
        assert_eq!(silent(true, true), Confidence::Likely);
    }

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
        assert_eq!(decided(503, 1_000, 999).0, ["app_status_failure"]);
        let mut unknown = Stream::new();
        unknown.connect().established().answer(AnswerKind::Http, Some(200)).wait_ms(5_000);
        assert!(unknown.closes_quiet((100, 101, 141), 4_000_000_000).causes().is_empty(), "no probe is known");
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

    /// Found in a run: the target never took the request, and it was still sent again after the prober had closed.
    #[test]
    fn a_request_that_was_sent_again_is_lost_unless_it_was_taken() {
        let closes = |again: &[u32], bytes: (u64, u64, u64)| {
            let mut stream = Stream::new().connect().established().clone();
            again.iter().for_each(|sent| _ = stream.sent_again(*sent, false));
            stream.wait_ms(1000).closes(bytes);
            stream
        };
        assert_eq!(closes(&[0], (200, 1, 0)).causes(), ["unexplained"]);
        assert_eq!(closes(&[100], (200, 101, 0)).causes(), ["slow_response"], "taken at the second try");
        let mut late = closes(&[53, 53], (159, 1, 0));
        assert_eq!(late.settles().sent_again(53, false).sent_again(53, false).settles().causes(), ["unexplained"]);
    }

    #[test]
    fn an_answer_of_one_byte_is_an_answer() {
        assert!(Stream::new().connect().established().closes((100, 101, 1)).causes().is_empty());
    }

    #[test]
    fn an_answer_that_does_not_arrive_is_not_slow() {
        let mut stream = Stream::new().connect().established().wait_ms(500).sent_again(80, true).wait_ms(500).clone();
        stream.closes((100, 101, 0));
        assert_eq!(stream.causes(), ["unexplained"]);
        let words = &stream.verdict().summary;
        assert_has(&words, &["the target's answer did not arrive, sent again 1 time"]);
    }

    /// The kubelet is stopped: its sockets are closed long before any timeout, which is a second at least.
    #[test]
    fn a_prober_that_stops_gets_no_verdict() {
        let mut stream = Stream::new().connect().established().wait_ms(100).clone();
        stream.own(|stream| _ = stream.closes((100, 101, 0)));
        assert!(stream.wait_ms(10).tick().causes().is_empty());
        let mut dropped = Stream::new().connect().established().wait_ms(100).clone();
        dropped.own(|stream| _ = stream.closes((100, 101, 0)));
        dropped.drop(TcpFlags(0x18), "TCP_RFC7323_TW_PAWS", NODE);
        assert!(dropped.wait_ms(10).tick().causes().is_empty(), "a later packet finds no socket");
        let mut connecting = Stream::new().connect().wait_ms(100).clone();
        connecting.own(|stream| _ = stream.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)));
        assert!(connecting.wait_ms(10).tick().causes().is_empty());
    }

    /// A prober by another name has a timeout that is not known.
    #[test]
    fn a_prober_that_is_no_kubelet_may_wait_for_less() {
        let mut stream = Stream::new().connect().prober_named("blackbox").established().wait_ms(300).clone();
        stream.own(|stream| _ = stream.closes((100, 101, 0)));
        assert_eq!(stream.wait_ms(10).tick().causes(), ["slow_response"]);
        let at_a_second = |comm: &str| {
            let mut stream = Stream::new().connect().prober_named(comm).established().wait_ms(2_007).clone();
            stream.own(|stream| _ = stream.closes((100, 101, 0)));
            stream.wait_ms(10).tick().verdict().confidence
        };
        let confidence = ["kubelet", "blackbox"].map(at_a_second);
        assert_eq!(confidence, [Confidence::Proven, Confidence::Likely], "only a kubelet's timeouts are whole seconds");
    }

    /// The kernel closes the sockets of a prober that ends, as the prober does at its timeout. The target is healthy, and its
    /// timeout is 10 s.
    #[test]
    fn a_close_at_no_known_timeout_may_be_the_end_of_the_prober() {
        let decided = |probed: fn(&mut Stream), ms: u64| {
            let mut stream = Stream::new();
            probed(&mut stream);
            stream.connect().established().wait_ms(ms);
            stream.own(|stream| _ = stream.closes((100, 101, 0)));
            let verdict = stream.wait_ms(10).tick().verdict();
            let words = verdict.summary.ends_with(&super::TIMEOUT_UNKNOWN[2..]);
            (verdict.cause.name(), verdict.confidence, words)
        };
        assert_eq!(decided(|_| (), 2_350), ("slow_response", Confidence::Likely, true));
        assert_eq!(decided(|_| (), 2_007), ("slow_response", Confidence::Proven, false), "timeouts are whole seconds");
        let two: fn(&mut Stream) = |stream| _ = stream.http_readiness().like_liveness_too(10);
        assert_eq!(decided(two, 2_230), ("slow_response", Confidence::Likely, true));
        assert_eq!(decided(two, 1_002), ("slow_response", Confidence::Proven, false), "at the shorter one");
        assert_eq!(decided(two, 10_002), ("slow_response", Confidence::Proven, false));
    }

    /// For example syslog or metrics: the target takes the data, and the client waits for no answer.
    #[test]
    fn a_client_that_is_no_prober_may_need_no_answer() {
        let mut stream =
            Stream::new().connect().by_other_process().established().wait_ms(1000).closes((100, 101, 0)).clone();
        assert!(stream.wait_ms(10).tick().causes().is_empty());
        let mut lost =
            Stream::new().connect().by_other_process().established().sent_again(100, false).wait_ms(1000).clone();
        lost.closes((200, 1, 0));
        assert_eq!(lost.causes(), ["unexplained"]);
    }

    /// With a timeout of 1 s it closes after 1.9 s. When it sent its request is not known.
    #[test]
    fn a_prober_that_was_late_itself_is_reported() {
        let noted = |https: bool, ms: u64| {
            let mut stream = Stream::new().http_readiness_over_tls(https).connect().established().wait_ms(ms).clone();
            stream.closes((100, 101, 0));
            let verdict = stream.verdict();
            (verdict.cause.name(), verdict.confidence, verdict.summary.contains("the prober closed long after"))
        };
        assert_eq!(noted(false, 1_001), ("slow_response", Confidence::Proven, false));
        assert_eq!(noted(false, 1_900), ("slow_response", Confidence::Likely, true));
        assert_eq!(noted(true, 1_900), ("tls_handshake_slow", Confidence::Likely, true));
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

    /// The prober was starved between the begin of its time and its connect.
    #[test]
    fn a_prober_that_connected_late_has_waited() {
        let noted = |https: bool, ms: u64, reason: Option<ProbeOutput>| {
            let mut stream = Stream::new().http_readiness_over_tls(https).connect().established().wait_ms(ms).clone();
            stream.own(|stream| _ = stream.closes((100, 101, 0)));
            stream.wait_ms(5);
            if let Some(reason) = reason {
                stream.kubelet(reason);
            }
            let last = stream.wait_ms(10).tick().verdicts().pop()?.verdict;
            Some((last.cause.name(), last.confidence, last.summary.rsplit_once("; ").map(|(_, it)| it.to_owned())))
        };
        let is = |cause, words: &str| Some((cause, Confidence::Likely, Some(words.to_owned())));
        let (soon, before) = (&super::CLOSED_SOON[2..], &super::BEGAN_BEFORE[2..]);
        assert_eq!(noted(false, 880, None), is("slow_response", soon));
        let https = noted(true, 880, None).expect("a verdict");
        assert_eq!((https.0, https.1), ("tls_handshake_slow", Confidence::Likely));
        assert_eq!(noted(false, 740, None), None, "the prober stopped");
        assert_eq!(
            noted(false, 880, Some(ProbeOutput::Timeout)),
            is("slow_response", soon),
            "the kubelet outcome alone revises nothing"
        );
        assert_eq!(noted(false, 600, Some(ProbeOutput::Timeout)), is("slow_response", before));
        let short = noted(false, 400, Some(ProbeOutput::Timeout)).expect("a verdict");
        assert_eq!((short.0, short.1), ("unexplained", Confidence::Possible), "most of the time had gone elsewhere");
        assert_eq!(noted(false, 905, None).map(|it| it.1), Some(Confidence::Proven));
    }

    #[test]
    fn a_handshake_that_took_most_of_the_time_is_reported() {
        let mut stream = Stream::new();
        stream.connect().wait_ms(1000).syn_again().established().wait_ms(300).closes((100, 101, 0));
        assert_eq!(stream.decided(), ("slow_response", Confidence::Likely));
    }

    /// The handshake took 400 ms, and so did the request and its acknowledgement: the kubelet had sent it at once.
    #[test]
    fn a_slow_path_is_no_slow_kubelet() {
        let decided = |handshake_ms: u64, quiet_ms: u64| {
            let mut stream = Stream::new().http_readiness().connect().wait_ms(handshake_ms).established().clone();
            stream.wait_ms(1_000 - handshake_ms).closes_quiet((100, 101, 0), quiet_ms * 1_000_000);
            let verdict = stream.verdict();
            (verdict.cause.name(), verdict.confidence, verdict.summary.ends_with(&super::PATH_SLOW[2..]))
        };
        assert_eq!(decided(400, 200), ("slow_response", Confidence::Likely, true));
        assert_eq!(decided(200, 600), ("slow_response", Confidence::Proven, false), "the target had most of the time");
        assert_eq!(decided(200, 200), ("kubelet_delayed", Confidence::Likely, false), "600 ms after the handshake");
        assert_eq!(decided(1, 200), ("kubelet_delayed", Confidence::Likely, false));
        let mut again = Stream::new().http_readiness().connect().wait_ms(400).syn_again().clone();
        again.wait_ms(1).established().wait_ms(1_000);
        assert_eq!(again.closes_quiet((100, 101, 0), 200_000_000).causes(), ["kubelet_delayed"], "a SYN was lost");
    }

    /// An acknowledgement was dropped, but the target had taken the request.
    #[test]
    fn a_less_sure_cause_does_not_replace_a_proven_one() {
        let mut stream = Stream::new();
        stream.missing(Hook::IcmpSend).http_readiness().connect().established().drop_with(
            TcpFlags(0x10),
            NODE,
            |drop| {
                drop.reason = Some("NETFILTER_DROP".into());
                drop.flow = drop.flow.reversed();
            },
        );
        stream.wait_ms(200).sent_again(100, false).wait_ms(800).closes((200, 101, 0)).wait_ms(10).tick();
        assert_eq!(stream.all_decided(), [("slow_response", Confidence::Proven)]);
    }
}
