//! A process of the target that the kernel killed for lack of memory: then it did not close on purpose, and did not end by
//! itself.

use serde_json::json;

use crate::Case;
use crate::ended::{ENDED, last_listener, listeners_ended};
use crate::evidence::evidence_of;
use crate::finding::Finding;
use crate::kubectl::with_logs;
use crate::phrases::ms;
use crate::reset::{self, destroyer};
use tracer_common::names::Hook;
use tracer_model::event::Actor;
use tracer_model::record::{Cause, Command, Confidence, Remediation, Scope};

/// The fix for a server that the kernel killed for lack of memory, by its own event.
pub const FIX: &str = "Raise the container's memory limit, or let it use less memory. memory.current, memory.max and memory.events of its cgroup show its use and its kills. If dmesg says CONSTRAINT_NONE, the node itself had no memory left: then no limit helps, but fewer pods, or their memory requests";

/// A process that is killed closes its listener within this time, however much memory it had.
const ENDS_WITHIN_NS: u64 = 10_000_000_000;
/// A process that is killed closes its connections after it has freed its memory (`exit_mm` before `exit_files` in
/// `do_exit`). One of another container that was killed long before did not close this one.
const CLOSES_WITHIN_NS: u64 = 2_000_000_000;
/// The kubelet waits five minutes at most before it starts a container again.
const BACK_OFF_NS: u64 = 300_000_000_000;

/// Names the process beside a close or a RST, or beside a refusal, since it listened there. The fix is then about its
/// memory.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    let until = case.attempt.ended.map_or(finding.decided_at, |(ended, _)| ended);
    let victim = match finding.cause {
        Cause::ClosedWithoutAnswer => closer(case, until),
        Cause::MidStreamRst if case.attempt.resets_sent().next().is_some() && destroyer(case).is_none() => {
            closer(case, until)
        }
        // Unless the container's status has shown the same.
        Cause::ConnectionRefused if !finding.remediation.text.starts_with(MORE_MEMORY) => listener(case),
        _ => None,
    };
    let Some((time, victim)) = victim else { return };
    let who = if victim.comm.is_empty() { format!("process {}", victim.pid) } else { victim.to_string() };
    let refused = finding.cause == Cause::ConnectionRefused;
    let later = if refused { String::new() } else { format!("{} later ", ms(until.saturating_sub(time))) };
    let other = if refused || is_of_server(case, victim, until) { "" } else { ", perhaps of another container," };
    if !other.is_empty() {
        finding.confidence = finding.confidence.min(Confidence::Likely);
    }
    let what = finding.summary.replacen(if other.is_empty() { ENDED } else { "" }, "", 1);
    finding.summary = format!("{who}{other} was killed for lack of memory, and {later}{what}");
    let fields = json!({ "pid": victim.pid, "netns": victim.netns, "cgroup": victim.cgroup_memory.or(victim.cgroup) });
    finding.evidence.push(evidence_of(Hook::MarkVictim.name(), time, format!("the kernel killed {who}"), fields));
    finding.scope = Some(Scope::Pod);
    let fix = Remediation::from(FIX).run([Command::on_node("dmesg | grep -i oom")]);
    finding.remediation = with_logs(case, fix);
}

/// The memory cgroup of the process that listens there, if tracer saw it begin.
fn cgroup_of_server(case: &Case<'_>) -> Option<u64> {
    let dst = case.attempt.flow.dst;
    let netns = case.node.netns_of_addr(case.attempt.netns?, dst.ip())?;
    case.node.listeners.last_at(netns, dst)?.1.actor.cgroup_memory
}

/// The victim is of the container that served: it closed, it is in the cgroup of the listener, it held the listener, or
/// the pod has no other container.
fn is_of_server(case: &Case<'_>, victim: &Actor, until: u64) -> bool {
    let is_same = || victim.cgroup_memory.is_some_and(|own| cgroup_of_server(case) == Some(own));
    closers(case, until).contains(&victim.pid) || is_same() || has_served(case, victim) || is_only(case)
}

