//! Names for what an attempt touched: its pod, its probe, its namespace; and what came of it, by what its probe wants
//! (`outcome.rs`). Nothing but look-ups in what the node is known to hold.

mod lifecycle;
mod matching;
mod other_connects;
mod outcome;
mod protocols;
mod targets;

use crate::correlate::attempt::Attempt;
use crate::correlate::node::Node;
pub use lifecycle::{HandlerMatch, handlers_met};
use matching::{containers_of, followed, matching_probes, only_pod, outcome_was_logged, redirected, single_container};
pub use matching::{is_named_redirect, is_one_of_several, is_pod, is_probe_of, may_be_localhost, redirected_from};
pub use other_connects::{has_api_server, may_be_client, other_reason};
pub use outcome::{
    failed, is_cut_short, is_no_answer, is_redirect_loop, is_too_late, is_unknown_end, only_connects, sent_no_request,
};
pub use protocols::{
    BEFORE_TIMEOUT_NS, Protocol, expects_grpc, is_beginning, is_without_tls, misspoken, refused_tls, timed_out_after_ns,
};
use targets::{Match, PodContainer};
use tracer_model::event::{Container, Handler, Netns, Pod, ProbeSpec, ProbeType};
use tracer_model::record::{Endpoint, K8s, NetnsRef, Probe, Process, Subject};

/// An attempt with its names.
#[derive(Clone, Debug)]
pub struct Named {
    /// Probe or connection.
    pub subject: Subject,
    /// What the probe specs that fit agree on, and the lifecycle handlers that fit, too.
    pub probe: Option<Probe>,
    /// The pod.
    pub k8s: Option<K8s>,
    /// The namespace it was made in.
    pub netns: Option<NetnsRef>,
    /// The client's end.
    pub src: Option<Endpoint>,
    /// The server's end.
    pub dst: Endpoint,
    /// Who dialled.
    pub process: Process,
}

/// Names an attempt.
pub fn name(attempt: &Attempt, node: &Node) -> Named {
    let containers_of = containers_of(attempt, node);
    // If it can be a probe of several pods, the pod at the address is not named: `host` of a spec can be any address.
    let pod =
        if containers_of.is_empty() { node.pods.only_at(attempt.flow.dst.ip()) } else { only_pod(&containers_of) };
    let redirected: Vec<Match<'_>> = match redirected(attempt, node) {
        Some(named) => vec![named],
        None => followed(attempt, node),
    };
    let from: Vec<PodContainer<'_>> = redirected.iter().map(|(pod, container, _)| (*pod, *container)).collect();
    let container = single_container(&containers_of).or_else(|| single_container(&from));
    let src = Endpoint::from(attempt.flow.src);
    let asked: Vec<&ProbeSpec> = redirected.iter().map(|(.., spec)| *spec).collect();
    let probe = agreed(attempt, node).or_else(|| Probe::agreed(&asked));
    Named {
        subject: subject(attempt, node, probe.as_ref(), pod),
        probe,
        k8s: pod.and_then(|pod| k8s(pod, container)),
        netns: attempt.netns.map(|inum| netns_ref(inum, node)),
        src: (!src.addr.is_unspecified()).then_some(src),
        dst: attempt.flow.dst.into(),
        process: Process { pid: attempt.actor.pid, comm: attempt.actor.comm.clone() },
    }
}

/// What all that it can be agree on; `None` if no probe spec fits.
fn agreed(attempt: &Attempt, node: &Node) -> Option<Probe> {
    let probe = Probe::agreed(&probes_met(attempt, node))?;
    Some(handlers_met(attempt, node).into_iter().fold(probe, |probe, (.., handler)| probe.or_of(handler)))
}

/// The timeout of the probe, if the specs that fit agree on one.
pub fn timeout_s(attempt: &Attempt, node: &Node) -> Option<u32> {
    agreed(attempt, node).and_then(|p| p.timeout_s)
}

/// After what time every probe that it can be has given up; `None` if it can be a lifecycle handler's, which has no timeout.
pub fn longest_timeout_ns(attempt: &Attempt, node: &Node) -> Option<u64> {
    let longest = probes_met(attempt, node).iter().map(|spec| u64::from(spec.timeout_s)).max();
    longest.filter(|_| handlers_met(attempt, node).is_empty()).map(|timeout_s| timeout_s * 1_000_000_000)
}

/// The shortest and the longest timeout of the probes that it can be, if all of them speak gRPC.
pub fn grpc_timeouts_ns(attempt: &Attempt, node: &Node) -> Option<(u64, u64)> {
    let probes = probes_met(attempt, node);
    let timeouts = || probes.iter().map(|spec| u64::from(spec.timeout_s) * 1_000_000_000);
    let all = probes.iter().all(|spec| spec.handler == Handler::Grpc) && handlers_met(attempt, node).is_empty();
    timeouts().min().zip(timeouts().max()).filter(|_| all)
}

/// What the probe decides, if the specs that fit agree on one.
pub fn probe_type(attempt: &Attempt, node: &Node) -> Option<ProbeType> {
    agreed(attempt, node).and_then(|p| p.probe_type)
}

/// The scheme of the probe, if the specs that fit agree on one.
pub fn scheme(attempt: &Attempt, node: &Node) -> Option<String> {
    agreed(attempt, node).and_then(|p| p.scheme)
}

