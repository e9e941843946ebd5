//! The flags of `tracer doctor`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};

use super::flags::{BtfFlag, NodeFlag, OutputFlags, PodsFlag, ProberFlag, RotationFlags};
use tracer_model::record::Status;

/// What to check, where, and when that is a failure.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Run only this check; repeatable [default: all]
    #[arg(long = "check", value_name = "NAME", env = "TRACER_CHECK", hide_env_values = true, value_delimiter = ',', value_parser = super::flags::name_of_list())]
    pub checks: Vec<String>,
    /// Show only findings that are not ok
    #[arg(long, env = "TRACER_PROBLEMS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub problems: bool,
    /// Exit with code 1 at a finding of this status or a worse one
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
    /// Check the files of a node below this folder; what only its kernel knows stays unknown
    #[arg(long, value_name = "DIR", env = "TRACER_ROOT", hide_env_values = true)]
    pub root: Option<PathBuf>,
    /// Where the findings go.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Rotation of the file.
    #[command(flatten)]
    pub rotation: RotationFlags,
    /// Who probes.
    #[command(flatten)]
    pub probers: ProberFlag,
    /// BTF.
    #[command(flatten)]
    pub btf: BtfFlag,
    /// The pods.
    #[command(flatten)]
    pub pods: PodsFlag,
    /// This node.
    #[command(flatten)]
    pub node: NodeFlag,
}

/// The least bad status that is a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Warnings, too.
    Warn,
    /// Failures only.
    Fail,
}

impl From<FailOn> for Status {
    fn from(on: FailOn) -> Self {
        match on {
            FailOn::Warn => Self::Warn,
            FailOn::Fail => Self::Fail,
        }
    }
}
