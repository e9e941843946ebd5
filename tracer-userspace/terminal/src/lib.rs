//! What a person at a terminal reads of a run besides its records: errors and warnings, one line each ([`error`]), the log
//! ([`telemetry`]), and the line that counts along ([`status_line`]). Width, line breaks, colour, and what makes text of
//! others safe to print are in [`screen`].

pub mod error;
pub mod screen;
pub mod status_line;
pub mod telemetry;
pub mod typed;
