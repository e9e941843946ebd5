//! Finds the probes that an attempt can be: by its target, its behaviour, and the kubelet outcome.

use super::Matched;
use super::protocols::{BEFORE_TIMEOUT_NS, LATE_NS};
use super::targets::{Match, PodContainer, behaving};
use crate::correlate::attempt::Attempt;
use tracer_model::event::{Container, Handler, KubeletProbe, Pod, PodRef, ProbeSpec, ProbeType, State};

/// How late the status of a container may come.
const STATUS_LATE_NS: u64 = 10_000_000_000;

impl<'a> Matched<'a> {
    /// Several probes fit the target and the behaviour of the attempt.
    pub fn is_one_of_several(&self) -> bool {
        let all = self.probes_on_target();
        let behaving = behaving(all, self.attempt);
        self.running(if behaving.is_empty() { all.to_vec() } else { behaving }).len() > 1
    }

    /// The probe specs that this attempt can be: same address and port, and after its end the same behaviour.
    pub(super) fn find_probes(&self) -> Vec<Match<'a>> {
        if !self.attempt.prober {
            return Vec::new();
        }
        let all = self.probes_on_target();
        if let Some((_, reported)) = self.attempt.kubelet() {
            if let Some(named) = all.iter().copied().find(|it| is_named_by(it, reported)) {
                return vec![named];
            }
            if self.is_of_unlisted_pod(reported) {
                return Vec::new();
            }
        }
        let behaving = behaving(all, self.attempt);
        let all = if behaving.is_empty() && self.possible_handlers().is_empty() { all.to_vec() } else { behaving };
        narrowed(self.running(all), |it| self.ended_at_timeout_of(it))
    }

    /// Of these probes, those that the kubelet runs now (`worker.doProbe`, pkg/kubelet/prober/worker.go).
    fn running(&self, all: Vec<Match<'a>>) -> Vec<Match<'a>> {
        narrowed(all, |it| !self.waits_for_startup(it) && !self.has_started(it) && !self.is_ending(it))
    }

    /// The startup probe of a container that has started: it never runs again. A status may be old, or come late: after a
    /// listener has ended, or a moment after one began, this may be a later run.
    fn has_started(&self, (_, container, spec): &Match<'_>) -> bool {
        let (dst, at) = (self.attempt.flow.dst, self.attempt.started);
        let runs = container.runs.as_ref().filter(|runs| runs.started == Some(true));
        let began = runs.and_then(|runs| runs.started_boot_ns).filter(|began| *began <= at);
        let netns = self.attempt.netns.and_then(|from| self.node.netns_of_addr(from, dst.ip()));
        let (Some(began), Some(netns)) = (began, netns) else { return false };
        let (listeners, lately) = (&self.node.listeners, at.saturating_sub(STATUS_LATE_NS));
        let changed =
            listeners.changed_since(netns, dst, lately) || listeners.ends_at(netns, dst).any(|end| end.0 >= began);
        spec.probe_type == ProbeType::Startup && !changed && self.node.lost_between(began, at) == 0
    }

    /// The pod was being deleted: only its readiness probe runs.
    fn is_ending(&self, (pod, _, spec): &Match<'_>) -> bool {
        spec.probe_type != ProbeType::Readiness && self.node.pods.was_deleting(pod, self.attempt.started)
    }

    /// The probe does not run yet: the kubelet first waits for the success of the container's startup probe. By the
    /// status, which comes late, no success may have been seen since. Or nobody has listened on that port since the start.
    fn waits_for_startup(&self, (_, container, spec): &Match<'_>) -> bool {
        let (dst, at) = (self.attempt.flow.dst, self.attempt.started);
        let is_startup = |it: &&ProbeSpec| it.probe_type == ProbeType::Startup && it.port == dst.port();
        if spec.probe_type == ProbeType::Startup || !container.probes.iter().any(|it| is_startup(&it)) {
            return false;
        }
        let runs = container.runs.as_ref();
        let netns = self.attempt.netns.and_then(|from| self.node.netns_of_addr(from, dst.ip()));
        let made = || netns.and_then(|netns| self.node.namespaces.made(netns)).filter(|_| runs.is_none());
        let began = runs.and_then(|runs| runs.started_boot_ns).or_else(made);
        let Some(began) = began.filter(|began| (self.node.since()..=at).contains(began)) else { return false };
        let by_status = runs.is_some_and(|runs| runs.started == Some(false));
        let heard = |netns| self.node.listeners.changed_since(netns, dst, began);
        let is_silent = || netns.is_some_and(|netns| !heard(netns)) && self.node.lost_between(began, at) == 0;
        !self.node.has_succeeded_since(dst, began) && (by_status || is_silent())
    }

    /// The prober closed the connection at the timeout of this probe, and no answer had begun.
    fn ended_at_timeout_of(&self, (.., spec): &Match<'_>) -> bool {
        let closed = |last: &State| last.own_context && last.errno == Some(0) && last.received() == Some(0);
        let is_closed = self.attempt.last.as_ref().is_some_and(closed) && spec.handler != Handler::Grpc;
        let timeout = u64::from(spec.timeout_s) * 1_000_000_000;
        let window = timeout.saturating_sub(BEFORE_TIMEOUT_NS)..=timeout.saturating_add(LATE_NS);
        is_closed && self.attempt.lasted().is_some_and(|lasted| window.contains(&lasted))
    }

    /// The containers with a probe or lifecycle handler that it can be.
    pub(super) fn containers_of(&self) -> Vec<PodContainer<'a>> {
        let probes = self.matching_probes().iter().map(|(pod, container, _)| (*pod, *container));
        probes.chain(self.possible_handlers().iter().map(|(pod, container, _)| (*pod, *container))).collect()
    }

    /// The attempt can be of this probe: by its spec, or by the pod's address if no spec is known.
    pub fn is_probe_of(&self, probe: &KubeletProbe) -> bool {
        if self.is_of_unlisted_pod(probe) {
            return true;
        }
        let matches = self.matching_probes();
        if !matches.is_empty() {
            return matches.iter().any(|it| is_named_by(it, probe));
        }
        if !self.possible_handlers().is_empty() {
            return false;
        }
        // Without specs, the address gives the pod. If no named pod has it, the kubelet must have named the target.
        self.named_pod().map_or(probe.dst == Some(self.attempt.flow.dst), |pod| is_pod(pod, &probe.pod))
    }

    /// The kubelet outcome names this target for a pod, and only other pods are listed there: the list is stale. Pods on
    /// the host's network share their addresses, so for those the outcome must name the prober's port, too. The probe of
    /// a pod that is listed at another address has a `host`.
    fn is_of_unlisted_pod(&self, probe: &KubeletProbe) -> bool {
        let flow = self.attempt.flow;
        let is_named = probe.dst == Some(flow.dst) && probe.pod.uid.is_some() && !probe.is_event();
        let is_exact = probe.src == Some(flow.src);
        let is_other = |pod: &Pod| pod.uid.is_some() && (is_exact || !pod.host_network) && !is_pod(pod, &probe.pod);
        let probed = self.probes_on_target();
        if !is_named || !self.attempt.prober || !probed.iter().all(|(pod, ..)| is_other(pod)) {
            return false;
        }
        let is_at_other = |pod: &Pod| !pod.addrs.is_empty() && !pod.addrs.contains(&flow.dst.ip());
        if self.node.pods.iter().any(|pod| is_pod(pod, &probe.pod) && is_at_other(pod)) {
            return false;
        }
        !probed.is_empty() || self.node.pods.only_at(flow.dst.ip()).is_some_and(is_other)
    }

    /// The pod at the address. `None` if the list of pods is stale, by the kubelet outcome.
    pub(super) fn pod_at_target(&self) -> Option<&'a Pod> {
        let reported = self.attempt.kubelet().map(|(_, reported)| reported);
        let stale_for = reported.filter(|reported| self.is_of_unlisted_pod(reported));
        let pod = self.node.pods.only_at(self.attempt.flow.dst.ip());
        pod.filter(|pod| stale_for.is_none_or(|reported| is_pod(pod, &reported.pod)))
    }

    /// The pod at the address, if its name is known. Of a pod that is not listed yet, only the network namespace may be
    /// known.
    pub fn named_pod(&self) -> Option<&'a Pod> {
        let pod = self.node.pods.only_at(self.attempt.flow.dst.ip());
        pod.filter(|pod| pod.uid.is_some() || pod.name.is_some())
    }

    /// The prober may have connected to `localhost`, which has another address, too: not all fitting probes name this
    /// address.
    pub fn may_be_localhost(&self) -> bool {
        let names = |(.., spec): &Match<'_>| spec.host.as_deref().is_some_and(|host| host != "localhost");
        let probes = self.matching_probes();
        let by_address = !probes.is_empty() && probes.iter().all(names);
        self.attempt.prober
            && self.attempt.established.is_none()
            && self.attempt.flow.dst.ip().is_loopback()
            && !by_address
    }

    /// The probe that the kubelet outcome names, if its port is another one: it was redirected here. The kubelet
    /// follows a redirect only within the same host (`RedirectChecker`, pkg/probe/http).
    pub(super) fn redirected(&self) -> Option<Match<'a>> {
        let (_, reported) = self.attempt.kubelet().filter(|_| outcome_was_logged(self.attempt))?;
        let mut named = self.target_specs().filter(|it| is_named_by(it, reported));
        // An Event may not name the container, so two probes can fit.
        let only = named.next().filter(|_| named.next().is_none());
        only.filter(|(.., spec)| spec.handler == Handler::Http && spec.port != self.attempt.flow.dst.port())
    }

    /// The probes that may have got the redirect before this connection, if no probe or lifecycle handler has its port.
    pub(super) fn followed(&self) -> Vec<Match<'a>> {
        let Some(first) = self.attempt.redirected.map(|it| it.first) else { return Vec::new() };
        if !self.probes_on_target().is_empty() || !self.possible_handlers().is_empty() {
            return Vec::new();
        }
        let is_first = |spec: &ProbeSpec| spec.handler == Handler::Http && spec.port == first.port();
        self.target_specs().filter(|(.., spec)| is_first(spec)).collect()
    }

    /// The port of the probe that was redirected to this target, by the kubelet outcome or by the redirect before.
    pub fn redirected_from(&self) -> Option<u16> {
        let named = self.redirected().map(|(.., spec)| spec.port);
        named.or_else(|| self.followed().first().map(|(.., spec)| spec.port))
    }

    /// The same for a pod without known specs: the port of the redirect before, if it is another one.
    pub fn may_be_redirected_from(&self) -> Option<u16> {
        let dst = self.attempt.flow.dst;
        let before = self.attempt.redirected?.first.port();
        (before != dst.port() && self.node.has_pod(dst.ip()) && self.is_unlisted()).then_some(before)
    }

    /// The status of the redirect that this connection follows, if it leads to the same port. Only one probe must have
    /// the port: of two, each may have been redirected.
    pub fn redirected_within_port(&self) -> Option<u16> {
        let redirected = self.attempt.redirected.filter(|it| it.first == self.attempt.flow.dst)?;
        let only = self.probes_on_target().len() == 1 && self.possible_handlers().is_empty();
        only.then_some(redirected.status)
    }

    /// The kubelet outcome names this target for a probe of another port.
    pub fn is_named_redirect(&self) -> bool {
        self.redirected().is_some()
    }
}

