//! What a user reads besides the records: errors and warnings of one line each ([`error`]), the log ([`telemetry`]), and the
//! line with the current counts ([`status_line`]). All go to [`stderr`], which stops no live run. [`screen`] has width, line breaks and colour, and makes text from
//! outside safe to print.

pub mod error;
pub mod screen;
pub mod status_line;
pub mod stderr;
pub mod telemetry;
pub mod typed;
