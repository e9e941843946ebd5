//! Flags of the daemon only: what it writes to the cluster API. Without these flags it writes nothing.

use clap::Args;

/// What `tracer run` writes to the cluster API.
#[derive(Debug, Args)]
#[command(next_help_heading = "Writes to the cluster API")]
pub struct WriteFlags {
    /// Write an Event `ProbeFailureExplained` on the pod for each container and cause, with a count; only for proven and likely verdicts
    #[arg(long)]
    pub api_explain: bool,
    /// Set the condition `TracerNodeFault` of the node: true while a fault of the node itself is known
    #[arg(long)]
    pub api_condition: bool,
}
