//! What `tracer report` was asked for.

use std::path::PathBuf;

use super::filter;
use crate::cli::Flags;
use tracer_report::ReportConfig;
use tracer_terminal::error::Error;

/// What the command line means.
///
/// # Errors
/// A cause that does not exist.
pub(super) fn plan(files: Vec<PathBuf>, flags: Flags) -> Result<ReportConfig, Error> {
    let filter = filter(&flags)?;
    Ok(ReportConfig { files, output_file: flags.output_file.filter(|path| !path.as_os_str().is_empty()), filter })
}
