//! The binary: reads the command line, runs the command, and returns its exit code.

use std::path::Path;
use std::process::ExitCode;

use tracer::cli::{self, Cli, Parsed};
use tracer::config::{self, Plan};
use tracer::{live, pipeline, replay, shutdown};
use tracer_output::serve;
use tracer_terminal::error::{self, Error};
use tracer_terminal::stderr;
use tracer_terminal::telemetry::{self, Diagnostics};

fn main() -> ExitCode {
    shutdown::outlive_file_size_limit();
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(args) = tracer_kubectl::plugin_args(&args) {
        telemetry::start(Diagnostics::default());
        warn_of_unknown_variables();
        return ExitCode::from(tracer_kubectl::run(args));
    }
    let ended = match cli::parse(args) {
        Parsed::Command(cli) => run(*cli),
        Parsed::Text(text) => print(&text),
        Parsed::Wrong(message) => Err(Error::Usage(message)),
    };
    let code = ended.unwrap_or_else(|error| {
        error::report(&error);
        error.exit_code()
    });
    stderr::finish();
    ExitCode::from(code)
}

/// Runs a command and returns its exit code. If a variable gave a flag its value, an error about the flag names the variable.
fn run(cli: Cli) -> Result<u8, Error> {
    telemetry::start(cli.diagnostics);
    warn_of_unknown_variables();
    let typed = cli.typed.clone();
    carry_out(cli).map_err(|error| cli::named_by_variable(error, &typed))
}

fn warn_of_unknown_variables() {
    cli::unknown_variables(std::env::vars_os()).iter().for_each(|warning| error::warn(warning));
}

fn carry_out(cli: Cli) -> Result<u8, Error> {
    match config::plan(cli)? {
        Plan::Live(config) => {
            stderr::start();
            pipeline::run(&config, live::attach)
        }
        Plan::Replay(config) => replay::replay(&config),
        Plan::Show(config) => tracer_report::show(&config),
        Plan::Report(config) => tracer_report::report(&config),
        Plan::Doctor(config) => tracer_doctor::command::doctor(&config),
        #[cfg(feature = "selftest")]
        Plan::Selftest(config) => tracer_testbed::command::selftest(&config),
        #[cfg(feature = "selftest")]
        Plan::Helper { role, comm, args } => tracer_testbed::command::helper(role, &comm, &args),
        Plan::Health { ready, socket } => health(ready, &socket),
        Plan::Text(text) => print(&text),
    }
}

/// Asks the daemon for its health. Exit code 1 if it is not alive, or not ready.
fn health(ready: bool, socket: &Path) -> Result<u8, Error> {
    let (report, line) = serve::ask::ask(socket)?;
    let is_healthy = if ready { report.ready } else { report.live };
    print(&format!("{line}\n"))?;
    if !is_healthy {
        let asked = if ready { "ready" } else { "alive" };
        error::report(&format!("not {asked}: {}", report.reason.unwrap_or_default()));
    }
    Ok(u8::from(!is_healthy))
}

fn print(text: &str) -> Result<u8, Error> {
    error::print(&mut std::io::stdout(), text.as_bytes()).map(|()| 0)
}
