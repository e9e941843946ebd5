//! The sockets of a pod: where an attempt that is over went, and the pod's own connections.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Netns;

/// How many silent destinations are kept: a pod can connect to any number. The ones that are silent longest are kept.
pub const MOST_UNANSWERED: usize = 16;

/// How many other listeners are kept if none has the target.
pub const MOST_ELSEWHERE: usize = 4;

/// The sockets of a pod's namespace at one time.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSockets {
    /// The target of the attempt.
    pub target: SocketAddr,
    /// The namespace that connects to it.
    pub from: Netns,
    /// The namespace that has the address; absent: none was found, and nothing was read.
    pub netns: Option<Netns>,
    /// The source of the attempt of which the translation was read. Absent in older recordings.
    pub peer: Option<SocketAddr>,
    /// Silent destinations of the pod's own connects, [`MOST_UNANSWERED`] at most, the longest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unanswered: Vec<UnansweredConnect>,
    /// Where the pod's own address translation sent the attempt; absent: nowhere, or that could not be read.
    pub redirect: Option<Redirect>,
    /// The address of a listener that would accept connections to the target over any device, if they are not redirected.
    /// Absent: there is none, or the recording is older.
    pub accepts: Option<SocketAddr>,
    /// If no process listens on the target over any device: listeners on other addresses, ports or devices,
    /// [`MOST_ELSEWHERE`] at most, those with the target's port first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub elsewhere: Vec<ListenerAt>,
    /// `elsewhere` may lack listeners on the target's port: they could not be read, or no process was found that has one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub incomplete: bool,
    /// The uid in the cgroups of the pod that has all of `elsewhere`, if the namespace is the node's.
    pub pod: Option<String>,
    /// Who accepts connections to the target, as the prober's namespace reaches it; absent: not known.
    pub acceptor: Option<Acceptor>,
    /// The namespaces that have the target's address, if several have it: any of them may have got the attempt.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub holders: Vec<Netns>,
}

impl PodSockets {
    /// A reading of this namespace that found nothing.
    pub const fn nothing(from: Netns, target: SocketAddr, netns: Option<Netns>) -> Self {
        Self {
            target,
            from,
            netns,
            peer: None,
            unanswered: Vec::new(),
            redirect: None,
            accepts: None,
            elsewhere: Vec::new(),
            incomplete: false,
            pod: None,
            acceptor: None,
            holders: Vec::new(),
        }
    }
}

/// The processes that accept the connections to a target. They need not be in the namespace with its address: the
/// node may have the address as well, or translate it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptor {
    /// Where the address translation of the prober's namespace sent the attempt; absent: nowhere, or that could not be
    /// read.
    pub to: Option<SocketAddr>,
    /// The namespace that accepts.
    pub netns: Netns,
    /// One process of each cgroup that holds a listener; empty: not all holders were found.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub processes: Vec<AcceptingProcess>,
}

/// A process that holds a listener, and the pod and container that its cgroup names. Without both it is one of the node.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptingProcess {
    pub server: Listener,
    pub pod_uid: Option<String>,
    pub container: Option<String>,
}

/// A listener, and its process.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerAt {
    pub addr: SocketAddr,
    /// The only device over which it gets connections (SO_BINDTODEVICE); absent: it gets them over any.
    pub device: Option<String>,
    pub server: Listener,
    /// The id of the container of that process, by its cgroup.
    pub container: Option<String>,
}

/// Connects to one destination. Each has sent its SYN at least twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnansweredConnect {
    pub dst: SocketAddr,
    /// How many sockets wait for it.
    pub sockets: u32,
    /// How often the SYN of the socket that waits longest was retransmitted.
    pub retransmits: u8,
}

/// The pod's address translation sent the attempt to another address or port.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Where the attempt went.
    pub to: SocketAddr,
    /// The process that listens there; absent: none was found.
    pub server: Option<Listener>,
    /// The process that listens on the target and got no connection; absent: none was found.
    pub passed_over: Option<Listener>,
    /// `server` itself is in another network namespace, as Istio's ztunnel.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub outside: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    pub pid: u32,
    pub comm: String,
}
