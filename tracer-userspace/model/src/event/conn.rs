//! Events of one connection: connect, states, RSTs, listeners.

use std::net::SocketAddr;
use tracer_common::names::Hook;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::skip_serializing_none;

use super::{AnswerKind, ListenQueue, Netns, Via};

/// Number of a connection, unique until the next boot. Printed as a string, as JSON numbers cannot hold 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

impl std::fmt::Display for ConnId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for ConnId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ConnId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A task, from an event in its own context.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    pub pid: u32,
    pub tid: u32,
    pub comm: String,
    pub netns: Option<Netns>,
    /// cgroup v2 id.
    pub cgroup: Option<u64>,
    /// kernfs id of its memory cgroup.
    pub cgroup_memory: Option<u64>,
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&process_name(&self.comm, self.pid))
    }
}

/// "nginx (pid 7)"
pub fn process_name(comm: &str, pid: u32) -> String {
    format!("{comm} (pid {pid})")
}

/// Source and destination of a packet or a connection. Port 0: not chosen yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Flow {
    pub src: SocketAddr,
    pub dst: SocketAddr,
}

impl Flow {
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src }
    }

    /// This flow has the other's addresses and ports; a port 0 of this flow stands for any port.
    pub fn covers(self, other: Self) -> bool {
        let covers =
            |own: SocketAddr, other: SocketAddr| own.ip() == other.ip() && [0, other.port()].contains(&own.port());
        covers(self.src, other.src) && covers(self.dst, other.dst)
    }
}

/// "10.88.0.1:40000 -> 10.88.0.2:8080"
impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.src, self.dst)
    }
}

/// TCP states, `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    pub conn: ConnId,
    /// Source and destination, as the client sees them.
    pub flow: Flow,
    pub actor: Actor,
    pub netns: Netns,
    /// The connecting process has one of the prober's names.
    pub prober: bool,
    pub hook: Hook,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub conn: ConnId,
    /// Source and destination, as the client sees them.
    pub flow: Flow,
    pub old: TcpState,
    pub new: TcpState,
    /// `sk_err`, positive; absent if the layout of this kernel is not known.
    pub errno: Option<i32>,
    /// Bytes received so far, as the kernel counts them: the peer's FIN counts as one.
    pub bytes_received: Option<u64>,
    /// Payload sent so far, retransmits included.
    pub bytes_sent: Option<u64>,
    /// Sequence numbers acknowledged; the SYN counts as one.
    pub bytes_acked: Option<u64>,
    /// The change happened in the connecting process's own context (a close, not a segment).
    pub own_context: bool,
    /// The process had written bytes that were not sent: the peer's window was closed. In older recordings this is not
    /// known.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub unsent: bool,
    /// Nanoseconds since the last segment of either side, to the microsecond. While nothing was received: since data was
    /// acknowledged. In older recordings, a keepalive segment counts, too.
    pub quiet_ns: Option<u64>,
}

impl State {
    /// Payload bytes received so far.
    pub fn received(&self) -> Option<u64> {
        // The peer's FIN counts one in bytes_received (net/ipv4/tcp_input.c, tcp_queue_rcv).
        // LAST_ACK follows CLOSE_WAIT only (RFC 9293 3.3.2).
        let has_fin = |state| matches!(state, TcpState::CloseWait | TcpState::LastAck);
        let fin = u64::from(has_fin(self.old) || has_fin(self.new));
        self.bytes_received.map(|n| n.saturating_sub(fin))
    }
}

/// `connect()` failed at once.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectFailed {
    /// Number of the connection, if the socket reached SYN_SENT.
    pub conn: Option<ConnId>,
    pub dst: SocketAddr,
    pub actor: Actor,
    /// Positive errno.
    pub errno: i32,
    /// The process has one of the prober's names.
    pub prober: bool,
}

/// A connect of a pod with a failed probe got an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodConnectFailed {
    pub netns: Netns,
    pub dst: SocketAddr,
    /// UDP, else TCP.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub udp: bool,
    /// Positive errno.
    pub errno: i32,
}

/// A segment of a tracked socket was retransmitted.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retransmit {
    pub conn: ConnId,
    pub state: TcpState,
    /// Payload of the segment, bytes.
    pub payload: Option<u32>,
    /// The target's socket sent it, not the prober's.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub by_target: bool,
}

