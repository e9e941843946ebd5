//! The run of the container that an attempt met, and how the run before ended, as the kubelet reports to the API.
//!
//! These reports come late, and their times are whole seconds. So they decide no verdict: they show when a start began,
//! and tell the reader what came before.

use serde_json::json;

use crate::case::{Case, runs};
use crate::evidence::evidence_of;
use crate::finding::Finding;
use crate::killed::{self, MORE_MEMORY};
use crate::phrases::name_of;
use crate::{kubectl, lifecycle, programs, sidecar};
use tracer_model::event::{Container, Ended, ExecSpec, ProbeSpec, ProbeType, Runs, Waiting};
use tracer_model::record::{Cause, Command, Confidence, Evidence, K8s, Outcome, Remediation, Trait};

const SECOND_NS: u64 = 1_000_000_000;
/// A run that ended longer ago does not explain an attempt that fails now.
const RECENT_NS: u64 = 3_600 * SECOND_NS;
/// Tolerance for the whole seconds of a status and for the steps of the kubelet.
const SLACK_NS: u64 = 2 * SECOND_NS;
/// A process that is killed this early may not have listened yet.
const START_NS: u64 = 30 * SECOND_NS;

/// The start of the run, as evidence.
pub fn of_start(case: &Case<'_>, began: u64) -> Evidence {
    let container = case.matched.probed_container().map(|(_, it)| it);
    let restarts = runs(case).map(|it| it.restarts);
    let again = restarts.filter(|n| *n > 0).map(|n| format!(", restart {n}")).unwrap_or_default();
    let text = format!("{} was started in this second{again}", container.map_or("the container".into(), name_of));
    evidence_of("container_status", began, text, json!({ "restarts": restarts }))
}

/// A clause for a container that was OOM-killed while it started.
pub fn out_of_memory(case: &Case<'_>, at: u64) -> Option<String> {
    let (container, runs, last) = ended_in_start(case, at).filter(|(.., last)| last.is_out_of_memory())?;
    Some(format!(
        "; {} was OOMKilled{} and {}: its process used up its memory and is not there to listen",
        name_of(container),
        ago(last, at),
        restarted(runs.restarts)
    ))
}

/// A clause for a container that ended by itself while it started: it crashed, or had nothing more to do. The connect of
/// a postStart handler may be why it ended.
pub fn ended_by_itself(case: &Case<'_>, at: u64) -> Option<String> {
    let is_handlers = lifecycle::is_only_handlers(case);
    let (container, runs, last) =
        ended_in_start(case, at).filter(|(container, runs, last)| !is_handlers && is_own_end(container, runs, last))?;
    let handler = if container.has_post_start() { ", or after its postStart handler failed," } else { "" };
    Some(format!(
        "; {} ended by itself{}{handler} with {}, and {}",
        name_of(container),
        ago(last, at),
        describe_end(last),
        restarted(runs.restarts)
    ))
}

/// The last run ended while it started. The container does not run at `at`, or not for longer than that run did.
fn ended_in_start<'a>(case: &Case<'a>, at: u64) -> Option<(&'a Container, &'a Runs, &'a Ended)> {
    let (container, runs) = recently_ended(case, at)?;
    // A run that ended after the attempt was there to listen.
    let last = runs.last.as_ref().filter(|last| last.finished_boot_ns.is_none_or(|end| end <= at))?;
    let ran = last.ran_ns().filter(|ran| *ran <= START_NS)?.saturating_add(SLACK_NS);
    let is_down = runs.started_boot_ns.is_none_or(|began| at.saturating_sub(began) <= ran);
    is_down.then_some((container, runs, last))
}

/// " 12 s before"
fn ago(last: &Ended, at: u64) -> String {
    last.finished_boot_ns.map(|end| format!(" {} s before", (at - end) / SECOND_NS)).unwrap_or_default()
}

