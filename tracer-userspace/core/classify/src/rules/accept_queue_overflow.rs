//! The listener's accept queue is full: the kernel drops the SYN, or the end of the handshake and the request, and sends
//! no answer.

use super::*;
use tracer_case::accept_queue::{
    QUEUE_HOOKS, by_reading, dropped_request, fullest_queue, is_overflow, listeners, make_room, make_room_on, of_queue,
    redirected_queue,
};
use tracer_case::halt::halt;
use tracer_case::refusal::pod_elsewhere;
use tracer_case::serving::{all_blocked, crashed, name, readings};
use tracer_model::event::{ListenQueue, MOST_LISTENERS, Netns};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    // A server that cannot run fills its queue as well.
    if target_starved::is_cause(case) {
        return None;
    }
    if !in_handshake(case) {
        return after_syn(case);
    }
    by_hook(case).or_else(|| by_inspection(case)).or_else(|| redirected(case))
}

/// A hook saw that this attempt's SYN arrived at a full queue.
fn by_hook(case: &Case<'_>) -> Option<Finding> {
    let (time, met) = case.attempt.queue_full(ListenQueue::Accept).filter(|(time, _)| is_unanswered(case, *time))?;
    let text = format!("the SYN met a listener with {} connections waiting, of {} allowed", met.waiting, met.backlog);
    let fields = json!({ "waiting": met.waiting, "backlog": met.backlog, "netns": met.netns });
    let evidence = evidence_of(Hook::TcpConnRequest.name(), time, text, fields);
    Some(doubt(case, met.netns, finding(case, evidence, (met.waiting, met.backlog), met.netns)))
}

/// An inspection found the queue full while the attempt waited.
fn by_inspection(case: &Case<'_>) -> Option<Finding> {
    let (time, reading, listener) = fullest_queue(case).filter(|_| case.settled && silent(case))?;
    let listeners = listeners(case, reading);
    let mut found = finding(case, of_queue(time, listener), (listener.waiting, listener.backlog), reading.netns);
    if listeners.len() > 1 {
        let at_least = if listeners.len() < MOST_LISTENERS { "" } else { "at least " };
        found.summary += &format!("; it is one of {at_least}{} listeners on that port (SO_REUSEPORT)", listeners.len());
    }
    // The hook shows each SYN that meets a full queue. This one may have met a queue with room.
    let has_room = listeners.iter().any(|it| it.waiting <= it.backlog) && !case.lacks(&[Hook::TcpConnRequest]);
    let confidence = if has_room { Confidence::Possible } else { by_reading(case) };
    let found = found.with_confidence(confidence).resting_on(QUEUE_HOOKS);
    Some(doubt(case, reading.netns, found))
}

/// Another namespace than the pod's has the queue: that of a process with the same address.
fn doubt(case: &Case<'_>, netns: Option<Netns>, found: Finding) -> Finding {
    let Some((pod, _)) = netns.and_then(|netns| pod_elsewhere(case, netns)) else { return found };
    let place = in_namespace(case, netns);
    let summary = format!("{}; that queue is{place}, and pod {pod} is in another network namespace", found.summary);
    Finding { summary, ..found }.at_most(Confidence::Likely)
}

/// The pod's own address translation sends the attempt to another listener, such as that of a sidecar. An inspection
/// found the queue of that one full.
fn redirected(case: &Case<'_>) -> Option<Finding> {
    let (time, reading, to, listener) = redirected_queue(case).filter(|_| case.settled && silent(case))?;
    let (dst, place) = (case.attempt.flow.dst, in_namespace(case, reading.netns));
    let summary = format!(
        "an address translation sends {dst} to {to}{place}; the accept queue there is full ({} waiting, {} allowed): the kernel drops the SYN silently; its process was not read, and may be halted",
        listener.waiting, listener.backlog
    );
    let fix = make_room_on(case, reading.netns, to.port(), None);
    let found = Finding::failure(Cause::AcceptQueueOverflow, vec![of_queue(time, listener)], summary, fix);
    // With SO_REUSEPORT, the SYN may have met another listener.
    let has_room = reading.redirect.iter().flat_map(|it| &it.listeners).any(|it| it.waiting <= it.backlog);
    let confidence = if has_room { Confidence::Possible } else { by_reading(case) };
    Some(found.rests_on_lost_packet().with_confidence(confidence).resting_on(QUEUE_HOOKS))
}

