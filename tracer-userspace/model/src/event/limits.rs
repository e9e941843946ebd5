//! The limits of a container, read when a command of its exec probe failed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Serving, Throttled};

/// What the cgroups of a container count at one time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerLimits {
    /// Container id.
    pub id: String,
    /// Its processes, and the pressure in its cgroup and on the node.
    pub serving: Serving,
    /// How often its cgroup and those above it were throttled.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub throttled: Vec<Throttled>,
    /// The counters of its cgroup, and of its pod's.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub counters: Vec<CgroupCounters>,
}

/// Counters and settings of a cgroup, by the kernel's own names (`pids.events max`, `memory.events oom_kill`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupCounters {
    /// The cgroup's folder.
    pub cgroup: String,
    pub values: BTreeMap<String, u64>,
}
