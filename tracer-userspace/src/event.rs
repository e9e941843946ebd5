//! Observations: everything the pure core is ever told, in the form that is recorded and replayed.
//!
//! Kernel events, facts read from the node, the passing of time and the loss of events all arrive
//! as an [`Observation`]. Nothing else reaches correlation and classification, so a recorded stream
//! of observations reproduces every verdict.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identity of one connection while this boot lasts. Printed as a string: JSON numbers lose 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Inode number of a network namespace. Reused by the kernel at once after a namespace ends, so it
/// is an identity only together with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Netns(pub u32);

/// One thing that was seen, and when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// CLOCK_BOOTTIME, nanoseconds.
    pub time_boot_ns: u64,
    /// What was seen.
    #[serde(flatten)]
    pub fact: Fact,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// First in every stream: what the rest was seen with.
    Start(Box<Start>),
    /// A connect began.
    Connect(Connect),
    /// A tracked socket changed state.
    State(State),
    /// `connect()` failed at once.
    ConnectFailed(ConnectFailed),
    /// A segment of a tracked socket was sent again.
    Retransmit(Retransmit),
    /// A RST was sent for a tracked flow.
    ResetSent(ResetSent),
    /// A tracked socket received a RST.
    ResetReceived(ResetReceived),
    /// A packet of a tracked flow was dropped.
    Drop(PacketDrop),
    /// An ICMP error was sent for a packet of a tracked flow.
    Icmp(Icmp),
    /// IPVS took a packet of a tracked flow.
    Ipvs(Ipvs),
    /// A socket began or ceased to listen.
    Listen(Listen),
    /// A TLS ClientHello arrived at a watched port.
    TlsHello(TlsHello),
    /// A task entered or made a network namespace, or one ended.
    NetnsOp(NetnsOp),
    /// A task opened a file that names a network namespace.
    NetnsOpen(NetnsOpen),
    /// Somebody set a link up or down (from the hook in the kernel: with the culprit).
    LinkChange(LinkChange),
    /// State of all links of a namespace (from netlink: complete, without a culprit).
    Links(Links),
    /// The NodePorts of the node, as its own tables have them.
    NodePorts(NodePorts),
    /// Pods and their probes; replaces what was known.
    Pods(Pods),
    /// Services; replaces what was known.
    Services(Services),
    /// Settings of the node that verdicts quote; replaces what was known.
    NodeSettings(NodeSettings),
    /// Events were lost.
    Loss(Loss),
    /// Time passed and something was due. Written when a deadline fires live, so that a replay decides at the same point.
    Tick,
}

/// What the stream was seen with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_netns: Option<Netns>,
    /// Process names whose connections are probe attempts.
    pub probers: Vec<String>,
    /// Every process's connections are tracked.
    pub all_connections: bool,
    /// Hooks in force.
    pub hooks: Vec<HookStatus>,
    /// Hooks that this kernel or these privileges refused.
    pub missing_hooks: Vec<MissingHook>,
    /// Where facts from outside the kernel stream come from.
    pub sources: Vec<String>,
}

/// A hook in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookStatus {
    /// Name of the hook.
    pub hook: String,
    /// `fentry`, `kprobe`, `raw_tracepoint` or `tracepoint`.
    pub form: String,
}

/// A hook that is not in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MissingHook {
    /// Name of the hook.
    pub hook: String,
    /// Why: what was tried and the kernel's answer.
    pub reason: String,
    /// What cannot be told without it.
    pub lost: String,
}

/// A task, from an event in its own context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    /// Thread group id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name.
    pub comm: String,
    /// Namespace it is in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// cgroup v2 id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup: Option<u64>,
    /// kernfs id of its memory cgroup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup_memory: Option<u64>,
}

/// An ancestor of a culprit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ancestor {
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: String,
}

/// Source and destination of a packet or a connection. Port 0: not chosen yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// Source.
    pub src: SocketAddr,
    /// Destination.
    pub dst: SocketAddr,
}