/// Those for which this holds; all if there is none.
fn narrowed<'a>(all: Vec<Match<'a>>, holds: impl Fn(&Match<'a>) -> bool) -> Vec<Match<'a>> {
    if all.len() < 2 {
        return all;
    }
    let some: Vec<Match<'a>> = all.iter().copied().filter(holds).collect();
    if some.is_empty() { all } else { some }
}

/// The pod of the containers, if they have one in common. Two pods on the host's network can have the same target.
pub(super) fn only_pod<'a>(containers_of: &[PodContainer<'a>]) -> Option<&'a Pod> {
    let (first, _) = containers_of.first()?;
    containers_of.iter().all(|(pod, _)| std::ptr::eq(*pod, *first)).then_some(*first)
}

pub(super) fn single_container<'a>(containers_of: &[PodContainer<'a>]) -> Option<&'a Container> {
    let (_, first) = containers_of.first()?;
    containers_of.iter().all(|(_, c)| c.name == first.name).then_some(*first)
}

/// The pod is the one that the kubelet names: by uid, if both are known. The next pod of a StatefulSet has the same
/// name.
pub fn is_pod(pod: &Pod, named: &PodRef) -> bool {
    let same = |left: &Option<String>, right: &Option<String>| left.is_some() && left == right;
    match &named.uid {
        Some(uid) if pod.uid.is_some() => pod.has_uid(uid),
        _ => same(&pod.name, &named.name) && same(&pod.namespace, &named.namespace),
    }
}

