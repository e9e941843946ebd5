//! What the core asks of the node, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::Core;
use super::waiting::{first_due, take_due};
use crate::classify::REDIRECT_NS;
use crate::classify::evidence::is_netfilter;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::firewalls::{Firewalls, Next};
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Matched;
use tracer_model::event::{ConnId, Netns, Observation, ObservationKind, TcpState};
use tracer_model::query::{Awaited, Query, TargetQuery};
use tracer_model::recent::Recent;

/// A handshake on a node takes less than a millisecond: after this the target is looked at.
pub(super) const PATIENCE_NS: u64 = 200_000_000;
/// While a pod owes an answer it is looked at so often at first, and no longer than for the longest usual timeout: the
/// kubelet's own connections stay for hours.
const INSPECT_EVERY_NS: u64 = 300_000_000;
const INSPECT_UNTIL_NS: u64 = 60_000_000_000;

/// The same question is not asked more often.
const REQUERY_NS: u64 = 1_000_000_000;
/// A prober that is known may have been moved to another cgroup.
const MOVED_NS: u64 = 10_000_000_000;
/// A target's state is another one soon: less than the patience, so that every attempt that waits has it looked at.
const REINSPECT_NS: u64 = 100_000_000;
/// While a target refuses, it is asked so often who holds its port.
const REFUSED_NS: u64 = 5_000_000_000;
const MAX_QUERIES: usize = 1024;

/// What is to be asked, what was, and when.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// To be put now.
    wanted: BTreeSet<Query>,
    /// To be put later, each with its time.
    later: BTreeSet<(u64, Query)>,
    /// When to ask about targets that have not answered.
    patience: BTreeSet<(u64, ConnId)>,
    /// To be put once more when the answer has come that is on its way, since when.
    after_answer: BTreeMap<Netns, (u64, Query)>,
    /// When each was last put.
    last_issued: Recent<Query, u64, MAX_QUERIES>,
}

impl Queries {
    /// Asks, unless that was asked a moment ago.
    fn query(&mut self, query: Query, now: u64, firewalls: &mut Firewalls) {
        let again = match query {
            Query::Firewall(netns, _) => return self.query_firewall(netns, query, now, firewalls),
            Query::Target(target) if target.awaited != Awaited::Nothing => REINSPECT_NS,
            Query::Answers(_) => MOVED_NS,
            Query::PortHolders(..) => REFUSED_NS,
            _ => REQUERY_NS,
        };
        let same = like(query);
        if self.last_issued.get(&same).is_some_and(|at| now < at.saturating_add(again)) {
            return;
        }
        self.last_issued.insert(same, now);
        self.put(query);
    }

    fn query_firewall(&mut self, netns: Netns, query: Query, now: u64, firewalls: &mut Firewalls) {
        match firewalls.query(netns, now) {
            Next::Now => self.put(query),
            Next::At(later) if self.later.len() < MAX_QUERIES => _ = self.later.insert((later, query)),
            Next::AfterAnswer if self.after_answer.len() < MAX_QUERIES => {
                _ = self.after_answer.insert(netns, (now, query))
            }
            Next::At(_) | Next::AfterAnswer | Next::Due => {}
        }
    }

    /// In a replay nobody takes the questions: they must not pile up.
    fn put(&mut self, query: Query) {
        if self.wanted.len() < MAX_QUERIES {
            self.wanted.insert(query);
        }
    }

    /// Those that are to be put now.
    pub(super) fn take(&mut self) -> Vec<Query> {
        std::mem::take(&mut self.wanted).into_iter().collect()
    }

    /// When the first of those is due that wait.
    pub(super) fn due(&self) -> Option<u64> {
        first_due(&self.later).into_iter().chain(first_due(&self.patience)).min()
    }
}

impl Core {
    /// Asks, unless that was asked a moment ago.
    pub(super) fn query(&mut self, query: Query, now: u64) {
        self.queries.query(query, now, &mut self.node.firewalls);
    }

    /// A firewall was read: asks again for what came while it was.
    pub(super) fn query_after_answer(&mut self, netns: Netns, now: u64) {
        if let Some((last_issued, query)) = self.queries.after_answer.remove(&netns)
            && !self.node.firewalls.covers(netns, last_issued)
        {
            self.query(query, now);
        }
    }

    /// Asks what is due by now.
    pub(super) fn issue_due(&mut self, now: u64) {
        while let Some((_, query)) = take_due(&mut self.queries.later, now) {
            self.query(query, now);
        }
        while let Some((time, conn)) = take_due(&mut self.queries.patience, now) {
            self.query_target(conn, time);
        }
    }

    /// When the target of an attempt is to be looked at; `None`: no more.
    pub(super) fn schedule_inspection(&mut self, conn: ConnId, due: Option<u64>) {
        if let Some(before) = self.correlator.inspect_at(conn, due.unwrap_or_default()) {
            self.queries.patience.remove(&(before, conn));
        }
        self.queries.patience.extend(due.map(|due| (due, conn)));
    }

    /// An attempt still waits: what is the state of its target? Asked again while it waits for an answer.
    fn query_target(&mut self, conn: ConnId, now: u64) {
        let again = self.correlator.get(conn).and_then(|a| waits_for_answer(a, &self.node));
        if let Some(due) = again.and_then(|since| next_inspection(since, now)) {
            self.schedule_inspection(conn, Some(due));
        }
        let waits = |a: &&Attempt| a.ended.is_none() && (a.established.is_none() || again.is_some());
        let awaited = if again.is_some() { Awaited::Answer } else { Awaited::Handshake };
        let waiting = self.correlator.get(conn).filter(waits);
        let query = waiting.and_then(|a| {
            Some(TargetQuery { peer: Some(a.flow.src), ..target(a.netns?, a.flow.dst, &self.node, awaited) })
        });
        if let Some(query) = query {
            self.query(Query::Target(query), now);
        }
    }
}

