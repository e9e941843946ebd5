//! The target took the request, and gave no answer, or not all of it, before the prober closed.

mod unfinished;

use self::unfinished::{closed_at_timeout, endless_answer, unfinished};
use super::*;
use tracer_case::giving_up::{prober_late, round_trip_ns, timeout_clause};
use tracer_case::services::target_service;
use tracer_case::throttling::throttling;
use tracer_case::{serving, sidecar, slow_server};
use tracer_model::event::TcpState;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let found = silent(case).or_else(|| unfinished(case)).or_else(|| closed_at_timeout(case))?;
    Some(sidecar::add_node_port(case, found))
}

fn silent(case: &Case<'_>) -> Option<Finding> {
    let Wait { reached, waited, late, is_late, evidence } = measure_wait(case)?;
    let summary = format!(
        "{} was reached in {reached} and acknowledged the request; no byte of an answer in {waited}{}{late}",
        case.attempt.flow.dst,
        timeout_clause(case)
    );
    let mut found = Finding::failure(Cause::SlowResponse, vec![evidence], summary, fix(case));
    slow_server::add(case, &mut found, is_late);
    if late.starts_with(PATH_SLOW) {
        found.change_fix(|fix| fix.reword(|text| format!("{}{OR_FASTER}", text.trim_end_matches('.'))));
    }
    found.summary += &throttling(case).map(|it| format!("; {}", it.words())).unwrap_or_default();
    let found = may_be_lost_elsewhere(case, found);
    Some(if late.is_empty() { found } else { found.at_most(Confidence::Likely) })
}

/// If the target is a Service, or no pod of the node's list: an answer that is lost on another node looks the same.
pub(super) fn may_be_lost_elsewhere(case: &Case<'_>, mut found: Finding) -> Finding {
    let (node, attempt) = (case.node, case.attempt);
    let is_here = || node.netns_of_addr(attempt.netns?, attempt.flow.dst.ip());
    let is_known = node.pods.have_specs() || target_service(case).is_some();
    if !is_known || node.is_at_pod(attempt) || is_here().is_some() || serving::connection(case).is_some() {
        return found;
    }
    found.summary += "; or its answer is lost beyond this node";
    found.at_most(Confidence::Likely)
}

fn fix(case: &Case<'_>) -> Remediation {
    let fix: Remediation = by_subject(case, Cause::SlowResponse.fix(), |client| {
        format!(
            "Raise the timeout of {client} above the target's real latency, give the target more CPU, or make the answer independent of slow work"
        )
    });
    let endless = endless_answer(case).is_some();
    let then = if case.attempt.is_refused_by_status() { THEN_FAILS } else { "" };
    let first = |text: &str| format!("{END_ANSWER}{then}. If the answer is only slow: {text}");
    with_log(case, if endless { fix.reword(first) } else { fix })
}

const END_ANSWER: &str = "Let the health path end its answer: no empty line ends its head, its Content-Length is larger than the body, or it is a stream";

const THEN_FAILS: &str = ". The probe then fails by its status: find what the health handler checks, too";

/// A prober that waited for an answer in vain.
pub(super) struct Wait {
    /// How long the handshake took.
    pub reached: String,
    /// How long the target had for its answer.
    pub waited: String,
    /// What to add to the summary if the target had the smaller part of the time, or the prober was late; else empty.
    pub late: String,
    /// The target had the smaller part of the time.
    pub is_late: bool,
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
    // A SYN may have waited on the way for what is over. The request did not if it was acknowledged sooner.
    let quiet = state.quiet_ns.filter(|_| state.old == TcpState::Established);
    let acknowledged = quiet.map_or(u64::MAX, |quiet| ended.saturating_sub(established).saturating_sub(quiet));
    let on_the_way = round_trip_ns(case).unwrap_or_default().min(acknowledged);
    let late = match late {
        _ if before > waited => late,
        HANDSHAKE_LATE if before.saturating_add(on_the_way) > waited.saturating_sub(on_the_way) => PATH_SLOW,
        _ => "",
    };
    Some(Wait {
        reached: ms(established.saturating_sub(attempt.started)),
        waited: ms(waited),
        late: format!("{late}{}", prober_late(case)),
        is_late: !late.is_empty(),
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

const OR_FASTER: &str = ". Or find what slows the path, such as a qdisc (tc -s qdisc show) or a tunnel";

/// The prober sent its request when most of the time was over.
const REQUEST_SENT_LATE: &str = " since the request; most of the time had passed before: the prober sent it late";

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
            assert_lacks(&verdict.remediation, &[".."]);
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
