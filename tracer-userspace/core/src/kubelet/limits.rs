//! What limited the container of a command that failed: its processes and its memory, or what its tasks waited for.
//!
//! The kubelet's line comes after the failure, so the cgroup is read then. A counter counts since the cgroup was made:
//! it shows more if there is an earlier reading, from the failure before, or from just before this attempt.

use serde_json::json;

use super::command_fix::has_no_program;
use super::not_started::{self, Limit, NotStarted};
use super::{container, exec_spec, pod};
use tracer_attempts::correlate::node::Node;
use tracer_case::evidence::evidence_of;
use tracer_case::finding::Finding;
use tracer_case::stall::stall;
use tracer_case::throttling;
use tracer_model::event::{CgroupCounters, ContainerLimits, KubeletProbe, Netns, ProbeOutput, Serving};
use tracer_model::record::{Cause, Evidence};

/// The time of a line is turned into boot time, which is not exact.
const MARGIN_NS: u64 = 100_000_000;
/// A reading so long before the line is from before a command that could not be run.
const BEFORE_NS: u64 = 1_000_000_000;
/// The container is read so long before the next attempt is due. A kubelet comes late rather than early.
const LEAD_NS: u64 = 300_000_000;
/// runc needs about ten threads in the container. So a limit is as good as reached if there is room for fewer.
const ROOM: u64 = 16;

/// The container of which the limits can explain this outcome: a namespace with its processes, and its id.
pub(crate) fn container_to_read(probe: &KubeletProbe, node: &Node) -> Option<(Netns, String)> {
    let may_explain = probe.reason == ProbeOutput::CommandTimeout || !limits(probe).is_empty();
    let id = container(probe, node).filter(|_| may_explain)?.id.clone()?;
    Some((pod(&probe.pod, node)?.netns?, id))
}

/// When to read the container before the next attempt of a command that did not end in time.
pub(crate) fn before_next(probe: &KubeletProbe, node: &Node) -> Option<u64> {
    let spec = exec_spec(probe, node).filter(|_| probe.reason == ProbeOutput::CommandTimeout)?;
    let pause_ns = u64::from(spec.period_s.saturating_sub(spec.timeout_s)).saturating_mul(1_000_000_000);
    // Without a pause, the reading of this failure is one from before the next attempt.
    (pause_ns > 0).then(|| probe.written_boot_ns.saturating_add(pause_ns).saturating_sub(LEAD_NS))
}

/// The command ran, and ended with an error. It may have been killed, or could not fork.
fn has_ended(probe: &KubeletProbe) -> bool {
    probe.is_counted() && matches!(probe.reason, ProbeOutput::Other | ProbeOutput::PrintedNothing)
}

/// The limits that can have stopped the runtime, by its message, or a command that ended with an error.
fn limits(probe: &KubeletProbe) -> &'static [Limit] {
    if has_ended(probe) {
        return &[Limit::Processes, Limit::Memory];
    }
    let output = probe.output.as_deref().filter(|_| probe.reason == ProbeOutput::CommandNotRun);
    output.filter(|_| !has_no_program(probe)).map_or(&[], not_started::limits)
}

/// The limit that stopped the runtime or the command, by the message and the counters of the container.
pub(super) fn reached(probe: &KubeletProbe, node: &Node) -> Option<(&'static NotStarted, Evidence)> {
    let written = probe.written_boot_ns;
    let now = last(probe, node)?;
    // An older reading does not tell when the limit was reached.
    let oldest_ns = exec_spec(probe, node).map_or(0, |spec| u64::from(spec.period_s).saturating_mul(2_000_000_000));
    let before = readings(probe, node)?
        .find(|(time, _)| time.saturating_add(BEFORE_NS) <= written)
        .filter(|(time, _)| written.saturating_sub(*time) <= oldest_ns);
    let ended = has_ended(probe);
    // Most commands fail for reasons of their own.
    if ended && before.is_none() {
        return None;
    }
    limits(probe).iter().find_map(|limit| Some((limit.obstacle(ended), counted(*limit, before, now)?)))
}

