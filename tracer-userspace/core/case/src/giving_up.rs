//! When the prober gave up on a target, and whether it was late or early itself.

use crate::Case;
use crate::case::inspected;
use crate::held_answer::{held_answer, in_second_half};
use crate::links::{broken_link, is_behind_a_link, went_down};
use tracer_attempts::correlate::attempt::End;
use tracer_attempts::enrich::LATE_NS;
use tracer_model::event::{Inspection, KNOWN_PROBERS, ProbeOutput, TcpState};

/// When the prober gave up on a target that had taken its request and sent nothing.
pub fn taken_and_silent(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let (ended, End::ClosedByProber) = attempt.ended? else { return None };
    let taken = attempt.request_acknowledged() && attempt.received() == Some(0) && attempt.errno().is_none();
    let is_lost = attempt.answer_lost() || held_answer(case).is_some() || was_down_for_long(case);
    (taken && attempt.failed_by_itself() && !is_lost && !gave_up_early(case)).then_some(ended)
}

/// When the target acknowledged the request, if the connection was silent after that and this was in its second half.
/// On a slow path, the acknowledgement of a request that was sent at once takes as long as the handshake.
pub fn sent_request_late(case: &Case<'_>) -> Option<u64> {
    let attempt = case.attempt;
    let ((ended, _), established, last) = (attempt.ended?, attempt.established_at()?, attempt.last.as_ref()?);
    let quiet = last.quiet_ns.filter(|_| last.old == TcpState::Established)?;
    let lasted = ended.saturating_sub(established);
    let sent_once = attempt.sent_again.is_none_or(|at| at <= established || at >= ended);
    let asked = ended.saturating_sub(quiet);
    let on_the_way = round_trip_ns(case)?.saturating_mul(2).saturating_add(LEAST_IDLE_NS);
    let idle = asked.saturating_sub(established);
    (sent_once && quiet < lasted / 2 && lasted < FIRST_KEEPALIVE_NS && idle > on_the_way).then_some(asked)
}

/// The kernel may delay the acknowledgement a little.
const LEAST_IDLE_NS: u64 = 20_000_000;

/// How long a segment and its answer take, by the handshake.
pub fn round_trip_ns(case: &Case<'_>) -> Option<u64> {
    let (attempt, established) = (case.attempt, case.attempt.established_at()?);
    let sent_again = attempt.syns_sent_again().filter(|at| *at < established).max();
    Some(established.saturating_sub(sent_again.unwrap_or(attempt.started)))
}

/// Go sends a first keepalive segment after 15 s (net.defaultTCPKeepAliveIdle): the last segment may be that one.
const FIRST_KEEPALIVE_NS: u64 = 15_000_000_000;

/// A kubelet's timer starts before its connect. A busy kubelet connects this much later.
const CONNECTS_LATE_NS: u64 = 250_000_000;

/// The prober closed well before the timeout, so not for want of an answer: the pod was deleted, or the prober stopped.
/// If the kubelet does report a timeout, the target had less than half of the time.
pub fn gave_up_early(case: &Case<'_>) -> bool {
    let timeout = timeout_ns(case);
    let before = if is_timeout(case) { timeout / 2 } else { CONNECTS_LATE_NS.max(timeout / 10) };
    case.attempt.lasted().is_some_and(|lasted| lasted < timeout.saturating_sub(before))
}

/// The probe's timeout. If it is not known: 1 s for a kubelet, which has no shorter one, and 0 for another prober.
pub fn timeout_ns(case: &Case<'_>) -> u64 {
    case.matched.timeout_s().map_or(u64::from(is_kubelet(case)), u64::from) * 1_000_000_000
}

fn is_kubelet(case: &Case<'_>) -> bool {
    case.attempt.prober && KNOWN_PROBERS.contains(&case.attempt.actor.comm.as_str())
}

/// The timeouts of a kubelet's probes are whole seconds. If tracer knows no probe of that port, a close at one shows the
/// timeout.
pub fn closed_at_a_second(case: &Case<'_>) -> bool {
    let after = |lasted: u64| (lasted >= 990_000_000).then_some((lasted + 10_000_000) % 1_000_000_000);
    let is_at = case.attempt.lasted().and_then(after).is_some_and(|after| after < 110_000_000);
    is_at && is_kubelet(case) && case.matched.possible_probes().is_empty()
}

/// The kubelet reports a timeout.
pub fn is_timeout(case: &Case<'_>) -> bool {
    case.attempt
        .kubelet()
        .is_some_and(|(_, reported)| matches!(reported.reason, ProbeOutput::Timeout | ProbeOutput::TimeoutInBody))
}

/// The prober closed long after the longest timeout of the probe: it was late, perhaps with its request, too.
pub fn closed_late(case: &Case<'_>) -> bool {
    let timeout = case.matched.longest_timeout_ns();
    case.attempt.lasted().zip(timeout).is_some_and(|(lasted, timeout)| lasted > timeout.saturating_add(LATE_NS))
}

/// What to add to the summary, with a lower confidence, if the prober closed long after its timeout, or before it, or if
/// nothing shows that its timeout was over. The kernel closes the sockets of a prober that ends in the same way.
pub fn prober_late(case: &Case<'_>) -> &'static str {
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
pub fn timeout_clause(case: &Case<'_>) -> String {
    case.matched.timeout_s().map(|s| format!(" (timeoutSeconds {s})")).unwrap_or_default()
}

/// The prober waited in vain, and for more than half of that time the target's link was down: no answer could come then.
pub fn was_down_for_long(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let is_early = |time: u64| in_second_half(case, time) == Some(false);
    let broken = |reading: &Inspection| broken_link(reading, case).is_some() && is_behind_a_link(case, reading);
    let Some((_, last)) = inspected(case).filter(|(_, reading)| broken(reading)) else { return false };
    let early = || {
        let all = case.node.targets.inspections(attempt);
        all.filter(|(time, _)| attempt.overlaps(*time) && is_early(*time)).any(|(_, reading)| broken(reading))
    };
    matches!(attempt.ended, Some((_, End::ClosedByProber)))
        && attempt.failed_by_itself()
        && !gave_up_early(case)
        && (went_down(case, last).is_some_and(is_early) || early())
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

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
}
