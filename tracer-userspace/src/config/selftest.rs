//! The plan of `tracer selftest`.

use super::{btf, causes, node_name, output};
use crate::cli::SelftestArgs;
use tracer_output::sink::SinkConfig;
use tracer_output::sink::filter::Filter;
use tracer_terminal::error::Error;
use tracer_testbed::command::SelftestConfig;

pub(super) fn plan(args: SelftestArgs) -> Result<SelftestConfig, Error> {
    let filter = Filter { causes: causes(&args.causes.causes)?, ..Filter::default() };
    let output = SinkConfig { filter, ..output(&args.output) };
    let node_name = node_name(args.node)?;
    Ok(SelftestConfig { output, node_name, btf: btf(args.btf)? })
}
