//! Observations: the only input of the pure core, in the form that is recorded and replayed.
//!
//! Kernel events, readings of the node, the passing of time and the loss of events all arrive as an [`Observation`]. So
//! a recorded stream of observations reproduces every verdict.

mod cluster;
mod conn;
mod finding;
mod firewall;
mod flush;
mod inspection;
mod kubelet;
mod limits;
mod node;
mod packet;
mod pod_sockets;
mod port_holders;
pub mod port_ranges;
mod ports;
mod programs;
mod runs;
mod serving;

pub(crate) use cluster::full_name;
pub use cluster::{
    Container, ExecSpec, Handler, LifecycleEvent, LifecycleHandler, Pod, Pods, ProbeProtocol, ProbeSpec, ProbeType,
    Service, ServiceName, ServicePort, Services, Workload,
};
pub use conn::{
    Actor, Answer, ConnId, Connect, ConnectFailed, Flow, Held, Listen, PodConnectFailed, QueueFull, ResetReceived,
    ResetSent, Retransmit, State, TcpFlags, TcpState, TlsHello, process_name,
};
pub use finding::{FindingBody, Status};
pub use firewall::path;
pub use firewall::{Backend, Conntrack, Except, Firewall, FirewallRule, Limit, Prefix, RuleVerdict, When};
pub use flush::{BULK, FlushedRules, RemovedRoute, Remover, RulesFlushed};
pub use inspection::{
    Inspection, LinkQdisc, ListenerState, MOST_LINKS, MOST_LISTENERS, NeighbourState, NoWayBack, RedirectedListeners,
    RoutingRule, StrayRoute, Throttled, TranslatedTarget, WrongNeighbour,
};
pub use kubelet::{
    KNOWN_PROBERS, KubeletProbe, KubeletResult, PodRef, ProbeOutput, SandboxCause, SandboxFailure, WITH_API_SERVER,
    is_kubelet_name, is_object_name,
};
pub use limits::{CgroupCounters, ContainerLimits};
pub use node::{
    Ancestor, LinkChange, LinkState, Links, NetnsOp, NetnsOpen, NodePort, NodePorts, NodeSettings, ParentLink,
    ProxyMode,
};
pub use packet::{Device, Icmp, Ipvs, PacketDrop, Tracked};
pub use pod_sockets::{
    AcceptingProcess, Acceptor, Listener, ListenerAt, MOST_ELSEWHERE, MOST_UNANSWERED, PodSockets, Redirect,
    UnansweredConnect,
};
pub use port_holders::{PortHolder, PortHolders};
pub use ports::{PortPressure, PortUser};
pub use programs::{DeviceProgram, DevicePrograms, MOST_PROGRAMS, ProgramPlace};
pub use runs::{Ended, Runs, Waiting};
pub use serving::{Pressure, RedirectedTo, ServedConnection, ServerProcess, ServerTasks, Serving};

// Recorded as they are on the wire, by their names.
pub use tracer_common::conn::{AnswerKind, Via};
pub use tracer_common::listen::Queue as ListenQueue;
pub use tracer_common::netfilter::IpvsOp;
pub use tracer_common::netns::Op as NetnsOpKind;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Inode number of a network namespace. The kernel reuses it right after the namespace ends, so it identifies a
/// namespace only together with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Netns(pub u32);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// CLOCK_BOOTTIME, nanoseconds.
    pub time_boot_ns: u64,
    #[serde(flatten)]
    pub kind: ObservationKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "observation", rename_all = "snake_case")]
