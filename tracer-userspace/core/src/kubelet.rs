//! Verdicts that rest on the kubelet's messages alone: exec probes, probes without an attempt, probes that the kubelet
//! does not run, and sandboxes without a network. No event of the kernel shows these, so the verdicts are likely at
//! most.

mod command_fix;
pub(crate) mod limits;
pub(crate) mod not_connected;
pub(crate) mod not_run;
mod not_started;
pub(crate) mod sandbox;

use std::net::{IpAddr, SocketAddr};

use self::command_fix::{
    BY_HAND, fix_at_end, fix_failed, fix_not_run, fix_timeout, has_no_program, is_cancelled, is_without_runtime,
    not_started_for,
};
use self::not_started::NotStarted;
use tracer_attempts::correlate::links::LOOPBACK;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich;
use tracer_case::answer::{got_no_tls, names_log, reported_answer};
use tracer_case::evidence::of_outcome;
use tracer_case::finding::Finding;
use tracer_case::ignored::unchanged;
use tracer_case::pod_sockets::FRESH_NS;
use tracer_case::{culprit, kubectl};
use tracer_common::names::Hook;
use tracer_model::event::{Container, ExecSpec, Handler, KubeletProbe, Pod, PodRef, ProbeOutput, ProbeSpec, ProbeType};
use tracer_model::record::{Cause, Confidence, K8s, Outcome, Probe, Process, Remediation, Scope};

/// The subject of a verdict that has no connection.
#[derive(Clone, Debug)]
pub(crate) struct Unattached {
    pub probe: Option<Probe>,
    /// The pod.
    pub k8s: K8s,
    /// The kubelet.
    pub process: Option<Process>,
}

impl Unattached {
    /// The probe of this message, as far as it is known.
    fn of(probe: &KubeletProbe, node: &Node) -> Self {
        let agreed = spec(probe, node).and_then(|spec| Probe::agreed(&[spec]));
        let unknown = || Probe { probe_type: Some(probe.probe_type), ..Probe::default() };
        Self {
            probe: Some(agreed.unwrap_or_else(unknown)),
            k8s: k8s(&probe.pod, probe.container.as_ref(), node),
            process: kubelet(probe.pid),
        }
    }
}

/// The kubelet outcome of a command, without what the command printed. An error carries no output of a command, so its
/// words stay (pkg/probe/exec).
pub(crate) fn of_command(probe: &KubeletProbe) -> KubeletProbe {
    let own = probe.reason.is_of_command() || !probe.is_counted();
    KubeletProbe { output: probe.output.clone().filter(|_| own), ..probe.clone() }
}

/// The verdict on a failed exec probe, and what else held; `None` if it is no exec probe, or may be none.
pub(crate) fn command(probe: &KubeletProbe, node: &Node) -> Option<(Finding, Vec<Cause>, Unattached)> {
    let container = container(probe, node);
    let spec = exec_spec(probe, node);
    // A command may print what looks like an unknown message. Without a spec, only the words of the runtime show one.
    if self::spec(probe, node).is_some() || (spec.is_none() && !probe.reason.is_of_command()) {
        return None;
    }
    let named = Unattached { probe: Some(probe_of(probe.probe_type, spec)), ..Unattached::of(probe, node) };
    let limit = limits::reached(probe, node);
    let obstacle = limit.as_ref().map(|(obstacle, _)| *obstacle).or_else(|| not_started_for(probe));
    let mut found = if probe.is_counted() {
        failed_command(probe, spec, obstacle, &named.k8s)
    } else {
        let deleting = pod(&probe.pod, node).is_some_and(|it| it.deleting);
        let ended = container.is_some_and(|it| had_just_ended(it, probe));
        ignored_result(probe, &named.k8s, obstacle, deleting, ended)
    };
    found.evidence.extend(limit.map(|(_, evidence)| evidence));
    if obstacle.is_none() && probe.is_counted() {
        add_loopback(probe, node, &mut found);
    }
    let also = limits::add_beside(probe, node, &mut found);
    Some((found, also, named))
}

