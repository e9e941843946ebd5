//! Counters that the programs keep per CPU, by index. Numbers are never reused.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Events that did not fit into the ring.
    RingFull = 0,
    // 1 was the number of failed reads of kernel memory.
    /// Connections that did not fit into a map, or lost their place to another.
    MapFull = 2,
    // 3 was the number of events that were written.
    /// Starts and stops of listening that were not reported, because a cgroup made too many.
    ListenHeld = 4,
    /// Opens of namespace files and entries into namespaces that were not reported, because a cgroup made too many.
    NamespaceHeld = 5,
    /// New names and moves of probers that were not reported, because a cgroup made too many.
    ProberHeld = 6,
}

pub const COUNTERS: u32 = 7;
