//! The target refused during its start: a process began to listen on that port later, or has not begun yet.

use super::*;
use crate::rules::startup_budget_exceeded::runs_on;
use tracer_case::ended::last_listener;
use tracer_case::other_stack::refused;
use tracer_case::refusal::{Refused, pod_elsewhere};
use tracer_case::startup_probe::may_be_startup_probe;
use tracer_case::{history, lifecycle, pod_sockets, sidecar};
use tracer_model::event::{Container, Listen, Netns, ProbeType};

/// How long a start may take before "not yet" is no longer an explanation.
const START_NS: u64 = 120_000_000_000;
/// A run and its listener ended together if less time than this is between the two. The status has whole seconds, and a
/// process may close its listener a moment before it ends.
const SAME_END_NS: u64 = 2_000_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Refused { evidence, netns, confidence } = refused(case)?;
    let (netns, at) = (netns?, evidence.iter().map(|e| e.time_boot_ns).max()?);
    let dst = case.attempt.flow.dst;
    // A container that is killed for its memory, or ends by itself, again and again is not slow to start.
    let ends = history::out_of_memory(case, at).or_else(|| history::ended_by_itself(case, at)).is_some();
    // Its own process listens on another port or address: that may be wrong, and the start is over.
    let listens = || pod_sockets::container_listens(case, netns);
    let found = match case.node.listeners.first(netns, dst) {
        // A newer namespace may have the same inode number.
        Some((began, listen)) if began > at && case.node.namespaces.made(netns).is_none_or(|made| made < at) => {
            is_in_start(case, at, began, netns).then(|| listens_later(case, evidence, at, began, listen, netns))
        }
        // The kubelet ends the container of a handler that failed: nothing gets better by itself.
        _ if ends || listens() || lifecycle::is_only_handlers(case) => None,
        first => not_yet_in_run(case, &evidence, at, netns).or_else(|| {
            let never = first.is_none() && !case.node.listeners.knows(netns, dst);
            never.then(|| not_yet(case, evidence, at, netns)).flatten()
        }),
    };
    // A second namespace with the pod's address may have refused: the reading after the failure shows who has it.
    let lacks_acceptor = pod_elsewhere(case, netns).is_some();
    found.map(|found| Finding { lacks_acceptor, ..found.at_most(confidence) })
}

/// The container was started a moment ago, and nobody has begun to listen on the port since. An earlier listener was of
/// an earlier run or an init container: it may have ended in the second of the start.
fn not_yet_in_run(case: &Case<'_>, evidence: &[Evidence], at: u64, netns: Netns) -> Option<Finding> {
    let began = case.matched.run_began(at).filter(|began| at - began < START_NS)?;
    // Another container listens there then.
    if sidecar::asked_by_pilot_agent(case).is_some() {
        return None;
    }
    let (listeners, dst) = (&case.node.listeners, case.attempt.flow.dst);
    // In a pod of several containers, another container may have listened there and stopped.
    let heard = match case.matched.is_only_container() || was_of_last_run(case, netns) {
        true => listeners.begun_since(netns, dst, began),
        false => listeners.knows(netns, dst),
    };
    if heard || (!shares_node(case) && listeners.any_since(netns, began)) {
        return None;
    }
    let evidence = [&[history::of_start(case, began)], evidence].concat();
    let summary = format!(
        "nobody listens on {dst}{} yet: its container was started at most {:.1} s before, and nobody has listened on that port since",
        in_namespace(case, Some(netns)),
        (at - began) as f64 / 1e9
    );
    let found = finding(case, evidence, summary).with_confidence(Confidence::Likely);
    Some(found.unless_a_listener_was_lost(case, began, at))
}

/// The last listener of the port stopped when the last run of the probed container ended, and no other container of the
/// pod ended then.
fn was_of_last_run(case: &Case<'_>, netns: Netns) -> bool {
    let stopped = last_listener(case, netns).filter(|(_, listen)| !listen.begins).map(|(at, _)| *at);
    let ended_then = |container: &&Container| {
        let ended = container.runs.as_ref().and_then(|runs| runs.last.as_ref()?.finished_boot_ns);
        ended.zip(stopped).is_some_and(|(ended, stopped)| ended.abs_diff(stopped) < SAME_END_NS)
    };
    let Some((pod, probed)) = case.matched.probed_container() else { return false };
    let mut ended = pod.containers.iter().filter(ended_then);
    ended.next().is_some_and(|it| std::ptr::eq(it, probed)) && ended.next().is_none()
}

