//! Attempts that wait to be classified, or classified again. A verdict waits until the firewall is read, so that it can
//! name the rule. One about a Service without endpoints then waits a moment for the cluster API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::queries::{self, accepted_on_node};
use super::timeouts::REPLACED_NS;
use super::{Core, MAX_COUNTERS, When, first_due, take_due};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_case::SETTLE_NS;
use tracer_case::finding::Finding;
use tracer_case::pod_sockets::FRESH_NS;
use tracer_model::decision::Decision;
use tracer_model::event::{ConnId, Flow, Netns, PodSockets, Service, ServiceName, is_kubelet_name};
use tracer_model::query::{Awaited, Query};
use tracer_model::recent::Recent;
use tracer_model::record::{Cause, Confidence};

/// How long a verdict waits for the firewall after it could have been emitted. The answer takes a few milliseconds,
/// longer for a very large table or on a busy node. The first drop of a run reaches the core only after tracer has read
/// the kernel's symbols.
const HOLD_NS: u64 = 1_000_000_000;
/// The same for the sockets of a pod. Reading them takes some milliseconds, and much longer on a busy node.
const HOLD_FOR_POD_NS: u64 = 500_000_000;
/// The same for the acknowledgement of the prober's FIN, which the target delays by up to 200 ms (`TCP_DELACK_MAX`).
const HOLD_FOR_CLOSE_NS: u64 = 500_000_000;
/// The same after the timeout of a prober that still reads an answer. A busy kubelet closes this late.
const CLOSES_LATE_NS: u64 = 1_000_000_000;
/// The same for the end of the target's listener.
const HOLD_FOR_LISTENER_NS: u64 = 50_000_000;
/// How long an attempt is kept if its verdict was emitted without the answer. A refusal ends the attempt at once, but
/// on an emulated processor reading the rules of kube-proxy takes seconds.
const LATE_NS: u64 = 5_000_000_000;
const MAX_HELD: usize = 1024;
const MAX_TIMEOUTS: usize = 8192;
/// Refused attempts kept for one port: a start of two minutes with a probe every two seconds.
const MAX_REFUSED: usize = 64;

/// The waiting attempts, by what they wait for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// When to classify attempts again: their last observation was ambiguous, or their verdict is held.
    due_at: BTreeSet<(u64, ConnId)>,
    /// When the probes of attempts have timed out.
    timeouts: BTreeSet<(u64, ConnId)>,
    /// Verdicts that wait for an answer.
    held: BTreeMap<ConnId, Held>,
    /// Refused attempts, by namespace and port: a process may begin to listen there.
    refused: Recent<(Netns, u16), Vec<ConnId>, MAX_COUNTERS>,
}

/// A verdict that waits for an answer.
#[derive(Clone, Debug)]
struct Held {
    answer: Answer,
    /// Absent while other observations of the same packet may still arrive.
    until: Option<u64>,
}

/// The answer that a verdict waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// A reading of the firewall of this namespace, which dropped the packet then.
    Firewall(Netns, u64),
    Endpoints(ServiceName),
    /// The sockets of the pod with this target, as this namespace reaches it.
    Pod(Netns, SocketAddr),
    /// The prober's close, the acknowledgement of its FIN, or the end of the target's listener.
    Close,
}

impl Waiting {
    /// Schedules an attempt to be classified at this time.
    pub(super) fn schedule(&mut self, time: u64, conn: ConnId) {
        self.due_at.insert((time, conn));
    }

    /// Takes the next attempt that is due.
    pub(super) fn next_due(&mut self, now: u64) -> Option<(u64, ConnId)> {
        take_due(&mut self.due_at, now)
    }

    /// Adds the time at which the probe of an attempt has timed out; returns whether there was room.
    pub(super) fn add_timeout(&mut self, over: u64, conn: ConnId) -> bool {
        let has_room = self.timeouts.len() < MAX_TIMEOUTS;
        self.timeouts.extend(has_room.then_some((over, conn)));
        has_room
    }

