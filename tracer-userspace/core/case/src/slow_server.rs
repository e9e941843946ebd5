//! What a server did that took a request and did not answer in time: a clause and a fix for the rules of slow
//! answers.

use crate::accept_queue::queues;
use crate::case::{Case, inspected};
use crate::finding::Finding;
use crate::halt::{Halt, halt_of, pause};
use crate::held_answer::{in_second_half, is_nowhere, lost_late};
use crate::history::previous_log;
use crate::phrases::run_in;
use crate::pod_sockets::{FRESH_NS, detour};
use crate::serving::{
    INSPECTION_NS, all_blocked, blocked, connection, crashed, first_name, name, other_queue, places, readings,
    show_translation,
};
use crate::sidecar::waits_for;
use crate::{unread_server, waits};
use tracer_model::event::{ServedConnection, Serving};
use tracer_model::plural::counted;
use tracer_model::record::{Cause, Command, Confidence, Remediation};

/// A clause about a halted process. If several serve the port (SO_REUSEPORT), the connection may wait in its queue.
fn halted(reading: &Serving) -> String {
    let halted = reading.processes.iter().find_map(|it| Some((it, halt_of(it)?)));
    halted.map_or_else(String::new, |(it, halt)| format!("; {} {}", name(std::slice::from_ref(it)), halt.description()))
}

const SLOW: &str = ": its handler is slow";

const SLOW_OR_LATE: &str = ": its handler is slow, or too little time was left";

const SLOW_OR_PAUSED: &str = ": its handler is slow, or that pause was too long";

const SLOW_OR_STARVED: &str = ": its handler is slow, or it gets no CPU time";

const FIND_CRASH: &str = "Find why the server crashed, by its log and its core dump. A longer timeout does not help: it answers again only after its restart";

/// No handler runs in the handshake of TLS.
const UNANSWERED: &str = " and did not answer";

const NOT_ACCEPTED: &str = "Find why the server accepts no connections: its workers are all busy, its event loop is blocked, or it has no file descriptors left";

/// Several sockets listen on the port (SO_REUSEPORT).
const EACH_QUEUE: &str = "Find the listener with Recv-Q above 0: its process accepts nothing. ";

const NOT_READ: &str =
    "Find why the server does not read what it accepted: its workers are all busy, or its event loop is blocked";

/// What to do if nothing took the request, and on which processes.
fn unblock(case: &Case<'_>, reading: &Serving, connection: &ServedConnection) -> Option<(String, Option<Command>)> {
    match (connection.accepted, connection.unread) {
        (true, 0) => return None,
        (true, _) => return Some((NOT_READ.to_owned(), None)),
        (false, _) => {}
    }
    let stopped = reading.processes.iter().find(|it| matches!(halt_of(it), Some(Halt::Stopped)));
    if stopped.is_none() && all_blocked(reading).is_some() {
        return Some((
            format!("Find what {} waits for in the kernel", first_name(reading)),
            waits::show(&reading.processes),
        ));
    }
    let Some(stopped) = stopped else {
        if !connection.waits_at.is_empty() {
            let show = run_in(case, inspected(case).and_then(|(_, it)| it.netns), "ss -ltnp".to_owned());
            let who = match reading.processes.is_empty() {
                true => format!("the process that listens on {}", places(connection)),
                false => name(&reading.processes),
            };
            return Some((format!("{NOT_ACCEPTED}. The server is {who}, not the one on the probe's port"), Some(show)));
        }
        let show = queues(case)
            .map(|(netns, _)| run_in(case, netns, format!("ss -ltnp 'sport = :{}'", case.attempt.flow.dst.port())));
        let first = if show.is_some() { EACH_QUEUE } else { "" };
        return Some((format!("{first}{NOT_ACCEPTED}"), show));
    };
    let who = name(std::slice::from_ref(stopped));
    let text = format!("Resume {who}: it gets its share of the connections. If that does not help: {NOT_ACCEPTED}");
    Some((text, Some(Command::on_node(format!("kill -CONT {}", stopped.pid)))))
}

/// The handshake is over, and no socket of the target's namespace has the connection: something else took it.
fn is_elsewhere(case: &Case<'_>) -> bool {
    let (Some(established), src) = (case.attempt.established_at(), case.attempt.flow.src) else { return false };
    let all = readings(case);
    // The readings between may be for other attempts.
    let last = all.iter().rev().find(|(_, reading)| reading.no_connection_of == Some(src));
    let is_later = last.is_some_and(|(time, _)| *time > established.saturating_add(INSPECTION_NS));
    is_later && connection(case).is_none()
}

const ELSEWHERE: &str = "; no socket of the target's network namespace has this connection: an address translation of the node or the pod, a proxy or a virtual machine took it";

