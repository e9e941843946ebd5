//! The flags of `tracer selftest`.

use clap::Args;

use super::flags::{BtfFlag, CauseFlag, NodeFlag, OutputFlags};

/// What runs, and where the rows go.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub causes: CauseFlag,
    #[command(flatten)]
    pub node: NodeFlag,
    #[command(flatten)]
    pub btf: BtfFlag,
}
