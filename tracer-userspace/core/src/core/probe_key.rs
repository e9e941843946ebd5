//! Identifies a probe from one attempt to the next, and names it in findings.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use tracer_attempts::enrich::Named;
use tracer_model::event::ProbeType;
use tracer_model::record::{FindingBody, Status};

/// Target and kind of a probe, its pod and container if they are known: an address can be given to another pod, and
/// containers of a pod can have probes of one port (Istio rewrites all to one).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbeKey {
    dst: SocketAddr,
    pub(super) probe_type: ProbeType,
    pod: Option<String>,
    container: Option<String>,
}

impl ProbeKey {
    /// `None` if the kind of the probe is not known.
    pub(super) fn of(dst: SocketAddr, named: &Named) -> Option<Self> {
        Some(Self::of_type(dst, named, named.probe.as_ref()?.probe_type?))
    }

    /// The key of the probe of this kind.
    pub(super) fn of_type(dst: SocketAddr, named: &Named, probe_type: ProbeType) -> Self {
        let pod = named.k8s.as_ref().and_then(|k8s| k8s.pod_uid.clone().or_else(|| k8s.pod_name.clone()));
        let container = named.k8s.as_ref().and_then(|k8s| k8s.container_name.clone());
        Self { dst, probe_type, pod, container }
    }

    /// The key of the same probe while its pod was not known.
    pub(super) fn without_pod(&self) -> Self {
        Self { pod: None, container: None, ..self.clone() }
    }
}

/// A finding about this container, with status ok and without texts.
pub(super) fn about(dst: SocketAddr, named: &Named, check: &str) -> FindingBody {
    let k8s = named.k8s.clone().unwrap_or_default();
    let names = [("namespace", k8s.namespace), ("pod_name", k8s.pod_name), ("container_name", k8s.container_name)];
    let mut fields: BTreeMap<String, Value> =
        names.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect();
    fields.insert("target".into(), json!(dst.to_string()));
    fields.extend(named.probe.as_ref().and_then(|p| p.probe_type).map(|kind| ("probe".to_owned(), json!(kind))));
    FindingBody { fields, ..FindingBody::new(check, Status::Ok) }
}

/// "shop/cart app (10.88.0.2:8080)"
pub(super) fn place(dst: SocketAddr, named: &Named) -> String {
    let Some(k8s) = &named.k8s else { return dst.to_string() };
    let text = |word: &Option<String>| word.clone().unwrap_or_else(|| "?".into());
    let container = k8s.container_name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    format!("{}/{}{container} ({dst})", text(&k8s.namespace), text(&k8s.pod_name))
}