/// Adds that `lo` of the pod was set down, or was read as down: then a command that connects to localhost fails. Some
/// kernels do not show that it is up again: there only the last minute counts. What the command does is not known: it is
/// a hint.
fn add_loopback(probe: &KubeletProbe, node: &Node, found: &mut Finding) {
    let Some(netns) = pod(&probe.pod, node).and_then(|pod| node.pods.last_netns(pod)) else { return };
    let is_fresh = |time: u64| time.saturating_add(FRESH_NS) >= probe.written_boot_ns;
    let of_pod = node.targets.all_inspections().filter(|(time, it)| it.netns == Some(netns) && is_fresh(*time));
    let states = of_pod.filter_map(|(time, it)| Some((*time, it.links.iter().find(|link| link.loopback)?.up)));
    let set_up = |since: u64| node.links.changed(netns, LOOPBACK).is_some_and(|(at, change)| change.up && *at > since);
    let read = states.max_by_key(|(time, _)| *time).filter(|(time, _)| !set_up(*time));
    let shows_up = node.missing_of(&[Hook::DevNotifyFlags]).is_empty();
    let is_down = |time: u64| (shows_up || is_fresh(time)) && read.is_none_or(|(read, up)| read < time || !up);
    let change = node.links.down(netns, LOOPBACK).filter(|(time, _)| is_down(*time));
    if change.is_none() && read.is_none_or(|(_, up)| up) {
        return;
    }
    found.evidence.extend(change.map(|(time, change)| culprit::evidence(*time, change)));
    found.summary += if change.is_some() { "; lo of the pod was set down before" } else { "; lo of the pod is down" };
    let fix = "If the command connects to localhost, set lo up in the pod (ip link set lo up), or delete the pod";
    found.remediation = std::mem::take(&mut found.remediation).reword(|text| format!("{text}. {fix}"));
}

/// A command printed this text, or nothing. tracer knows the kubelet's messages about probes that connect: of a command,
/// the kubelet prints only the output.
pub(crate) fn is_printed(probe: &KubeletProbe, node: &Node) -> bool {
    probe.reason.may_be_printed() && probe.dst.is_none() && spec(probe, node).is_none()
}

/// The verdict on a failure that no attempt explains, or one of `connections` that all seemed to succeed.
pub(crate) fn unmatched(probe: &KubeletProbe, connections: usize, node: &Node) -> (Finding, Unattached) {
    let named = Unattached::of(probe, node);
    let without_specs = container(probe, node).is_none_or(|it| it.probes.is_empty() && it.exec.is_empty());
    if is_printed(probe, node) && without_specs {
        let command = of_command(probe);
        let found = failed_command(&command, None, not_started_for(&command), &named.k8s);
        return (found, Unattached { probe: Some(probe_of(probe.probe_type, None)), ..named });
    }
    // The kubelet read an answer. Without a spec, a command may have printed the same text.
    if let Some(answered) = spec(probe, node).and_then(|_| answer(probe, connections, node)) {
        return answered;
    }
    let (how, ignored) = match probe.is_counted() {
        true => ("failed", String::new()),
        false => ("errored", format!("; the kubelet ignores this result: {}", unchanged(probe.probe_type))),
    };
    let summary = format!(
        "the {} probe{} {how}, as the kubelet reports{}; {}{ignored}",
        probe.probe_type,
        container_of(&named.k8s),
        probe.output.as_ref().map(|it| format!(": {it}")).unwrap_or_default(),
        reading(connections, probe, node)
    );
    let fix = match probe.reason {
        ProbeOutput::NotServing => kubectl::and_log(&named.k8s, false, NOT_SERVING.into()),
        _ => Cause::Unexplained.fix(),
    };
    let found = Finding::failure(Cause::Unexplained, vec![of_outcome(probe)], summary, fix);
    // Without this hook, a connect that finds no route leaves no trace.
    let missing_hooks = if connections == 0 { node.missing_of(&[Hook::SysConnect]) } else { Vec::new() };
    (Finding { missing_hooks, ..found.with_confidence(Confidence::Possible) }, named)
}

