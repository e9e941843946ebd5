//! Compares what the tracer said with what was done to an attempt.

use std::net::SocketAddr;

use tracer::classify::label::Label;
use tracer::record::{Body, Confidence, Endpoint, Outcome, Record, Subject, VerdictBody};

/// What the tracer owes for an attempt.
#[derive(Clone, Debug)]
pub enum Claim {
    /// A verdict.
    Verdict(Expected),
    /// No verdict.
    Nothing,
    /// No verdict, or this one: the attempt was needed to set the scene.
    Perhaps(Label),
}

/// A verdict that is due.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The cause.
    pub label: Label,
    /// Failure or noise.
    pub outcome: Outcome,
    /// It is a probe's: the target is a pod of the list.
    pub probe: bool,
    /// Who must be named, if somebody.
    pub culprit: Option<Suspect>,
}

/// Who set a link down.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Name of the process.
    pub comm: String,
    /// One of its ancestors.
    pub ancestor: String,
    /// The path by which it came.
    pub netns_path: String,
}

/// An attempt that was made.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Where from.
    pub src: Option<SocketAddr>,
    /// Whom.
    pub dst: SocketAddr,
    /// Not before.
    pub since_boot_ns: u64,
    /// The node's namespace.
    pub netns: u32,
    /// What is owed.
    pub claim: Claim,
}

/// How a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Met so far.
    Met,
    /// Not met, in words.
    Unmet(String),
}

/// Whether the records meet the claim.
#[must_use]
pub fn judge(records: &[Record], attempt: &Attempt) -> Standing {
    let verdicts = of(records, attempt);
    let fresh = verdicts.iter().filter(|v| v.revises.is_none()).count();
    if fresh > 1 {
        return Standing::Unmet(format!("{fresh} verdicts for one attempt: {}", labels(&verdicts)));
    }
    let last = verdicts.last().copied();
    let fault = match (&attempt.claim, last) {
        (Claim::Verdict(expected), Some(verdict)) => compare(expected, attempt, verdict),
        (Claim::Verdict(expected), None) => Some(format!("no verdict, expected {}", name(expected.label))),
        (Claim::Nothing, Some(verdict)) => Some(format!("a verdict for a healthy attempt: {}", told(verdict))),
        (Claim::Perhaps(label), Some(verdict)) if verdict.verdict.label != *label => Some(told(verdict)),
        (Claim::Nothing | Claim::Perhaps(_), _) => None,
    };
    fault.map_or(Standing::Met, |f| Standing::Unmet(format!("{} -> {}: {f}", shown(attempt.src), attempt.dst)))
}

/// Verdicts about anything dialled at `dst` since then: there must be none.
#[must_use]
pub fn disturbance(records: &[Record], attempt: &Attempt) -> Option<String> {
    let about = Endpoint::from(attempt.dst);
    let noise = verdicts(records, attempt).find(|v| v.dst == about)?;
    Some(format!("a verdict where all was healthy: {}", told(noise)))
}

/// The verdicts of an attempt, in order.
fn of<'a>(records: &'a [Record], attempt: &Attempt) -> Vec<&'a VerdictBody> {
    let (src, dst) = (attempt.src.map(Endpoint::from), Endpoint::from(attempt.dst));
    verdicts(records, attempt).filter(|v| v.dst == dst && (v.src.is_none() || v.src == src)).collect()
}

fn verdicts<'a>(records: &'a [Record], attempt: &Attempt) -> impl Iterator<Item = &'a VerdictBody> {
    let (since, netns) = (attempt.since_boot_ns, attempt.netns);
    records.iter().filter(move |r| r.time_boot_ns >= since).filter_map(move |r| match &r.body {
        Body::Verdict(v) if v.netns.as_ref().is_none_or(|n| n.inum.0 == netns) => Some(v.as_ref()),
        _ => None,
    })
}

/// The first thing that is wrong.
fn compare(expected: &Expected, attempt: &Attempt, got: &VerdictBody) -> Option<String> {
    let verdict = &got.verdict;
    let faults = [
        (verdict.label != expected.label, format!("expected {}, got {}", name(expected.label), told(got))),
        (verdict.outcome != expected.outcome, format!("outcome {:?}", verdict.outcome)),
        (verdict.confidence < floor(expected.label), format!("confidence {:?}", verdict.confidence)),
        (verdict.evidence.is_empty() && expected.label != Label::Unexplained, "no evidence".to_owned()),
        (verdict.summary.is_empty() || verdict.remediation.is_empty(), "no summary or remediation".to_owned()),
        (got.src != attempt.src.map(Endpoint::from), format!("src {:?}", got.src)),
        (got.netns.is_none(), "no netns".to_owned()),
        (got.process.comm != "kubelet", format!("process {:?}", got.process.comm)),
        (expected.probe && got.subject != Subject::Probe, "subject is not probe".to_owned()),
        (expected.probe && got.k8s.is_none(), "no pod named".to_owned()),
    ];
    let fault = faults.into_iter().find_map(|(wrong, words)| wrong.then_some(words));
    fault.or_else(|| expected.culprit.as_ref().and_then(|s| blame(s, got)))
}

