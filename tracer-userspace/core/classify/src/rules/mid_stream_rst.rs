//! A RST after the connection was established and before any answer.

use super::closed_without_answer::closed_unread;
use super::*;
use crate::rules::probe_misconfigured::{is_unanswered_grpc, plain_to_tls};
use tracer_attempts::enrich;
use tracer_case::accept_queue::{fullest_queue, make_room, of_queue};
use tracer_case::kubectl::with_log_of_closer;
use tracer_case::reset::{
    Origin, closer, culprit, destroyer, is_close, is_without_room, listener_end, may_be_by_timer, of_target, origin_of,
    sender,
};
use tracer_case::services::{find_taken_port, node_ports_at};
use tracer_case::serving::show_translation;
use tracer_case::sidecar;
use tracer_model::event::{ProbeOutput, ResetSent, TcpState};
use tracer_model::record::Scope;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    by_destroyer(case).or_else(|| by_target(case))
}

/// Another process destroyed the prober's own socket (`ss -K` on the node). The RST goes to the target.
fn by_destroyer(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (time, reset, actor) = destroyer(case)?;
    let after = ms(time.saturating_sub(attempt.established_at()?));
    let summary = format!(
        "{actor} destroyed the socket of {} (SOCK_DESTROY) {after} after the connection to {} was established",
        client_name(attempt),
        attempt.flow.dst
    );
    let fix = format!("Find why {actor} destroys sockets of this node: {DESTROYERS}");
    let found = Finding::failure(Cause::MidStreamRst, vec![of_reset_sent(time, reset)], summary, fix);
    let netns = reset.netns.map(|inum| enrich::netns_ref(inum, case.node));
    let found = found.with_culprit(Some(Culprit::of(actor, "reset", netns, time)));
    Some(Finding { scope: Some(Scope::Node), ..found })
}

const DESTROYERS: &str = "a person ran `ss -K`, or the agent of a CNI or a Service proxy ends connections";

/// The target's end, or something on the way, sent the RST.
pub(super) fn by_target(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    // The state of the socket at the RST proves the handshake, even if the handshake's own event was lost. In CLOSE_WAIT
    // the target's FIN came before, and the RST only answers what the prober sent after it.
    let (at, received) = attempt.reset_received().filter(|(_, r)| r.state == TcpState::Established)?;
    let payload = received.bytes_received;
    let closed_before = matches!(attempt.ended, Some((end, End::ClosedByProber)) if end < at);
    // After some bytes of an answer the RST counts if the kubelet outcome is a network error.
    let partial = payload.is_some_and(|n| n > 0);
    let reported = attempt
        .kubelet()
        .map(|(_, reported)| reported)
        .filter(|reported| partial && reported.reason == ProbeOutput::Network);
    // Whether a request was sent shows at the end of the socket, which follows at once.
    let is_open = attempt.ended.is_none() && !case.settled && case.matched.may_be_tcp();
    let only_connects = case.matched.may_only_connect() || is_open;
    // The RST counts as well if the prober still waited for the rest of the answer.
    let cut = partial && case.matched.is_cut_short();
    if payload.is_none() || closed_before || only_connects || (partial && reported.is_none() && !cut) {
        return None;
    }
    // `closed_without_answer` takes it at the end of the socket. Until then, the case may not be settled.
    let is_cut_off = closed_unread(case).is_some() && attempt.ended.map_or(!case.settled, |(_, end)| end == End::Reset);
    let is_misconfigured = plain_to_tls(case).is_some() || (is_unanswered_grpc(case) && is_close(case));
    if case.matched.is_no_answer() || is_misconfigured || is_cut_off {
        return None;
    }
    // On a loopback path the RST is delivered before the hook reports its sender.
    let sent = of_target(attempt);
    if sent.is_none() && !case.settled {
        return None;
    }
    let mut evidence = vec![of_reset_received(at, received)];
    evidence.extend(sent.map(|(time, reset)| of_reset_sent(time, reset)));
    evidence.extend(reported.map(of_outcome));
    let without_room = sent.filter(|(_, reset)| is_without_room(reset)).and_then(|_| fullest_queue(case));
    evidence.extend(without_room.map(|(time, _, listener)| of_queue(time, listener)));
    let lacks_hook = sent.is_none() && case.lacks(REFUSAL_HOOKS);
    let (unseen, unseen_fix) =
        if lacks_hook { (SENDER_UNKNOWN, Origin::Stack) } else { (SENDER_ELSEWHERE, Origin::Outside) };
    let listener_end = sent.and_then(|(time, reset)| listener_end(case, time, reset));
    let who = sent.map_or_else(|| unseen.to_owned(), |(_, reset)| sender(case, reset, listener_end));
    let after = attempt.established_at().map(|established| ms(at.saturating_sub(established)));
    let summary = format!(
        "{} reset the connection{} after it was established, {}; {who}",
        attempt.flow.dst,
        after.map(|after| format!(" {after}")).unwrap_or_default(),
        match (partial, has_handshake(case)) {
            (true, true) => "before its answer was complete",
            (true, false) => "in the middle of its answer",
            (false, _) => "before any answer",
        }
    );
    let fix = sent.map_or(unseen_fix, |(_, reset)| origin_of(reset, listener_end.is_some()));
    let remediation = remediation_of(case, fix, sent);
    let remediation = match fix {
        Origin::Destroyed => remediation,
        _ => with_log_of_closer(case, sent.and_then(|(_, it)| closer(it)), fix == Origin::Ended, remediation),
    };
    let found = Finding::failure(Cause::MidStreamRst, evidence, summary, remediation);
    let unsure = partial && !cut || sent.is_some_and(|(_, reset)| may_be_by_timer(reset));
    let found = if unsure { found.with_confidence(Confidence::Likely) } else { found };
    let found = if case.matched.is_perhaps_tcp() { or_succeeded(found) } else { found };
    let found =
        sidecar::add_node_port(case, found).with_culprit(sent.and_then(|(time, reset)| culprit(case, time, reset)));
    let mut found = Finding { waits_for_listener: fix == Origin::Unread, ..of_collision(case, sent, found) };
    found.evidence.extend(listener_end.map(|(time, listen)| of_listener(*time, listen)));
    Some(if lacks_hook { Finding { rests_on: REFUSAL_HOOKS, ..found } } else { found })
}