/// The first payload arrived at a tracked socket.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub conn: ConnId,
    pub kind: AnswerKind,
    pub status: Option<u16>,
    /// The prober had sent payload before; absent in older recordings, or if the layout of this kernel is not known.
    pub asked: Option<bool>,
    /// Payload of the segment, bytes; absent in older recordings.
    pub len: Option<u16>,
    /// The server's text says that the port speaks TLS.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub says_tls: bool,
}

impl Answer {
    /// The length of the header of an HTTP/2 frame (RFC 9113 4.1). No answer over HTTP/2 or TLS is shorter.
    pub const FRAME: u64 = 9;

    /// The bytes are no frame with which a server of HTTP/2 begins, nor cut within one. Older recordings without the
    /// length call such a frame `Other`, too.
    pub fn is_no_frame(&self) -> bool {
        self.kind == AnswerKind::Other && self.len.is_some_and(|len| u64::from(len) >= Self::FRAME)
    }

    /// An interim answer (`100 Continue`, `103 Early Hints`): the next one counts (RFC 9110 15.2). Go's client
    /// continues to read after each of them, except `101 Switching Protocols`, which is final.
    pub fn is_interim(&self) -> bool {
        self.status.is_some_and(|status| (100..200).contains(&status) && status != 101)
    }
}

/// The SYN of a tracked socket reached a listener with a full queue: the kernel drops it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueFull {
    pub conn: ConnId,
    pub queue: ListenQueue,
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// How many may wait.
    pub backlog: u32,
    pub half_open: u32,
    pub netns: Option<Netns>,
}

/// A TLS ClientHello arrived at a watched port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsHello {
    /// Namespace of the server's socket, if it could be read.
    pub netns: Option<Netns>,
    pub addr: SocketAddr,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetSent {
    pub conn: ConnId,
    /// Direction of the RST.
    pub flow: Flow,
    /// The process that sent it, if it was sent by close or abort.
    pub actor: Option<Actor>,
    /// Kernel's reason by name (6.12 and later), e.g. `NO_SOCKET`.
    pub reason: Option<String>,
    /// Namespace of the sender.
    pub netns: Option<Netns>,
    /// The answered segment's flags.
    pub answered: TcpFlags,
    /// State of the sending socket.
    pub state: Option<TcpState>,
    /// The stack found no socket.
    pub no_socket: bool,
    /// The socket had data that its process had not read, when that closed it; absent in older recordings.
    pub unread: Option<bool>,
    pub via: Via,
    pub hook: Hook,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResetReceived {
    pub conn: ConnId,
    /// Source and destination, as the client sees them.
    pub flow: Flow,
    /// State when it came.
    pub state: TcpState,
    /// Payload received before.
    pub bytes_received: Option<u64>,
    /// How many of these bytes the client had not read yet; absent in older recordings.
    pub unread: Option<u32>,
}

/// Events of a tracked connection are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub conn: ConnId,
}

/// TCP flags, byte 13 of the header (RFC 9293 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// A SYN without ACK: the client's first segment.
    pub const fn is_syn(self) -> bool {
        self.0 & 0x12 == 0x02
    }
    pub const fn is_syn_ack(self) -> bool {
        self.0 & 0x12 == 0x12
    }
    /// An ACK without SYN: the third segment of a handshake, or any after it.
    pub const fn is_ack(self) -> bool {
        self.0 & 0x12 == 0x10
    }
    pub const fn is_rst(self) -> bool {
        self.0 & 0x04 != 0
    }
    /// PSH is set: the last segment of a write has it, a bare acknowledgement never.
    pub const fn has_data(self) -> bool {
        self.0 & 0x08 != 0
    }
    /// None of SYN, FIN, RST and PSH is set: a bare acknowledgement, or a segment that is not the last of a write.
    pub const fn may_be_bare(self) -> bool {
        self.0 & 0x0f == 0
    }
    /// "SYN", "SYN-ACK", "RST", "FIN" or "segment".
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listen {
    pub netns: Netns,
    pub addr: SocketAddr,
    pub actor: Actor,
    /// Began (true) or stopped.
    pub begins: bool,
    /// It has bound the port. Whether it listens is not known yet; if `begins` is false, it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// Its address is `[::]`, and it takes no connections over IPv4 all the same (IPV6_V6ONLY). In older recordings this is
    /// not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_v6: bool,
    /// It takes only connections over one device (SO_BINDTODEVICE). In older recordings this is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_device: bool,
}

impl Listen {
    /// A listener without limits.
    pub const fn new(netns: Netns, addr: SocketAddr, actor: Actor, begins: bool) -> Self {
        Self { netns, addr, actor, begins, bound: false, only_v6: false, one_device: false }
    }
}
