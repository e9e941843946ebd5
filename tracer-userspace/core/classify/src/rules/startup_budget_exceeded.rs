//! The liveness or startup budget ended before the container listened.

use super::*;
use tracer_case::other_stack::refused;
use tracer_case::refusal::{Refused, pod_elsewhere};
use tracer_case::{Streak, history, phrases, pod_sockets, sidecar, startup_probe};
use tracer_model::event::{Container, LifecycleEvent, Netns, ProbeSpec, ProbeType, Runs, Waiting};

/// Attempts come at whole periods; the kubelet jitters the first one.
const SLACK_NS: u64 = 500_000_000;
const SECOND_NS: u64 = 1_000_000_000;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Refused { evidence, netns, confidence: refusal } = refused(case)?;
    // The container that does not listen is then not the one with the budget.
    if sidecar::asked_by_pilot_agent(case).is_some() {
        return None;
    }
    let (netns, streak) = (netns?, case.streak?);
    let at = evidence.iter().map(|e| e.time_boot_ns).max()?;
    let spec = case.matched.start_probe()?;
    let start = ContainerStart::of(case, spec, netns, streak, at)?;
    let since = start.began().unwrap_or(streak.since);
    let surely = spent(case, spec, start, streak, at)?;
    if start.is_over(case, netns) {
        return None;
    }
    // The status of a container comes a second or more after its end, and later if the node is busy.
    let entered = case.node.namespaces.entered(netns, streak.since, at);
    let running = entered.and_then(|entered| runs_on(case, streak, entered, at));
    let entered = entered.filter(|_| running.is_none());
    let seen_whole = start.confidence && entered.is_none();
    let confidence = surely && seen_whole && streak.of_probes && !others_listen(case, netns);
    let evidence = evidence.into_iter().chain(running).collect();
    let mut found = finding(case, evidence, spec, netns, start, since, at);
    found.summary +=
        &entered.filter(|_| !shares_node(case)).map(|entered| may_be_restart(at - entered)).unwrap_or_default();
    let found = match (start.is_known, confidence) {
        // The process may have listened before tracer began, and have ended.
        (false, _) => found.with_confidence(Confidence::Possible),
        (true, false) => found.with_confidence(Confidence::Likely),
        (true, true) => found,
    };
    // A second namespace with the pod's address may have refused: the reading after the failure shows who has it.
    let lacks_acceptor = pod_elsewhere(case, netns).is_some();
    let found = found.at_most(refusal).unless_a_listener_was_lost(case, since, at);
    Some(Finding { lacks_acceptor, ..found })
}

/// The process listens, and its start probe has failed since the start: it answers 404 or 503, or nothing, until it is
/// ready. So it may be slow to start, and the attempt itself does not tell that. In `also` only.
pub(in super::super) fn while_answering(case: &Case<'_>, first: &Finding) -> Option<Finding> {
    let (spec, failing) = (case.matched.start_probe()?, case.failing?);
    let is_it = case.matched.probe_type() == Some(spec.probe_type) && !case.matched.is_one_of_several();
    let answers =
        first.outcome == Outcome::Failure && matches!(first.cause, Cause::AppStatusFailure | Cause::SlowResponse);
    let at = first.decided_at;
    if !is_it || !answers || case.attempt.established.is_none() || case.node.lost_between(failing.since, at) > 0 {
        return None;
    }
    // Its first attempt comes within a period of the start, which is known in whole seconds.
    let soon_ns =
        u64::from(spec.initial_delay_s.saturating_add(spec.period_s).saturating_add(1)) * SECOND_NS + SLACK_NS;
    let run = case.matched.run_began(at).filter(|began| failing.since.saturating_sub(*began) <= soon_ns);
    let netns = case.node.netns_of_addr(case.attempt.netns?, case.attempt.flow.dst.ip());
    let is_first_run = runs(case).is_some_and(|runs| runs.restarts == 0);
    let made = || case.node.namespaces.made(netns?).filter(|_| is_first_run);
    let began = run.or_else(made).filter(|began| failing.since >= *began)?;
    let is_spent = spec.failure_threshold > 0 && failing.count >= spec.failure_threshold;
    let before = history::last_run_spent_budget(case).unwrap_or_default();
    if failing.succeeded.is_some_and(|at| at >= began) || (!is_spent && before.is_empty()) {
        return None;
    }
    let waited = at.saturating_sub(began) as f64 / 1e9;
    let evidence = run.map(|began| history::of_start(case, began));
    let evidence = evidence.or_else(|| Some(of_namespace(case, netns?, began)))?;
    let kind = spec.probe_type;
    let now = if is_spent { "; the kubelet ends it now" } else { "" };
    let summary =
        format!("its {kind} probe has failed since its start {waited:.0} s before, and {}{now}{before}", allows(spec));
    Some(Finding::likely(Cause::StartupBudgetExceeded, vec![evidence], summary, fix(spec)))
}

