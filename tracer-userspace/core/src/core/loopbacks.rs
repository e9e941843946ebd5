//! `localhost` has two addresses. If the first one fails, the prober tries the second one, and the probe can succeed.

use super::Core;
use super::records::withdraw;
use super::verdicts::Decided;
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_case::finding::Finding;
use tracer_model::decision::Decision;
use tracer_model::event::ConnId;

/// How long after the first connect the second may begin. Go's dialer does not wait if the first fails. If it hangs, Go
/// waits 300 ms (net.Dialer, `FallbackDelay`).
const FALLBACK_NS: u64 = 1_000_000_000;

impl Core {
    /// This attempt was connected. The earlier one to the other loopback address is then no failure of the probe,
    /// whatever the answer to this one was.
    pub(super) fn withdraw_other_loopback(&mut self, conn: ConnId, out: &mut Vec<Decision>) {
        let reached = |it: &&Attempt| it.prober && it.established.is_some() && it.flow.dst.ip().is_loopback();
        let Some(attempt) = self.correlator.get(conn).filter(reached) else { return };
        // A probe that names one address tries no other. A failure that the kubelet reported is one.
        let may_go_on = |it: &Attempt| it.kubelet().is_none() && Matched::new(it, &self.node).may_be_localhost();
        let is_before = |it: &&Attempt| is_first_try(it, attempt) && may_go_on(it);
        let before: Vec<&Attempt> = self.correlator.all().filter(is_before).collect();
        let open = |it: &Attempt| self.verdicts.failure(it.conn).filter(|d| d.in_handshake && !d.revised);
        let withdrawn: Vec<(ConnId, Finding)> =
            before.into_iter().filter_map(|it| Some((it.conn, other_address(it, attempt, open(it)?)))).collect();
        for (other, finding) in withdrawn {
            self.remember(other, &finding, true);
            self.emit_verdict(other, finding, Vec::new(), true, out);
            if let Some(attempt) = self.correlator.get(other) {
                self.failures.end(attempt, &Matched::new(attempt, &self.node).name());
            }
        }
    }
}

/// The prober tried the second address of `localhost` because the first one failed or hung.
pub(super) fn is_first_try(first: &Attempt, second: &Attempt) -> bool {
    let (one, other) = (first.flow.dst, second.flow.dst);
    let same = first.actor.pid == second.actor.pid && first.netns == second.netns && one.port() == other.port();
    let followed = first.started <= second.started && second.started - first.started < FALLBACK_NS;
    same && followed && one.ip().is_loopback() && one.is_ipv4() != other.is_ipv4()
}

fn other_address(first: &Attempt, second: &Attempt, before: Decided) -> Finding {
    let summary = format!(
        "{} failed, and the prober then connected to {}, as for `localhost`, which has both addresses",
        first.flow.dst, second.flow.dst
    );
    let fix =
        format!("Set the probe's host to {}, so that each attempt tries the right address first", second.flow.dst.ip());
    withdraw(before, second, summary, fix)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    fn refused_then_answered(first: &str, second: &str) -> Vec<Outcome> {
        let mut stream = Stream::to(first).connect().refused().again_to(9, second).clone();
        stream.connect().established().closes((100, 101, 200)).outcomes()
    }

    #[test]
    fn only_the_other_address_of_localhost_fails_if_it_answers_503() {
        let mut stream = Stream::to("[::1]:8080").connect().refused().again_to(9, "127.0.0.1:8080").clone();
        stream.connect().established().answers(503);
        let reported = stream.verdicts();
        let reported: Vec<_> = reported.iter().map(|it| (it.verdict.cause.name(), it.verdict.outcome)).collect();
        let refused = |outcome| ("connection_refused", outcome);
        let no = ("app_status_failure", Outcome::Failure);
        assert_eq!(reported, [no, refused(Outcome::Noise)]);
    }

    #[test]
    fn a_refusal_is_noise_if_the_other_address_of_localhost_answers() {
        assert_eq!(refused_then_answered("[::1]:8080", "127.0.0.1:8080"), [Outcome::Noise]);
        assert_eq!(refused_then_answered("[::1]:8080", "127.0.0.1:8081"), [Outcome::Failure], "another port");
        assert_eq!(refused_then_answered("[fd00::1]:8080", "127.0.0.1:8080"), [Outcome::Failure], "another host");
    }

    /// Two probes of one container: 127.0.0.1 by liveness, ::1 by readiness.
    #[test]
    fn a_probe_that_names_its_address_tries_no_other() {
        let decided = |host: &str| {
            let mut stream = Stream::to("127.0.0.1:8080").host_network_liveness("app", 10).clone();
            let probes = &mut stream.last_pods().pods[0].containers[0].probes;
            probes[0].host = Some(host.into());
            probes.push(ProbeSpec { host: Some("::1".into()), probe_type: ProbeType::Readiness, ..probes[0].clone() });
            stream.connect().refused().again_to(9, "[::1]:8080").connect().established().answers(200);
            stream.outcomes()
        };
        assert_eq!(decided("127.0.0.1"), [Outcome::Failure]);
        assert_eq!(decided("localhost"), [Outcome::Noise]);
    }
}
