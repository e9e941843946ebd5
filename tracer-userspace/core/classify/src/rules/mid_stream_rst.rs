//! A RST after the connection was established and before any answer.

use super::super::services::node_ports_at;
use super::super::sidecar;
use super::accept_queue_overflow::{fullest_queue, make_room, of_queue};
use super::app_status_failure::shows_certificate;
use super::closed_without_answer::{process_ended_text, why_ended};
use super::probe_misconfigured::{is_unanswered_grpc, plain_to_tls};
use super::unexplained::find_taken_port;
use super::*;
use tracer_attempts::enrich;
use tracer_model::event::{Actor, Listen, ProbeOutput, ResetSent, TcpState};
use tracer_model::record::Scope;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
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
    let only_connects = case.matched.only_connects();
    // The RST counts as well if the prober still waited for the rest of the answer.
    let cut = partial && case.matched.is_cut_short();
    if payload.is_none() || closed_before || only_connects || (partial && reported.is_none() && !cut) {
        return None;
    }
    let is_misconfigured = plain_to_tls(case).is_some() || (is_unanswered_grpc(case) && is_close(case));
    if case.matched.is_no_answer() || is_misconfigured {
        return None;
    }
    // On a loopback path the RST is delivered before the hook reports its sender.
    let sent = attempt.resets_sent().find(|(_, r)| r.flow.src == attempt.flow.dst);
    if sent.is_none() && !case.settled {
        return None;
    }
    let mut evidence = vec![of_reset_received(at, received)];
    evidence.extend(sent.map(|(time, reset)| of_reset_sent(time, reset)));
    evidence.extend(reported.map(of_outcome));
    let without_room = sent.filter(|(_, reset)| is_without_room(reset)).and_then(|_| fullest_queue(case));
    evidence.extend(without_room.map(|(time, _, listener)| of_queue(time, listener)));
    let lacks_hook = sent.is_none() && case.lacks(REFUSAL_HOOKS);
    let (unseen, unseen_fix) = if lacks_hook { (SENDER_UNKNOWN, Fix::Stack) } else { (SENDER_ELSEWHERE, Fix::Outside) };
    let listener_end = sent.and_then(|(time, reset)| listener_end(case, time, reset));
    let who = sent.map_or_else(|| unseen.to_owned(), |(_, reset)| sender(case, reset, listener_end));
    let summary = format!(
        "{} reset the connection{} after it was established, {}; {who}",
        attempt.flow.dst,
        attempt
            .established_at()
            .map(|established| format!(" {}", ms(at.saturating_sub(established))))
            .unwrap_or_default(),
        match (partial, has_handshake(case)) {
            (true, true) => "before its answer was complete",
            (true, false) => "in the middle of its answer",
            (false, _) => "before any answer",
        }
    );
    let fix = sent.map_or(unseen_fix, |(_, reset)| fix_of(reset, listener_end.is_some()));
    let mut remediation = remediation_of(case, fix, sent);
    if let Some(text) = other_protocol(case).filter(|_| fix == Fix::Unread && !partial) {
        remediation.text += text;
        remediation.text += OR_PROXIED;
        remediation.commands.push(shows_certificate(attempt.flow.dst));
    }
    let remediation = if fix.is_elsewhere() { remediation } else { with_log(case, remediation) };
    let found = Finding::failure(Cause::MidStreamRst, evidence, summary, remediation);
    let unsure = partial && !cut || sent.is_some_and(|(_, reset)| may_be_by_timer(reset));
    let found = if unsure { found.with_confidence(Confidence::Likely) } else { found };
    let found =
        sidecar::add_node_port(case, found).with_culprit(sent.and_then(|(time, reset)| culprit(case, time, reset)));
    let mut found = Finding { waits_for_listener: fix == Fix::Unread, ..of_collision(case, sent, found) };
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

/// The target closed the connection: a close with unread data sends a RST, and so does data after a close (RFC 9293
/// 3.10.4, 3.10.7.1). A RST is no close if a queue had no room, the listener had not accepted, or SO_LINGER 0 was set.
pub(super) fn is_close(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let Some((_, received)) = attempt.reset_received() else { return false };
    if received.state == TcpState::CloseWait {
        return true;
    }
    let sent = attempt.resets_sent().find(|(_, r)| r.flow.src == attempt.flow.dst);
    let is_unread = |reset: &ResetSent| reset.reason.as_deref() == Some("TCP_ABORT_ON_CLOSE");
    let is_ended = |time, reset| listener_end(case, time, reset).is_some();
    sent.is_some_and(|(time, reset)| is_unread(reset) || fix_of(reset, is_ended(time, reset)) == Fix::Process)
}

