//! The lifecycle handlers that an attempt can be. The kubelet itself connects for them, as it does for probes.

use super::Matched;
use super::targets::{Match, behaving};
use crate::correlate::attempt::{Attempt, End};
use tracer_model::event::{Container, LifecycleEvent, LifecycleHandler, Pod};

/// A lifecycle handler with its pod and container.
pub type HandlerMatch<'a> = (&'a Pod, &'a Container, &'a LifecycleHandler);

const SECOND_NS: u64 = 1_000_000_000;
/// The kubelet runs a postStart handler right after it starts the container (`startContainer`,
/// pkg/kubelet/kuberuntime/kuberuntime_container.go). The time of the start has whole seconds, and the node may be
/// busy.
const AFTER_START_NS: u64 = 10 * SECOND_NS;

impl<'a> Matched<'a> {
    /// The lifecycle handlers that this attempt can be. None if a probe connects to the target, too, and the attempt is
    /// surely that probe.
    pub(super) fn find_handlers(&self) -> Vec<HandlerMatch<'a>> {
        let dst = self.attempt.flow.dst;
        if !self.attempt.prober || !self.node.pods.have_handler_on(dst.port()) {
            return Vec::new();
        }
        let handlers: Vec<HandlerMatch<'a>> = self
            .target_containers()
            .flat_map(|(pod, c)| c.lifecycle.iter().map(move |handler| (pod, c, handler)))
            .filter(|(pod, _, handler)| handler.port == dst.port() && self.connects_to(pod, handler.host.as_deref()))
            .filter(|(_, container, handler)| !is_over(handler, container, self.attempt))
            .collect();
        if !handlers.is_empty() && self.is_surely_a_probe() { Vec::new() } else { handlers }
    }

    /// The kubelet has reported the attempt, or it behaves like a probe of its target and unlike a handler. The time of
    /// a preStop handler does not help: the kubelet may connect for it before tracer learns from the API that the pod
    /// ends.
    fn is_surely_a_probe(&self) -> bool {
        let probes = self.probes_on_target();
        // A handler sends its request at once.
        if !probes.is_empty() && (self.attempt.kubelet().is_some() || self.attempt.carried_no_data()) {
            return true;
        }
        let behaving = behaving(probes, self.attempt);
        let is_due = |(.., spec): &Match<'_>| {
            let period_ns = u64::from(spec.period_s) * SECOND_NS;
            self.node.recent_connects.any_a_period_before(self.attempt.flow.dst, self.attempt.started, period_ns)
        };
        !behaving.is_empty() && (gave_up(self.attempt) || behaving.iter().any(is_due))
    }
}

/// The handler has run long before.
fn is_over(handler: &LifecycleHandler, container: &Container, attempt: &Attempt) -> bool {
    let began = container.runs.as_ref().and_then(|runs| runs.started_boot_ns);
    handler.event == LifecycleEvent::PostStart
        && began.is_some_and(|began| attempt.started > began.saturating_add(AFTER_START_NS))
}

/// The prober closed the connection without an answer, as a probe does at its timeout. A handler has no timeout
/// (`insecureContainerLifecycleHTTPClient`, pkg/kubelet/kubelet.go): it waits for the peer or the kernel.
fn gave_up(attempt: &Attempt) -> bool {
    match attempt.ended {
        Some((_, End::ClosedByProber)) => attempt.received() == Some(0),
        // Not if the error is not known, nor if connect() itself failed.
        Some((_, End::NotEstablished)) => {
            attempt.connect_failed().is_none() && attempt.last.as_ref().is_some_and(|last| last.errno == Some(0))
        }
        _ => false,
    }
}