/// The queue had room for the SYN, and then filled up. The prober takes the connection for established.
fn after_syn(case: &Case<'_>) -> Option<Finding> {
    let (time, drop) = dropped_request(case)?;
    let ((ended, _), queue) = (case.attempt.ended?, fullest_queue(case));
    let numbers = queue.map(|(_, _, listener)| (listener.waiting, listener.backlog));
    let numbers = numbers.map(|(waiting, backlog)| format!(" ({waiting} waiting, {backlog} allowed)"));
    let summary = format!(
        "{} listens, but its accept queue filled up after the SYN{}: the kernel drops the last segment of the handshake and the request silently{}",
        case.attempt.flow.dst,
        numbers.unwrap_or_default(),
        describe_halt(case).unwrap_or_default()
    );
    let mut evidence = vec![of_drop(time, drop)];
    evidence.extend(queue.map(|(time, _, listener)| of_queue(time, listener)));
    evidence.extend(case.attempt.last.as_ref().map(|state| of_state(ended, state)));
    let found = Finding::failure(Cause::AcceptQueueOverflow, evidence, summary, make_room(case, drop.netns));
    let found = if is_overflow(drop) { found } else { found.with_confidence(Confidence::Likely) };
    Some(doubt(case, drop.netns, found))
}

fn finding(case: &Case<'_>, evidence: Evidence, (waiting, backlog): (u32, u32), netns: Option<Netns>) -> Finding {
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "{dst} listens, but its accept queue is full ({waiting} waiting, {backlog} allowed): the kernel drops the SYN silently"
    );
    let summary = summary + &describe_halt(case).unwrap_or_default();
    Finding::failure(Cause::AcceptQueueOverflow, vec![evidence], summary, make_room(case, netns)).rests_on_lost_packet()
}

/// The process could not accept when it was read last. One reading does not show for how long.
fn describe_halt(case: &Case<'_>) -> Option<String> {
    let (_, reading) = readings(case).last().copied()?;
    let halted = || Some(format!("{} {}", name(&reading.processes), halt(reading, None)?.description()));
    let why = crashed(reading, None).or_else(halted).or_else(|| all_blocked(reading))?;
    Some(format!("; at one reading, {why}"))
}

#[cfg(test)]
mod tests {
    use super::MOST_LISTENERS;
    use tracer_core::testing::*;

    fn inspected(queues: &[(u32, u32)]) -> Stream {
        overflowed(queues, 1)
    }

