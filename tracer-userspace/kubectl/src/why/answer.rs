//! The answer in one sentence, and what the log has if there is no answer.

use jiff::Timestamp;

use super::super::clock::ago;
use super::super::daemon::Daemon;
use super::super::objects::{ContainerStatus, Pod};
use super::collected::{Collected, Effect, Failure, OfPod};
use tracer_model::event::KubeletResult;
use tracer_model::plural::counted;
use tracer_model::record::{Cause, Command, Remediation, VerdictBody};
use tracer_output::sink::plain::date_and_time;
use tracer_output::sink::pretty::findings;
use tracer_terminal::screen::Screen;

/// A probe that keeps failing has a record at least this often: `--repeat-interval` is a minute by default.
const RECENT_S: i64 = 180;

/// `cart-0 is not ready: …; fix: …`, and the commands that are not in it. Only a probe that decides readiness gives the
/// reason.
pub(super) fn text<'a>(
    of_pod: &'a OfPod,
    collected: &Collected,
    daemon: &Daemon,
    now: Timestamp,
) -> (String, &'a [Command]) {
    let pod = &of_pod.pod;
    let node = daemon.node();
    let subject = format!("{} on {node} {}", pod.full_name(), state(pod));
    let reason = |body: &VerdictBody| reason(body, node);
    let recent = |effect| of_pod.failure(effect).filter(|it| !pod.is_over() && is_recent(it, now));
    if let Some(failure) = recent(Effect::Unready).filter(|_| !pod.is_ready()) {
        return (format!("{subject}: {}", reason(&failure.body)), several(&failure.body));
    }
    if let Some(failure) = recent(Effect::Restart) {
        let (when, reason) = (when(failure, now), reason(&failure.body));
        let restart = restart(&failure.body, pod);
        let text = format!("{subject}; its liveness probe failed {when}{restart}: {reason}");
        return (text, several(&failure.body));
    }
    let probes = [Effect::Unready, Effect::Restart].into_iter().filter_map(|effect| of_pod.failure(effect));
    if let Some(failure) = probes.max_by_key(|it| it.time.parse::<Timestamp>().ok()) {
        let (when, reason) = (when(failure, now), reason(&failure.body));
        let text = format!("{subject}; its last probe failure that tracer saw was {when}: {reason}");
        return (text, several(&failure.body));
    }
    let window = window(collected, daemon);
    let it = collected.container.as_ref().map_or_else(|| "it".to_owned(), |name| format!("container {name}"));
    let Some(failure) = of_pod.failure(Effect::None) else {
        let hidden = match of_pod.hidden {
            0 => String::new(),
            1 => "; 1 verdict of the pod is not of this container".to_owned(),
            n => format!("; {n} verdicts of the pod are not of this container"),
        };
        return (format!("{subject}; tracer has no failure of {it} {window}{hidden}"), &[]);
    };
    let (when, reason) = (when(failure, now), reason(&failure.body));
    let text =
        format!("{subject}; tracer has no failed probe of {it} {window}; a connection to it failed {when}: {reason}");
    (text, several(&failure.body))
}

/// The effect of a failed liveness probe. The kubelet ignores a probe that ended in an error. If it did not report the
/// attempt and tracer does not count it, that may be such a probe.
fn restart(body: &VerdictBody, pod: &Pod) -> String {
    let probe = body.probe.as_ref();
    let is_ignored = match &body.kubelet {
        Some(reported) => reported.result == KubeletResult::Error,
        None => {
            let may_be = matches!(body.verdict.cause, Cause::SlowResponse | Cause::MidStreamRst);
            may_be && probe.is_some_and(|probe| probe.consecutive_failures.is_none())
        }
    };
    if is_ignored {
        return String::new();
    }
    let does = if pod.spec.restart_policy == "Never" { "ends" } else { "restarts" };
    match probe.and_then(|probe| probe.failure_threshold) {
        Some(1) => format!(", and the kubelet {does} the container for it"),
        Some(n) => format!(", and the kubelet {does} the container after {n} failures in a row"),
        None => format!(", and the kubelet {does} the container if it goes on"),
    }
}

/// `12 s ago (2026-01-02 03:04:05 UTC)`
fn when(failure: &Failure, now: Timestamp) -> String {
    format!("{} ({} UTC)", ago(&failure.time, now), date_and_time(&failure.time))
}

/// `Nobody listens on … (connection_refused, proven); fix: …`
fn reason(body: &VerdictBody, node: &str) -> String {
    let verdict = &body.verdict;
    let fix = fix(&verdict.remediation, node).map(|fix| format!("; fix: {fix}")).unwrap_or_default();
    format!("{} ({}, {}){fix}", verdict.summary.trim_end_matches('.'), verdict.cause, verdict.confidence)
}