/// The kubelet asked the health service, or the probe's command did.
const NOT_SERVING: &str = "Find why the application's health service reports NOT_SERVING: it may depend on something that the pod cannot reach. Read the application's log of that moment";

/// Says which connections of the probe were seen.
fn reading(connections: usize, probe: &KubeletProbe, node: &Node) -> String {
    match connections {
        0 if may_begin_before_tracer(probe, node) => {
            "no connection of it was seen: it may have begun before tracer did".to_owned()
        }
        // Several pods share the node's addresses.
        0 if pod(&probe.pod, node).is_some_and(|pod| pod.host_network && !pod.has_specs()) => {
            "tracer does not know which connection was its own: the pod shares the node's network".to_owned()
        }
        0 if has_name_as_host(probe, node) => {
            "its host is a name: tracer does not know which connection was its own".to_owned()
        }
        0 => "no connection of it was seen".to_owned(),
        1 => "tracer saw no failure on its connection".to_owned(),
        _ => format!("tracer cannot see which of {connections} connections it was"),
    }
}

/// Only the kubelet knows the addresses of this name.
fn has_name_as_host(probe: &KubeletProbe, node: &Node) -> bool {
    let is_name = |host: &str| host != "localhost" && host.parse::<IpAddr>().is_err();
    spec(probe, node).and_then(|spec| spec.host.as_deref()).is_some_and(is_name)
}

/// The probe may have taken all of its timeout, and tracer watches for less. A busy kubelet writes its line later.
fn may_begin_before_tracer(probe: &KubeletProbe, node: &Node) -> bool {
    const LATER_NS: u64 = 500_000_000;
    let timeout_s = spec(probe, node).map_or(1, |spec| spec.timeout_s);
    let watched_ns = probe.written_boot_ns.saturating_sub(node.since());
    watched_ns < u64::from(timeout_s) * 1_000_000_000 + LATER_NS
}

/// The verdict on a probe that was refused by an answer, on one of `connections`; `None` for another outcome.
pub(crate) fn answer(probe: &KubeletProbe, connections: usize, node: &Node) -> Option<(Finding, Unattached)> {
    let scheme = spec(probe, node).and_then(|spec| spec.scheme.as_deref());
    let (text, fix) = reported_answer(probe, scheme)?;
    let named = Unattached::of(probe, node);
    let summary = format!(
        "the {} probe{} was answered: {text}, as the kubelet read it; {}",
        probe.probe_type,
        container_of(&named.k8s),
        reading(connections, probe, node)
    );
    let fix = if names_log(fix) { kubectl::and_log(&named.k8s, false, fix.into()) } else { fix.into() };
    let misfit = got_no_tls(probe) && !has_answered_in_tls(probe, node);
    let cause = if misfit { Cause::ProbeMisconfigured } else { Cause::AppStatusFailure };
    Some((Finding::likely(cause, vec![of_outcome(probe)], summary, fix), named))
}

/// The port of this probe has answered a probe in TLS.
fn has_answered_in_tls(probe: &KubeletProbe, node: &Node) -> bool {
    let (Some(pod), Some(spec)) = (pod(&probe.pod, node), spec(probe, node)) else { return false };
    pod.addrs.iter().any(|addr| node.tls.spoken(SocketAddr::new(*addr, spec.port)).tls.is_some())
}

/// The container that the message names, if it is known.
fn container<'a>(probe: &KubeletProbe, node: &'a Node) -> Option<&'a Container> {
    let pod = pod(&probe.pod, node)?;
    pod.containers.iter().find(|it| it.name == probe.container)
}

