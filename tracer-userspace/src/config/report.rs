//! What `tracer report` was asked for.

use std::path::PathBuf;

use super::filter;
use crate::cli::{FileFlag, FilterFlags};
use tracer_report::ReportConfig;
use tracer_terminal::error::Error;

/// What the command line means.
pub(super) fn plan(files: Vec<PathBuf>, page: FileFlag, filters: &FilterFlags) -> Result<ReportConfig, Error> {
    let filter = filter(filters)?;
    Ok(ReportConfig { files, output_file: page.output_file.filter(|path| !path.as_os_str().is_empty()), filter })
}
