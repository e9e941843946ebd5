//! The flags of `tracer doctor`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::flags::{BtfFlag, NodeFlag, OutputFlags, PodsFlag, ProberFlag, RotationFlags};
use tracer_model::record::Status;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Run only this check; repeatable [default: all]
    #[arg(long = "check", value_name = "NAME", value_delimiter = ',', value_parser = super::flags::name_of_list())]
    pub checks: Vec<String>,
    /// Show only findings that are not ok
    #[arg(long)]
    pub problems: bool,
    /// Exit with code 1 at a finding of this status or a worse one
    #[arg(long, value_name = "warn|fail", default_value = "fail", hide_possible_values = true, value_parser = fail_on())]
    pub fail_on: Status,
    /// Check the files of a node below this folder; what only its kernel knows stays unknown
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub rotation: RotationFlags,
    #[command(flatten)]
    pub probers: ProberFlag,
    #[command(flatten)]
    pub btf: BtfFlag,
    #[command(flatten)]
    pub pods: PodsFlag,
    #[command(flatten)]
    pub node: NodeFlag,
}

/// The least bad status that is a failure.
fn fail_on() -> impl TypedValueParser<Value = Status> {
    let values = [("warn", "Warnings, too"), ("fail", "Failures only")];
    PossibleValuesParser::new(values.map(|(name, help)| PossibleValue::new(name).help(help)))
        .map(|name| if name == "warn" { Status::Warn } else { Status::Fail })
}
