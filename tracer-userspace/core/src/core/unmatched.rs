//! Kubelet outcomes that fit no attempt yet. The events of the attempt may come later. So tracer matches each outcome
//! again before it gets a verdict of its own.

use std::collections::VecDeque;

use super::Core;
use super::outcomes::is_in_time;
use super::records::{kubelet_outcome, unattached};
use crate::kubelet::{self, limits, not_connected};
use tracer_attempts::correlate::attempt::Attempt;
use tracer_attempts::enrich::Matched;
use tracer_common::names::Hook;
use tracer_model::decision::Decision;
use tracer_model::event::{KubeletProbe, Loss, Observation, ObservationKind, PodRef, ProbeOutput, is_kubelet_name};
use tracer_model::query::Query;

/// The ring is read every 50 ms; a busy node takes longer.
const WAIT_NS: u64 = 500_000_000;
/// If a line is read later than this, its attempt may have a verdict and be dropped.
const FRESH_NS: u64 = 1_000_000_000;
const MAX_WAITING: usize = 1024;

/// The waiting lines, each with the time when it is matched again.
#[derive(Debug, Default)]
pub(super) struct Unmatched(VecDeque<(u64, Observation)>);

impl Unmatched {
    /// When the first line is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.0.front().map(|(due, _)| *due)
    }

    fn take_due(&mut self, now: u64) -> Option<Observation> {
        self.due().filter(|due| *due <= now)?;
        self.0.pop_front().map(|(_, observation)| observation)
    }
}

impl Core {
    /// No attempt fits this outcome: it waits to be matched again. Events do not wait, as an Event may be about any
    /// attempt of its second. Nor do outcomes from before tracer's start: nobody saw their attempts. Nor do errors, unless
    /// the kubelet had connected and could not read the whole answer. Returns the loss of an outcome that cannot wait.
    pub(super) fn wait_for_attempt(&mut self, probe: &KubeletProbe, observation: &Observation) -> Option<Loss> {
        let (written, now) = (probe.written_boot_ns, observation.time_boot_ns);
        let was_watched = written >= self.node.since();
        let has_connected = matches!(probe.reason, ProbeOutput::Network | ProbeOutput::TimeoutInBody);
        let has_attempt = probe.is_counted() || has_connected || probe.dst.is_some();
        if !has_attempt || probe.is_event() || !was_watched {
            return None;
        }
        let is_fresh = now <= written.saturating_add(FRESH_NS);
        if is_fresh && self.unmatched.0.len() < MAX_WAITING {
            self.unmatched.0.push_back((now.saturating_add(WAIT_NS), observation.clone()));
            return None;
        }
        let around = (written.saturating_sub(FRESH_NS), written.saturating_add(FRESH_NS));
        let has_verdict = !is_fresh && self.verdicts.has_failure(&self.listed(probe), around);
        let loss = || Loss { where_: Loss::OUTCOMES.into(), count: 1, from_boot_ns: written, to_boot_ns: now };
        (!has_verdict).then(loss)
    }

    /// The container's limits may show why its command failed: the verdict waits until they are read. Returns whether it
    /// does.
    pub(super) fn wait_for_limits(&mut self, command: &KubeletProbe, observation: &Observation) -> bool {
        let now = observation.time_boot_ns;
        let is_fresh = !command.is_event() && now <= command.written_boot_ns.saturating_add(FRESH_NS);
        let Some((netns, id)) = limits::container_to_read(command, &self.node).filter(|_| is_fresh) else {
            return false;
        };
        let query = Query::Limits(netns, id);
        if let Some(due) = limits::before_next(command, &self.node) {
            self.query_at(due, query.clone());
        }
        if limits::is_read(command, &self.node) {
            return false;
        }
        self.query(query, now);
        let has_room = self.unmatched.0.len() < MAX_WAITING;
        if has_room {
            self.unmatched.0.push_back((now.saturating_add(WAIT_NS), observation.clone()));
        }
        has_room
    }