/// OpenSSL stops reading a request as soon as its first bytes show that it is no ClientHello. A server that has read all
/// of it closes with a FIN.
pub(super) const OR_SPEAKS_TLS: &str =
    ". Or the port speaks TLS, and its server closes connections with plain HTTP. Then set the probe's scheme to HTTPS";

fn other_protocol(case: &Case<'_>) -> Option<&'static str> {
    let in_tls = case.matched.may_find_no_tls().then_some(OR_SPEAKS_NO_TLS);
    if case.matched.may_find_no_http() { Some(OR_SPEAKS_TLS) } else { in_tls }
}

/// A server that expects a request of another protocol stops reading the ClientHello in the same way.
const OR_SPEAKS_NO_TLS: &str =
    ". Or the port may not speak TLS (the command then shows no certificate). Then set the probe's scheme to HTTP";

/// Such a server closes as soon as the first bytes are no header of that protocol.
const OR_PROXIED: &str = ". Or it expects the PROXY protocol. Then probe another port of it";

const SENDER_ELSEWHERE: &str = "a proxy behind an address translation, or a device on the way, sent it";

const SENDER_UNKNOWN: &str =
    "the sender is unknown: no hook of this kernel reports a RST of a stack that has no socket for the segment";

/// `ended`: its listener ended at the same time.
fn sender(case: &Case<'_>, reset: &ResetSent, ended: Option<&(u64, Listen)>) -> String {
    if is_without_room(reset) {
        return text_without_room(case, reset);
    }
    let who = match (closer(reset), reset.no_socket) {
        (Some(actor), _) if is_destroyed(reset) => return text_destroyed(reset, actor),
        (Some(actor), _) => format!("process {actor}"),
        (None, true) => "its kernel no longer has a socket for it".to_owned(),
        (None, false) if reset.actor.is_some() => "its kernel gave it up".to_owned(),
        (None, false) => "its kernel, for a segment that did not fit the socket".to_owned(),
    };
    let how = match (ended, reset.reason.as_deref()) {
        (Some(end), Some("TCP_ABORT_ON_CLOSE")) => format!("{}{}", close_text(reset), process_ended_text(case, end)),
        (Some(end), Some(_)) => format!("{ENDED_BEFORE_ACCEPT}: {}", why_ended(case, end)),
        (Some(end), None) => format!("{ENDED_WITH_RST}: {}", why_ended(case, end)),
        (None, _) => close_text(reset),
    };
    format!("{who}{how}")
}

/// Who closed or destroyed the socket. The kernel gives other reasons to a RST of its timers (`tcp_keepalive_timer`,
/// `tcp_out_of_resources`), except to that of an orphan in FIN_WAIT2; the prober is in CLOSE_WAIT then. Timers run in the
/// context of any process. That of the idle task, pid 0, is always the kernel itself.
pub(in super::super) fn closer(reset: &ResetSent) -> Option<&Actor> {
    let by_process = !is_open(reset) || matches!(reset.reason.as_deref(), Some("TCP_STATE") | None);
    reset.actor.as_ref().filter(|actor| by_process && actor.pid != 0)
}

/// A close sets the state to CLOSE before it sends a RST (`__tcp_close`, `tcp_disconnect`).
fn is_open(reset: &ResetSent) -> bool {
    reset.actor.is_some() && reset.state.is_some_and(|state| state != TcpState::Close)
}

/// Any process with the right can destroy a socket (`tcp_abort`).
fn is_destroyed(reset: &ResetSent) -> bool {
    is_open(reset) && closer(reset).is_some()
}

/// Before 6.12 the kernel gives no reason that tells a destroyed socket from a timer.
fn may_be_by_timer(reset: &ResetSent) -> bool {
    is_destroyed(reset) && reset.reason.is_none()
}

fn text_destroyed(reset: &ResetSent, actor: &Actor) -> String {
    let or_timer = if may_be_by_timer(reset) { ", or its kernel gave it up" } else { "" };
    format!("process {actor} destroyed its socket (SOCK_DESTROY){or_timer}")
}

/// With `tcp_abort_on_overflow` a listener resets a handshake if its last segment finds no room (`listen_overflow` in
/// net/ipv4/tcp_minisocks.c). From 6.12 on the kernel then gives the reason INVALID_SYN. Older kernels give no reason,
/// and reset an ACK without a pending handshake in the same way.
fn is_without_room(reset: &ResetSent) -> bool {
    let at_listener = !reset.no_socket && reset.actor.is_none() && reset.state == Some(TcpState::Listen);
    at_listener && reset.answered.is_ack() && matches!(reset.reason.as_deref(), None | Some("INVALID_SYN"))
}

/// Why the listener had no room. The kernel also refuses the last segment if it has no memory for the new socket.
fn text_without_room(case: &Case<'_>, reset: &ResetSent) -> String {
    let why = match (fullest_queue(case), &reset.reason) {
        (Some((.., queue)), reason) => format!(
            "its accept queue is full ({} waiting, {} allowed) and {}net.ipv4.tcp_abort_on_overflow is 1",
            queue.waiting,
            queue.backlog,
            if reason.is_some() { "" } else { "most likely " }
        ),
        (None, Some(_)) => {
            "net.ipv4.tcp_abort_on_overflow is 1, and its accept queue was most likely full".to_owned()
        }
        (None, None) => "most likely its accept queue was full and net.ipv4.tcp_abort_on_overflow is 1 (else a SYN cookie was not valid, or the handshake was given up before)".to_owned(),
    };
    format!("its listener refused the last segment of the handshake: {why}")
}

const ENDED_BEFORE_ACCEPT: &str = " closed its listener before it had accepted this connection";
/// Without a kernel reason (before 6.12) the process may also have accepted the connection and left data unread.
const ENDED_WITH_RST: &str = " closed its listener at the same time";
/// Documentation/networking/ip-sysctl.rst. Without it, `inet_csk_listen_stop` resets what waits in the queue.
const HANDED_OVER: &str = ". If it handed the port over (a reload): let it accept and answer what waits in its queue before it closes its listener. Or set net.ipv4.tcp_migrate_req to 1 in the pod (Linux 5.14 and later): the kernel then gives what waits to the other listener";

/// The listener ended together with the RST if less time than this is between them. One call does both
/// (`inet_csk_listen_stop`).
const TOGETHER_NS: u64 = 100_000_000;

/// The end of the listener of the process that sent the RST, at the same time. A listener that closes resets the
/// connections in its queue; the kernel gives the same reason as for SO_LINGER 0. A process that ends resets those that it
/// has not read, too.
fn listener_end<'a>(case: &Case<'a>, time: u64, reset: &ResetSent) -> Option<&'a (u64, Listen)> {
    let actor = closer(reset).filter(|_| !is_destroyed(reset))?;
    let fits = |at: u64| match reset.reason.as_deref() {
        Some("TCP_ABORT_ON_LINGER") => false,
        Some("TCP_ABORT_ON_CLOSE") | None => true,
        // The listener is closed first, and then its queue.
        Some(_) => at <= time,
    };
    let mut ends = case.node.listener_ends(reset.netns?, case.attempt);
    ends.find(|(at, listen)| listen.actor.pid == actor.pid && at.abs_diff(time) < TOGETHER_NS && fits(*at))
}

