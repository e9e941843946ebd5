//! What is wrong with a command line, in one line.

use std::ffi::OsString;

use super::definition;

/// What there is to choose from.
pub(super) fn no_command() -> String {
    format!("no command is given: {} (see `tracer --help`)", definition::names().join(", "))
}

/// How help on what was typed is asked for.
fn help_of(args: &[OsString]) -> String {
    let known = definition::names();
    let typed = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let command = typed.into_iter().find(|arg| known.iter().any(|name| name == arg));
    command.map_or_else(|| "tracer --help".to_owned(), |name| format!("tracer {name} --help"))
}

/// clap's message without its usage block: what is wrong, with its tips, and where help is.
pub(super) fn one_line(rendered: &str, args: &[OsString]) -> String {
    let message = rendered.split("\nUsage:").next().unwrap_or(rendered);
    let message = message.split("\nFor more information").next().unwrap_or(message);
    let words = message.trim_start_matches("error:").split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{words} (see `{}`)", help_of(args))
}
