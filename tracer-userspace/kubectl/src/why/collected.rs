//! Collects the verdicts of some pods from one log. Memory does not grow with the log.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use super::super::objects::Pod;
use super::super::records::Reading;
use tracer_model::event::ProbeType;
use tracer_model::plural::counted;
use tracer_model::recent::remember;
use tracer_model::record::{Body, Cause, FindingBody, K8s, Outcome, Record, StartBody, Status, Subject, VerdictBody};
use tracer_output::sink::plain::date_and_time;

/// Failures of each effect that are remembered. A revision comes at most seconds after its attempt's end.
const MAX_UNREVISED: usize = 32;
/// Checks of a node that are kept.
const CHECKS: usize = 256;

#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) pods: Vec<OfPod>,
    pub(crate) reading: Reading,
    /// Verdicts of other pods and connections.
    pub(crate) others: u64,
    /// The newest run's start.
    pub(crate) start: Option<StartBody>,
    findings: BTreeMap<String, FindingBody>,
    pub(crate) container: Option<String>,
    tail: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// The pod is not ready: a readiness or startup probe, or a probe of unknown type.
    Unready,
    /// The kubelet restarts the container: a liveness probe.
    Restart,
    /// No effect: a connection of another process.
    None,
}

impl Effect {
    fn of(body: &VerdictBody) -> Self {
        match (body.subject, body.probe.as_ref().and_then(|probe| probe.probe_type)) {
            (Subject::Connection, _) => Self::None,
            (Subject::Probe, Some(ProbeType::Liveness)) => Self::Restart,
            (Subject::Probe, Some(ProbeType::Readiness | ProbeType::Startup) | None) => Self::Unready,
        }
    }
}

pub(crate) struct Failure {
    seq: u64,
    pub(crate) time: String,
    pub(crate) body: Box<VerdictBody>,
}

#[derive(Default)]
pub(crate) struct OfPod {
    pub(crate) pod: Pod,
    /// The newest verdicts, in order.
    pub(crate) kept: VecDeque<Record>,
    /// Failures that are not revised, the newest last. They are kept by effect, so that failed connections of clients do
    /// not displace failed probes.
    unrevised: BTreeMap<Effect, VecDeque<Failure>>,
    /// Verdicts of each cause, without those that were revised.
    causes: BTreeMap<Cause, u64>,
    first_time: String,
    records: usize,
    /// Its verdicts that are not of the container that was asked for.
    pub(crate) hidden: u64,
}

impl Collected {
    pub(crate) fn new(pods: Vec<Pod>, container: Option<String>, tail: usize) -> Self {
        let of = |pod| OfPod { pod, ..OfPod::default() };
        Self { pods: pods.into_iter().map(of).collect(), container, tail, ..Self::default() }
    }

    /// The newest finding of each check that is not ok.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &FindingBody> {
        self.findings.values().filter(|it| it.status != Status::Ok)
    }

    pub(crate) fn take(&mut self, line: &[u8]) {
        let Some(head) = self.reading.take(line) else { return };
        match head.kind.as_ref() {
            "verdict" => {
                let container = self.container.as_ref();
                let k8s = head.k8s.as_ref();
                let is_hidden = container.is_some() && k8s.and_then(|it| it.container_name.as_ref()) != container;
                let of_pod = k8s.and_then(|k8s| self.pods.iter_mut().find(|it| it.is_about(k8s)));
                match of_pod {
                    Some(of_pod) if is_hidden => of_pod.hidden += 1,
                    Some(of_pod) => self.reading.unreadable += u64::from(of_pod.take(line, self.tail).is_err()),
                    None => self.others += 1,
                }
            }
            "start" | "finding" => match serde_json::from_slice::<Record>(line) {
                Ok(Record { body: Body::Start(start), .. }) => self.start = Some(start),
                Ok(Record { body: Body::Finding(finding), .. }) => {
                    if self.findings.len() < CHECKS || self.findings.contains_key(&finding.check) {
                        self.findings.insert(finding.check.clone(), *finding);
                    }
                }
                _ => self.reading.unreadable += 1,
            },
            _ => {}
        }
    }
}

impl OfPod {
    /// Compares uids if both are known, because the next pod of a StatefulSet has the same name.
    fn is_about(&self, k8s: &K8s) -> bool {
        match &k8s.pod_uid {
            Some(uid) if !self.pod.metadata.uid.is_empty() => self.pod.has_uid(uid),
            _ => {
                let Pod { metadata, .. } = &self.pod;
                k8s.pod_name.as_ref() == Some(&metadata.name)
                    && k8s.namespace.as_ref().is_none_or(|it| *it == metadata.namespace)
            }
        }
    }

    fn take(&mut self, line: &[u8], tail: usize) -> Result<(), serde_json::Error> {
        let record: Record = serde_json::from_slice(line)?;
        let Body::Verdict(body) = &record.body else { return Ok(()) };
        if self.first_time.is_empty() {
            record.time.clone_into(&mut self.first_time);
        }
        *self.causes.entry(body.verdict.cause).or_default() += body.count();
        self.records += 1;
        let revised = self.unrevised.values().flatten().find(|it| Some(it.seq) == body.revises);
        if let Some(count) = revised.and_then(|it| self.causes.get_mut(&it.body.verdict.cause)) {
            *count -= 1;
        }
        self.causes.retain(|_, count| *count > 0);
        let is_unrevised = |it: &Failure| Some(it.seq) != body.revises || it.body.count() > 1;
        self.unrevised.values_mut().for_each(|of| of.retain(is_unrevised));
        if body.verdict.outcome == Outcome::Failure {
            let failure = Failure { seq: record.seq, time: record.time.clone(), body: body.clone() };
            remember(MAX_UNREVISED, self.unrevised.entry(Effect::of(body)).or_default(), failure);
        }
        if tail > 0 {
            remember(tail, &mut self.kept, record);
        }
        Ok(())
    }

    /// The newest failure of this effect. A failure of the last minute with a named cause is preferred.
    pub(crate) fn failure(&self, effect: Effect) -> Option<&Failure> {
        let unrevised = self.unrevised.get(&effect)?;
        let last = unrevised.back()?;
        let is_named = |it: &&Failure| it.body.verdict.cause != Cause::Unexplained;
        let is_near = |it: &&Failure| seconds_between(&it.time, &last.time).is_some_and(|s| s < 60);
        unrevised.iter().rev().take_while(is_near).find(is_named).or(Some(last))
    }

    /// Whether the log has a verdict about the pod.
    pub(crate) fn is_known(&self) -> bool {
        !self.causes.is_empty()
    }

    /// The line about all verdicts, if some of them are not printed: how many there are, and their causes.
    pub(crate) fn earlier(&self) -> Option<String> {
        let count: u64 = self.causes.values().sum();
        let causes = self.causes.iter().map(|(cause, n)| format!("{} ({n})", cause.name())).collect::<Vec<_>>();
        let since = date_and_time(&self.first_time);
        let newest = match self.kept.len() {
            0 => String::new(),
            kept => format!("; the newest {kept}:"),
        };
        (self.records > self.kept.len())
            .then(|| format!("{} since {since}: {}{newest}", counted(count, "verdict"), causes.join(", ")))
    }
}

/// Whole seconds from one record's time to another's.
fn seconds_between(from: &str, to: &str) -> Option<i64> {
    let second = |time: &str| time.parse::<Timestamp>().ok().map(Timestamp::as_second);
    Some(second(to)? - second(from)?)
}
