//! Maps and read-only globals. `tracer-userspace/bpf/src/ebpf` finds them by name.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use tracer_common::{
    ABSENT32,
    actor::{COMM_BUCKETS, COMM_LEN},
    link::EXE_LEN,
    offsets::{EnumValues, Offsets, Settings},
    ports::{PortUse, SLOTS},
    stats::COUNTERS,
    tracking::{Flow, LIVE_BUCKETS, PORT_BUCKETS},
    tuple::Tuple,
    waiting::PLACES,
};

/// `BPF_NOEXIST` (include/uapi/linux/bpf.h): the insert fails if the key exists.
pub const NOEXIST: u64 = 1;

/// Byte offsets in structs of the running kernel. The loader sets them before it loads the programs.
#[unsafe(no_mangle)]
pub static OFFS: Offsets = Offsets::ABSENT;

/// Enum values of the running kernel.
#[unsafe(no_mangle)]
pub static ENUMS: EnumValues = EnumValues { memory_cgrp_id: ABSENT32, skb_consumed: ABSENT32, queue_purge: ABSENT32 };

/// What to track.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings =
    Settings { own_pid: 0, all_connections: 0, port_first: 0, port_last: 0, cpu_mask: 0xff, prober_hooks: 0 };

/// What [`typed`](crate::kernel) loads memory as.
#[cfg(feature = "typed-loads")]
#[unsafe(no_mangle)]
pub static TYPES: tracer_common::offsets::Types = tracer_common::offsets::Types {
    begins_with_u64: ABSENT32,
    begins_with_u32: ABSENT32,
    begins_with_u16: ABSENT32,
    begins_with_u8: ABSENT32,
};

/// Reads one field of a global. The read is volatile, because the loader overwrites the value: the compiler must not
/// use the initial one. The verifier knows the real value and removes dead branches.
macro_rules! global {
    ($global:ident . $field:ident) => {
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::$global.$field) }
    };
}
pub(crate) use global;

/// Events for userspace. The loader sets the size.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// 1 while the ring has events for which the reader was not woken. If an update is lost, an event waits for the next
/// poll.
#[map]
pub static READER_DUE: Array<u32> = Array::with_max_entries(1, 0);

/// Counters, by `tracer_common::stats::Counter`.
#[map]
pub static STATS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// The last state change that was handled on this CPU. `inet_sock_set_state_again` and a second run of `sock_ops` skip it.
#[map]
pub static LAST_STATE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Names of probers.
#[map]
pub static PROBERS: HashMap<[u8; COMM_LEN], u8> = HashMap::with_max_entries(64, 0);

/// 1 at the `tracer_common::actor::comm_bucket` of each prober's name. It rules out most tasks with one load; a hash
/// look-up costs 50 ns.
#[map]
pub static PROBER_BUCKETS: Array<u8> = Array::with_max_entries(COMM_BUCKETS, 0);

/// Cgroups of pods with a process that has a prober's name and is not a prober. Its connections are not tracked.
/// Userspace fills this map.
#[map]
pub static PRETENDING: HashMap<u64, u8> = HashMap::with_max_entries(256, 0);

/// A tracked connection with an open socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Conn {
    pub conn: u64,
    pub tuple: Tuple,
    pub tgid: u32,
    pub netns: u32,
    /// 1 after an answer that every prober counts as success.
    pub answered: u32,
    pub reserved: u32,
}

/// Tracked connections by the address of their `struct sock`. Removed at CLOSE.
#[map]
pub static CONNS: LruHashMap<u64, Conn> = LruHashMap::with_max_entries(8192, 0);

/// An upper bound of the number of entries of [`CONNS`] in each bucket of socket addresses.
///
/// Programs read it first, so that most untracked sockets need no look-up in [`CONNS`]. It is too high after the LRU
/// dropped an entry, which costs only a look-up. It is never too low.
#[map]
pub static LIVE: Array<u64> = Array::with_max_entries(LIVE_BUCKETS, 0);

/// Tracked flows, from the client's side. They outlive their socket for a while, so that packets after CLOSE still find
/// their connection. A later connect with the same tuple overwrites the entry.
#[map]
pub static FLOWS: LruHashMap<Tuple, Flow> = LruHashMap::with_max_entries(16384, 0);

