//! The pure core: observations in, decisions out. No clock, no I/O, no locks.

mod budgets;
mod emission;
mod failures;
mod kubelet_words;
mod loopbacks;
mod losses;
mod news;
mod outcomes;
mod probe_key;
mod questions;
mod records;
mod redials;
mod revision;
mod starts;
mod timeouts;
mod undialled;
mod unmatched;
mod verdicts;
mod waiting;

use self::budgets::Budgets;
use self::emission::{Emission, refreshes};
use self::failures::{Failures, next};
use self::kubelet_words::Words;
use self::news::News;
use self::questions::{PATIENCE_NS, Questions, asks, waits_for_answer};
use self::records::{attempt_record, recovery, said, verdict_record};
use self::redials::Redials;
use self::revision::changes;
use self::unmatched::Unmatched;
use self::verdicts::{Decided, Verdicts};
use self::waiting::Waiting;
use crate::classify::finding::Finding;
use crate::classify::{Case, SETTLE_NS, Streak, classify};
use tracer_attempts::correlate::Correlator;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich;
use tracer_model::ask::Ask;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Fact, Observation, TcpState};
use tracer_model::record::{Cause, Outcome};

/// When an attempt is looked at.
#[derive(Clone, Copy, Debug)]
enum When {
    /// It has a new observation.
    Seen(u64),
    /// The companions of the last one had the time to arrive.
    Settled(u64),
}

/// Observations in, decisions out.
#[derive(Debug, Default)]
pub struct Core {
    /// The attempts.
    correlator: Correlator,
    /// What is known of the node.
    node: Node,
    /// Which attempts wait to be judged, and what for.
    waiting: Waiting,
    /// What is asked of the node.
    questions: Questions,
    /// What was decided.
    verdicts: Verdicts,
    /// Which verdicts are emitted.
    emission: Emission,
    /// Failures and refusals in a row.
    failures: Failures,
    /// Attempts of gRPC probes that may dial again.
    redials: Redials,
    /// How much room probes and starts have.
    budgets: Budgets,
    /// What was told of the node.
    news: News,
    /// What the kubelet said lately.
    words: Words,
    /// Failures that it logged and that fit no attempt yet.
    unmatched: Unmatched,
}

impl Core {
    /// Takes one observation; appends what it decides. Deadlines that lie before it fire first.
    pub fn push(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        // A loss is noticed before the events that were read with it are judged, and carries a later time.
        // So is the answer to who uses up ports, which a deadline waits for.
        if !matches!(observation.fact, Fact::Loss(_) | Fact::PortPressure(_)) {
            self.fire_deadlines(observation.time_boot_ns, out);
        }
        self.news.push(observation, &self.node, out);
        self.node.see(observation);
        match &observation.fact {
            Fact::Firewall(firewall) => self.release(firewall.netns, observation.time_boot_ns, out),
            Fact::NetnsOp(op) if op.begins_again() => self.waiting.forget_refused(op.netns),
            Fact::KubeletProbe(probe) => {
                let probe = Box::new(probe.clone().understood());
                let observation = Observation { fact: Fact::KubeletProbe(probe.clone()), ..observation.clone() };
                self.outcome(&probe, &observation, out);
            }
            Fact::SandboxFailure(failure) => {
                out.extend(self.words.sandbox(failure, &self.node, observation.time_boot_ns))
            }
            _ => {}
        }
        if !self.is_another_pod_s(observation)
            && let Some(conn) = self.correlator.push(observation)
        {
            self.look(conn, observation, out);
        }
        if let Some(forgotten) = self.correlator.take_forgotten(observation.time_boot_ns) {
            out.extend(self.news.lost(observation.time_boot_ns, &forgotten));
        }
        self.look_again(observation, out);
    }

