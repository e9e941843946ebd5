//! The node of `tracer_testbed`, played in full: the programs of the tests.
//!
//! ```text
//! demo       a node whose pods fail in different ways, to be looked at
//! stats      order statistics, for the benchmark
//! scenarios  every failure and near miss, one line each (a program)
//! kubelet, pod, crio, loopback, load   the processes of that node (programs)
//! ```

pub mod demo;
pub mod stats;