/// A connect that has no known source port yet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pending {
    pub sk: u64,
    /// 0 if the slot is free.
    pub conn: u64,
}

/// Waiting connects by tuple with source port 0. Several can wait for one target: the kubelet may start a liveness and
/// a readiness probe on two CPUs in the same microsecond.
#[map]
pub static PENDING: LruHashMap<Tuple, [Pending; PLACES]> = LruHashMap::with_max_entries(8192, 0);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Endpoint {
    pub addr: [u8; 16],
    pub port: u32,
}

/// The newest connect that waits: for each destination, for any port of each address, and from each source address.
#[map]
pub static DESTS: LruHashMap<Endpoint, Pending> = LruHashMap::with_max_entries(8192, 0);

/// 1 at the `tracer_common::tracking::port_bucket` of each port that a tracked connect had as destination. It rules out
/// most packets of others with two loads; a look-up of their tuple in each direction costs 50 ns or more.
#[map]
pub static TARGET_PORTS: Array<u8> = Array::with_max_entries(PORT_BUCKETS, 0);

/// Destinations of earlier connects.
#[map]
pub static KNOWN: LruHashMap<Endpoint, u8> = LruHashMap::with_max_entries(4096, 0);

/// A `connect(2)` call in progress.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ConnectCall {
    pub addr: [u8; 16],
    pub sk: u64,
    pub conn: u64,
    pub port: u32,
    pub fd: u32,
}

/// `connect(2)` calls in progress, by thread.
#[map]
pub static CONNECT_CALLS: LruHashMap<u32, ConnectCall> = LruHashMap::with_max_entries(4096, 0);

/// Network namespace of a thread before the `setns(2)` or `unshare(2)` in progress.
#[map]
pub static ENTERING: LruHashMap<u32, u32> = LruHashMap::with_max_entries(1024, 0);

/// Thread groups that opened the file of a network namespace.
#[map]
pub static OPENED: LruHashMap<u32, u8> = LruHashMap::with_max_entries(1024, 0);

/// Path of the executed program, by thread group.
#[map]
pub static EXEC: LruHashMap<u32, [u8; EXE_LEN]> = LruHashMap::with_max_entries(4096, 0);

/// Events that are limited together.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LimitKey {
    /// The cgroup or the connection that they are of. 0: all cgroups together.
    pub owner: u64,
    /// Of a cgroup a `tracer_common::limit::Limited`. Of a connection 0 for all, 1 for the reports that events are held
    /// back, or a `tracer_common::limit::sort`.
    pub what: u64,
}

/// The token buckets of cgroups: see `tracer_common::limit`.
#[map]
pub static LIMITS: LruHashMap<LimitKey, u64> = LruHashMap::with_max_entries(1024, 0);

/// The token buckets of connections.
#[map]
pub static CONN_LIMITS: LruHashMap<LimitKey, u64> = LruHashMap::with_max_entries(4096, 0);

/// When a device was last reported as going down, by the address of its `struct net_device`.
#[map]
pub static LINK_DOWN: LruHashMap<u64, u64> = LruHashMap::with_max_entries(256, 0);

/// Use of ephemeral ports by thread group, without what is in [`PORT_SLOTS`]. Userspace reads and removes the entries.
#[map]
pub static PORTS: LruHashMap<u32, PortUse> = LruHashMap::with_max_entries(4096, 0);

/// What some processes did on this CPU since they have the slot. Userspace reads and frees the slots.
#[map]
pub static PORT_SLOTS: PerCpuArray<PortUse> = PerCpuArray::with_max_entries(SLOTS, 0);

/// Server ports that are watched for a TLS ClientHello, with the time of the last report.
#[map]
pub static TLS_WATCH: HashMap<u16, u64> = HashMap::with_max_entries(1024, 0);

/// Network namespaces of pods with failed probes. Userspace fills this map. The value is the state of the token
/// bucket `tracer_common::limit::POD_CONNECTS`.
#[map]
pub static FAILING_PODS: HashMap<u32, u64> = HashMap::with_max_entries(256, 0);