/// Every probe and lifecycle handler that this attempt can be asks in plain HTTP; `None` if none fits.
pub fn expects_http(attempt: &Attempt, node: &Node) -> Option<bool> {
    let plain =
        |s: &ProbeSpec| s.handler == Handler::Http && s.scheme.as_deref() != Some("https") && s.speaks.is_none();
    let probes = probes_met(attempt, node).into_iter().map(plain);
    let handlers = handlers_met(attempt, node).into_iter().map(|(.., handler)| handler.scheme != "https");
    probes.chain(handlers).reduce(|all, one| all && one)
}

/// The probes that this attempt can be one of.
pub fn probes_met<'a>(attempt: &Attempt, node: &'a Node) -> Vec<&'a ProbeSpec> {
    matching_probes(attempt, node).into_iter().map(|(.., spec)| spec).collect()
}

/// The probe that can end the start of the container that this attempt met, if the attempt can be one of it, and is no
/// lifecycle handler's.
pub fn start_probe<'a>(attempt: &Attempt, node: &'a Node) -> Option<&'a ProbeSpec> {
    let spec = probed_container(attempt, node)?.1.start_probe()?;
    let can_be = probes_met(attempt, node).iter().any(|it| std::ptr::eq(*it, spec));
    (can_be && handlers_met(attempt, node).is_empty()).then_some(spec)
}

/// The probed container, if it can be no other.
pub fn probed_container<'a>(attempt: &Attempt, node: &'a Node) -> Option<(&'a Pod, &'a Container)> {
    let (pod, container, _) = *matching_probes(attempt, node).first()?;
    let same = |(_, other): &PodContainer<'_>| std::ptr::eq(*other, container);
    containers_of(attempt, node).iter().all(same).then_some((pod, container))
}

/// When the run of the container began that this attempt met at `at`, if the tracer watched by then: CLOCK_BOOTTIME
/// nanoseconds, up to a second too early.
pub fn run_began(attempt: &Attempt, node: &Node, at: u64) -> Option<u64> {
    let started = probed_container(attempt, node)?.1.runs.as_ref()?.started_boot_ns?;
    (started >= node.since() && started <= at).then_some(started)
}

/// The pod has one container, and it is the probed one: what is heard in the pod's namespace is this container's.
pub fn is_alone(attempt: &Attempt, node: &Node) -> bool {
    probed_container(attempt, node).is_some_and(|(pod, _)| pod.containers.len() == 1)
}

/// The containers that can have met this attempt: the probed one, or all of the pod at the address.
pub fn containers_met<'a>(attempt: &Attempt, node: &'a Node) -> impl Iterator<Item = &'a Container> {
    let probed = probed_container(attempt, node).map(|(_, container)| container);
    let others = if probed.is_none() { node.pods.only_at(attempt.flow.dst.ip()) } else { None };
    probed.into_iter().chain(others.into_iter().flat_map(|pod| &pod.containers))
}

/// The probed pod, even if the probe dials an address that is not the pod's.
pub fn probed_pod<'a>(attempt: &Attempt, node: &'a Node) -> Option<&'a Pod> {
    matching_probes(attempt, node).first().map(|(pod, ..)| *pod)
}

/// Another probe of the same pod speaks HTTPS to the port that this attempt dialled.
pub fn https_spec_on_port(attempt: &Attempt, node: &Node) -> bool {
    let dst = attempt.flow.dst;
    node.pods
        .at(dst.ip())
        .flat_map(|pod| &pod.containers)
        .any(|c| c.probes.iter().any(|p| p.port == dst.port() && p.scheme.as_deref() == Some("https")))
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

/// Matched to a spec; reported by the kubelet to be one; or, where the target's specs are not known, made by the prober to an address
/// of a pod of this node or of the node itself (which its host-network pods share).
fn subject(attempt: &Attempt, node: &Node, probe: Option<&Probe>, pod: Option<&Pod>) -> Subject {
    if probe.is_some() || outcome_was_logged(attempt) {
        return Subject::Probe;
    }
    let dst = attempt.flow.dst.ip();
    let to_pod = match pod {
        Some(pod) => !pod.has_specs(),
        None if node.has_pod(dst) => !node.pods.at(dst).any(Pod::has_specs),
        None => {
            let owned = attempt.netns.is_some_and(|netns| node.owns(netns, dst));
            owned && !node.pods.have_specs() && !may_be_client(attempt, node)
        }
    };
    if attempt.prober && to_pod { Subject::Probe } else { Subject::Connection }
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
    use tracer_core::testing::Stream;
    use tracer_model::event::AnswerKind;

    /// Who may write a pod's spec makes failures at any pod's address: they are not reported as that pod's.
    #[test]
    fn a_probe_that_can_be_another_pods_is_nobodys() {
        let pod = |mut stream: Stream| {
            stream.connect().established().answer(AnswerKind::Http, Some(404));
            stream.closes((100, 101, 200));
            let verdict = stream.verdicts().remove(0);
            (
                verdict.verdict.cause.name(),
                verdict.k8s.and_then(|k8s| k8s.pod_name),
                verdict.probe.and_then(|it| it.consecutive_failures),
            )
        };
        let mut alone = Stream::new();
        alone.http_readiness();
        assert_eq!(pod(alone), ("app_status_failure", Some("web".to_owned()), Some(1)));
        let mut several = Stream::new();
        several.http_readiness().probed_from_elsewhere();
        assert_eq!(pod(several), ("app_status_failure", None, None));
    }
}
