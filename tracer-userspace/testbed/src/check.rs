//! Compares the tracer's records with what a scenario expects of an attempt.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::helper::Role;
use crate::prober::shown;
use tracer_bpf::ebpf::hooks::ProgramType;
use tracer_bpf::ebpf::switches;
use tracer_model::record::{
    Body, Cause, Confidence, Endpoint, NodeBody, Outcome, Record, Subject, Verdict, VerdictBody,
};

/// The expectation for one attempt.
#[derive(Clone, Debug)]
pub enum Claim {
    Verdict(Expected),
    /// No verdict.
    Nothing,
    /// No verdict, or one with this cause. For attempts that are part of the setup.
    Perhaps(Cause),
    /// This cause, `unexplained` or no verdict, because events of the attempt were lost.
    AtMost(Cause),
}

/// An expected verdict.
#[derive(Clone, Debug)]
pub struct Expected {
    pub cause: Cause,
    pub outcome: Outcome,
    /// The attempt is a probe's: its target is a pod of the PodList.
    pub probe: bool,
    /// The culprit that the verdict must name is the CNI plugin of the runtime. It opened this path of a namespace.
    pub culprit: Option<String>,
    /// Inode number of the network namespace that the evidence must name.
    pub place: Option<u32>,
    /// A cause that `also` must contain.
    pub also: Option<Cause>,
}

impl Expected {
    pub const fn failure(cause: Cause, probe: bool) -> Self {
        Self { cause, outcome: Outcome::Failure, probe, culprit: None, place: None, also: None }
    }
}

/// An attempt that the prober made.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub src: Option<SocketAddr>,
    pub dst: SocketAddr,
    /// When the prober was asked for it.
    pub since_boot_ns: u64,
    /// When the prober reported its outcome.
    pub until_boot_ns: u64,
    /// Inode number of the node's network namespace.
    pub netns: u32,
    /// Name of the prober's process.
    pub prober: String,
    pub claim: Claim,
    /// How many attempts, this one included, had the same addresses and ports. Each has a verdict.
    pub same_ports: usize,
    /// What the summary or the evidence must contain.
    pub mentions: Vec<String>,
}

/// Why the records do not meet the claim so far; `None` if they do.
pub fn unmet(records: &[Record], attempt: &Attempt) -> Option<String> {
    let verdicts = of(records, attempt);
    let fresh = verdicts.iter().filter(|v| v.revises.is_none()).count();
    if fresh > attempt.same_ports {
        return Some(format!("{fresh} verdicts for one attempt: {}", causes(&verdicts)));
    }
    let last = verdicts.last().copied();
    let fault = match (&attempt.claim, last) {
        (Claim::Verdict(expected), Some(verdict)) => compare(expected, attempt, verdict),
        (Claim::Verdict(expected), None) => Some(format!("no verdict, expected {}", expected.cause.name())),
        (Claim::Nothing, Some(verdict)) => Some(format!("a verdict for a healthy attempt: {}", noted(verdict))),
        (Claim::Perhaps(cause), Some(verdict)) if verdict.verdict.cause != *cause => Some(noted(verdict)),
        (Claim::AtMost(cause), Some(v)) if ![*cause, Cause::Unexplained].contains(&v.verdict.cause) => Some(noted(v)),
        (Claim::Nothing | Claim::Perhaps(_) | Claim::AtMost(_), _) => None,
    };
    fault.map(|fault| format!("{} -> {}: {fault}", shown(attempt.src), attempt.dst))
}

/// The cause of the last verdict about an attempt.
pub fn reported(records: &[Record], attempt: &Attempt) -> Option<Cause> {
    last(records, attempt).map(|v| v.verdict.cause)
}

/// The last verdict about an attempt.
pub fn last<'a>(records: &'a [Record], attempt: &Attempt) -> Option<&'a VerdictBody> {
    of(records, attempt).last().copied()
}

/// A verdict about any attempt at this target since then. There must be none.
pub fn unexpected_verdict(records: &[Record], attempt: &Attempt) -> Option<String> {
    let (_, noise) = at_target(records, attempt).next()?;
    Some(format!("a verdict where all was healthy: {}", noted(noise)))
}

/// A report that a process entered the node's namespace, although none did. The testbed itself does so.
pub fn unexpected_entry(records: &[Record]) -> Option<String> {
    let is_other = |node: &NodeBody| node.culprit.as_ref().is_some_and(|culprit| culprit.pid != std::process::id());
    records.iter().find_map(|record| match &record.body {
        Body::Node(node) if node.event == "netns_enter" && is_other(node) => Some(format!("wrong: {}", node.summary)),
        _ => None,
    })
}