/// The RST of a listener answers a segment of a connection that it does not have. If the source port is a NodePort, the
/// rules for that port may have translated packets of this connection.
fn of_collision(case: &Case<'_>, sent: Option<(u64, &ResetSent)>, found: Finding) -> Finding {
    let src = case.attempt.flow.src;
    let by_listener = sent.is_some_and(|(_, reset)| reset.actor.is_none() && reset.state == Some(TcpState::Listen));
    if !by_listener || node_ports_at(case, src).next().is_none() {
        return found;
    }
    let summary = format!(
        "{}; {}, the source port, is a NodePort: its rules may have led packets of this connection elsewhere",
        found.summary,
        src.port()
    );
    Finding { summary, remediation: find_taken_port(case), scope: Some(Scope::Node), ..found }
        .at_most(Confidence::Likely)
}

/// Of the probes of that port, one sends no request. If it was that one, it had succeeded.
fn or_succeeded(found: Finding) -> Finding {
    let summary =
        format!("{}; it had sent nothing: if it was the tcpSocket probe of that port, it succeeded", found.summary);
    Finding { summary, ..found }.at_most(Confidence::Likely)
}

const SENDER_ELSEWHERE: &str =
    "a process behind an address translation (a proxy or the application), or a device on the way, sent it";

const SENDER_UNKNOWN: &str =
    "the sender is unknown: no hook of this kernel reports a RST of a stack that has no socket for the segment";

/// Documentation/networking/ip-sysctl.rst. Without it, `inet_csk_listen_stop` resets what waits in the queue.
const HANDED_OVER: &str = ". If it handed the port over (a reload): let it accept and answer what waits in its queue before it closes its listener. Or set net.ipv4.tcp_migrate_req to 1 in the pod (Linux 5.14 and later): the kernel then gives what waits to the other listener";