    /// Tied by destination and source port alone, and from a pod's own address: no source NAT, but a pod that dials the same.
    fn is_another_pod_s(&self, observation: &Observation) -> bool {
        let translated = self.correlator.attempt_of(observation).and_then(|it| it.translated_in(&observation.fact));
        translated.is_some_and(|client| self.node.has_pod(client.ip()))
    }

    /// What an observation that belongs to no attempt says about those that wait for it.
    fn look_again(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        let concerned: Vec<ConnId> = match &observation.fact {
            Fact::Inspection(seen) => {
                let waiting = self.correlator.waiting_for(seen.from, seen.target, observation.time_boot_ns);
                waiting.filter(|conn| self.surely_waits(*conn, observation.time_boot_ns)).collect()
            }
            Fact::Listen(listen) if listen.begins => self.waiting.take_refused(listen.netns, listen.addr.port()),
            _ => return,
        };
        for conn in concerned {
            self.decide(conn, When::Settled(observation.time_boot_ns), out);
        }
    }

    /// An attempt that seems to wait for its handshake may have had it long ago, if events of it may have been
    /// lost: it is judged when its end is seen.
    fn surely_waits(&self, conn: ConnId, now: u64) -> bool {
        let lost = |attempt: &Attempt| self.node.lost_between(attempt.started, now) > 0;
        self.correlator.get(conn).is_some_and(|attempt| attempt.ended.is_some() || !lost(attempt))
    }

