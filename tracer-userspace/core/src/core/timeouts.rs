//! Attempts that go on after their probe has timed out: their sockets still dial.
//!
//! A kubelet built with Go 1.23 or newer (Kubernetes 1.32) leaves the socket of an httpGet probe in SYN_SENT until the kernel
//! gives up, two minutes later: `Transport.getConn` of net/http detaches the dial from its request.

use super::{Core, When};
use tracer_attempts::enrich::Matched;
use tracer_model::decision::Decision;
use tracer_model::event::ConnId;

/// A prober that closes its socket does so by then.
const SLACK_NS: u64 = 100_000_000;

impl Core {
    /// An attempt begins: notes when its probe is over at the latest, if that is known.
    pub(super) fn expect_end(&mut self, conn: ConnId) {
        let Some(attempt) = self.correlator.get(conn) else { return };
        let Some(timeout) = Matched::new(attempt, &self.node).longest_timeout_ns() else { return };
        let over = attempt.started.saturating_add(timeout).saturating_add(SLACK_NS);
        if self.waiting.time_out_at(over, conn) {
            self.correlator.over_at(conn, Some(over));
        }
    }

    /// Ends the attempts of probes that are over by now.
    pub(super) fn fire_timeouts(&mut self, now: u64, out: &mut Vec<Decision>) {
        while let Some((time, conn)) = self.waiting.next_timeout(now) {
            // Over it was when it timed out.
            let over = time.saturating_sub(SLACK_NS);
            if self.surely_waits(conn, now) && self.correlator.give_up(conn, over) {
                self.decide(conn, When::Settled(now), out);
                self.end(conn, over, out);
            }
        }
    }

    /// It is established, or over: it ends by itself.
    pub(super) fn expect_no_end(&mut self, conn: ConnId) {
        if let Some(over) = self.correlator.over_at(conn, None) {
            self.waiting.forget_timeout(over, conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    #[test]
    fn a_probe_is_over_when_it_timed_out_though_its_socket_dials_on() {
        let mut stream = Stream::new().http_readiness().connect().wait_ms(1_050).tick().clone();
        assert!(stream.causes().is_empty(), "a prober that closes has the time to");
        stream.wait_ms(100).tick();
        assert_eq!(stream.causes(), ["unexplained"]);
        stream.syn_again().established().closes((0, 1, 0)).wait_ms(50).tick();
        assert_eq!(stream.causes(), ["unexplained"], "reported once");
    }

    /// It is written when the probe times out, and read a moment later.
    #[test]
    fn the_kubelets_word_is_joined_to_it() {
        let mut stream = Stream::new();
        stream.http_readiness().connect().wait_ms(1_150).tick().kubelet_event(ProbeOutput::Timeout, 147);
        assert_eq!(stream.joined(), [(7, ProbeOutput::Timeout)]);
        assert_eq!(stream.causes(), ["unexplained"], "and revises nothing");
    }

    #[test]
    fn what_has_no_timeout_that_is_known_waits_for_its_end() {
        assert!(Stream::new().connect().wait_ms(60_000).tick().causes().is_empty());
    }

    #[test]
    fn what_may_have_been_answered_is_judged_by_its_end() {
        let stream = Stream::new().http_readiness().connect().wait_ms(500).lost(1).wait_ms(1_000).tick().clone();
        assert!(stream.causes().is_empty());
    }

    #[test]
    fn what_is_established_ends_by_itself() {
        let stream = Stream::new().http_readiness().connect().wait_ms(900).established().wait_ms(300).tick().clone();
        assert!(stream.causes().is_empty());
    }
}