/// The victim was read as a process that holds the target's listener, or a connection to it. A worker may have a cgroup
/// of its own, below the container's. After a while, another process may have its number.
fn has_served(case: &Case<'_>, victim: &Actor) -> bool {
    let (from, dst) = (case.attempt.netns, case.attempt.flow.dst);
    let servings = from.into_iter().flat_map(|from| case.node.targets.servings(from, dst));
    let mut recent = servings.filter(|(time, _)| time.saturating_add(BACK_OFF_NS) >= case.attempt.started);
    recent.any(|(_, serving)| serving.processes.iter().any(|it| it.pid == victim.pid))
}

/// The pod has one container, apart from ephemeral ones, which are not in the list.
fn is_only(case: &Case<'_>) -> bool {
    case.matched.probed_pod().is_some_and(|pod| pod.containers.len() == 1)
}

/// The processes of the target that are known to have closed: those that sent a RST, else those that closed a listener.
fn closers(case: &Case<'_>, until: u64) -> Vec<u32> {
    let resets = case.attempt.resets_sent().filter(|(_, reset)| reset.flow.src == case.attempt.flow.dst);
    let resets: Vec<u32> = resets.filter_map(|(_, reset)| reset::closer(reset)).map(|it| it.pid).collect();
    match resets.is_empty() {
        true => listeners_ended(case, until).map(|(_, listen)| listen.actor.pid).collect(),
        false => resets,
    }
}

/// The killed process that closed the connection, if it is known who closed. Else the last process killed in the pod's
/// network that may be of the listener's container. On the node's network others are of other pods.
pub fn closer<'a>(case: &Case<'a>, until: u64) -> Option<(u64, &'a Actor)> {
    let (attempt, node) = (case.attempt, case.node);
    let target = node.netns_of_addr(attempt.netns?, attempt.flow.dst.ip());
    let of_pod = target.filter(|netns| !node.is_a_node(*netns));
    let (closed, server) = (closers(case, until), cgroup_of_server(case));
    let differs = |victim: &Actor| victim.cgroup_memory.zip(server).is_some_and(|(own, server)| own != server);
    let is_other = |victim: &Actor| differs(victim) && !is_only(case) && !has_served(case, victim);
    let in_pod = |victim: &Actor| victim.netns.is_some() && victim.netns == of_pod && !is_other(victim);
    let is_it = |victim: &Actor| if closed.is_empty() { in_pod(victim) } else { closed.contains(&victim.pid) };
    let before = if closed.is_empty() { until.saturating_sub(CLOSES_WITHIN_NS) } else { 0 };
    let killed = node.killed_between(before.max(attempt.started), until);
    killed.filter(|(_, victim)| is_it(victim)).max_by_key(|(time, _)| *time)
}

/// The one that listened there last, in the pod's own network, which refused. If a run of the container began since, it
/// was not killed, and did not get so far.
fn listener<'a>(case: &Case<'a>) -> Option<(u64, &'a Actor)> {
    let (attempt, node) = (case.attempt, case.node);
    let netns = node.netns_of_addr(attempt.netns?, attempt.flow.dst.ip()).filter(|netns| !node.is_a_node(*netns))?;
    let mut refused = attempt.resets_sent().filter(|(_, reset)| reset.netns == Some(netns));
    let (ended, last) = last_listener(case, netns).filter(|(_, last)| refused.next().is_some() && !last.begins)?;
    let is_recent = ended.saturating_add(BACK_OFF_NS) >= attempt.started;
    let mut killed = node.killed_between(ended.saturating_sub(ENDS_WITHIN_NS), *ended);
    let found = killed.find(|(_, victim)| is_recent && victim.pid == last.actor.pid)?;
    case.matched.run_began(attempt.started).is_none_or(|began| began <= found.0).then_some(found)
}