    /// Takes the next attempt of a probe that has timed out.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<(u64, ConnId)> {
        take_due(&mut self.timeouts, now)
    }

    pub(super) fn forget_timeout(&mut self, over: u64, conn: ConnId) {
        self.timeouts.remove(&(over, conn));
    }

    /// The run ends: open attempts stay open.
    pub(super) fn forget_timeouts(&mut self) {
        self.timeouts.clear();
    }

    /// When the first attempt is due or the first probe has timed out.
    pub(super) fn due(&self) -> Option<u64> {
        first_due(&self.due_at).into_iter().chain(first_due(&self.timeouts)).min()
    }

    /// An attempt is about to be classified, or a verdict waits for an answer.
    pub(super) fn is_deciding(&self, now: u64) -> bool {
        let is_settling = first_due(&self.due_at).is_some_and(|due| due <= now.saturating_add(SETTLE_NS));
        is_settling || self.held.values().any(|held| held.until.is_some_and(|until| now < until))
    }

    /// The verdict on the attempt waits for what is read or seen only after the end.
    pub(super) fn is_past_end(&self, conn: ConnId) -> bool {
        self.held.get(&conn).is_some_and(|held| matches!(held.answer, Answer::Pod(..) | Answer::Close))
    }

    /// The attempt failed, and its verdict waits for the sockets of the pod.
    pub(super) fn is_held_failure(&self, conn: ConnId) -> bool {
        self.held.get(&conn).is_some_and(|held| matches!(held.answer, Answer::Pod(..)))
    }

    /// The attempts with a verdict that waits for an answer.
    pub(super) fn held(&self) -> impl Iterator<Item = ConnId> {
        self.held.keys().copied()
    }

    /// The verdict is decided again: it waits for that only if the new finding says so.
    pub(super) fn forget_past_end(&mut self, conn: ConnId) {
        if self.is_past_end(conn) {
            self.held.remove(&conn);
        }
    }

    fn hold(&mut self, conn: ConnId, held: Held) {
        if self.held.len() >= MAX_HELD {
            self.held.pop_first();
        }
        self.held.insert(conn, held);
    }

    /// Takes the attempts that waited for this answer.
    fn take_answered(&mut self, now: u64, is_answered: impl Fn(&Answer) -> bool) -> Vec<(ConnId, When)> {
        let taken = self.held.extract_if(.., |_, held| is_answered(&held.answer));
        let when = |held: Held| if held.until.is_some() { When::Settled(now) } else { When::Seen(now) };
        taken.map(|(conn, held)| (conn, when(held))).collect()
    }

    /// An attempt was refused: it waits for a process to listen on that port.
    pub(super) fn wait_for_listener(&mut self, netns: Netns, port: u16, conn: ConnId) {
        let waiting = self.refused.or_default((netns, port));
        if waiting.len() >= MAX_REFUSED {
            waiting.remove(0);
        }
        waiting.push(conn);
    }

    /// A process begins to listen: takes the attempts that were refused there and that it would have served.
    pub(super) fn take_refused(&mut self, netns: Netns, port: u16, served: impl Fn(ConnId) -> bool) -> Vec<ConnId> {
        let all = self.refused.remove(&(netns, port)).unwrap_or_default();
        let (served, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|conn| served(*conn));
        if !others.is_empty() {
            self.refused.insert((netns, port), others);
        }
        served
    }

    /// The attempts that were refused there.
    pub(super) fn refused(&self, netns: Netns, port: u16) -> Vec<ConnId> {
        self.refused.get(&(netns, port)).cloned().unwrap_or_default()
    }

    /// Another namespace has this number now.
    pub(super) fn forget_refused(&mut self, netns: Netns) {
        self.refused.retain(|(at, _), _| *at != netns);
    }
}

