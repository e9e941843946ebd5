//! The pure core: observations in, decisions out. No clock, no I/O, no locks.

mod budgets;
mod emission;
mod failures;
mod grpc_retries;
mod known_noise;
mod kubelet_messages;
mod loopbacks;
mod node_reports;
mod not_run;
mod outcomes;
mod paced;
mod probe_key;
mod queries;
mod records;
mod refusals;
mod revision;
mod starts;
mod timeouts;
mod unmatched;
mod verdicts;
mod waiting;

use std::collections::BTreeSet;

use self::budgets::Budgets;
use self::emission::refreshes;
use self::failures::Failures;
use self::grpc_retries::GrpcRetries;
use self::known_noise::KnownNoise;
use self::kubelet_messages::KubeletMessages;
use self::node_reports::NodeReports;
use self::not_run::FutureStarts;
use self::queries::{PATIENCE_NS, Queries, waits_for_answer, wanted};
use self::records::{attempt_record, kubelet_outcome, recovery, set_time, verdict_record};
use self::refusals::next;
use self::revision::{changes, is_refuted};
use self::unmatched::Unmatched;
use self::verdicts::{Decided, Verdicts};
use self::waiting::Waiting;
use tracer_attempts::correlate::Correlator;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::listeners::serves;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Matched;
use tracer_case::finding::Finding;
use tracer_case::halt::is_halted;
use tracer_case::serving::is_blocked;
use tracer_case::{Case, SETTLE_NS, Streak};
use tracer_classify::classify;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Observation, ObservationKind, TcpState};
use tracer_model::query::Query;
use tracer_model::record::{Cause, Outcome};

/// The most targets or probes for which a count is kept.
const MAX_COUNTERS: usize = 4096;

/// The moment at which the rules look at an attempt.
#[derive(Clone, Copy, Debug)]
enum When {
    /// An observation came.
    Seen(u64),
    /// Later: other events of the same packet have had time to arrive.
    Settled(u64),
}

/// Observations in, decisions out.
#[derive(Debug, Default)]
pub struct Core {
    correlator: Correlator,
    node: Node,
    /// The attempts that wait to be judged, and what for.
    waiting: Waiting,
    /// Queries to the node.
    queries: Queries,
    verdicts: Verdicts,
    /// When the core looks for verdicts on forgotten attempts again.
    next_sweep: u64,
    /// Failures and refusals in a row.
    failures: Failures,
    /// Attempts of gRPC probes that may connect again.
    grpc_retries: GrpcRetries,
    budgets: Budgets,
    node_reports: NodeReports,
    not_run: FutureStarts,
    known_noise: KnownNoise,
    kubelet_messages: KubeletMessages,
    /// Failures that the kubelet reported and that fit no attempt yet.
    unmatched: Unmatched,
}

impl Core {
    /// Takes one observation and appends the decisions that follow from it. Earlier deadlines fire first.
    pub fn push(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        // A loss has a later time than the events that were read with it, but must come before any of them is judged.
        // The same holds for the answer about port users, for which a deadline waits.
        if !matches!(observation.kind, ObservationKind::Loss(_) | ObservationKind::PortPressure(_)) {
            self.fire_deadlines(observation.time_boot_ns, out);
        }
        self.node_reports.push(observation, &self.node, out);
        self.node.observe(observation);
        out.extend(self.not_run.observe(observation, &self.node));
        match &observation.kind {
            ObservationKind::Firewall(firewall) => self.release(firewall.netns, observation.time_boot_ns, out),
            ObservationKind::ServiceEndpoints(service) => {
                self.release_endpoints(service, observation.time_boot_ns, out)
            }
            ObservationKind::Limits(reading) => self.release_commands(&reading.id, observation.time_boot_ns, out),
            ObservationKind::PodSockets(reading) => self.release_pod(reading, observation.time_boot_ns, out),
            ObservationKind::NetnsOp(op) if op.begins_again() => self.waiting.forget_refused(op.netns),
            ObservationKind::NetnsOp(op) => self.query_refusing(op.netns, observation.time_boot_ns),
            ObservationKind::KubeletProbe(probe) => {
                let probe = Box::new(probe.clone().understood());
                let observation =
                    Observation { kind: ObservationKind::KubeletProbe(probe.clone()), ..observation.clone() };
                self.outcome(&probe, &observation, out);
            }
            ObservationKind::SandboxFailure(failure) => {
                out.extend(self.kubelet_messages.sandbox(failure, &self.node, observation.time_boot_ns))
            }
            _ => {}
        }
        if !self.is_from_other_pod(observation)
            && let Some(conn) = self.correlator.push(observation)
        {
            self.attempt_observed(conn, observation, out);
        }
        if let Some(forgotten) = self.correlator.take_forgotten(observation.time_boot_ns) {
            out.extend(self.node_reports.lost(observation.time_boot_ns, &forgotten));
        }
        self.reevaluate_waiting(observation, out);
    }

