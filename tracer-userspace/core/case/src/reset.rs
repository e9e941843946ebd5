//! Who sent the RST, and how it closed the connection.

use crate::accept_queue::fullest_queue;
use crate::case::Case;
use crate::ended::{process_ended_text, why_ended};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::listeners::TOGETHER_NS;
use tracer_attempts::enrich;
use tracer_model::event::{Actor, Listen, ResetSent, TcpState};
use tracer_model::record::Culprit;

/// A clause that names the sender of the RST and how it closed. `ended`: its listener ended at the same time.
pub fn sender(case: &Case<'_>, reset: &ResetSent, ended: Option<&(u64, Listen)>) -> String {
    if is_without_room(reset) {
        return text_without_room(case, reset);
    }
    let who = match (closer(reset), reset.no_socket) {
        (Some(actor), _) if is_destroyed(reset) => return text_destroyed(reset, actor),
        (Some(actor), _) => actor.to_string(),
        (None, true) => "its kernel no longer has a socket for it".to_owned(),
        (None, false) if reset.actor.is_some() => "its kernel gave it up".to_owned(),
        (None, false) => "its kernel, for a segment that did not fit the socket".to_owned(),
    };
    let how = match (ended, reset.reason.as_deref()) {
        (Some(end), Some("TCP_ABORT_ON_CLOSE")) => format!("{}{}", close_text(reset), process_ended_text(case, end)),
        (Some(end), Some(_)) => format!("{ENDED_BEFORE_ACCEPT}{}", why_ended(case, end)),
        (Some(end), None) => format!("{ENDED_WITH_RST}{}", why_ended(case, end)),
        (None, _) => close_text(reset),
    };
    format!("{who}{how}")
}

/// Who closed or destroyed the socket. The kernel gives other reasons to a RST of its timers (`tcp_keepalive_timer`,
/// `tcp_out_of_resources`), except to that of an orphan in FIN_WAIT2; the prober is in CLOSE_WAIT then. Timers run in the
/// context of any process. That of the idle task, pid 0, is always the kernel itself.
pub fn closer(reset: &ResetSent) -> Option<&Actor> {
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
pub fn may_be_by_timer(reset: &ResetSent) -> bool {
    is_destroyed(reset) && reset.reason.is_none()
}

fn text_destroyed(reset: &ResetSent, actor: &Actor) -> String {
    let or_timer = if may_be_by_timer(reset) { ", or its kernel gave it up" } else { "" };
    format!("{actor} destroyed its socket (SOCK_DESTROY){or_timer}")
}

/// A process closed it, and had not read all that had come. Before 6.12 only the socket's counters show that.
pub fn left_unread(reset: &ResetSent) -> bool {
    match reset.reason.as_deref() {
        Some(reason) => reason == "TCP_ABORT_ON_CLOSE",
        None => reset.unread == Some(true) && closer(reset).is_some() && !is_destroyed(reset),
    }
}

/// With `tcp_abort_on_overflow` a listener resets a handshake if its last segment finds no room (`listen_overflow` in
/// net/ipv4/tcp_minisocks.c). From 6.12 on the kernel then gives the reason INVALID_SYN. Older kernels give no reason,
/// and reset an ACK without a pending handshake in the same way.
pub fn is_without_room(reset: &ResetSent) -> bool {
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

/// The end of the listener of the process that sent the RST, at the same time. A listener that closes resets the
/// connections in its queue in one call (`inet_csk_listen_stop`). The kernel gives the same reason as for SO_LINGER 0. A
/// process that ends resets those that it has not read, too.
pub fn listener_end<'a>(case: &Case<'a>, time: u64, reset: &ResetSent) -> Option<&'a (u64, Listen)> {
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

/// A process closed this connection: it had accepted it. Any process can destroy a socket, and the end of a listener
/// resets what nobody has accepted.
pub fn is_own_close(case: &Case<'_>, time: u64, reset: &ResetSent) -> bool {
    closer(reset).is_some() && !is_destroyed(reset) && listener_end(case, time, reset).is_none()
}

/// How the socket was closed, by the kernel's reason (include/net/rstreason.h, 6.12 and later; both seen on 6.18).
fn close_text(reset: &ResetSent) -> String {
    match reset.reason.as_deref() {
        _ if left_unread(reset) => " closed it with unread data".to_owned(),
        Some("TCP_STATE" | "TCP_ABORT_ON_LINGER") => " closed it with SO_LINGER 0".to_owned(),
        Some(other) => format!(", kernel reason {other}"),
        None if reset.unread == Some(false) && closer(reset).is_some() => " closed it with SO_LINGER 0".to_owned(),
        None => String::new(),
    }
}

/// The RST of the prober's own end, and who destroyed that.
pub fn destroyer<'a>(case: &Case<'a>) -> Option<(u64, &'a ResetSent, &'a Actor)> {
    let attempt = case.attempt;
    let is_aborted = attempt.errno() == Some(libc::ECONNABORTED) && attempt.failed_by_itself();
    let own = |reset: &ResetSent| reset.flow.src == attempt.flow.src && is_destroyed(reset);
    let (time, reset) = attempt.resets_sent().find(|(_, it)| is_aborted && own(it))?;
    Some((time, reset, closer(reset).filter(|actor| actor.pid != attempt.actor.pid)?))
}