/// The fix for a container that was OOM-killed, by its status.
pub(crate) const MORE_MEMORY: &str = "Raise the memory limit of the container, or find what fills its memory (Last State OOMKilled in the pod's status). A probe or a startupProbe does not help";

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// The pod's process is killed while a probe waits for it. `ends`: how the connection ends then.
    fn decided(pod: fn(&mut Stream) -> &mut Stream, victim: (u32, Option<Netns>), ends: fn(&mut Stream)) -> Verdict {
        let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().clone();
        pod(&mut stream).connect().established().wait_ms(20);
        let (pid, netns) = victim;
        let comm = if netns.is_some() { "worker" } else { "" };
        stream.push(ObservationKind::OomKill(Actor { pid, tid: pid, comm: comm.into(), netns, ..prober() }));
        ends(stream.wait_ms(3));
        stream.wait_ms(60).tick().verdict()
    }

    fn closes(stream: &mut Stream) {
        stream.server_closes((100, 101, 1));
    }

    fn closes_long_after(stream: &mut Stream) {
        closes(stream.wait_ms(2_500));
    }

    fn resets(stream: &mut Stream) {
        stream.resets((100, 101, 0)).reset_sent(TcpFlags(0), false, Some("worker"));
        stream.last_reset_sent().reason = Some("TCP_ABORT_ON_CLOSE".into());
    }

    fn ends(stream: &mut Stream) {
        stream.listens(NODE, 8080, false).server_closes((100, 101, 1));
    }

    fn ends_and_prober_resets(stream: &mut Stream) {
        let sent = stream.listens(NODE, 8080, false).reset_sent(TcpFlags(0), false, Some("kubelet")).last_reset_sent();
        sent.flow = sent.flow.reversed();
        sent.actor.iter_mut().for_each(|actor| actor.pid = 1);
        stream.server_closes((100, 101, 1));
    }

    fn ends_with_another(stream: &mut Stream) {
        stream.listens(NODE, 8080, false).process_listens_on(98, NODE, address("0.0.0.0:8080"), false);
        stream.server_closes((100, 101, 1));
    }

    fn ends_long_before(stream: &mut Stream) {
        stream.listens(NODE, 8080, false).wait_ms(2_500).server_closes((100, 101, 1));
    }

    #[test]
    fn a_process_that_was_killed_for_lack_of_memory_is_named() {
        let in_pod: fn(&mut Stream) -> &mut Stream = |stream| stream.pod_in(POD);
        // 99 sends the RST.
        for (pid, ends, cause) in
            [(77, closes as fn(&mut Stream), "closed_without_answer"), (99, resets, "mid_stream_rst")]
        {
            let verdict = decided(in_pod, (pid, Some(POD)), ends);
            assert_eq!((verdict.cause.name(), verdict.confidence), (cause, Confidence::Proven));
            assert_has(
                &verdict.summary,
                &[&format!("worker (pid {pid}) was killed for lack of memory, and 3.0 ms later 10.88.0.2:8080")],
            );
            assert_has(&verdict.remediation, &["Raise the container's memory limit", "dmesg | grep -i oom"]);
            assert_lacks(&verdict.remediation, &["TLS", "PROXY"]);
            assert!(verdict.evidence.iter().any(|it| it.hook == "mark_victim"));
            assert_lacks(&decided(in_pod, (77, Some(Netns(9))), ends).summary, &["memory"]);
        }
        for ends in [resets, closes_long_after] {
            assert_lacks(&decided(in_pod, (77, Some(POD)), ends).summary, &["memory"]);
        }
    }

    /// Both containers of the pod have its network.
    #[test]
    fn a_process_of_another_container_did_not_close() {
        let decided_with = |server: Option<u64>, has_other: bool, holds: Option<(u32, u64)>| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            if has_other {
                stream.second_container();
            }
            if let Some(cgroup_memory) = server {
                let actor = Actor { pid: 99, cgroup_memory: Some(cgroup_memory), ..prober() };
                let addr = address("0.0.0.0:8080");
                stream.push(ObservationKind::Listen(Listen::new(POD, addr, actor, true)));
            }
            let victim = Actor { pid: 77, netns: Some(POD), cgroup_memory: Some(7), ..prober() };
            if let Some((pid, before_ms)) = holds {
                stream.serving(Serving { processes: vec![server_process(pid, 1)], ..Serving::default() });
                stream.wait_ms(before_ms);
            }
            stream.connect().established().wait_ms(220);
            stream.push(ObservationKind::OomKill(victim));
            closes(stream.wait_ms(3));
            let verdict = stream.wait_ms(60).tick().verdict();
            (verdict.confidence, verdict.summary)
        };
        let decided = |server, has_other| decided_with(server, has_other, None);
        let (unknown, same, other) = (decided(None, true), decided(Some(7), true), decided(Some(8), true));
        assert_eq!([unknown.0, same.0, other.0], [Confidence::Likely, Confidence::Proven, Confidence::Proven]);
        assert_has(
            &unknown.1,
            &["(pid 77), perhaps of another container, was killed for lack of memory, and 3.0 ms later"],
        );
        assert_has(&same.1, &["(pid 77) was killed for lack of memory"]);
        assert_lacks(&other.1, &["memory"]);
        // Its cgroup is below the container's.
        for (confidence, worker) in [decided(Some(8), false), decided_with(Some(8), true, Some((77, 20)))] {
            assert_eq!(confidence, Confidence::Proven);
            assert_has(&worker, &["(pid 77) was killed for lack of memory"]);
        }
        for other in [(78, 20), (77, 301_000)] {
            assert_lacks(&decided_with(Some(8), true, Some(other)).1, &["memory"]);
        }
    }

    /// 99 is the process that listens.
    #[test]
    fn on_the_nodes_network_only_the_process_that_closed_is_named() {
        let of_node: fn(&mut Stream) -> &mut Stream = |stream| stream.links(true, &["10.88.0.2"]).on_host_network();
        let named = |victim| decided(of_node, victim, ends).summary;
        assert_has(&named((99, Some(NODE))), &["worker (pid 99) was killed for lack of memory"]);
        assert_has(&named((99, None)), &["process 99 was killed for lack of memory"]);
        assert_lacks(&named((77, Some(NODE))), &["memory"]);
        let named = |ends| decided(of_node, (99, Some(NODE)), ends).summary;
        assert_has(&named(ends_with_another), &["worker (pid 99) was killed for lack of memory"]);
        assert_lacks(&named(ends_long_before), &["memory"]);
        assert_has(&named(ends_and_prober_resets), &["worker (pid 99) was killed for lack of memory"]);
    }

    /// No probe was open when the container was killed.
    #[test]
    fn a_listener_that_was_killed_for_lack_of_memory_is_named() {
        let decided = |pid: u32, comes_back: bool| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).listens(POD, 8080, true).wait_ms(50).clone();
            stream.push(ObservationKind::OomKill(Actor { pid, tid: pid, netns: Some(POD), ..prober() }));
            stream.wait_ms(3).listens(POD, 8080, false).wait_ms(400);
            if comes_back {
                stream.listens(POD, 8080, true).listens(Netns(9), 8080, false);
            }
            stream.connect().reset_sent(SYN, true, None).verdict()
        };
        let killed = decided(99, false);
        assert_eq!((killed.cause.name(), killed.confidence), ("connection_refused", Confidence::Proven));
        assert_starts(&killed.summary, "kubelet (pid 99) was killed for lack of memory, and nobody listens on");
        assert_has(&killed.remediation, &["Raise the container's memory limit", "--previous"]);
        for other in [decided(77, false), decided(99, true)] {
            assert_lacks(&other.summary, &["memory"]);
        }
    }
}
