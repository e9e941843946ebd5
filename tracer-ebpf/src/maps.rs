//! Maps and read-only globals. Names are the interface to `tracer-userspace/bpf/src/ebpf`.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use tracer_common::{
    ABSENT32,
    actor::{COMM_BUCKETS, COMM_LEN},
    link::EXE_LEN,
    offsets::{EnumValues, Offsets, Settings},
    ports::PortUse,
    stats::COUNTERS,
    tracking::{Flow, LIVE_BUCKETS},
    tuple::Tuple,
    waiting::PLACES,
};

/// Byte offsets of the running kernel's structs, written by the loader before load.
#[unsafe(no_mangle)]
pub static OFFS: Offsets = Offsets::ABSENT;

/// Enum values of the running kernel.
#[unsafe(no_mangle)]
pub static ENUMS: EnumValues = EnumValues { memory_cgrp_id: ABSENT32, skb_consumed: ABSENT32, queue_purge: ABSENT32 };

/// What to track.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings =
    Settings { own_pid: 0, all_connections: 0, port_first: 0, port_last: 0, cpu_mask: 0xff, prober_hooks: 0 };

/// Reads one field of a global that the loader has overwritten: the compiler must not fold its
/// initial value, the verifier knows the real one.
macro_rules! global {
    ($global:ident . $field:ident) => {
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::$global.$field) }
    };
}
pub(crate) use global;

/// Events on their way to userspace. Size set by the loader.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// 1 while the ring has events of which its reader was not reported. A lost update costs one event the time until the reader
/// looks by itself.
#[map]
pub static READER_DUE: Array<u32> = Array::with_max_entries(1, 0);

/// Counters, by `tracer_common::stats::Counter`.
#[map]
pub static STATS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// The last change of a socket's state on this processor that `inet_sock_set_state` saw: that one it tells itself.
#[map]
pub static LAST_STATE: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Names of the processes with tracked connections.
#[map]
pub static PROBERS: HashMap<[u8; COMM_LEN], u8> = HashMap::with_max_entries(64, 0);

/// 1 where `tracer_common::actor::comm_bucket` of one of them points: most names are distinguished by
/// it, and an array costs a load where a hash costs 50 ns.
#[map]
pub static PROBER_BUCKETS: Array<u8> = Array::with_max_entries(COMM_BUCKETS, 0);

/// Cgroups of pods, found by userspace, in which a process bears a prober's name and is none: what it dials is not tracked.
#[map]
pub static PRETENDING: HashMap<u64, u8> = HashMap::with_max_entries(256, 0);

/// A tracked connection with a socket that is alive.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Conn {
    pub conn: u64,
    pub tuple: Tuple,
    pub tgid: u32,
    pub netns: u32,
    /// 1 once an answer was seen that no prober takes for a failure.
    pub answered: u32,
    pub reserved: u32,
}

/// Tracked sockets by address of their `struct sock`; removed at CLOSE.
#[map]
pub static CONNS: LruHashMap<u64, Conn> = LruHashMap::with_max_entries(8192, 0);

/// How many entries of [`CONNS`] there may be in each bucket of socket addresses, at least: what a
/// foreign socket asks before it looks there. One that is too high (an entry the LRU dropped) costs a
/// look-up; none is ever too low.
#[map]
pub static LIVE: Array<u64> = Array::with_max_entries(LIVE_BUCKETS, 0);

/// Tracked flows from the client's side; they outlive their socket for a while, so that what comes
/// after CLOSE still has a name. A later connect with the same tuple overwrites the entry.
#[map]
pub static FLOWS: LruHashMap<Tuple, Flow> = LruHashMap::with_max_entries(16384, 0);

/// A connect without a known source port yet.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pending {
    pub sk: u64,
    /// 0: nobody waits here.
    pub conn: u64,
}

/// Waiting connects by tuple with source port 0. The kubelet dials one target for liveness and for readiness, from two
/// processors in the same microsecond.
#[map]
pub static PENDING: LruHashMap<Tuple, [Pending; PLACES]> = LruHashMap::with_max_entries(8192, 0);

/// Address and port.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Endpoint {
    pub addr: [u8; 16],
    pub port: u32,
}

/// Destinations that a connect is waiting for, with the newest such connect.
#[map]
pub static DESTS: LruHashMap<Endpoint, Pending> = LruHashMap::with_max_entries(8192, 0);

/// Destinations that were connected to before.
#[map]
pub static KNOWN: LruHashMap<Endpoint, u8> = LruHashMap::with_max_entries(4096, 0);

/// A `connect(2)` that is being executed.
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

/// Network namespace of a thread before the `setns` or `unshare` it is executing.
#[map]
pub static ENTERING: LruHashMap<u32, u32> = LruHashMap::with_max_entries(1024, 0);

/// Thread groups that opened a file which names a network namespace.
#[map]
pub static OPENED: LruHashMap<u32, u8> = LruHashMap::with_max_entries(1024, 0);

/// Path given to exec, by thread group.
#[map]
pub static EXEC: LruHashMap<u32, [u8; EXE_LEN]> = LruHashMap::with_max_entries(4096, 0);

/// Who makes events of a kind that is bounded.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Held {
    pub cgroup: u64,
    /// A `tracer_common::limit::Limited`.
    pub what: u64,
}

/// Until when a cgroup's tokens are used up.
#[map]
pub static LIMITS: LruHashMap<Held, u64> = LruHashMap::with_max_entries(1024, 0);

/// When a device was last seen going down, by its address.
#[map]
pub static LINK_DOWN: LruHashMap<u64, u64> = LruHashMap::with_max_entries(256, 0);

/// Use of ephemeral ports by thread group; taken by userspace.
#[map]
pub static PORTS: LruHashMap<u32, PortUse> = LruHashMap::with_max_entries(4096, 0);

/// Server ports watched for a TLS ClientHello, with the time of the last report.
#[map]
pub static TLS_WATCH: HashMap<u16, u64> = HashMap::with_max_entries(1024, 0);
