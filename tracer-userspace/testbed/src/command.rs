//! The command: plays, prints a row for each cause, gives the exit code.

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

/// Files of a selftest, in a `/run` of its own.
const SCRATCH: &str = "/run/tracer-selftest";

/// For what must come; only a failure lasts so long.
const PATIENCE: Duration = Duration::from_secs(60);
const VERDICT_PATIENCE: Duration = Duration::from_secs(15);

/// What `tracer selftest` was asked for.
#[derive(Clone, Debug)]
pub struct SelftestConfig {
    /// Where rows go; its causes are those that are played.
    pub output: SinkConfig,
    /// Name of this node.
    pub node_name: String,
}

/// Carries `tracer selftest` out.
///
/// # Errors
/// This kernel or these privileges do not allow it, or the output cannot be opened.
pub fn selftest(config: &SelftestConfig) -> Result<u8, Error> {
    allowed::capabilities()?;
    guard::guarded(|| play(config))
}

/// Carries out what a process of a selftest is for, until it is ended.
///
/// # Errors
/// Why it cannot go on.
pub fn helper(role: Role, comm: &str, args: &[String]) -> Result<u8, Error> {
    let done = rename(comm).and_then(|()| role.run(args));
    done.map(|()| 0).map_err(|error| Error::Kernel(format!("{comm}: {error:#}")))
}

fn play(config: &SelftestConfig) -> Result<u8, Error> {
    // A file below /run is opened while it can be seen.
    let mut report = Report::open(&config.output, &config.node_name)?;
    guard::private_mounts()?;
    let options = options();
    allowed::attempt(&options)?;
    let items = items(&config.output.filter.causes);
    let chosen: Vec<Scenario> = items.iter().filter_map(|item| item.how.clone().ok()).collect();
    run(&plan(options)?, &chosen, &mut |row| report.tell(&items, row));
    Ok(report.finish(&items))
}

/// A prober that no other tracer of this node takes for a kubelet, and the patience that a busy node asks for.
fn options() -> Options {
    Options {
        prober: format!("prober-{}", std::process::id()),
        scratch: SCRATCH.into(),
        patience: PATIENCE,
        verdict_patience: VERDICT_PATIENCE,
        names: false,
        ..Options::detect(Programs::Itself)
    }
}

fn plan(options: Options) -> Result<Plan, Error> {
    let tracer = Tracer::new(&options, options.programs.tracer());
    let tracer = tracer.map_err(|error| Error::Kernel(format!("selftest: {error:#}")))?;
    Ok(Plan { options, tracer: Some(tracer), record: None })
}
