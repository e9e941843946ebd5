//! The listener's accept queue is full: the kernel drops the SYN and sends no answer.

use super::super::serving::{name, readings};
use super::refusal::takes;
use super::target_frozen::halt;
use super::*;
use tracer_model::event::{Inspection, ListenQueue, ListenerState, MOST_LISTENERS, Netns};

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return None;
    }
    by_hook(case).or_else(|| by_inspection(case))
}

/// A hook saw that this attempt's SYN arrived at a full queue.
fn by_hook(case: &Case<'_>) -> Option<Finding> {
    let (time, met) = case.attempt.queue_full(ListenQueue::Accept).filter(|(time, _)| is_unanswered(case, *time))?;
    let text = format!("the SYN met a listener with {} connections waiting, of {} allowed", met.waiting, met.backlog);
    let fields = json!({ "waiting": met.waiting, "backlog": met.backlog, "netns": met.netns });
    let evidence = evidence_of(Hook::TcpConnRequest.name(), time, text, fields);
    Some(finding(case, evidence, (met.waiting, met.backlog), met.netns))
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
    Some(found.with_confidence(Confidence::Likely).resting_on(&[Hook::KfreeSkb]))
}

/// The listener with the most waiting connections among those that were full at the inspection.
/// Full means more than the maximum (`sk_acceptq_is_full`, include/net/sock.h).
pub(super) fn fullest_queue<'a>(case: &Case<'a>) -> Option<(u64, &'a Inspection, &'a ListenerState)> {
    inspections(case).find_map(|(time, reading)| {
        let full = listeners(case, reading).into_iter().filter(|listener| listener.waiting > listener.backlog);
        Some((time, reading, full.max_by_key(|listener| listener.waiting)?))
    })
}

/// The listeners that can get this attempt's SYN, by the inspection: one, or several with SO_REUSEPORT.
pub(super) fn listeners<'a>(case: &Case<'_>, reading: &'a Inspection) -> Vec<&'a ListenerState> {
    let target = case.attempt.flow.dst.ip();
    let fits = |l: &&ListenerState| takes(l.addr.ip(), target);
    reading.listeners.iter().flatten().filter(fits).collect()
}

/// Evidence of the queue of a listener, by an inspection.
pub(super) fn of_queue(time: u64, listener: &ListenerState) -> Evidence {
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

fn finding(case: &Case<'_>, evidence: Evidence, (waiting, backlog): (u32, u32), netns: Option<Netns>) -> Finding {
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "{dst} listens, but its accept queue is full ({waiting} waiting, {backlog} allowed): the kernel drops the SYN silently"
    );
    let summary = summary + &describe_halt(case).unwrap_or_default();
    Finding::failure(Cause::AcceptQueueOverflow, vec![evidence], summary, make_room(case, netns)).until_answered()
}

/// The process could not accept when it was read last. One reading does not show for how long.
fn describe_halt(case: &Case<'_>) -> Option<String> {
    let (_, reading) = readings(case).last().copied()?;
    Some(format!("; at one reading, {} {}", name(&reading.processes), halt(reading)?.description()))
}

pub(super) fn make_room(case: &Case<'_>, netns: Option<Netns>) -> Remediation {
    let own = "in the pod's securityContext.sysctls (the kubelet must allow it)";
    let place = if netns.is_some() && netns == case.node.netns() { "on the node" } else { own };
    let port = case.attempt.flow.dst.port();
    let listeners = format!("ss -ltn 'sport = :{port}'");
    let text = format!(
        "Let the process on port {port} accept faster. Or raise its listen backlog and net.core.somaxconn {place}, and restart it. The queue is full if Recv-Q is above Send-Q"
    );
    let show = if netns.is_some() { run_in(case, netns, listeners) } else { Command::in_pod(listeners) };
    Remediation::from(text).run([show])
}

#[cfg(test)]
mod tests {
    use super::MOST_LISTENERS;
    use tracer_core::testing::*;

    fn waiting(waiting: u32, backlog: u32) -> Vec<&'static str> {
        causes_with(&[(waiting, backlog)])
    }

    fn causes_with(queues: &[(u32, u32)]) -> Vec<&'static str> {
        inspected(queues).causes()
    }

    fn inspected(queues: &[(u32, u32)]) -> Stream {
        let mut stream = Stream::new();
        stream.connect().wait_ms(200).inspection(|reading| {
            reading.netns = Some(POD);
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
        assert_eq!(causes_with(&[(0, 1), (2, 1)]), ["accept_queue_overflow"]);
        assert_eq!(causes_with(&[(0, 1), (1, 1)]), ["unexplained"]);
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

    #[test]
    fn a_queue_is_full_only_above_its_maximum() {
        assert_eq!(waiting(2, 1), ["accept_queue_overflow"]);
        assert_eq!(waiting(1, 1), ["unexplained"]);
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

    #[test]
    fn a_syn_that_arrived_at_a_full_queue_is_enough() {
        assert_eq!(Stream::new().connect().queue_full(ListenQueue::Accept).causes(), ["accept_queue_overflow"]);
    }
}