/// The process crashed, or it ended before any probe can have ended it. A process may end with any exit code if the
/// kubelet asks it to (SIGTERM).
///
/// The kubelet counts the failures in a row over the runs of a container (`worker.doProbe`,
/// pkg/kubelet/prober/worker.go). After a run that crashed, one more failure can be enough.
fn is_own_end(container: &Container, runs: &Runs, last: &Ended) -> bool {
    let is_first = was_first(runs);
    let restarts = |kind: ProbeType| kind != ProbeType::Readiness;
    let probes = container.probes.iter().filter(|it| restarts(it.probe_type));
    let probes = probes.map(|it| if is_first { it.earliest_restart_s() } else { it.initial_delay_s });
    // The model has no initialDelaySeconds of a command.
    let commands = container.exec.iter().filter(|it| restarts(it.probe_type));
    let failures = |it: &ExecSpec| if is_first { it.failure_threshold.saturating_sub(1) } else { 0 };
    let commands = commands.map(|it| it.period_s.saturating_mul(failures(it)));
    let earliest = probes.chain(commands).min().map(|s| u64::from(s) * SECOND_NS);
    match last.exit_code {
        137 | 143 => false,
        134 | 135 | 139 => !last.is_out_of_memory(),
        _ => {
            !last.is_out_of_memory() && last.ran_ns().is_some_and(|ran| earliest.is_none_or(|it| ran + SECOND_NS <= it))
        }
    }
}

/// The run that ended was the container's first. While the next one waits, its restart is not counted yet.
const fn was_first(runs: &Runs) -> bool {
    runs.restarts == 0 || runs.restarts == 1 && runs.started_boot_ns.is_some()
}

/// The fix for a container that was OOM-killed.
pub fn more_memory(case: &Case<'_>) -> Remediation {
    kubectl::with_log(case, MORE_MEMORY)
}

/// The fix for a container that ends by itself.
pub fn find_own_end(case: &Case<'_>) -> Remediation {
    let container = case.matched.probed_container().map(|(_, it)| it);
    let fix = Remediation::from(OWN_END).run(container.map(|it| previous_log(case, it)));
    match container.is_some_and(Container::has_post_start) {
        true => fix.reword(|text| {
            format!("See whether the pod has the Event FailedPostStartHook: then correct that handler. Else: {text}")
        }),
        false => fix,
    }
}

const OWN_END: &str =
    "Find in the log of the last run why the container ends by itself: no probe ended it. A startupProbe does not help";

/// A clause for a run before that ended as the kubelet ends a run which has spent its budget.
pub fn last_run_spent_budget(case: &Case<'_>) -> Option<String> {
    let spec = case.matched.start_probe()?;
    let last = runs(case)?.last.as_ref().filter(|last| is_ended_by_budget(last, spec))?;
    let ran = last.ran_ns()? / SECOND_NS;
    Some(format!("; the run before ended in the same way, after {ran} s with exit code {}", last.exit_code))
}

/// Killed, not for its memory, at a time that fits the budget. It begins with the first attempt that can fill the
/// threshold. It ends with the grace period after the last one that can.
fn is_ended_by_budget(ended: &Ended, spec: &ProbeSpec) -> bool {
    let earliest = spec.earliest_restart_s();
    let killed = matches!(ended.exit_code, 137 | 143) && !ended.is_out_of_memory();
    let seconds = |s: u64| s.saturating_mul(SECOND_NS);
    let spent = seconds(u64::from(spec.budget_s()) + u64::from(spec.timeout_s));
    let latest = spent.saturating_add(spec.grace_ns()).saturating_add(SLACK_NS);
    // SIGKILL comes at the end of a longer grace period. Whether it was shorter than the default is not always known.
    let longer =
        spec.grace_s.filter(|_| ended.exit_code == 137).map_or(0, |s| s.saturating_sub(ProbeSpec::DEFAULT_GRACE_S));
    let from = seconds(u64::from(earliest) + u64::from(longer));
    let fits = |ran: u64| ran.saturating_add(SECOND_NS) >= from && ran <= latest;
    killed && earliest > 0 && ended.ran_ns().is_some_and(fits)
}

