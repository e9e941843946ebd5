//! The user-space side of the kernel programs. [`ebpf`] loads and attaches the programs of `tracer-ebpf` and reads their ring,
//! [`decode`] makes events of bytes, [`observe`] makes observations of events. `build.rs` builds the programs.

pub mod decode;
pub mod ebpf;
pub mod observe;
