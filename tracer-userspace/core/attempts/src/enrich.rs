//! Finds the pod, probe and namespace of an attempt, and whether it failed as that probe (`outcome.rs`). It only looks
//! up the state of the node.

mod lifecycle;
mod matching;
mod other_connects;
mod outcome;
mod protocols;
mod targets;

use std::cell::OnceCell;

use crate::correlate::attempt::Attempt;
use crate::correlate::node::Node;
pub use lifecycle::HandlerMatch;
pub use matching::is_pod;
use matching::{only_pod, outcome_was_logged, single_container};
pub use other_connects::has_api_server;
pub use protocols::{BEFORE_TIMEOUT_NS, LATE_NS, Protocol, is_beginning};
use targets::{Match, PodContainer};
use tracer_model::event::{Container, Handler, Netns, Pod, PodRef, ProbeSpec, ProbeType};
use tracer_model::record::{Endpoint, K8s, NetnsRef, Probe, Process, Subject};

/// An attempt, and the probes and lifecycle handlers that it can be. They are computed at first use.
#[derive(Debug)]
pub struct Matched<'a> {
    attempt: &'a Attempt,
    node: &'a Node,
    on_target: OnceCell<Vec<Match<'a>>>,
    probes: OnceCell<Vec<Match<'a>>>,
    handlers: OnceCell<Vec<HandlerMatch<'a>>>,
}

/// An attempt with its names.
#[derive(Clone, Debug)]
pub struct Named {
    /// Probe or connection.
    pub subject: Subject,
    /// What all fitting probes and lifecycle handlers have in common.
    pub probe: Option<Probe>,
    /// The pod.
    pub k8s: Option<K8s>,
    /// The namespace of the prober's socket.
    pub netns: Option<NetnsRef>,
    /// The client's end.
    pub src: Option<Endpoint>,
    /// The server's end.
    pub dst: Endpoint,
    /// The process that connects.
    pub process: Process,
}

impl<'a> Matched<'a> {
    /// An attempt and the state of the node.
    pub fn new(attempt: &'a Attempt, node: &'a Node) -> Self {
        let (on_target, probes, handlers) = Default::default();
        Self { attempt, node, on_target, probes, handlers }
    }

    fn probes_on_target(&self) -> &[Match<'a>] {
        self.on_target.get_or_init(|| self.find_probes_on_target())
    }

    /// The probes that it can be, see [`find_probes`](Self::find_probes).
    fn matching_probes(&self) -> &[Match<'a>] {
        self.probes.get_or_init(|| self.find_probes())
    }

    /// The lifecycle handlers that it can be, see [`find_handlers`](Self::find_handlers).
    pub fn possible_handlers(&self) -> &[HandlerMatch<'a>] {
        self.handlers.get_or_init(|| self.find_handlers())
    }

