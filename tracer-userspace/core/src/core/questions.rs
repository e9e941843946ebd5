//! What the core asks of the node, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::Core;
use super::waiting::{first_due, take_due};
use crate::classify::evidence::is_netfilter;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::firewalls::{Firewalls, Next};
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich;
use tracer_model::ask::{Ask, Awaited};
use tracer_model::event::{ConnId, Fact, Netns, Observation, TcpState};
use tracer_model::recent::Recent;

/// A handshake on a node takes less than a millisecond: after this the target is looked at.
pub(super) const PATIENCE_NS: u64 = 200_000_000;
/// While a pod owes an answer it is looked at so often, and so long: the kubelet's own connections stay for hours.
const LOOK_EVERY_NS: u64 = 300_000_000;
const LOOK_UNTIL_NS: u64 = 5_000_000_000;

/// The same question is not asked more often.
const ASK_AGAIN_NS: u64 = 1_000_000_000;
/// A prober that is known may have been moved to another cgroup.
const MOVED_NS: u64 = 10_000_000_000;
/// A target's state is another one soon: less than the patience, so that every attempt that waits has it looked at.
const LOOK_AGAIN_NS: u64 = 100_000_000;
/// Questions remembered.
const MAX_ASKED: usize = 1024;

/// What is to be asked, what was, and when.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// To be put now.
    asks: BTreeSet<Ask>,
    /// Those whose time has not come.
    later: BTreeSet<(u64, Ask)>,
    /// When to ask about targets that have not answered.
    patience: BTreeSet<(u64, ConnId)>,
    /// To be put once more when the answer has come that is on its way, since when.
    after_answer: BTreeMap<Netns, (u64, Ask)>,
    /// When each was last put.
    asked: Recent<Ask, u64, MAX_ASKED>,
}

impl Questions {
    /// Asks, unless that was asked a moment ago.
    fn ask(&mut self, ask: Ask, now: u64, firewalls: &mut Firewalls) {
        let again = match ask {
            Ask::Firewall(netns, _) => return self.ask_firewall(netns, ask, now, firewalls),
            Ask::Target(..) => LOOK_AGAIN_NS,
            Ask::Answers(_) => MOVED_NS,
            _ => ASK_AGAIN_NS,
        };
        if self.asked.get(&ask).is_some_and(|at| now < at.saturating_add(again)) {
            return;
        }
        self.asked.insert(ask, now);
        self.put(ask);
    }

    fn ask_firewall(&mut self, netns: Netns, ask: Ask, now: u64, firewalls: &mut Firewalls) {
        match firewalls.ask(netns, now) {
            Next::Now => self.put(ask),
            Next::At(later) if self.later.len() < MAX_ASKED => _ = self.later.insert((later, ask)),
            Next::AfterAnswer if self.after_answer.len() < MAX_ASKED => _ = self.after_answer.insert(netns, (now, ask)),
            Next::At(_) | Next::AfterAnswer | Next::Due => {}
        }
    }

    /// In a replay nobody takes the questions: they must not pile up.
    fn put(&mut self, ask: Ask) {
        if self.asks.len() < MAX_ASKED {
            self.asks.insert(ask);
        }
    }

    /// Those that are to be put now.
    pub(super) fn take(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks).into_iter().collect()
    }

    /// When the first of those is due that wait.
    pub(super) fn due(&self) -> Option<u64> {
        first_due(&self.later).into_iter().chain(first_due(&self.patience)).min()
    }
}

impl Core {
    /// Asks, unless that was asked a moment ago.
    pub(super) fn ask(&mut self, ask: Ask, now: u64) {
        self.questions.ask(ask, now, &mut self.node.firewalls);
    }

    /// A firewall was read: asks again for what came while it was.
    pub(super) fn ask_after_answer(&mut self, netns: Netns, now: u64) {
        if let Some((asked, ask)) = self.questions.after_answer.remove(&netns)
            && !self.node.firewalls.covers(netns, asked)
        {
            self.ask(ask, now);
        }
    }