impl Core {
    /// A firewall was read: queries it again for later drops, and decides the attempts that waited for this answer.
    pub(super) fn release(&mut self, netns: Netns, now: u64, out: &mut Vec<Decision>) {
        self.query_after_answer(netns, now);
        let firewalls = &self.node.firewalls;
        let is_answered = |answer: &Answer| matches!(answer, Answer::Firewall(of, at) if *of == netns && !firewalls.is_pending(netns, *at));
        for (conn, when) in self.waiting.take_answered(now, is_answered) {
            self.decide(conn, when, out);
        }
    }

    /// The endpoints of a Service were listed, or could not be: decides the attempts that waited for that.
    pub(super) fn release_endpoints(&mut self, service: &Service, now: u64, out: &mut Vec<Decision>) {
        let is_it = |name: &ServiceName| (&name.namespace, &name.name) == (&service.namespace, &service.name);
        let is_answered = |answer: &Answer| matches!(answer, Answer::Endpoints(name) if is_it(name));
        for (conn, when) in self.waiting.take_answered(now, is_answered) {
            self.decide(conn, when, out);
        }
    }

    /// The sockets of a pod were read: decides the attempts that waited for that.
    pub(super) fn release_pod(&mut self, reading: &PodSockets, now: u64, out: &mut Vec<Decision>) {
        self.queries.pod_answered(reading.from, reading.target);
        let it = Answer::Pod(reading.from, reading.target);
        for (conn, when) in self.waiting.take_answered(now, |answer| *answer == it) {
            self.decide(conn, when, out);
            if matches!(when, When::Settled(_)) {
                self.end(conn, now, out);
            }
        }
    }

    /// Holds a verdict back while an answer can complete it; returns whether it is held.
    pub(super) fn hold_verdict(&mut self, conn: ConnId, finding: &Finding, when: When) -> bool {
        let before = self.waiting.held.remove(&conn).and_then(|held| held.until);
        match finding.waits_for.filter(|(netns, time)| self.node.firewalls.is_pending(*netns, *time)) {
            Some(firewall) => self.hold_for_firewall(conn, firewall, before, when),
            None => match &finding.lacks_endpoints {
                Some(service) => self.hold_for_endpoints(conn, service, when),
                None => self.hold_for_pod(conn, finding, when) || self.hold_for_close(conn, finding, when),
            },
        }
    }

    /// Holds a verdict back until the API has listed the endpoints of a Service. A verdict that did not wait long enough
    /// is not revised: the cause stays.
    fn hold_for_endpoints(&mut self, conn: ConnId, service: &ServiceName, when: When) -> bool {
        let (When::Seen(now) | When::Settled(now)) = when;
        let end = self.query_endpoints(service, now);
        self.hold_until(conn, Answer::Endpoints(service.clone()), end, when)
    }

    /// Holds a verdict about the process back until it is read who accepted: an address translation, or a second pod with
    /// the address, may have led the attempt to another one. An older reading does not show that.
    fn hold_for_pod(&mut self, conn: ConnId, finding: &Finding, when: When) -> bool {
        let (When::Seen(now) | When::Settled(now)) = when;
        let by_server = |it: &Attempt| match finding.cause {
            Cause::ClosedWithoutAnswer | Cause::MidStreamRst => true,
            // An unanswered gRPC probe.
            Cause::ProbeMisconfigured => it.established.is_some() && it.received() == Some(0),
            _ => false,
        };
        let on_node =
            |it: &Attempt| it.established.is_some() && finding.rests_on_acceptor() && accepted_on_node(it, &self.node);
        let waits = |it: &&Attempt| finding.lacks_acceptor || by_server(it) || on_node(it);
        let Some(attempt) = self.correlator.get(conn).filter(waits) else { return false };
        let (Some(from), Flow { src: peer, dst: target }) = (attempt.netns, attempt.flow) else { return false };
        let known = self.node.pod_sockets(from, target);
        let oldest_ns = if finding.lacks_acceptor || on_node(attempt) { 0 } else { FRESH_NS };
        let is_known = known.is_some_and(|(time, _)| time.saturating_add(oldest_ns) >= attempt.started);
        // The query comes with the end of the attempt, a moment later.
        let is_queried = self.node.has_pod(target.ip()) || accepted_on_node(attempt, &self.node);
        let is_due = matches!(when, When::Seen(_)) && attempt.ended.is_none() && is_queried;
        let mut asked = self.queries.pod_queried(from, target).or(is_due.then_some(now));
        if finding.lacks_acceptor && !is_known && asked.is_none() {
            let query = queries::target(from, target, &self.node, Awaited::Nothing, Some(peer));
            self.query(Query::Target(query), now);
            // Absent if the target was queried a moment ago: then no answer comes.
            asked = self.queries.pod_queried(from, target);
        }
        let end = asked.map(|asked| asked.saturating_add(HOLD_FOR_POD_NS)).filter(|end| !is_known && now < *end);
        self.hold_until(conn, Answer::Pod(from, target), end, when)
    }

