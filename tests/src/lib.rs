//! Programs of the tests on a node of `tracer_testbed`.
//!
//! ```text
//! recording  makes recordings small
//! stats      order statistics, for the benchmark
//! scenarios  makes every failure and near miss (a program)
//! demo       makes some of them for people (a program)
//! keep       keeps recordings of them (a program)
//! kubelet, pod, crio, loopback, load   the processes of that node (programs)
//! ```

pub mod recording;
pub mod stats;