type Reading<'a> = (u64, &'a ContainerLimits);

fn readings<'a>(probe: &KubeletProbe, node: &'a Node) -> Option<impl Iterator<Item = Reading<'a>> + use<'a>> {
    Some(node.targets.limits(container(probe, node)?.id.as_deref()?))
}

/// Whether the container was read after this outcome.
pub(crate) fn is_read(probe: &KubeletProbe, node: &Node) -> bool {
    last(probe, node).is_some()
}

/// The reading that followed the outcome.
fn last<'a>(probe: &KubeletProbe, node: &'a Node) -> Option<Reading<'a>> {
    readings(probe, node)?.next().filter(|(time, _)| time.saturating_add(MARGIN_NS) >= probe.written_boot_ns)
}

/// The counter of a limit that has grown. Without an earlier reading, a limit of processes that has counted must still be
/// near, and one of memory decides nothing: the last kill may be long ago.
fn counted(limit: Limit, before: Option<Reading<'_>>, (time, now): Reading<'_>) -> Option<Evidence> {
    let full = || now.counters.iter().filter_map(room).min().is_some_and(|room| room < ROOM);
    let grown = |it: &CgroupCounters| {
        let (name, count) = limit.counters().iter().find_map(|name| it.values.get_key_value(*name))?;
        let same = |earlier: &&CgroupCounters| earlier.cgroup == it.cgroup;
        let earlier =
            before.and_then(|(at, reading)| Some((at, reading.counters.iter().find(same)?.values.get(name)?)));
        let (file, word) = name.split_once(' ')?;
        let (more, since) = match earlier {
            Some((at, earlier)) => {
                let more = count.checked_sub(*earlier)?;
                let ago = time.saturating_sub(at) as f64 / 1e9;
                (more, format!("{more} more than {ago:.1} s before"))
            }
            None if limit == Limit::Processes && full() => (*count, "no earlier reading".to_owned()),
            None => return None,
        };
        let text = format!("{}/{file}: {word} {count}, {since}{}", it.cgroup, in_use(it));
        let fields = json!({ "cgroup": it.cgroup, "count": count, "more": earlier.map(|_| more) });
        (more > 0).then(|| evidence_of(file, time, text, fields))
    };
    now.counters.iter().find_map(grown)
}

/// How many processes may still be made.
fn room(counters: &CgroupCounters) -> Option<u64> {
    let value = |name: &str| counters.values.get(name);
    Some(value("pids.max")?.saturating_sub(*value("pids.current")?))
}

/// "; 19 of 20 processes"
fn in_use(counters: &CgroupCounters) -> String {
    let value = |name: &str| counters.values.get(name);
    let both = value("pids.current").zip(value("pids.max"));
    both.map(|(current, max)| format!("; {current} of {max} processes")).unwrap_or_default()
}

/// Adds what kept the container from running while its command did not end in time; returns those causes.
pub(super) fn add_beside(probe: &KubeletProbe, node: &Node, finding: &mut Finding) -> Vec<Cause> {
    let found = beside_timeout(probe, node).unwrap_or_default();
    let also = found.iter().map(|other| other.cause).collect();
    for other in found {
        finding.summary += &format!("; {}", other.summary);
        finding.join(other);
    }
    also
}