    /// Holds the verdict back while the prober's close, the acknowledgement of its FIN or the end of the target's listener
    /// may come.
    fn hold_for_close(&mut self, conn: ConnId, finding: &Finding, when: When) -> bool {
        let (When::Seen(now) | When::Settled(now)) = when;
        let Some(attempt) = self.correlator.get(conn) else { return false };
        let after_end = |hold: u64| attempt.ended.map(|(ended, _)| ended.saturating_add(hold));
        let end = match finding {
            Finding { waits_for_close: true, .. } => after_end(HOLD_FOR_CLOSE_NS),
            Finding { waits_for_listener: true, .. } => after_end(HOLD_FOR_LISTENER_NS),
            Finding { waits_for_rest: true, .. } => self.reads_until(attempt),
            _ => return false,
        };
        self.hold_until(conn, Answer::Close, end.filter(|end| now < *end), when)
    }

    /// The wait for the prober's close is over, and its connection is open: it may not have got the whole answer.
    pub(super) fn lower_if_open(&self, conn: ConnId, mut finding: Finding) -> Finding {
        let attempt = self.correlator.get(conn).filter(|it| it.ended.is_none() && finding.waits_for_rest);
        if attempt.and_then(|it| self.reads_until(it)).is_some() {
            finding.summary += "; tracer did not see the prober close: it may not have got all of it";
            finding.confidence = finding.confidence.min(Confidence::Likely);
        }
        finding
    }

    /// Until when the prober may read an answer. Another prober than a kubelet may keep its connection open.
    fn reads_until(&self, attempt: &Attempt) -> Option<u64> {
        let longest = is_kubelet_name(&attempt.actor.comm).then_some(REPLACED_NS);
        let timeout = Matched::new(attempt, &self.node).longest_timeout_ns().or(longest)?;
        Some(attempt.started.saturating_add(timeout).saturating_add(CLOSES_LATE_NS))
    }

    /// Returns whether the verdict is held: if there is a time until which it can wait.
    fn hold_until(&mut self, conn: ConnId, answer: Answer, end: Option<u64>, when: When) -> bool {
        let Some(end) = end else { return false };
        let (until, due) = match when {
            When::Seen(now) => (None, now.saturating_add(SETTLE_NS)),
            When::Settled(_) => (Some(end), end),
        };
        self.correlator.keep(conn, end.saturating_add(SETTLE_NS));
        self.waiting.hold(conn, Held { answer, until });
        self.waiting.schedule(due, conn);
        true
    }

