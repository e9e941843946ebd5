//! Format and layout of stdout.

use std::io::{IsTerminal as _, stdout};

use anstream::{AutoStream, ColorChoice};

use super::cli::Format;
use tracer_terminal::screen::{Screen, columns};

/// The layout for stdout: colour if the user wants it, and the columns of the terminal.
pub(super) fn of_stdout() -> Screen {
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns > 0);
    Screen { colour: AutoStream::choice(&stdout()) != ColorChoice::Never, columns: columns(stdout()).or_else(asked) }
}

/// The default format: pretty on a terminal, else JSON.
pub(super) fn format() -> Format {
    if stdout().is_terminal() { Format::Pretty } else { Format::Json }
}