/// Names who took a connection that the target's namespace does not have. What did is likely only.
fn add_taker(case: &Case<'_>, finding: &mut Finding) {
    finding.confidence = finding.confidence.min(Confidence::Likely);
    let first = match detour(case, FRESH_NS) {
        Some(detour) => {
            let (server, app) = (detour.server(), detour.passed_over());
            finding.summary += &format!(
                "; {server} took it: the pod's own address translation sends that port to it, and not to {app}, which listens on port {}{}",
                case.attempt.flow.dst.port(),
                detour.of_earlier()
            );
            finding.evidence.push(detour.evidence(case));
            Remediation::from(format!("Find why {server} does not answer")).run(detour.commands(case))
        }
        None => {
            finding.summary += ELSEWHERE;
            Remediation::from("Find who took the connection: the source of the answer in its conntrack entry")
                .run(show_translation(case))
        }
    };
    finding.change_fix(|fix| first.then("If it is only slow", fix));
}

const NOWHERE: &str = "; no network namespace of this node had the target's address: the pod lost it meanwhile, or has a network stack of its own (gVisor)";

/// The server was halted for a part of the time. Returns whether it was.
fn add_pause(case: &Case<'_>, finding: &mut Finding) -> bool {
    let Some(pause) = pause(case) else { return false };
    finding.confidence = finding.confidence.min(Confidence::Likely);
    finding.summary += &format!("; {} of that time", pause.words());
    finding.evidence.push(pause.evidence());
    let first = format!("If the process runs again, {}", pause.halt.find_culprit());
    finding.change_fix(|fix| fix.reword(|text| format!("{first}. If that does not help: {text}")));
    true
}