    /// Names an attempt.
    pub fn name(&self) -> Named {
        let containers_of = self.containers_of();
        // If it can be a probe of several pods, the pod at the address is not named: `host` of a spec can be any
        // address.
        let pod = if containers_of.is_empty() { self.pod_at_target() } else { only_pod(&containers_of) };
        let redirected: Vec<Match<'_>> = match self.redirected() {
            Some(named) => vec![named],
            None => self.followed(),
        };
        let from: Vec<PodContainer<'_>> = redirected.iter().map(|(pod, container, _)| (*pod, *container)).collect();
        let container = single_container(&containers_of).or_else(|| single_container(&from));
        let src = Endpoint::from(self.attempt.flow.src);
        let asked: Vec<&ProbeSpec> = redirected.iter().map(|(.., spec)| *spec).collect();
        let reported = self.reported_pod().filter(|_| containers_of.is_empty());
        let probe_type = reported.as_ref().and_then(|_| Some(self.attempt.kubelet()?.1.probe_type));
        let of_outcome = || Some(Probe { probe_type: Some(probe_type?), ..Probe::default() });
        let probe = self.agreed().or_else(|| Probe::agreed(&asked)).or_else(of_outcome);
        Named {
            subject: self.subject(probe.as_ref(), pod),
            probe,
            k8s: match (pod.and_then(|pod| k8s(pod, container)), reported) {
                (Some(listed), Some(reported)) if listed.pod_uid == reported.pod_uid => {
                    Some(K8s { container_name: listed.container_name.or(reported.container_name), ..listed })
                }
                (listed, reported) => listed.or(reported),
            },
            netns: self.attempt.netns.map(|inum| netns_ref(inum, self.node)),
            src: (!src.addr.is_unspecified()).then_some(src),
            dst: self.attempt.flow.dst.into(),
            process: Process { pid: self.attempt.actor.pid, comm: self.attempt.actor.comm.clone() },
        }
    }

    /// The pod that the kubelet outcome names: the list of pods may not have it yet.
    fn reported_pod(&self) -> Option<K8s> {
        let (_, reported) = self.attempt.kubelet()?;
        let PodRef { namespace, name, uid } = reported.pod.clone();
        let container_name = reported.container.clone();
        Some(K8s { namespace, pod_name: name, pod_uid: uid, container_name, ..K8s::default() })
    }

    /// What all fitting probes and lifecycle handlers have in common; `None` if no probe spec fits.
    fn agreed(&self) -> Option<Probe> {
        let probe = Probe::agreed(&self.possible_probes())?;
        Some(self.possible_handlers().iter().fold(probe, |probe, (.., handler)| probe.or_of(handler)))
    }

    /// The timeout of the probe, if the specs that fit agree on one.
    pub fn timeout_s(&self) -> Option<u32> {
        self.agreed().and_then(|p| p.timeout_s)
    }

    /// The longest timeout of the probes that it can be; `None` if it can be a lifecycle handler, which has no timeout.
    pub fn longest_timeout_ns(&self) -> Option<u64> {
        let longest = self.possible_probes().iter().map(|spec| u64::from(spec.timeout_s)).max();
        longest.filter(|_| self.possible_handlers().is_empty()).map(|timeout_s| timeout_s * 1_000_000_000)
    }

    /// The shortest and the longest timeout of the probes that it can be, if all of them speak gRPC.
    pub fn grpc_timeouts_ns(&self) -> Option<(u64, u64)> {
        let probes = self.possible_probes();
        let timeouts = || probes.iter().map(|spec| u64::from(spec.timeout_s) * 1_000_000_000);
        let all = probes.iter().all(|spec| spec.handler == Handler::Grpc) && self.possible_handlers().is_empty();
        timeouts().min().zip(timeouts().max()).filter(|_| all)
    }

    /// The kind of the probe, if the specs that fit agree on one.
    pub fn probe_type(&self) -> Option<ProbeType> {
        self.agreed().and_then(|p| p.probe_type)
    }

    /// The scheme of the probe, if the specs that fit agree on one, or the kubelet outcome names it.
    pub fn scheme(&self) -> Option<String> {
        self.agreed().and_then(|p| p.scheme).or_else(|| self.reported_scheme().map(str::to_owned))
    }

    /// The scheme of the URL in the kubelet outcome, if no spec fits. After a redirect it is not the probe's own.
    pub fn reported_scheme(&self) -> Option<&'static str> {
        let is_unlisted = self.possible_probes().is_empty() && self.possible_handlers().is_empty();
        let is_redirected = self.attempt.redirected.is_some() || self.redirected_from().is_some();
        let (_, reported) = self.attempt.kubelet().filter(|_| is_unlisted && outcome_was_logged(self.attempt))?;
        reported.scheme().filter(|_| !is_redirected)
    }

    /// Every probe and lifecycle handler that this attempt can be speaks plain HTTP. If none fits, the kubelet outcome
    /// decides; `None` without one.
    pub fn expects_http(&self) -> Option<bool> {
        let plain =
            |s: &ProbeSpec| s.handler == Handler::Http && s.scheme.as_deref() != Some("https") && s.speaks.is_none();
        let probes = self.possible_probes().into_iter().map(plain);
        let handlers = self.possible_handlers().iter().map(|(.., handler)| handler.scheme != "https");
        probes.chain(handlers).reduce(|all, one| all && one).or_else(|| self.reported_scheme().map(|it| it == "http"))
    }

    /// A probe that it can be speaks plain HTTP, and the port has not answered in plain HTTP before.
    pub fn may_find_no_http(&self) -> bool {
        let in_plain = |spec: &&ProbeSpec| spec.handler == Handler::Http && spec.scheme.as_deref() != Some("https");
        let may_be_plain = self.possible_probes().iter().any(in_plain) || self.reported_scheme() == Some("http");
        may_be_plain && !self.node.tls.spoken(self.attempt.flow.dst).http
    }

    /// A probe that it can be speaks gRPC, perhaps in TLS.
    pub fn may_be_grpc_in_tls(&self) -> bool {
        self.possible_probes().iter().any(|spec| spec.handler == Handler::Grpc && spec.speaks.is_some())
    }

    /// The probes that this attempt can be one of.
    pub fn possible_probes(&self) -> Vec<&'a ProbeSpec> {
        self.matching_probes().iter().map(|(.., spec)| *spec).collect()
    }

    /// The same, with their pods.
    pub fn possible_probes_of_pods(&self) -> impl Iterator<Item = (&'a Pod, &'a ProbeSpec)> {
        self.matching_probes().iter().map(|(pod, _, spec)| (*pod, *spec))
    }

    /// The probe that can restart the container during its start, if the attempt can be that probe and no lifecycle
    /// handler.
    pub fn start_probe(&self) -> Option<&'a ProbeSpec> {
        let spec = self.probed_container()?.1.start_probe()?;
        let can_be = self.possible_probes().iter().any(|it| std::ptr::eq(*it, spec));
        (can_be && self.possible_handlers().is_empty()).then_some(spec)
    }

    /// The probed container, if it can be no other.
    pub fn probed_container(&self) -> Option<(&'a Pod, &'a Container)> {
        let (pod, container, _) = *self.matching_probes().first()?;
        let same = |(_, other): &PodContainer<'_>| std::ptr::eq(*other, container);
        self.containers_of().iter().all(same).then_some((pod, container))
    }

    /// When the container that ran at `at` was started, if tracer watched then. CLOCK_BOOTTIME nanoseconds, up to a
    /// second too early.
    pub fn run_began(&self, at: u64) -> Option<u64> {
        let started = self.probed_container()?.1.runs.as_ref()?.started_boot_ns?;
        (started >= self.node.since() && started <= at).then_some(started)
    }

    /// The probed container is the only one of its pod, so events of the pod's namespace are its own.
    pub fn is_only_container(&self) -> bool {
        self.probed_container().is_some_and(|(pod, _)| pod.containers.len() == 1)
    }

    /// The containers that this attempt can have reached: the probed one, or all of the pod at the address.
    pub fn possible_containers(&self) -> impl Iterator<Item = &'a Container> {
        let probed = self.probed_container().map(|(_, container)| container);
        let others = if probed.is_none() { self.pod_at_target() } else { None };
        probed.into_iter().chain(others.into_iter().flat_map(|pod| &pod.containers))
    }

    /// The probed pod, even if the probe connects to an address that is not the pod's.
    pub fn probed_pod(&self) -> Option<&'a Pod> {
        self.matching_probes().first().map(|(pod, ..)| *pod)
    }

    /// The pods with a probe or lifecycle handler that it can be.
    pub fn possible_pods(&self) -> Vec<&'a Pod> {
        let mut pods: Vec<&'a Pod> = Vec::new();
        for (pod, _) in self.containers_of() {
            if !pods.iter().any(|it| std::ptr::eq(*it, pod)) {
                pods.push(pod);
            }
        }
        pods
    }

    /// The probed pod, if it is on the node's network and it can be no other.
    pub fn only_pod_on_node(&self) -> Option<&'a Pod> {
        only_pod(&self.containers_of()).filter(|pod| pod.host_network)
    }

    /// The pod on the node's network that the kubelet names, if no probes are known.
    pub fn reported_on_node(&self) -> Option<&'a Pod> {
        let (_, reported) = self.attempt.kubelet().filter(|_| self.is_unlisted())?;
        self.node.pods.iter().find(|pod| pod.host_network && is_pod(pod, &reported.pod))
    }

    /// The attempt can be a probe of a pod on the node's network, at an address of the node. Any process of the node may
    /// have accepted it.
    pub fn may_be_on_node(&self) -> bool {
        let can_be = self.probed_pod().map_or_else(|| self.is_unlisted(), |pod| pod.host_network);
        can_be && self.attempt.prober && self.node.is_to_itself(self.attempt)
    }

    /// The pod of a probe that connects to the node's own loopback address, since its `host` names one. The pod has
    /// a network namespace of its own, with another loopback address. `None` if another probe may ask that one.
    pub fn pod_of_loopback_host(&self) -> Option<&'a Pod> {
        let probes = self.matching_probes();
        let by_host = |(pod, _, spec): &Match<'_>| {
            spec.host.is_some() && !pod.host_network && (pod.netns.is_none() || pod.netns != self.attempt.netns)
        };
        let all = self.attempt.flow.dst.ip().is_loopback() && probes.iter().all(by_host);
        self.probed_pod().filter(|_| all && self.possible_handlers().is_empty())
    }

    /// The pod of a probe with a `host` that is not the pod's address. `None` if another probe may ask that one, or if
    /// the pod's addresses are not known.
    pub fn pod_of_other_host(&self) -> Option<&'a Pod> {
        let dst = self.attempt.flow.dst.ip();
        let is_other =
            |(pod, _, spec): &Match<'_>| spec.host.is_some() && !pod.addrs.is_empty() && !pod.addrs.contains(&dst);
        let all = self.matching_probes().iter().all(is_other);
        self.probed_pod().filter(|_| all && self.possible_handlers().is_empty())
    }

    /// No probes are known: of the pod at this address, or of all pods if it is no pod's own address.
    fn is_unlisted(&self) -> bool {
        let (pods, dst) = (&self.node.pods, self.attempt.flow.dst.ip());
        if self.node.has_pod(dst) { !pods.at(dst).any(Pod::has_specs) } else { !pods.have_specs() }
    }

    /// Another probe of the same pod speaks HTTPS to the port of this attempt.
    pub fn https_spec_on_port(&self) -> bool {
        let dst = self.attempt.flow.dst;
        self.node
            .pods
            .at(dst.ip())
            .flat_map(|pod| &pod.containers)
            .any(|c| c.probes.iter().any(|p| p.port == dst.port() && p.scheme.as_deref() == Some("https")))
    }

    /// A probe fits a spec, or the kubelet reported it. If the target's specs are not known, each attempt of a prober
    /// to a pod of this node is a probe. So is one to the node's own addresses, which its host-network pods share.
    fn subject(&self, probe: Option<&Probe>, pod: Option<&Pod>) -> Subject {
        if probe.is_some() || outcome_was_logged(self.attempt) {
            return Subject::Probe;
        }
        let dst = self.attempt.flow.dst.ip();
        let to_pod = match pod {
            Some(pod) => !pod.has_specs(),
            None if self.node.has_pod(dst) => !self.node.pods.at(dst).any(Pod::has_specs),
            None => {
                let owned = self.attempt.netns.is_some_and(|netns| self.node.owns(netns, dst));
                owned && !self.node.pods.have_specs() && !self.may_be_client()
            }
        };
        if self.attempt.prober && to_pod { Subject::Probe } else { Subject::Connection }
    }
}