/// The spec of a probe that runs a command, if it is known.
fn exec_spec<'a>(probe: &KubeletProbe, node: &'a Node) -> Option<&'a ExecSpec> {
    container(probe, node)?.exec.iter().find(|spec| spec.probe_type == probe.probe_type)
}

/// The spec of a probe that connects, if it is known.
fn spec<'a>(probe: &KubeletProbe, node: &'a Node) -> Option<&'a ProbeSpec> {
    container(probe, node)?.probes.iter().find(|spec| spec.probe_type == probe.probe_type)
}

/// The pod of this name, if it is known. Without a uid, the name may be that of an ended pod and of the next one.
pub(crate) fn pod<'a>(named: &PodRef, node: &'a Node) -> Option<&'a Pod> {
    let mut fitting = node.pods.iter().filter(|pod| enrich::is_pod(pod, named));
    fitting.next().filter(|_| fitting.next().is_none())
}

/// A probe that runs a command.
fn probe_of(probe_type: ProbeType, spec: Option<&ExecSpec>) -> Probe {
    Probe {
        probe_type: Some(probe_type),
        handler: Some(Handler::Exec),
        timeout_s: spec.map(|it| it.timeout_s),
        period_s: spec.map(|it| it.period_s),
        failure_threshold: spec.map(|it| it.failure_threshold),
        ..Probe::default()
    }
}

fn failed_command(probe: &KubeletProbe, spec: Option<&ExecSpec>, obstacle: Option<&NotStarted>, k8s: &K8s) -> Finding {
    if probe.reason == ProbeOutput::Nothing {
        return without_output(probe, spec, k8s);
    }
    let (cause, what) = match probe.reason {
        ProbeOutput::CommandTimeout => (Cause::ExecTimeout, "did not end in time"),
        ProbeOutput::CommandNotRun => (cause_not_run(obstacle), "could not be run"),
        ProbeOutput::PrintedNothing => (Cause::ExecFailed, "ended with an error, and printed nothing"),
        _ => (Cause::ExecFailed, "ended with an error; what it printed is in the pod's event"),
    };
    let late = spec.filter(|_| cause == Cause::ExecTimeout);
    let budget = late.map(|it| format!(" (timeoutSeconds {})", it.timeout_s)).unwrap_or_default();
    let why = match obstacle {
        Some(limit) if cause == Cause::ExecFailed => format!("; meanwhile {}", limit.why),
        _ => why_not_started(obstacle),
    };
    let summary = format!("the command of the {} probe{} {what}{why}{budget}", probe.probe_type, container_of(k8s));
    let fix = match cause {
        Cause::ExecTimeout => fix_timeout(probe, k8s),
        _ => fix_failed(obstacle, probe, k8s),
    };
    // A limit of the pod's spec, and not the command.
    let scope = obstacle.filter(|_| cause == Cause::ExecFailed).map(|_| Scope::Pod);
    Finding { scope, ..Finding::likely(cause, vec![of_outcome(probe)], summary, fix) }
}

fn cause_not_run(obstacle: Option<&NotStarted>) -> Cause {
    obstacle.map_or(Cause::ExecFailed, |it| it.cause)
}

fn why_not_started(obstacle: Option<&NotStarted>) -> String {
    obstacle.map(|it| format!(": {}", it.why)).unwrap_or_default()
}