/// Says whether the server read the request: then its handler is slow; otherwise nothing took the request. `is_late`: it
/// had the smaller part of the time.
pub fn add(case: &Case<'_>, finding: &mut Finding, is_late: bool) {
    if is_elsewhere(case) {
        return add_taker(case, finding);
    }
    let mut slow = if is_late { SLOW_OR_LATE } else { SLOW };
    if let Some(words) = lost_late(case) {
        finding.confidence = finding.confidence.min(Confidence::Likely);
        finding.summary +=
            &format!("; in the second half of that time, {words}: an answer after that could not arrive");
    } else if is_nowhere(case) {
        finding.confidence = finding.confidence.min(Confidence::Likely);
        finding.summary += NOWHERE;
    } else if unread_server::add(case, finding) {
        slow = SLOW_OR_STARVED;
    }
    if add_pause(case, finding) {
        slow = SLOW_OR_PAUSED;
    }
    let (Some((time, reading)), Some(connection)) = (readings(case).last().copied(), connection(case)) else { return };
    if in_second_half(case, time) == Some(false) {
        finding.confidence = finding.confidence.min(Confidence::Likely);
    }
    if let Some(words) = crashed(reading, connection.pid) {
        finding.summary += &format!("; {words}");
        let log = case.matched.probed_container().map(|(_, container)| previous_log(case, container));
        finding.change_fix(|_| Remediation::from(FIND_CRASH).run(log).run([Command::on_node("coredumpctl list")]));
        return;
    }
    let holder = reading.processes.iter().find(|it| connection.pid == Some(it.pid));
    let server = holder.map_or_else(|| name(&reading.processes), |it| name(std::slice::from_ref(it)));
    if let Some((first, command)) = unblock(case, reading, connection) {
        finding.change_fix(|fix| fix.reword(|text| format!("{first}. If it is only slow: {text}")).run(command));
    }
    let slow = if finding.cause == Cause::TlsHandshakeSlow && slow == SLOW { UNANSWERED } else { slow };
    let known = || holder.and_then(blocked).or_else(|| waits_for(case)).map(|why| format!(": {why}"));
    let why = || known().unwrap_or_else(|| slow.to_owned());
    finding.summary += &match (connection.accepted, connection.unread) {
        (false, _) => {
            let blocked = all_blocked(reading).map(|words| format!("; {words}")).unwrap_or_default();
            let queue = match (other_queue(case), queues(case)) {
                (Some(place), _) if reading.processes.is_empty() => format!("the queue of the listener on {place}"),
                (Some(place), _) => format!("the queue of {server}, on {place}"),
                (None, Some((_, count))) => {
                    format!("one of the {count} queues of {server} (SO_REUSEPORT: each listener has its own)")
                }
                (None, None) => format!("the queue of {server}"),
            };
            format!("; nobody had accepted it: it waited in {queue}{}{blocked}", halted(reading))
        }
        (true, 0) => format!("; {server} had read it{}", why()),
        (true, bytes) => format!("; {} of it lay unread in {server}", counted(u64::from(bytes), "byte")),
    };
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn each_listener_of_several_has_a_queue_of_its_own() {
        let reported = |listeners: usize| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().connect().established().clone();
            let (processes, connection) = ([7, 8].map(|pid| server_process(pid, 1)).into(), Some(served(100, false)));
            let serving = Serving { processes, connection, ..Serving::default() };
            stream.wait_ms(700).inspection(|reading| {
                reading.listeners = Some(vec![listener(0, 64); listeners]);
                reading.serving = Some(Box::new(serving));
            });
            stream.wait_ms(300).closes((100, 101, 0)).verdict()
        };
        let several = reported(2);
        assert_ends(
            &several.summary,
            "it waited in one of the 2 queues of app (pid 7) and 1 other (SO_REUSEPORT: each listener has its own)",
        );
        assert_has(&several.remediation, &["Find the listener with Recv-Q above 0", "ss -ltnp 'sport = :8080'"]);
        let one = reported(1);
        assert_ends(&one.summary, "it waited in the queue of app (pid 7) and 1 other");
        assert_lacks(&one.remediation, &["Recv-Q"]);
    }

    /// The process keeps its sockets until its core dump is written.
    #[test]
    fn a_server_that_crashed_is_not_slow() {
        let reported = |(unread, accepted), core_dumping: bool| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(500).clone();
            let process = ServerProcess { core_dumping, ..server_process(7, 1) };
            let connection = Some(served(unread, accepted));
            stream.serving(Serving { processes: vec![process], connection, ..Serving::default() });
            let verdict = stream.wait_ms(500).closes((100, 101, 0)).verdict();
            assert_eq!(verdict.cause.name(), "slow_response");
            verdict
        };
        for connection in [(0, true), (100, true), (100, false)] {
            let crashed = reported(connection, true);
            assert_has(&crashed.summary, &["; app (pid 7) has crashed, and the kernel writes its core dump"]);
            assert_starts(&crashed.remediation, "Find why the server crashed");
            assert_has(&crashed.remediation, &["kubectl logs", "--previous", "coredumpctl"]);
            assert_lacks(&crashed.remediation, &["timeoutSeconds"]);
            assert_lacks(&reported(connection, false).summary, &["crashed"]);
        }
    }

    /// TPROXY of the pod gave the connection to a proxy on another port. The application's queue is empty.
    #[test]
    fn a_connection_in_the_queue_of_a_transparent_proxy_is_not_the_applications() {
        let reported = |processes: Vec<ServerProcess>| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().connect().established().clone();
            let connection = Some(ServedConnection { waits_at: vec![address("0.0.0.0:15006")], ..served(100, false) });
            let serving = Serving { processes, connection, ..Serving::default() };
            stream.wait_ms(200).serving(serving.clone()).wait_ms(500).inspection(|reading| {
                reading.listeners = Some(vec![listener(0, 64), listener(0, 64)]);
                reading.serving = Some(Box::new(serving));
            });
            let verdict = stream.wait_ms(300).closes((100, 101, 0)).verdict();
            assert_eq!(verdict.cause.name(), "slow_response");
            verdict
        };
        let verdict = reported(vec![server_process(7, 1)]);
        assert_eq!(verdict.confidence, Confidence::Proven);
        let place = "it waited in the queue of app (pid 7), on 0.0.0.0:15006 and not on port 8080: a transparent proxy";
        assert_has(&verdict.summary, &[place]);
        assert_has(&verdict.remediation, &["The server is app (pid 7), not the one on the probe's port", "ss -ltnp"]);
        let unknown = reported(Vec::new());
        assert_has(&unknown.summary, &["it waited in the queue of the listener on 0.0.0.0:15006 and not on port 8080"]);
        assert_has(&unknown.remediation, &["The server is the process that listens on 0.0.0.0:15006, not the one"]);
    }

    /// A NAT rule sent the connection to another process than the target's.
    #[test]
    fn a_connection_that_the_target_does_not_have_is_taken_by_another() {
        let silent = |after_ms: u64, peer: &str| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).http_readiness().connect().established().wait_ms(after_ms);
            // The second one is of another attempt, which waits for the same target.
            let of = |peer: Option<&str>| {
                let processes = vec![server_process(7, 1)];
                Serving { processes, no_connection_of: peer.map(address), ..Serving::default() }
            };
            for peer in [peer, "10.88.0.1:40009"] {
                stream.serving(of(Some(peer)));
            }
            stream.wait_ms(900 - after_ms).serving(of(None));
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick();
            let verdict = stream.verdict();
            assert_eq!(verdict.cause.name(), "slow_response");
            verdict
        };
        let taken = silent(500, "10.88.0.1:40000");
        assert_eq!(taken.confidence, Confidence::Likely);
        assert_has(&taken.summary, &["no socket of the target's network namespace has this connection"]);
        assert_has(&taken.remediation, &["Find who took the connection", "conntrack -L -p tcp --dport 8080"]);
        let other = silent(500, "10.88.0.1:40001");
        assert_eq!(other.confidence, Confidence::Proven, "the reading was for another attempt");
        assert_eq!(silent(50, "10.88.0.1:40000").confidence, Confidence::Proven, "it may be from before the handshake");
    }

    /// Old conntrack tools list IPv4 only without an option.
    #[test]
    fn the_entries_of_ipv6_are_listed() {
        let mut stream = Stream::to("[fd00::2]:8080").links(true, &["10.88.0.1"]).connect().established().clone();
        stream.wait_ms(500).serving(Serving {
            processes: vec![server_process(7, 1)],
            no_connection_of: Some(address("10.88.0.1:40000")),
            ..Serving::default()
        });
        let verdict = stream.wait_ms(501).closes((100, 101, 0)).wait_ms(5).tick().verdict();
        assert_has(&verdict.remediation, &["conntrack -L -f ipv6 -p tcp --dport 8080"]);
    }
}
