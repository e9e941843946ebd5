//! The flags of `tracer doctor`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::flags::{NodeFlag, OutputFlags, PodsFlag, ProberFlag, RotationFlags};
use tracer_model::record::Status;

/// What to check, where, and when that is a failure.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only this check; repeatable [default: all]
    #[arg(long = "check", value_name = "NAME", env = "TRACER_CHECK", hide_env_values = true, value_delimiter = ',', value_parser = super::flags::name_of_list())]
    pub checks: Vec<String>,
    /// Exit code 1 from this status on
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
    /// Read the files of a node below this folder; what only its kernel knows is then unknown
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