/// By two readings: one from before the attempt or its first quarter, and one from its end.
fn beside_timeout(probe: &KubeletProbe, node: &Node) -> Option<Vec<Finding>> {
    let spec = exec_spec(probe, node).filter(|_| probe.reason == ProbeOutput::CommandTimeout)?;
    let timeout_ns = u64::from(spec.timeout_s).saturating_mul(1_000_000_000);
    let until = probe.written_boot_ns.saturating_sub(timeout_ns / 4 * 3);
    // With an older reading, it may have been in the pause that the container did not run.
    let from = probe.written_boot_ns.saturating_sub(timeout_ns.saturating_add(BEFORE_NS));
    let (time, now) = last(probe, node)?;
    let (began, before) = readings(probe, node)?.find(|(time, _)| (from..=until).contains(time))?;
    let own: Vec<&str> = now.serving.processes.iter().filter_map(|it| it.cpu_cgroup.as_deref()).collect();
    let throttled = throttling::between(
        &own,
        (began, &before.throttled, &before.serving.pressure),
        (time, &now.throttled, &now.serving.pressure),
    );
    let waited = [(began, &before.serving), (time, &now.serving)];
    let starved = starved(&waited, throttled.map_or(0, |it| it.wall_us));
    Some(starved.into_iter().chain(throttled.map(|it| it.finding())).collect())
}

