//! A line of the kubelet's log as an observation.
//!
//! tracer understands the plain form up to 1.20 (`Readiness probe for "pod_ns(uid):container" failed (failure): …`),
//! the structured one after it (`"Probe failed" probeType="Readiness" …`), both forms about a failed sandbox, and all
//! of them in JSON. The kubelet logs a probe's outcome with `klog.V(1)` (`pkg/kubelet/prober/prober.go`), a sandbox's
//! always.

use super::entry::{LogEntry, WrittenTime};
use super::fields::last_with;
use super::words::{Words, understand};
use tracer_model::event::{
    KubeletProbe, KubeletResult, ObservationKind, PodRef, ProbeOutput, ProbeType, SandboxCause, SandboxFailure,
};

/// How much text of a sandbox failure is kept, in characters.
const MAX_REASON: usize = 400;

/// A line that is older than this when it is read is skipped: it is from a file that existed before.
const STALE_NS: u64 = 60_000_000_000;

/// The clocks when a line was read, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    pub(super) boot_ns: u64,
    pub(super) boot_to_wall_ns: i64,
}

impl Now {
    /// When a line with this time was written, CLOCK_BOOTTIME; at most the time when it was read.
    fn written(self, time: WrittenTime) -> u64 {
        let wall = match time {
            WrittenTime::InQuarter(at) => last_with(at, self.boot_ns.saturating_add_signed(self.boot_to_wall_ns)),
            WrittenTime::Wall(wall) => wall,
        };
        wall.saturating_add_signed(self.boot_to_wall_ns.saturating_neg()).min(self.boot_ns)
    }
}

/// Parses a line; `None` if tracer does not use it.
pub(super) fn parse(line: &str, now: Now) -> Option<ObservationKind> {
    // Most lines are about something else: this check sorts them out cheaply.
    if !["robe ", "andbox", "network is not ready"].iter().any(|word| line.contains(word)) {
        return None;
    }
    let entry = LogEntry::of(line)?;
    let written = now.written(entry.time);
    if now.boot_ns.saturating_sub(written) > STALE_NS {
        return None;
    }
    probe(&entry, written)
        .map(|it| ObservationKind::KubeletProbe(Box::new(it)))
        .or_else(|| sandbox(&entry, written).map(|it| ObservationKind::SandboxFailure(Box::new(it))))
}

fn probe(entry: &LogEntry<'_>, written_boot_ns: u64) -> Option<KubeletProbe> {
    structured(entry).or_else(|| plain(&entry.message))?.into_probe(written_boot_ns, entry.pid)
}

/// The outcome of a probe as the kubelet reports it, in the log or in an Event.
pub(super) struct LogOutcome {
    pub(super) pod: PodRef,
    pub(super) container: Option<String>,
    pub(super) probe_type: ProbeType,
    pub(super) result: KubeletResult,
    pub(super) output: String,
    /// This kubelet has a text for a command that did not end in time (1.24 and later).
    pub(super) names_timeouts: bool,
}

impl LogOutcome {
    /// The observation; `None` if the pod's name is invalid.
    pub(super) fn into_probe(self, written_boot_ns: u64, pid: Option<u32>) -> Option<KubeletProbe> {
        let Self { pod, container, probe_type, result, output, names_timeouts } = self;
        let Words { reason, text, src, dst } = understand(&output, result);
        let ended = names_timeouts && result == KubeletResult::Failure && reason == ProbeOutput::Nothing;
        let reason = if ended { ProbeOutput::PrintedNothing } else { reason };
        let output = text;
        pod.is_nameable().then_some(KubeletProbe {
            pod,
            container,
            probe_type,
            result,
            reason,
            output,
            src,
            dst,
            written_boot_ns,
            pid,
            event_count: None,
        })
    }
}

/// `"Probe failed" probeType="Readiness" pod="ns/name" podUID=… containerName="…" probeResult=failure output="…"`,
/// `"Probe errored" … probeResult="unknown" err="…"`. `probeResult` of an error may be "failure", and the kubelet ignores
/// the result all the same (`doProbe`, pkg/kubelet/prober/worker.go).
fn structured(entry: &LogEntry<'_>) -> Option<LogOutcome> {
    let (result, reported) = match entry.message.as_ref() {
        "Probe failed" => (KubeletResult::Failure, "output"),
        "Probe errored" => (KubeletResult::Error, "err"),
        _ => return None,
    };
    Some(LogOutcome {
        pod: PodRef { uid: entry.field("podUID"), ..named(&entry.field("pod")?) },
        container: entry.field("containerName"),
        probe_type: ProbeType::from_kubelet(&entry.field("probeType")?)?,
        result,
        output: entry.field(reported).unwrap_or_default(),
        // klog quotes this value from v2.100 on, which Kubernetes has since 1.28.
        names_timeouts: entry.is_quoted("probeResult"),
    })
}

