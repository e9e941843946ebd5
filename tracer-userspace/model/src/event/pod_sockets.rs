//! What the namespace of a pod knows of an attempt that is over, and of the pod's own connections.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Netns;

/// Destinations that are kept: a pod can dial any number. Those that have been silent longest are among them.
pub const MOST_UNANSWERED: usize = 16;

/// Listeners that are kept where none takes the target.
pub const MOST_ELSEWHERE: usize = 4;

/// The sockets of a pod's namespace at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSockets {
    /// What the attempt dialled.
    pub target: SocketAddr,
    /// The namespace from which it did.
    pub from: Netns,
    /// The namespace that has the address.
    pub netns: Netns,
    /// Destinations of the pod's own connects that are silent, [`MOST_UNANSWERED`] at most, the longest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unanswered: Vec<UnansweredConnect>,
    /// Where the namespace's own address translation sent the attempt; absent: nowhere else, or that could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub redirect: Option<Redirect>,
    /// Where nobody listens that takes the target: who listens on other addresses or ports, [`MOST_ELSEWHERE`] at most, those of the
    /// target's port first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub elsewhere: Vec<ListenerAt>,
}

/// A listener, and its process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerAt {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Who does.
    pub server: Listener,
}

/// Connects to one destination, each of which has sent its SYN twice at least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnansweredConnect {
    pub dst: SocketAddr,
    /// How many sockets wait for it.
    pub sockets: u32,
    /// How often the SYN of the one that waits longest was sent again.
    pub retransmits: u8,
}

/// Another address or port than the attempt dialled, within its pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// Where the attempt went.
    pub to: SocketAddr,
    /// Who listens there; absent: nobody that could be found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<Listener>,
    /// Who listens where the attempt dialled, and was not asked; absent: nobody that could be found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub passed_over: Option<Listener>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    pub pid: u32,
    pub comm: String,
}
