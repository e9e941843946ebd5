//! `cargo xtask bench`: runs the benchmark in `tests/benches/cost` with the release binaries.

use anyhow::Result;

use crate::{build, sh};

/// Arguments of the benchmark.
#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// For the benchmark: `--quick`, `--only rate,events,programs,latency,footprint,node,growth,peers`, `--json PATH`, `--plot PATH`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// The command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    sh::need_root("bench attaches eBPF programs and makes network namespaces")?;
    build::release()?;
    let mut bench = sh::cargo(&["bench", "--package", "tracer-tests", "--bench", "cost", "--"]);
    sh::run(bench.args(&args.options))
}
