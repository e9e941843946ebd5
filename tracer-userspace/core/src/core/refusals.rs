//! Refusals in a row, and the refused attempts that wait for a process to listen.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::verdicts::Decided;
use super::{Core, MAX_COUNTERS};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::{self, Matched};
use tracer_case::Streak;
use tracer_case::finding::Finding;
use tracer_model::event::{ConnId, Netns, ProbeType};
use tracer_model::recent::Recent;
use tracer_model::record::{Cause, Trait};

/// How long a refused attempt is kept. It is classified again when a process begins to listen on its port.
const KEEP_REFUSED_NS: u64 = 300_000_000_000;

/// Refusals in a row, by address and namespace of the target.
#[derive(Debug, Default)]
pub(super) struct Refusals(Recent<(SocketAddr, Option<Netns>), Refused, MAX_COUNTERS>);

/// Refusals in a row.
#[derive(Debug)]
struct Refused {
    streak: Streak,
    /// The id of the probed container.
    container: Option<String>,
    /// It has a startup or liveness probe, which can end its start.
    can_be_ended: bool,
    /// The process that made the attempts: the kubelet, which begins at zero when it restarts.
    prober: u32,
    /// When the attempt began that spent the budget of the start. Later ones are of the next run.
    spent: Option<u64>,
}

impl Refusals {
    /// Refusals in a row before this attempt, by the same namespace and the same run of the container.
    pub(super) fn streak(&self, attempt: &Attempt, node: &Node) -> Option<Streak> {
        let namespace = refused_in(attempt);
        let is_same = |it: &&Refused| it.spent.is_none_or(|at| attempt.started <= at) && it.prober == attempt.actor.pid;
        let refused = self.0.get(&(attempt.flow.dst, namespace)).filter(is_same)?;
        let Refused { streak, container, .. } = refused;
        let matched = Matched::new(attempt, node);
        let id = matched.probed_container().and_then(|(_, it)| it.id.as_ref());
        if id.is_some() && container.is_some() && id != container.as_ref() {
            return None;
        }
        let one_run = streak.one_run && id.is_some() && container.is_some();
        let streak = Streak { one_run, ..*streak };
        let made = || namespace.and_then(|netns| node.namespaces.made(netns));
        streak.in_run(matched.run_began(attempt.started).or_else(made))
    }

    /// The containers that refuse in this namespace and that a probe may soon end, by their ids.
    pub(super) fn refusing_in(&self, netns: Netns) -> BTreeSet<String> {
        let refused = self.0.range(..).filter(|((_, at), _)| *at == Some(netns));
        let refused = refused.filter(|(_, it)| it.can_be_ended && it.spent.is_none());
        refused.filter_map(|(_, it)| it.container.clone()).collect()
    }

    fn refused(&mut self, attempt: &Attempt, node: &Node, is_retry: bool) {
        let matched = Matched::new(attempt, node);
        let other = matched.other_reason().is_some();
        // k3s and others run the kubelet and the API server in one process. Its first connect to a pod may be either's.
        if other && !enrich::has_api_server(attempt) {
            return;
        }
        let last = attempt.started;
        let before = self.streak(attempt, node);
        let streak = before.map_or(Streak::of_one(last), |s| Streak { last, ..next(s, is_retry) });
        let streak = Streak { of_probes: streak.of_probes && !other, ..streak };
        let probed = matched.probed_container().map(|(_, it)| it);
        let container = probed.and_then(|it| it.id.clone());
        let can_be_ended =
            probed.is_some_and(|it| it.probes.iter().any(|spec| spec.probe_type != ProbeType::Readiness));
        let refused = Refused { streak, container, can_be_ended, prober: attempt.actor.pid, spent: None };
        self.0.insert((attempt.flow.dst, refused_in(attempt)), refused);
    }

    /// The attempt spent the budget of a start: the kubelet ends this run.
    fn spent(&mut self, attempt: &Attempt) {
        if let Some(refused) = self.0.get_mut(&(attempt.flow.dst, refused_in(attempt))) {
            refused.spent = Some(attempt.started);
        }
    }

    pub(super) fn end(&mut self, dst: SocketAddr) {
        let over = self.0.range((dst, None)..).take_while(|((at, _), _)| *at == dst).map(|(key, _)| *key);
        for key in over.collect::<Vec<_>>() {
            self.0.remove(&key);
        }
    }
}

impl Core {
    /// Keeps a refused attempt: if a process begins to listen there, the refusal only came too early.
    pub(super) fn remember_refusal(&mut self, conn: ConnId, finding: &Finding, counted: bool) {
        self.note_refusal(conn, finding, counted);
        if finding.cause == Cause::StartupBudgetExceeded
            && let Some(attempt) = self.correlator.get(conn)
        {
            self.failures.refusals.spent(attempt);
        }
    }

    /// The attempt counts in the streak already, or it was reported as another failure.
    pub(super) fn is_counted_refusal(&self, conn: ConnId) -> bool {
        let is_refusal = |it: Decided| it.cause.has(Trait::NoListener);
        self.verdicts.is_emitted(conn) || self.verdicts.of(conn).is_some_and(is_refusal)
    }

    fn note_refusal(&mut self, conn: ConnId, finding: &Finding, counted: bool) {
        let Some(attempt) = self.correlator.get(conn).filter(|_| !counted) else { return };
        // A redirect can lead to a port on which nobody listens yet.
        let is_redirect = finding.cause == Cause::ProbeMisconfigured;
        if !(finding.cause.has(Trait::NoListener) || is_redirect) || attempt.established.is_some() {
            return;
        }
        if !is_redirect {
            let is_retry = self.is_grpc_retry(attempt);
            self.failures.refusals.refused(attempt, &self.node, is_retry);
        }
        let may_listen = is_redirect || finding.cause == Cause::ConnectionRefused;
        if let Some(netns) = refused_in(attempt).filter(|_| may_listen) {
            self.waiting.wait_for_listener(netns, attempt.flow.dst.port(), conn);
            self.correlator.keep(conn, attempt.started.saturating_add(KEEP_REFUSED_NS));
        }
    }
}

/// The namespace in which no process listened. The address alone may have belonged to another pod. An earlier SYN may
/// have been dropped elsewhere.
fn refused_in(attempt: &Attempt) -> Option<Netns> {
    let refused = attempt.drops().find(|(_, drop)| drop.reason.as_deref() == Some("NO_SOCKET"));
    let by_drop = || refused.or_else(|| attempt.drops().last()).and_then(|(_, drop)| drop.netns);
    attempt.resets_sent().find_map(|(_, r)| r.netns).or_else(by_drop)
}

/// The streak with one more attempt, unless that attempt is counted already.
pub(super) const fn next(streak: Streak, counted: bool) -> Streak {
    Streak { count: streak.count + !counted as u32, ..streak }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// Tracepoints only: no event shows the RST. A rule of the node dropped the first SYN.
    #[test]
    fn a_refusal_is_of_the_namespace_that_refused() {
        let mut stream = Stream::new().http_readiness().netns_made(POD).pod_in(POD).missing(Hook::TcpSendReset).clone();
        stream.connect().filtered(SYN, NODE).wait_ms(1_000).syn_again().drop_in(SYN, "NO_SOCKET", POD, "tcp_v4_rcv");
        stream.reset_received(TcpState::SynSent, 0);
        stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0)).wait_ms(2_000);
        stream.listens(POD, 8080, true).settles();
        assert_eq!(stream.causes().last(), Some(&"not_listening_yet"));
    }
}
