//! The flags of `tracer hooks`.

use clap::Args;

use super::FailOn;
use super::flags::{DurationFlag, KernelFlags, NodeFlag, OutputFlags, ProberFlag};

/// When it is a failure.
#[derive(Debug, Args)]
pub struct HooksArgs {
    /// Exit code 1 from this status on; a hook that is missing is a warning
    #[arg(
        long,
        value_enum,
        value_name = "warn|fail",
        default_value = "fail",
        hide_possible_values = true,
        env = "TRACER_FAIL_ON",
        hide_env_values = true
    )]
    pub fail_on: FailOn,
    /// Where the rows go.
    #[command(flatten)]
    pub output: OutputFlags,
    /// How long the hooks are watched.
    #[command(flatten)]
    pub end: DurationFlag,
    /// Who probes.
    #[command(flatten)]
    pub probers: ProberFlag,
    /// How the kernel is watched.
    #[command(flatten)]
    pub kernel: KernelFlags,
    /// This node.
    #[command(flatten)]
    pub node: NodeFlag,
}
