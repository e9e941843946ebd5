//! The queue of connections that wait for the server to accept them.

use std::net::SocketAddr;

use serde_json::json;

use crate::case::{Case, inspected, inspections, outbound};
use crate::drop_reason::may_be_at_socket;
use crate::evidence::evidence_of;
use crate::giving_up::gave_up_early;
use crate::phrases::run_in;
use crate::serving::{first_name, is_blocked, readings};
use crate::waits;
use tracer_attempts::correlate::attempt::End;
use tracer_attempts::correlate::listeners::takes;
use tracer_common::names::Hook;
use tracer_model::event::{Inspection, ListenerState, Netns, PacketDrop, Serving};
use tracer_model::record::{Command, Confidence, Evidence, Remediation};

/// Hooks that show a dropped packet and a full queue: a reading of the queue is weaker without them.
pub const QUEUE_HOOKS: &[Hook] = &[Hook::KfreeSkb, Hook::TcpConnRequest];

/// A queue that was read, a moment later, makes it likely. The missing hook lowers what the finding begins with.
pub fn by_reading(case: &Case<'_>) -> Confidence {
    if case.lacks(&[Hook::TcpConnRequest]) { Confidence::Proven } else { Confidence::Likely }
}

/// The request as the listener dropped it for the last time, since its accept queue was full at the end of the handshake
/// (`tcp_check_req`, net/ipv4/tcp_minisocks.c). Before 6.15 the drop has no such reason, and only an inspection shows
/// the full queue.
pub fn dropped_request<'a>(case: &Case<'a>) -> Option<(u64, &'a PacketDrop)> {
    let attempt = case.attempt;
    let (ended, End::ClosedByProber) = attempt.ended? else { return None };
    let is_unanswered = attempt.failed_by_itself() && attempt.errno().is_none() && attempt.reset_received().is_none();
    if !case.settled || !is_unanswered || attempt.request_acknowledged() || gave_up_early(case) {
        return None;
    }
    let is_full = fullest_queue(case).is_some();
    let is_by_queue = |drop: &PacketDrop| is_overflow(drop) || (is_full && may_be_at_socket(drop));
    let (time, drop) =
        attempt.drops().filter(|(at, d)| *at <= ended && d.flags.has_data() && outbound(case, d)).last()?;
    // A later try that left no trace at the listener was lost on the way.
    let sent_last = attempt.sent_again.filter(|at| *at <= ended).unwrap_or_default();
    (is_by_queue(drop) && sent_last <= time.saturating_add(SAME_SEGMENT_NS)).then_some((time, drop))
}

/// The kernel dropped the packet because the accept queue was full, by its reason.
pub fn is_overflow(drop: &PacketDrop) -> bool {
    drop.reason.as_deref() == Some("TCP_LISTEN_OVERFLOW")
}

/// How long after the drop of a segment the event of its sending may come. TCP sends a segment again after 200 ms at the
/// earliest (`TCP_RTO_MIN`).
const SAME_SEGMENT_NS: u64 = 100_000_000;

/// The listener with the most waiting connections among those that were full at the inspection.
/// Full means more than the maximum (`sk_acceptq_is_full`, include/net/sock.h).
pub fn fullest_queue<'a>(case: &Case<'a>) -> Option<(u64, &'a Inspection, &'a ListenerState)> {
    // The kernel counts each SYN that it drops for this (`tcp_conn_request`, net/ipv4/tcp_input.c).
    let has_dropped = |reading: &Inspection| reading.values.get("ListenOverflows") != Some(&0);
    inspections(case).filter(|(_, reading)| has_dropped(reading)).find_map(|(time, reading)| {
        let full = listeners(case, reading).into_iter().filter(|listener| listener.waiting > listener.backlog);
        Some((time, reading, full.max_by_key(|listener| listener.waiting)?))
    })
}

/// The same of the listeners to which an address translation of the target's namespace sends the attempt, with their
/// address.
pub fn redirected_queue<'a>(case: &Case<'a>) -> Option<(u64, &'a Inspection, SocketAddr, &'a ListenerState)> {
    let has_dropped = |reading: &Inspection| reading.values.get("ListenOverflows") != Some(&0);
    inspections(case).filter(|(_, reading)| has_dropped(reading)).find_map(|(time, reading)| {
        let redirect = reading.redirect.as_ref()?;
        let takes = |it: &&ListenerState| takes(it.addr.ip(), redirect.to.ip()) && it.waiting > it.backlog;
        let full = redirect.listeners.iter().filter(takes).max_by_key(|it| it.waiting)?;
        Some((time, reading, redirect.to, full))
    })
}

/// The listeners on the target's port that can get this attempt's SYN, by the inspection: one, or several with
/// SO_REUSEPORT.
pub fn listeners<'a>(case: &Case<'_>, reading: &'a Inspection) -> Vec<&'a ListenerState> {
    if reading.redirect.is_some() {
        return Vec::new();
    }
    let target = case.attempt.flow.dst.ip();
    let fits = |l: &&ListenerState| takes(l.addr.ip(), target);
    reading.listeners.iter().flatten().filter(fits).collect()
}

/// Evidence of the queue of a listener, by an inspection.
pub fn of_queue(time: u64, listener: &ListenerState) -> Evidence {
    let text = format!(
        "the listener {} has {} connections waiting to be accepted, of {} allowed{}",
        listener.addr,
        listener.waiting,
        listener.backlog,
        listener.half_open.map(|half_open| format!(", and {half_open} half open")).unwrap_or_default()
    );
    let mut fields = json!({ "waiting": listener.waiting, "backlog": listener.backlog });
    if let Some(half_open) = listener.half_open {
        fields["half_open"] = half_open.into();
    }
    evidence_of("sock_diag", time, text, fields)
}

/// The fix for a full accept queue in this namespace.
pub fn make_room(case: &Case<'_>, netns: Option<Netns>) -> Remediation {
    let blocked = readings(case).last().filter(|(_, reading)| is_blocked(reading)).map(|(_, reading)| *reading);
    make_room_on(case, netns, case.attempt.flow.dst.port(), blocked)
}

/// The same on this port. `blocked`: its server, if that waits in the kernel.
pub fn make_room_on(case: &Case<'_>, netns: Option<Netns>, port: u16, blocked: Option<&Serving>) -> Remediation {
    let own = "in the pod's securityContext.sysctls (the kubelet must allow it)";
    let place = if netns.is_some() && netns == case.node.netns() { "on the node" } else { own };
    let listeners = format!("ss -ltn 'sport = :{port}'");
    let text = match blocked {
        Some(reading) => format!(
            "Find what {} waits for in the kernel: until then it accepts nothing, and a longer backlog only fills later",
            first_name(reading)
        ),
        None => format!(
            "Let the process on port {port} accept faster. Or raise its listen backlog and net.core.somaxconn {place}, and restart it. The queue is full if Recv-Q is above Send-Q"
        ),
    };
    let show = if netns.is_some() { run_in(case, netns, listeners) } else { Command::in_pod(listeners) };
    Remediation::from(text).run(blocked.and_then(|it| waits::show(&it.processes))).run([show])
}

/// How many sockets listen for the target, if there are several, and their namespace.
pub fn queues(case: &Case<'_>) -> Option<(Option<Netns>, usize)> {
    let (_, reading) = inspected(case)?;
    let count = listeners(case, reading).len();
    (count > 1).then_some((reading.netns, count))
}
