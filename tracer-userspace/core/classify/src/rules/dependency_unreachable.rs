//! The pod's own connects fail or get no answer: perhaps its probe fails because a dependency is unreachable. Goes to
//! `also`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::*;
use tracer_attempts::correlate::pod_connects::FailedConnects;
use tracer_case::pod_sockets::{self, FRESH_NS};
use tracer_case::services::service_named;
use tracer_case::wrong_field::status_of;
use tracer_model::event::UnansweredConnect;
use tracer_model::shell::word;

/// How many destinations are named: one that nobody needs, as a monitor's, must not hide the one that matters.
const MOST_NAMED: usize = 3;
/// If all failed longer before the attempt than this, it is only a hint: the destination may be reachable again. The
/// default period of a probe and a margin, as tracer reads the pod's sockets after each failure.
const RECENT_NS: u64 = 15_000_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let silent = unanswered(case);
    let failed: Vec<Unreachable> =
        failing(case).into_iter().filter(|it| silent.iter().all(|silent| silent.dst != it.dst)).collect();
    let all = failed.len() + silent.len();
    let is_old = |it: &Unreachable| it.evidence.time_boot_ns.saturating_add(RECENT_NS) < case.attempt.started;
    let confidence = match failed.iter().chain(&silent).all(is_old) {
        true => Confidence::Possible,
        false => Confidence::Likely,
    };
    let most_failed = MOST_NAMED - usize::from(!silent.is_empty());
    let named: Vec<Unreachable> = failed.into_iter().take(most_failed).chain(silent).take(MOST_NAMED).collect();
    let first = named.first().filter(|_| may_explain(case))?;
    let summary = if all == 1 { first.summary.clone() } else { several(&named, all - named.len()) };
    let fix = fix(case, &named);
    let evidence = named.into_iter().map(|it| it.evidence).collect();
    Some(Finding::failure(Cause::DependencyUnreachable, evidence, summary, fix).with_confidence(confidence))
}

/// A destination that the pod cannot reach.
struct Unreachable {
    addr: IpAddr,
    /// With its Service.
    dst: String,
    evidence: Evidence,
    /// How the connects fail.
    error: String,
    /// The summary if it is the only one.
    summary: String,
    /// What to look for; follows "the pod's own connects to it".
    why: &'static str,
}

fn several(named: &[Unreachable], more: usize) -> String {
    let each: Vec<String> = named.iter().map(|it| format!("to {}: {}", it.dst, it.error)).collect();
    let others = match more {
        0 => String::new(),
        more => format!(", and to {}", counted(more as u64, "other destination")),
    };
    format!("perhaps because the pod's own connects fail: {}{others}", each.join(", "))
}

/// A sentence for all destinations of which the connects fail in the same way.
fn fixes(named: &[Unreachable]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    named.iter().for_each(|it| reasons.extend((!reasons.contains(&it.why)).then_some(it.why)));
    let sentence = |why: &&str| {
        let dsts: Vec<&str> = named.iter().filter(|it| it.why == *why).map(|it| it.dst.as_str()).collect();
        format!("If the application needs {}, see why the pod's own connects to it {why}", dsts.join(" or "))
    };
    reasons.iter().map(sentence).collect::<Vec<_>>().join(". ")
}

/// The destinations to which connects of the pod have failed since a minute before the attempt began, most failures
/// first.
fn failing(case: &Case<'_>) -> Vec<Unreachable> {
    let attempt = case.attempt;
    let other = |from| case.node.netns_of_addr(from, attempt.flow.dst.ip()).filter(|netns| *netns != from);
    let Some(netns) = attempt.netns.and_then(other) else { return Vec::new() };
    let all = case.node.pod_connects.failed_since(netns, attempt.started.saturating_sub(FRESH_NS));
    let mut all: Vec<&FailedConnects> = all.filter(|it| !is_usual(case, it)).collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.count));
    all.into_iter().map(|it| failed(case, it)).collect()
}