/// The text, and the command if there is only one: `Set the link up; run on the node node-3: ip link set lo up`
fn fix(fix: &Remediation, node: &str) -> Option<String> {
    let text = Some(&fix.text).filter(|text| !text.is_empty());
    let [Command { place, run }] = &fix.commands[..] else { return text.cloned() };
    let text = text.map(|text| format!("{}; ", text.trim_end_matches('.'))).unwrap_or_default();
    Some(format!("{text}{} {run}", place.instruction(Some(node))))
}

/// Several commands are not in the line: pasted as one, they would run without a look at what the first one shows.
fn several(body: &VerdictBody) -> &[Command] {
    Some(&body.verdict.remediation.commands[..]).filter(|commands| commands.len() > 1).unwrap_or_default()
}

/// Whether the failure is recent. An old failure may not be the reason any more.
fn is_recent(failure: &Failure, now: Timestamp) -> bool {
    let period = failure.body.probe.as_ref().and_then(|probe| probe.period_s).map_or(0, i64::from);
    let age = failure.time.parse::<Timestamp>().map(|time| now.as_second() - time.as_second());
    age.is_ok_and(|age| age <= RECENT_S.max(3 * period))
}

fn state(pod: &Pod) -> String {
    match pod.status.phase.as_str() {
        _ if pod.metadata.deletion_timestamp.is_some() => "is being deleted".into(),
        "Succeeded" | "Failed" => format!("has ended ({})", pod.status.phase),
        _ if pod.is_ready() => "is ready".into(),
        _ => {
            let restarted = most_restarted(pod).map(|it| {
                // Another container than this one may have failed.
                let several = pod.status.container_statuses.len() > 1;
                let of = if several { format!("container {} ", it.name) } else { String::new() };
                format!("{of}restarted {}", counted(it.restart_count.into(), "time"))
            });
            let details: Vec<_> = restarted.into_iter().chain(waiting(pod)).collect();
            let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join("; ")) };
            format!("is not ready{details}")
        }
    }
}

/// The container that was restarted most often, if one was.
fn most_restarted(pod: &Pod) -> Option<&ContainerStatus> {
    let restarted = pod.status.container_statuses.iter().filter(|it| it.restart_count > 0);
    restarted.max_by_key(|it| it.restart_count)
}

/// Why a container waits to start. The kubelet does not probe it before it runs.
fn waiting(pod: &Pod) -> Option<String> {
    let (status, waiting) = pod.waiting().next()?;
    let message = match &status.last_state.terminated {
        Some(ended) => format!(", its last run ended with exit code {}", ended.exit_code),
        None if waiting.message.is_empty() => String::new(),
        None => format!(": {}", waiting.message),
    };
    Some(format!("container {} waits: {}{message}", status.name, waiting.reason))
}

/// `since … UTC in the log of … (last record: … UTC)`. Nothing to report came after that record, if the log is
/// not cut and tracer runs.
fn window(collected: &Collected, daemon: &Daemon) -> String {
    match &collected.reading.times {
        Some((first, last)) => {
            let (first, last) = (date_and_time(first), date_and_time(last));
            format!("since {first} UTC in the log of {} (last record: {last} UTC)", daemon.name())
        }
        None => format!("in the log of {}, which has no record", daemon.name()),
    }
}

/// For a pod without a verdict: what was read, and the findings of the node.
pub(super) fn describe_log(collected: &Collected, daemon: &Daemon, screen: Screen) -> String {
    let mut out = String::new();
    let mut row = |word: &str, text: &str| screen.row(&mut out, word, text);
    let records = counted(collected.reading.records, "record");
    let others = counted(collected.others, "verdict");
    row("read", &format!("{records} of {}: {others} of other pods and connections", daemon.name()));
    if collected.reading.records == 0 {
        let why = "nothing happened there in this time, or tracer writes to a file (--output-file)";
        row("doctor", &format!("nothing is known of the node: {why}"));
    }
    if most_restarted(&daemon.pod).is_some() {
        let (namespace, name) = (&daemon.pod.metadata.namespace, &daemon.pod.metadata.name);
        let logs = format!("kubectl logs -n {namespace} {name} -p");
        row("before", &format!("tracer was restarted: {logs} has its records of the time before"));
    }
    if let Some(start) = &collected.start {
        row("sources", &start.sources.join("; "));
        let missing: Vec<_> = start.missing_hooks.iter().map(|it| format!("{} ({})", it.hook, it.lost)).collect();
        if !missing.is_empty() {
            row("missing", &missing.join("; "));
        }
    }
    let findings: Vec<_> = collected.findings().cloned().collect();
    if findings.is_empty() {
        if collected.reading.records > 0 {
            row("doctor", "nothing that is wrong with the node is in this log");
        }
        return out;
    }
    row("doctor", &format!("found on {}:", daemon.node()));
    out.push_str(&findings::table(&findings, daemon.node(), false, screen));
    out
}