    /// When the core wants to be woken by a [`Fact::Tick`] if nothing else comes, CLOCK_BOOTTIME nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let due = [self.waiting.due(), self.questions.due(), self.news.due(), self.unmatched.due()];
        due.into_iter().flatten().min()
    }

    /// The stream ends: decides what was only waiting, and reports attempts that are still open.
    pub fn finish(&mut self, time_boot_ns: u64, out: &mut Vec<Decision>) {
        self.waiting.forget_timeouts();
        self.fire_deadlines(u64::MAX, out);
        self.release_all(out);
        out.extend(
            self.correlator
                .open()
                .map(|attempt| attempt_record(attempt, &self.node, time_boot_ns, Outcome::Open, None)),
        );
    }

    /// What the core wants to know: the caller finds out and pushes the answers as facts.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        self.questions.take()
    }

    fn fire_deadlines(&mut self, now: u64, out: &mut Vec<Decision>) {
        self.news.fire(now, out);
        while let Some((time, conn)) = self.waiting.next_look(now) {
            self.decide(conn, When::Settled(now), out);
            self.end(conn, time, out);
            self.release_verdict(conn, now, out);
        }
        self.fire_timeouts(now, out);
        self.release_forgotten(now, out);
        self.match_waiting(now, out);
        self.ask_due(now);
    }

    /// An attempt has a new observation.
    fn look(&mut self, conn: ConnId, observation: &Observation, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        match &observation.fact {
            Fact::Connect(_) => {
                self.look_later(conn, Some(attempt.started.saturating_add(PATIENCE_NS)));
                self.expect_end(conn);
            }
            Fact::State(_) => {
                let due = waits_for_answer(attempt, &self.node).map(|since| since.saturating_add(PATIENCE_NS));
                if attempt.established.is_some() || attempt.ended.is_some() {
                    self.expect_no_end(conn);
                }
                self.look_later(conn, due);
            }
            _ => {}
        }
        let Some(attempt) = self.correlator.get(conn) else { return };
        for ask in asks(attempt, &self.node, observation) {
            self.ask(ask, observation.time_boot_ns);
        }
        self.decide(conn, When::Seen(observation.time_boot_ns), out);
        let Some(attempt) = self.correlator.get(conn) else { return };
        let failed = enrich::failed(attempt, &self.node);
        if is_ambiguous(observation, attempt, failed) {
            self.waiting.look_at(observation.time_boot_ns.saturating_add(SETTLE_NS), conn);
        } else if attempt.ended.is_some() && !failed {
            self.end(conn, observation.time_boot_ns, out);
        }
    }

    /// Asks the rules about an attempt, and says what is new.
    fn decide(&mut self, conn: ConnId, when: When, out: &mut Vec<Decision>) {
        let (before, pending) = (self.verdicts.of(conn), self.emission.is_pending(conn));
        if before.is_some_and(|b| b.revised) && !self.is_open_again(conn) {
            return;
        }
        let Some((finding, also)) = self.classified(conn, when) else { return };
        let refreshed = |b: &Decided| pending && !self.verdicts.is_finished(conn) && refreshes(b, &finding);
        let repeats = |b: Decided| !changes(b, &finding, &also) && !refreshed(&b);
        if before.is_some_and(repeats) || self.holds(conn, &finding, when) {
            return;
        }
        self.remember(conn, &finding, before.is_some() && !pending);
        self.say(conn, finding, also, before.is_some(), out);
    }

    /// What the rules say of an attempt.
    fn classified(&self, conn: ConnId, when: When) -> Option<(Finding, Vec<Cause>)> {
        let attempt = self.correlator.get(conn)?;
        let before = self.verdicts.of(conn);
        let streak = self.failures.streak(attempt, &self.node);
        let streak = streak.map(|s| next(s, before.is_some() || self.is_redial(attempt)));
        let streak = streak.or(Some(Streak::of_one(attempt.started)));
        let found = classify(&Case::new(attempt, &self.node, matches!(when, When::Settled(_)), streak));
        let failed = found.as_ref().is_some_and(|(finding, _)| finding.outcome == Outcome::Failure);
        let recovered = before.filter(|before| !failed && before.recovered(attempt, &self.node));
        recovered.map(|before| recovery(attempt, before)).or(found)
    }

    /// Says a verdict; `again`: not the attempt's first.
    fn say(&mut self, conn: ConnId, finding: Finding, also: Vec<Cause>, again: bool, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let (named, said) = (enrich::name(attempt, &self.node), attempt.kubelet().map(|(_, probe)| said(probe)));
        // Where only the kubelet saw it fail, the attempt before may have been counted as a success.
        let counts = again || said.is_none() || attempt.failed_by_itself();
        let count = if counts { self.count_failure(conn, &named, &finding) } else { None };
        if !again && let Some(attempt) = self.correlator.get(conn) {
            self.budgets.failed(attempt, &self.node, &finding);
        }
        self.remember_refusal(conn, &finding, again);
        self.emit(conn, verdict_record(conn, finding, also, named, count, said), out);
    }

    /// The attempt is over: once for each, whatever its outcome.
    fn end(&mut self, conn: ConnId, time: u64, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        if attempt.ended.is_none() || !self.verdicts.finish(conn) {
            return;
        }
        let decided = self.verdicts.of(conn);
        let failed = enrich::failed(attempt, &self.node) || self.verdicts.failure(conn).is_some();
        let outcome = if failed { Outcome::Failure } else { Outcome::Success };
        let record =
            attempt_record(attempt, &self.node, time, decided.map_or(outcome, |d| d.outcome), decided.map(|d| d.cause));
        let has_succeeded = !failed && !enrich::is_unknown_end(attempt, &self.node);
        self.pardon_other_loopback(conn, out);
        if has_succeeded {
            self.succeeded(conn, time, out);
            self.pardon_redials(conn, out);
        }
        self.release_verdict(conn, time, out);
        out.push(record);
    }
}

/// An event whose companions decide what it means: a RST, a drop of a handshake packet, a failed end.
fn is_ambiguous(observation: &Observation, attempt: &Attempt, failed: bool) -> bool {
    match &observation.fact {
        Fact::ResetReceived(_) | Fact::Icmp(_) | Fact::ConnectFailed(_) => true,
        Fact::Drop(drop) => drop.flags.is_syn() || drop.flags.is_syn_ack() || failed,
        Fact::State(state) => failed && (state.old == TcpState::SynSent || attempt.ended.is_some()),
        _ => false,
    }
}
