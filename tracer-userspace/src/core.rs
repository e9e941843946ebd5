//! The pure core: observations in, decisions out. No clock, no I/O, no locks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::classify::finding::Finding;
use crate::classify::label::Label;
use crate::classify::{Case, classify};
use crate::correlate::Correlator;
use crate::correlate::attempt::Attempt;
use crate::correlate::node::Node;
use crate::decision::Decision;
use crate::enrich::{self, Named};
use crate::event::{ConnId, Fact, Observation, TcpState};
use crate::node_events;
use crate::record::{AttemptBody, Body, LossBody, Outcome, Phases, Probe, Verdict, VerdictBody};

/// How long the companions of an ambiguous event may take. They are made in the same softirq run,
/// microseconds apart; what separates them at worst is a preempted CPU.
const SETTLE_NS: u64 = 2_000_000;
/// Failure counters kept (one for each address, port and kind of probe).
const MAX_COUNTERS: usize = 4096;
/// Decided attempts remembered, so that none is decided twice.
const MAX_DECIDED: usize = 16384;

/// Options of the core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Also decide about attempts that succeeded (`--attempts`).
    pub attempts: bool,
}

/// What was decided about an attempt.
#[derive(Clone, Copy, Debug)]
struct Decided {
    label: Label,
    outcome: Outcome,
    revised: bool,
}

/// Observations in, decisions out.
#[derive(Debug, Default)]
pub struct Core {
    options: Options,
    correlator: Correlator,
    node: Node,
    /// When to look again at attempts whose last event was ambiguous.
    deadlines: BTreeSet<(u64, ConnId)>,
    decided: BTreeMap<ConnId, Decided>,
    failures: BTreeMap<(SocketAddr, Option<u8>), u32>,
    finished: BTreeSet<ConnId>,
    tls_wanted: BTreeSet<u16>,
    attempts_ended: u64,
}

impl Core {
    /// An empty core.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Takes one observation; appends what it decides. Deadlines that lie before it fire first.
    pub fn push(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        // A loss is noticed before the events that were read with it are judged, and carries a later time.
        if !matches!(observation.fact, Fact::Loss(_)) {
            self.fire_deadlines(observation.time_boot_ns, out);
        }
        out.extend(node_events::decide(observation, &self.node));
        self.node.see(observation);
        if let Fact::Loss(loss) = &observation.fact {
            out.push(loss_record(observation.time_boot_ns, loss));
        }
        if let Some(conn) = self.correlator.push(observation) {
            self.look(conn, observation, out);
        }
    }

    /// When the core wants to be woken by a [`Fact::Tick`] if nothing else comes, CLOCK_BOOTTIME nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// The stream ends: decides what was only waiting, and reports open attempts with `attempts`.
    pub fn finish(&mut self, time_boot_ns: u64, out: &mut Vec<Decision>) {
        self.fire_deadlines(u64::MAX, out);
        if self.options.attempts {
            out.extend(
                self.correlator.open().map(|attempt| self.attempt_record(attempt, time_boot_ns, Outcome::Open, None)),
            );
        }
    }