/// Adds how the last run of the container ended, if that was recent. It changes neither cause nor confidence.
pub fn add(case: &Case<'_>, finding: &mut Finding) {
    if finding.outcome != Outcome::Failure || !finding.cause.has(Trait::EndsWithProcess) {
        return;
    }
    // A verdict that comes long after the attempt reports the state at the end of the attempt.
    let at = case.attempt.ended.map_or(finding.decided_at, |(end, _)| end.min(finding.decided_at));
    let Some((container, runs)) = recently_ended(case, at) else { return };
    finding.evidence.push(of_runs(case, container, runs, at));
    // The rule that found such an end has its own fix.
    let has_fix = [MORE_MEMORY, OWN_END, killed::FIX].iter().any(|fix| finding.remediation.text.starts_with(fix));
    let ended = runs.last.as_ref().and_then(|last| last.finished_boot_ns);
    let is_over = runs.started_boot_ns.is_some() && ended.is_some_and(|end| has_succeeded_after(case, end));
    if let Some(more) = fix(case, container, runs).filter(|_| !has_fix && !is_over) {
        let is_down = runs.started_boot_ns.is_none() && ended.is_some_and(|end| end <= at);
        // Neither another port nor a startupProbe helps a container that does not run.
        let comes_first = is_down && finding.cause == Cause::ConnectionRefused;
        let both = |text: &str| match comes_first {
            true => format!("{}. If it runs and still refuses: {text}", more.text),
            false => format!("{}; {}", text.trim_end_matches('.'), more.text),
        };
        finding.change_fix(|fix| fix.reword(both).run(more.commands.iter().cloned()));
    }
}

/// The target succeeded after that end, which is a whole second, and before this attempt: the end does not explain it.
fn has_succeeded_after(case: &Case<'_>, end: u64) -> bool {
    let (attempt, node) = (case.attempt, case.node);
    let since = |from| node.has_succeeded_since(attempt.flow.dst, from);
    since(end.saturating_add(SECOND_NS)) && !since(attempt.started)
}

/// Notes that the pod is being deleted: then its process may have ended and its network may be gone on purpose. The
/// kubelet still runs the readiness probe of such a pod, but not the others (`worker.doProbe`,
/// pkg/kubelet/prober/worker.go).
pub fn add_deletion(case: &Case<'_>, finding: &mut Finding) {
    let pod = case.matched.probed_container().map(|(pod, _)| pod).filter(|pod| pod.deleting);
    if pod.is_none() || finding.outcome != Outcome::Failure {
        return;
    }
    let (so, meanwhile) = match finding.cause {
        cause if cause.has(Trait::EndsWithProcess) => ("its process may have ended as it was asked to", ENDPOINTS),
        cause if is_of_the_network(case, cause) => ("its network may be gone as it should be", ""),
        _ => return,
    };
    if !finding.cause.has(Trait::EndsWithProcess) {
        finding.confidence = finding.confidence.min(Confidence::Likely);
    }
    let text = "the pod is being deleted (deletionTimestamp)".to_owned();
    finding.evidence.push(evidence_of("pod_status", case.attempt.started, text, json!({ "deleting": true })));
    finding.summary += &format!("; the pod is being deleted, so that {so}");
    finding.change_fix(|fix| fix.reword(|otherwise| {
        format!("Nothing, if the pod was to end: its readiness probe fails until it is gone.{meanwhile} Otherwise: {otherwise}")
    }));
}

const ENDPOINTS: &str =
    " If clients were still sent there: a preStop handler that waits until the endpoints have changed.";

/// The cause goes away with the network of a pod: a link, route or neighbour entry is gone, or a BPF program does not
/// know the pod any more. A chain with rules is no such cause.
fn is_of_the_network(case: &Case<'_>, cause: Cause) -> bool {
    let by_program = || programs::dropped(case).is_some();
    match cause {
        Cause::NetworkPolicyDrop => by_program(),
        // An established connection had its network.
        Cause::Unexplained => case.attempt.established.is_none(),
        cause => cause.has(Trait::EndsWithNetwork),
    }
}

/// What to do about the run that ended.
fn fix(case: &Case<'_>, container: &Container, runs: &Runs) -> Option<Remediation> {
    let name = name_of(container);
    if runs.last.as_ref().is_some_and(Ended::is_out_of_memory) {
        return Some(format!("{name} was OOMKilled: raise its memory limit, or find what fills it").into());
    }
    let fix = Remediation::from(format!("{name} does not run now: its log shows how it ended"));
    runs.started_boot_ns.is_none().then(|| fix.run([previous_log(case, container)]))
}

