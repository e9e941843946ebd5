//! Format and layout of stdout.

use std::io::{IsTerminal as _, stdout};

use anstream::{AutoStream, ColorChoice};

use super::cli::Format;
use tracer_terminal::screen::{Screen, columns, columns_variable};

/// The layout for stdout: colour if the user wants it, and the columns of the terminal.
pub(super) fn of_stdout() -> Screen {
    let columns = columns(stdout()).or_else(columns_variable);
    Screen { colour: AutoStream::choice(&stdout()) != ColorChoice::Never, columns }
}

/// The default format: pretty on a terminal, else JSON.
pub(super) fn format() -> Format {
    if stdout().is_terminal() { Format::Pretty } else { Format::Json }
}