/// A namespace by number and, if it is the node's or a pod's, by name.
pub fn netns_ref(inum: Netns, node: &Node) -> NetnsRef {
    let name = if node.netns() == Some(inum) {
        Some("host".to_owned())
    } else {
        node.pods.in_netns(inum).and_then(Pod::full_name)
    };
    NetnsRef { inum, cookie: node.cookie(inum).map(|cookie| cookie.to_string()), name }
}

/// "the network namespace of pod default/web". `name`: that of [`netns_ref`].
pub fn describe_netns(inum: Netns, name: Option<&str>) -> String {
    match name {
        Some("host") => "the node's network namespace".to_owned(),
        Some(pod) => format!("the network namespace of pod {pod}"),
        None => format!("network namespace {}", inum.0),
    }
}

fn k8s(pod: &Pod, container: Option<&Container>) -> Option<K8s> {
    let only = || (pod.containers.len() == 1).then(|| pod.containers.first()).flatten();
    let k8s = K8s {
        namespace: pod.namespace.clone(),
        pod_name: pod.name.clone(),
        pod_uid: pod.uid.clone(),
        container_name: container.or_else(only).and_then(|c| c.name.clone()),
        workload: pod.workload.clone(),
    };
    (k8s != K8s::default()).then_some(k8s)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A spec can name any address as its `host`, and so make failures at another pod's address.
    #[test]
    fn a_probe_that_can_be_of_two_pods_names_no_pod() {
        let pod = |mut stream: Stream| {
            stream.connect().established().answers(404);
            let verdict = stream.verdicts().remove(0);
            (
                verdict.verdict.cause.name(),
                verdict.k8s.and_then(|k8s| k8s.pod_name),
                verdict.probe.and_then(|it| it.consecutive_failures),
            )
        };
        let alone = Stream::new().http_readiness().clone();
        assert_eq!(pod(alone), ("app_status_failure", Some("web".to_owned()), Some(1)));
        let several = Stream::new().http_readiness().probed_from_elsewhere().clone();
        assert_eq!(pod(several), ("app_status_failure", None, None));
    }
}