/// The causes of all verdicts about attempts at this target since then.
pub fn unexpected_causes(records: &[Record], attempt: &Attempt) -> Vec<Cause> {
    at_target(records, attempt).map(|(_, v)| v.verdict.cause).collect()
}

fn at_target<'a>(records: &'a [Record], attempt: &Attempt) -> impl Iterator<Item = (u64, &'a VerdictBody)> {
    let about = Endpoint::from(attempt.dst);
    verdicts(records, attempt).filter(move |(_, v)| v.dst == Some(about))
}

/// The verdicts about an attempt, in order. A verdict without a source port is matched by time, so that the comparison
/// reports the missing port.
fn of<'a>(records: &'a [Record], attempt: &Attempt) -> Vec<&'a VerdictBody> {
    let (src, dst) = (attempt.src.map(Endpoint::from), Endpoint::from(attempt.dst));
    let named = |v: &VerdictBody| v.src.is_some_and(|s| s.port.is_some());
    let (since, until) = (attempt.since_boot_ns, attempt.until_boot_ns);
    verdicts(records, attempt)
        .filter(|(_, v)| v.dst == Some(dst))
        .filter(|(time, v)| if named(v) { v.src == src } else { (since..=until).contains(time) })
        .map(|(_, v)| v)
        .collect()
}

fn verdicts<'a>(records: &'a [Record], attempt: &Attempt) -> impl Iterator<Item = (u64, &'a VerdictBody)> {
    let (since, netns) = (attempt.since_boot_ns, attempt.netns);
    records.iter().filter(move |r| r.time_boot_ns >= since).filter_map(move |r| match &r.body {
        Body::Verdict(v) if v.netns.as_ref().is_none_or(|n| n.inum.0 == netns) => Some((r.time_boot_ns, v.as_ref())),
        _ => None,
    })
}

/// The first difference between the verdict and the expectation.
fn compare(expected: &Expected, attempt: &Attempt, got: &VerdictBody) -> Option<String> {
    let (verdict, comm) = (&got.verdict, got.process.as_ref().map(|it| it.comm.as_str()));
    let faults = [
        (verdict.cause != expected.cause, format!("expected {}, got {}", expected.cause.name(), noted(got))),
        (verdict.outcome != expected.outcome, format!("outcome {}", verdict.outcome)),
        (verdict.confidence < lowest_confidence(expected.cause, verdict), format!("confidence {}", verdict.confidence)),
        (verdict.evidence.is_empty() && expected.cause != Cause::Unexplained, "no evidence".to_owned()),
        (verdict.summary.is_empty() || verdict.remediation.is_empty(), "no summary or remediation".to_owned()),
        // A connect that found no source port has none in the verdict and in the prober's outcome.
        (
            got.src.filter(|s| s.port.is_some()) != attempt.src.map(Endpoint::from),
            format!("{}, but src {:?}", verdict.cause.name(), got.src),
        ),
        (got.netns.is_none(), "no netns".to_owned()),
        (comm != Some(attempt.prober.as_str()), format!("process {comm:?}")),
        (expected.probe && got.subject != Subject::Probe, "no probe of pods.rs: `fails_without_probe`".to_owned()),
        (expected.probe && got.k8s.is_none(), "no pod named".to_owned()),
        (
            expected.also.is_some_and(|cause| !verdict.also.contains(&cause)),
            format!("{:?} in also, expected {:?}; {}", verdict.also, expected.also, noted(got)),
        ),
        (
            expected.also != Some(Cause::DependencyUnreachable) && verdict.also.contains(&Cause::DependencyUnreachable),
            format!("the pod waits for nobody; {}", noted(got)),
        ),
        (expected.place.is_some_and(|place| !names(got, place)), format!("not in namespace {:?}", expected.place)),
    ];
    let fault = faults.into_iter().find_map(|(wrong, words)| wrong.then_some(words));
    // The first word of a sentence is capitalized.
    let evidence = verdict.evidence.iter().map(|it| it.text.to_lowercase());
    let texts: Vec<String> = evidence.chain([verdict.summary.to_lowercase()]).collect();
    let is_missing = |words: &&String| !texts.iter().any(|it| it.contains(&words.to_lowercase()));
    let missing = attempt.mentions.iter().find(is_missing);
    let fault = fault.or_else(|| missing.map(|words| format!("{words:?} is not mentioned: {}", noted(got))));
    fault.or_else(|| expected.culprit.as_ref().and_then(|s| blame(s, got)))
}

