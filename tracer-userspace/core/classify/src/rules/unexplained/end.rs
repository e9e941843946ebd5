//! How an attempt ended that nothing explains, in words.

use super::super::*;
use tracer_case::SETTLE_NS;
use tracer_case::held_answer::held_answer;

/// In brackets, after the time that the attempt took.
pub(super) fn describe(case: &Case<'_>, end: End) -> String {
    let attempt = case.attempt;
    if case.matched.is_too_late() {
        describe_late_connection(attempt)
    } else if !case.matched.failed() {
        DISAGREES.to_owned()
    } else if let Some(words) = held_answer(case) {
        format!("{}; {words}", describe_request(attempt))
    } else if attempt.request_unsent() {
        let who = client_name(attempt);
        format!(
            "established, and {who} could send no byte of its request: the target opened no window, as SYNPROXY without a server behind it"
        )
    } else if case.matched.timed_out_before_request() {
        let who = client_name(attempt);
        format!(
            "established, and {who} could send no byte of the request until its timeout: the target opened no window, as SYNPROXY without a server behind it, or {who} itself stalled; or payload is redirected between sockets on this node (a sockmap program), and the byte counters do not see requests"
        )
    } else if is_syn_lost(case) {
        "no answer to the SYN, and the prober gave up before it was sent again".to_owned()
    } else {
        describe_end(attempt, end)
    }
}

/// What the kernel saw of an attempt that only the kubelet calls failed.
const DISAGREES: &str = "as the kubelet reports; the kernel saw a connection on which nothing went wrong";

/// The connection was established when the probe had timed out.
fn describe_late_connection(attempt: &Attempt) -> String {
    let took = attempt.established.map_or(0, |at| at.saturating_sub(attempt.started));
    let again = match attempt.retransmits.0 {
        0 => String::new(),
        times => format!(", its SYN sent again {}", counted(times.into(), "time")),
    };
    format!(
        "connected after {}{again}: the probe had timed out by then, and {} closed it unused",
        ms(took),
        client_name(attempt)
    )
}

/// An answer had begun.
fn has_begun(attempt: &Attempt) -> bool {
    attempt.received().is_some_and(|n| n > 0)
}

fn describe_request(attempt: &Attempt) -> &'static str {
    match has_begun(attempt) {
        true => "established and the answer begun",
        false => "established and the request acknowledged",
    }
}

fn describe_end(attempt: &Attempt, end: End) -> String {
    let errno = attempt.errno().map(|e| format!(", {}", errno_text(e))).unwrap_or_default();
    let stage = match end {
        End::NotEstablished if sent_again(attempt) > 0 => {
            format!("no answer to the SYN, sent again {}", counted(sent_again(attempt).into(), "time"))
        }
        End::NotEstablished => "before the connection was established".to_owned(),
        End::Reset if attempt.errno() == Some(libc::ETIMEDOUT) => {
            "established, then the last segments had no acknowledgement".to_owned()
        }
        End::Reset => "reset after it was established".to_owned(),
        End::ClosedByProber if attempt.retransmits.1 > 0 => {
            let segments = counted(attempt.retransmits.1.into(), "segment");
            format!("established, then {segments} sent again without an acknowledgement")
        }
        End::ClosedByProber if attempt.answer_lost() => {
            let again = match attempt.retransmitted().filter(|(_, segment)| segment.by_target).count() {
                0 => String::new(),
                times => format!(", sent again {}", counted(times as u64, "time")),
            };
            let rest = if has_begun(attempt) { "the rest of " } else { "" };
            format!("{}; {rest}the target's answer did not arrive{again}", describe_request(attempt))
        }
        End::ClosedByProber => format!("established, and {} closed it without an answer", client_name(attempt)),
        End::ClosedByServer => "established, and the target closed it without an answer".to_owned(),
    };
    format!("{stage}{errno}")
}

/// The prober waited, and gave up before the kernel sent the SYN again, which it does after one second
/// (`TCP_TIMEOUT_INIT`).
pub(super) fn is_syn_lost(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let is_unanswered = attempt.reset_received().is_none() && sent_again(attempt) == 0;
    let is_connecting = matches!(attempt.ended, Some((_, End::NotEstablished)));
    is_connecting && is_unanswered && waited_in_vain(attempt) && !case.lacks(&[Hook::TcpRetransmit])
}

fn waited_in_vain(attempt: &Attempt) -> bool {
    attempt.lasted().is_some_and(|lasted| lasted >= AT_ONCE_NS) && attempt.errno().is_none()
}

/// How often the prober sent its SYN again. Before 6.17 the kernel reports only those that left: a firewall of the
/// prober's own namespace drops each of them before that.
fn sent_again(attempt: &Attempt) -> u32 {
    let mut last = attempt.started;
    let mut is_next = |time: u64| {
        let is_later = time >= last.saturating_add(LEAST_RTO_NS);
        last = if is_later { time } else { last };
        is_later
    };
    let own = attempt.drops().filter(|(_, drop)| drop.flags.is_syn() && drop.netns == attempt.netns);
    let again = own.filter(|(time, _)| is_next(*time)).count();
    attempt.retransmits.0.max(u32::try_from(again).unwrap_or(u32::MAX))
}

/// `TCP_RTO_MIN`. A bridge drops several copies of one SYN at once.
const LEAST_RTO_NS: u64 = 200_000_000;

/// No SYN of an attempt from a namespace to itself had an answer: no link can have lost them.
pub(super) fn is_lost_at_home(case: &Case<'_>) -> bool {
    in_handshake(case) && waited_in_vain(case.attempt) && silent(case) && case.node.is_to_itself(case.attempt)
}

