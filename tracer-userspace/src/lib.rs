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

pub use tracer_bpf::{decode, ebpf, observe};
pub use tracer_core::{classify, core, correlate, enrich, node_events};
pub use tracer_doctor as doctor;
pub use tracer_model::{ask, decision, event, plural, recent, record, shell};
pub use tracer_node::{clock, procfs};
pub use tracer_output::{explain, schema, serve, sink};
pub use tracer_report as report;
pub use tracer_sources as sources;
pub use tracer_terminal::{error, screen, status_line, telemetry};
pub use tracer_testbed as selftest;
#[cfg(test)]
use tracer_testing as testing;