/// The target closed the connection: a close with unread data sends a RST, and so does data after a close (RFC 9293
/// 3.10.4, 3.10.7.1). A RST is no close if a queue had no room, the listener had not accepted, or SO_LINGER 0 was set.
pub fn is_close(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let Some((_, received)) = attempt.reset_received() else { return false };
    if received.state == TcpState::CloseWait {
        return true;
    }
    let is_ended = |time, reset| listener_end(case, time, reset).is_some();
    let is_process = |(time, reset)| origin_of(reset, is_ended(time, reset)) == Origin::Process;
    with_unread(case).is_some() || of_target(attempt).is_some_and(is_process)
}

/// The RST of the target's end.
pub fn of_target(attempt: &Attempt) -> Option<(u64, &ResetSent)> {
    attempt.resets_sent().find(|(_, reset)| reset.flow.src == attempt.flow.dst)
}

/// The RST with which the target's kernel answers a close with unread data.
pub fn with_unread<'a>(case: &Case<'a>) -> Option<(u64, &'a ResetSent)> {
    of_target(case.attempt).filter(|(_, reset)| left_unread(reset))
}

/// The process that closed or destroyed the socket; `None` if that is unknown, or a timer may have done it.
pub fn culprit(case: &Case<'_>, time: u64, reset: &ResetSent) -> Option<Culprit> {
    let netns = reset.netns.map(|inum| enrich::netns_ref(inum, case.node));
    let closer = closer(reset).filter(|_| !may_be_by_timer(reset))?;
    Some(Culprit::of(closer, "reset", netns, time))
}

/// How the RST came about, as far as that decides the fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
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

/// How this RST came about. `is_ended`: the listener of its sender ended at the same time.
pub fn origin_of(reset: &ResetSent, is_ended: bool) -> Origin {
    match reset.reason.as_deref() {
        _ if is_without_room(reset) => Origin::Room,
        _ if closer(reset).is_none() => Origin::Stack,
        _ if is_destroyed(reset) => Origin::Destroyed,
        _ if is_ended => Origin::Ended,
        _ if left_unread(reset) => Origin::Unread,
        Some("TCP_STATE" | "TCP_ABORT_ON_LINGER") => Origin::Linger,
        None if reset.unread == Some(false) => Origin::Linger,
        _ => Origin::Process,
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    const ACK: TcpFlags = TcpFlags(0x10);

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
        let decided = |masters: u32, lost: Option<&str>| {
            let mut stream = Stream::new().netns_made(POD).wait_ms(1_000).clone();
            lost.into_iter().for_each(|place| _ = stream.lost_in(place, 1).wait_ms(1_000));
            for pid in 10..10 + masters {
                stream.process_listens_on(pid, POD, address("0.0.0.0:8080"), true).wait_ms(1_000);
            }
            stream.connect().established().process_listens_on(99, POD, address("0.0.0.0:8080"), false);
            stream.reset_sent(TcpFlags(0), false, Some("app")).last_reset_sent().reason = Some("TCP_STATE".into());
            stream.reset_received(TcpState::Established, 0).verdict().summary
        };
        assert_ends(&decided(1, None), "it exited, crashed or was stopped");
        assert_has(&decided(2, None), &["or handed the port over to app (pid 11)"]);
        for place in [Loss::RING, Loss::PROGRAM, Loss::LISTEN] {
            assert_has(&decided(1, Some(place)), &["or handed the port over to app (pid 10)"]);
        }
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
            assert_eq!(ended.cause, Cause::MidStreamRst);
            assert_has(&ended.summary, &["closed it with unread data, and its listener ended at the same time"]);
            assert_has(&ended.remediation, &[" ended: read its log of that moment"]);
            assert_lacks(&ended.remediation, &["TLS"]);
            assert_eq!(ended.evidence.len(), 3);
        }
        for before in [&[][..], &[false, true]] {
            assert_eq!(decided(before, &[]).cause, Cause::ClosedWithoutAnswer);
        }
    }
}
