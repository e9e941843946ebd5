//! `kubectl tracer`: from a failing pod to its cause, through the logs of the DaemonSet's pods.
//!
//! ```text
//! cli, target    the command line
//! api, objects   the requests, and the parts of objects that are read
//! problem        the errors, in one line each
//! daemon         which pod of tracer has the log of a node
//! records, logs  the records of one log, and the logs of many nodes at once
//! why, top, attach, report   the commands
//! ```
//!
//! It needs the right to `pods/log` in tracer's namespace, but neither `exec` nor a port. Memory does not grow with the
//! logs.

mod api;
mod attach;
mod cli;
mod clock;
mod daemon;
#[doc(hidden)]
pub mod fuzzing;
mod logs;
mod objects;
mod problem;
mod records;
mod report;
mod target;
#[cfg(test)]
mod testing;
mod top;
mod why;

use std::ffi::OsString;
use std::io::Write;

use tokio::task::LocalSet;

pub use self::cli::{plugin_args, variables};

use self::api::Api;
use self::cli::Command;
use self::problem::Problem;
use tracer_output::explain;
use tracer_terminal::error;
use tracer_terminal::screen::Screen;
use tracer_terminal::typed::Parsed;

/// Runs the plugin with the arguments after its name. Gives the exit code.
#[must_use]
pub fn run(args: Vec<OsString>) -> u8 {
    match cli::parse(args) {
        Parsed::Text(text) => {
            // It is no error if the reader closes the pipe early.
            let _ = std::io::stdout().write_all(text.as_bytes());
            0
        }
        Parsed::Wrong(message) => {
            error::report(&message);
            2
        }
        Parsed::Command(command) => carry_out(*command).unwrap_or_else(|problem| {
            error::report(&problem);
            problem.exit_code()
        }),
    }
}

fn carry_out(command: Command) -> Result<u8, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Problem::Found(format!("no event loop: {}", error::os_message(&error))))?;
    let code = LocalSet::new().block_on(&runtime, answer(command, &mut std::io::stdout()));
    // Name resolution may still run in a thread, and may take long: the exit does not wait for it.
    runtime.shutdown_background();
    code
}

/// Runs a command. It prints to `out`, and diagnostics to stderr. Gives the exit code.
async fn answer(command: Command, out: &mut dyn Write) -> Result<u8, Problem> {
    match &command {
        Command::Why(args) => why::why(&Api::connect(&args.access).await?, args, out).await,
        Command::Top(args) => top::top(Api::connect(&args.access).await?, args, out).await,
        Command::Attach(args) => attach::attach(&Api::connect(&args.access).await?, args, out).await,
        Command::Report(args) => report::report(Api::connect(&args.access).await?, args).await,
        Command::Explain(args) => {
            error::print(out, explain::text(&args.causes, false, Screen::of_stdout()).as_bytes())?;
            Ok(0)
        }
    }
}