fn failed(case: &Case<'_>, it: &FailedConnects) -> Unreachable {
    let dst = format!("{}{}{}", it.dst, if it.udp { " (UDP)" } else { "" }, service_words(case, it.dst));
    let error = errno_text(it.errno);
    let before = case.attempt.started.saturating_sub(it.last) / 1_000_000_000;
    let age = if before > 0 { format!(", the last one {before} s before") } else { String::new() };
    let connects = counted(u64::from(it.count), "connect");
    let text = format!("{connects} of the pod to {dst} failed, the last one: {error}");
    let fields = json!({ "dst": it.dst, "udp": it.udp, "errno": it.errno, "count": it.count });
    Unreachable {
        evidence: evidence_of(Hook::SkErrorReport.name(), it.last, text, fields),
        summary: format!("perhaps because the pod's own connects to {dst} fail{age}: {error}"),
        why: why(it.errno),
        error: format!("{error}{age}"),
        addr: it.dst.ip(),
        dst,
    }
}

/// A failed connect that is usual: to the target itself, or to `::1` before 127.0.0.1 is tried.
fn is_usual(case: &Case<'_>, failed: &FailedConnects) -> bool {
    let (dst, target) = (failed.dst, case.attempt.flow.dst);
    let is_target = dst.port() == target.port() && (dst.ip() == target.ip() || dst.ip().is_loopback());
    is_target || dst.ip() == Ipv6Addr::LOCALHOST
}

fn why(errno: i32) -> &'static str {
    match errno {
        libc::ECONNREFUSED => REFUSED,
        libc::ETIMEDOUT => SILENT,
        _ => "find no way: the peer or its node is gone, a route is missing, or a firewall rejects them",
    }
}

const REFUSED: &str = "are refused: nobody listens there, its Service has no endpoints, or a firewall rejects them";
const SILENT: &str = "get no answer: a NetworkPolicy for egress, a firewall, a route, or a peer that is gone";

/// The destinations that do not answer, as the pod's sockets were read, the longest first.
fn unanswered(case: &Case<'_>) -> Vec<Unreachable> {
    let Some((time, reading)) = pod_sockets::last_reading(case, FRESH_NS) else { return Vec::new() };
    let before = case.attempt.started.saturating_sub(time) / 1_000_000_000;
    let before = if before > 0 { format!(" (read {before} s before)") } else { String::new() };
    let silent = |it: &UnansweredConnect| {
        let dst = format!("{}{}", it.dst, service_words(case, it.dst));
        let text = format!(
            "{} of the pod to {dst}: no answer, though the SYN was sent again {}",
            counted(u64::from(it.sockets), "connect"),
            counted(u64::from(it.retransmits), "time")
        );
        let fields = json!({ "dst": it.dst, "sockets": it.sockets, "retransmits": it.retransmits });
        Unreachable {
            evidence: evidence_of("sock_diag", time, text, fields),
            error: format!("no answer{before}"),
            summary: format!("perhaps because the pod itself gets no answer from {dst}{before}"),
            why: SILENT,
            addr: it.dst.ip(),
            dst,
        }
    };
    reading.unanswered.iter().map(silent).collect()
}

fn service_words(case: &Case<'_>, dst: SocketAddr) -> String {
    service_named(case, dst).map(|name| format!(" (Service {name})")).unwrap_or_default()
}

/// The attempt failed as if the application waits for another one: it does not listen yet, hangs, or answers a failure.
fn may_explain(case: &Case<'_>) -> bool {
    let failures = [
        app_status_failure::find,
        slow_response::find,
        connection_refused::find,
        not_listening_yet::find,
        startup_budget_exceeded::find,
        closed_without_answer::find,
    ];
    // Such a status is about the request itself.
    let is_refused = status_of(case).is_some_and(|it| (400..500).contains(&it) && it != 429);
    !is_refused && failures.iter().any(|find| find(case).is_some_and(|it| it.confidence > Confidence::Possible))
}

