//! `tracer selftest`: runs a scenario of each cause, prints a row for each, and returns the exit code.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use super::helper::{Programs, Role};
use super::options::Options;
use super::proc::rename;
use super::report::Report;
use super::runner::{Plan, run};
use super::scenario::Scenario;
use super::shown::items;
use super::watcher::Tracer;
use super::{allowed, guard};
use tracer_output::sink::SinkConfig;
use tracer_terminal::error::Error;

/// Directory for the files of a selftest, in its private `/run`.
const SCRATCH: &str = "/run/tracer-selftest";

/// Generous: only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(60);
const VERDICT_PATIENCE: Duration = Duration::from_secs(15);

/// The settings of `tracer selftest`.
#[derive(Clone, Debug)]
pub struct SelftestConfig {
    /// Where rows are printed. Its causes select the scenarios.
    pub output: SinkConfig,
    pub node_name: String,
    /// `--btf` of the tracer of the scenarios.
    pub btf: Option<PathBuf>,
}

/// Runs `tracer selftest`.
///
/// # Errors
/// This kernel or these privileges do not allow it, or the output cannot be opened.
pub fn selftest(config: &SelftestConfig) -> Result<u8, Error> {
    allowed::check_capabilities()?;
    guard::guarded(|| play(config))
}

/// Runs a process of a selftest in its role, until it is ended.
///
/// # Errors
/// Why it cannot go on.
pub fn helper(role: Role, comm: &str, args: &[String]) -> Result<u8, Error> {
    let done = rename(comm).and_then(|()| role.run(args));
    done.map(|()| 0).map_err(|error| Error::Kernel(format!("{comm}: {error:#}")))
}

fn play(config: &SelftestConfig) -> Result<u8, Error> {
    // The output and the BTF may be files below /run, which is hidden after `private_mounts`.
    let opened = |path: &PathBuf| File::open(path).map_err(|error| Error::file("--btf", path, error));
    let btf = config.btf.as_ref().map(opened).transpose()?;
    let mut report = Report::open(&config.output, &config.node_name)?;
    guard::private_mounts()?;
    let through = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into();
    let options = Options { btf: btf.as_ref().map(through), ..options() };
    allowed::check_node_and_tracer(&options)?;
    let items = items(&config.output.filter.causes);
    let chosen: Vec<Scenario> = items.iter().filter_map(|item| item.how.clone().ok()).collect();
    run(&plan(options)?, &chosen, &mut |row| report.print_row(&items, row));
    Ok(report.finish(&items))
}

/// Options for a busy node, with a prober name that no other tracer of this node follows.
fn options() -> Options {
    Options {
        prober: format!("prober-{}", std::process::id()),
        scratch: SCRATCH.into(),
        patience: PATIENCE,
        verdict_patience: VERDICT_PATIENCE,
        names: false,
        fixes: false,
        ..Options::detect(Programs::Itself)
    }
}

fn plan(options: Options) -> Result<Plan, Error> {
    let tracer = Tracer::new(&options, options.programs.tracer());
    let tracer = tracer.map_err(|error| Error::Kernel(format!("selftest: {error:#}")))?;
    Ok(Plan { options, tracer, record: None })
}
