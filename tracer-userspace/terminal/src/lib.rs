//! What a user reads besides the records: errors and warnings of one line each ([`error`]), the log ([`telemetry`]), and the
//! line with the current counts ([`status_line`]). [`screen`] has width, line breaks and colour, and makes text from
//! outside safe to print.

pub mod error;
pub mod screen;
pub mod status_line;
pub mod telemetry;
pub mod typed;
