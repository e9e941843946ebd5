//! What `tracer selftest` was asked for.

use super::{filled, host_name, output};
use crate::cli::Flags;
use tracer_output::sink::SinkConfig;
use tracer_terminal::error::Error;
use tracer_testbed::command::SelftestConfig;

/// What the command line means.
///
/// # Errors
/// A cause that does not exist.
pub(super) fn plan(flags: Flags) -> Result<SelftestConfig, Error> {
    let output = SinkConfig { rotation: None, ..output(&flags)? };
    Ok(SelftestConfig { output, node_name: filled(flags.node_name).unwrap_or_else(host_name) })
}
