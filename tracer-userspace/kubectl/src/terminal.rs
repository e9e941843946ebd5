//! What is printed where.

use std::io::{IsTerminal as _, stdout};

use anstream::{AutoStream, ColorChoice};

use super::cli::Form;
use tracer_terminal::screen::{Screen, columns};

/// As stdout is: with colour where people want it, as wide as the terminal.
pub(super) fn of_stdout() -> Screen {
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns > 0);
    Screen { colour: AutoStream::choice(&stdout()) != ColorChoice::Never, columns: columns(stdout()).or_else(asked) }
}

/// For people on a terminal, else for machines.
pub(super) fn form() -> Form {
    if stdout().is_terminal() { Form::Pretty } else { Form::Json }
}
