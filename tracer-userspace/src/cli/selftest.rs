//! The flags of `tracer selftest`.

use clap::Args;

use super::flags::{CauseFlag, NodeFlag, OutputFlags};

/// What is played, and where the rows go.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Where they go.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Which causes.
    #[command(flatten)]
    pub causes: CauseFlag,
    /// This node.
    #[command(flatten)]
    pub node: NodeFlag,
}