/// How the socket was closed, by the kernel's reason (include/net/rstreason.h, 6.12 and later; both seen on 6.18).
fn close_text(reset: &ResetSent) -> String {
    match reset.reason.as_deref() {
        Some("TCP_ABORT_ON_CLOSE") => " closed it with unread data".to_owned(),
        Some("TCP_STATE" | "TCP_ABORT_ON_LINGER") => " closed it with SO_LINGER 0".to_owned(),
        Some(other) => format!(", kernel reason {other}"),
        None => String::new(),
    }
}

/// Which fix applies, by what is known about the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fix {
    /// The sender is not on this node, or is behind an address translation.
    Outside,
    /// Its listener ended.
    Ended,
    /// Data was left unread.
    Unread,
    /// SO_LINGER 0.
    Linger,
    /// A process destroyed the socket.
    Destroyed,
    /// A process closed the connection, and the kernel does not show how.
    Process,
    /// The listener had no room for the connection.
    Room,
    /// The target's kernel, outside of any process.
    Stack,
}

impl Fix {
    /// The log of the pod does not help.
    const fn is_elsewhere(self) -> bool {
        matches!(self, Self::Outside | Self::Destroyed)
    }
}

fn fix_of(reset: &ResetSent, is_ended: bool) -> Fix {
    match reset.reason.as_deref() {
        _ if is_without_room(reset) => Fix::Room,
        _ if closer(reset).is_none() => Fix::Stack,
        _ if is_destroyed(reset) => Fix::Destroyed,
        _ if is_ended => Fix::Ended,
        Some("TCP_ABORT_ON_CLOSE") => Fix::Unread,
        Some("TCP_STATE" | "TCP_ABORT_ON_LINGER") => Fix::Linger,
        _ => Fix::Process,
    }
}