pub enum ObservationKind {
    /// First in every stream: the conditions under which the rest was observed.
    Start(Box<Start>),
    Connect(Connect),
    State(State),
    ConnectFailed(ConnectFailed),
    PodConnectFailed(PodConnectFailed),
    Retransmit(Retransmit),
    /// A RST was sent for a tracked flow.
    ResetSent(ResetSent),
    ResetReceived(ResetReceived),
    Drop(PacketDrop),
    /// An ICMP error was sent for a packet of a tracked flow.
    Icmp(Icmp),
    Ipvs(Ipvs),
    Answer(Answer),
    /// The SYN of a tracked socket reached a listener with a full queue.
    QueueFull(QueueFull),
    /// Events of a tracked connection are held back: it has too many. The first ones of each sort are never held back.
    Held(Held),
    Listen(Listen),
    TlsHello(TlsHello),
    NetnsOp(NetnsOp),
    NetnsOpen(NetnsOpen),
    /// The kernel killed this process for lack of memory. If the kernel gave only its number, the rest is absent.
    OomKill(Actor),
    /// A process set a link up or down (from the hook in the kernel: with the culprit).
    LinkChange(LinkChange),
    /// State of all links of a namespace (from netlink: complete, without a culprit).
    Links(Links),
    /// The NodePorts in the node's own tables.
    NodePorts(NodePorts),
    Pods(Pods),
    /// Services; replaces what was known.
    Services(Services),
    /// The endpoints of one Service, as the cluster API lists them (queried when a verdict needs them). The rest of the
    /// Service is unknown; so are its endpoints if the API did not list them.
    ServiceEndpoints(Box<Service>),
    /// Settings of the node that verdicts quote; replaces what was known.
    NodeSettings(NodeSettings),
    /// The rules that can drop or reject a packet in a namespace (queried when a packet was dropped).
    Firewall(Box<Firewall>),
    /// The state of the namespace that owns a target (queried when it does not answer).
    Inspection(Box<Inspection>),
    /// The sockets of a pod (queried when an attempt to it is over).
    PodSockets(Box<PodSockets>),
    /// The limits of a container (queried when a command of its exec probe failed).
    Limits(Box<ContainerLimits>),
    /// The connections that hold a port without a listener (queried when a connection to it was refused).
    PortHolders(Box<PortHolders>),
    /// The programs of a device (queried when a program there dropped a packet).
    DevicePrograms(Box<DevicePrograms>),
    /// Rules or routes of the node were removed in bulk.
    RulesFlushed(Box<RulesFlushed>),
    /// The processes that use up ephemeral ports.
    PortPressure(Box<PortPressure>),
    KubeletProbe(Box<KubeletProbe>),
    /// The kubelet reports that a pod has no network yet.
    SandboxFailure(Box<SandboxFailure>),
    /// Hooks that are attached later than the others: a kernel module was loaded.
    HooksAttached(HooksAttached),
    /// The findings of the checks of the node; replaces the ones before.
    Findings(Box<Findings>),
    /// A list that `--pods` or `--services` names cannot be read any more, or can be again.
    ListTrouble(ListTrouble),
    Loss(Loss),
    /// A deadline has passed. Recorded when it fires in a live run, so that a replay decides at the same point.
    Tick,
    /// An observation of a kind that this version does not know, in a recording of another one. A replay skips it.
    #[serde(other)]
    Unknown,
}

/// Where an observation comes from.
enum Origin {
    /// From the kernel's ring, about a tracked connection.
    Connection(ConnId),
    /// From the kernel's ring, about anything else.
    Kernel,
    Elsewhere,
}

impl ObservationKind {
    pub const fn conn(&self) -> Option<ConnId> {
        match self.origin() {
            Origin::Connection(conn) => Some(conn),
            Origin::Kernel | Origin::Elsewhere => None,
        }
    }

    /// The observation came from the kernel's ring.
    pub const fn is_kernel_event(&self) -> bool {
        !matches!(self.origin(), Origin::Elsewhere)
    }

    const fn origin(&self) -> Origin {
        match self {
            Self::Connect(Connect { conn, .. })
            | Self::State(State { conn, .. })
            | Self::ConnectFailed(ConnectFailed { conn: Some(conn), .. })
            | Self::Retransmit(Retransmit { conn, .. })
            | Self::ResetSent(ResetSent { conn, .. })
            | Self::ResetReceived(ResetReceived { conn, .. })
            | Self::Drop(PacketDrop { conn, .. })
            | Self::Icmp(Icmp { conn, .. })
            | Self::Ipvs(Ipvs { conn, .. })
            | Self::Answer(Answer { conn, .. })
            | Self::QueueFull(QueueFull { conn, .. })
            | Self::Held(Held { conn }) => Origin::Connection(*conn),
            Self::ConnectFailed(_)
            | Self::PodConnectFailed(_)
            | Self::Listen(_)
            | Self::TlsHello(_)
            | Self::NetnsOp(_)
            | Self::NetnsOpen(_)
            | Self::OomKill(_)
            | Self::LinkChange(_) => Origin::Kernel,
            Self::Start(_)
            | Self::Links(_)
            | Self::NodePorts(_)
            | Self::Pods(_)
            | Self::Services(_)
            | Self::ServiceEndpoints(_)
            | Self::NodeSettings(_)
            | Self::Firewall(_)
            | Self::Inspection(_)
            | Self::PodSockets(_)
            | Self::Limits(_)
            | Self::PortHolders(_)
            | Self::DevicePrograms(_)
            | Self::RulesFlushed(_)
            | Self::PortPressure(_)
            | Self::KubeletProbe(_)
            | Self::SandboxFailure(_)
            | Self::HooksAttached(_)
            | Self::Findings(_)
            | Self::ListTrouble(_)
            | Self::Loss(_)
            | Self::Tick
            | Self::Unknown => Origin::Elsewhere,
        }
    }
}

/// The conditions under which the stream was observed.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Start {
    /// Version of the tracer.
    pub version: String,
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Name of the node.
    pub node_name: String,
    /// Wall clock minus boot clock, nanoseconds: turns `time_boot_ns` into `time`.
    pub boot_to_wall_ns: i64,
    /// The prober's network namespace: the node's own.
    pub node_netns: Option<Netns>,
    /// Network namespaces that were there at the start.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub namespaces: Vec<Netns>,
    /// There may have been more: tracer could not read the namespace of a process, or the list was full.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub namespaces_incomplete: bool,
    /// The cluster API is asked for the endpoints of a Service where a verdict needs them.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub asks_for_endpoints: bool,
    /// The servers of targets are read while attempts wait for them. Unknown in older recordings.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub reads_servers: bool,
    /// Connections of processes with these names are probe attempts.
    pub probers: Vec<String>,
    /// Every process's connections are tracked.
    pub all_connections: bool,
    /// Hooks attached.
    pub hooks: Vec<HookStatus>,
    /// Hooks that this kernel or these privileges refused.
    pub missing_hooks: Vec<MissingHook>,
    /// Hooks on functions of kernel modules that are not loaded. If the module is in use later, they are missing until
    /// they are attached.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub awaited_hooks: Vec<String>,
    /// Whether the probers' own cgroups are watched, and why; absent in older recordings.
    pub prober_hooks: Option<ProberHooks>,
    /// Sources of observations outside the kernel.
    pub sources: Vec<String>,
}

