//! What `tracer hooks` was asked for.

use std::time::Duration;

use super::{filled, host_name, output, probers};
use crate::cli::{Flags, HooksArgs};
use crate::doctor::Status;
use crate::ebpf::LoadOptions;
use crate::error::Error;
use crate::sink::SinkConfig;

/// How long the hooks are watched where nobody says.
const WINDOW: Duration = Duration::from_secs(5);

/// `hooks`.
#[derive(Clone, Debug)]
pub struct Hooks {
    /// Where findings go.
    pub output: SinkConfig,
    /// What is attached.
    pub load: LoadOptions,
    /// How long it is watched.
    pub duration: Duration,
    /// Exit code 1 from here on.
    pub fail_on: Status,
    /// Name of this node.
    pub node_name: String,
}

/// What the command line means.
///
/// # Errors
/// A value that means nothing.
pub(super) fn plan(args: &HooksArgs, flags: Flags) -> Result<Hooks, Error> {
    Ok(Hooks {
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
