//! A condition of the node, as node-problem-detector writes them: `TracerNodeFault` is true while tracer knows a fault
//! of the node itself that breaks probes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::explain::second;
use super::note::shortened;
use super::outage::Outage;
use super::post::{Answer, Change, write};
use super::rates::Rates;
use super::{AT_END, wait_out_the_end};
use tracer_model::decision::Decision;
use tracer_model::record::{Body, Cause, Confidence, Outcome, Status, Subject};
use tracer_sources::cluster::{Failure, Pace, part};

const TYPE: &str = "TracerNodeFault";

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// When each cause was seen last, and its text.
    verdicts: BTreeMap<Cause, (Instant, String)>,
    checks: BTreeMap<String, String>,
}

/// The fields of the condition that change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) status: &'static str,
    pub(super) reason: String,
    message: String,
}

impl Faults {
    /// Takes what a decision shows about the node. Gives whether it shows something.
    pub(super) fn take(&mut self, decision: &Decision, now: Instant) -> bool {
        match &decision.body {
            Body::Verdict(body) => {
                let verdict = &body.verdict;
                let is_sure = verdict.outcome == Outcome::Failure && verdict.confidence >= Confidence::Likely;
                // A connection of another process can fail in the namespace of its pod, and then the node has no fault.
                let is_fault = is_sure && verdict.cause.is_of_node() && body.subject == Subject::Probe;
                if is_fault {
                    let text = format!("{}: {}", verdict.cause.name(), verdict.summary);
                    self.verdicts.insert(verdict.cause, (now, text));
                }
                is_fault
            }
            Body::Finding(finding) => {
                let check = &finding.check;
                match finding.status {
                    Status::Fail => self.checks.insert(check.clone(), format!("{check}: {}", finding.observed)),
                    Status::Ok | Status::Warn => self.checks.remove(check),
                    // A check that cannot be made shows nothing: the fault that it found before stays.
                    Status::Unknown => return false,
                };
                true
            }
            _ => false,
        }
    }

    /// A cause counts as a fault for the time `hold`.
    fn expire(&mut self, now: Instant, hold: Duration) {
        self.verdicts.retain(|_, (seen, _)| *seen + hold > now);
    }

    /// When the next cause stops to count as a fault.
    fn next_expiry(&self, hold: Duration) -> Option<Instant> {
        self.verdicts.values().map(|(seen, _)| *seen + hold).min()
    }

    /// The reason is the first cause in the order of decision, else the first failed check.
    pub(super) fn condition(&self) -> Condition {
        let verdicts = self.verdicts.iter().map(|(cause, (_, text))| (cause.name(), text.as_str()));
        let checks = self.checks.iter().map(|(check, text)| (check.as_str(), text.as_str()));
        let (names, texts): (Vec<_>, Vec<_>) = verdicts.chain(checks).unzip();
        match names.first() {
            Some(name) => Condition { status: "True", reason: camel_case(name), message: shortened(texts.join("; ")) },
            None => Condition {
                status: "False",
                reason: "NoNodeFault".into(),
                message: "nothing of the node is known to break probes".into(),
            },
        }
    }
}

/// `LoopbackDown` for `loopback_down`: the API wants reasons in CamelCase.
fn camel_case(name: &str) -> String {
    let capital = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    };
    name.split('_').map(capital).collect()
}

pub(super) struct Keeper {
    client: Client,
    node: String,
    pace: Pace,
    rates: Rates,
    faults: Faults,
    outage: Outage,
    /// The condition that was written last, and when.
    written: Option<(Condition, Instant)>,
    since: Timestamp,
    /// When to write for the first time. It is spread, so that nodes that start together do not write together.
    first: Instant,
}

impl Keeper {
    pub(super) fn new(client: Client, node: &str, pace: Pace, rates: Rates) -> Self {
        Self {
            client,
            node: node.to_owned(),
            pace,
            rates,
            faults: Faults::default(),
            outage: Outage::new("conditions of the node", pace, rates.refused),
            written: None,
            since: Timestamp::now(),
            first: Instant::now() + part(rates.gap),
        }
    }

