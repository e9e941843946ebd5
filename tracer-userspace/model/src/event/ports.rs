//! The processes that use up ephemeral ports.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Netns;

/// The connects that the kernel programs counted since the last reading.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortPressure {
    /// Length of the window, nanoseconds.
    pub window_ns: u64,
    /// The counters were not reset: another reading of the same window follows.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub partial: bool,
    /// One of the readings at regular intervals.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub regular: bool,
    /// TCP sockets of the node's namespace that are in use.
    pub in_use: Option<u64>,
    pub time_wait: Option<u64>,
    /// `net.ipv4.ip_local_port_range` of the node's namespace at that moment; absent in older recordings.
    pub local_port_range: Option<(u16, u16)>,
    /// The processes that connected, most connects first; their number is limited.
    pub users: Vec<PortUser>,
}

/// Processes of one name, in one namespace and one pod.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortUser {
    /// The process with most connects.
    pub pid: u32,
    pub comm: String,
    /// How many processes: a program that is started for each connect has many.
    pub processes: u32,
    pub netns: Option<Netns>,
    /// Uid of their pod, by the cgroup.
    pub pod_uid: Option<String>,
    pub connects: u64,
    /// Number of destinations (address and port), estimated; at most about a thousand.
    pub destinations: u64,
    /// Connects to their own address.
    pub to_itself: u64,
    /// Connections that they closed first, each of which leaves a port in TIME_WAIT.
    pub time_wait_left: u64,
}
