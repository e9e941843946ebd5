//! When a verdict is revised: for a nearer cause, for another outcome, or because the earlier one is no longer right.

use super::Core;
use super::verdicts::Decided;
use tracer_attempts::correlate::attempt::{Attempt, End};
use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::Matched;
use tracer_case::finding::{Finding, Progress};
use tracer_common::names::Hook;
use tracer_model::event::ConnId;
use tracer_model::record::{Cause, Confidence, Outcome, Stage, Trait, Verdict};

/// A SYN without an answer is sent again after one second (`TCP_TIMEOUT_INIT`), and later on a busy node.
const SYN_DUE_NS: u64 = 1_500_000_000;

impl Decided {
    /// The handshake was classified as a failure, but a retransmitted SYN got through, and nothing shows that it was
    /// late.
    pub(super) fn recovered(&self, attempt: &Attempt, node: &Node) -> bool {
        let matched = Matched::new(attempt, node);
        self.outcome == Outcome::Failure
            && self.in_handshake
            && attempt.ended.is_some()
            && attempt.established.is_some()
            && !matched.failed()
            && !is_reported(attempt)
            && !matched.is_unknown_end()
    }

    /// When the attempt completed the handshake, if it is about what stopped that.
    fn completed(&self, attempt: &Attempt) -> Option<u64> {
        let of_syn = self.in_handshake && self.rests_on_lost_packet && self.outcome == Outcome::Failure;
        attempt.established_at().filter(|_| of_syn)
    }

    /// The cause is no full accept queue, or a process has accepted the connection since then.
    fn left_queue(&self, attempt: &Attempt) -> bool {
        self.cause != Cause::AcceptQueueOverflow || attempt.received().is_some_and(|bytes| bytes > 0)
    }

    /// What had stopped the handshake used up most of the time, and the prober gave up on an answer.
    pub(super) fn note_late_handshake(&self, attempt: &Attempt, verdict: &mut Verdict) {
        let asked = attempt.sent().is_some_and(|n| n > 0) && self.left_queue(attempt);
        let Some(at) = self.completed(attempt).filter(|_| asked) else { return };
        if attempt.ended.is_some_and(|(ended, _)| !attempt.is_past_handshake(ended)) {
            let after_ms = at.saturating_sub(attempt.started) as f64 / 1e6;
            verdict.summary += &format!(
                "; a later SYN got through {after_ms:.1} ms after the first, when most of the time had gone into the handshake"
            );
            verdict.confidence = verdict.confidence.min(Confidence::Likely);
        }
    }

    /// The prober gave up after a SYN was due that its kernel did not send. The kernel has no route by then, or the SYN
    /// before still waits in a queue (`__tcp_retransmit_skb`, net/ipv4/tcp_output.c). What stopped that may be gone.
    /// If a link or a route was missing before, that explains both.
    pub(super) fn note_missing_syn(&self, attempt: &Attempt, node: &Node, verdict: &mut Verdict) {
        let of_syn = self.in_handshake && self.rests_on_lost_packet && self.outcome == Outcome::Failure;
        let of_route = self.cause.has(Trait::EndsWithNetwork) || self.cause == Cause::LoopbackDown;
        let proven = verdict.confidence == Confidence::Proven && of_syn && !of_route;
        let ended = match attempt.ended {
            Some((at, End::NotEstablished)) => Some(at),
            // The kubelet may report the failure before its socket is closed.
            None if attempt.established.is_none() => attempt.kubelet().map(|(_, it)| it.written_boot_ns),
            _ => None,
        };
        let Some(ended) = ended.filter(|_| proven) else { return };
        let is_unseen = attempt.is_held
            || attempt.is_full()
            || node.lost_between(attempt.started, ended) > 0
            || !node.missing_at(&[Hook::TcpRetransmit], attempt.started, |_| true).is_empty();
        let last = attempt.last_packet(ended).unwrap_or(attempt.started).saturating_sub(attempt.started);
        // The time between two SYNs doubles, or stays a second (`tcp_syn_linear_timeouts`).
        // A timer fires up to an eighth late (kernel/time/timer.c).
        let due = last.saturating_mul(2).saturating_add(last / 8).saturating_add(SYN_DUE_NS);
        if !is_unseen && ended > attempt.started.saturating_add(due) {
            verdict.summary += &format!(
                "; the prober's kernel sent no SYN after {:.1} ms, when one was due: another fault may be the cause since, such as a missing route",
                last as f64 / 1e6
            );
            verdict.confidence = Confidence::Likely;
        }
    }
}