/// The refusal at `at` was during the start of a process that listened from `began` on. A startup probe runs only
/// during a start. A replica that begins to listen when it becomes the leader has started long ago.
fn is_in_start(case: &Case<'_>, at: u64, began: u64, netns: Netns) -> bool {
    let took = match started(case, at, netns) {
        Some(started) => at.saturating_sub(started),
        None => began - at,
    };
    !is_restarted(case, at) && (took < START_NS || case.matched.probe_type() == Some(ProbeType::Startup))
}

/// The container was started again after the refusal: who began to listen later is of a later run.
fn is_restarted(case: &Case<'_>, at: u64) -> bool {
    let again = runs(case).filter(|runs| runs.restarts > 0).and_then(|runs| runs.started_boot_ns);
    again.is_some_and(|started| started > at)
}

/// When the run of the container, or the namespace, began.
fn started(case: &Case<'_>, at: u64, netns: Netns) -> Option<u64> {
    let run_started = runs(case).and_then(|runs| runs.started_boot_ns).filter(|started| *started <= at);
    run_started.or_else(|| case.node.namespaces.made(netns))
}

/// At that time, the run of the container, or the namespace, was young.
pub(super) fn is_starting(case: &Case<'_>, at: u64, netns: Netns) -> bool {
    started(case, at, netns).is_some_and(|started| at.saturating_sub(started) < START_NS)
}

/// A process began to listen on the port after the refusal, and none had before. Without a start that tracer saw, one
/// may have listened before tracer did.
fn listens_later(
    case: &Case<'_>,
    mut evidence: Vec<Evidence>,
    at: u64,
    began: u64,
    listen: &Listen,
    netns: Netns,
) -> Finding {
    evidence.push(of_listener(began, listen));
    let summary = format!(
        "{} began to listen on port {}{} only {} after this attempt was refused",
        listen.actor,
        listen.addr.port(),
        in_namespace(case, Some(netns)),
        ms(began.saturating_sub(at))
    );
    let since = case.node.since();
    let seen = started(case, at, netns).filter(|started| *started >= since);
    let is_known = seen.is_some() || case.matched.probe_type() == Some(ProbeType::Startup);
    let doubt = doubt(case, at, began, netns);
    let is_sure = is_known && doubt.is_empty() && !shares_node(case);
    let found = finding(case, evidence, summary + &doubt);
    let found = if is_sure { found } else { found.with_confidence(Confidence::Likely) };
    found.unless_a_listener_was_lost(case, seen.unwrap_or(since), at)
}

/// A clause if the listener may not be the one that the attempt came too early for: it is of a later run of a container
/// that crashed: its status comes a second or more later.
fn doubt(case: &Case<'_>, at: u64, began: u64, netns: Netns) -> String {
    let ran_on = |entered: &u64| case.streak.is_some_and(|streak| runs_on(case, streak, *entered, began).is_some());
    let entered = case.node.namespaces.entered(netns, at, began).filter(|it| !shares_node(case) && !ran_on(it));
    if let Some(entered) = entered {
        return format!(
            "; a process entered its network namespace {} before that: if the container crashed and was started again, the listener is of its new run",
            ms(began - entered)
        );
    }
    String::new()
}

/// The namespace is young and nobody has listened there since it was made.
fn not_yet(case: &Case<'_>, mut evidence: Vec<Evidence>, at: u64, netns: Netns) -> Option<Finding> {
    let made = case.node.namespaces.made(netns).filter(|made| *made < at && at - made < START_NS)?;
    // A process listens on another port already: this port may be wrong.
    if !shares_node(case) && case.node.listeners.any_in(netns) {
        return None;
    }
    evidence.insert(0, of_namespace(case, netns, made));
    let summary = format!(
        "nobody listens on {}{} yet: its namespace was made {} before, and nobody has listened there since",
        case.attempt.flow.dst,
        in_namespace(case, Some(netns)),
        ms(at.saturating_sub(made))
    );
    let found = finding(case, evidence, summary).with_confidence(Confidence::Likely);
    Some(found.unless_a_listener_was_lost(case, made, at))
}