/// Whether the evidence names this namespace, and no other except the prober's.
fn names(got: &VerdictBody, place: u32) -> bool {
    let named: Vec<u64> = got.verdict.evidence.iter().filter_map(|e| e.fields.get("netns")?.as_u64()).collect();
    let own = got.netns.as_ref().map(|n| u64::from(n.inum.0));
    named.contains(&place.into()) && named.iter().all(|n| *n == u64::from(place) || Some(*n) == own)
}

/// The lowest confidence that is right. It is lower for `unexplained`, and for a verdict that names a missing hook on a
/// kernel without function probes.
fn lowest_confidence(cause: Cause, verdict: &Verdict) -> Confidence {
    let lowered = || !verdict.missing_hooks.is_empty() && switches::silences(ProgramType::Kprobe);
    if cause == Cause::Unexplained || lowered() { Confidence::Possible } else { Confidence::Likely }
}

fn blame(netns_path: &str, got: &VerdictBody) -> Option<String> {
    let Some(culprit) = &got.culprit else { return Some("no culprit".to_owned()) };
    let is_plugin = culprit.comm == Role::Loopback.name() && culprit.netns_path.as_deref() == Some(netns_path);
    let is_of_runtime = culprit.ancestors.iter().any(|a| a.comm == Role::Crio.name());
    (!is_plugin || !is_of_runtime).then(|| format!("not the plugin with {netns_path}, but the culprit {culprit:?}"))
}

fn causes(verdicts: &[&VerdictBody]) -> String {
    verdicts.iter().map(|v| v.verdict.cause.name()).collect::<Vec<_>>().join(", ")
}

fn noted(v: &VerdictBody) -> String {
    let seen: Vec<&str> = v.verdict.evidence.iter().map(|e| e.text.as_str()).collect();
    format!("{} ({}: {}; seen: {})", v.verdict.cause.name(), v.verdict.confidence, v.verdict.summary, seen.join("; "))
}

/// What proves the verdict about a failing attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub confidence: Confidence,
    /// The hooks and sources of the evidence, without duplicates.
    pub hooks: Vec<String>,
}

impl From<&VerdictBody> for Proof {
    fn from(body: &VerdictBody) -> Self {
        let mut hooks: Vec<String> = Vec::new();
        for evidence in &body.verdict.evidence {
            if !hooks.contains(&evidence.hook) {
                hooks.push(evidence.hook.clone());
            }
        }
        Self { confidence: body.verdict.confidence, hooks }
    }
}

/// The number of attempts with the same expected and the same reported cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptVerdicts {
    /// The expected cause, or `none`.
    pub made: &'static str,
    /// The cause of the last verdict, or `none`.
    pub reported: &'static str,
    pub attempts: u32,
}

/// What a scenario did, and what it expects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) attempts: Vec<Attempt>,
    /// Groups of attempts that must get no verdict, with their number.
    pub(crate) quiet: Vec<(Attempt, u32)>,
    /// The tracer must report lost events.
    pub(crate) loss: bool,
    /// The tracer must not report that a process entered the node's namespace.
    pub(crate) forbids_entry: bool,
    /// Measurements for the row.
    pub(crate) measured: Vec<String>,
}

impl Done {
    /// The first expectation that the records do not meet.
    pub(crate) fn fault(&self, records: &[Record]) -> Option<String> {
        let unmet = self.attempts.iter().find_map(|a| unmet(records, a));
        let noise = || self.quiet.iter().find_map(|(a, _)| unexpected_verdict(records, a));
        let idle = self.attempts.is_empty() && self.quiet.is_empty();
        let silent = self.loss && !records.iter().any(|r| matches!(r.body, Body::Loss(_)));
        let reported = |wrong: bool, why: &str| wrong.then(|| why.to_owned());
        reported(idle, "no attempt was made")
            .or(unmet)
            .or_else(noise)
            .or_else(|| reported(silent, "events were lost, and no record says so"))
            .or_else(|| unexpected_entry(records).filter(|_| self.forbids_entry))
    }

    /// The proof of the last attempt that must get a verdict. Earlier ones may be part of the setup.
    pub(crate) fn proof(&self, records: &[Record]) -> Option<Proof> {
        let must_fail = |attempt: &&Attempt| matches!(attempt.claim, Claim::Verdict(_));
        self.attempts.iter().rev().find(must_fail).and_then(|attempt| last(records, attempt)).map(Proof::from)
    }

