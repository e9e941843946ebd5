//! Who uses up ephemeral ports.

use serde::{Deserialize, Serialize};

use super::Netns;

/// What the kernel counted since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortPressure {
    /// For how long it counted, nanoseconds.
    pub window_ns: u64,
    /// The counters stay: more of the same window follows.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub partial: bool,
    /// Reported at regular intervals, however little there is to tell.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub regular: bool,
    /// TCP sockets of the node's namespace that are in use.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_use: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub time_wait: Option<u64>,
    /// Who connected, most connects first; bounded.
    pub users: Vec<PortUser>,
}

/// Processes of one name, in one namespace and one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortUser {
    /// The one of them that connected most.
    pub pid: u32,
    pub comm: String,
    /// How many there were: a program that is started again for each connect is many.
    pub processes: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub netns: Option<Netns>,
    /// Uid of their pod, by the cgroup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod_uid: Option<String>,
    pub connects: u64,
    /// Destinations (address and port), estimated; a thousand and more look the same.
    pub destinations: u64,
    /// Connects to the address that they came from.
    pub to_itself: u64,
    /// Connections that they closed first, each of which leaves a port in TIME_WAIT.
    pub time_wait_left: u64,
}
