//! Which probe it is, from one attempt to the next.

use std::net::SocketAddr;

use crate::enrich::Named;
use tracer_model::event::ProbeType;

/// Target, kind of probe, and pod, as far as that is known: an address is given to another pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbeKey {
    dst: SocketAddr,
    pub(super) probe_type: ProbeType,
    pod: Option<String>,
}

impl ProbeKey {
    /// `None` where the kind of the probe is open.
    pub(super) fn of(dst: SocketAddr, named: &Named) -> Option<Self> {
        let probe_type = named.probe.as_ref()?.probe_type?;
        let pod = named.k8s.as_ref().and_then(|k8s| k8s.pod_uid.clone().or_else(|| k8s.pod_name.clone()));
        Some(Self { dst, probe_type, pod })
    }

    /// As it was while the pod was not known.
    pub(super) fn without_pod(&self) -> Self {
        Self { pod: None, ..self.clone() }
    }
}
