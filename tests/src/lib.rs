//! The node of `tracer_testbed`, played in full: the programs of the tests.
//!
//! ```text
//! cells      cause by Service proxy and address family, each with its scenario
//! demo       a node with pods that fail in different ways, to look at
//! recording  recordings, made small
//! stats      order statistics, for the benchmark
//! fixtures   cuts the fixtures out of the recordings (a program)
//! scenarios  every failure and near miss, one line each (a program)
//! kubelet, pod, crio, loopback, load   the processes of that node (programs)
//! ```

pub mod cells;
pub mod demo;
pub mod recording;
pub mod stats;