/// The kubelet ignores this result: it counts neither as a failure nor as a success. A command that never runs is a
/// failure here all the same, because nothing else reports it.
fn ignored_result(
    probe: &KubeletProbe,
    k8s: &K8s,
    obstacle: Option<&NotStarted>,
    deleting: bool,
    ended: bool,
) -> Finding {
    let (cause, what) = match probe.reason {
        ProbeOutput::CommandTimeout => (Cause::ExecTimeout, "did not end in time"),
        ProbeOutput::ContainerEnds if is_cancelled(probe) => (Cause::ExecFailed, "was cancelled by the kubelet"),
        ProbeOutput::ContainerEnds => {
            (Cause::ExecFailed, "was not run: its container does not run, or is being stopped")
        }
        ProbeOutput::CommandNotRun => (cause_not_run(obstacle), "could not be run"),
        _ if is_without_runtime(probe) => (Cause::ExecNotRun, "gave no result: the container runtime did not answer"),
        _ => (Cause::ExecFailed, "could not be run, or how it ended is not known"),
    };
    let ends = match (deleting, ended) {
        (true, _) => "; the pod is being deleted",
        (_, true) => "; the container ended at that time",
        _ => "",
    };
    let summary = format!(
        "the command of the {} probe{} {what}{}{ends}; the kubelet ignores this result: {}",
        probe.probe_type,
        container_of(k8s),
        why_not_started(obstacle),
        unchanged(probe.probe_type)
    );
    let is_at_end = probe.reason == ProbeOutput::ContainerEnds
        || (deleting || ended) && probe.reason == ProbeOutput::CommandNotRun && !has_no_program(probe);
    let (outcome, fix) = match is_at_end {
        true => (Outcome::Noise, fix_at_end(probe, k8s)),
        false => (Outcome::Failure, fix_not_run(cause, obstacle, probe, k8s)),
    };
    Finding { outcome, ..Finding::likely(cause, vec![of_outcome(probe)], summary, fix) }
}

/// By its status, the container ended when the kubelet could not run the command. The times of a status are whole
/// seconds.
fn had_just_ended(container: &Container, probe: &KubeletProbe) -> bool {
    const WITHIN_NS: u64 = 2_000_000_000;
    let last = container.runs.as_ref().and_then(|runs| runs.last.as_ref());
    let ended = last.and_then(|last| last.finished_boot_ns);
    ended.is_some_and(|ended| ended.abs_diff(probe.written_boot_ns) <= WITHIN_NS)
}

/// " of container app of pod default/web", as far as that is known.
fn container_of(k8s: &K8s) -> String {
    let container = k8s.container_name.as_ref().map(|name| format!(" of container {name}"));
    let pod = k8s.full_name().map(|name| format!(" of pod {name}"));
    container.into_iter().chain(pod).collect()
}

/// The probe failed, and the kubelet wrote no reason.
fn without_output(probe: &KubeletProbe, spec: Option<&ExecSpec>, k8s: &K8s) -> Finding {
    let timeout_s = spec.map_or(1, |it| it.timeout_s);
    let summary = format!(
        "the command of the {} probe{} failed without output: it ended with an error, or did not end within {timeout_s} s (kubelets before 1.24 do not report which)",
        probe.probe_type,
        container_of(k8s)
    );
    let fix = Remediation::from(format!(
        "{BY_HAND}. By its status and its time, correct the command or raise timeoutSeconds"
    ))
    .run(kubectl::exec(k8s, probe.probe_type));
    let found = Finding::failure(Cause::Unexplained, vec![of_outcome(probe)], summary, fix);
    found.with_confidence(Confidence::Possible)
}

/// The names of a pod: those that the message has, and else the known ones.
fn k8s(named: &PodRef, container: Option<&String>, node: &Node) -> K8s {
    let known = pod(named, node);
    let or_known =
        |reported: &Option<String>, get: fn(&Pod) -> &Option<String>| reported.clone().or_else(|| get(known?).clone());
    K8s {
        namespace: or_known(&named.namespace, |it| &it.namespace),
        pod_name: or_known(&named.name, |it| &it.name),
        pod_uid: or_known(&named.uid, |it| &it.uid),
        container_name: container.cloned(),
        workload: known.and_then(|pod| pod.workload.clone()),
    }
}

