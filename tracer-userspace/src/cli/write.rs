//! The flags of the daemon alone: what it writes to the cluster API. Nothing, unless one of them is given.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

/// What `tracer run` writes to the cluster API.
#[derive(Debug, Args)]
#[command(next_help_heading = "Written to the cluster API")]
pub struct WriteFlags {
    /// An Event `ProbeFailureExplained` on the pod, for verdicts on probes that are proven or likely: one for each container and cause, counted
    #[arg(long, env = "TRACER_API_EXPLAIN", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub api_explain: bool,
    /// A condition `TracerNodeFault` of the node: true while a fault of the node itself is known
    #[arg(long, env = "TRACER_API_CONDITION", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub api_condition: bool,
}