fn fix(case: &Case<'_>, named: &[Unreachable]) -> Remediation {
    let k8s = case.matched.name().k8s;
    let namespace = k8s.as_ref().and_then(|it| word(it.namespace.as_deref())).unwrap_or("NAMESPACE");
    let who = named.iter().map(|it| format!("kubectl get services,pods -A -o wide | grep -wF {}", it.addr));
    // A policy drops: it refuses nothing.
    let may_be_policy = named.iter().any(|it| it.why != REFUSED);
    let policies = may_be_policy.then(|| format!("kubectl get networkpolicy -n {namespace}"));
    Remediation::from(fixes(named)).run(who.chain(policies).map(Command::in_cluster))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;
    use tracer_model::event::PodConnectFailed;

    fn silent(sockets: u32, retransmits: u8) -> Vec<UnansweredConnect> {
        let dst = address("10.96.0.1:443");
        vec![UnansweredConnect { dst, sockets, retransmits }]
    }

    fn unavailable(stream: &mut Stream) -> &mut Stream {
        stream.connect().established().answers(503)
    }

    /// The last verdict of two failures, the pod's sockets read between them.
    fn second(unanswered: Vec<UnansweredConnect>, wait_ms: u64, fail: fn(&mut Stream) -> &mut Stream) -> Verdict {
        let mut stream = Stream::new().http_readiness().clone();
        fail(&mut stream).pod_sockets(|reading| reading.unanswered = unanswered).wait_ms(wait_ms).again(8);
        fail(&mut stream);
        stream.verdicts().pop().expect("a verdict").verdict
    }

    #[test]
    fn it_is_added_to_the_failure_of_a_waiting_application() {
        for (fail, cause) in [
            (unavailable as fn(&mut Stream) -> &mut Stream, Cause::AppStatusFailure),
            (|stream| stream.connect().refused(), Cause::ConnectionRefused),
        ] {
            let verdict = second(silent(2, 3), 10_000, fail);
            assert_eq!((verdict.cause, verdict.also.as_slice()), (cause, [Cause::DependencyUnreachable].as_slice()));
            let words = "; perhaps because the pod itself gets no answer from 10.96.0.1:443 (read 10 s before)";
            assert_has(&verdict.summary, &[words]);
            let fix = verdict.remediation.to_string();
            assert_has(&fix, &[". If the application needs 10.96.0.1:443, see why"]);
        }
    }

    /// Such a status is about the request of the probe. A packet to the pod that is dropped on its way never reached it.
    #[test]
    fn it_is_not_added_to_a_refused_request_or_a_dropped_packet() {
        let second = |fail| second(silent(2, 3), 10_000, fail);
        assert!(second(|stream| stream.connect().established().answers(404)).also.is_empty());
        assert!(second(|stream| stream.connect().established().answers(401)).also.is_empty());
        let busy = second(|stream| stream.connect().established().answers(429));
        assert_eq!(busy.also, [Cause::DependencyUnreachable]);
        let dropped = second(|stream| stream.connect().filtered(SYN, tracer_core::testing::POD).gives_up());
        assert_eq!((dropped.cause, dropped.also.as_slice()), (Cause::FirewallDrop, [].as_slice()));
    }

    #[test]
    fn without_a_recent_unanswered_connect_it_is_not_added() {
        for verdict in [second(Vec::new(), 10_000, unavailable), second(silent(1, 1), 61_000, unavailable)] {
            assert!(verdict.also.is_empty() && !verdict.summary.contains("the pod itself"), "{}", verdict.summary);
        }
    }

    fn pod_connect(dst: &str, errno: i32) -> ObservationKind {
        let dst = address(dst);
        ObservationKind::PodConnectFailed(PodConnectFailed { netns: POD, dst, udp: dst.port() == 53, errno })
    }

    /// The verdict of a failure, these connects of the pod before it.
    fn after(connects: &[(&str, i32)], wait_ms: u64) -> Verdict {
        let mut stream = Stream::new().http_readiness().clone();
        stream.inspection(|_| ());
        connects.iter().for_each(|(dst, errno)| _ = stream.push(pod_connect(dst, *errno)));
        unavailable(stream.wait_ms(wait_ms)).verdicts().pop().expect("a verdict").verdict
    }

    #[test]
    fn the_destinations_to_which_most_connects_fail_are_named() {
        let refused = ("10.96.0.1:443", libc::ECONNREFUSED);
        let verdict = after(&[("10.9.9.9:5432", libc::EHOSTUNREACH), refused, refused], 100);
        assert_eq!(verdict.also, [Cause::DependencyUnreachable]);
        let words = "; perhaps because the pod's own connects fail: to 10.96.0.1:443: Connection refused (os error 111), \
            to 10.9.9.9:5432: No route to host (os error 113)";
        assert_ends(&verdict.summary, words);
        let rows = verdict.evidence.iter().filter(|it| it.hook == "inet_sk_error_report");
        assert_has(&rows.map(|it| it.text.as_str()).collect::<String>(), &["2 connects of the pod to 10.96.0.1:443"]);
        let fix = verdict.remediation.to_string();
        assert_has(
            &fix,
            &["If the application needs 10.96.0.1:443, see why", "If the application needs 10.9.9.9:5432"],
        );
        let (udp, one) = (after(&[("10.96.0.10:53", libc::ECONNREFUSED)], 100), after(&[refused], 100));
        assert_ends(&udp.summary, "connects to 10.96.0.10:53 (UDP) fail: Connection refused (os error 111)");
        assert_ends(&one.summary, "connects to 10.96.0.1:443 fail: Connection refused (os error 111)");
        let old = after(&[refused], 9_000);
        assert_ends(&old.summary, "10.96.0.1:443 fail, the last one 9 s before: Connection refused (os error 111)");
        let both = after(&[refused, ("10.9.9.9:5432", libc::EHOSTUNREACH)], 9_000);
        assert_has(&both.summary, &["to 10.9.9.9:5432: No route to host (os error 113), the last one 9 s before, to"]);
    }

    /// A dead agent for metrics must not hide the database.
    #[test]
    fn silent_destinations_are_named_beside_refused_ones() {
        let mut stream = Stream::new().http_readiness().clone();
        stream.inspection(|_| ());
        for dst in ["10.88.0.1:9125", "10.88.0.1:9125", "10.96.0.7:80", "10.96.0.8:80"] {
            stream.push(pod_connect(dst, libc::ECONNREFUSED));
        }
        let database = vec![UnansweredConnect { dst: address("10.9.9.9:5432"), sockets: 1, retransmits: 2 }];
        unavailable(&mut stream).pod_sockets(|reading| reading.unanswered = database).wait_ms(100).again(8);
        let verdict = unavailable(&mut stream).verdicts().pop().expect("a verdict").verdict;
        let refused = "Connection refused (os error 111)";
        let words = format!(
            "fail: to 10.88.0.1:9125: {refused}, to 10.96.0.7:80: {refused}, to 10.9.9.9:5432: no answer, \
            and to 1 other destination"
        );
        assert_ends(&verdict.summary, &words);
        assert_has(
            &verdict.remediation.to_string(),
            &["needs 10.88.0.1:9125 or 10.96.0.7:80, see", "needs 10.9.9.9:5432"],
        );
    }

    #[test]
    fn an_older_failure_is_only_a_hint() {
        let refused = |wait_ms| after(&[("10.96.0.1:443", libc::ECONNREFUSED)], wait_ms);
        assert_eq!(refused(14_000).also, [Cause::DependencyUnreachable]);
        let silent = second(silent(2, 3), 16_000, unavailable);
        assert_has(&silent.summary, &["; perhaps because the pod itself gets no answer from 10.96.0.1:443 (read 16 s"]);
        let old = refused(16_000);
        assert_has(
            &old.summary,
            &["; perhaps because the pod's own connects to 10.96.0.1:443 fail, the last one 16 s"],
        );
        for hint in [old, silent] {
            assert_eq!((hint.cause, hint.also.as_slice()), (Cause::AppStatusFailure, [].as_slice()));
            assert_has(&hint.remediation.to_string(), &["If the application needs 10.96.0.1:443, see why"]);
        }
    }

    #[test]
    fn usual_and_old_failures_say_nothing() {
        let refused = |dst| after(&[(dst, libc::ECONNREFUSED)], 100).also;
        for dst in ["127.0.0.1:8080", "10.88.0.2:8080", "[::1]:5432"] {
            assert!(refused(dst).is_empty(), "{dst}");
        }
        assert!(!refused("127.0.0.1:5432").is_empty(), "a sidecar");
        assert_lacks(&after(&[("10.96.0.1:443", libc::ECONNREFUSED)], 61_000).summary, &["10.96.0.1"]);
    }

    #[test]
    fn without_a_failed_attempt_it_is_no_cause() {
        let mut stream = Stream::new();
        stream.http_readiness().pod_sockets(|reading| reading.unanswered = silent(1, 3)).connect().established();
        stream.answers(200);
        assert!(stream.causes().is_empty());
    }
}
