//! Ends attempts of probes that have timed out while their sockets still connect.
//!
//! A kubelet built with Go 1.23 or newer (Kubernetes 1.32) leaves the socket of an httpGet probe in SYN_SENT until the
//! kernel gives up, two minutes later: `Transport.getConn` of net/http detaches the dial from its request.

use super::{Core, When};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, is_kubelet_name};

/// How long an attempt without a known timeout lasts, if the prober has begun another one to the same target since then.
/// Nearly all probes have shorter timeouts. SYNs are retransmitted three times until then.
pub(super) const REPLACED_NS: u64 = 10_000_000_000;
/// The shortest timeout of a probe. Earlier connects of the same prober are other probes.
const SHORTEST_NS: u64 = 1_000_000_000;

/// A prober that closes its socket closes it within this time after the timeout.
const SLACK_NS: u64 = 100_000_000;

impl Core {
    /// An attempt begins: schedules the end of its probe, if the timeout is known, else that of the attempts before it.
    pub(super) fn schedule_timeout(&mut self, conn: ConnId) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        match Matched::new(attempt, &self.node).longest_timeout_ns() {
            Some(timeout) => self.end_at(conn, attempt.started.saturating_add(timeout)),
            None if self.is_kubelets(attempt) => {
                let ends: Vec<(ConnId, u64)> = self.replaced_by(attempt).collect();
                ends.into_iter().for_each(|(conn, time)| self.end_at(conn, time));
            }
            None => {}
        }
    }

    /// A kubelet connects to a pod. Other probers close their sockets, or connect many times at once.
    fn is_kubelets(&self, attempt: &Attempt) -> bool {
        let is_listed = || self.node.pods.at(attempt.flow.dst.ip()).next().is_some();
        attempt.prober && is_kubelet_name(&attempt.actor.comm) && self.node.is_at_pod(attempt) && is_listed()
    }

    /// The earlier attempts of the same prober to the same target that still connect, and when they are over.
    fn replaced_by<'a>(&'a self, newer: &'a Attempt) -> impl Iterator<Item = (ConnId, u64)> + 'a {
        let is_same = |it: &Attempt| (it.actor.pid, it.flow.dst) == (newer.actor.pid, newer.flow.dst);
        let is_older = |it: &Attempt| it.started.saturating_add(SHORTEST_NS) <= newer.started;
        let waits =
            move |it: &&Attempt| is_same(it) && is_older(it) && it.established.is_none() && it.over_at.is_none();
        let open = self.correlator.open().filter(waits);
        open.map(|it| (it.conn, newer.started.max(it.started.saturating_add(REPLACED_NS))))
    }

    fn end_at(&mut self, conn: ConnId, time: u64) {
        let over = time.saturating_add(SLACK_NS);
        if self.waiting.add_timeout(over, conn) {
            self.correlator.over_at(conn, Some(over));
        }
    }

    /// Ends the attempts of probes that have timed out by now.
    pub(super) fn fire_timeouts(&mut self, now: u64, out: &mut Vec<Decision>) {
        while let Some((time, conn)) = self.waiting.next_timeout(now) {
            let over = time.saturating_sub(SLACK_NS);
            if self.can_classify(conn, now) && self.correlator.give_up(conn, over) {
                self.decide(conn, When::Settled(now), out);
                self.end(conn, over, out);
            }
        }
    }

    /// The attempt is established or over, so its own end will be seen.
    pub(super) fn cancel_timeout(&mut self, conn: ConnId) {
        if let Some(over) = self.correlator.over_at(conn, None) {
            self.waiting.forget_timeout(over, conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// The kubelet writes the Event when the probe times out. tracer reads it a moment later.
    #[test]
    fn an_event_is_joined_to_an_attempt_that_still_connects() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().wait_ms(1_150).tick().kubelet_event(ProbeOutput::Timeout, 147);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Timeout)]);
        assert_eq!(stream.causes(), ["unexplained"], "and revises nothing");
    }

    #[test]
    fn an_attempt_waits_for_its_end_if_it_may_not_have_timed_out() {
        let causes = |stream: &mut Stream| stream.tick().causes();
        assert!(causes(Stream::new().connect().wait_ms(60_000)).is_empty(), "its timeout is unknown");
        let lossy = causes(Stream::new().http_readiness().connect().wait_ms(500).lost(1).wait_ms(1_000));
        assert!(lossy.is_empty(), "events were lost");
        let established = causes(Stream::new().http_readiness().connect().wait_ms(900).established().wait_ms(300));
        assert!(established.is_empty());
    }

    /// Without the specs of the pod: the next attempt shows that this one is over.
    #[test]
    fn an_attempt_without_a_known_timeout_ends_with_the_next_one() {
        let next = |wait_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness_on(9_090).connect().wait_ms(wait_ms).again(8).connect();
            stream
        };
        let mut stream = next(10_000);
        assert_eq!(stream.wait_ms(150).tick().causes(), ["unexplained"]);
        let mut soon = next(2_000);
        assert!(soon.wait_ms(7_900).tick().causes().is_empty(), "it may have a long timeout");
        assert_eq!(soon.wait_ms(250).tick().causes(), ["unexplained"]);
        let mut at_once = next(900);
        assert!(at_once.wait_ms(20_000).tick().causes().is_empty(), "another probe");
    }
}