fn remediation_of(case: &Case<'_>, fix: Fix, sent: Option<(u64, &ResetSent)>) -> Remediation {
    let reset = sent.map(|(_, reset)| reset);
    let end = sent.and_then(|(time, reset)| listener_end(case, time, reset));
    let successor = end.and_then(|end| case.node.successor(end, case.attempt.flow.dst));
    let handed_over = if successor.is_some() { HANDED_OVER } else { "" };
    let who = reset.and_then(|reset| reset.actor.as_ref());
    let who = who.map_or_else(|| "the target".to_owned(), ToString::to_string);
    let text = match fix {
        Fix::Outside => "Check the proxy, load balancer or address translation on the way to the target, and the process behind it".to_owned(),
        Fix::Ended => format!("Find why {who} ended: read its log of that moment, and how the container's run ended{handed_over}"),
        Fix::Unread => format!("Find why {who} closes connections without having read what was sent: a handler that gives up early, a limit, or the end of the process"),
        Fix::Linger => format!("Find why {who} closes this connection with SO_LINGER 0: TCP then resets the connection and loses data that was not sent. Let it close normally, after its answer"),
        Fix::Destroyed => format!("Find why {who} destroys sockets of the target: a person ran `ss -K`, or the agent of a CNI or a Service proxy ends connections"),
        Fix::Process => format!("Find why {who} closed the connection at that moment: with unread data, with SO_LINGER 0, or because it ended; this kernel does not show which"),
        Fix::Room => return make_room(case, reset.and_then(|reset| reset.netns)),
        Fix::Stack => "Find what happened to the target's end of the connection: its process ended or closed it before. Or an address translation mixed in packets of another connection".to_owned(),
    };
    text.into()
}

