//! `tracer`: names the cause of a failed Kubernetes probe from the kernel's own events, as it happens.
//!
//! ```text
//! ebpf (load, attach, ring) -> decode -> event::Observation -> correlate -> classify -> record -> sink
//! sources (pods, links, NodePorts, settings) ----^
//! ```
//!
//! Left of `Observation` is input and output; from there to `Record` everything is a plain function
//! of its input. `replay` reads observations from a file and gives the same records.

pub mod ask;
mod cgroups;
pub mod classify;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod correlate;
pub mod decision;
pub mod decode;
pub mod doctor;
pub mod ebpf;
pub mod engine;
pub mod enrich;
pub mod error;
pub mod event;
pub mod explain;
#[doc(hidden)]
pub mod fuzzing;
pub mod hooks;
pub mod live;
pub mod lock;
pub mod node_events;
pub mod observe;
pub mod pipeline;
mod plural;
#[cfg(test)]
mod properties;
pub mod record;
pub mod record_file;
pub mod replay;
pub mod report;
pub mod schema;
pub mod screen;
pub mod selftest;
pub mod serve;
mod shell;
pub mod shutdown;
pub mod sink;
pub mod sources;
pub mod status_line;
pub mod telemetry;
#[cfg(test)]
mod testing;
