//! Diagnostics of tracer itself. They go to stderr, because stdout is for records.

use std::io;

use anstream::{AutoStream, ColorChoice};
use tracing_subscriber::EnvFilter;

use crate::error;
use crate::screen;
use crate::status_line;

/// The client of the cluster API logs each failed request, but the source already reports an outage once.
/// `TRACER_LOG=kube_client=…` shows them.
const QUIET: &str = "kube_client=off";

/// How much tracer reports about itself on stderr, and the colour of text for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Diagnostics {
    /// Errors only.
    pub quiet: bool,
    /// Messages of level info, too.
    pub verbose: bool,
    /// `Auto`: the terminal and variables such as `NO_COLOR` decide.
    pub colour: ColorChoice,
}

/// Sets up logging by `TRACER_LOG`, else by `RUST_LOG`, else by the diagnostics (default: warnings).
pub fn start(diagnostics: Diagnostics) {
    diagnostics.colour.write_global();
    screen::set_quiet(diagnostics.quiet);
    let asked = ["TRACER_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value)));
    let filter = asked.and_then(|(name, value)| {
        EnvFilter::try_new(format!("{QUIET},{value}"))
            .map_err(|error| error::warn(&format!("{name}={value}: {error}")))
            .ok()
    });
    let level = match diagnostics {
        Diagnostics { quiet: true, .. } => "error",
        Diagnostics { verbose: true, .. } => "info",
        _ => "warn",
    };
    let filter = filter.unwrap_or_else(|| EnvFilter::new(format!("{QUIET},{level}")));
    let colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    // An error while logging would be reported with `eprintln!`, which panics on a closed stderr.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(colour)
        .log_internal_errors(false)
        .try_init();
}

/// stderr, after the status line is erased.
fn stderr() -> io::Stderr {
    status_line::erase();
    io::stderr()
}
