//! The plan of `tracer hooks`.

use std::time::Duration;

use super::{host_name, load_options, non_empty, output};
use crate::cli::HooksArgs;
use crate::hooks::HooksConfig;
use tracer_terminal::error::Error;

/// For how long the hooks are watched without --duration.
const WINDOW: Duration = Duration::from_secs(5);

/// Makes the configuration of the flags.
pub(super) fn plan(args: HooksArgs) -> Result<HooksConfig, Error> {
    Ok(HooksConfig {
        output: output(&args.output),
        load: load_options(args.probers, args.kernel)?,
        duration: args.end.duration.unwrap_or(WINDOW),
        fail_on: args.fail_on.into(),
        node_name: non_empty(args.node.node_name).unwrap_or_else(host_name),
    })
}
