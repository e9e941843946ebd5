//! Programs of the tests on a node of `tracer_testbed`.
//!
//! ```text
//! cells      cause by Service proxy and address family, each with its scenario
//! demo       the node of `cargo xtask demo`
//! recording  makes recordings small
//! stats      order statistics, for the benchmark
//! fixtures   cuts the fixtures out of the recordings (a program)
//! scenarios  plays every failure and near miss (a program)
//! kubelet, pod, crio, loopback, load   the processes of that node (programs)
//! ```

pub mod cells;
pub mod demo;
pub mod recording;
pub mod stats;