    /// Counts the attempts by expected and reported cause.
    pub(crate) fn reported(&self, records: &[Record]) -> Vec<AttemptVerdicts> {
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for attempt in &self.attempts {
            let reported = reported(records, attempt);
            *counts.entry((name(expected_cause(&attempt.claim, reported)), name(reported))).or_default() += 1;
        }
        for (attempt, count) in &self.quiet {
            let unexpected = unexpected_causes(records, attempt);
            let without_verdict = count.saturating_sub(unexpected.len() as u32);
            *counts.entry((name(None), name(None))).or_default() += without_verdict;
            for cause in unexpected {
                *counts.entry((name(None), name(Some(cause)))).or_default() += 1;
            }
        }
        counts.into_iter().map(|((made, reported), attempts)| AttemptVerdicts { made, reported, attempts }).collect()
    }
}

/// The expected cause. If a claim allows several results, it is the reported one of them.
fn expected_cause(claim: &Claim, reported: Option<Cause>) -> Option<Cause> {
    match claim {
        Claim::Verdict(expected) => Some(expected.cause),
        Claim::Nothing => None,
        Claim::Perhaps(cause) => reported.and(Some(*cause)),
        Claim::AtMost(cause) => {
            Some(reported.filter(|reported| *reported == Cause::Unexplained).unwrap_or(*cause)).and(reported)
        }
    }
}

fn name(cause: Option<Cause>) -> &'static str {
    cause.map_or("none", Cause::name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tracer_model::record::SCHEMA;

    use super::*;

    const NETNS: u32 = 7;

    fn attempt(claim: Claim) -> Attempt {
        let src = Some(([10, 88, 0, 1], 40000).into());
        Attempt {
            src,
            dst: ([10, 88, 0, 2], 8080).into(),
            since_boot_ns: 100,
            until_boot_ns: 200,
            netns: NETNS,
            prober: "kubelet".to_owned(),
            claim,
            same_ports: 1,
            mentions: Vec::new(),
        }
    }

    fn due(cause: Cause) -> Claim {
        Claim::Verdict(Expected::failure(cause, true))
    }

    fn reported(cause: Cause, seq: u64, revises: Option<u64>) -> Record {
        let record = json!({
            "schema": SCHEMA, "type": "verdict", "time": "", "time_boot_ns": 160, "seq": seq, "node_name": "n",
            "subject": "probe", "severity": "error", "scope": cause.scope(), "revises": revises, "k8s": {},
            "src": {"addr": "10.88.0.1", "port": 40000}, "dst": {"addr": "10.88.0.2", "port": 8080},
            "process": {"pid": 1, "comm": "kubelet"}, "netns": {"inum": NETNS},
            "verdict": {
                "cause": cause, "outcome": "failure", "confidence": "proven", "summary": "it failed",
                "remediation": {"text": "fix it"}, "lost_events": 0,
                "evidence": [{"hook": "kfree_skb", "time_boot_ns": 150, "text": "dropped", "fields": {}}], "also": [], "missing_hooks": [],
            },
        });
        serde_json::from_value(record).expect("a record")
    }

    fn met(records: &[Record], claim: Claim) -> bool {
        unmet(records, &attempt(claim)).is_none()
    }

    #[test]
    fn only_the_right_verdict_meets_the_claim() {
        let records = [reported(Cause::FirewallDrop, 1, None)];
        assert!(met(&records, due(Cause::FirewallDrop)));
        assert!(!met(&records, due(Cause::SlowResponse)));
        assert!(!met(&records, Claim::Nothing));
        assert!(!met(&[], due(Cause::FirewallDrop)));
        assert!(met(&[], Claim::Nothing));
    }

    #[test]
    fn a_revision_counts_and_a_second_verdict_fails() {
        let first = reported(Cause::SlowResponse, 1, None);
        assert!(met(&[first.clone(), reported(Cause::FirewallDrop, 2, Some(1))], due(Cause::FirewallDrop)));
        assert!(!met(&[first, reported(Cause::FirewallDrop, 2, None)], due(Cause::FirewallDrop)));
    }

    #[test]
    fn verdicts_of_another_time_or_node_do_not_count() {
        let mut early = reported(Cause::FirewallDrop, 1, None);
        early.time_boot_ns = 99;
        assert!(met(&[early], Claim::Nothing));
        let elsewhere = Attempt { netns: 8, ..attempt(Claim::Nothing) };
        assert_eq!(unmet(&[reported(Cause::FirewallDrop, 1, None)], &elsewhere), None);
    }
}