    fn overflowed(queues: &[(u32, u32)], times: u64) -> Stream {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.values.insert("ListenOverflows".into(), times);
            reading.listeners = Some(queues.iter().map(|(waiting, backlog)| listener(*waiting, *backlog)).collect());
        });
        stream.gives_up();
        stream
    }

    #[test]
    fn several_listeners_on_the_port_are_counted_in_the_summary() {
        let summary = |count| inspected(&vec![(2, 1); count]).verdict().summary.clone();
        assert_ends(&summary(2), "it is one of 2 listeners on that port (SO_REUSEPORT)");
        assert_has(&summary(MOST_LISTENERS), &["one of at least 128"]);
    }

    #[test]
    fn one_full_listener_of_several_is_enough() {
        let decided = |queues: &[(u32, u32)], missing: &[Hook]| {
            let mut stream = inspected(queues);
            missing.iter().for_each(|hook| _ = stream.missing(*hook));
            stream.decided()
        };
        let found = |confidence| ("accept_queue_overflow", confidence);
        assert_eq!(decided(&[(0, 1), (2, 1)], &[Hook::TcpConnRequest]), found(Confidence::Likely));
        assert_eq!(decided(&[(0, 1), (1, 1)], &[]).0, "unexplained");
        // The hook would have shown the SYN, if it had met the full one.
        assert_eq!(decided(&[(0, 1), (2, 1)], &[]), found(Confidence::Possible));
        assert_eq!(decided(&[(2, 1), (2, 1)], &[]), found(Confidence::Likely));
    }

    /// Istio: the pod's rules send all ports to envoy, which accepts nothing.
    #[test]
    fn a_full_queue_of_the_listener_behind_a_redirect_is_named() {
        let verdict = |(waiting, backlog), redirected: bool, times: u64| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).connect().wait_ms(200).clone();
            stream.inspection(|reading| {
                reading.values.insert("ListenOverflows".into(), times);
                reading.listeners = Some(vec![listener(if redirected { 0 } else { waiting }, backlog)]);
                let envoy = ListenerState { addr: address("0.0.0.0:15006"), ..listener(waiting, backlog) };
                let redirect = RedirectedListeners { to: address("10.88.0.2:15006"), listeners: vec![envoy] };
                reading.redirect = Some(redirect.into()).filter(|_| redirected);
            });
            stream.gives_up().verdict()
        };
        let full = verdict((2, 1), true, 1);
        assert_eq!((full.cause, full.confidence), (Cause::AcceptQueueOverflow, Confidence::Likely));
        let words = "an address translation sends 10.88.0.2:8080 to 10.88.0.2:15006 in pod default/web; the accept";
        assert_starts(&full.summary, words);
        assert_has(&full.remediation, &["Let the process on port 15006 accept faster", "ss -ltn 'sport = :15006'"]);
        assert_eq!(verdict((1, 1), true, 1).cause, Cause::Unexplained, "it has room");
        assert_eq!(verdict((2, 1), true, 0).cause, Cause::Unexplained, "it has dropped nothing");
    }

    /// The application's own queue does not matter then.
    #[test]
    fn a_full_queue_of_a_listener_that_a_redirect_passes_over_is_no_cause() {
        let mut stream = inspected(&[(2, 1)]);
        assert_eq!(stream.causes(), ["accept_queue_overflow"]);
        stream = Stream::new().connect().wait_ms(200).clone();
        stream.inspection(|reading| {
            reading.listeners = Some(vec![listener(2, 1)]);
            let redirect = RedirectedListeners { to: address("10.88.0.2:15006"), listeners: vec![listener(0, 1)] };
            reading.redirect = Some(redirect.into());
        });
        assert_eq!(stream.gives_up().causes(), ["unexplained"]);
    }

    /// Other connections filled it, and this SYN was lost on its way.
    #[test]
    fn a_full_queue_that_never_dropped_a_syn_is_no_cause() {
        assert_eq!(overflowed(&[(2, 1)], 0).causes(), ["unexplained"]);
        assert_eq!(overflowed(&[(2, 1)], 1).causes(), ["accept_queue_overflow"]);
    }

    /// That the queue is read a moment later is why it is only likely.
    #[test]
    fn the_hook_that_shows_a_full_queue_is_named_if_it_is_missing() {
        let mut stream = inspected(&[(2, 1)]);
        let known = stream.verdict();
        let verdict = stream.missing(Hook::TcpConnRequest).verdict();
        assert_eq!((known.confidence, known.missing_hooks.len()), (Confidence::Likely, 0));
        assert_eq!((verdict.confidence, verdict.missing_hooks), (Confidence::Likely, vec!["tcp_conn_request".into()]));
    }

    /// Another probe of the same target asked for the last inspection.
    #[test]
    fn a_full_queue_is_found_by_an_earlier_inspection_than_the_last() {
        let mut stream = Stream::new().connect().wait_ms(200).syn_again().clone();
        for waiting in [2, 0] {
            stream.inspection(|reading| reading.listeners = Some(vec![listener(waiting, 1)]));
        }
        assert_eq!(stream.gives_up().causes(), ["accept_queue_overflow"]);
    }

    #[test]
    fn the_inspection_of_the_next_attempt_does_not_replace_that_of_the_failed_one() {
        let mut stream = Stream::new().connect().wait_ms(200).clone();
        stream.inspection(|reading| reading.listeners = Some(vec![listener(2, 1)]));
        stream.wait_ms(700).again(9).connect().wait_ms(200).inspection(|_| ()).back_to(7).gives_up();
        assert_eq!(stream.causes(), ["accept_queue_overflow"]);
    }

    fn met(fill: impl FnOnce(&mut Stream)) -> Verdict {
        let mut stream = Stream::new();
        fill(&mut stream);
        stream.connect().queue_full(ListenQueue::Accept).gives_up().settles().verdict()
    }

    /// Any process of the node can have the port of a pod on its network.
    #[test]
    fn a_full_queue_on_the_nodes_network_is_of_who_has_the_port() {
        let on_node = |by: &[(&str, Option<&str>)]| {
            met(|stream| {
                stream.links(true, &["10.88.0.2"]).http_readiness().on_host_network().container_id("c1");
                stream.last_pods().pods[0].uid = Some("u1".into());
                if by.is_empty() {
                    return;
                }
                let process = |(comm, pod): &(&str, Option<&str>)| AcceptingProcess {
                    server: Listener { pid: 77, comm: (*comm).into() },
                    pod_uid: pod.map(Into::into),
                    container: pod.map(|_| "c1".into()),
                };
                let processes = by.iter().map(process).collect();
                let acceptor = Acceptor { to: None, netns: NODE, processes };
                stream.pod_sockets(|reading| reading.acceptor = Some(acceptor)).wait_ms(5_000);
            })
        };
        let unread = on_node(&[]);
        assert_eq!((unread.cause, unread.confidence), (Cause::AcceptQueueOverflow, Confidence::Likely));
        assert_ends(&unread.summary, "; tracer could not read which process of the node has that port");
        let own = on_node(&[("app", Some("u1"))]);
        assert_eq!((own.cause, own.confidence), (Cause::AcceptQueueOverflow, Confidence::Proven));
        let other = on_node(&[("python", None)]);
        assert_eq!((other.cause, other.confidence), (Cause::PortTaken, Confidence::Likely));
        assert_starts(
            &other.summary,
            "python (pid 77) of the node has port 8080 and has the full accept queue, and not",
        );
    }

    #[test]
    fn a_full_queue_that_may_be_of_another_container_or_pod_is_likely() {
        let own = met(|stream| _ = stream.http_readiness().pod_in(POD));
        assert_eq!(own.confidence, Confidence::Proven);
        let shared = met(|stream| _ = stream.http_readiness().pod_in(POD).probed_container_too("other"));
        assert_eq!((shared.cause, shared.confidence), (Cause::AcceptQueueOverflow, Confidence::Likely));
        assert_has(&shared.summary, &["2 containers of the pod have a probe on port 8080"]);
        let elsewhere = met(|stream| _ = stream.http_readiness().pod_in(Netns(900)));
        assert_eq!((elsewhere.cause, elsewhere.confidence), (Cause::AcceptQueueOverflow, Confidence::Likely));
        assert_ends(&elsewhere.summary, "and pod default/web is in another network namespace");
    }

    #[test]
    fn the_fix_names_the_namespace_of_the_listener() {
        let fix = |netns| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect().wait_ms(200).inspection(|reading| {
                reading.netns = Some(netns);
                reading.listeners = Some(vec![listener(2, 1)]);
            });
            stream.gives_up().verdict().remediation.clone()
        };
        assert_has(&fix(POD), &["net.core.somaxconn in the pod"]);
        assert_has(&fix(NODE), &["net.core.somaxconn on the node"]);
    }

    /// State D in vfork() is no wait for a disk; in a function of a file system it is, and the server cannot accept.
    #[test]
    fn a_full_queue_of_a_server_in_state_d_is_not_its_backlog() {
        let verdict = |function: &str| {
            let mut stream = Stream::new().connect().clone();
            for _ in 0..5 {
                let mut server = server_process(7, 1);
                (server.tasks.blocked, server.tasks.blocked_in) = (1, Some(function.to_owned()));
                (server.tasks.ran_ns, server.tasks.waited_ns) = (Some(7), Some(7));
                let serving = Serving { processes: vec![server], ..Serving::default() };
                stream.wait_ms(300).inspection(|reading| {
                    reading.listeners = Some(vec![listener(2, 1)]);
                    reading.serving = Some(Box::new(serving));
                });
            }
            stream.gives_up().verdict()
        };
        let disk = verdict("nfs4_call_sync");
        assert_eq!((disk.cause.name(), disk.confidence), ("target_starved", Confidence::Likely));
        assert_has(&disk.summary, &["the accept queue of app (pid 7) is full", "disk or a network file system"]);
        assert_has(&disk.remediation, &["grep -H . /proc/7/task/*/wchan"]);
        let child = verdict("kernel_clone");
        assert_eq!(child.cause.name(), "accept_queue_overflow");
        assert_has(&child.summary, &["has not called exec yet (vfork)"]);
        assert_has(&child.remediation, &["Find what app (pid 7) waits for", "grep -H . /proc/7/task/*/wchan"]);
        assert_lacks(&child.remediation, &["raise its listen backlog"]);
    }

    const REQUEST: TcpFlags = TcpFlags(0x18);

    /// The SYN found room. The listener drops what follows it, and the request once more.
    fn fills_up_after_syn(reason: &str, waiting: u32) -> Stream {
        let mut stream = Stream::new();
        stream.connect().established();
        for flags in [TcpFlags(0x10), REQUEST] {
            dropped(&mut stream, flags, reason);
        }
        dropped(stream.wait_ms(200).sent_again(100, false), REQUEST, reason);
        stream.inspection(|reading| reading.listeners = Some(vec![listener(waiting, 1)])).wait_ms(800);
        stream
    }

    fn dropped<'a>(stream: &'a mut Stream, flags: TcpFlags, reason: &str) -> &'a mut Stream {
        stream.drop_with(flags, POD, |drop| {
            drop.reason = Some(reason.into());
            drop.location = (reason == "NOT_SPECIFIED").then(|| "tcp_v4_rcv".into());
        })
    }

    const NOT_TAKEN: (u64, u64, u64) = (200, 1, 0);

    #[test]
    fn a_queue_that_fills_up_after_the_syn_is_the_cause() {
        let verdict_of = |reason, waiting| fills_up_after_syn(reason, waiting).closes(NOT_TAKEN).settles().verdict();
        let noted =
            |reason, waiting| (verdict_of(reason, waiting).cause.name(), verdict_of(reason, waiting).confidence);
        assert_eq!(noted("TCP_LISTEN_OVERFLOW", 2), ("accept_queue_overflow", Confidence::Proven));
        assert_eq!(noted("TCP_LISTEN_OVERFLOW", 0), ("accept_queue_overflow", Confidence::Proven), "drained since");
        assert_eq!(noted("NOT_SPECIFIED", 2), ("accept_queue_overflow", Confidence::Likely), "before 6.15");
        assert_eq!(noted("NOT_SPECIFIED", 1).0, "unexplained");
        let words = "its accept queue filled up after the SYN (2 waiting, 1 allowed)";
        assert_has(&verdict_of("TCP_LISTEN_OVERFLOW", 2).summary, &[words]);
    }

    /// The process accepts again, and the request gets through at the next try.
    #[test]
    fn a_queue_that_had_room_for_the_request_at_last_is_not_the_cause() {
        let mut taken = fills_up_after_syn("TCP_LISTEN_OVERFLOW", 0);
        taken.sent_again(100, false).wait_ms(1000).closes((300, 101, 0));
        assert_eq!(taken.causes(), ["slow_response"]);
        let mut lost = fills_up_after_syn("TCP_LISTEN_OVERFLOW", 2);
        lost.sent_again(100, false).wait_ms(1000).closes((300, 1, 0));
        assert_eq!(lost.settles().causes(), ["unexplained"], "the last try left no trace at the listener");
    }

    #[test]
    fn a_queue_that_resets_the_handshake_is_a_reset() {
        let mut stream = Stream::new();
        stream.connect().established();
        dropped(&mut stream, REQUEST, "TCP_LISTEN_OVERFLOW").resets((100, 1, 0));
        assert_eq!(stream.settles().causes(), ["mid_stream_rst"]);
    }

    /// A prober that sends nothing has succeeded.
    #[test]
    fn a_handshake_without_a_request_needs_no_room_in_the_queue() {
        let mut stream = Stream::new().tcp_readiness().connect().established().clone();
        dropped(&mut stream, TcpFlags(0x10), "TCP_LISTEN_OVERFLOW").closes((0, 1, 0));
        assert!(stream.settles().causes().is_empty());
    }
}