    /// Whether the observation belongs to a pod that connects to the same target from the same port. Its source is the
    /// address of a pod, which no source NAT explains.
    fn is_from_other_pod(&self, observation: &Observation) -> bool {
        let translated = self.correlator.attempt_of(observation).and_then(|it| it.translated_in(&observation.kind));
        translated.is_some_and(|client| self.node.has_pod(client.ip()))
    }

    /// Judges the attempts again that wait for an observation which belongs to none of them.
    fn reevaluate_waiting(&mut self, observation: &Observation, out: &mut Vec<Decision>) {
        let attempts: Vec<ConnId> = match &observation.kind {
            ObservationKind::Inspection(reading) => {
                let waiting = self.correlator.waiting_for(reading.from, reading.target, observation.time_boot_ns);
                let waiting: Vec<ConnId> = waiting.collect();
                if reading.serving.as_ref().is_some_and(|server| is_halted(server) || is_blocked(server)) {
                    waiting.iter().for_each(|conn| self.inspect_again(*conn, observation.time_boot_ns));
                }
                waiting.into_iter().filter(|conn| self.can_classify(*conn, observation.time_boot_ns)).collect()
            }
            ObservationKind::Listen(listen) if listen.begins && !listen.bound => {
                let to = |conn| self.correlator.get(conn).map(|attempt| attempt.flow.dst.ip());
                let served = |conn| to(conn).is_none_or(|dst| serves(listen, dst));
                self.waiting.take_refused(listen.netns, listen.addr.port(), served)
            }
            ObservationKind::PortHolders(reading) => self.waiting.refused(reading.netns, reading.port),
            _ => return,
        };
        for conn in attempts {
            self.decide(conn, When::Settled(observation.time_boot_ns), out);
        }
    }

    /// Whether the attempt has ended, or its events are complete. If events were lost, an attempt without a handshake
    /// may have had one: it is judged at its end.
    fn can_classify(&self, conn: ConnId, now: u64) -> bool {
        let lost = |attempt: &Attempt| self.node.lost_between(attempt.started, now) > 0;
        self.correlator.get(conn).is_some_and(|attempt| attempt.ended.is_some() || !lost(attempt))
    }