    /// Asks what is due by now.
    pub(super) fn ask_due(&mut self, now: u64) {
        while let Some((_, ask)) = take_due(&mut self.questions.later, now) {
            self.ask(ask, now);
        }
        while let Some((time, conn)) = take_due(&mut self.questions.patience, now) {
            self.ask_about(conn, time);
        }
    }

    /// When the target of an attempt is to be looked at; `None`: no more.
    pub(super) fn look_later(&mut self, conn: ConnId, due: Option<u64>) {
        if let Some(before) = self.correlator.look_at(conn, due.unwrap_or_default()) {
            self.questions.patience.remove(&(before, conn));
        }
        self.questions.patience.extend(due.map(|due| (due, conn)));
    }

    /// An attempt still waits: what is the state of its target? Asked again while it waits for an answer.
    fn ask_about(&mut self, conn: ConnId, now: u64) {
        let again = self.correlator.get(conn).and_then(|a| waits_for_answer(a, &self.node));
        if again.is_some_and(|since| now < since.saturating_add(LOOK_UNTIL_NS)) {
            self.look_later(conn, Some(now.saturating_add(LOOK_EVERY_NS)));
        }
        let waits = |a: &&Attempt| a.ended.is_none() && (a.established.is_none() || again.is_some());
        let awaited = if again.is_some() { Awaited::Answer } else { Awaited::Handshake };
        let waiting = self.correlator.get(conn).filter(waits);
        let target = waiting.and_then(|a| Some(target(a.netns?, a.flow.dst, &self.node, awaited)));
        if let Some(target) = target {
            self.ask(target, now);
        }
    }
}

/// Since when a pod that a prober reached owes it an answer.
pub(super) fn waits_for_answer(attempt: &Attempt, node: &Node) -> Option<u64> {
    let waits = attempt.ended.is_none() && attempt.prober && node.has_pod(attempt.flow.dst.ip());
    attempt.established.filter(|_| waits)
}

/// What this observation of an attempt makes one want to know.
pub(super) fn asks(attempt: &Attempt, node: &Node, observation: &Observation) -> Vec<Ask> {
    let unanswered =
        || enrich::failed(attempt, node) && enrich::asks_grpc(attempt, node) && attempt.established.is_some();
    let tls = (attempt.touched_only() || unanswered()).then(|| Ask::Tls(attempt.flow.dst.port()));
    let firewall = match &observation.fact {
        Fact::Drop(drop) if is_netfilter(drop) => drop.netns.map(|netns| Ask::Firewall(netns, drop.flow)),
        Fact::Icmp(icmp) if icmp.flags.is_syn() => icmp.netns.map(|netns| Ask::Firewall(netns, icmp.flow)),
        _ => None,
    };
    let unread = attempt.prober
        && attempt.ended.is_some()
        && attempt.received().is_some_and(|n| n > 0)
        && attempt.answer().is_none();
    // Once for each pod, while it is well: where its namespace is, and what it looks like.
    let dst = attempt.flow.dst;
    let well = observation_establishes(observation) && attempt.prober && node.has_pod(dst.ip());
    let target = attempt.netns.filter(|from| well && node.netns_of_addr(*from, dst.ip()).is_none());
    let target = target.map(|from| self::target(from, dst, node, Awaited::Answer));
    let answers = (unread || is_first(observation)).then_some(Ask::Answers(attempt.actor.pid));
    let ports = attempt.without_port().then_some(Ask::Ports);
    tls.into_iter().chain(firewall).chain(answers).chain(target).chain(ports).collect()
}

fn target(from: Netns, dst: SocketAddr, node: &Node, awaited: Awaited) -> Ask {
    Ask::Target(from, dst, node.pods.netns_at(dst.ip()), awaited)
}

/// A prober dials.
fn is_first(observation: &Observation) -> bool {
    matches!(&observation.fact, Fact::Connect(connect) if connect.prober)
}

fn observation_establishes(observation: &Observation) -> bool {
    matches!(&observation.fact, Fact::State(s) if s.new == TcpState::Established)
}