/// `Readiness probe for "name_ns(uid):container" failed (failure): …`, `… errored: …`
fn plain(text: &str) -> Option<LogOutcome> {
    let (kind, rest) = text.split_once(" probe for \"")?;
    let (target, rest) = rest.split_once('"')?;
    let (pod, container) = target.split_once("):")?;
    let (result, output) = match rest.strip_prefix(" failed (failure):") {
        Some(output) => (KubeletResult::Failure, output),
        None => (KubeletResult::Error, rest.strip_prefix(" errored:")?),
    };
    let container = Some(container.to_owned());
    Some(LogOutcome {
        pod: joined(pod)?,
        container,
        probe_type: ProbeType::from_kubelet(kind)?,
        result,
        output: output.trim_start().to_owned(),
        names_timeouts: false,
    })
}

/// Parses `ns/name`.
fn named(pod: &str) -> PodRef {
    let (namespace, name) = pod.split_once('/').map_or((None, pod), |(ns, name)| (Some(ns), name));
    PodRef { namespace: namespace.map(str::to_owned), name: Some(name.to_owned()), uid: None }
}

/// Parses `name_ns(uid`, as the kubelet's `format.Pod` writes it.
fn joined(pod: &str) -> Option<PodRef> {
    let (name, uid) = pod.split_once('(')?;
    let (name, namespace) = name.rsplit_once('_')?;
    let uid = uid.trim_end_matches(')').to_owned();
    Some(PodRef { namespace: Some(namespace.to_owned()), name: Some(name.to_owned()), uid: Some(uid) })
}

/// `"CreatePodSandbox for pod failed" err="…" pod="ns/name"`, `CreatePodSandbox for pod "name_ns(uid)" failed: …`,
/// `"Error syncing pod, skipping" err="network is not ready: …" pod="ns/name" podUID=…`, and the plain form of that.
fn sandbox(entry: &LogEntry<'_>, written_boot_ns: u64) -> Option<SandboxFailure> {
    let (pod, reason) = sandbox_structured(entry).or_else(|| sandbox_plain(&entry.message))?;
    sandbox_of(pod, &reason, written_boot_ns, entry.pid)
}

/// The observation; `None` if the network is not the reason or the pod's name is invalid.
pub(super) fn sandbox_of(pod: PodRef, reason: &str, written_boot_ns: u64, pid: Option<u32>) -> Option<SandboxFailure> {
    let cause = cause(reason).filter(|_| pod.is_nameable())?;
    Some(SandboxFailure { pod, cause, words: reason.chars().take(MAX_REASON).collect(), written_boot_ns, pid })
}

fn sandbox_structured(entry: &LogEntry<'_>) -> Option<(PodRef, String)> {
    let heads = ["CreatePodSandbox for pod failed", "Error syncing pod, skipping"];
    let pod = heads.contains(&entry.message.as_ref()).then(|| entry.field("pod")).flatten()?;
    let pod = PodRef { uid: entry.field("podUID"), ..named(&pod) };
    Some((pod, entry.field("err")?)).filter(|(_, reason)| !reason.starts_with("failed to \"CreatePodSandbox\""))
}

fn sandbox_plain(text: &str) -> Option<(PodRef, String)> {
    if let Some(rest) = text.strip_prefix("CreatePodSandbox for pod \"") {
        let (pod, reason) = rest.split_once("\" failed: ")?;
        return Some((joined(pod)?, reason.to_owned()));
    }
    // Error syncing pod UID ("name_ns(uid)"), skipping: network is not ready: …
    let rest = text.strip_prefix("Error syncing pod ")?;
    let (pod, reason) = rest.split_once("(\"")?.1.split_once("\"), skipping: ")?;
    reason.starts_with("network is not ready").then_some((joined(pod)?, reason.to_owned()))
}

/// The part of the pod network that failed; `None` if the reason is another one.
fn cause(reason: &str) -> Option<SandboxCause> {
    CAUSES.iter().find(|(words, _)| reason.contains(words)).map(|(_, cause)| *cause)
}

/// What a reason contains, the most exact first.
const CAUSES: &[(&str, SandboxCause)] = &[
    ("subnet.env", SandboxCause::SubnetFile),
    ("cni plugin not initialized", SandboxCause::NoConfig),
    ("cni config uninitialized", SandboxCause::NoConfig),
    ("no networks found in", SandboxCause::NoConfig),
    // CRI-O, by its version.
    ("No CNI configuration", SandboxCause::NoConfig),
    ("no CNI configuration", SandboxCause::NoConfig),
    ("failed to find plugin", SandboxCause::NoPlugin),
    ("failed to setup network for sandbox", SandboxCause::Plugin),
    ("failed to set up sandbox", SandboxCause::Plugin),
    ("network is not ready", SandboxCause::Plugin),
    ("error adding pod", SandboxCause::Plugin),
];

#[cfg(test)]
mod tests;
