//! What `tracer hooks` was asked for.

use std::time::Duration;

use super::{filled, host_name, output, probers};
use crate::cli::{Flags, HooksArgs};
use crate::hooks::HooksConfig;
use tracer_bpf::ebpf::LoadOptions;
use tracer_terminal::error::Error;

/// How long the hooks are watched where nobody says.
const WINDOW: Duration = Duration::from_secs(5);

/// What the command line means.
///
/// # Errors
/// A value that means nothing.
pub(super) fn plan(args: &HooksArgs, flags: Flags) -> Result<HooksConfig, Error> {
    Ok(HooksConfig {
        output: output(&flags)?,
        load: LoadOptions {
            probers: probers(flags.probers)?,
            all_connections: flags.all_connections,
            no_syscall_hooks: flags.no_syscall_hooks,
            ring_bytes: flags.ring_kib.map(|kib| kib << 10),
        },
        duration: flags.duration.unwrap_or(WINDOW),
        fail_on: args.fail_on.into(),
        node_name: filled(flags.node_name).unwrap_or_else(host_name),
    })
}