impl Flow {
    /// The other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }
}

/// TCP states, `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the kernel's own names")]
pub enum TcpState {
    Established,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    NewSynRecv,
    /// A number that no kernel up to 7.2 has.
    Unknown,
}

/// How an event was tied to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// By the socket.
    Socket,
    /// By the exact tuple.
    Flow,
    /// By destination and the source port of the waiting socket.
    Pending,
    /// By the destination only.
    Destination,
}

/// A connect began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    /// Identity.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// From the client's side.
    pub flow: Flow,
    /// Who connects.
    pub actor: Actor,
    /// Namespace of the socket.
    pub netns: Netns,
    /// The connecting process carries one of the prober's names.
    pub prober: bool,
    /// Hook.
    pub hook: String,
}

/// A tracked socket changed state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Identity.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// From the client's side.
    pub flow: Flow,
    /// Before.
    pub old: TcpState,
    /// After.
    pub new: TcpState,
    /// `sk_err`, positive; absent if this kernel's layout is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub errno: Option<i32>,
    /// Payload received so far.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_received: Option<u64>,
    /// Payload sent so far, retransmits included.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_sent: Option<u64>,
    /// Sequence numbers acknowledged; the SYN counts one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_acked: Option<u64>,
    /// The change happened in the connecting process's own context (a close, not a segment).
    pub own_context: bool,
}

/// `connect()` failed at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectFailed {
    /// Identity, if the socket reached SYN_SENT.
    #[serde(with = "as_string_opt", skip_serializing_if = "Option::is_none", default)]
    pub conn: Option<ConnId>,
    /// What was dialled.
    pub dst: SocketAddr,
    /// Who dialled.
    pub actor: Actor,
    /// Positive errno.
    pub errno: i32,
    /// The process carries one of the prober's names.
    pub prober: bool,
}

/// A segment of a tracked socket was sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retransmit {
    /// The connection.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// State of its socket.
    pub state: TcpState,
}

/// A TLS ClientHello arrived at a watched port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsHello {
    /// Namespace of the server's socket, if it could be read.
    pub netns: Option<Netns>,
    /// The server's address and port.
    pub addr: SocketAddr,
}

/// A task opened a file that names a network namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetnsOpen {
    /// Who.
    pub actor: Actor,
    /// The path as it was given.
    pub path: String,
}

/// State of all links of a namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// The namespace.
    pub netns: Netns,
    /// Its links.
    pub links: Vec<LinkState>,
}

/// Pods and their probes; replaces what was known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pods {
    /// All pods of this node.
    pub pods: Vec<Pod>,
}

/// Services; replaces what was known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Services {
    /// All Services.
    pub services: Vec<Service>,
}

/// A RST left this host's stack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetSent {
    /// The connection it concerns.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// Direction of the RST.
    pub flow: Flow,
    /// Who sent it, if it was sent by close or abort.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub actor: Option<Actor>,
    /// Kernel's reason by name (6.12 and later), e.g. `NO_SOCKET`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Namespace of the sender.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// The answered segment's flags.
    pub answered: TcpFlags,
    /// State of the sending socket.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<TcpState>,
    /// The stack found no socket.
    pub no_socket: bool,
    /// How it was tied to the connection.
    pub via: Via,
    /// Hook.
    pub hook: String,
}

/// A tracked socket received a RST.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetReceived {
    /// The connection.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// From the client's side.
    pub flow: Flow,
    /// State when it came.
    pub state: TcpState,
    /// Payload received before.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_received: Option<u64>,
}