    /// The limits of this container were read: decides the commands that wait for them.
    pub(super) fn release_commands(&mut self, id: &str, now: u64, out: &mut Vec<Decision>) {
        let waits = |it: &Observation| {
            let ObservationKind::KubeletProbe(probe) = &it.kind else { return false };
            let read = limits::container_to_read(&kubelet::of_command(probe), &self.node);
            read.is_some_and(|(_, of)| of == id)
        };
        let (released, rest): (VecDeque<_>, _) =
            std::mem::take(&mut self.unmatched.0).into_iter().partition(|(_, it)| waits(it));
        self.unmatched.0 = rest;
        released.iter().for_each(|(_, it)| self.decide_waiting(it, now, out));
    }

    /// Decides the outcomes that are due.
    pub(super) fn match_waiting(&mut self, now: u64, out: &mut Vec<Decision>) {
        while let Some(observation) = self.unmatched.take_due(now) {
            self.decide_waiting(&observation, now, out);
        }
    }

    /// Matches an outcome again. One that fits no attempt becomes a verdict of its own.
    fn decide_waiting(&mut self, observation: &Observation, now: u64, out: &mut Vec<Decision>) {
        let ObservationKind::KubeletProbe(probe) = &observation.kind else { return };
        if let Some(command) = self.command_record(&kubelet::of_command(probe)) {
            return out.push(command);
        }
        if self.join_attempt(probe, observation, now, out) || self.has_verdict(probe) {
            return;
        }
        let (finding, named) = match self.fitting(probe).len() {
            0 if self.was_never_tried(probe) => not_connected::untried(probe, &self.node),
            connections => kubelet::unmatched(probe, connections, &self.node),
        };
        out.push(unattached(finding, Vec::new(), named, Some(kubelet_outcome(&kubelet::of_command(probe)))));
    }

    /// The kubelet reports that it tried the pod for some time, but made no connection to it. tracer must have watched
    /// all that time. Another connection of the same kubelet must be seen: connections of another prober do not show that
    /// tracer watches this kubelet.
    fn was_never_tried(&self, probe: &KubeletProbe) -> bool {
        let Some(began) = probe.connecting_for_ns().map(|ns| probe.written_boot_ns.saturating_sub(ns + FRESH_NS))
        else {
            return false;
        };
        let is_its_own = |a: &Attempt| match probe.pid {
            Some(pid) => a.actor.pid == pid,
            None => is_kubelet_name(&a.actor.comm),
        };
        // Without this hook, a connect that finds no route leaves no trace.
        let shows_all = self.node.missing_of(&[Hook::SysConnect]).is_empty();
        let is_seen = shows_all && self.correlator.all().any(|a| a.prober && is_its_own(a) && a.started >= began);
        let is_to_pod =
            |a: &Attempt| Matched::new(a, &self.node).is_probe_of(probe) && a.ended.is_none_or(|(end, _)| end >= began);
        let was_watched = began >= self.node.since() && self.node.lost_between(began, probe.written_boot_ns) == 0;
        is_seen && was_watched && !self.correlator.all().any(is_to_pod)
    }

    /// The kubelet's gRPC client connects until its timeout. One of its attempts failed and has the verdict.
    pub(super) fn failed_while_connecting(&self, probe: &KubeletProbe) -> bool {
        let Some(ns) = probe.connecting_for_ns() else { return false };
        let began = probe.written_boot_ns.saturating_sub(ns.saturating_add(FRESH_NS));
        self.verdicts.has_failure(&self.listed(probe), (began, probe.written_boot_ns))
            || self.failed_to_connect(probe, began)
    }

    /// The pod of an outcome. A static pod has different uids in the API and in the kubelet's messages.
    fn listed(&self, probe: &KubeletProbe) -> PodRef {
        let listed = kubelet::pod(&probe.pod, &self.node).and_then(|pod| pod.uid.clone());
        PodRef { uid: listed.or_else(|| probe.pod.uid.clone()), ..probe.pod.clone() }
    }

    /// The kubelet tried the address that it names, and that failed. No verdict names a pod that is not listed yet.
    fn failed_to_connect(&self, probe: &KubeletProbe, began: u64) -> bool {
        let connected = |a: &&Attempt| {
            a.prober && probe.dst == Some(a.flow.dst) && (began..=probe.written_boot_ns).contains(&a.started)
        };
        self.correlator.all().filter(connected).any(|a| self.has_failed(a))
    }