impl Core {
    /// The verdict is about what had stopped an earlier SYN, and is no longer right: what came after the handshake fails
    /// the attempt. A connection that no process has accepted may wait in the queue that was full. A tcpSocket probe needs no
    /// process that accepts.
    pub(super) fn is_overcome(&self, conn: ConnId, now: u64) -> bool {
        let both = self.correlator.get(conn).zip(self.verdicts.of(conn));
        both.is_some_and(|(attempt, before)| {
            let left_queue = || before.left_queue(attempt) || Matched::new(attempt, &self.node).only_connects();
            before.completed(attempt).is_some() && attempt.is_past_handshake(now) && left_queue()
        })
    }

    /// A pending verdict is overcome, and what happened after the handshake decided this finding. It may have the same
    /// cause.
    pub(super) fn replaces_overcome(&self, conn: ConnId, finding: &Finding, now: u64) -> bool {
        let connected = self.correlator.get(conn).and_then(Attempt::established_at);
        connected.is_some_and(|at| finding.decided_at > at) && self.is_overcome(conn, now)
    }

    /// A revised verdict may be revised again in two cases: the attempt succeeded after all, or tracer reported a
    /// success and the kubelet then a failure.
    pub(super) fn may_revise_again(&self, conn: ConnId) -> bool {
        let both = self.correlator.get(conn).zip(self.verdicts.of(conn));
        both.is_some_and(|(attempt, before)| {
            before.recovered(attempt, &self.node) || before.outcome == Outcome::Noise && is_reported(attempt)
        })
    }
}

/// The kubelet reported that this attempt failed, or ended in an error.
fn is_reported(attempt: &Attempt) -> bool {
    attempt.kubelet().is_some()
}

/// A later finding replaces an earlier one if it names a nearer cause or another outcome, or if the earlier cause is no
/// longer right. `is_named`: no spec names the probe's protocol, and the kubelet outcome does.
pub(super) fn changes(before: Decided, finding: &Finding, also: &[Cause], is_named: bool) -> bool {
    if is_read_again(before, finding) {
        return false;
    }
    let by_protocol = matches!(finding.cause, Cause::TlsHandshakeSlow | Cause::ProbeMisconfigured);
    let is_known_now = is_named && by_protocol && finding.cause < before.cause;
    let changed = finding.outcome != before.outcome || is_nearer(before, finding) || is_known_now;
    changed
        || is_confirmed(before, finding)
        || is_overtaken(before, finding, also)
        || is_superseded(before, finding, also)
}

/// It is about the same packet, and only the rules were read again. Those may be newer than the packet.
fn is_read_again(before: Decided, finding: &Finding) -> bool {
    let by_rule = |it| matches!(it, Cause::FirewallDrop | Cause::FirewallReject | Cause::NetworkPolicyDrop);
    let is_same = (before.decided_at, before.outcome) == (finding.decided_at, finding.outcome);
    let is_covered = before.read_for.is_some() && before.read_for == finding.waits_for;
    by_rule(before.cause) && by_rule(finding.cause) && is_same && is_covered
}

/// The rules of the firewall have been read since then, and one of them rejects this packet.
fn is_confirmed(before: Decided, finding: &Finding) -> bool {
    let by_rule = (before.cause, finding.cause) == (Cause::FirewallReject, Cause::FirewallReject);
    let is_surer = before.confidence < Confidence::Proven && finding.confidence == Confidence::Proven;
    by_rule && is_surer && finding.decided_at == before.decided_at
}

/// A pending verdict blamed a rule for a dropped packet, and what was read since then contradicts it: the packet was a
/// copy for another port of the bridge. A later SYN that gets through contradicts nothing.
pub(super) fn is_refuted(before: &Decided, finding: &Finding, also: &[Cause]) -> bool {
    let of_rule = matches!(before.cause, Cause::FirewallDrop | Cause::NetworkPolicyDrop);
    of_rule && before.confidence < Confidence::Proven && finding.cause != before.cause && !also.contains(&before.cause)
}