/// `unexplained` is honest at any confidence.
fn floor(label: Label) -> Confidence {
    if label == Label::Unexplained { Confidence::Possible } else { Confidence::Likely }
}

fn blame(suspect: &Suspect, got: &VerdictBody) -> Option<String> {
    let Some(culprit) = &got.culprit else { return Some("no culprit".to_owned()) };
    if culprit.comm != suspect.comm {
        return Some(format!("culprit {:?}, expected {:?}", culprit.comm, suspect.comm));
    }
    if culprit.netns_path.as_ref() != Some(&suspect.netns_path) {
        return Some(format!("netns_path {:?}, expected {:?}", culprit.netns_path, suspect.netns_path));
    }
    let known = culprit.ancestors.iter().any(|a| a.comm == suspect.ancestor);
    (!known).then(|| format!("ancestors {:?} lack {:?}", culprit.ancestors, suspect.ancestor))
}

fn labels(verdicts: &[&VerdictBody]) -> String {
    verdicts.iter().map(|v| name(v.verdict.label)).collect::<Vec<_>>().join(", ")
}

fn told(v: &VerdictBody) -> String {
    format!("{} ({:?}: {})", name(v.verdict.label), v.verdict.confidence, v.verdict.summary)
}

fn shown(src: Option<SocketAddr>) -> String {
    src.map_or_else(|| "?".to_owned(), |s| s.to_string())
}

/// A label as it is printed.
#[must_use]
pub fn name(label: Label) -> String {
    serde_json::to_value(label).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tracer::event::Netns;
    use tracer::record::{Evidence, K8s, NetnsRef, Process, SCHEMA, Verdict};

    use super::*;

    const NETNS: u32 = 7;

    fn attempt(claim: Claim) -> Attempt {
        let src = Some(([10, 88, 0, 1], 40000).into());
        Attempt { src, dst: ([10, 88, 0, 2], 8080).into(), since_boot_ns: 100, netns: NETNS, claim }
    }

    fn due(label: Label) -> Claim {
        Claim::Verdict(Expected { label, outcome: Outcome::Failure, probe: true, culprit: None })
    }

    fn said(label: Label, seq: u64, revises: Option<u64>) -> Record {
        let about = attempt(Claim::Nothing);
        let evidence = Evidence {
            hook: "kfree_skb".to_owned(),
            time_boot_ns: 150,
            says: "dropped".to_owned(),
            fields: std::collections::BTreeMap::new(),
        };
        let verdict = Verdict {
            label,
            outcome: Outcome::Failure,
            confidence: Confidence::Proven,
            summary: "it failed".to_owned(),
            remediation: "mend it".to_owned(),
            evidence: vec![evidence],
            also: Vec::new(),
            lost_events: 0,
            missing_hooks: Vec::new(),
        };
        let body = VerdictBody {
            subject: Subject::Probe,
            verdict,
            probe: None,
            k8s: Some(K8s::default()),
            src: about.src.map(Endpoint::from),
            dst: about.dst.into(),
            process: Process { pid: 1, comm: "kubelet".to_owned() },
            netns: Some(NetnsRef { inum: Netns(NETNS), cookie: None, name: None }),
            culprit: None,
            timing: None,
            revises,
        };
        Record {
            schema: SCHEMA.to_owned(),
            body: Body::Verdict(Box::new(body)),
            time: String::new(),
            time_boot_ns: 160,
            seq,
            node_name: "n".to_owned(),
        }
    }

    fn met(records: &[Record], claim: Claim) -> bool {
        judge(records, &attempt(claim)) == Standing::Met
    }

    #[test]
    fn the_right_verdict_meets_the_claim_and_no_other() {
        let records = [said(Label::FirewallDrop, 1, None)];
        assert!(met(&records, due(Label::FirewallDrop)));
        assert!(!met(&records, due(Label::SlowResponse)));
        assert!(!met(&records, Claim::Nothing));
        assert!(!met(&[], due(Label::FirewallDrop)));
        assert!(met(&[], Claim::Nothing));
    }

    #[test]
    fn a_revision_replaces_and_a_second_verdict_does_not() {
        let first = said(Label::SlowResponse, 1, None);
        assert!(met(&[first.clone(), said(Label::FirewallDrop, 2, Some(1))], due(Label::FirewallDrop)));
        assert!(!met(&[first, said(Label::FirewallDrop, 2, None)], due(Label::FirewallDrop)));
    }

    #[test]
    fn verdicts_of_another_time_or_node_do_not_count() {
        let mut early = said(Label::FirewallDrop, 1, None);
        early.time_boot_ns = 99;
        assert!(met(&[early], Claim::Nothing));
        let elsewhere = Attempt { netns: 8, ..attempt(Claim::Nothing) };
        assert_eq!(judge(&[said(Label::FirewallDrop, 1, None)], &elsewhere), Standing::Met);
    }
}