/// The kubelet outcome names this probe. An Event into which the kubelet combined several does not name the container.
fn is_named_by((pod, container, spec): &Match<'_>, probe: &KubeletProbe) -> bool {
    let is_container = container.name == probe.container || probe.is_event() && probe.container.is_none();
    is_pod(pod, &probe.pod) && is_container && spec.probe_type == probe.probe_type
}

/// The kubelet outcome names the target of this attempt.
pub(super) fn outcome_was_logged(attempt: &Attempt) -> bool {
    attempt.prober && attempt.kubelet().is_some_and(|(_, reported)| reported.dst == Some(attempt.flow.dst))
}

#[cfg(test)]
mod tests {
    use super::*;

    use tracer_core::testing::{AnswerKind, POD, ProbeType, Runs, SYN, Stream};

    /// The type of the probe of the last verdict.
    fn last_type(stream: &Stream) -> Option<ProbeType> {
        stream.verdicts().pop().and_then(|it| it.probe).and_then(|it| it.probe_type)
    }

    /// The kubelet runs no other probe before the startup probe has succeeded.
    #[test]
    fn before_its_success_each_attempt_is_of_the_startup_probe() {
        let kind = |started: Option<bool>, fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            stream.wait_ms(5_000).http_startup().readiness_too().http_liveness_too().pod_in(POD);
            let started_boot_ns = Some(stream.seconds_ago(1));
            stream.runs(Runs { started_boot_ns, started, ..Runs::default() });
            fill(&mut stream);
            last_type(&stream)
        };
        let fails: fn(&mut Stream) = |stream| _ = stream.listens(POD, 8080, true).connect().established().answers(503);
        let refused: fn(&mut Stream) = |stream| _ = stream.connect().reset_sent(SYN, true, None);
        assert_eq!(kind(Some(false), fails), Some(ProbeType::Startup));
        assert_eq!([Some(true), None].map(|started| kind(started, fails)), [None, None]);
        assert_eq!(kind(None, refused), Some(ProbeType::Startup), "nobody has listened in this run");
        let after_success: fn(&mut Stream) = |stream| {
            stream.again(7).connect().established().answer(AnswerKind::Http, Some(200)).closes((100, 101, 200));
            stream.wait_ms(10).again(8).connect().established().answers(503);
        };
        assert_eq!(kind(Some(false), after_success), None, "the status is late");
    }

    /// Its only other probe on the port is the liveness probe.
    #[test]
    fn the_startup_probe_of_a_started_container_runs_no_more() {
        let kind = |started: bool, listens_since_ms: u64| {
            let mut stream = Stream::new();
            stream.wait_ms(50_000).http_startup().http_liveness_too().pod_in(POD);
            let started_boot_ns = Some(stream.seconds_ago(40));
            stream.runs(Runs { started_boot_ns, started: Some(started), ..Runs::default() });
            stream.listens(POD, 8080, true).wait_ms(listens_since_ms).connect().established().answers(503);
            last_type(&stream)
        };
        assert_eq!(kind(true, 11_000), Some(ProbeType::Liveness));
        assert_eq!(kind(true, 9_000), None, "the status may be of the run before");
        assert_eq!(kind(false, 11_000), Some(ProbeType::Startup));
        let mut old_status = Stream::new();
        old_status.wait_ms(50_000).http_startup().http_liveness_too().pod_in(POD);
        let started_boot_ns = Some(old_status.seconds_ago(40));
        old_status.runs(Runs { started_boot_ns, started: Some(true), ..Runs::default() });
        old_status.listens(POD, 8080, true).wait_ms(1_000).listens(POD, 8080, false).wait_ms(20_000);
        assert_eq!(last_type(old_status.connect().refused()), None);
    }

    #[test]
    fn only_the_readiness_probe_runs_while_a_pod_is_being_deleted() {
        let kind = |deletes: fn(&mut Stream), deletes_later: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().http_liveness_too().clone();
            stream.last_pods().pods[0].uid = Some("u".into());
            deletes(&mut stream);
            stream.connect().established();
            deletes_later(&mut stream);
            stream.answers(503);
            last_type(&stream)
        };
        assert_eq!(kind(|it| _ = it.deleting(), |_| ()), Some(ProbeType::Readiness));
        assert_eq!(kind(|_| (), |it| _ = it.deleting()), None, "the attempt may be of the liveness probe");
    }

    /// The readiness probe waits for 1 s, the liveness probe for 5 s.
    #[test]
    fn the_timeout_tells_the_probe() {
        let kind = |ms: u64, received: u64| {
            let mut stream = Stream::new().http_readiness().like_liveness_too(5).clone();
            stream.connect().established().wait_ms(ms).own(|it| _ = it.closes((100, 101, received)));
            last_type(&stream)
        };
        assert_eq!(kind(1_002, 0), Some(ProbeType::Readiness));
        assert_eq!(kind(5_003, 0), Some(ProbeType::Liveness));
        assert_eq!(kind(3_000, 0), None);
    }

    fn named(uid: Option<&str>) -> PodRef {
        PodRef { namespace: Some("shop".into()), name: Some("db-0".into()), uid: uid.map(Into::into) }
    }

    #[test]
    fn pods_with_one_name_are_distinguished_by_uid() {
        let pod = |uid: Option<&str>, kubelet_uid: Option<&str>| {
            let PodRef { namespace, name, .. } = named(None);
            Pod {
                namespace,
                name,
                uid: uid.map(Into::into),
                kubelet_uid: kubelet_uid.map(Into::into),
                ..Pod::default()
            }
        };
        let (next, mirror) = (pod(Some("new"), None), pod(Some("of-the-api"), Some("hash")));
        assert!(is_pod(&next, &named(Some("new"))) && !is_pod(&next, &named(Some("old"))));
        assert!(is_pod(&mirror, &named(Some("hash"))) && is_pod(&mirror, &named(Some("of-the-api"))));
        assert!(is_pod(&next, &named(None)) && is_pod(&pod(None, None), &named(Some("old"))), "one uid is not known");
    }
}
