//! Diagnostics of the tracer itself: to stderr, never to stdout, which belongs to the records.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

/// Sets up logging as `TRACER_LOG`, else `RUST_LOG`, asks for; without either: warnings.
pub fn start() {
    let filter = ["TRACER_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| EnvFilter::try_from_env(name).ok())
        .unwrap_or_else(|| EnvFilter::new("warn"));
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    // An error while logging would be reported with `eprintln!`, which panics on a closed stderr.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(colour)
        .log_internal_errors(false)
        .try_init();
}
