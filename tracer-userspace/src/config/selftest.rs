//! What `tracer selftest` was asked for.

use super::{filled, host_name, output};
use crate::cli::Flags;
use crate::error::Error;
use crate::sink::SinkConfig;

/// `selftest`.
#[derive(Clone, Debug)]
pub struct Selftest {
    /// Where rows go; its labels are those that are played.
    pub output: SinkConfig,
    /// Name of this node.
    pub node_name: String,
}

/// What the command line means.
///
/// # Errors
/// A label that does not exist.
pub(super) fn plan(flags: Flags) -> Result<Selftest, Error> {
    let output = SinkConfig { rotation: None, ..output(&flags)? };
    Ok(Selftest { output, node_name: filled(flags.node_name).unwrap_or_else(host_name) })
}
