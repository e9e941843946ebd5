//! The kernel side as userspace has it: loading and attaching the programs of `tracer-ebpf` and reading their ring
//! ([`ebpf`]), bytes into events ([`decode`]), events into observations ([`observe`]). `build.rs` builds the programs.

pub mod decode;
pub mod ebpf;
pub mod observe;