fn finding(case: &Case<'_>, evidence: Vec<Evidence>, summary: String) -> Finding {
    let of_probe = if may_be_startup_probe(case) {
        IN_STARTUP_BUDGET.into()
    } else if is_readiness_only(case) {
        READINESS_ONLY.into()
    } else {
        Cause::NotListeningYet.fix()
    };
    let fix: Remediation = by_subject(case, of_probe, |client| {
        format!(
            "Let {client} retry until a process listens there. A readinessProbe of that port keeps clients of its Service away until then"
        )
    });
    Finding::failure(Cause::NotListeningYet, evidence, summary, with_log(case, fix))
}

const IN_STARTUP_BUDGET: &str = "Nothing, if it listens within the budget of its startupProbe (periodSeconds x failureThreshold): that probe waits for it. Otherwise raise its failureThreshold";

const READINESS_ONLY: &str = "Nothing, if it listens soon: the pod gets no traffic of its Services until then, and a readiness probe restarts nothing. Set its initialDelaySeconds to see fewer failures";

/// No probe of the port can restart a container. Without a list of pods: the probe that the kubelet names cannot.
fn is_readiness_only(case: &Case<'_>) -> bool {
    let probes = case.matched.possible_probes();
    let port = case.matched.redirected_from().unwrap_or_else(|| case.attempt.flow.dst.port());
    if probes.is_empty() {
        return case.attempt.kubelet().is_some_and(|(_, it)| it.probe_type == ProbeType::Readiness);
    }
    let pod = case.matched.probed_pod();
    let all = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|it| &it.probes);
    let mut of_port = all.filter(|spec| spec.port == port);
    of_port.all(|spec| spec.probe_type == ProbeType::Readiness)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The fix after a refusal in a new pod that is probed so.
    fn fix(probed: fn(&mut Stream) -> &mut Stream) -> Remediation {
        let mut stream = Stream::new();
        probed(stream.netns_made(POD)).connect().reset_sent(SYN, true, None).verdict().remediation
    }

    #[test]
    fn a_startup_probe_is_not_advised_to_a_container_that_has_one() {
        assert_has(&fix(Stream::http_startup), &["within the budget of its startupProbe"]);
        assert_lacks(&fix(Stream::http_startup), &["Give the container a startupProbe"]);
        assert_has(&fix(|stream| stream.liveness(10, 3)), &["Give the container a startupProbe"]);
    }

    /// A rolling update: nothing restarts a container for a failed readiness probe.
    #[test]
    fn a_start_that_only_a_readiness_probe_meets_needs_no_startup_probe() {
        let of_readiness = fix(Stream::http_readiness);
        assert_starts(&of_readiness, "Nothing, if it listens soon: the pod gets no traffic of its Services until then");
        assert_has(&of_readiness, &["initialDelaySeconds"]);
        assert_lacks(&of_readiness, &["startupProbe"]);
        let with_liveness = fix(|stream| stream.http_readiness().http_liveness_too());
        assert_has(&with_liveness, &["Give the container a startupProbe"]);
    }

    #[test]
    fn without_a_list_of_pods_the_kubelet_names_the_readiness_probe() {
        let mut stream = Stream::new().http_readiness().clone();
        stream.last_pods().pods[0].containers.clear();
        stream.netns_made(POD).connect().reset_sent(SYN, true, None).settles();
        assert_has(&stream.last_verdict().remediation, &["Give the container a startupProbe"]);
        stream.kubelet_at_target(ProbeOutput::Network).wait_ms(5).tick();
        assert_starts(&stream.last_verdict().remediation, "Nothing, if it listens soon");
    }

    #[test]
    fn the_pod_is_named_as_soon_as_its_address_is_known() {
        let verdict = Stream::new().http_readiness().netns_made(POD).connect().reset_sent(SYN, true, None).verdict();
        assert_has(&verdict.summary, &["in pod default/web yet"]);
        assert_eq!(verdict.evidence[0].text, "the network namespace of pod default/web was made");
    }

    #[test]
    fn every_refusal_of_a_slow_start_is_revised() {
        let mut stream = Stream::new().netns_made(POD).listens(POD, 9090, true).wait_ms(1_000).clone();
        for conn in 1..=40 {
            stream.again(conn).connect().refused().wait_ms(2_000);
        }
        let causes = stream.listens(POD, 8080, true).causes();
        let count = |wanted| causes.iter().filter(|cause| **cause == wanted).count();
        assert_eq!((count("connection_refused"), count("not_listening_yet")), (40, 40));
    }

    /// A replica that waits to become the leader begins to listen when it is the leader.
    #[test]
    fn a_listener_that_comes_long_after_the_start_is_no_start() {
        let readiness: fn(&mut Stream) = |stream| _ = stream.http_readiness();
        let probed_listens_after = |probed: fn(&mut Stream), made: bool, old_ms: u64, ms: u64| {
            let mut stream = Stream::new();
            probed(&mut stream);
            if made {
                stream.netns_made(POD);
            }
            stream.listens(POD, 9090, true).wait_ms(old_ms).connect().reset_sent(SYN, true, None);
            stream.wait_ms(ms).listens(POD, 8080, true).causes().last().copied()
        };
        let listens_after = |made, old_ms, ms| probed_listens_after(readiness, made, old_ms, ms);
        assert_eq!(listens_after(false, 0, 100_000), Some("not_listening_yet"));
        assert_eq!(listens_after(false, 0, 200_000), Some("connection_refused"), "when it began is not known");
        assert_eq!(listens_after(true, 60_000, 200_000), Some("not_listening_yet"), "refused in its start");
        assert_eq!(listens_after(true, 180_000, 1_000), Some("connection_refused"), "refused after its start");
        let startup: fn(&mut Stream) = |stream| _ = stream.http_startup();
        let late = probed_listens_after(startup, true, 180_000, 1_000);
        assert_eq!(late, Some("not_listening_yet"), "a startup probe runs only during a start");
    }

    /// The namespace is as old as the pod, and its container was started again.
    #[test]
    fn a_restart_of_the_container_is_a_start() {
        let mut stream = Stream::new();
        stream.http_readiness().netns_made(POD).listens(POD, 9090, true).wait_ms(600_000);
        let started_boot_ns = Some(stream.seconds_ago(5));
        stream.runs(Runs { restarts: 1, started_boot_ns, ..Runs::default() }).connect().reset_sent(SYN, true, None);
        stream.wait_ms(1_000).listens(POD, 8080, true);
        assert_eq!(stream.causes().last(), Some(&"not_listening_yet"));
    }

    /// It could never answer the attempt: the process is not slow, its socket is wrong.
    #[test]
    fn a_listener_for_ipv6_only_is_no_end_of_a_start() {
        let verdict = |only_v6| {
            let mut stream = Stream::new().netns_made(POD).listens(POD, 9090, true).clone();
            stream.connect().reset_sent(SYN, true, None).wait_ms(1500);
            let actor = Actor { pid: 99, ..prober() };
            let listen = Listen::new(POD, address("[::]:8080"), actor, true);
            stream.push(ObservationKind::Listen(Listen { only_v6, ..listen }));
            stream.causes().last().copied()
        };
        assert_eq!([false, true].map(verdict), [Some("not_listening_yet"), Some("connection_refused")]);
    }

    #[test]
    fn a_listener_that_shows_no_start_of_this_port_does_not_count() {
        let refused = |before: fn(&mut Stream), after: fn(&mut Stream)| {
            let mut stream = Stream::new();
            before(&mut stream);
            after(stream.connect().reset_sent(SYN, true, None).wait_ms(1500));
            stream.causes()
        };
        let ended = |stream: &mut Stream| _ = stream.netns_made(POD).listens(POD, 8080, true).listens(POD, 8080, false);
        assert_eq!(refused(ended, |stream| _ = stream.listens(POD, 8080, true)), ["connection_refused"]);
        let next_pod = |stream: &mut Stream| _ = stream.netns_made(POD).listens(POD, 8080, true);
        assert_eq!(refused(|_| (), next_pod), ["connection_refused"], "its namespace has the same number");
        assert_eq!(refused(|_| (), |stream| _ = stream.listens(POD, 8081, true)), ["connection_refused"]);
    }

    /// The container's listener was gone when tracer began. Its liveness probe ends it, and its next run listens.
    #[test]
    fn a_listener_of_a_later_run_does_not_count() {
        let mut stream = Stream::new();
        stream.wait_ms(600_000);
        let mut runs = Runs { started_boot_ns: Some(stream.seconds_ago(600)), ..Runs::default() };
        stream.liveness(1, 3).runs(runs.clone()).connect().reset_sent(SYN, true, None).wait_ms(3_000);
        (runs.restarts, runs.started_boot_ns) = (1, Some(stream.seconds_ago(1)));
        assert_eq!(stream.runs(runs).listens(POD, 8080, true).causes(), ["connection_refused"]);
    }

    /// The status has whole seconds: by it, the container began before the end of the init container.
    #[test]
    fn a_listener_of_an_init_container_is_not_the_containers() {
        let mut stream = Stream::new();
        stream.liveness(10, 3).listens(POD, 8080, true).wait_ms(1_500);
        let started_boot_ns = Some(stream.seconds_ago(0));
        stream.wait_ms(100).listens(POD, 8080, false).runs(Runs { started_boot_ns, ..Runs::default() });
        let verdict = stream.wait_ms(800).connect().reset_sent(SYN, true, None).verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::NotListeningYet, Confidence::Likely));
    }

    /// A container that listened, died, and was started again a second ago.
    fn restarted() -> Stream {
        let mut stream = Stream::new();
        stream.liveness(10, 3).listens(POD, 8080, true).wait_ms(60_000).listens(POD, 8080, false).wait_ms(2_000);
        let started_boot_ns = Some(stream.seconds_ago(1));
        stream.runs(Runs { restarts: 1, started_boot_ns, ..Runs::default() });
        stream
    }

    #[test]
    fn a_restarted_container_does_not_listen_yet() {
        let refused = |since: fn(&mut Stream)| {
            let mut stream = restarted();
            since(&mut stream);
            stream.connect().reset_sent(SYN, true, None).causes()
        };
        assert_eq!(refused(|_| ()), ["not_listening_yet"]);
        assert_eq!(refused(|stream| _ = stream.runs(Runs::default())), ["connection_refused"], "its time is unknown");
        let listened = |stream: &mut Stream| _ = stream.listens(POD, 8080, true).wait_ms(500).listens(POD, 8080, false);
        assert_eq!(refused(listened), ["connection_refused"], "this run stopped listening");
        assert_eq!(refused(|stream| _ = stream.wait_ms(180_000)), ["connection_refused"], "long past its start");
    }

    /// Seen with a real kubelet: a liveness probe ended one of two containers, and its next run was slow to listen.
    #[test]
    fn a_restarted_container_beside_another_one_does_not_listen_yet() {
        let cause = |ended: [Option<u64>; 2]| {
            let mut stream = restarted();
            let containers = &mut stream.second_container().last_pods().pods[0].containers;
            for (container, ended) in containers.iter_mut().zip(ended) {
                let runs = container.runs.get_or_insert_default();
                let finished_boot_ns = ended.and_then(|ago: u64| runs.started_boot_ns?.checked_sub(ago));
                runs.last = Some(Ended { exit_code: 137, finished_boot_ns, ..Ended::default() });
            }
            let verdict = stream.connect().reset_sent(SYN, true, None).verdict();
            (verdict.cause, verdict.confidence)
        };
        let refused = (Cause::ConnectionRefused, Confidence::Proven);
        let second = 1_000_000_000;
        assert_eq!(cause([Some(second), None]), (Cause::NotListeningYet, Confidence::Likely));
        assert_eq!(cause([None, Some(second)]), refused, "the other container listened there");
        assert_eq!(cause([Some(second), Some(second)]), refused, "one of both listened there");
        assert_eq!(cause([Some(30 * second), None]), refused, "its listener stopped long after that");
        assert_eq!(cause([None, None]), refused);
    }

    /// A full ring loses all events for a while. A kernel that skips runs of programs does so all the time (7.2).
    #[test]
    fn lost_events_make_an_absent_listener_less_sure() {
        let refused = |place: &str| {
            let mut stream = Stream::new();
            stream.netns_made(POD).wait_ms(100).lost_in(place, 1).wait_ms(5000).connect().reset_sent(SYN, true, None);
            let verdict = stream.verdict();
            (verdict.cause.name(), verdict.confidence, verdict.summary.contains("; 1 event was lost since"))
        };
        assert_eq!(refused("ring"), ("connection_refused", Confidence::Proven, false));
        assert_eq!(refused("program"), ("not_listening_yet", Confidence::Likely, true));
        assert_eq!(refused("listen"), ("not_listening_yet", Confidence::Likely, true));
        assert_eq!(refused("map"), ("not_listening_yet", Confidence::Likely, false));
        assert_eq!(refused("namespace"), refused("map"));
    }

    /// The container had listened, or may have, before tracer began.
    #[test]
    fn a_start_before_tracer_makes_a_later_listener_likely() {
        let listens_later = |began: bool, lost: u64| {
            let mut stream = Stream::new();
            stream.wait_ms(5_000).push(ObservationKind::Start(Box::new(tracer_core::testing::start()))).wait_ms(3_000);
            let started_boot_ns = Some(stream.seconds_ago(if began { 2 } else { 5 }));
            stream.http_readiness().runs(Runs { started_boot_ns, ..Runs::default() }).wait_ms(500);
            stream.listens(POD, 9090, true);
            if lost > 0 {
                stream.lost_in("ring", lost).wait_ms(100);
            }
            stream.connect().reset_sent(SYN, true, None).wait_ms(1_500).listens(POD, 8080, true);
            stream.last_decided()
        };
        assert_eq!(listens_later(true, 0), ("not_listening_yet", Confidence::Proven));
        assert_eq!(listens_later(false, 0), ("not_listening_yet", Confidence::Likely));
        assert_eq!(listens_later(true, 1), ("not_listening_yet", Confidence::Likely), "it may have listened before");
    }

    /// Seen on a node: a second namespace got the pod's address. The pod had listened since before tracer began.
    #[test]
    fn a_young_namespace_beside_the_pods_is_not_its_start() {
        let other = Netns(7);
        let cause = |holders: &[Netns], accepts: Option<&str>| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).netns_made(other).wait_ms(200).clone();
            stream.connect().refused_in(other).wait_ms(7).pod_sockets(|reading| {
                (reading.holders, reading.accepts) = (holders.to_vec(), accepts.map(address));
            });
            stream.wait_ms(600).tick().verdict()
        };
        let (both, any) = ([POD, other], Some("0.0.0.0:8080"));
        let beside = cause(&both, any);
        assert_eq!((beside.cause, beside.confidence), (Cause::ConnectionRefused, Confidence::Likely));
        assert_has(
            &beside.summary,
            &["; a process listens there in the pod's own network namespace 2, and did not get"],
        );
        assert_lacks(&beside.summary, &["either may be"]);
        assert_lacks(&beside.remediation, &["startupProbe"]);
        assert_eq!(cause(&both, None).cause, Cause::NotListeningYet, "nobody listens in the pod's either");
        assert_eq!(cause(&[], any).cause, Cause::NotListeningYet, "the sandbox was made again");
    }

    /// A crash and an immediate restart: the status comes later. Or the socket is of another process of the node.
    #[test]
    fn a_listener_that_may_be_of_another_run_or_process_is_likely() {
        let listens_later = |id: bool, between: fn(&mut Stream), bound: &str| {
            let mut stream = Stream::new().http_readiness().netns_made(POD).listens(POD, 9090, true).clone();
            if id {
                stream.container_id("one");
            }
            stream.wait_ms(500).connect().refused().wait_ms(500);
            between(&mut stream);
            let verdict = stream.wait_ms(100).listens_on(POD, address(bound), true).last_verdict();
            assert_eq!(verdict.cause, Cause::NotListeningYet);
            (verdict.confidence, verdict.summary)
        };
        let plain = listens_later(false, |_| (), "0.0.0.0:8080");
        assert_eq!(plain.0, Confidence::Proven);
        let entered = listens_later(true, |stream| _ = stream.netns_entered(POD), "0.0.0.0:8080");
        assert_eq!(entered.0, Confidence::Likely);
        assert_has(&entered.1, &["; a process entered its network namespace 100.0 ms before that: if the container"]);
        let on_node = listens_later(false, |stream| _ = stream.on_host_network(), "0.0.0.0:8080");
        assert_eq!(on_node.0, Confidence::Likely);
    }

    /// As the entrypoint of a database does while it prepares.
    #[test]
    fn a_listener_on_the_loopback_address_is_not_the_ports() {
        let mut stream = Stream::new();
        let local = address("127.0.0.1:8080");
        stream.http_readiness().netns_made(POD).listens_on(POD, local, true).wait_ms(500);
        stream.connect().refused().wait_ms(500).listens_on(POD, local, false).wait_ms(10);
        stream.again(8).connect().refused().wait_ms(500).listens_on(POD, local, true);
        assert_eq!(stream.causes(), ["connection_refused", "not_listening_yet"]);
        let causes = stream.listens_on(POD, local, false).wait_ms(10).listens(POD, 8080, true).causes();
        assert_eq!(causes, ["connection_refused", "not_listening_yet", "not_listening_yet"], "the first is revised");
    }

    /// A process begins to listen on another address, and the next probe is refused, too. To listen for IPv4 alone is a
    /// common mistake where pods have IPv6 addresses.
    #[test]
    fn a_listener_on_another_address_does_not_count() {
        let refused = |to: &str, bound: &str| {
            let mut stream = Stream::to(to);
            stream.connect().refused().wait_ms(1500).listens_on(POD, address(bound), true);
            stream.again(9).connect().refused();
            assert_eq!(stream.causes(), ["connection_refused", "connection_refused"]);
            stream.last_verdict().summary
        };
        assert_ends(&refused("10.88.0.2:8080", "127.0.0.1:8080"), "; app (pid 99) listens on 127.0.0.1:8080 only");
        assert_ends(&refused("[fd00::2]:8080", "0.0.0.0:8080"), "listens on 0.0.0.0:8080 only");
        let own = address("[::ffff:10.88.0.2]:8080");
        let mut bound = Stream::new();
        bound.connect().refused().wait_ms(1500).listens_on(POD, own, true);
        assert_eq!(bound.causes(), ["connection_refused", "not_listening_yet"]);
    }

    /// For example, the container runtime listens for a log stream.
    #[test]
    fn another_listener_on_the_node_does_not_count_for_a_host_network_pod() {
        let refused = |shared: bool| {
            let mut stream = restarted();
            if shared {
                stream.on_host_network();
            }
            stream.listens(POD, 38_211, true).connect().reset_sent(SYN, true, None).causes()
        };
        assert_eq!((refused(true), refused(false)), (vec!["not_listening_yet"], vec!["connection_refused"]));
    }

    /// The node's sockets are read after the first refusal.
    #[test]
    fn a_host_network_container_that_listens_elsewhere_has_started() {
        let refused = |container: &str| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).http_readiness().container_id("own").clone();
            stream.on_host_network().last_pods().pods[0].uid = Some("uid".into());
            let started_boot_ns = Some(stream.wait_ms(5_000).seconds_ago(2));
            stream.runs(Runs { started_boot_ns, ..Runs::default() }).pod_sockets(|it| {
                let server = Listener { pid: 7, comm: "app".into() };
                let (addr, container) = (address("127.0.0.1:8080"), Some(container.into()));
                it.elsewhere = vec![ListenerAt { addr, device: None, server, container }];
                (it.netns, it.pod) = (Some(NODE), Some("uid".into()));
            });
            stream.wait_ms(1_000).connect().reset_sent(SYN, true, None).last_reset_sent().netns = Some(NODE);
            stream.verdict().cause.name()
        };
        assert_eq!((refused("own"), refused("other")), ("connection_refused", "not_listening_yet"));
    }

    #[test]
    fn a_rst_that_was_dropped_is_named() {
        let mut stream = Stream::new().http_readiness().netns_made(POD).connect().reset_sent(SYN, true, None).clone();
        let verdict = stream.drop_back(TcpFlags(0x14), "NETFILTER_DROP").gives_up().verdict();
        assert_eq!(verdict.cause, Cause::NotListeningYet);
        assert_ends(
            &verdict.summary,
            "; netfilter on the node drops the RST of the refusal: the prober gets no answer",
        );
        assert!(verdict.evidence.iter().any(|it| it.hook == "kfree_skb"));
    }

    /// 5.10 without programs on functions.
    #[test]
    fn the_verdict_is_no_surer_than_the_refusal() {
        let reported = |proven: bool| {
            let mut stream = Stream::new().missing(Hook::TcpV4SendReset).http_startup().connect().clone();
            if proven {
                stream.reset_sent(SYN, true, None);
            } else {
                stream.drop_with(SYN, POD, |drop| drop.location = Some("tcp_v4_rcv".into()));
            }
            stream.reset_received(TcpState::SynSent, 0).wait_ms(300).listens(POD, 8080, true).gives_up();
            stream.last_decided()
        };
        assert_eq!(reported(true), ("not_listening_yet", Confidence::Proven));
        assert_eq!(reported(false), ("not_listening_yet", Confidence::Likely));
    }
}
