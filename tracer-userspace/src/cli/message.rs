//! The error message for a wrong command line, in one line.

use std::ffi::OsString;

use clap::Arg;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{definition, variable};
use tracer_terminal::typed::without_usage;

/// The command among the arguments.
fn command_of(args: &[OsString]) -> Option<String> {
    let known = definition::names();
    let mut typed = args.iter().skip(1).filter_map(|arg| arg.to_str());
    typed.find(|arg| known.iter().any(|name| name == arg)).map(str::to_owned)
}

/// The message with the command that prints the help.
pub(super) fn one_line(error: &clap::Error, args: &[OsString]) -> String {
    let place = if error.kind() == ErrorKind::InvalidUtf8 { not_utf8(args) } else { None };
    let words = place.map(|place| format!("{place}: not valid UTF-8")).or_else(|| misplaced(error, args));
    let words = words.unwrap_or_else(|| clap_message(error, args));
    let command = command_of(args).map(|name| format!("{name} ")).unwrap_or_default();
    format!("{words} (see `tracer {command}--help`)")
}

/// The message for a flag of another command, or for one before its command.
fn misplaced(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let definition = definition::of_everything();
    let is_it = |arg: &Arg| {
        let long = arg.get_long().is_some_and(|long| flag.strip_prefix("--") == Some(long));
        long || arg.get_short().is_some_and(|short| *flag == format!("-{short}"))
    };
    let takes = |command: &str| definition.find_subcommand(command).is_some_and(|it| it.get_arguments().any(is_it));
    let mut known = definition::names().into_iter();
    let owner = known.find(|name| takes(name)).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    match command_of(args) {
        Some(typed) if !takes(&typed) => Some(format!("{flag} has no meaning for `tracer {typed}`")),
        typed => Some(format!("{flag} goes after the command, as in `tracer {} {flag}`", typed.unwrap_or(owner))),
    }
}

/// clap's message. It names the source of a wrong value: the flag, or its variable.
fn clap_message(error: &clap::Error, args: &[OsString]) -> String {
    let mut rendered = error.render().to_string();
    // A header may be a secret, and a URL may have one.
    if let (Some(ContextValue::String(flag)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        && flag.starts_with("--otlp-")
    {
        rendered = rendered.replace(&format!("'{value}' "), "");
    }
    let words = without_usage(&rendered);
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(name) = variable::that_gave(flag, args)
    {
        return words.replacen(flag, &name, 1);
    }
    words
}

/// Finds the argument or variable that must be UTF-8 but is not. clap accepts the encoding once this argument is repaired.
fn not_utf8(args: &[OsString]) -> Option<String> {
    let lossy = |arg: &OsString| arg.to_string_lossy().into_owned();
    let is_fixed = |at: usize| {
        let fixed = args.iter().enumerate().map(|(n, arg)| if n <= at { lossy(arg).into() } else { arg.clone() });
        let parsed = definition::from_environment().try_get_matches_from(fixed.collect::<Vec<OsString>>());
        !parsed.is_err_and(|error| error.kind() == ErrorKind::InvalidUtf8)
    };
    let typed = (1..args.len()).filter(|at| args[*at].to_str().is_none()).find(|at| is_fixed(*at));
    typed.map(|at| shown(&lossy(&args[at - 1]), &lossy(&args[at]), at)).or_else(|| variable::not_utf8(args))
}

/// Shows an argument with the flag or command before it.
fn shown(before: &str, arg: &str, at: usize) -> String {
    if at == 1 || arg.starts_with('-') { format!("`{arg}`") } else { format!("`{before} {arg}`") }
}