/// Which questions are the same: whichever attempt to a pod is over, it is the pod that is read.
const fn like(query: Query) -> Query {
    match query {
        Query::Target(target) if matches!(target.awaited, Awaited::Nothing) => {
            Query::Target(TargetQuery { peer: None, ..target })
        }
        query => query,
    }
}

/// When a pod that has owed an answer since then is looked at next. The wait grows with the time: few readings cover most of a
/// long attempt, and the last of them is near its end.
fn next_inspection(since: u64, now: u64) -> Option<u64> {
    let waited = now.saturating_sub(since);
    (waited < INSPECT_UNTIL_NS).then(|| now.saturating_add(INSPECT_EVERY_NS.max(waited / 4)))
}

/// Since when a pod that a prober reached owes it an answer.
pub(super) fn waits_for_answer(attempt: &Attempt, node: &Node) -> Option<u64> {
    let waits = attempt.ended.is_none() && attempt.prober && node.has_pod(attempt.flow.dst.ip());
    attempt.established.filter(|_| waits)
}

/// What this observation of an attempt makes one want to know.
pub(super) fn wanted(attempt: &Attempt, node: &Node, observation: &Observation) -> Vec<Query> {
    let matched = Matched::new(attempt, node);
    let unanswered = || matched.failed() && matched.expects_grpc() && attempt.established.is_some();
    let tls = (attempt.touched_only() || unanswered()).then(|| Query::Tls(attempt.flow.dst.port()));
    let firewall = match &observation.kind {
        ObservationKind::Drop(drop) if is_netfilter(drop) => drop.netns.map(|netns| Query::Firewall(netns, drop.flow)),
        ObservationKind::Icmp(icmp) if icmp.flags.is_syn() => icmp.netns.map(|netns| Query::Firewall(netns, icmp.flow)),
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
    let target = target.map(|from| Query::Target(self::target(from, dst, node, Awaited::Answer)));
    let over = attempt.netns.filter(|from| is_worth_reading(attempt, node, observation, *from));
    let over = over.map(|from| {
        let query = self::target(from, dst, node, Awaited::Nothing);
        Query::Target(TargetQuery { peer: Some(attempt.flow.src), ..query })
    });
    let answers = (unread || is_first(observation)).then_some(Query::Answers(attempt.actor.pid));
    let ports = attempt.without_port().then_some(Query::Ports);
    let holders = refused_in(observation).filter(|_| attempt.prober).map(|netns| Query::PortHolders(netns, dst.port()));
    tls.into_iter().chain(firewall).chain(answers).chain(target).chain(over).chain(ports).chain(holders).collect()
}

/// The sockets of the pod may say why this attempt failed, or whom it met. What they say comes beside the next one's cause: this
/// one's does not wait.
fn is_worth_reading(attempt: &Attempt, node: &Node, observation: &Observation, from: Netns) -> bool {
    let refused = match &observation.kind {
        ObservationKind::Answer(answer) => answer.status.is_some_and(|status| status >= 400),
        _ => attempt.ended.is_some() && Matched::new(attempt, node).failed(),
    };
    let unknown = || match node.pod_sockets(from, attempt.flow.dst) {
        Some((time, seen)) => {
            seen.redirect.is_some() && observation.time_boot_ns > time.saturating_add(REDIRECT_NS / 2)
        }
        None => true,
    };
    let touched = || attempt.touched_only() && unknown();
    attempt.prober && node.has_pod(attempt.flow.dst.ip()) && (refused || touched())
}

fn target(from: Netns, target: SocketAddr, node: &Node, awaited: Awaited) -> TargetQuery {
    TargetQuery { from, target, reported: node.pods.netns_at(target.ip()), awaited, peer: None }
}

/// The namespace in which no socket was found for a SYN.
fn refused_in(observation: &Observation) -> Option<Netns> {
    match &observation.kind {
        ObservationKind::ResetSent(reset) if reset.no_socket && reset.answered.is_syn() => reset.netns,
        ObservationKind::Drop(drop) if drop.flags.is_syn() && drop.reason.as_deref() == Some("NO_SOCKET") => drop.netns,
        _ => None,
    }
}

/// A prober dials.
fn is_first(observation: &Observation) -> bool {
    matches!(&observation.kind, ObservationKind::Connect(connect) if connect.prober)
}

fn observation_establishes(observation: &Observation) -> bool {
    matches!(&observation.kind, ObservationKind::State(s) if s.new == TcpState::Established)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reading_is_near_the_end_of_a_long_attempt() {
        let ms = |ns: u64| ns / 1_000_000;
        let since = 7_000_000_000;
        let times = std::iter::successors(Some(since + PATIENCE_NS), |now| next_inspection(since, *now));
        let times: Vec<u64> = times.map(|it| it - since).collect();
        assert_eq!(times.iter().take(5).map(|it| ms(*it)).collect::<Vec<_>>(), [200, 500, 800, 1_100, 1_400]);
        for timeout_s in [2, 5, 10, 30, 60] {
            let end = timeout_s * 1_000_000_000;
            let last = times.iter().copied().filter(|it| *it < end).max().unwrap_or_default();
            assert!(end - last <= 300_000_000.max(end / 5), "{timeout_s} s: {} ms", ms(last));
        }
        assert!(times.len() < 30, "{}", times.len());
    }
}
