//! `tracer` names the cause of each failed Kubernetes probe from the kernel's own events, at once.
//!
//! ```text
//! ebpf (load, attach, ring) -> decode -> event::Observation -> correlate -> classify -> record -> sink
//! sources (pods, links, NodePorts, settings) ----^
//! ```
//!
//! The stages left of `Observation` do input and output. From `Observation` to `Record`, each stage is a plain function of its
//! input. `replay` reads observations from a file and emits the same records.

pub mod cli;
pub mod config;
pub mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod instance;
pub mod live;
pub mod pipeline;
pub mod record_file;
pub mod replay;
pub mod shutdown;
