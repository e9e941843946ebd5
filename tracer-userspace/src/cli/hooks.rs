//! The flags of `tracer hooks`.

use clap::Args;

use super::FailOn;
use super::flags::{DurationFlag, KernelFlags, NodeFlag, OutputFlags, ProberFlag};
use tracer_output::sink::choices;

#[derive(Debug, Args)]
pub struct HooksArgs {
    /// Exit with code 1 at a finding of this status or a worse one; a missing hook is a warning
    #[arg(long, value_enum, value_name = choices::<FailOn>(), default_value = "fail", hide_possible_values = true)]
    pub fail_on: FailOn,
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub end: DurationFlag,
    #[command(flatten)]
    pub probers: ProberFlag,
    #[command(flatten)]
    pub kernel: KernelFlags,
    #[command(flatten)]
    pub node: NodeFlag,
}
