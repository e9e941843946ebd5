//! Counters that the programs keep per CPU, by index. Numbers are never reused.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Events that did not fit into the ring.
    RingFull = 0,
    // 1 was the number of failed reads of kernel memory.
    /// Connections for which the kernel refused an entry, and connects that lost their place to another without a port.
    /// Maps are LRU: a full one drops its oldest entry, which nothing counts.
    MapFull = 2,
    // 3 was the number of events that were written.
    /// Starts and stops of listening that were not reported, because a cgroup made too many.
    ListenHeld = 4,
    /// Opens of namespace files and entries into namespaces that were not reported, because a cgroup made too many.
    NamespaceHeld = 5,
    /// New names and moves of probers that were not reported, because a cgroup made too many.
    ProberHeld = 6,
    /// Changes of links that were not reported, because a cgroup made too many.
    LinkHeld = 7,
    /// Events of one connection that were not reported, because it had too many.
    ConnectionHeld = 8,
}

pub const COUNTERS: u32 = 9;