/// What kept the tasks of the container from running while its command did not end, by two readings. `throttled_us`: for
/// so long its CPU limit throttled it.
fn starved(readings: &[(u64, &Serving)], throttled_us: u64) -> Option<Finding> {
    let (stall, reading) = stall(readings, None).filter(|(stall, _)| !stall.is_throttling(throttled_us))?;
    let (words, fix) = (format!("{}{}", stall.describe(), stall.on_node()), stall.resource.fix(&reading.processes));
    Some(Finding::likely(Cause::TargetStarved, vec![stall.evidence(reading)], words, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    const ID: &str = "cd4a88148bc949c0c449662096047adfa27666add64545f2f3c6caa4f6facb30";
    const RUNC: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9\": OCI runtime exec failed: exec failed: unable to start container process: ";
    const SETNS: &str = "error executing setns process: exit status 1";
    const RESET: &str = "read init-p: connection reset by peer";

    fn pod() -> Stream {
        let mut stream = Stream::new().exec_readiness().clone();
        let pod = &mut stream.last_pods().pods[0];
        (pod.netns, pod.containers[0].id) = (Some(POD), Some(ID.into()));
        stream.wait_ms(2_000).clone()
    }

    fn counters(cgroup: &str, values: &[(&str, u64)]) -> CgroupCounters {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        CgroupCounters { cgroup: cgroup.into(), values }
    }

    fn pids(events: u64, current: u64) -> CgroupCounters {
        counters("/pids/app", &[("pids.events max", events), ("pids.current", current), ("pids.max", 20)])
    }

    fn killed(times: u64) -> CgroupCounters {
        counters("/all/app", &[("memory.events oom_kill", times)])
    }

    fn read(stream: &mut Stream, fill: impl FnOnce(&mut ContainerLimits)) -> &mut Stream {
        let mut reading = ContainerLimits { id: ID.into(), ..ContainerLimits::default() };
        fill(&mut reading);
        stream.push(ObservationKind::Limits(Box::new(reading)))
    }

    /// A pod of which these counters were read ten seconds before.
    fn pod_after(before: Option<CgroupCounters>) -> Stream {
        let mut stream = pod();
        if let Some(before) = before {
            read(&mut stream, |it| it.counters = vec![before]).wait_ms(10_000);
        }
        stream
    }

    /// The verdict on a command that could not be run, by the counters then. Those of ten seconds before are known, too,
    /// if there are any.
    fn not_run(words: &str, before: Option<CgroupCounters>, now: Option<CgroupCounters>) -> Verdict {
        let mut stream = pod_after(before);
        stream.kubelet_error(ProbeType::Readiness, ProbeOutput::CommandNotRun, &format!("{RUNC}{words}: unknown"));
        if let Some(now) = now {
            read(stream.wait_ms(20), |it| it.counters = vec![now]);
        } else {
            stream.wait_ms(600).tick();
        }
        assert_eq!(stream.verdicts().len(), 1);
        stream.verdict()
    }

    #[test]
    fn a_limit_that_was_reached_meanwhile_is_why_the_runtime_did_not_start_the_command() {
        for (words, before, now, why, evidence) in [
            (
                SETNS,
                pids(3, 9),
                pids(5, 9),
                "a limit of processes",
                "/pids/app/pids.events: max 5, 2 more than 10.0 s before; 9 of 20 processes",
            ),
            (
                RESET,
                killed(0),
                killed(1),
                "too little memory",
                "/all/app/memory.events: oom_kill 1, 1 more than 10.0 s before",
            ),
        ] {
            let verdict = not_run(words, Some(before), Some(now));
            assert_eq!((verdict.cause, verdict.confidence), (Cause::ExecNotRun, Confidence::Likely), "{words}");
            assert_has(&verdict.summary, &["could not be run: ", why]);
            assert_eq!(verdict.evidence.last().map(|it| it.text.as_str()), Some(evidence));
            assert_lacks(&verdict.remediation, &["log of the runtime"]);
        }
    }

    #[test]
    fn a_counter_that_did_not_grow_is_no_reason() {
        for (before, now) in [(pids(5, 19), pids(5, 19)), (killed(7), killed(7))] {
            let verdict = not_run(SETNS, Some(before), Some(now));
            assert_eq!((verdict.cause, verdict.evidence.len()), (Cause::ExecFailed, 1));
        }
        assert_eq!(not_run(SETNS, None, None).cause, Cause::ExecFailed, "nothing could be read");
    }

    /// The kernel counts since the cgroup was made.
    #[test]
    fn without_an_earlier_reading_a_limit_of_processes_must_still_be_near() {
        let cause = |now| not_run(SETNS, None, Some(now)).cause;
        assert_eq!(cause(pids(5, 12)), Cause::ExecNotRun);
        assert_eq!([pids(5, 3), pids(0, 19), killed(0), killed(1)].map(cause), [Cause::ExecFailed; 4]);
        let verdict = not_run(SETNS, None, Some(pids(5, 19)));
        assert_ends(&verdict.evidence[1].text, "pids.events: max 5, no earlier reading; 19 of 20 processes");
    }

    #[test]
    fn a_limit_that_the_message_names_gets_its_counter_as_evidence() {
        let words = "runtime/cgo: pthread_create failed: Resource temporarily unavailable";
        let verdict = not_run(words, Some(pids(3, 19)), Some(pids(5, 19)));
        assert_eq!((verdict.cause, verdict.evidence.len()), (Cause::ExecNotRun, 2));
        // kernel.pid_max, or a limit of the user.
        let elsewhere = not_run(words, Some(pids(3, 9)), Some(pids(3, 9)));
        assert_eq!((elsewhere.cause, elsewhere.evidence.len()), (Cause::ExecNotRun, 1));
    }

    #[test]
    fn other_messages_are_about_no_limit() {
        for words in [
            "exec: \"curl\": executable file not found in $PATH",
            "exec: \"/opt/init-p: /setns process\": permission denied",
            "apparmor failed to apply profile: x",
            "chdir to cwd (\"/\") set in config.json failed: permission denied",
        ] {
            assert_eq!(not_run(words, Some(killed(0)), Some(killed(1))).evidence.len(), 1, "{words}");
        }
    }

    /// The verdict on a command that ended with an error, by two readings, or by the second one only.
    fn ended(reason: ProbeOutput, before: Option<CgroupCounters>, now: CgroupCounters) -> VerdictBody {
        let mut stream = pod_after(before);
        stream.kubelet(reason);
        read(stream.wait_ms(20), |it| it.counters = vec![now]);
        stream.verdicts().remove(0)
    }

    #[test]
    fn a_limit_that_was_reached_is_named_beside_a_command_that_ended_with_an_error() {
        for (before, now, why) in [
            (killed(0), killed(1), "; meanwhile a process of its container was killed for lack of memory"),
            (pids(3, 20), pids(5, 20), "; meanwhile no process could be made: a limit of processes is reached"),
        ] {
            for reason in [ProbeOutput::Other, ProbeOutput::PrintedNothing] {
                let body = ended(reason, Some(before.clone()), now.clone());
                assert_eq!((body.verdict.cause, body.verdict.confidence), (Cause::ExecFailed, Confidence::Likely));
                assert_eq!((body.scope, body.verdict.evidence.len()), (Some(Scope::Pod), 2));
                assert_ends(&body.verdict.summary, why);
            }
            for before in [None, Some(now.clone())] {
                let body = ended(ProbeOutput::Other, before, now.clone());
                assert_eq!((body.scope, body.verdict.evidence.len()), (Some(Scope::Application), 1));
            }
        }
    }

    fn waiting(cpu_full_us: u64, throttled_us: u64) -> impl FnOnce(&mut ContainerLimits) {
        move |reading| {
            let pressure = Pressure {
                of: "/all/app".into(),
                cpu_us: Some(cpu_full_us),
                cpu_full_us: Some(cpu_full_us),
                steal_us: None,
                ..Pressure::default()
            };
            let node = Pressure { of: "node".into(), steal_us: Some(cpu_full_us / 2), ..pressure.clone() };
            let process = ServerProcess { cpu_cgroup: Some("/cpu/app".to_owned()), ..server_process(7, 1) };
            let (processes, pressure) = (vec![process], vec![pressure, node]);
            reading.serving = Serving { processes, pressure, incomplete: true, ..Serving::default() };
            let times = throttled_us.div_ceil(100_000);
            reading.throttled =
                vec![Throttled { cgroup: "/cpu/app".into(), times, micros: throttled_us, period_us: None }];
        }
    }

    /// The verdict on a command with a timeout of one second, which began one second before its end.
    fn timed_out(earlier_ms: u64, cpu_full_us: u64, throttled_us: u64) -> Verdict {
        let mut stream = pod();
        read(&mut stream, waiting(0, 0)).wait_ms(earlier_ms).kubelet(ProbeOutput::CommandTimeout).wait_ms(10);
        read(&mut stream, waiting(cpu_full_us, throttled_us));
        let verdict = stream.verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ExecTimeout, Confidence::Likely));
        verdict
    }

    #[test]
    fn what_kept_the_container_waiting_is_named_beside_a_timeout() {
        let starved = timed_out(1_290, 900_000, 0);
        assert_eq!(starved.also, [Cause::TargetStarved]);
        let words = "(timeoutSeconds 1); for 0.90 s of 1.30 s none of its tasks ran and some waited: they waited for a processor; on the node tasks waited for a processor 69 % of that time; the hypervisor ran others for 34 % of that time (steal)";
        assert_ends(&starved.summary, words);
        assert_starts(&starved.remediation.to_string(), "Find what takes the processors");
        assert_has(&starved.remediation.to_string(), &["If that does not help: Raise timeoutSeconds"]);
        let throttled = timed_out(1_290, 900_000, 800_000);
        assert_eq!(throttled.also, [Cause::CpuThrottled], "its limit explains the pressure");
        assert_has(&throttled.summary, &["; /cpu/app was throttled 8 times, 800.0 ms summed over its processors"]);
        assert_starts(&throttled.remediation.to_string(), "Raise the CPU limit of the container");
    }

    #[test]
    fn a_command_that_is_slow_by_itself_has_nothing_beside_it() {
        for (earlier_ms, cpu_full_us, throttled_us) in [
            (1_290, 300_000, 90_000),
            // Most of that time is the pause before the attempt; or the reading is from its end.
            (9_000, 9_000_000, 9_000_000),
            (200, 210_000, 210_000),
        ] {
            assert!(timed_out(earlier_ms, cpu_full_us, throttled_us).also.is_empty(), "{earlier_ms}");
        }
    }
}