    /// When the core needs a [`ObservationKind::Tick`] if no other observation comes, in CLOCK_BOOTTIME nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let sweep = self.verdicts.pending().next().map(|_| self.next_sweep);
        let own = [self.waiting.due(), self.queries.due(), self.unmatched.due(), sweep];
        let due = own.into_iter().chain([self.node_reports.due(), self.not_run.due()]);
        due.flatten().min()
    }

    /// Whether a verdict waits for events of the same packet, or for an answer that can complete it.
    #[must_use]
    pub fn is_deciding(&self, now_boot_ns: u64) -> bool {
        self.waiting.is_deciding(now_boot_ns)
    }

    /// Ends the stream: decides attempts that only wait, and reports those that are still open.
    pub fn finish(&mut self, time_boot_ns: u64, out: &mut Vec<Decision>) {
        self.waiting.forget_timeouts();
        self.fire_deadlines(u64::MAX, out);
        self.release_all(time_boot_ns, out);
        out.extend(
            self.correlator
                .open()
                .map(|attempt| attempt_record(attempt, &self.node, time_boot_ns, Some(Outcome::Open), None)),
        );
    }

    /// The queries of the core. The caller answers them, and pushes the answers as observations.
    pub fn take_queries(&mut self) -> Vec<Query> {
        self.queries.take()
    }

    fn fire_deadlines(&mut self, now: u64, out: &mut Vec<Decision>) {
        self.node_reports.fire(now, &self.node, out);
        self.not_run.fire(now, &self.node, out);
        while let Some((time, conn)) = self.waiting.next_due(now) {
            self.decide(conn, When::Settled(now), out);
            self.end(conn, time, out);
            self.release_verdict(conn, now, out);
        }
        self.fire_timeouts(now, out);
        self.release_forgotten(now, out);
        self.match_waiting(now, out);
        self.issue_due(now);
    }

    fn attempt_observed(&mut self, conn: ConnId, observation: &Observation, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        match &observation.kind {
            ObservationKind::Connect(_) => {
                self.schedule_inspection(conn, Some(attempt.started.saturating_add(PATIENCE_NS)));
                self.schedule_timeout(conn);
            }
            // What is true of the first SYN may not be of this one.
            ObservationKind::Retransmit(segment) if segment.state == TcpState::SynSent && !segment.by_target => {
                self.schedule_inspection(conn, Some(observation.time_boot_ns.saturating_add(PATIENCE_NS)));
            }
            ObservationKind::State(state) => {
                if let Some(netns) = attempt.netns.filter(|_| state.new == TcpState::Established) {
                    let node = self.node.netns().filter(|_| self.node.pods.in_netns(netns).is_some());
                    self.node.flushes.observe_reached(observation.time_boot_ns, netns, node, attempt.flow.dst.ip());
                    self.node.links.observe_reached(observation.time_boot_ns, netns, attempt.flow.dst.ip());
                    if let Some(pod) = self.node.netns_of_addr(netns, attempt.flow.dst.ip()).filter(|pod| *pod != netns)
                    {
                        self.node.links.observe_reached(observation.time_boot_ns, pod, attempt.flow.src.ip());
                    }
                }
                let due = waits_for_answer(attempt, &self.node).map(|since| since.saturating_add(PATIENCE_NS));
                if attempt.established.is_some() || attempt.ended.is_some() {
                    self.cancel_timeout(conn);
                }
                self.schedule_inspection(conn, due);
            }
            _ => {}
        }
        let Some(attempt) = self.correlator.get(conn) else { return };
        for query in wanted(attempt, &self.node, observation) {
            self.query(query, observation.time_boot_ns);
        }
        self.decide(conn, When::Seen(observation.time_boot_ns), out);
        let Some(attempt) = self.correlator.get(conn) else { return };
        let failed = Matched::new(attempt, &self.node).failed();
        if is_ambiguous(observation, attempt, failed) {
            self.waiting.schedule(observation.time_boot_ns.saturating_add(SETTLE_NS), conn);
        } else if attempt.ended.is_some() && !failed {
            self.end(conn, observation.time_boot_ns, out);
        }
    }

    /// Asks the rules about an attempt, and emits a verdict that is new or changed.
    fn decide(&mut self, conn: ConnId, when: When, out: &mut Vec<Decision>) {
        self.waiting.forget_past_end(conn);
        let (When::Seen(now) | When::Settled(now)) = when;
        let (before, pending) = (self.verdicts.of(conn), self.verdicts.is_pending(conn));
        if before.is_some_and(|b| b.revised) && !self.may_revise_again(conn) {
            return;
        }
        let Some((finding, also)) = self.classified(conn, when) else { return };
        let is_connected = || self.correlator.get(conn).is_some_and(|it| it.established.is_some());
        let refreshed = |b: &Decided| {
            let is_better = !self.verdicts.is_finished(conn) && refreshes(b, &finding);
            let is_wrong = || !is_connected() && is_refuted(b, &finding, &also);
            pending && (is_better || is_wrong() || self.replaces_overcome(conn, &finding, now))
        };
        let is_named =
            || self.correlator.get(conn).is_some_and(|it| Matched::new(it, &self.node).reported_scheme().is_some());
        let repeats = |b: Decided| !changes(b, &finding, &also, is_named()) && !refreshed(&b);
        if before.is_some_and(repeats) || self.hold_verdict(conn, &finding, when) || self.is_known_noise(conn, &finding)
        {
            return;
        }
        let finding = self.lower_if_open(conn, finding);
        let counted = self.is_counted_refusal(conn);
        self.remember(conn, &finding, before.is_some() && !pending);
        self.remember_refusal(conn, &finding, counted);
        self.emit_verdict(conn, finding, also, before.is_some(), out);
    }

    /// The finding of the rules on an attempt.
    fn classified(&self, conn: ConnId, when: When) -> Option<(Finding, Vec<Cause>)> {
        let attempt = self.correlator.get(conn)?;
        let before = self.verdicts.of(conn);
        let streak = self.failures.refusals.streak(attempt, &self.node);
        let streak = streak.map(|s| next(s, self.is_counted_refusal(conn) || self.is_grpc_retry(attempt)));
        let streak = streak.or(Some(Streak::of_one(attempt.started)));
        let is_refused = || attempt.resets_sent().next().is_some() || attempt.ended.is_some();
        let established = attempt.established.is_some();
        let probed = attempt.prober && (established || is_refused());
        let failing = probed.then(|| self.failures.failing(attempt, &self.node, &self.verdicts)).flatten();
        let ended_by = (probed && !established).then(|| self.failures.ended_by(attempt, &self.node)).flatten();
        let case = Case::new(attempt, &self.node, matches!(when, When::Settled(_)), streak).after(failing, ended_by);
        let found = classify(&case);
        let failed = found.as_ref().is_some_and(|(finding, _)| finding.outcome == Outcome::Failure);
        let recovered = before.filter(|before| !failed && before.recovered(attempt, &self.node));
        recovered.map(|before| recovery(attempt, before, self.verdicts.held(conn))).or(found)
    }

    /// Emits a verdict. `again`: it is not the first one of the attempt.
    fn emit_verdict(&mut self, conn: ConnId, finding: Finding, also: Vec<Cause>, again: bool, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let (named, kubelet_outcome) =
            (Matched::new(attempt, &self.node).name(), attempt.kubelet().map(|(_, probe)| kubelet_outcome(probe)));
        // An attempt that is finished without a verdict was counted as a success.
        let has_status = attempt.is_refused_by_status() && !self.verdicts.is_finished(conn);
        let is_seen = attempt.failed_by_itself() || has_status;
        let count = if again || kubelet_outcome.is_none() || is_seen {
            self.count_failure(conn, &named, &finding)
        } else {
            self.failures.uncounted(attempt, &named);
            None
        };
        if !again && let Some(attempt) = self.correlator.get(conn) {
            self.budgets.failed(attempt, &self.node, &finding);
        }
        let mut record = verdict_record(conn, finding, also, named, count, kubelet_outcome);
        if let Some(attempt) = self.correlator.get(conn) {
            let time = record.time_boot_ns;
            set_time(&mut record, time, attempt);
        }
        self.emit(conn, record, out);
    }

    /// Ends an attempt: emits its record, once for each attempt and for any outcome.
    fn end(&mut self, conn: ConnId, time: u64, out: &mut Vec<Decision>) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        // The record of the attempt has the cause, so it waits as well.
        if attempt.ended.is_none() || self.waiting.is_past_end(conn) || !self.verdicts.finish(conn) {
            return;
        }
        let decided = self.verdicts.of(conn).filter(|_| !self.is_overcome(conn, time));
        let dst = attempt.flow.dst;
        let matched = Matched::new(attempt, &self.node);
        let failed = matched.failed() || decided.is_some_and(|it| it.outcome == Outcome::Failure);
        let is_well = !failed && !matched.is_unknown_end();
        let may_be_well = !failed && matched.may_have_answered_in_tls();
        let outcome = match (failed, is_well && !matched.is_unread()) {
            (true, _) => Some(Outcome::Failure),
            (false, true) => Some(Outcome::Success),
            (false, false) => None,
        };
        let (emitted, cause) = (decided.map(|d| d.outcome).or(outcome), decided.map(|d| d.cause));
        let record = attempt_record(attempt, &self.node, time, emitted, cause);
        self.withdraw_other_loopback(conn, out);
        if outcome == Some(Outcome::Success) {
            self.succeeded(conn, time, out);
        } else if is_well || may_be_well {
            self.failures.refusals.end(dst);
            self.answered_so_far(conn);
        }
        if is_well {
            self.withdraw_retried(conn, out);
        }
        self.release_verdict(conn, time, out);
        out.push(record);
    }
}

/// Other events decide what this event means: a RST, a dropped packet of the handshake, a failed end.
fn is_ambiguous(observation: &Observation, attempt: &Attempt, failed: bool) -> bool {
    match &observation.kind {
        ObservationKind::ResetReceived(_) | ObservationKind::Icmp(_) | ObservationKind::ConnectFailed(_) => true,
        ObservationKind::ResetSent(reset) => reset.answered.is_syn(),
        ObservationKind::Drop(drop) => drop.flags.is_syn() || drop.flags.is_syn_ack() || failed,
        ObservationKind::State(state) => failed && (state.old == TcpState::SynSent || attempt.ended.is_some()),
        _ => false,
    }
}

/// The earliest that is due.
fn take_due<T: Ord>(times: &mut BTreeSet<(u64, T)>, now: u64) -> Option<(u64, T)> {
    times.first().filter(|(time, _)| *time <= now)?;
    times.pop_first()
}

/// When the earliest is due.
fn first_due<T: Ord>(times: &BTreeSet<(u64, T)>) -> Option<u64> {
    times.first().map(|(time, _)| *time)
}