    /// Keeps the condition up to date until the pipeline ends, then sets it to `Unknown`.
    pub(super) async fn run(mut self, mut faults: watch::Receiver<Faults>, mut end: watch::Receiver<bool>) {
        let hold = self.rates.hold;
        loop {
            let due = self.due();
            let wake = self.faults.next_expiry(hold).map_or(due, |expiry| expiry.min(due));
            tokio::select! {
                changed = faults.changed() => match changed {
                    Ok(()) => self.faults = faults.borrow_and_update().clone(),
                    Err(_) => break,
                },
                () = sleep_until(wake) => {}
            }
            self.faults.expire(Instant::now(), hold);
            if self.due() <= Instant::now() {
                tokio::select! {
                    () = self.write(self.faults.condition()) => {}
                    // The API did not answer in time.
                    () = wait_out_the_end(&mut end) => return,
                }
            }
        }
        if self.written.is_some() {
            let _ = timeout(AT_END, self.write(unknown())).await;
        }
    }

    /// When to write next: soon after a change, else as a heartbeat.
    fn due(&self) -> Instant {
        let now = self.faults.condition();
        let is_same = |before: &Condition| before.status == now.status && before.reason == now.reason;
        let due = match &self.written {
            None => self.first,
            Some((before, at)) if is_same(before) => *at + self.rates.heartbeat,
            Some((_, at)) => *at + self.rates.gap,
        };
        due.max(self.outage.until.unwrap_or(due))
    }

    async fn write(&mut self, condition: Condition) {
        if self.written.as_ref().is_none_or(|(before, _)| before.status != condition.status) {
            self.since = Timestamp::now();
        }
        let path = format!("/api/v1/nodes/{}/status", self.node);
        let body = patch(&condition, self.since, Timestamp::now());
        let now = Instant::now();
        let failure = match write(&self.client, &self.pace, Change::Strategic, &path, "nodes/status", &body).await {
            Answer::Done => {
                self.outage.end();
                self.written = Some((condition, now));
                return;
            }
            Answer::Missing => Failure::Unknown("a node of this name (NODE_NAME, --node-name)"),
            // Another client wrote at the same moment.
            Answer::Exists => Failure::Garbage("a conflict (409)".into()),
            Answer::Never(failure) | Answer::Later(failure) => failure,
        };
        self.outage.failed(&failure, now);
    }
}

/// Conditions are merged by their type, so the node's other conditions stay.
fn patch(condition: &Condition, since: Timestamp, now: Timestamp) -> Value {
    let Condition { status, reason, message } = condition;
    json!({ "status": { "conditions": [{
        "type": TYPE, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": second(since), "lastHeartbeatTime": second(now),
    }] } })
}

/// The condition after the end: nothing checks the node any more.
fn unknown() -> Condition {
    Condition { status: "Unknown", reason: "TracerStopped".into(), message: "tracer has ended on this node".into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::{verdict, verdict_body};
    use tracer_model::record::FindingBody;

    #[test]
    fn a_fault_holds_for_a_while_and_a_failed_check_until_it_is_fixed() {
        let (now, hold) = (Instant::now(), Duration::from_secs(600));
        let mut faults = Faults::default();
        let take = |faults: &mut Faults, body| faults.take(&Decision::new(1, None, body), now);
        let check = |status| {
            Body::Finding(Box::new(FindingBody { observed: "0".into(), ..FindingBody::new("ip_forward", status) }))
        };
        let mut of_a_pod = verdict_body(Cause::EphemeralPortsExhausted);
        of_a_pod.subject = Subject::Connection;
        assert!(!take(&mut faults, Body::Verdict(of_a_pod.into())), "no probe failed");
        assert_eq!(faults.condition().status, "False");
        assert!(take(&mut faults, check(Status::Fail)) && take(&mut faults, verdict(Cause::LoopbackDown)));
        let condition = faults.condition();
        assert_eq!((condition.status, condition.reason.as_str()), ("True", "LoopbackDown"));
        assert_eq!(condition.message, "loopback_down: nobody listens on 10.0.0.9:80; ip_forward: 0");
        faults.expire(now + Duration::from_secs(601), hold);
        assert_eq!(faults.condition().reason, "IpForward");
        assert!(!take(&mut faults, check(Status::Unknown)));
        assert_eq!(faults.condition().reason, "IpForward", "a check that cannot be made clears no fault");
        assert!(take(&mut faults, check(Status::Ok)));
        assert_eq!(faults.condition().reason, "NoNodeFault");
    }
}