/// TCP flags, byte 13 of the header (RFC 9293 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// A SYN without ACK: the client's first segment.
    #[must_use]
    pub const fn is_syn(self) -> bool {
        self.0 & 0x12 == 0x02
    }
    /// A SYN with ACK: the server's answer.
    #[must_use]
    pub const fn is_syn_ack(self) -> bool {
        self.0 & 0x12 == 0x12
    }
    /// A RST.
    #[must_use]
    pub const fn is_rst(self) -> bool {
        self.0 & 0x04 != 0
    }
    /// "SYN", "SYN-ACK", "RST", "FIN" or "segment".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            f if f & 0x04 != 0 => "RST",
            f if f & 0x12 == 0x12 => "SYN-ACK",
            f if f & 0x02 != 0 => "SYN",
            f if f & 0x01 != 0 => "FIN",
            _ => "segment",
        }
    }
}

/// A packet of a tracked flow was dropped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PacketDrop {
    /// The connection.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// Direction of the packet.
    pub flow: Flow,
    /// Its flags.
    pub flags: TcpFlags,
    /// Kernel's reason by name, without the `SKB_DROP_REASON_` prefix; absent before 5.17.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Function that dropped it, where kallsyms could be read and it was needed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub location: Option<String>,
    /// Its callers, nearest first, where they could be read and were needed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stack: Vec<String>,
    /// Namespace it was dropped in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// Device it was on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<Device>,
    /// How it was tied to the connection.
    pub via: Via,
}

/// A network device as an event saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// IFF_UP was set.
    pub up: bool,
    /// IFF_LOOPBACK was set.
    pub loopback: bool,
}

/// An ICMP error was sent for a packet of a tracked flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Icmp {
    /// The connection.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// Direction of the packet complained about.
    pub flow: Flow,
    /// Its flags.
    pub flags: TcpFlags,
    /// ICMPv6.
    pub v6: bool,
    /// Type.
    pub icmp_type: u8,
    /// Code.
    pub code: u8,
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
}

/// IPVS took a packet of a tracked flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ipvs {
    /// The connection.
    #[serde(with = "as_string")]
    pub conn: ConnId,
    /// Direction of the packet before translation.
    pub flow: Flow,
    /// Its flags.
    pub flags: TcpFlags,
    /// What IPVS did.
    pub op: IpvsOp,
    /// How it was tied to the connection.
    pub via: Via,
    /// Namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
}

/// What IPVS did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpvsOp {
    /// Sent it to a backend.
    Translate,
    /// Found a virtual service without a backend.
    NoBackend,
    /// Made an IPVS connection for it.
    Schedule,
}

/// A socket began or ceased to listen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listen {
    /// Namespace.
    pub netns: Netns,
    /// Bound address and port.
    pub addr: SocketAddr,
    /// Who.
    pub actor: Actor,
    /// Began (true) or ceased.
    pub begins: bool,
}

/// What was done with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetnsOpKind {
    /// `setns(2)`
    Setns,
    /// `unshare(2)`
    Unshare,
    /// `clone(2)` with a new namespace.
    Clone,
    /// The namespace ended.
    End,
    /// Entered or made: the hook cannot tell.
    Switch,
}

/// A task entered or made a namespace, or one ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetnsOp {
    /// Who; its `netns` is where it came from.
    pub actor: Actor,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
    /// Where to.
    pub netns: Netns,
    /// What.
    pub op: NetnsOpKind,
}

/// Somebody set a link up or down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkChange {
    /// Namespace of the device.
    pub netns: Netns,
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// Up (true) or down.
    pub up: bool,
    /// Who.
    pub actor: Actor,
    /// Its ancestors, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub ancestors: Vec<Ancestor>,
    /// Its executable.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    /// Hook.
    pub hook: String,
}

/// A link as netlink has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Interface index.
    pub ifindex: u32,
    /// Name.
    pub name: String,
    /// IFF_UP.
    pub up: bool,
    /// IFF_LOOPBACK.
    pub loopback: bool,
    /// Addresses assigned to it.
    pub addrs: Vec<IpAddr>,
}

/// Who keeps the NodePort tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProxyMode {
    /// IPVS virtual services.
    Ipvs,
    /// iptables chains (legacy or nft backend).
    Iptables,
    /// kube-proxy's nftables mode.
    Nftables,
}