/// This attempt is of the probe, and its failures in a row are as many as it allows; whether that is sure. Not before
/// the earliest time at which they can be too many.
fn spent(case: &Case<'_>, spec: &ProbeSpec, start: ContainerStart, streak: Streak, at: u64) -> Option<bool> {
    let lasted = at.saturating_sub(streak.since).saturating_add(SLACK_NS);
    let needed_s = u64::from(spec.failure_threshold.saturating_sub(1)) * u64::from(spec.period_s);
    let needed = needed_s.saturating_mul(SECOND_NS);
    let age = start.began().map(|began| at.saturating_sub(began).saturating_add(SLACK_NS));
    let too_early = age.is_some_and(|age| age < u64::from(spec.earliest_restart_s()) * SECOND_NS);
    let (pod, container) = case.matched.probed_container()?;
    if spec.failure_threshold == 0 || lasted < needed || too_early {
        return None;
    }
    // The container's other probes wait for the success of its startup probe.
    let waits = |of: &Container| spec.probe_type == ProbeType::Startup && std::ptr::eq(of, container);
    let others = pod.containers.iter().filter(|of| !waits(of)).flat_map(|of| &of.probes);
    let has_others = others.filter(|other| !std::ptr::eq(*other, spec)).any(|other| other.port == spec.port);
    // A postStart handler connects once in a start.
    let handlers = pod.containers.iter().flat_map(|it| &it.lifecycle);
    let handlers = handlers.filter(|it| it.port == spec.port && it.event == LifecycleEvent::PostStart).count();
    let own = if has_others {
        // The refusals of several probes look alike. Only the kubelet's log names the probe of each.
        let is_it = case.matched.probe_type() == Some(spec.probe_type);
        case.failing.filter(|_| is_it)?.count.min(streak.count)
    } else {
        streak.count.saturating_sub(u32::try_from(handlers).unwrap_or(u32::MAX))
    };
    (own >= spec.failure_threshold).then_some(handlers == 0)
}

/// When the start began, as far as tracer saw it.
#[derive(Clone, Copy)]
struct ContainerStart {
    /// When this run of the container began.
    run: Option<u64>,
    /// When the pod's network namespace was made, if no container was restarted in it, as far as is known.
    made: Option<u64>,
    /// All refusals are of one start of this container.
    confidence: bool,
    /// A start is known, if only one from before tracer began.
    is_known: bool,
}

impl ContainerStart {
    /// `None` if the container ended by itself since the refusals began, or had outlived its budget by then. Then the
    /// refusals spend no budget.
    fn of(case: &Case<'_>, spec: &ProbeSpec, netns: Netns, streak: Streak, at: u64) -> Option<Self> {
        let (run, runs) = (case.matched.run_began(at), runs(case));
        if runs.is_some_and(|runs| has_outlived(runs, spec, streak.since)) {
            return None;
        }
        let ended = |runs: &Runs| {
            let last = runs.last.as_ref().and_then(|last| last.finished_boot_ns);
            runs.waiting.as_ref().is_some_and(Waiting::is_back_off) || last.is_some_and(|end| end > streak.since)
        };
        if run.is_none() && runs.is_some_and(ended) {
            return None;
        }
        let first = runs.map(|runs| runs.restarts == 0);
        let made = case.node.namespaces.made(netns).filter(|_| first != Some(false));
        let confidence = run.is_some() || (made.is_some() && (first == Some(true) || streak.one_run));
        let is_known = run.or(made).or_else(|| runs?.started_boot_ns).is_some();
        Some(Self { run, made, confidence, is_known })
    }

    fn began(self) -> Option<u64> {
        self.run.or(self.made)
    }