    /// Ports that tcpSocket attempts touched and of which it is not known whether they speak TLS:
    /// the caller has the kernel watch them for a ClientHello.
    pub fn take_tls_watches(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.tls_wanted).into_iter().collect()
    }

    /// Attempts that ended so far.
    #[must_use]
    pub const fn attempts_ended(&self) -> u64 {
        self.attempts_ended
    }

    /// Attempts that have not ended.
    #[must_use]
    pub fn open_attempts(&self) -> u64 {
        self.correlator.open().count() as u64
    }

    fn fire_deadlines(&mut self, now: u64, out: &mut Vec<Decision>) {
        while let Some(&(time, conn)) = self.deadlines.first()
            && time <= now
        {
            self.deadlines.pop_first();
            self.decide(conn, true, out);
            self.end(conn, time, out);
        }
    }

    /// An attempt has a new observation.
    fn look(&mut self, conn: ConnId, observation: &Observation, out: &mut Vec<Decision>) {
        self.decide(conn, false, out);
        let Some(attempt) = self.correlator.get(conn) else { return };
        if attempt.touched_only() && self.tls_wanted.len() < usize::from(u8::MAX) {
            self.tls_wanted.insert(attempt.flow.dst.port());
        }
        if is_ambiguous(observation, attempt) {
            self.deadlines.insert((observation.time_boot_ns.saturating_add(SETTLE_NS), conn));
        } else if attempt.ended.is_some() && !attempt.failed() {
            self.end(conn, observation.time_boot_ns, out);
        }
    }

    /// Asks the rules about an attempt, and says what is new.
    fn decide(&mut self, conn: ConnId, settled: bool, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let before = self.decided.get(&conn).copied();
        if before.is_some_and(|b| b.revised) {
            return;
        }
        let case = Case { attempt, node: &self.node, settled };
        let found = match before {
            Some(before) if recovered(attempt, before) => Some(recovery(attempt, before)),
            _ => classify(&case),
        };
        let Some((finding, also)) = found else { return };
        if before.is_some_and(|b| !changes(b, &finding)) {
            return;
        }
        let named = enrich::name(attempt, &self.node);
        let count = self.count_failure(conn, &named, &finding, before.is_some());
        self.remember(conn, &finding, before.is_some());
        out.push(verdict_record(conn, finding, also, named, count));
    }

    fn remember(&mut self, conn: ConnId, finding: &Finding, revised: bool) {
        if self.decided.len() >= MAX_DECIDED {
            self.decided.pop_first();
        }
        self.decided.insert(conn, Decided { label: finding.label, outcome: finding.outcome, revised });
    }

    /// Failures in a row of this probe, this attempt included.
    fn count_failure(&mut self, conn: ConnId, named: &Named, finding: &Finding, again: bool) -> Option<u32> {
        if finding.outcome != Outcome::Failure {
            return None;
        }
        let key = self.counter_key(conn, named)?;
        if self.failures.len() >= MAX_COUNTERS && !self.failures.contains_key(&key) {
            self.failures.pop_first();
        }
        let count = self.failures.entry(key).or_default();
        *count += u32::from(!again);
        Some(*count)
    }

    fn counter_key(&self, conn: ConnId, named: &Named) -> Option<(SocketAddr, Option<u8>)> {
        let dst = self.correlator.get(conn)?.flow.dst;
        Some((dst, named.probe.as_ref().and_then(|p| p.probe_type).map(|t| t as u8)))
    }

    /// The attempt is over: once for each, whatever its outcome.
    fn end(&mut self, conn: ConnId, time: u64, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        if attempt.ended.is_none() || !self.finished.insert(conn) {
            return;
        }
        self.attempts_ended += 1;
        let outcome = if attempt.failed() { Outcome::Failure } else { Outcome::Success };
        let record = self.options.attempts.then(|| {
            let decided = self.decided.get(&conn);
            self.attempt_record(attempt, time, decided.map_or(outcome, |d| d.outcome), decided.map(|d| d.label))
        });
        if outcome == Outcome::Success {
            self.succeeded(conn, time);
        }
        if self.finished.len() > MAX_DECIDED {
            self.finished.pop_first();
        }
        out.extend(record);
    }

    /// An attempt succeeded: its probe's failures in a row are over; what answered an HTTPS probe speaks TLS.
    fn succeeded(&mut self, conn: ConnId, time: u64) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let named = enrich::name(attempt, &self.node);
        let https = named.probe.as_ref().and_then(|p| p.scheme.as_deref()) == Some("https");
        if https && attempt.received().is_some_and(|n| n > 0) {
            self.node.answered_https(attempt.flow.dst, time);
        }
        if let Some(key) = self.counter_key(conn, &named) {
            self.failures.remove(&key);
        }
    }

    fn attempt_record(&self, attempt: &Attempt, now: u64, outcome: Outcome, label: Option<Label>) -> Decision {
        let named = enrich::name(attempt, &self.node);
        let body = AttemptBody {
            subject: named.subject,
            outcome,
            probe: named.probe,
            k8s: named.k8s,
            src: named.src,
            dst: named.dst,
            process: named.process,
            phases_ms: phases(attempt),
            label,
        };
        let time_boot_ns = attempt.ended.map_or(now, |(end, _)| end);
        Decision { time_boot_ns, attempt: Some(attempt.conn), body: Body::Attempt(Box::new(body)) }
    }
}