/// Whether the connections of probers are watched at their own cgroups (`--prober-hooks`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProberHooks {
    /// False: the default hooks are attached, which every connection of the node passes.
    pub used: bool,
    /// Why.
    pub reason: String,
}

/// An attached hook.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookStatus {
    /// Name of the hook.
    pub hook: String,
    /// How it is attached: `fentry`, `kprobe`, `raw_tracepoint`, `tracepoint` or `cgroup`.
    #[schemars(extend("enum" = ["fentry", "kprobe", "raw_tracepoint", "tracepoint", "cgroup"]))]
    #[serde(alias = "form")]
    pub program_type: String,
}

/// A hook that is not attached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MissingHook {
    /// Name of the hook.
    pub hook: String,
    /// Why it is missing: what tracer tried, and the kernel's answer.
    pub reason: String,
    /// What cannot be known without it.
    pub lost: String,
}

/// The state of a list in a file. If it cannot be read, the pods or Services read before stay known.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListTrouble {
    pub list: ListFile,
    /// What is wrong with it; absent: it can be read again.
    pub problem: Option<String>,
}

/// Hooks that are not missing any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HooksAttached {
    /// Their names.
    pub hooks: Vec<String>,
}

/// A list that can be in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListFile {
    /// `--pods`
    Pods,
    /// `--services`
    Services,
}

display_as_serialized!(ListFile);

/// The findings of the checks of the node (`tracer doctor`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// At least one for each check.
    pub findings: Vec<FindingBody>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// One of [`Loss::PLACES`]; a recording may name any.
    pub where_: String,
    pub count: u64,
    pub from_boot_ns: u64,
    pub to_boot_ns: u64,
}

impl Loss {
    /// Events that did not fit into the ring.
    pub const RING: &str = "ring";
    /// Connections without an entry in a map of the kernel programs. The kernel refused it, or more connects to one target
    /// waited for their port than have a place. A full map drops its oldest entry without a word: long before, `attempts`
    /// counts.
    pub const MAP: &str = "map";
    /// Events that were lost because the kernel skipped their program.
    pub const PROGRAM: &str = "program";
    /// Begins and ends of listening, if one cgroup makes too many.
    pub const LISTEN: &str = "listen";
    /// Opens of namespaces' files and entries into namespaces. One cgroup makes too many, or the kernel skipped the
    /// program.
    pub const NAMESPACE: &str = "namespace";
    /// New names and moves of probers, if one cgroup makes too many.
    pub const PROBER: &str = "prober";
    /// Changes of links, if one cgroup makes too many.
    pub const LINK: &str = "link";
    /// Events of a connection that has too many: repeated drops, retransmissions, RSTs and errors.
    pub const CONNECTION: &str = "connection";
    /// Attempts that were dropped because too many were open at once.
    pub const ATTEMPTS: &str = "attempts";
    /// Kubelet outcomes that fit no attempt, if too many come at once or too late.
    pub const OUTCOMES: &str = "outcomes";

    pub const PLACES: [&str; 10] = [
        Self::RING,
        Self::MAP,
        Self::PROGRAM,
        Self::LISTEN,
        Self::NAMESPACE,
        Self::PROBER,
        Self::LINK,
        Self::CONNECTION,
        Self::ATTEMPTS,
        Self::OUTCOMES,
    ];

    /// The lost events may have belonged to an attempt. Events that one cgroup makes too often do not count, nor those of
    /// a connection that has too many, which knows itself ([`Held`]): a pod must not lower the confidence of verdicts on
    /// its node.
    pub fn concerns_attempts(&self) -> bool {
        const HELD: [&str; 5] = [Loss::LISTEN, Loss::NAMESPACE, Loss::PROBER, Loss::LINK, Loss::CONNECTION];
        !HELD.contains(&self.where_.as_str())
    }

    /// The number of events in these losses.
    pub fn total<'a>(losses: impl Iterator<Item = &'a Self>) -> u64 {
        losses.fold(0, |sum, loss| sum.saturating_add(loss.count))
    }

    /// The sum of this and a later loss of the same place.
    #[must_use]
    pub fn and(self, later: &Self) -> Self {
        Self {
            count: self.count.saturating_add(later.count),
            from_boot_ns: self.from_boot_ns.min(later.from_boot_ns),
            to_boot_ns: self.to_boot_ns.max(later.to_boot_ns),
            ..self
        }
    }
}
