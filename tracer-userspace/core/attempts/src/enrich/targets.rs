//! The probes and containers of a target, and the probes that behave like an attempt.

use std::net::IpAddr;

use super::Matched;
use crate::correlate::attempt::Attempt;
use tracer_model::event::{Container, Handler, Pod, ProbeSpec};

/// A probe with its pod and container.
pub(super) type Match<'a> = (&'a Pod, &'a Container, &'a ProbeSpec);
pub(super) type PodContainer<'a> = (&'a Pod, &'a Container);

impl<'a> Matched<'a> {
    /// The containers with probes or lifecycle handlers that may connect to this address.
    pub(super) fn target_containers(&self) -> impl Iterator<Item = PodContainer<'a>> {
        let pods = self.node.pods.targeting(self.attempt.flow.dst.ip());
        pods.flat_map(|pod| pod.containers.iter().map(move |c| (pod, c)))
    }

    /// The probes of the containers with probes or lifecycle handlers that may connect to this address.
    pub(super) fn target_specs(&self) -> impl Iterator<Item = Match<'a>> {
        self.target_containers().flat_map(|(pod, c)| c.probes.iter().map(move |spec| (pod, c, spec)))
    }

    pub(super) fn find_probes_on_target(&self) -> Vec<Match<'a>> {
        self.target_specs()
            .filter(|(.., spec)| spec.port == self.attempt.flow.dst.port())
            .filter(|(pod, _, spec)| self.connects_to(pod, spec.host.as_deref()))
            .collect()
    }

    /// A probe or lifecycle handler connects to this address: its own `host`, the pod's address, or the node's address
    /// for a pod on the host's network.
    pub(super) fn connects_to(&self, pod: &Pod, host: Option<&str>) -> bool {
        let dst = self.attempt.flow.dst.ip();
        if let Some(host) = host {
            return host.parse::<IpAddr>().map_or(host == "localhost" && dst.is_loopback(), |ip| ip == dst);
        }
        if pod.addrs.contains(&dst) {
            return true;
        }
        // A standalone kubelet reports no address for a host-network pod.
        pod.host_network && pod.addrs.is_empty() && self.attempt.netns.is_some_and(|netns| self.node.owns(netns, dst))
    }
}

/// The probes that send a request or not, as the attempt did. All probes, while the attempt is not over.
pub(super) fn behaving<'a>(all: &[Match<'a>], attempt: &Attempt) -> Vec<Match<'a>> {
    let unsent = attempt.request_unsent();
    let silent = attempt.sent_nothing() && !unsent;
    let is_known = silent || unsent || attempt.sent().is_some_and(|n| n > 0);
    let is_alike = |spec: &ProbeSpec| !is_known || (spec.handler == Handler::Tcp) == silent;
    all.iter().copied().filter(|(.., spec)| is_alike(spec)).collect()
}