/// What decided is of a later SYN: the kernel sends the next one after a second at the earliest (`TCP_TIMEOUT_INIT`).
pub(super) fn is_of_later_syn(before: Decided, finding: &Finding) -> bool {
    const APART_NS: u64 = 500_000_000;
    before.in_handshake && finding.decided_at > before.decided_at.saturating_add(APART_NS)
}

/// The cause comes first in the order of decision. If it is proven that the target was reached, a cause on the way to
/// it must be proven, too. A stopped server is no such cause: it is why its queue is full. Nor is a port that another
/// process has: that process is the target that was reached.
fn is_nearer(before: Decided, finding: &Finding) -> bool {
    let is_at_target = matches!(finding.cause, Cause::TargetFrozen | Cause::PortTaken);
    let reached = before.cause.has(Trait::Reached) && !is_at_target;
    let less_sure = before.confidence == Confidence::Proven && finding.confidence < before.confidence;
    finding.cause < before.cause && !(reached && less_sure)
}

/// The cause had stopped a SYN, or the answer to it, and a later packet got past that. What became of that one is the
/// cause. A full accept queue holds a connection that no process has accepted, or resets it (`tcp_abort_on_overflow`). A
/// neighbour or a route that is missing may be missing for the first cause, if that is the network's, too.
fn is_overtaken(before: Decided, finding: &Finding, also: &[Cause]) -> bool {
    let of_network = |cause: Cause| cause.has(Trait::EndsWithNetwork);
    let least = match before.cause {
        Cause::AcceptQueueOverflow => Progress::Accepted,
        cause if of_network(cause) && of_network(finding.cause) => Progress::Connected,
        _ => Progress::LaterSyn,
    };
    let got_past = finding.cause.has(Trait::Refusal) || before.in_handshake && finding.progress >= least;
    let stands = finding.cause == before.cause || also.contains(&before.cause);
    before.rests_on_lost_packet && before.outcome == Outcome::Failure && got_past && !stands
}