/// The NodePorts of the node, as one of its tables has them; replaces what that table said before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePorts {
    /// Namespace the table was read in.
    pub netns: Netns,
    /// Which table.
    pub mode: ProxyMode,
    /// The ports.
    pub ports: Vec<NodePort>,
}

/// One NodePort.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePort {
    /// The port.
    pub port: u16,
    /// Addresses of the node it is served on (IPVS has one virtual service for each); empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// `namespace/name[:port]` of the Service, where the table carries it (iptables comments, nftables maps) or a Service list does.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Backends (IPVS); empty: none, or the table does not carry them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub backends: Vec<SocketAddr>,
}

/// A pod of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Kubernetes namespace; absent if only the uid is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub namespace: Option<String>,
    /// Name; absent if only the uid is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Uid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uid: Option<String>,
    /// Addresses.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addrs: Vec<IpAddr>,
    /// Its network namespace, if a process of it was found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// Shares the node's network.
    #[serde(default)]
    pub host_network: bool,
    /// Containers.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Name; absent if only the id is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub id: Option<String>,
    /// Its network probes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub probes: Vec<ProbeSpec>,
}

/// One network probe of a container, defaults applied and named ports resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ProbeSpec {
    /// What it decides.
    #[serde(rename = "type")]
    pub probe_type: ProbeType,
    /// How it asks.
    pub handler: Handler,
    /// `http` or `https`, for HTTP probes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheme: Option<String>,
    /// Port dialled.
    pub port: u16,
    /// Address dialled, where it is not the pod's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub host: Option<String>,
    /// Path, for HTTP probes; without the query.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// Seconds until the kubelet gives up.
    pub timeout_s: u32,
    /// Seconds between attempts.
    pub period_s: u32,
    /// Failures in a row until it counts.
    pub failure_threshold: u32,
    /// Seconds before the first attempt.
    #[serde(default)]
    pub initial_delay_s: u32,
}

/// What a probe decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProbeType {
    /// Restarts the container.
    Liveness,
    /// Takes the pod out of its Services.
    Readiness,
    /// Holds the other two back.
    Startup,
}

/// How a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Handler {
    /// `httpGet`
    Http,
    /// `tcpSocket`
    Tcp,
    /// `grpc`
    Grpc,
}

/// A Service, as far as verdicts need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Cluster addresses.
    pub cluster_ips: Vec<IpAddr>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// Ready endpoint addresses; absent if no EndpointSlice was given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ready_endpoints: Option<Vec<IpAddr>>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub name: Option<String>,
    /// Port of the Service.
    pub port: u16,
    /// NodePort, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_port: Option<u16>,
}

/// Settings of the node that verdicts quote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// `net.ipv4.ip_local_port_range` of the node's namespace.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub local_port_range: Option<(u16, u16)>,
    /// `net.ipv4.ip_local_reserved_ports`, as inclusive ranges.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub reserved_ports: Vec<(u16, u16)>,
    /// Anything else, by sysctl name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub sysctls: BTreeMap<String, String>,
}

/// Events were lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// `ring`, `program`.
    pub where_: String,
    /// How many.
    pub count: u64,
    /// Since when.
    pub from_boot_ns: u64,
    /// Until when.
    pub to_boot_ns: u64,
}

/// 64-bit ids as strings.
mod as_string {
    use super::ConnId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(id: &ConnId, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&id.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ConnId, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map(ConnId).map_err(D::Error::custom)
    }
}

/// The same for ids that may be absent.
mod as_string_opt {
    use super::ConnId;
    use serde::{Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "serde's `with` hands over a reference to the field")]
    pub(super) fn serialize<S: Serializer>(id: &Option<ConnId>, s: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => super::as_string::serialize(id, s),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ConnId>, D::Error> {
        super::as_string::deserialize(d).map(Some)
    }
}
