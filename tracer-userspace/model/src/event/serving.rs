//! The server of a target, and what keeps it from answering. tracer reads it while an attempt waits.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// The server of a target at one time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// The processes that hold a listener of the target, or the attempt's own connection.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub processes: Vec<ServerProcess>,
    /// Other processes may hold them, too: tracer did not read all file descriptors of the namespace.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub incomplete: bool,
    /// The target's end of the attempt's connection; absent: not found there.
    pub connection: Option<ServedConnection>,
    /// The prober's end of the attempt, if no socket of the target's namespace has its connection; absent: one has, or
    /// that could not be read.
    pub no_connection_of: Option<SocketAddr>,
    /// The server to which the address translation of the target's namespace sent the attempt; absent: there is none, or
    /// that could not be read.
    pub redirect: Option<Box<RedirectedTo>>,
    /// The pressure in the cgroups of the processes, and on the node.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub pressure: Vec<Pressure>,
}

/// Where an address translation sent the attempt, and the server there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectedTo {
    pub to: SocketAddr,
    pub serving: Serving,
}

#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerProcess {
    pub pid: u32,
    pub comm: String,
    pub tasks: ServerTasks,
    /// The file that shows that its cgroup is frozen; absent: it is not frozen.
    pub frozen: Option<String>,
    /// The cgroup above its own that was frozen, and all below with it; absent: its own was, or that is not known.
    pub frozen_above: Option<String>,
    /// The cgroup that limits its processor time, named as in [`super::Throttled`].
    pub cpu_cgroup: Option<String>,
    /// It has crashed, and the kernel writes its core dump: `CoreDumping` of `/proc/PID/status`, from 4.15 on.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub core_dumping: bool,
}

/// The threads of a process, as far as they were read.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTasks {
    pub count: u32,
    /// There are more threads, which were not read.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub incomplete: bool,
    /// Threads that run, or wait for a processor (state R).
    #[serde(skip_serializing_if = "is_zero", default)]
    pub runnable: u32,
    /// Stopped by a signal (state T).
    #[serde(skip_serializing_if = "is_zero", default)]
    pub stopped: u32,
    /// Held by a debugger (state t).
    #[serde(skip_serializing_if = "is_zero", default)]
    pub traced: u32,
    /// In a wait that no signal interrupts, such as for a disk (state D).
    #[serde(skip_serializing_if = "is_zero", default)]
    pub blocked: u32,
    /// The kernel function in which a blocked thread waits.
    pub blocked_in: Option<String>,
    /// Time that all threads ran on a processor, nanoseconds; absent: not known.
    pub ran_ns: Option<u64>,
    /// Time that all threads waited for a processor until they got one, nanoseconds; absent: not known.
    pub waited_ns: Option<u64>,
}

/// A connection, as the server's namespace shows it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedConnection {
    /// The other end.
    pub peer: SocketAddr,
    /// Bytes that arrived and that no process has read.
    pub unread: u32,
    /// Bytes that the server wrote and that the other end has not acknowledged.
    pub unacknowledged: Option<u32>,
    /// A process has accepted it.
    pub accepted: bool,
    /// The process that holds it; absent if several do.
    pub pid: Option<u32>,
    /// Listeners on other ports with connections that wait, if it is not accepted and waits in no queue of the target's
    /// port. It waits in one of these.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub waits_at: Vec<SocketAddr>,
}

/// For how long tasks have waited in total (`cpu.pressure` and others), microseconds. `some`: at least one task waited.
/// `full`: at least one waited and none ran; for a processor the kernel counts that from 5.13 on.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pressure {
    /// The cgroup's folder, or `node`.
    pub of: String,
    /// Some, for a processor.
    pub cpu_us: Option<u64>,
    /// All, for a processor.
    pub cpu_full_us: Option<u64>,
    /// Some, for a disk.
    pub io_us: Option<u64>,
    /// All, for a disk.
    pub io_full_us: Option<u64>,
    /// Some, for memory.
    pub memory_us: Option<u64>,
    /// All, for memory.
    pub memory_full_us: Option<u64>,
    /// What the cgroup's limits of memory did so far, by the names in `memory.events`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub memory_events: BTreeMap<String, u64>,
    /// For how long the hypervisor ran others while the node wanted to run: of one processor, the average of all.
    pub steal_us: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}
