//! What is wrong with a command line, in one line.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

use super::{definition, variable};

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

/// clap's message without its usage block: what is wrong, with its tips, and where help is. A value is told by what gave
/// it: the flag, or its variable.
pub(super) fn one_line(error: &clap::Error, args: &[OsString]) -> String {
    let rendered = error.render().to_string();
    let message = rendered.split("\nUsage:").next().unwrap_or(&rendered);
    let message = message.split("\nFor more information").next().unwrap_or(message);
    let words = message.trim_start_matches("error:").split_whitespace().collect::<Vec<_>>().join(" ");
    let words = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => by_variable(words, flag, args),
        _ => words,
    };
    format!("{words} (see `{}`)", help_of(args))
}

fn by_variable(words: String, flag: &str, args: &[OsString]) -> String {
    variable::that_gave(flag, args).map_or_else(|| words.clone(), |name| words.replacen(flag, &name, 1))
}