fn culprit(case: &Case<'_>, time: u64, reset: &ResetSent) -> Option<Culprit> {
    let netns = reset.netns.map(|inum| enrich::netns_ref(inum, case.node));
    let closer = closer(reset).filter(|_| !may_be_by_timer(reset))?;
    Some(Culprit::of(closer, "reset", netns, time))
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
        let (_, unread) = decided(Some("TCP_ABORT_ON_CLOSE"), Some("app"));
        assert_has(&unread, &["without having read"]);
        assert_lacks(&unread, &["LINGER"]);
        assert_has(&decided(None, Some("app")).1, &["does not show which"]);
        assert_has(&decided(None, None).1, &["the target's end of the connection"]);
    }

    /// A close sets the state to CLOSE before the RST. `ss -K` does not, and any process can run during a timer.
    #[test]
    fn a_rst_of_a_socket_that_was_open_is_no_close() {
        let decided = |state, reason: Option<&str>| {
            let mut stream = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
            let sent = stream.reset_sent(TcpFlags(0), false, Some("ss")).last_reset_sent();
            (sent.state, sent.reason) = (Some(state), reason.map(str::to_owned));
            let found = stream.verdicts().remove(0);
            let verdict = found.verdict;
            assert_eq!(verdict.cause, Cause::MidStreamRst);
            (verdict.summary, verdict.remediation, verdict.confidence, found.culprit.is_some())
        };
        let (summary, fix, confidence, named) = decided(TcpState::Established, Some("TCP_STATE"));
        assert_ends(&summary, "destroyed its socket (SOCK_DESTROY)");
        assert_has(&fix, &["destroys sockets of the target"]);
        assert_eq!((confidence, named), (Confidence::Proven, true));
        assert_ends(&decided(TcpState::Close, Some("TCP_STATE")).0, "closed it with SO_LINGER 0");
        let (summary, _, confidence, named) = decided(TcpState::CloseWait, None);
        assert_ends(&summary, "destroyed its socket (SOCK_DESTROY), or its kernel gave it up");
        assert_eq!((confidence, named), (Confidence::Likely, false));
        let (summary, _, _, named) = decided(TcpState::Established, Some("TCP_KEEPALIVE_TIMEOUT"));
        assert_ends(&summary, "; its kernel gave it up, kernel reason TCP_KEEPALIVE_TIMEOUT");
        assert!(!named);
        let mut idle = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
        let sent = idle.reset_sent(TcpFlags(0), false, Some("swapper/0")).last_reset_sent();
        sent.state = Some(TcpState::Established);
        sent.actor.iter_mut().for_each(|actor| actor.pid = 0);
        let found = idle.verdicts().remove(0);
        assert_ends(&found.verdict.summary, "; its kernel gave it up");
        assert!(found.culprit.is_none());
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

    /// OpenSSL closes after a few bytes of a plain HTTP request.
    #[test]
    fn a_server_that_does_not_read_the_request_may_speak_the_other_protocol() {
        let fix = |probed: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().reset_received(TcpState::Established, 0);
            stream.reset_sent(TcpFlags(0), false, Some("app"));
            stream.last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".to_owned());
            stream.verdict().remediation
        };
        assert_has(
            &fix(Stream::http_readiness),
            &["Or the port speaks TLS", "PROXY protocol", "openssl s_client -connect 10.88.0.2:8080"],
        );
        let https = fix(Stream::https_readiness);
        assert_has(&https, &["Or the port may not speak TLS", "scheme to HTTP", "openssl s_client"]);
        assert_lacks(&fix(|stream| stream), &["TLS"]);
        let answered = fix(|it| it.http_readiness().connect().established().answers(200).wait_ms(9_000).again(8));
        assert_lacks(&answered, &["TLS"]);
    }

    /// `net.ipv4.tcp_abort_on_overflow`: the queue filled up between the SYN and the last segment of the handshake.
    #[test]
    fn a_listener_that_resets_the_end_of_a_handshake_has_no_room() {
        let decided = |reason: Option<&str>, answered: TcpFlags, full: bool| {
            let mut stream = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
            if full {
                stream.inspection(|reading| reading.listeners = Some(vec![listener(2, 1)]));
            }
            stream.reset_sent(answered, false, None);
            stream.last_reset_sent().reason = reason.map(str::to_owned);
            assert_eq!(stream.causes(), ["mid_stream_rst"]);
            stream.verdict()
        };
        let (setting, room) = ("net.ipv4.tcp_abort_on_overflow is 1", "raise its listen backlog");
        let old = decided(None, ACK, false);
        assert_has(&old.summary, &["most likely its accept queue", "SYN cookie"]);
        let new = decided(Some("INVALID_SYN"), ACK, false);
        assert!(new.summary.contains(setting) && new.summary.ends_with("most likely full"), "{new:?}");
        assert!(old.remediation.to_string().contains(room) && new.remediation.to_string().contains(room), "{new:?}");
        assert_eq!(new.confidence, Confidence::Proven, "the RST is proven");
        let verdict = decided(None, ACK, true);
        assert!(
            verdict.summary.contains("is full (2 waiting, 1 allowed)") && verdict.evidence.len() == 3,
            "{verdict:?}"
        );
        for other in [decided(Some("TCP_FLAGS"), ACK, true), decided(Some("INVALID_SYN"), SYN, true)] {
            assert!(!other.summary.contains(setting) && !other.remediation.to_string().contains(room), "{other:?}");
        }
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
        assert_eq!(decided(50, Some(80), 503).map(|it| it.0), Some("app_status_failure"));
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

    #[test]
    fn a_listener_that_closes_resets_unaccepted_connections() {
        let words = |changes: &[bool]| {
            let mut stream = Stream::new().listens(POD, 8080, true).connect().established().clone();
            changes.iter().for_each(|begins| _ = stream.listens(POD, 8080, *begins));
            stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
            stream.verdict().summary.clone()
        };
        assert_has(&words(&[false]), &["closed its listener at the same time"]);
        assert_has(&words(&[false, true]), &["closed its listener at the same time"]);
        assert_lacks(&words(&[]), &["closed its listener"]);
    }

    /// A process may have several listeners of a port (SO_REUSEPORT, IPv4 and IPv6), and so may several processes.
    #[test]
    fn the_listener_that_closed_is_found_among_others_that_end_with_it() {
        let words = |before: &[u32], after: &[u32]| {
            let mut stream = Stream::new().connect().established().clone();
            let end = |stream: &mut Stream, pid: u32| {
                stream.process_listens_on(pid, POD, address("0.0.0.0:8080"), false).wait_ms(1);
            };
            before.iter().for_each(|pid| end(&mut stream, *pid));
            stream.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_STATE".into());
            after.iter().for_each(|pid| end(stream.wait_ms(1), *pid));
            stream.reset_received(TcpState::Established, 0).verdict().summary
        };
        let many = [99; 40];
        for (before, after) in [(&[99][..], &[99][..]), (&[99], &many), (&[99], &[98]), (&[99, 98], &[99, 98])] {
            assert_has(&words(before, after), &["app (pid 99) closed its listener before it had accepted"]);
        }
        for (before, after) in [(&[98][..], &[98][..]), (&[98], &[99])] {
            assert_has(&words(before, after), &["closed it with SO_LINGER 0"]);
        }
    }

    /// A reload: the next process listens (SO_REUSEPORT) before the old one stops, and the old one runs on.
    #[test]
    fn a_process_that_hands_its_port_over_may_not_have_ended() {
        let decided = |next_ends: bool, began_s: u64| {
            let next = |stream: &mut Stream, begins| {
                stream.process_listens_on(98, POD, address("0.0.0.0:8080"), begins).wait_ms(1);
            };
            let mut stream = Stream::new().listens(POD, 8080, true).wait_ms(1_000).clone();
            next(&mut stream, true);
            stream.wait_ms(began_s * 1_000).connect().established().listens(POD, 8080, false);
            stream.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_STATE".into());
            if next_ends {
                next(&mut stream, false);
            }
            stream.reset_received(TcpState::Established, 0).verdict()
        };
        let reload = decided(false, 1);
        assert_has(&reload.summary, &["or handed the port over to app (pid 98), which began to listen there 1001"]);
        assert_has(&reload.remediation, &["net.ipv4.tcp_migrate_req"]);
        for other in [decided(true, 1), decided(false, 100)] {
            assert_ends(&other.summary, "it exited, crashed or was stopped");
            assert_lacks(&other.remediation, &["tcp_migrate_req"]);
        }
    }

    /// A worker closes the listener of its master last.
    #[test]
    fn a_master_that_ended_with_its_worker_is_no_successor() {
        let decided = |masters: u32| {
            let mut stream = Stream::new().netns_made(POD).wait_ms(1_000).clone();
            for pid in 10..10 + masters {
                stream.process_listens_on(pid, POD, address("0.0.0.0:8080"), true).wait_ms(1_000);
            }
            stream.connect().established().process_listens_on(99, POD, address("0.0.0.0:8080"), false);
            stream.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_STATE".into());
            stream.reset_received(TcpState::Established, 0).verdict().summary
        };
        assert_ends(&decided(1), "it exited, crashed or was stopped");
        assert_has(&decided(2), &["or handed the port over to app (pid 11)"]);
    }

    /// A process that ends before it has read the request. A supervisor starts it again at once.
    #[test]
    fn a_process_that_ends_resets_what_it_has_not_read() {
        let decided = |changes: &[bool], after: &[bool]| {
            let mut stream = Stream::new().http_readiness().listens(POD, 8080, true).clone();
            changes.iter().for_each(|begins| _ = stream.listens(POD, 8080, *begins));
            stream.connect().established().reset_received(TcpState::Established, 0);
            stream.reset_sent(TcpFlags(0), false, Some("app"));
            stream.last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".to_owned());
            stream.state(TcpState::Established, TcpState::Close, 104, (100, 101, 0)).wait_ms(1);
            after.iter().for_each(|begins| _ = stream.listens(POD, 8080, *begins));
            stream.wait_ms(60).tick().verdict()
        };
        for after in [&[false][..], &[false, true]] {
            let ended = decided(&[], after);
            assert_has(&ended.summary, &["closed it with unread data, and its listener ended at the same time"]);
            assert_has(&ended.remediation, &[" ended: read its log of that moment"]);
            assert_lacks(&ended.remediation, &["TLS"]);
            assert_eq!(ended.evidence.len(), 3);
        }
        for before in [&[][..], &[false, true]] {
            let other = decided(before, &[]);
            assert_lacks(&other.summary, &["listener"]);
            assert_has(&other.remediation, &["Or the port speaks TLS"]);
        }
    }
}