/// Prints the log of the container's last run.
pub fn previous_log(case: &Case<'_>, container: &Container) -> Command {
    let named = case.matched.name().k8s.unwrap_or_default();
    let named = K8s { container_name: container.name.clone(), ..named };
    Command::in_cluster(format!("kubectl logs {}{} --previous", kubectl::pod(&named), kubectl::container(&named)))
}

/// The container that ended last, of those that the attempt can have met, if it ended recently or is in back-off.
fn recently_ended<'a>(case: &Case<'a>, at: u64) -> Option<(&'a Container, &'a Runs)> {
    let ended = |runs: &Runs| runs.last.as_ref().and_then(|last| last.finished_boot_ns);
    let is_recent = |runs: &Runs| ended(runs).is_some_and(|it| it <= at && at - it <= RECENT_NS);
    let agent = sidecar::agent_of(case);
    let met = case.matched.possible_containers().filter(|_| agent.is_none());
    agent
        .into_iter()
        .chain(met)
        .filter_map(|container| Some((container, container.runs.as_ref()?)))
        .filter(|(_, runs)| is_recent(runs) || runs.waiting.as_ref().is_some_and(Waiting::is_back_off))
        .max_by_key(|(_, runs)| ended(runs))
}

fn of_runs(case: &Case<'_>, container: &Container, runs: &Runs, at: u64) -> Evidence {
    let last = runs.last.as_ref();
    let finished = last.and_then(|last| last.finished_boot_ns).filter(|it| *it <= at);
    let ago_s = finished.map(|it| (at - it) / SECOND_NS);
    let mut parts = vec![restarted(runs.restarts)];
    parts.extend(last.map(|last| {
        let ago = ago_s.map(|s| format!(" {s} s before")).unwrap_or_default();
        format!("its last run ended{ago} with {}{}", describe_end(last), budget_clause(case, last))
    }));
    parts.extend(runs.waiting.as_ref().filter(|it| it.is_back_off()).map(|waiting| {
        let message = waiting.message.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
        format!("it waits in {}{message}", waiting.reason)
    }));
    let fields = json!({
        "container": container.name, "restarts": runs.restarts, "exit_code": last.map(|it| it.exit_code),
        "reason": last.and_then(|it| it.reason.clone()), "ran_s": last.and_then(Ended::ran_ns).map(|ns| ns / SECOND_NS),
        "ended_s_before": ago_s, "waiting": runs.waiting.as_ref().map(|it| it.reason.clone()),
    });
    evidence_of(
        "container_status",
        finished.unwrap_or(at),
        format!("{} {}", name_of(container), parts.join("; ")),
        fields,
    )
}

fn restarted(times: u32) -> String {
    match times {
        0 => "was not restarted yet".into(),
        1 => "was restarted once".into(),
        times => format!("was restarted {times} times"),
    }
}

/// "exit code 137 (SIGKILL) after 31 s"
fn describe_end(last: &Ended) -> String {
    let ran = last.ran_ns().map(|ns| format!(" after {} s", ns / SECOND_NS)).unwrap_or_default();
    let reason = last.reason.as_deref().filter(|it| !matches!(*it, "Error" | "Completed" | "OOMKilled"));
    let words: Vec<&str> = if last.is_out_of_memory() {
        vec!["OOMKilled: its memory was used up, no probe ended it"]
    } else {
        signal(last.exit_code).into_iter().chain(reason).collect()
    };
    let words = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
    format!("exit code {}{words}{ran}", last.exit_code)
}

/// The signal that an exit code above 128 stands for, of those that end containers.
const fn signal(exit_code: i32) -> Option<&'static str> {
    match exit_code {
        134 => Some("SIGABRT"),
        135 => Some("SIGBUS"),
        137 => Some("SIGKILL"),
        139 => Some("SIGSEGV"),
        143 => Some("SIGTERM"),
        _ => None,
    }
}

