//! `tracer`: names the cause of a failed Kubernetes probe from the kernel's own events, as it happens.
//!
//! ```text
//! ebpf (load, attach, ring) -> decode -> event::Observation -> correlate -> classify -> record -> sink
//! sources (pods, links, NodePorts, settings) ----^
//! ```
//!
//! Left of `Observation` is input and output; from there to `Record` everything is a plain function
//! of its input. `replay` reads observations from a file and gives the same records.

pub mod cli;
pub mod config;
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
pub mod hooks;
pub mod live;
pub mod lock;
pub mod pipeline;
pub mod record_file;
pub mod replay;
pub mod shutdown;