    /// The start is over: a process has listened on the port since. A process that listens on another port has started,
    /// too: then the port is wrong, and the start is not slow.
    fn is_over(self, case: &Case<'_>, netns: Netns) -> bool {
        let (listeners, dst) = (&case.node.listeners, case.attempt.flow.dst);
        let alone = case.matched.is_only_container();
        let elsewhere = |any: bool| any && alone && !shares_node(case);
        if pod_sockets::container_listens(case, netns) {
            return true;
        }
        match self.run.filter(|_| alone) {
            Some(began) => listeners.changed_since(netns, dst, began) || elsewhere(listeners.any_since(netns, began)),
            // Another container may have listened there, and the refusals may come from its end.
            None => listeners.knows(netns, dst) || elsewhere(listeners.any_in(netns)),
        }
    }
}

/// The container that had the first refusal still had processes after the last entry: the runtime gives each run another
/// id. So that process entered for another reason.
pub(super) fn runs_on(case: &Case<'_>, streak: Streak, entered: u64, at: u64) -> Option<Evidence> {
    let (_, container) = case.matched.probed_container().filter(|_| streak.one_run)?;
    let mut readings = case.node.targets.limits(container.id.as_deref()?);
    let (time, _) = readings.find(|(time, _)| *time > entered && *time <= at)?;
    let text = format!(
        "{} ran on: its processes were there {} after the last process had entered its network namespace",
        phrases::name_of(container),
        ms(time - entered)
    );
    Some(evidence_of("cgroup", time, text, json!({ "container_id": container.id })))
}

/// A clause for a process that entered the namespace since the first refusal: to start the container again, perhaps, or
/// for `kubectl exec` and exec probes.
fn may_be_restart(ago_ns: u64) -> String {
    format!(
        "; a process entered its network namespace {} before: if the container ended by itself and was started again, this is the first failure of its new run",
        ms(ago_ns)
    )
}

/// The container was started so long before the first refusal that a process must have listened: the kubelet would have
/// ended it otherwise.
fn has_outlived(runs: &Runs, spec: &ProbeSpec, since: u64) -> bool {
    let budget_ns = (u64::from(spec.budget_s()) + u64::from(spec.timeout_s)) * SECOND_NS;
    let most = budget_ns.saturating_add(spec.grace_ns());
    runs.started_boot_ns.is_some_and(|started| since.saturating_sub(started) > most)
}

/// Another container or process listens in the namespace. It may be this container, on a wrong port.
fn others_listen(case: &Case<'_>, netns: Netns) -> bool {
    shares_node(case) || case.node.listeners.any_in(netns)
}

fn finding(
    case: &Case<'_>,
    mut evidence: Vec<Evidence>,
    spec: &ProbeSpec,
    netns: Netns,
    start: ContainerStart,
    since: u64,
    at: u64,
) -> Finding {
    let waited = at.saturating_sub(since) as f64 / 1e9;
    // The start of a run is known in whole seconds.
    let after = if start.run.is_some() { format!("{waited:.0} s") } else { format!("{waited:.1} s") };
    let of_run = start.run.map(|began| history::of_start(case, began));
    evidence.splice(0..0, of_run.or_else(|| Some(of_namespace(case, netns, start.made?))));
    let kind = spec.probe_type;
    let never = case.matched.probed_container().is_some_and(|(_, container)| container.never_restarted);
    let then = if never { "ends it now, and does not start it again (restartPolicy Never)" } else { "restarts it now" };
    let summary = format!(
        "{} is not listening after {after}{}, and its {kind} probe {}; the kubelet {then}{}",
        case.attempt.flow.dst,
        in_namespace(case, Some(netns)),
        allows(spec),
        history::last_run_spent_budget(case).unwrap_or_default()
    );
    Finding::failure(Cause::StartupBudgetExceeded, evidence, summary, fix(spec))
}

/// The first attempt comes anywhere in the first period.
fn allows(spec: &ProbeSpec) -> String {
    format!(
        "allows {}-{} s (initialDelaySeconds {} + periodSeconds {} x failureThreshold {})",
        spec.earliest_restart_s(),
        spec.budget_s(),
        spec.initial_delay_s,
        spec.period_s,
        spec.failure_threshold
    )
}

/// A probe to paste with the same period. How long the start takes is not known, as it was not over: it allows ten times
/// the budget, and no more than ten minutes if that is twice the budget.
fn fix(spec: &ProbeSpec) -> String {
    let budget = f64::from(spec.budget_s());
    let probe = startup_probe::that_allows((budget * 10.0).min(600.0).max(budget * 2.0), spec);
    let what = match spec.probe_type {
        ProbeType::Startup => "Give the startupProbe a budget",
        _ => "Add a startupProbe",
    };
    format!("{what} that covers the start. How long that takes is not known, so allow plenty: {probe}")
}

#[cfg(test)]
mod tests;