/// A later packet shows that the cause no longer holds: it is proven what stopped that one. A link was down, for example.
/// It is up again, and a firewall drops the next SYN. If the first cause was proven, too, the evidence must be of a later
/// SYN, or that SYN must have reached the listener. A neighbour or a route that is missing may be missing for the first
/// cause, if that is the network's, too.
fn is_superseded(before: Decided, finding: &Finding, also: &[Cause]) -> bool {
    let later_stage = matches!(finding.cause.stage(), Stage::Answer | Stage::Tls);
    let is_later = is_of_later_syn(before, finding);
    let of_network = |cause: Cause| cause.has(Trait::EndsWithNetwork);
    let got_further = !later_stage && !(of_network(finding.cause) && (of_network(before.cause) || !is_later));
    let surer = before.confidence < Confidence::Proven || finding.cause.has(Trait::Reached) || is_later;
    // That the process is stopped is likely; that its queue was full is proven, else it would not be in `also`.
    let queued = match finding.cause {
        Cause::TargetFrozen => also.contains(&Cause::AcceptQueueOverflow),
        // Its rule holds only if that queue was full.
        Cause::TargetStarved => before.cause == Cause::AcceptQueueOverflow,
        _ => false,
    };
    let proven = (finding.confidence == Confidence::Proven || queued) && got_further && surer;
    let stands = finding.cause == before.cause || also.contains(&before.cause);
    before.rests_on_lost_packet && before.outcome == Outcome::Failure && proven && !stands
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const PUSH: TcpFlags = TcpFlags(0x18);
    const LIVES: (u64, u64, u64) = (100, 101, 200);

    /// The first SYN is lost, the second one gets through 1 s later.
    fn connected_late(stream: &mut Stream, lose: impl FnOnce(&mut Stream)) {
        stream.connect();
        lose(stream);
        stream.wait_ms(1_000).syn_again().established();
    }

    fn queue(stream: &mut Stream) {
        stream.queue_full(ListenQueue::Accept);
    }

    fn loopback(stream: &mut Stream) {
        stream.drop_on(SYN, "QDISC_DROP", NODE, lo(false));
    }

    fn outcomes(stream: &Stream) -> Vec<(&'static str, Outcome, Confidence)> {
        let of = |it: &tracer_model::record::VerdictBody| {
            (it.verdict.cause.name(), it.verdict.outcome, it.verdict.confidence)
        };
        stream.verdicts().iter().map(of).collect()
    }

    /// The ruleset is replaced after the drop, and read again for another packet.
    #[test]
    fn a_rule_that_was_read_later_is_not_blamed_for_an_earlier_packet() {
        let reported = |dst: &str, first: &[&str]| {
            let mut stream = Stream::new().http_readiness().connect().filtered(SYN, POD).clone();
            stream.last_drop().flow.dst = address(dst);
            // Only the rules for that packet are read.
            let of_packet = Flow { src: address("10.88.0.1:0"), dst: address(dst) };
            let rules = |chain: &str| {
                let rules = vec![rule(chain, RuleVerdict::Drop)];
                firewall_with(POD, rules, |it| it.only_for = Some(of_packet))
            };
            first.iter().for_each(|chain| _ = stream.wait_ms(20).push(rules(chain)));
            stream.wait_ms(980).tick().push(rules("cali-fw-cali1234"));
            stream.gives_up().settles().wait_ms(1_500).tick().causes()
        };
        // The second address is behind a translation.
        for dst in ["10.88.0.2:8080", "10.88.0.9:80"] {
            assert_eq!(reported(dst, &["INPUT"]), ["firewall_drop"], "{dst}");
            assert_eq!(reported(dst, &[]), ["network_policy_drop"], "{dst}");
        }
    }

    /// The kernel skipped the program at the change to ESTABLISHED.
    #[test]
    fn a_connection_with_only_an_end_counts_as_established() {
        let mut stream = Stream::new().http_readiness().connect().clone();
        loopback(&mut stream);
        stream.wait_ms(1_000).syn_again().closes(LIVES);
        assert_eq!(outcomes(&stream).pop().map(|it| it.1), Some(Outcome::Noise));
    }

    /// The rule is gone, and then the route: the kernel sends no SYN again, and no event shows that.
    #[test]
    fn a_cause_that_is_older_than_a_missing_syn_is_less_sure() {
        let decided = |fill: fn(&mut Stream), ends_ms: u64| {
            let mut stream = Stream::new();
            let began = stream.connect().now();
            stream.filtered(SYN, POD).push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)])).settles();
            fill(&mut stream);
            stream.wait_ms(ends_ms - 1_000 - (stream.now() - began) / 1_000_000).gives_up();
            let verdict = stream.settles().verdict();
            assert_eq!(verdict.cause.name(), "firewall_drop");
            (verdict.confidence, verdict.summary.contains("the prober's kernel sent no SYN after"))
        };
        let again = |stream: &mut Stream| _ = stream.wait_ms(995).syn_again().filtered(SYN, POD);
        let (proven, likely) = ((Confidence::Proven, false), (Confidence::Likely, true));
        assert_eq!(decided(|_| (), 1_400), proven);
        assert_eq!(decided(|_| (), 1_700), likely);
        assert_eq!(decided(again, 3_400), proven, "the next one is due after three seconds");
        assert_eq!(decided(again, 3_800), likely);
        assert_eq!(decided(|stream| _ = stream.missing(Hook::TcpRetransmit), 3_800), proven);
        assert_eq!(decided(|stream| _ = stream.held(), 3_800), proven);
    }

    #[test]
    fn the_kubelets_outcome_does_not_make_such_a_cause_sure_again() {
        let mut stream = Stream::new().http_readiness().clone();
        stream.last_pods().pods[0].containers[0].probes[0].timeout_s = 2;
        stream.connect().filtered(SYN, POD).push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)])).settles();
        stream.wait_ms(995).gives_up().settles().kubelet(ProbeOutput::Timeout).settles();
        let all = stream.verdicts();
        let is_noted = |it: &Verdict| it.confidence == Confidence::Likely && it.summary.contains("sent no SYN");
        assert!(!all.is_empty() && all.iter().all(|it| is_noted(&it.verdict)), "{all:?}");
    }

    /// The SYN leaves by a route that goes with the link.
    #[test]
    fn a_link_that_is_down_explains_that_no_syn_is_sent() {
        let down = Device { up: false, ..device(7, "cali7") };
        let stream = Stream::new().connect().drop_on(SYN, "QDISC_DROP", NODE, Some(down)).wait_ms(2_900).clone();
        assert_eq!(stream.clone().gives_up().decided(), ("pod_link_down", Confidence::Proven));
    }

    /// Without the time of the handshake, tracer does not know how long the target had for its answer.
    #[test]
    fn a_connection_with_only_an_end_is_not_a_slow_response() {
        let stream = Stream::new().http_readiness().connect().clone();
        assert_eq!(stream.clone().wait_ms(1_000).closes((100, 101, 0)).causes(), ["unexplained"]);
        assert_eq!(stream.clone().established().wait_ms(1_000).closes((100, 101, 0)).causes(), ["slow_response"]);
    }

    #[test]
    fn a_late_handshake_with_a_failure_status_is_no_recovery() {
        for (lose, cause) in [(queue as fn(&mut Stream), "accept_queue_overflow"), (loopback, "loopback_down")] {
            let answered = |status: u16| {
                let mut stream = Stream::new().http_readiness().clone();
                connected_late(&mut stream, lose);
                outcomes(stream.answer(AnswerKind::Http, Some(status)).closes(LIVES))
            };
            let no = ("app_status_failure", Outcome::Failure, Confidence::Proven);
            assert_eq!(answered(503), [no]);
            assert_eq!(answered(200), [(cause, Outcome::Noise, Confidence::Proven)]);
        }
    }

    /// The connection got a free place in the accept queue, and the process did not accept it in time.
    #[test]
    fn silence_after_a_full_accept_queue_keeps_that_cause() {
        let reported = |lose: fn(&mut Stream)| {
            let mut stream = Stream::new().https_readiness().clone();
            connected_late(&mut stream, lose);
            stream.wait_ms(4_000).own(|it| _ = it.closes((100, 101, 0))).causes()
        };
        assert_eq!(reported(queue), ["accept_queue_overflow"]);
        assert_eq!(reported(loopback), ["tls_handshake_slow"]);
    }

    #[test]
    fn a_refusal_of_the_retransmitted_syn_becomes_the_cause() {
        let filtered: fn(&mut Stream) = |stream| _ = stream.filtered(SYN, POD).settles();
        let by_program: fn(&mut Stream) = |stream| _ = stream.drop(SYN, "TC_INGRESS", POD);
        let by_path: fn(&mut Stream) = |stream| _ = stream.drop(SYN, "IP_RPFILTER", POD);
        for lose in [queue, loopback, filtered, by_program, by_path] {
            let mut stream = Stream::new().http_readiness().connect().clone();
            lose(&mut stream);
            stream.wait_ms(1_000).syn_again().refused();
            assert_eq!(stream.causes(), ["connection_refused"]);
        }
    }

    /// Seen on a node: the link is up again before the next SYN, which something else stops.
    #[test]
    fn what_stops_a_later_syn_replaces_a_link_that_was_down() {
        let stopped_by = |stop: fn(&mut Stream)| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| {
                reading.links = vec![LinkState { running: Some(false), ..link(2, "eth0", &["10.88.0.2"]) }];
            });
            stream.wait_ms(5).tick().wait_ms(800).syn_again();
            stop(&mut stream);
            stream.wait_ms(5).tick().gives_up().all_decided()
        };
        assert_eq!(stopped_by(|_| ()), [("pod_link_down", Confidence::Likely)]);
        let full = stopped_by(|stream| _ = stream.queue_full(ListenQueue::Accept));
        assert_eq!(full, [("accept_queue_overflow", Confidence::Proven)]);
        let filtered = stopped_by(|stream| {
            _ = stream.filtered(SYN, POD).push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)]))
        });
        assert_eq!(filtered, [("firewall_drop", Confidence::Proven)]);
        let unresolved = stopped_by(|stream| _ = stream.drop(SYN, "NEIGH_FAILED", NODE));
        assert_eq!(unresolved, [("pod_link_down", Confidence::Likely)]);
        let rejected = stopped_by(|stream| {
            stream.filtered(SYN, POD).reset_received(TcpState::SynSent, 0);
            stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
        });
        assert_eq!(rejected.last(), Some(&("firewall_reject", Confidence::Proven)));
    }

    /// Seen on a node: the rule is removed before the next SYN, which another fault stops.
    #[test]
    fn what_stopped_the_last_syn_replaces_what_stopped_an_earlier_one() {
        let rules = |netns| firewall(netns, vec![rule("INPUT", RuleVerdict::Drop)]);
        let then = |first: &str, next: fn(&mut Stream)| {
            let mut stream = Stream::new().connect().drop(SYN, first, POD).push(rules(POD)).wait_ms(1_000).clone();
            next(stream.syn_again());
            stream.wait_ms(5).tick().gives_up().last_verdict()
        };
        let by_rule: fn(&mut Stream) = |stream| _ = stream.filtered(SYN, POD);
        let by_node: fn(&mut Stream) = |stream| {
            _ = stream.filtered(SYN, NODE).push(firewall(NODE, vec![rule("OUTPUT", RuleVerdict::Drop)]));
        };
        let causes = |first, next| then(first, next).cause.name();
        assert_eq!(causes("NETFILTER_DROP", by_rule), "firewall_drop");
        let full = then("NETFILTER_DROP", |stream| _ = stream.queue_full(ListenQueue::Accept));
        assert_eq!((full.cause.name(), full.confidence), ("accept_queue_overflow", Confidence::Proven));
        assert_eq!(causes("TC_INGRESS", by_rule), "firewall_drop");
        assert_eq!(causes("NETFILTER_DROP", |stream| _ = stream.drop(SYN, "TC_INGRESS", POD)), "network_policy_drop");
        assert_eq!(causes("NETFILTER_DROP", |stream| _ = stream.drop(SYN, "NEIGH_FAILED", NODE)), "neighbour_failure");
        assert_has(&then("NETFILTER_DROP", by_node).summary, &[" on the node drops the SYN"]);
        let silence = then("NETFILTER_DROP", |_| ());
        assert_eq!((silence.cause.name(), silence.confidence), ("unexplained", Confidence::Possible));
        assert_has(&silence.summary, &["NETFILTER_DROP", "that cause is gone"]);
        assert_lacks(&silence.remediation, &["nft"]);
    }

    /// A rule of the pod drops the SYN.
    fn by_rule(stream: &mut Stream) {
        stream.filtered(SYN, POD).push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)])).wait_ms(200).settles();
    }

    fn by_link(stream: &mut Stream) {
        stream.wait_ms(200).inspection(|reading| {
            reading.links = vec![LinkState { running: Some(false), ..link(2, "eth0", &["10.88.0.2"]) }];
        });
        stream.settles();
    }

    fn by_neighbour(stream: &mut Stream) {
        stream.wait_ms(200).inspection(|reading| reading.neighbour = Some(neighbour("incomplete"))).settles();
    }

    fn by_queue(stream: &mut Stream) {
        stream.wait_ms(200).inspection(|reading| reading.listeners = Some(vec![listener(3, 2)])).settles();
    }

    const LOSSES: [fn(&mut Stream); 4] = [by_rule, by_link, by_neighbour, by_queue];

    /// A probe with this timeout. Its first SYN is lost, and a later one gets through.
    fn healed(timeout_s: u32, lose: fn(&mut Stream)) -> Stream {
        let mut stream = Stream::new().http_readiness().clone();
        stream.last_pods().pods[0].containers[0].probes[0].timeout_s = timeout_s;
        connected_late(&mut stream, lose);
        stream
    }

    /// Most of the time, the server of this connection has no thread that can run, or it can, and has read the request.
    fn read_server(stream: &mut Stream, is_stopped: bool) {
        for _ in 0..3 {
            let mut process = server_process(7, 2);
            process.tasks.stopped = if is_stopped { 2 } else { 0 };
            let connection = Some(served(if is_stopped { 100 } else { 0 }, true));
            let reading = Serving { processes: vec![process], connection, ..Serving::default() };
            stream.wait_ms(1_200).serving(reading);
        }
    }

    /// Seen on a node: the rule was removed, the link set up, or the queue emptied, before the next SYN.
    #[test]
    fn what_fails_after_the_handshake_replaces_what_stopped_an_earlier_syn() {
        for lose in LOSSES {
            let silent = |is_stopped: bool| {
                let mut stream = healed(5, lose);
                read_server(&mut stream, is_stopped);
                stream.wait_ms(195).closes((100, 101, 0)).wait_ms(5).tick().all_decided()
            };
            assert_eq!(silent(true), [("target_frozen", Confidence::Likely)]);
            assert_eq!(silent(false), [("slow_response", Confidence::Proven)]);
            let mut half = healed(5, lose);
            half.answer(AnswerKind::Http, Some(200)).wait_ms(3_795).closes_quiet((100, 101, 37), 3_790_000_000);
            assert_eq!(half.wait_ms(5).tick().all_decided(), [("slow_response", Confidence::Likely)]);
            let mut reset = healed(5, lose).reset_received(TcpState::Established, 0).clone();
            reset.reset_sent(TcpFlags(0x10), false, Some("app"));
            reset.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, (100, 101, 0)).wait_ms(5).tick();
            assert_eq!(reset.all_decided(), [("mid_stream_rst", Confidence::Proven)]);
        }
    }

    /// The same fault comes back and stops the request.
    #[test]
    fn what_stops_a_syn_and_then_the_request_is_reported() {
        let by_rule_again: fn(&mut Stream) = |stream| by_rule(stream.filtered(PUSH, POD));
        let again = [by_rule_again, by_link, by_neighbour, by_queue];
        let twice = [0, 1, 2, 3].map(|of| {
            let mut stream = healed(5, LOSSES[of]);
            again[of](stream.wait_ms(200).sent_again(100, false));
            stream.wait_ms(3_585).sent_again(100, false).closes((200, 1, 0)).wait_ms(5).tick().decided()
        });
        let rule = ("firewall_drop", Confidence::Proven);
        let [link, queue] = ["pod_link_down", "accept_queue_overflow"].map(|cause| (cause, Confidence::Likely));
        assert_eq!(twice, [rule, link, ("unexplained", Confidence::Possible), queue]);
    }

    /// The line of the kubelet's log ends the wait for an end, not for who accepted.
    #[test]
    fn a_close_that_waits_for_who_accepted_is_the_only_verdict() {
        for lose in LOSSES {
            let mut stream = healed(5, lose).pod_in(POD).unread().clone();
            stream.server_closes((100, 101, 0)).wait_ms(5).tick().kubelet(ProbeOutput::Network);
            assert_eq!(stream.wait_ms(600).tick().all_decided(), [("closed_without_answer", Confidence::Proven)]);
        }
    }

    /// The connection waited in the queue that had been full: the end of the listener resets it (`inet_csk_listen_stop`).
    #[test]
    fn a_listener_that_ends_has_accepted_no_connection_of_its_full_queue() {
        let reset = |with_listener: bool| {
            let mut stream = healed(5, queue).wait_ms(200).clone();
            if with_listener {
                stream.listens(POD, 8080, false);
            }
            stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
            stream.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, (100, 101, 0));
            stream.wait_ms(5).tick().all_decided()
        };
        assert_eq!(reset(true), [("accept_queue_overflow", Confidence::Proven)]);
        assert_eq!(reset(false), [("mid_stream_rst", Confidence::Proven)]);
    }

    /// `net.Dial` returns as soon as the connection is established.
    #[test]
    fn a_tcp_probe_that_connected_late_and_was_reset_is_no_failure() {
        let mut stream = Stream::new().tcp_readiness().clone();
        connected_late(&mut stream, queue);
        stream.reset_received(TcpState::Established, 0).reset_sent(TcpFlags(0), false, Some("app"));
        stream.state(TcpState::Established, TcpState::Close, libc::ECONNRESET, (0, 1, 0)).wait_ms(5).tick();
        assert!(stream.verdicts().is_empty(), "{:?}", outcomes(&stream));
    }

    #[test]
    fn a_dropped_syn_ack_is_no_cause_after_the_handshake() {
        let mut stream = healed(5, |stream| _ = stream.filtered(SYN_ACK, POD).settles());
        stream.wait_ms(3_990).closes((100, 101, 0)).wait_ms(5).tick();
        assert_eq!(stream.all_decided(), [("slow_response", Confidence::Proven)]);
    }

    /// The target had the smaller part of the time.
    #[test]
    fn a_handshake_that_took_most_of_the_time_keeps_what_delayed_it_as_likely() {
        for (lose, cause) in [(by_rule as fn(&mut Stream), "firewall_drop"), (by_link, "pod_link_down")] {
            let verdict = healed(2, lose).wait_ms(750).closes((100, 101, 0)).wait_ms(5).tick().verdict();
            assert_eq!((verdict.cause.name(), verdict.confidence), (cause, Confidence::Likely));
            assert_has(&verdict.summary, &["when most of the time had gone into the handshake"]);
            let mut line = healed(2, lose).wait_ms(750).kubelet(ProbeOutput::Network).wait_ms(50).clone();
            line.tick().own(|it| _ = it.closes((100, 101, 0)));
            assert_eq!(line.wait_ms(5).tick().all_decided(), [(cause, Confidence::Likely)]);
        }
        let mut queued = healed(2, queue);
        queued.wait_ms(750).closes((100, 101, 0)).wait_ms(5).tick();
        assert_eq!(queued.all_decided(), [("accept_queue_overflow", Confidence::Proven)]);
        assert_lacks(&queued.verdict().summary, &["most of the time"]);
    }

    /// Nothing but the kubelet shows that the answer was not complete, and it does not report that.
    #[test]
    fn an_unknown_end_after_the_handshake_is_no_failure_of_it() {
        let mut stream = healed(5, by_rule);
        stream.wait_ms(3_785).answer(AnswerKind::Http, Some(200)).wait_ms(5).closes((100, 101, 37)).wait_ms(5).tick();
        assert!(outcomes(&stream).iter().all(|(_, outcome, _)| *outcome == Outcome::Noise), "{:?}", outcomes(&stream));
    }

    /// The rule is removed before the next SYN, and what was read shows why that one was lost.
    #[test]
    fn what_stops_a_later_syn_silently_replaces_a_rule_that_is_gone() {
        let later = |fill: fn(&mut Inspection)| {
            let mut stream = Stream::new().connect().clone();
            by_rule(&mut stream);
            stream.wait_ms(1_000).syn_again().wait_ms(200).inspection(fill).gives_up().wait_ms(5).tick().all_decided()
        };
        let full = later(|reading| reading.listeners = Some(vec![listener(3, 2)]));
        assert_eq!(full, [("accept_queue_overflow", Confidence::Likely)]);
        let no_route = later(|reading| {
            reading.no_way_back = Some(NoWayBack { to: address("10.88.0.1"), errno: libc::ENETUNREACH });
        });
        assert_eq!(no_route, [("route_unreachable", Confidence::Likely)]);
    }

    /// Seen on a node: a SYN had waited for the pod's link-layer address, and left when its link was up again.
    #[test]
    fn an_answer_after_the_end_takes_no_verdict_back() {
        let mut stream = Stream::new().connect().clone();
        by_link(&mut stream);
        stream.gives_up().wait_ms(50).reset_sent(SYN_ACK, true, None).drop(SYN_ACK, "NO_SOCKET", NODE);
        assert_eq!(stream.wait_ms(5).tick().all_decided(), [("pod_link_down", Confidence::Likely)]);
    }

    #[test]
    fn a_recovery_with_an_unreadable_answer_is_likely() {
        let mut stream = Stream::new().grpc_readiness(3).clone();
        connected_late(&mut stream, queue);
        stream.closes(LIVES);
        let last = ("accept_queue_overflow", Outcome::Noise, Confidence::Likely);
        assert_eq!(outcomes(&stream).last(), Some(&last));
    }

    #[test]
    fn a_late_handshake_without_a_request_is_no_recovery() {
        let mut stream = Stream::new().http_readiness().clone();
        connected_late(&mut stream, queue);
        stream.closes((0, 1, 0));
        assert!(
            outcomes(&stream).iter().all(|(_, outcome, _)| *outcome == Outcome::Failure),
            "{:?}",
            outcomes(&stream)
        );
    }
}