    /// Holds a verdict back if reading the firewall can name the rule; returns whether it is held. The wait begins when
    /// the verdict could be emitted, as an event can reach the core long after it happened.
    fn hold_for_firewall(
        &mut self,
        conn: ConnId,
        (netns, dropped): (Netns, u64),
        before: Option<u64>,
        when: When,
    ) -> bool {
        let answer = Answer::Firewall(netns, dropped);
        let (until, due) = match when {
            When::Seen(now) => (before, now.saturating_add(SETTLE_NS)),
            When::Settled(now) => {
                let until = before.unwrap_or_else(|| now.saturating_add(HOLD_NS));
                // The verdict is emitted without the answer. A later answer can still revise it.
                if now >= until {
                    self.waiting.hold(conn, Held { answer, until: Some(until) });
                    self.correlator.keep(conn, now.saturating_add(LATE_NS));
                    return false;
                }
                (Some(until), until)
            }
        };
        self.waiting.hold(conn, Held { answer, until });
        self.waiting.schedule(due, conn);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// kube-proxy refuses a connect to a Service without endpoints; tracer reads its rules this long after.
    fn refused_and_read_after(ms: u64) -> Vec<(&'static str, Confidence)> {
        let comment = Some("shop/cart:http has no endpoints".to_owned());
        let rules = vec![FirewallRule { comment, ..rule("KUBE-SERVICES", RuleVerdict::Reject) }];
        let mut stream = Stream::to("10.96.0.9:80").connect().icmp_in(NODE, 3, 3).filtered(SYN, NODE).clone();
        stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
        // The core drops old attempts only when another observation comes.
        (0..ms / 500).for_each(|_| _ = stream.wait_ms(500).tick());
        let verdicts = stream.push(firewall(NODE, rules)).verdicts();
        verdicts.into_iter().map(|it| (it.verdict.cause.name(), it.verdict.confidence)).collect()
    }

    #[test]
    fn a_reject_before_the_rules_are_read_is_likely_and_then_proven() {
        let decided = |netns, code| {
            let mut stream = Stream::to("10.96.0.9:80").connect().icmp_in(netns, 3, code).filtered(SYN, netns).clone();
            stream.state(TcpState::SynSent, TcpState::Close, libc::ECONNREFUSED, (0, 0, 0));
            (0..3).for_each(|_| _ = stream.wait_ms(500).tick());
            stream.push(firewall(netns, vec![rule("INPUT", RuleVerdict::Reject)])).all_decided()
        };
        let found = |of: &[Confidence]| of.iter().map(|it| ("firewall_reject", *it)).collect::<Vec<_>>();
        assert_eq!(decided(NODE, 3), found(&[Confidence::Likely, Confidence::Proven]));
        assert_eq!(decided(NODE, 13), found(&[Confidence::Proven]), "kube-proxy's rules send no such answer");
        assert_eq!(decided(POD, 3), found(&[Confidence::Proven]), "nor are they in a pod");
    }

    #[test]
    fn the_end_of_a_run_waits_for_the_rule_of_a_drop_but_not_for_the_end_of_its_attempt() {
        let is_deciding = |read: bool| {
            let mut stream = Stream::new().http_readiness().connect().filtered(SYN, POD).clone();
            if read {
                stream.push(firewall(POD, vec![rule("INPUT", RuleVerdict::Drop)]));
            }
            push_all(&stream.wait_ms(5).tick().observations).0.is_deciding(stream.now())
        };
        assert_eq!([false, true].map(is_deciding), [true, false]);
        let mut copy = Stream::new().http_readiness().connect().filtered(SYN, POD).icmp(3, 10).established().clone();
        assert!(!push_all(&copy.settles().observations).0.is_deciding(copy.now()), "it got through at once");
    }

    /// The end of the attempt was lost, or the prober keeps its connection.
    #[test]
    fn a_status_waits_for_the_close_no_longer_than_for_the_timeout() {
        let verdicts = |specs: bool, prober: &str, ms: u64| {
            let mut stream = Stream::new();
            if specs {
                stream.http_readiness();
            }
            stream.connect().prober_named(prober).established();
            stream.answer_with(AnswerKind::Http, Some(503), |it| it.asked = Some(true));
            let at_end = stream.clone().decided();
            (stream.wait_ms(ms).tick().verdicts_before_the_end().len(), stream.decided(), at_end)
        };
        let found = |confidence| ("app_status_failure", confidence);
        let likely = [0, 1].map(|count| (count, found(Confidence::Likely), found(Confidence::Likely)));
        assert_eq!([1_900, 2_100].map(|ms| verdicts(true, "kubelet", ms)), likely);
        assert_eq!([10_900, 11_100].map(|ms| verdicts(false, "kubelet", ms)), likely);
        let proven = found(Confidence::Proven);
        assert_eq!(verdicts(false, "checker", 1), (1, proven, proven), "its timeout is not known");
    }

    /// A rule of the node, or a second pod with the address, led the first attempt to another process.
    #[test]
    fn a_failure_of_the_application_waits_until_it_is_read_who_accepted() {
        let decided = |fill: Option<fn(&mut PodSockets)>| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).unread().clone();
            stream.connect().established().answers(503);
            assert!(stream.wait_ms(5).tick().verdicts_before_the_end().is_empty());
            if let Some(fill) = fill {
                stream.wait_ms(20).pod_sockets(fill);
                assert!(!stream.verdicts_before_the_end().is_empty(), "it waits no longer");
            }
            let verdict = stream.wait_ms(600).tick().verdicts_before_the_end().remove(0).verdict;
            assert_eq!(verdict.cause, Cause::AppStatusFailure);
            (verdict.confidence, verdict.summary)
        };
        let of_pod = decided(Some(|it| it.acceptor = Some(Acceptor { to: None, netns: POD, processes: Vec::new() })));
        let unread = decided(None);
        assert_eq!([of_pod.0, unread.0], [Confidence::Proven; 2]);
        assert_eq!(decided(Some(|it| it.netns = None)), unread, "no pod was found: that proves nothing");
        let by_node = decided(Some(|it| {
            it.acceptor = Some(Acceptor { to: Some(address("127.0.0.1:3128")), netns: NODE, processes: Vec::new() });
        }));
        let by_two = decided(Some(|it| it.holders = vec![Netns(7), POD]));
        for ((confidence, summary), words) in [
            (by_node, "the node's own address translation sent it to 127.0.0.1:3128"),
            (by_two, "a network namespace without a known pod (7) and pod default/web both have 10.88.0.2"),
        ] {
            assert_eq!(confidence, Confidence::Likely);
            assert_has(&summary, &[words]);
        }
    }

    /// Another pod has got the address since.
    #[test]
    fn an_older_reading_does_not_show_who_accepted() {
        let own = |it: &mut PodSockets| {
            it.acceptor = Some(Acceptor { to: None, netns: POD, processes: Vec::new() });
        };
        let mut stream = Stream::new().http_readiness().pod_in(POD).unread().pod_sockets(own).clone();
        stream.wait_ms(10_000).connect().established().answers(503);
        assert!(stream.wait_ms(5).tick().verdicts_before_the_end().is_empty());
        let verdict = stream.wait_ms(20).pod_sockets(|it| it.holders = vec![Netns(7), POD]).verdict();
        assert_eq!(verdict.confidence, Confidence::Likely);
        assert_has(&verdict.summary, &["both have 10.88.0.2"]);
    }

    #[test]
    fn an_answer_long_after_the_refusal_still_names_the_cause() {
        let unread = ("firewall_reject", Confidence::Likely);
        let read = ("service_no_endpoints", Confidence::Proven);
        assert_eq!(refused_and_read_after(0), [read]);
        assert_eq!(refused_and_read_after(3_000), [unread, read]);
        assert_eq!(refused_and_read_after(5_500), [unread, read]);
        assert_eq!(refused_and_read_after(9_000), [unread], "the attempt is dropped by then");
    }

    /// Attempts are kept for five minutes: those before that must not take the places of later ones.
    #[test]
    fn a_process_that_listens_late_revises_the_latest_refusals() {
        let mut stream = Stream::new().http_readiness().clone();
        for conn in 100..200 {
            stream.again(conn).connect().refused().wait_ms(10_000);
        }
        stream.listens(POD, 8080, true).settles();
        let revised = stream.causes().into_iter().filter(|cause| *cause == "not_listening_yet").count();
        assert_eq!(revised, 11, "of the last two minutes");
    }
}