/// A prober that closes this soon may have got an error that left no trace on the socket (`sk_err_soft`).
const AT_ONCE_NS: u64 = 10_000_000;

/// The prober closed the connection long before its timeout, and nothing had gone wrong: it stopped by itself.
pub(super) fn is_cancelled(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let Some((ended, End::NotEstablished | End::ClosedByProber)) = attempt.ended else { return false };
    if case.node.lost_between(attempt.started, ended.saturating_add(SETTLE_NS)) > 0 {
        return false;
    }
    let own = attempt.last.as_ref().is_some_and(|last| last.own_context && last.errno == Some(0));
    let at_once = attempt.established.is_none() && attempt.lasted().is_some_and(|lasted| lasted < AT_ONCE_NS);
    own && !at_once && attempt.connect_failed().is_none() && is_undisturbed(attempt, ended) && gave_up_early(case)
}

/// Nothing was dropped or answered with an error before the end. A later packet finds no socket.
fn is_undisturbed(attempt: &Attempt, ended: u64) -> bool {
    let dropped = attempt.drops().any(|(time, drop)| time <= ended && !is_deferred(attempt, drop));
    let refused = attempt.icmp().any(|(time, _)| time <= ended);
    !dropped && !refused && attempt.reset_received().is_none_or(|(time, _)| time > ended)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The kubelet goes on connecting after its probe has timed out, and closes the connection unused. That is no
    /// success.
    #[test]
    fn a_connection_that_came_too_late_for_its_probe_failed() {
        let touched = |after_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().wait_ms(after_ms).syn_again().wait_ms(25).established();
            stream.closes((0, 1, 0)).wait_ms(50).tick().verdicts()
        };
        assert!(touched(900).is_empty(), "in time");
        let late = touched(1_000);
        let verdict = &late[0].verdict;
        assert_eq!((late.len(), verdict.cause.name()), (1, "unexplained"));
        let words = "(connected after 1025.0 ms, its SYN sent again 1 time: the probe had timed out by then";
        assert_has(&verdict.summary, &[words]);
        assert_eq!(late[0].probe.as_ref().and_then(|probe| probe.consecutive_failures), Some(1));
    }

    /// SYNPROXY without a server, or a pod that opens no window: the handshake succeeds, and nothing else.
    #[test]
    fn a_probe_that_could_send_nothing_until_its_timeout_failed() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream, lasted_ms: u64| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().wait_ms(lasted_ms).closes((0, 1, 0)).wait_ms(50).tick();
            stream.causes()
        };
        for probed in [Stream::http_readiness, Stream::https_readiness] {
            assert_eq!([995, 1_300].map(|ms| decided(probed, ms)), [["unexplained"]; 2]);
            assert!(decided(probed, 500).is_empty(), "not at the timeout");
        }
        assert!(decided(Stream::tcp_readiness, 995).is_empty());
        let mut stream = Stream::new().http_readiness().connect().established().wait_ms(995).clone();
        let summary = stream.closes((0, 1, 0)).wait_ms(50).tick().verdict().summary;
        assert_has(&summary, &["could send no byte of the request until its timeout", "a sockmap program"]);
    }

    /// The API server in the same process dials twice for two requests, and one connection stays unused.
    #[test]
    fn a_spare_dial_of_the_api_server_that_ends_at_the_timeout_is_no_failure() {
        let decided = |waits_ms: &[u64]| {
            let mut stream = Stream::new().http_readiness().clone();
            for (conn, wait_ms) in (100..).zip(waits_ms) {
                stream.again(conn).connect().prober_named("k3s-server").established().wait_ms(995);
                stream.closes((0, 1, 0)).wait_ms(*wait_ms).tick();
            }
            stream.causes()
        };
        assert!(decided(&[3_000, 50]).is_empty());
        assert_eq!(decided(&[9_005, 50]), ["unexplained"], "one period after another connect: a probe");
    }

    #[test]
    fn a_syn_that_is_dropped_in_the_probers_namespace_again_was_sent_again() {
        let noted = |drops: usize| {
            let mut stream = Stream::new().connect().clone();
            (0..drops).for_each(|_| _ = stream.drop(SYN, "QDISC_DROP", NODE).wait_ms(500));
            stream.gives_up().verdict().summary
        };
        assert_has(&noted(1), &["gave up before it was sent again"]);
        assert_has(&noted(3), &["no answer to the SYN, sent again 2 times"]);
    }

    /// `tcp_retries2`, or TCP_USER_TIMEOUT.
    #[test]
    fn a_connection_that_the_kernel_gave_up_was_not_reset() {
        let mut stream = Stream::new().http_readiness().connect().established().wait_ms(900).clone();
        let errno = libc::ETIMEDOUT;
        stream.state(TcpState::Established, TcpState::Close, errno, (100, 1, 0)).settles();
        let summary = stream.verdict().summary;
        assert_has(&summary, &["(established, then the last segments had no acknowledgement, "]);
        assert_lacks(&summary, &["reset"]);
    }

    #[test]
    fn a_syn_that_was_sent_once_is_reported_as_that() {
        let noted = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().connect().clone();
            fill(&mut stream);
            stream.gives_up().verdict()
        };
        let once = noted(|_| ());
        assert_has(
            &once.summary,
            &["after 1000.0 ms (no answer to the SYN, and the prober gave up before it was sent again)"],
        );
        assert_has(&once.remediation, &["a single lost packet fails the probe", "timeoutSeconds 2"]);
        let again = noted(|stream| _ = stream.syn_again());
        assert_eq!(again.cause.name(), "unexplained");
        assert_has(&again.summary, &["no answer to the SYN, sent again 1 time"]);
        assert_lacks(&again.remediation, &["timeoutSeconds 2"]);
    }
}