fn budget_clause(case: &Case<'_>, last: &Ended) -> String {
    let spec = case.matched.start_probe().filter(|it| is_ended_by_budget(last, it));
    let clause = spec.map(|spec| {
        let kind = spec.probe_type;
        let (earliest, budget) = (spec.earliest_restart_s(), spec.budget_s());
        format!(", as the kubelet ends a container that has used up its {kind} budget ({earliest} to {budget} s, and the grace period)")
    });
    clause.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A run of the container that lasted `ran_s` seconds and ended 12 s before the next attempt.
    fn ended(stream: &mut Stream, ran_s: u64, exit_code: i32, reason: &str) -> Runs {
        let finished = stream.seconds_ago(12);
        let last = Ended {
            exit_code,
            reason: Some(reason.into()),
            started_boot_ns: finished.checked_sub(ran_s * 1_000_000_000),
            finished_boot_ns: Some(finished),
            ..Ended::default()
        };
        Runs { restarts: 7, last: Some(last), ..Runs::default() }
    }

    /// The verdict on a refusal after that run, with a liveness probe that allows 20 to 30 s.
    fn refused_after(ran_s: u64, exit_code: i32, reason: &str) -> Verdict {
        let mut stream = Stream::new().wait_ms(600_000).liveness(10, 3).clone();
        let runs = ended(&mut stream, ran_s, exit_code, reason);
        stream.runs(runs).connect().reset_sent(SYN, true, None).verdict()
    }

    fn row(verdict: &Verdict) -> String {
        let rows: Vec<_> = verdict.evidence.iter().filter(|it| it.hook == "container_status").collect();
        assert!(rows.len() <= 1, "{rows:?}");
        rows.first().map(|it| it.text.clone()).unwrap_or_default()
    }

    #[test]
    fn a_refusal_of_a_pod_that_is_being_deleted_says_so() {
        let mut stream = Stream::new();
        stream.http_readiness().listens(POD, 8080, true).listens(POD, 8080, false).deleting();
        stream.connect().reset_sent(SYN, true, None);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Proven));
        assert_has(&verdict.summary, &["; the pod is being deleted"]);
        assert_starts(&verdict.remediation, "Nothing, if the pod was to end");
        assert!(verdict.evidence.iter().any(|it| it.hook == "pod_status"));
        let mut dropped = Stream::new();
        dropped.http_readiness().deleting().connect().drop(SYN, "IP_RPFILTER", POD).gives_up();
        assert!(!dropped.verdict().summary.contains("deleted"), "rp_filter is no doing of its process");
    }

    /// Calico leaves a blackhole route for the address block; Cilium drops packets for an endpoint that is gone.
    #[test]
    fn a_network_failure_of_a_pod_that_is_being_deleted_says_so() {
        let noted = |deleting: bool, fail: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().clone();
            if deleting {
                stream.deleting();
            }
            fail(&mut stream);
            let verdict = stream.verdict();
            assert_eq!(verdict.evidence.iter().any(|it| it.hook == "pod_status"), deleting);
            assert_eq!(verdict.summary.contains("its network may be gone as it should be"), deleting);
            assert_eq!(verdict.remediation.to_string().starts_with("Nothing, if the pod was to end"), deleting);
            (verdict.cause.name(), verdict.confidence)
        };
        let blackhole: fn(&mut Stream) = |stream| _ = stream.connect_failed(22);
        assert_eq!(noted(false, blackhole), ("route_unreachable", Confidence::Proven));
        assert_eq!(noted(true, blackhole), ("route_unreachable", Confidence::Likely));
        let neighbour: fn(&mut Stream) =
            |stream| _ = stream.connect().wait_ms(200).inspection(|_| {}).drop(SYN, "NEIGH_FAILED", NODE);
        assert_eq!(noted(false, neighbour), ("neighbour_failure", Confidence::Proven));
        assert_eq!(noted(true, neighbour), ("neighbour_failure", Confidence::Likely));
        let program: fn(&mut Stream) = |stream| _ = stream.connect().drop(SYN, "TC_EGRESS", NODE);
        assert_eq!(noted(true, program), ("network_policy_drop", Confidence::Likely));
        let silence: fn(&mut Stream) = |stream| _ = stream.connect().gives_up();
        assert_eq!(noted(true, silence), ("unexplained", Confidence::Possible));
        let mut chain = Stream::new().http_readiness().deleting().connect().filtered(SYN, POD).clone();
        chain.push(firewall(POD, vec![rule("cali-fw-cali1234", RuleVerdict::Drop)])).settles();
        assert!(!chain.verdict().summary.contains("deleted"), "a rule is there");
    }

    #[test]
    fn a_run_that_spent_its_budget_is_reported() {
        let verdict = refused_after(31, 137, "Error");
        let expected = "container app was restarted 7 times; its last run ended 12 s before with exit code 137 (SIGKILL) after 31 s, as the kubelet ends a container that has used up its liveness budget (20 to 30 s, and the grace period)";
        assert_eq!((verdict.cause.name(), row(&verdict).as_str()), ("connection_refused", expected));
        assert_eq!(verdict.evidence[0].fields["restarts"], 7, "it came before the refusal");
        assert_eq!(verdict.confidence, Confidence::Proven, "it weakens nothing");
    }

    /// The kill came when the budget would have ended the run, too.
    #[test]
    fn an_oom_kill_is_not_put_down_to_a_probe() {
        let verdict = refused_after(31, 137, "OOMKilled");
        let reported = row(&verdict);
        assert_has(&reported, &["(OOMKilled: its memory was used up, no probe ended it) after 31 s"]);
        assert_lacks(&reported, &["the kubelet ends"]);
        assert_has(&verdict.remediation, &["raise its memory limit"]);
        assert_lacks(&verdict.remediation, &["does not run now"]);
    }

    /// The kill comes 0.6 s after each start: neither a probe nor a startupProbe helps.
    #[test]
    fn an_oom_kill_in_each_start_is_no_slow_start() {
        let verdict = refused_after(1, 137, "OOMKilled");
        assert_eq!(verdict.cause.name(), "connection_refused");
        assert_has(&verdict.summary, &["was OOMKilled"]);
        assert_starts(&verdict.remediation, "Raise the memory limit");
        assert_eq!(verdict.remediation.to_string().matches("memory limit").count(), 1, "{}", verdict.remediation);
        assert_lacks(&refused_after(1, 1, "Error").remediation, &["memory"]);
    }

    /// A container with a readiness probe, which ends no run. It was started again 2 s ago.
    fn refused_in_run(exit_code: i32, ran_s: u64, probed: fn(&mut Stream)) -> Verdict {
        refused_in((7, true), exit_code, ran_s, probed)
    }

    /// The same after that many restarts. If it does not run, it waits for the next one.
    fn refused_in(
        (restarts, runs): (u32, bool),
        exit_code: i32,
        ran_s: u64,
        probed: impl FnOnce(&mut Stream),
    ) -> Verdict {
        let mut stream = Stream::new().wait_ms(600_000).netns_made(POD).clone();
        probed(&mut stream);
        let last = ended(&mut stream, ran_s, exit_code, "Error");
        let started_boot_ns = runs.then(|| stream.seconds_ago(2));
        stream.runs(Runs { restarts, started_boot_ns, ..last }).connect().reset_sent(SYN, true, None).verdict()
    }

    /// A wrong configuration, a missing secret. No probe can end it that early.
    #[test]
    fn a_container_that_ends_by_itself_is_no_slow_start() {
        let readiness: fn(&mut Stream) = |stream| _ = stream.http_readiness();
        for (exit_code, words) in [(1, "exit code 1 after 3 s"), (0, "exit code 0"), (139, "exit code 139 (SIGSEGV)")] {
            let verdict = refused_in_run(exit_code, 3, readiness);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Proven));
            assert_has(&verdict.summary, &["; container app ended by itself 12 s before with ", words]);
            assert_starts(&verdict.remediation, "Find in the log of the last run why the container ends by itself");
            assert_ends(&verdict.remediation, ": kubectl logs -n default web -c app --previous");
        }
        for (exit_code, ran_s) in [(137, 3), (143, 3), (1, 60)] {
            assert_eq!(refused_in_run(exit_code, ran_s, readiness).cause.name(), "not_listening_yet");
        }
    }

    /// The process may have ended because the kubelet asked it to.
    #[test]
    fn a_run_that_a_probe_can_have_ended_did_not_end_by_itself() {
        let liveness: fn(&mut Stream) = |stream| _ = stream.liveness(2, 3);
        let cause = |exit_code, ran_s| refused_in((1, true), exit_code, ran_s, liveness).cause.name();
        assert_eq!((cause(1, 3), cause(1, 4)), ("connection_refused", "not_listening_yet"));
        assert_eq!((cause(139, 4), cause(0, 6)), ("connection_refused", "not_listening_yet"));
    }

    /// kubernetes#46371: the kubelet keeps the count of failures from one run to the next.
    #[test]
    fn after_a_run_that_left_failures_the_first_probe_can_end_the_next_one() {
        let blamed = |restarts: u32, running: bool, initial_delay_s: u32| {
            let liveness = |stream: &mut Stream| _ = stream.liveness_after(initial_delay_s, 10, 3);
            refused_in((restarts, running), 1, 3, liveness).summary.contains("ended by itself")
        };
        assert!(blamed(1, true, 0), "the first run ended");
        assert!(!blamed(2, true, 0) && !blamed(1, false, 0), "the second run ended");
        assert!(blamed(2, true, 4), "before the first probe");
    }

    /// Its handler asks a port where nobody listens, or its command fails: the kubelet ends each run at once.
    #[test]
    fn a_run_that_a_post_start_handler_can_have_ended_may_have_ended_by_itself() {
        let http: fn(&mut Stream) = |stream| _ = stream.http_readiness().lifecycle(LifecycleEvent::PostStart, 9090);
        let command: fn(&mut Stream) = |stream| {
            stream.http_readiness().last_pods().pods[0].containers[0].post_start_command = true;
        };
        for probed in [http, command] {
            let verdict = refused_in_run(2, 3, probed);
            assert_eq!(verdict.cause.name(), "connection_refused");
            assert_has(
                &verdict.summary,
                &["ended by itself 12 s before, or after its postStart handler failed, with "],
            );
            assert_starts(&verdict.remediation, "See whether the pod has the Event FailedPostStartHook");
        }
    }

    /// Seen beside a real kubelet: from the second run on, the fix was to find out why the container ends.
    #[test]
    fn the_fix_of_a_refused_post_start_handler_is_its_port() {
        let verdict = refused_in_run(2, 3, |stream| {
            _ = stream.http_readiness().lifecycle(LifecycleEvent::PostStart, 9090).again_to(8, "10.88.0.2:9090");
        });
        assert_eq!(verdict.cause.name(), "connection_refused");
        assert_starts(&verdict.remediation, "For the lifecycle handler: Let the process listen on 9090");
        assert_lacks(&verdict.summary, &["ended by itself"]);
    }

    #[test]
    fn a_crash_or_a_kill_at_another_time_is_not_put_down_to_the_budget() {
        let cases =
            [(31, 1, "Error"), (31, 0, "Completed"), (5, 137, "Error"), (300, 143, "Error"), (31, 139, "Error")];
        for (ran_s, exit_code, reason) in cases {
            let verdict = refused_after(ran_s, exit_code, reason);
            let reported = row(&verdict);
            assert_has(&reported, &[&format!("exit code {exit_code}")]);
            assert_lacks(&reported, &["the kubelet ends"]);
            assert_lacks(&verdict.remediation, &["memory"]);
        }
    }

    /// SIGKILL comes 600 s after SIGTERM; somebody else may kill the container before.
    #[test]
    fn a_kill_within_a_long_grace_period_is_not_put_down_to_the_budget() {
        let by_budget = |ran_s: u64, exit_code: i32| {
            let mut stream = Stream::new().wait_ms(900_000).liveness(10, 3).grace_s(600).clone();
            let runs = ended(&mut stream, ran_s, exit_code, "Error");
            row(&stream.runs(runs).connect().reset_sent(SYN, true, None).verdict()).contains("the kubelet ends")
        };
        assert_eq!([by_budget(300, 137), by_budget(625, 137), by_budget(300, 143)], [false, true, true]);
    }

    #[test]
    fn a_run_that_ended_long_ago_is_not_reported() {
        let mut stream = Stream::new().wait_ms(600_000).liveness(10, 3).clone();
        let runs = ended(&mut stream, 31, 137, "Error");
        stream.runs(runs).wait_ms(7_200_000).connect().reset_sent(SYN, true, None);
        assert_eq!(row(&stream.verdict()), "");
    }

    /// The attempt is judged again when the process listens; in between, its container ended.
    #[test]
    fn a_run_that_ended_after_the_attempt_is_not_reported() {
        let mut stream = Stream::new();
        stream.wait_ms(600_000).liveness(10, 3).connect().reset_sent(SYN, true, None).gives_up().wait_ms(60_000);
        let runs = ended(&mut stream, 31, 137, "OOMKilled");
        stream.runs(runs).wait_ms(1_000).listens(POD, 8080, true);
        let verdicts = stream.verdicts();
        assert_eq!(stream.causes(), ["connection_refused", "not_listening_yet"]);
        assert!(
            verdicts
                .iter()
                .all(|it| row(&it.verdict).is_empty() && !it.verdict.remediation.to_string().contains("memory"))
        );
    }

    /// The container ran when the attempt was made. Its pod is listed again before the verdict.
    #[test]
    fn an_out_of_memory_kill_after_the_attempt_does_not_explain_it() {
        let mut stream = Stream::new().wait_ms(600_000).liveness(10, 3).connect().clone();
        stream.reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0);
        let mut runs = ended(&mut stream, 5, 137, "OOMKilled");
        runs.last.iter_mut().for_each(|last| last.finished_boot_ns = Some(stream.now() + 1_000_000_000));
        runs.waiting = Some(Waiting { reason: Waiting::BACK_OFF.into(), message: None });
        stream.runs(runs).state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
        assert_lacks(&stream.verdict().summary, &["OOMKilled"]);
    }

    #[test]
    fn an_out_of_memory_kill_before_a_success_does_not_change_the_fix() {
        let failed = |succeeds: bool| {
            let mut stream = Stream::new().wait_ms(600_000).http_readiness().clone();
            let killed = ended(&mut stream, 31, 137, "OOMKilled");
            let began = Some(stream.seconds_ago(11));
            stream.runs(Runs { started_boot_ns: began, ..killed });
            if succeeds {
                stream.connect().established().answer(AnswerKind::Http, Some(200)).wait_ms(1_000);
                stream.closes((100, 101, 200)).wait_ms(9_000).again(2);
            }
            stream.connect().established().wait_ms(1_000).closes((100, 101, 0)).last_verdict()
        };
        for (succeeds, verdict) in [false, true].map(|it| (it, failed(it))) {
            assert_eq!(verdict.cause.name(), "slow_response");
            assert_has(&row(&verdict), &["OOMKilled"]);
            assert_eq!(verdict.remediation.to_string().contains("raise its memory limit"), !succeeds);
        }
    }

    #[test]
    fn a_container_in_back_off_is_reported_for_any_port() {
        let mut stream = Stream::new();
        let message = Some("back-off 5m0s restarting failed container=app".to_owned());
        let waiting = Some(Waiting { reason: Waiting::BACK_OFF.into(), message });
        stream.wait_ms(600_000).http_readiness_on(9090).runs(Runs { restarts: 2, waiting, ..Runs::default() });
        stream.connect().reset_sent(SYN, true, None);
        let reported = row(&stream.verdict());
        let expected = "container app was restarted 2 times; it waits in CrashLoopBackOff: back-off 5m0s restarting failed container=app";
        assert_eq!(reported, expected);
        let fix = stream.verdict().remediation;
        assert_ends(&fix.text, "does not run now: its log shows how it ended");
        let fix = refused_after(5, 143, "Error").remediation;
        assert_has(
            &fix,
            &["does not run now: its log shows how it ended. If it runs and still refuses: Let the process"],
        );
        assert_ends(&fix, "kubectl logs -n default web -c app --previous");
    }

    #[test]
    fn only_causes_of_the_process_report_the_last_run() {
        let mut stream = Stream::new().wait_ms(600_000).liveness(10, 3).clone();
        let runs = ended(&mut stream, 31, 137, "Error");
        stream.runs(runs.clone()).connect().filtered(SYN, POD).gives_up();
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), row(&verdict).as_str()), ("firewall_drop", ""));
        let mut slow = Stream::new();
        slow.wait_ms(600_000).http_readiness().runs(runs).connect().established().wait_ms(1000).closes((100, 101, 0));
        let verdict = slow.verdict();
        assert_eq!(verdict.cause.name(), "slow_response");
        assert_starts(&row(&verdict), "container app was restarted 7 times");
    }
}