/// An event whose companions decide what it means: a RST, a drop of a handshake packet, a failed end.
fn is_ambiguous(observation: &Observation, attempt: &Attempt) -> bool {
    match &observation.fact {
        Fact::ResetReceived(_) | Fact::Icmp(_) | Fact::ConnectFailed(_) => true,
        Fact::Drop(drop) => drop.flags.is_syn() || drop.flags.is_syn_ack() || attempt.failed(),
        Fact::State(state) => attempt.failed() && (state.old == TcpState::SynSent || attempt.ended.is_some()),
        _ => false,
    }
}

/// The handshake that had been judged a failure went through on a later SYN.
fn recovered(attempt: &Attempt, before: Decided) -> bool {
    let handshake_label =
        !matches!(before.label, Label::MidStreamRst | Label::SlowResponse | Label::TlsEofNoise | Label::Unexplained);
    before.outcome == Outcome::Failure
        && handshake_label
        && attempt.ended.is_some()
        && attempt.established.is_some()
        && !attempt.failed()
}

/// What a verdict becomes whose attempt then succeeded.
fn recovery(attempt: &Attempt, before: Decided) -> (Finding, Vec<Label>) {
    let ended = attempt.ended.map_or(attempt.started, |(time, _)| time);
    let summary = format!(
        "the attempt to {} succeeded after all: a SYN that was sent again got through {:.1} ms after the first",
        attempt.flow.dst,
        attempt.established.unwrap_or(ended).saturating_sub(attempt.started) as f64 / 1e6
    );
    let found = Finding::failure(before.label, Vec::new(), summary, before.label.page().mend.to_owned());
    (Finding { outcome: Outcome::Noise, decided_at: ended, ..found }, Vec::new())
}

/// A later finding replaces an earlier one if it names a nearer cause, or another outcome.
fn changes(before: Decided, finding: &Finding) -> bool {
    finding.outcome != before.outcome || finding.label < before.label
}

fn verdict_record(conn: ConnId, finding: Finding, also: Vec<Label>, named: Named, count: Option<u32>) -> Decision {
    let body = VerdictBody {
        subject: named.subject,
        verdict: Verdict {
            label: finding.label,
            outcome: finding.outcome,
            confidence: finding.confidence,
            summary: finding.summary,
            remediation: finding.remediation,
            evidence: finding.evidence,
            also,
            lost_events: finding.lost_events,
            missing_hooks: finding.missing_hooks,
        },
        probe: named.probe.map(|probe| Probe { consecutive_failures: count, ..probe }),
        k8s: named.k8s,
        src: named.src,
        dst: named.dst,
        process: named.process,
        netns: named.netns,
        culprit: finding.culprit,
        timing: None,
        revises: None,
    };
    Decision { time_boot_ns: finding.decided_at, attempt: Some(conn), body: Body::Verdict(Box::new(body)) }
}

fn loss_record(time_boot_ns: u64, loss: &crate::event::Loss) -> Decision {
    let body = LossBody {
        where_: loss.where_.clone(),
        count: loss.count,
        from_boot_ns: loss.from_boot_ns,
        to_boot_ns: loss.to_boot_ns,
    };
    Decision { time_boot_ns, attempt: None, body: Body::Loss(body) }
}

fn phases(attempt: &Attempt) -> Phases {
    let ms = |from: u64, to: u64| ((to.saturating_sub(from)) as f64 / 1e3).round() / 1e3;
    Phases {
        connect: attempt.established.map(|at| ms(attempt.started, at)),
        tls: None,
        first_byte: None,
        total: attempt.ended.map(|(end, _)| ms(attempt.started, end)),
    }
}
