//! What `tracer hooks` was asked for.

use std::time::Duration;

use super::{filled, host_name, output, probers, readable};
use crate::cli::HooksArgs;
use crate::hooks::HooksConfig;
use tracer_bpf::ebpf::LoadOptions;
use tracer_terminal::error::Error;

/// How long the hooks are watched without --duration.
const WINDOW: Duration = Duration::from_secs(5);

/// What the command line means.
pub(super) fn plan(args: HooksArgs) -> Result<HooksConfig, Error> {
    Ok(HooksConfig {
        output: output(&args.output),
        load: LoadOptions {
            probers: probers(args.probers.probers)?,
            all_connections: args.kernel.all_connections,
            no_syscall_hooks: args.kernel.no_syscall_hooks,
            prober_hooks: args.kernel.prober_hooks,
            btf: readable("--btf", args.kernel.btf.btf)?,
            ring_bytes: args.kernel.ring_kib.map(|kib| kib << 10),
        },
        duration: args.end.duration.unwrap_or(WINDOW),
        fail_on: args.fail_on.into(),
        node_name: filled(args.node.node_name).unwrap_or_else(host_name),
    })
}