fn kubelet(pid: Option<u32>) -> Option<Process> {
    pid.map(|pid| Process { pid, comm: "kubelet".to_owned() })
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const MISSING: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9\": OCI runtime exec failed: exec failed: unable to start container process: exec: \"curl\": executable file not found in $PATH: unknown";
    const CANCELED: &str = "rpc error: code = Canceled desc = context canceled";
    const STOPPED: &str =
        "rpc error: code = Unknown desc = failed to exec in container: container is in CONTAINER_EXITED state";
    const SETNS: &str = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9\": OCI runtime exec failed: exec failed: unable to start container process: error executing setns process: exit status 1: unknown";

    fn errored(reason: ProbeOutput, words: &str, deleting: bool) -> VerdictBody {
        let mut stream = Stream::new().exec_readiness().clone();
        if deleting {
            stream.deleting();
        }
        stream.kubelet_error(ProbeType::Readiness, reason, words);
        let verdicts = stream.verdicts();
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        verdicts[0].clone()
    }

    #[test]
    fn a_command_in_a_pod_without_loopback_may_not_reach_localhost() {
        let decided = |of_pod: fn(&mut Stream) -> &mut Stream| {
            let mut stream = Stream::new().exec_readiness().clone();
            stream.last_pods().pods[0].netns = Some(POD);
            of_pod(&mut stream)
                .wait_ms(2_000)
                .kubelet_with(ProbeOutput::Other, |it| it.output = Some("curl: (7)".into()));
            let verdict = stream.verdicts().remove(0).verdict;
            assert_eq!((verdict.cause.name(), verdict.confidence), ("exec_failed", Confidence::Likely));
            (verdict.summary, verdict.remediation.to_string())
        };
        let fix = "If the command connects to localhost, set lo up in the pod";
        let (summary, remediation) = decided(|stream| stream.link_set(POD, 1, "lo", false));
        assert_ends(&summary, "; lo of the pod was set down before");
        assert_has(&remediation, &[fix]);
        fn read(stream: &mut Stream, up: bool) -> &mut Stream {
            let lo = LinkState { loopback: true, up, ..link(1, "lo", &[]) };
            stream.inspection(|reading| reading.links = vec![lo])
        }
        let (summary, remediation) = decided(|stream| read(stream, false));
        assert_ends(&summary, "; lo of the pod is down");
        assert_has(&remediation, &[fix]);
        let (summary, _) = decided(|stream| stream.link_set(POD, 1, "lo", false).wait_ms(70_000));
        assert_ends(&summary, "; lo of the pod was set down before");
        let others: [fn(&mut Stream) -> &mut Stream; 7] = [
            |stream| read(stream, true),
            |stream| read(stream, false).wait_ms(1).link_set(POD, 1, "lo", true),
            |stream| read(stream, false).wait_ms(70_000),
            |stream| read(stream.link_set(POD, 1, "lo", false).wait_ms(1), true),
            |stream| stream.missing(Hook::DevNotifyFlags).link_set(POD, 1, "lo", false).wait_ms(70_000),
            |stream| stream.link_set(POD, 1, "lo", false).link_set(POD, 1, "lo", true),
            |stream| stream.link_set(NODE, 1, "lo", false),
        ];
        for healthy in others {
            let (summary, remediation) = decided(healthy);
            assert_lacks(&summary, &["lo of the pod"]);
            assert_lacks(&remediation, &["localhost"]);
        }
    }

    /// `doProbe` ignores such a result (pkg/kubelet/prober/worker.go).
    #[test]
    fn a_result_that_the_kubelet_ignores_is_reported_as_ignored() {
        let (gone, not_run) = (ProbeOutput::ContainerEnds, ProbeOutput::CommandNotRun);
        for (reason, words, deleting, outcome) in [
            (gone, CANCELED, false, Outcome::Noise),
            (gone, CANCELED, true, Outcome::Noise),
            (gone, STOPPED, false, Outcome::Noise),
            (not_run, SETNS, true, Outcome::Noise),
            (not_run, SETNS, false, Outcome::Failure),
            (not_run, MISSING, false, Outcome::Failure),
            (not_run, MISSING, true, Outcome::Failure),
            (ProbeOutput::Other, "rpc error: code = Internal desc = closing", true, Outcome::Failure),
            (ProbeOutput::CommandTimeout, "command timed out", false, Outcome::Failure),
        ] {
            let noted = errored(reason, words, deleting);
            let (verdict, summary) = (&noted.verdict, &noted.verdict.summary);
            assert_eq!((verdict.outcome, verdict.confidence), (outcome, Confidence::Likely), "{words}");
            assert_ne!(verdict.cause.name(), "exec_not_run", "{words}");
            assert_lacks(&summary, &["ended with an error"]);
            assert_ends(&summary, "ignores this result: the container's readiness stays as it was");
            assert_eq!(summary.contains("the pod is being deleted"), deleting, "{summary}");
            assert_eq!(noted.kubelet.and_then(|it| it.output).as_deref(), Some(words));
            assert_has(&verdict.evidence[0].text, &["errored, a result that it ignores"]);
        }
        assert_has(&errored(not_run, MISSING, false).verdict.remediation, &["Put its program into the image"]);
        let other = errored(not_run, SETNS, false).verdict.remediation;
        assert_has(&other, &["in the log of the runtime"]);
        assert_lacks(&other, &["image"]);
    }

    /// The runtime finds no cgroup, or no process, of a container that has just ended.
    #[test]
    fn a_command_for_a_container_that_had_just_ended_is_noise() {
        let outcome = |ended_ago_ms: Option<u64>, words: &str| {
            let mut stream = Stream::new().exec_readiness().wait_ms(10_000).clone();
            let ended = ended_ago_ms.map(|ms| Ended {
                id: None,
                exit_code: 1,
                reason: None,
                started_boot_ns: None,
                finished_boot_ns: Some(stream.now() - ms * 1_000_000),
            });
            let runs = Runs { last: ended, ..Runs::default() };
            stream.last_pods().pods[0].containers[0].runs = Some(runs);
            stream.kubelet_error(ProbeType::Readiness, ProbeOutput::CommandNotRun, words);
            let verdict = stream.verdict();
            (verdict.outcome, verdict.remediation.to_string().starts_with("Do nothing if the container"))
        };
        let gone = SETNS.replace(
            "error executing setns process: exit status 1",
            "error adding pid 7 to cgroups: failed to write 7: openat2 /sys/fs/cgroup/pids/x/cgroup.procs: no such file or directory",
        );
        assert_eq!(outcome(Some(1_000), &gone), (Outcome::Noise, true));
        assert_eq!(outcome(Some(1_000), SETNS), (Outcome::Noise, true));
        assert_eq!(outcome(Some(9_000), &gone), (Outcome::Failure, true), "its status may come later");
        assert_eq!(outcome(None, SETNS), (Outcome::Failure, false));
        assert_eq!(outcome(Some(1_000), MISSING).0, Outcome::Failure, "the program is missing");
    }

    /// Written by runc if the file is there and the kernel does not execute it.
    #[test]
    fn a_program_that_cannot_be_executed_is_not_called_missing() {
        let fix = |why: &str| {
            let words = MISSING.split_once("exec: \"curl").map(|(before, _)| format!("{before}{why}: unknown"));
            errored(ProbeOutput::CommandNotRun, &words.expect("a message"), false).verdict.remediation
        };
        for (why, part) in [
            (r#"exec: "/bin/check": permission denied"#, "chmod +x"),
            ("exec /bin/check: permission denied", "chmod +x"),
            ("exec container process `/bin/check`: Permission denied", "chmod +x"),
            ("exec /bin/check: exec format error", "architecture"),
            ("exec /bin/check: no such file or directory", "interpreter after its #!"),
            (r#"chdir to cwd ("/app") set in config.json failed: permission denied"#, "workingDir"),
        ] {
            assert_has(&fix(why), &[part]);
            assert_lacks(&fix(why), &["Put its program", "log of the runtime"]);
        }
        let missing = r#"exec: "/bin/check": stat /bin/check: no such file or directory"#;
        assert_has(&fix(missing), &["Put its program into the image"]);
    }

    #[test]
    fn a_failure_of_the_runtime_is_not_put_down_to_the_image() {
        let words = "rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9\": OCI runtime exec failed: exec failed: unable to start container process: can't open cgroup: unknown";
        let verdict = errored(ProbeOutput::CommandNotRun, words, false).verdict;
        assert_eq!(verdict.cause.name(), "exec_not_run");
        let paused =
            words.replace("unable to start container process: can't open cgroup", "cannot exec in a paused container");
        assert_eq!(errored(ProbeOutput::CommandNotRun, &paused, false).verdict.cause.name(), "target_frozen");
        assert_has(&verdict.summary, &["could not be run: the runtime could not use the container's cgroup"]);
        // Written by kubelet 1.20 while containerd restarted, without and with a command that ran.
        for words in [
            "connection error: desc = \"transport: Error while dialing dial unix /run/containerd/containerd.sock: connect: no such file or directory\"",
            "error reading from server: EOF",
        ] {
            let words = format!("rpc error: code = Unavailable desc = {words}");
            let away = errored(ProbeOutput::Other, &words, false).verdict;
            assert_eq!((away.cause.name(), away.remediation.to_string().contains("image")), ("exec_not_run", false));
            assert_has(&away.summary, &["the container runtime did not answer"]);
        }
        let fix = &verdict.remediation;
        assert_lacks(&fix, &["image"]);
        assert_has(&fix, &["cgroup driver", "kubectl exec"]);
    }

    /// The next pod of a StatefulSet has the name of the one that ends, perhaps with another spec.
    #[test]
    fn the_spec_of_another_pod_with_the_same_name_is_not_used() {
        let timeout = |reported: Option<&str>| {
            let mut stream = Stream::new().exec_readiness().clone();
            let pods = &mut stream.last_pods().pods;
            pods[0].uid = Some("old".into());
            let mut next = Pod { uid: Some("new".into()), ..pods[0].clone() };
            next.containers[0].exec[0].timeout_s = 7;
            pods.push(next);
            stream.kubelet_with(ProbeOutput::CommandTimeout, |it| it.pod.uid = reported.map(Into::into));
            let summary = stream.verdict().summary.clone();
            summary.split_once("(timeoutSeconds ").map(|(_, timeout)| timeout.trim_end_matches(')').to_owned())
        };
        let known = [Some("old"), Some("new"), Some("of-none"), None].map(timeout);
        assert_eq!(known.each_ref().map(Option::as_deref), [Some("1"), Some("7"), None, None]);
    }

    /// `Readiness probe errored and resulted in failure state`: `DoHTTPProbe` returns the error (pkg/probe/http), and
    /// `doProbe` ignores it. A recording of an older version has it as a failure.
    #[test]
    fn an_answer_that_the_kubelet_cannot_read_to_the_end_is_reported_as_ignored() {
        let errored = |reason, result| {
            let mut stream = Stream::new().http_readiness().connect().established().wait_ms(1_000).clone();
            stream.closes((100, 101, 200)).kubelet_with(reason, |it| it.result = result).wait_ms(2_000);
            let last = stream.last_verdict();
            let ignored = "the kubelet ignores this result: the container's readiness stays as it was";
            (last.cause.name(), last.summary.contains(ignored))
        };
        for result in [KubeletResult::Error, KubeletResult::Failure] {
            assert_eq!(errored(ProbeOutput::TimeoutInBody, result), ("slow_response", true));
        }
        assert!(errored(ProbeOutput::Network, KubeletResult::Error).1);
        // The kubelet reports the last of three attempts.
        let mut stream = Stream::new().http_readiness().connect().established().clone();
        stream.answer(AnswerKind::Http, Some(200)).wait_ms(1_000);
        stream.closes_quiet((100, 101, 141), 999_000_000).wait_ms(10);
        assert_ends(&stream.verdict().summary, "the kubelet ignores this result if it had read the head of the answer");
    }
}
