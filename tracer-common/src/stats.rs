//! Counters that the programs keep per CPU, by index. Numbers are never reused.

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Events that did not fit into the ring.
    RingFull = 0,
    /// Kernel memory that could not be read.
    ReadFailed = 1,
    /// Connections that did not fit into a map, or lost their place to another.
    MapFull = 2,
    /// Events written to the ring.
    Emitted = 3,
}

/// How many there are.
pub const COUNTERS: u32 = 4;
