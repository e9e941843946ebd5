//! The commands of the project: see `cargo xtask --help`.

mod bless;
mod build;
mod causes;
mod check;
mod deploy;
mod dist;
mod e2e;
mod image;
mod packages;
mod release;
mod setup;
mod sh;
mod test;
mod tracer;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what building, and with `--for test` testing, needs
    Setup(setup::SetupArgs),
    /// Build the static binary for one processor, and start it
    Dist(dist::DistArgs),
    /// Build the image as an OCI archive, and load it into containerd
    Image(image::ImageArgs),
    /// All that a release has: archives, packages, image, chart, lists and digests
    Release(release::ReleaseArgs),
    /// The tests: on this kernel and in a virtual machine; `--all`: in each of them
    Test(test::TestArgs),
    /// Make the failures on this machine and show the verdicts
    Demo,
    /// The tracer beside a real kubelet: pods with failing probes, in the cluster of KUBECONFIG; as root, on its node
    E2e(e2e::E2eArgs),
    /// Measure what the tracer costs and how fast it is; as root
    Bench {
        /// For the benchmark: `--quick`, `--only rate,events,programs,latency,footprint,node,growth,peers`,
        /// `--json PATH`, `--plot PATH`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Format, lints, licences, generated files, host names
    Check(check::CheckArgs),
    /// Run a command as root under another kernel
    Vm(vm::VmArgs),
    /// Make the generated files again
    Bless,
}

fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(sh::exit_code(&error))
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    match command {
        Command::Setup(args) => setup::ensure(args.purpose),
        Command::Dist(args) => dist::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Test(args) => test::run(&args),
        Command::E2e(args) => e2e::run(&args),
        Command::Demo => build::demo(),
        Command::Bench { options } => build::bench(&options),
        Command::Check(args) => check::run(&args),
        Command::Vm(args) => vm::run(&args),
        Command::Bless => bless::run(),
    }
}
