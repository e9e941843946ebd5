//! What `tracer selftest` was asked for.

use super::{causes, filled, host_name, output};
use crate::cli::SelftestArgs;
use crate::error::Error;
use crate::selftest::command::SelftestConfig;
use crate::sink::SinkConfig;
use crate::sink::filter::Filter;

/// What the command line means.
///
/// # Errors
/// A cause that does not exist.
pub(super) fn plan(args: SelftestArgs) -> Result<SelftestConfig, Error> {
    let filter = Filter { causes: causes(&args.causes.causes)?, ..Filter::default() };
    let output = SinkConfig { filter, ..output(&args.output) };
    Ok(SelftestConfig { output, node_name: filled(args.node.node_name).unwrap_or_else(host_name) })
}
