//! What `tracer report` was asked for.

use std::path::PathBuf;

use super::filter;
use crate::cli::Flags;
use crate::error::Error;
use crate::sink::filter::Filter;

/// `report FILE...`.
#[derive(Clone, Debug)]
pub struct Report {
    /// The records; `-` is stdin.
    pub files: Vec<PathBuf>,
    /// Where the page goes; absent: stdout.
    pub output_file: Option<PathBuf>,
    /// What is counted.
    pub filter: Filter,
}

/// What the command line means.
///
/// # Errors
/// A label that does not exist.
pub(super) fn plan(files: Vec<PathBuf>, flags: Flags) -> Result<Report, Error> {
    let filter = filter(&flags)?;
    Ok(Report { files, output_file: flags.output_file.filter(|path| !path.as_os_str().is_empty()), filter })
}