fn remediation_of(case: &Case<'_>, fix: Origin, sent: Option<(u64, &ResetSent)>) -> Remediation {
    let reset = sent.map(|(_, reset)| reset);
    let end = sent.and_then(|(time, reset)| listener_end(case, time, reset));
    let successor = end.and_then(|end| case.node.successor(end, case.attempt.flow.dst));
    let handed_over = if successor.is_some() { HANDED_OVER } else { "" };
    let who = reset.and_then(|reset| reset.actor.as_ref());
    let who = who.map_or_else(|| "the target".to_owned(), ToString::to_string);
    let text = match fix {
        Origin::Outside => {
            let text = "Find who sent it: the source of the answer in the connection's conntrack entry. Then read the log of that process, proxy or load balancer";
            return Remediation::from(text).run(show_translation(case));
        }
        Origin::Ended => format!("Find why {who} ended: read its log of that moment, and how the container's run ended{handed_over}"),
        Origin::Unread => format!("Find why {who} closes connections without having read what was sent: a handler that gives up early, a limit, or the end of the process"),
        Origin::Linger => format!("Find why {who} closes this connection with SO_LINGER 0: TCP then resets the connection and loses data that was not sent. Let it close normally, after its answer"),
        Origin::Destroyed => format!("Find why {who} destroys sockets of the target: {DESTROYERS}"),
        Origin::Process => format!("Find why {who} closed the connection at that moment: with unread data, with SO_LINGER 0, or because it ended; this kernel does not show which"),
        Origin::Room => return make_room(case, reset.and_then(|reset| reset.netns)),
        Origin::Stack => "Find what happened to the target's end of the connection: its process ended or closed it before. Or an address translation mixed in packets of another connection".to_owned(),
    };
    text.into()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    const ACK: TcpFlags = TcpFlags(0x10);

    /// The kernel skips a program if the same program is already running on that CPU: the event of the handshake is lost.
    /// The state at the RST proves it.
    #[test]
    fn a_rst_before_any_answer_names_its_sender() {
        let reset = |stream: &mut Stream| {
            stream.reset_sent(TcpFlags(0), false, Some("app"));
            assert_eq!(stream.causes(), ["mid_stream_rst"]);
            stream.verdicts().remove(0)
        };
        let seen = reset(Stream::new().connect().established().resets((100, 101, 0)));
        assert_eq!(seen.culprit.map(|it| it.comm).as_deref(), Some("app"));
        let unseen = reset(Stream::new().connect().reset_received(TcpState::Established, 0));
        assert_has(&unseen.verdict.summary, &["reset the connection after it was established"]);
    }

    /// The kubelet's `net.Dialer` has returned by then, and the probe has succeeded.
    #[test]
    fn a_rst_after_a_mere_connect_is_no_sure_failure_if_it_may_be_a_tcp_probe() {
        let decided = |known: fn(&mut Stream), sent: u64| {
            let mut stream = Stream::new();
            known(&mut stream);
            stream.connect().established().wait_ms(5).reset_sent(TcpFlags(0), false, Some("app"));
            stream.resets((sent, sent + 1, 0)).wait_ms(600).tick().all_decided()
        };
        let both: fn(&mut Stream) = |stream| _ = stream.tcp_readiness().http_liveness_too();
        let http: fn(&mut Stream) = |stream| _ = stream.http_readiness();
        let unlisted: fn(&mut Stream) = |_| ();
        let proven = ("mid_stream_rst", Confidence::Proven);
        assert!(decided(unlisted, 0).is_empty());
        assert_eq!(decided(both, 0), [("mid_stream_rst", Confidence::Likely)]);
        assert_eq!(decided(http, 0), [proven]);
        for known in [both, http, unlisted] {
            assert_eq!(decided(known, 100), [proven]);
        }
    }

    /// `ss -K` on the node, and Cilium when it ends connections.
    #[test]
    fn a_process_that_destroys_the_probers_socket_is_named() {
        let decided = |pid: u32, errno: i32| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).connect().established().wait_ms(20).clone();
            let sent = stream.reset_sent(TcpFlags(0), false, Some("ss")).last_reset_sent();
            (sent.flow, sent.state, sent.netns) = (sent.flow.reversed(), Some(TcpState::Established), Some(NODE));
            sent.actor.iter_mut().for_each(|actor| actor.pid = pid);
            stream.state(TcpState::Established, TcpState::Close, errno, (100, 101, 0)).settles();
            stream.verdicts().remove(0)
        };
        let found = decided(99, libc::ECONNABORTED);
        assert_eq!((found.verdict.cause, found.verdict.confidence), (Cause::MidStreamRst, Confidence::Proven));
        assert_eq!((found.scope, found.culprit.map(|it| it.pid)), (Some(Scope::Node), Some(99)));
        assert_starts(&found.verdict.summary, "ss (pid 99) destroyed the socket of the prober (SOCK_DESTROY) 20");
        assert_has(&found.verdict.remediation, &["Find why ss (pid 99) destroys sockets of this node"]);
        for other in [decided(prober().pid, libc::ECONNABORTED), decided(99, libc::ETIMEDOUT)] {
            assert_eq!(other.verdict.cause, Cause::Unexplained);
        }
    }

    #[test]
    fn the_fix_fits_the_kernels_reason() {
        let decided = |reason: Option<&str>, actor: Option<&str>| {
            let mut stream = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
            stream.reset_sent(TcpFlags(0), false, actor);
            stream.last_reset_sent().reason = reason.map(str::to_owned);
            let verdict = stream.verdict();
            (verdict.summary, verdict.remediation)
        };
        let (summary, fix) = decided(Some("TCP_ABORT_ON_LINGER"), Some("app"));
        assert_has(&summary, &["closed it with SO_LINGER 0"]);
        assert_has(&fix, &["SO_LINGER 0"]);
        assert_lacks(&fix, &["read", "killed"]);
        assert_has(&decided(None, Some("app")).1, &["does not show which"]);
        // Before Linux 6.12, the socket's counters show it.
        let mut read = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
        read.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().unread = Some(false);
        assert_has(&read.verdict().summary, &["closed it with SO_LINGER 0"]);
        assert_has(&decided(None, None).1, &["the target's end of the connection"]);
    }

    /// Seen on 6.18: envoy took the connection by TPROXY and reset it, and the application listens on that port.
    #[test]
    fn the_log_is_that_of_the_container_which_closed() {
        let fix = |closer: &str, folder: Option<&str>| {
            let mut stream = Stream::new().http_readiness().container_id("c1").container_too("istio-proxy").clone();
            stream.last_pods().pods[0].containers[1].id = Some("c2".into());
            stream.connect().established().wait_ms(300);
            let processes = folder.map(|it| ServerProcess { cpu_cgroup: Some(it.into()), ..server_process(99, 1) });
            stream.serving(Serving { processes: processes.into_iter().collect(), ..Serving::default() });
            stream.reset_sent(TcpFlags(0), false, Some(closer)).resets((100, 101, 0));
            let server = Listener { pid: 8, comm: "app".into() };
            let processes = vec![AcceptingProcess { server, pod_uid: None, container: Some("c1".into()) }];
            let acceptor = Some(Acceptor { to: None, netns: POD, processes });
            let verdict = stream.wait_ms(5).pod_sockets(|it| it.acceptor = acceptor).wait_ms(600).tick().verdict();
            assert_eq!(verdict.cause, Cause::MidStreamRst);
            verdict.remediation
        };
        assert_has(&fix("app", None), &["kubectl logs -n default web -c app "]);
        assert_lacks(&fix("envoy", None), &["kubectl logs"]);
        assert_has(&fix("envoy", Some("/kubepods/cri-containerd-c2.scope")), &["logs -n default web -c istio-proxy "]);
    }

    /// kube-proxy's rules for the NodePort took packets that conntrack did not know.
    #[test]
    fn a_listener_that_resets_a_connection_from_a_node_port_may_not_have_it() {
        let reported = |port: u16| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).node_port(ProxyMode::Nftables, port, &["10.88.0.3:8080"]);
            stream.connect().established().reset_received(TcpState::Established, 0);
            stream.reset_sent(ACK, false, None).last_reset_sent().reason = Some("TCP_FLAGS".into());
            stream.verdicts().remove(0)
        };
        let taken = reported(40_000);
        assert_eq!((taken.scope, taken.verdict.confidence), (Some(Scope::Node), Confidence::Likely));
        assert_has(&taken.verdict.summary, &["40000, the source port, is a NodePort"]);
        assert_has(
            &taken.verdict.remediation,
            &["net.ipv4.ip_local_reserved_ports", "conntrack -L -p tcp --dport 40000"],
        );
        let other = reported(40_001);
        assert_eq!((other.scope, other.verdict.confidence), (Some(Scope::Application), Confidence::Proven));
    }

    /// On a 5.10 kernel where no program can attach to a function. The process may have been gone when the request
    /// arrived.
    #[test]
    fn without_the_hook_for_a_rst_no_device_on_the_way_is_blamed() {
        let decided = |missing: Hook| {
            Stream::new().missing(missing).connect().established().resets((100, 101, 0)).settles().verdict()
        };
        let unknown = decided(Hook::TcpV4SendReset);
        assert_eq!((unknown.confidence, unknown.missing_hooks.len()), (Confidence::Likely, 1));
        assert_has(&unknown.summary, &["sender is unknown"]);
        assert_has(&unknown.remediation, &["target's end"]);
        let outside = decided(Hook::TcpV6SendReset);
        assert_has(&outside.summary, &["a device on the way"]);
        assert_has(&outside.remediation, &["proxy"]);
    }

    /// The header came in one segment, and the RST while the prober waited for the body.
    #[test]
    fn a_rst_while_the_prober_waits_for_the_body_is_in_the_middle() {
        let decided_with = |after_ms: u64, len: Option<u16>, status: u16, unread: Option<u32>| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream.answer_with(AnswerKind::Http, Some(status), |it| it.len = len).wait_ms(after_ms);
            stream.reset_received(TcpState::Established, 80).last_reset_received().unread = unread;
            stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, 80));
            stream.reset_sent(TcpFlags(0), false, Some("app")).settles();
            let first = stream.verdicts().into_iter().next().map(|it| it.verdict);
            first.map(|it| (it.cause.name(), it.confidence, it.summary.contains("in the middle of its answer")))
        };
        let decided = |after_ms, len, status| decided_with(after_ms, len, status, Some(0));
        assert_eq!(decided(50, Some(80), 200), Some(("mid_stream_rst", Confidence::Proven, true)));
        assert_eq!(decided_with(50, Some(80), 200, Some(80)), None, "a busy prober has not read it, and still can");
        assert_eq!(decided(0, Some(80), 200), None, "right after a whole answer");
        assert_eq!(decided(50, Some(40), 200), None, "more bytes came at an unknown time");
        assert_eq!(decided(50, None, 200), None, "an older recording");
        assert_eq!(decided(50, Some(80), 503), Some(("mid_stream_rst", Confidence::Proven, true)));
        assert_eq!(decided(0, Some(80), 503).map(|it| it.0), Some("app_status_failure"));
    }

    /// The server closes a connection without a request with SO_LINGER 0. A tcpSocket probe has succeeded by then.
    #[test]
    fn a_rst_after_the_connect_of_a_tcp_probe_needs_the_kubelet_outcome() {
        let reset = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().wait_ms(20).reset_sent(TcpFlags(0), false, Some("app"));
            stream.resets((0, 1, 0)).wait_ms(1);
            stream
        };
        assert!(reset(Stream::tcp_readiness).tick().causes().is_empty());
        assert_eq!(reset(Stream::tcp_readiness).kubelet(ProbeOutput::Network).causes(), ["mid_stream_rst"]);
        assert_eq!(reset(Stream::http_readiness).tick().causes(), ["mid_stream_rst"], "before its request");
    }

    #[test]
    fn a_rst_after_the_connect_of_a_tcp_probe_is_no_success() {
        let mut stream = Stream::new().tcp_readiness().clone();
        for conn in [8, 9, 10] {
            stream.again(conn).connect();
            if conn == 9 {
                stream.established().resets((0, 1, 0));
            } else {
                stream.reset_sent(SYN, true, None).state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0));
            }
            stream.wait_ms(10_000).tick();
        }
        assert_eq!(stream.in_a_row(), [Some(1), Some(2)]);
    }

    /// Another probe of the port connected in the same second, and succeeded.
    #[test]
    fn the_kubelet_outcome_belongs_to_the_connection_that_was_reset() {
        let mut stream = Stream::new();
        stream.tcp_readiness().connect().established().reset_sent(TcpFlags(0), false, Some("app")).resets((0, 1, 0));
        stream.again(9).connect().established().closes((0, 1, 0));
        assert_eq!(stream.wait_ms(1).kubelet(ProbeOutput::Network).causes(), ["mid_stream_rst"]);
    }

    #[test]
    fn a_rst_in_the_middle_of_an_answer_needs_the_kubelet_outcome() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().established().reset_received(TcpState::Established, 200);
        stream
            .state(TcpState::Established, TcpState::Close, 104, (100, 101, 200))
            .wait_ms(1)
            .kubelet(ProbeOutput::Network);
        let verdicts = stream.verdicts();
        assert_eq!(stream.causes(), ["mid_stream_rst"]);
        assert_has(&verdicts[0].verdict.summary, &["in the middle of its answer"]);
    }
}