    /// An attempt of this probe failed at that time and has no other kubelet outcome: it has the verdict on this
    /// failure.
    fn has_verdict(&self, probe: &KubeletProbe) -> bool {
        if kubelet::is_printed(probe, &self.node) {
            return false;
        }
        if self.failed_while_connecting(probe) {
            return true;
        }
        let is_same = |a: &&Attempt| {
            a.prober && a.kubelet().is_none() && (is_in_time(a, probe) || is_closed_late(a, probe.written_boot_ns))
        };
        let mut attempts = self.correlator.all().filter(is_same);
        attempts.any(|a| self.may_have_ended_as(a, probe) && self.has_failed(a))
    }
}

/// A busy kubelet closes the socket well after it wrote the line.
fn is_closed_late(attempt: &Attempt, written: u64) -> bool {
    let ends_then = |(end, _)| (written..=written.saturating_add(WAIT_NS)).contains(&end);
    attempt.started <= written && attempt.ended.is_some_and(ends_then)
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const NOT_CONNECTED: &str =
        "timeout: failed to connect service \"10.88.0.2:8080\" within 1s: context deadline exceeded";

    fn answered(stream: &mut Stream, conn: u64) {
        stream.again(conn).connect().established().answers(200);
    }

    #[test]
    fn an_outcome_without_an_attempt_becomes_a_verdict() {
        let mut stream = Stream::new();
        stream.http_readiness().wait_ms(2_000);
        stream.kubelet_messages(ProbeType::Readiness, "Get \"http://10.88.0.2:8080\": EOF");
        let verdict = stream.verdicts().remove(0);
        assert_eq!(stream.quoted(), [("unexplained", true)]);
        assert_eq!((verdict.verdict.confidence, verdict.dst), (Confidence::Possible, None));
        let words = "the readiness probe of container app of pod default/web failed, as the kubelet reports: Get \"http://10.88.0.2:8080\": EOF; no connection of it was seen";
        assert_eq!(verdict.verdict.summary, words);
        assert_eq!(verdict.k8s.and_then(|it| it.pod_name).as_deref(), Some("web"));
    }

    #[test]
    fn the_connection_of_a_probe_with_a_name_as_host_is_not_known() {
        let summary = |host: &str| {
            let mut stream = Stream::new().http_readiness().clone();
            stream.last_pods().pods[0].containers[0].probes[0].host = Some(host.to_owned());
            stream.wait_ms(2_000).kubelet_messages(ProbeType::Readiness, "Get \"http://backend.corp:8080\": EOF");
            stream.verdicts().remove(0).verdict.summary
        };
        assert_ends(&summary("backend.corp"), "its host is a name: tracer does not know which connection was its own");
        assert_ends(&summary("203.0.113.7"), "no connection of it was seen");
    }

    #[test]
    fn an_outcome_soon_after_the_start_may_be_of_an_earlier_attempt() {
        let stream = Stream::new().http_readiness().wait_ms(900).kubelet(ProbeOutput::Timeout).clone();
        assert_ends(&stream.verdict().summary, "no connection of it was seen: it may have begun before tracer did");
    }

    /// The line is read before the events of its attempt.
    #[test]
    fn an_outcome_is_joined_to_an_attempt_that_is_seen_later() {
        let mut stream = Stream::new();
        stream.http_readiness().wait_ms(500).kubelet(ProbeOutput::Timeout).connect().established().wait_ms(1);
        stream.closes((100, 101, 0)).wait_ms(600).tick();
        assert_eq!(stream.verdicts().iter().filter(|it| it.dst.is_none()).count(), 0, "{:?}", stream.quoted());
    }

    /// tracer finds the network namespace of the pod before the list of pods has its name.
    #[test]
    fn a_pod_that_is_not_listed_yet_gets_its_name_from_the_outcome() {
        let reported = |reason: ProbeOutput, fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            let unnamed = |last: u8| Pod { addrs: vec![[10, 88, 0, last].into()], ..Pod::default() };
            stream.push(ObservationKind::Pods(Pods { pods: vec![unnamed(2), unnamed(3)] }));
            fill(&mut stream);
            if reason == ProbeOutput::Network {
                stream.kubelet_at_target(reason)
            } else {
                stream.kubelet(reason)
            };
            stream.wait_ms(600).tick();
            let named =
                |it: &VerdictBody| (it.verdict.cause.name(), it.k8s.as_ref().and_then(|k8s| k8s.pod_name.clone()));
            stream.verdicts().last().map(named).expect("a verdict")
        };
        let web = Some("web".to_owned());
        let refused: fn(&mut Stream) = |stream| _ = stream.connect().refused();
        assert_eq!(reported(ProbeOutput::Network, refused), ("connection_refused", web.clone()));
        let no: fn(&mut Stream) = |stream| _ = stream.connect().established().answers(503);
        assert_eq!(reported(ProbeOutput::Status(503), no), ("app_status_failure", web.clone()));
        assert_eq!(reported(ProbeOutput::Status(404), no), ("unexplained", web.clone()), "of another");
        // The other pod speaks TLS, so its status is not seen.
        let two: fn(&mut Stream) = |stream| {
            stream.connect().established().answers(503);
            stream.again_to(8, "10.88.0.3:8080").connect().established().closes((300, 301, 1500));
        };
        assert_eq!(reported(ProbeOutput::Status(503), two), ("unexplained", web), "which of the two is not known");
    }

    /// The list is a few seconds old: a pod with another uid has the address now.
    #[test]
    fn an_outcome_that_names_the_target_wins_over_a_stale_list() {
        let with = |listed: Option<&str>, reported: Option<&str>, at_target: bool, elsewhere: Option<Pod>| {
            let mut stream = Stream::new().http_readiness().clone();
            let pods = &mut stream.last_pods().pods;
            (pods[0].uid, pods[0].name) = (listed.map(Into::into), Some("old".into()));
            pods.extend(elsewhere);
            stream.wait_ms(2_000).connect().refused();
            stream.kubelet_with(ProbeOutput::Network, |it| {
                (it.pod.uid, it.dst) = (reported.map(Into::into), at_target.then(|| address("10.88.0.2:8080")));
            });
            stream.wait_ms(600).tick();
            let name = |it: VerdictBody| (it.verdict.cause.name(), it.k8s.and_then(|k8s| k8s.pod_name));
            stream.verdicts().into_iter().map(name).collect::<Vec<_>>()
        };
        let named = |listed, reported, at_target| with(listed, reported, at_target, None);
        let (old, web) = (Some("old".to_owned()), Some("web".to_owned()));
        let (refused, unexplained) = (("connection_refused", old), ("unexplained", web.clone()));
        assert_eq!(named(Some("1"), Some("2"), true), [refused.clone(), ("connection_refused", web.clone())]);
        let at = |addrs| Pod { uid: Some("2".into()), name: web.clone(), addrs, ..Pod::default() };
        let beside = |addrs| with(Some("1"), Some("2"), true, Some(at(addrs)));
        assert_eq!(beside(Vec::new()), named(Some("1"), Some("2"), true), "it has no address yet");
        assert_eq!(beside(vec![address("10.88.0.9")]), [refused.clone(), unexplained.clone()], "its probe has a host");
        for (listed, reported, at_target) in
            [(None, Some("2"), true), (Some("1"), None, true), (Some("1"), Some("2"), false)]
        {
            assert_eq!(named(listed, reported, at_target), [refused.clone(), unexplained.clone()]);
        }
    }

    /// The server announces more bytes than it sends, then closes. The kubelet tries three times.
    #[test]
    fn an_outcome_of_several_attempts_that_ended_alike_is_of_the_last_one() {
        let decided = |bytes: [u64; 3], fill: fn(&mut KubeletProbe)| {
            let mut stream = Stream::new().http_readiness().clone();
            for (conn, bytes) in (100..).zip(bytes) {
                stream.again(conn).connect().established().answer(AnswerKind::Http, Some(200));
                stream.server_closes((100, 101, bytes + 1)).wait_ms(1);
            }
            stream.kubelet_error(ProbeType::Readiness, ProbeOutput::Network, "unexpected EOF");
            fill(stream.last_kubelet_probe());
            stream.wait_ms(600).tick();
            let joined: Vec<_> = stream.joined().into_iter().map(|(conn, _)| conn).collect();
            (joined, stream.last_verdict().cause.name(), stream.verdicts().len())
        };
        assert_eq!(decided([80, 80, 80], |_| ()), (vec![102], "closed_without_answer", 1));
        let unexplained = (vec![], "unexplained", 1);
        assert_eq!(decided([80, 80, 90], |_| ()), unexplained, "one may be healthy");
        assert_eq!(decided([80, 80, 80], |it| it.result = KubeletResult::Failure), unexplained, "it is not repeated");
    }

    #[test]
    fn an_outcome_of_one_of_several_healthy_attempts_is_reported_without_a_connection() {
        let mut stream = Stream::new().http_readiness().http_liveness_too().clone();
        answered(&mut stream, 100);
        answered(&mut stream, 101);
        stream.kubelet(ProbeOutput::Timeout).wait_ms(600).tick();
        let verdicts = stream.verdicts();
        assert_eq!(stream.quoted(), [("unexplained", true)]);
        assert_ends(&verdicts[0].verdict.summary, "tracer cannot see which of 2 connections it was");
    }

    /// Two probes wait for the same port, so neither outcome shows its attempt while both are open.
    #[test]
    fn sockets_that_a_busy_kubelet_closes_late_have_the_verdicts_on_its_outcomes() {
        let mut stream = Stream::new().http_readiness().http_liveness_too().clone();
        stream.again(100).connect().ipvs(SYN_ACK, IpvsOp::Translate);
        stream.again(101).connect().ipvs(SYN_ACK, IpvsOp::Translate).wait_ms(1_000);
        let words = "dial tcp 10.88.0.2:8080: i/o timeout";
        stream.kubelet_messages(ProbeType::Liveness, words).kubelet_messages(ProbeType::Readiness, words).wait_ms(80);
        stream.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0));
        stream.back_to(100).state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)).wait_ms(600).tick();
        assert_eq!(stream.causes(), ["nodeport_ephemeral_collision"; 2]);
    }

    /// The kubelet tries until its timeout, and reports at its end. grpc-go waits for a second after a failure. So it may
    /// connect again at that end.
    #[test]
    fn a_failure_to_connect_is_not_reported_again_after_a_refused_connect() {
        let causes = |next: fn(&mut Stream)| {
            let mut stream = Stream::new().grpc_readiness(1).connect().refused().wait_ms(1_001).clone();
            next(&mut stream);
            stream.kubelet_messages(ProbeType::Readiness, NOT_CONNECTED).wait_ms(600).tick().causes()
        };
        assert_eq!(causes(|stream| _ = stream.wait_ms(1)), ["connection_refused"]);
        let again = causes(|stream| _ = stream.again(8).connect().established().closes((0, 1, 0)).wait_ms(9));
        assert_eq!(again, ["connection_refused"]);
    }

    /// The outcome names the address, so the pod need not be listed.
    #[test]
    fn a_failed_connect_to_an_unlisted_pod_is_found_by_its_address() {
        let causes = |dial: fn(&mut Stream)| {
            let mut stream = Stream::new();
            let pod = Pod { addrs: vec![[10, 88, 0, 2].into()], ..Pod::default() };
            dial(stream.push(ObservationKind::Pods(Pods { pods: vec![pod] })).connect());
            stream.kubelet_messages(ProbeType::Readiness, NOT_CONNECTED);
            stream.last_kubelet_probe().dst = "10.88.0.2:8080".parse().ok();
            stream.wait_ms(600).tick().causes()
        };
        let hangs = causes(|stream| _ = stream.established().wait_ms(990).closes((100, 101, 0)).wait_ms(1));
        assert_eq!(hangs, ["slow_response"; 2], "the second one names the pod");
        assert_eq!(causes(|stream| _ = stream.refused().wait_ms(1_002)), ["connection_refused"]);
    }

    /// The cgroups show the uid of a pod, and no address of a pod on the host's network.
    #[test]
    fn a_pod_of_which_only_the_uid_is_known_gets_its_name_from_the_outcome() {
        let stream_of = |host_network: bool| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).wait_ms(2_000).clone();
            let addrs = if host_network { Vec::new() } else { vec![[10, 88, 0, 2].into()] };
            let pod = Pod { uid: Some("x".into()), addrs, host_network, ..Pod::default() };
            stream.push(ObservationKind::Pods(Pods { pods: vec![pod] }));
            stream.again_to(8, if host_network { "10.88.0.1:9100" } else { "10.88.0.2:8080" });
            stream
        };
        let fails = |stream: &mut Stream, status: u16| {
            stream.connect().established().answers(503);
            stream.kubelet_with(ProbeOutput::Status(status), |it| it.pod.uid = Some("x".into())).wait_ms(600).tick();
        };
        let named = |stream: &Stream| {
            let last = stream.verdicts().pop().expect("a verdict");
            let k8s = last.k8s.expect("a pod");
            assert_eq!(last.probe.and_then(|it| it.probe_type), Some(ProbeType::Readiness));
            (last.verdict.cause.name(), k8s.pod_name, k8s.container_name, last.verdict.summary)
        };
        for host_network in [false, true] {
            let mut stream = stream_of(host_network);
            fails(&mut stream, 503);
            let (cause, pod, container, _) = named(&stream);
            assert_eq!((cause, pod.as_deref(), container.as_deref()), ("app_status_failure", Some("web"), Some("app")));
        }
        // The next failure is named before the kubelet writes its line.
        let mut next = stream_of(false);
        fails(&mut next, 503);
        next.again(9).connect().established().answers(503);
        assert_eq!(next.verdicts().pop().and_then(|it| it.k8s?.pod_name).as_deref(), Some("web"));
        let mut other = stream_of(true);
        fails(&mut other, 404);
        assert_eq!(named(&other).0, "unexplained");
        assert_has(&named(&other).3, &["tracer does not know which connection was its own"]);
    }

    /// The pod was deleted, and another one got its address. The list of pods is older.
    #[test]
    fn a_failure_of_the_pod_that_has_the_address_now_does_not_name_the_one_before() {
        let mut stream = Stream::new().http_readiness().wait_ms(2_000).clone();
        let listed = &mut stream.last_pods().pods[0];
        (listed.uid, listed.netns) = (Some("old".into()), Some(Netns(7)));
        let old = Pod { netns: None, ..listed.clone() };
        let new = Pod { uid: Some("new".into()), addrs: old.addrs.clone(), netns: Some(POD), ..Pod::default() };
        stream.push(ObservationKind::Pods(Pods { pods: vec![old, new] }));
        stream.connect().established().answers(503);
        let uid = |stream: &Stream| stream.verdicts().pop().and_then(|it| it.k8s?.pod_uid);
        assert_eq!(uid(&stream).as_deref(), Some("new"));
        stream.kubelet_with(ProbeOutput::Status(503), |it| {
            (it.pod.uid, it.pod.name) = (Some("new".into()), Some("next".into()));
        });
        stream.wait_ms(600).tick();
        let last = stream.verdicts().pop().and_then(|it| it.k8s?.pod_name);
        assert_eq!((stream.joined().len(), last.as_deref()), (1, Some("next")));
        assert!(stream.quoted().iter().all(|(cause, _)| *cause == "app_status_failure"));
    }

    /// grpc-go uses a proxy that the environment names.
    #[test]
    fn a_kubelet_that_connects_only_to_a_proxy_is_a_client_error() {
        let verdict_after = |watched_ms, pid, fill: fn(&mut Stream)| {
            let mut stream = Stream::new().grpc_readiness(1).wait_ms(watched_ms).clone();
            fill(&mut stream);
            stream.wait_ms(1_000).kubelet_messages(ProbeType::Readiness, NOT_CONNECTED);
            stream.last_kubelet_probe().pid = pid;
            stream.wait_ms(600).tick().all_decided().pop()
        };
        let verdict_of = |pid, fill| verdict_after(2_000, pid, fill);
        let verdict = |fill| verdict_of(Some(100), fill);
        let elsewhere = |stream: &mut Stream| {
            stream.again_to(100, "10.0.0.9:3128").connect().prober_with_pid(100).established();
        };
        let (untried, unexplained) =
            (("kubelet_client_error", Confidence::Likely), ("unexplained", Confidence::Possible));
        assert_eq!(verdict(elsewhere), Some(untried));
        assert_eq!(verdict(|_| ()), Some(unexplained), "tracer may not watch the kubelet");
        assert_eq!(
            verdict_after(0, Some(100), elsewhere),
            Some(unexplained),
            "it may have connected before tracer's start"
        );
        let lossy = |stream: &mut Stream| {
            stream.again_to(100, "10.0.0.9:3128").connect().prober_with_pid(100).established().lost(1);
        };
        assert_eq!(verdict(lossy), Some(unexplained));
        let of_another = |stream: &mut Stream| {
            stream.again_to(100, "10.0.0.9:3128").connect().prober_with_pid(101).established();
        };
        assert_eq!(verdict(of_another), Some(unexplained), "tracer may watch another kubelet only");
        let without_hook = |stream: &mut Stream| {
            stream.missing(Hook::SysConnect).again_to(100, "10.0.0.9:3128").connect();
            stream.prober_with_pid(100).established();
        };
        assert_eq!(verdict(without_hook), Some(unexplained), "a connect without a route leaves no trace");
        // As `grpc_health_probe` prints it, in a recording of an older version.
        let mut printed = Stream::new().without_specs().wait_ms(70_000).clone();
        elsewhere(&mut printed);
        printed
            .kubelet_messages(ProbeType::Readiness, "timeout: failed to connect service \"127.0.0.1:8080\" within 1s");
        assert_eq!(printed.wait_ms(600).tick().all_decided(), [unexplained]);
        // A log in JSON names no process.
        assert_eq!(verdict_of(None, of_another), Some(untried));
        let of_haproxy = |stream: &mut Stream| {
            stream.again_to(100, "10.0.0.9:3128").connect().prober_named("haproxy").established();
        };
        assert_eq!(verdict_of(None, of_haproxy), Some(unexplained));
    }

    #[test]
    fn an_outcome_that_may_have_a_verdict_already_gets_none() {
        let mut late = Stream::new().http_readiness().wait_ms(5_000).clone();
        let written = late.now();
        late.wait_ms(2_000).kubelet_at(ProbeOutput::Timeout, written).wait_ms(600).tick();
        assert!(late.quoted().is_empty(), "its attempt may be dropped");
        assert_eq!(lost(&late), 1);
        let mut known = Stream::new().http_readiness().connect().refused().wait_ms(3_000).clone();
        let written = known.now() - 2_900_000_000;
        known.kubelet_at(ProbeOutput::Network, written).wait_ms(600).tick();
        assert_eq!((known.causes(), lost(&known)), (vec!["connection_refused"], 0), "it has its verdict");
        let mut event = Stream::new();
        event.http_readiness().wait_ms(2_000).kubelet_event(ProbeOutput::Timeout, 700).wait_ms(600).tick();
        assert!(event.quoted().is_empty(), "an Event may be about any attempt");
        assert_eq!(lost(&event), 0);
        let mut before = Stream::new();
        let written = before.now() - 500_000_000;
        before.http_readiness().kubelet_at(ProbeOutput::Timeout, written).wait_ms(600).tick();
        assert!(before.quoted().is_empty(), "tracer did not watch yet");
        assert_eq!(lost(&before), 0);
    }

    /// The number of outcomes that were counted as lost.
    fn lost(stream: &Stream) -> u64 {
        let count = |body: &Body| match body {
            Body::Loss(loss) if loss.where_ == "outcomes" => loss.count,
            _ => 0,
        };
        stream.decisions().iter().map(|decision| count(&decision.body)).sum()
    }

    #[test]
    fn outcomes_for_which_there_is_no_room_are_counted() {
        let mut stream = Stream::new();
        stream.http_readiness().wait_ms(2_000);
        for n in 0..super::MAX_WAITING + 5 {
            stream.kubelet_with(ProbeOutput::Timeout, |probe| {
                probe.pod = PodRef { name: Some(format!("web-{n}")), uid: None, ..probe.pod.clone() };
            });
        }
        stream.wait_ms(600).tick();
        assert_eq!((stream.verdicts().len(), lost(&stream)), (super::MAX_WAITING, 5));
    }
}
