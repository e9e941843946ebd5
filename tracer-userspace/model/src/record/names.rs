//! Names of what a record is about: probe, pod, address, process, namespace.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::event::{Actor, Ancestor, Handler, LifecycleHandler, Netns, ProbeSpec, ProbeType, Workload, full_name};

/// What is known of a probe.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// `liveness`, `readiness`, `startup`; absent if it can be several of them, or a lifecycle handler of the
    /// container.
    #[serde(rename = "type")]
    pub probe_type: Option<ProbeType>,
    /// `http`, `tcp`, `grpc`, `exec`.
    pub handler: Option<Handler>,
    /// `http`, `https`.
    pub scheme: Option<String>,
    /// The target port.
    pub port: Option<u16>,
    /// Path without the query.
    pub path: Option<String>,
    /// Seconds.
    pub timeout_s: Option<u32>,
    /// Seconds.
    pub period_s: Option<u32>,
    /// Failures in a row until the probe counts as failed.
    pub failure_threshold: Option<u32>,
    /// Failures in a row of this probe so far, with this one; absent if several probes fit and the kubelet has not
    /// named one of them, or if it may not count this failure.
    pub consecutive_failures: Option<u32>,
}

impl Probe {
    /// The fields in which all these specs are the same. `None` for no spec.
    pub fn agreed(specs: &[&ProbeSpec]) -> Option<Self> {
        fn same<T: PartialEq + Clone>(specs: &[&ProbeSpec], get: impl Fn(&ProbeSpec) -> Option<T>) -> Option<T> {
            let first = get(specs.first()?)?;
            specs.iter().all(|s| get(s).as_ref() == Some(&first)).then_some(first)
        }
        specs.first()?;
        Some(Self {
            probe_type: same(specs, |s| Some(s.probe_type)),
            handler: same(specs, |s| Some(s.handler)),
            scheme: same(specs, |s| s.scheme.clone()),
            port: same(specs, |s| Some(s.port)),
            path: same(specs, |s| s.path.clone()),
            timeout_s: same(specs, |s| Some(s.timeout_s)),
            period_s: same(specs, |s| Some(s.period_s)),
            failure_threshold: same(specs, |s| Some(s.failure_threshold)),
            consecutive_failures: None,
        })
    }

    /// The fields that also fit this lifecycle handler, which has no kind, timeout and period.
    #[must_use]
    pub fn or_of(self, handler: &LifecycleHandler) -> Self {
        Self {
            handler: self.handler.filter(|handler| *handler == Handler::Http),
            scheme: self.scheme.filter(|scheme| *scheme == handler.scheme),
            port: self.port,
            path: self.path.filter(|path| *path == handler.path),
            ..Self::default()
        }
    }
}

/// The pod.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct K8s {
    /// Namespace.
    pub namespace: Option<String>,
    /// Pod name.
    pub pod_name: Option<String>,
    /// Pod uid.
    pub pod_uid: Option<String>,
    /// Container name.
    pub container_name: Option<String>,
    /// The object that made the pod; absent for a pod without an owner, or if its owners are not known.
    pub workload: Option<Workload>,
}

impl K8s {
    /// "default/web", or the uid if the name is not known.
    pub fn full_name(&self) -> Option<String> {
        full_name(self.namespace.as_deref(), self.pod_name.as_deref().or(self.pod_uid.as_deref()))
    }
}

/// An address and a port.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Address; v4-mapped addresses are printed as IPv4.
    pub addr: IpAddr,
    /// Port; absent while it is not known.
    pub port: Option<u16>,
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { addr: addr.ip(), port: Some(addr.port()).filter(|&p| p != 0) }
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
}

/// A network namespace.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetnsRef {
    /// Inode number, as `readlink /proc/PID/ns/net` shows it.
    pub inum: Netns,
    /// `net_cookie`, if known.
    pub cookie: Option<String>,
    /// `host` for the node's own namespace, otherwise the pod's name, if known.
    pub name: Option<String>,
}

/// The process that caused a failure or event.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Culprit {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
    /// Executable.
    pub exe: Option<String>,
    /// Ancestors, nearest first.
    pub ancestors: Vec<Ancestor>,
    /// What it did: `link_down`, `reset`.
    pub op: String,
    /// Path by which it entered the affected namespace, if tracer saw that.
    pub netns_path: Option<String>,
    /// The affected namespace.
    pub netns: Option<NetnsRef>,
    /// When it did it, on CLOCK_BOOTTIME.
    pub time_boot_ns: Option<u64>,
}

impl Culprit {
    /// A process of which only this is known.
    pub fn of(actor: &Actor, op: &str, netns: Option<NetnsRef>, time_boot_ns: u64) -> Self {
        Self {
            pid: actor.pid,
            comm: actor.comm.clone(),
            exe: None,
            ancestors: Vec::new(),
            op: op.to_owned(),
            netns_path: None,
            netns,
            time_boot_ns: Some(time_boot_ns),
        }
    }
}
