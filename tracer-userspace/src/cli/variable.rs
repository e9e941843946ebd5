//! The variable of a flag, for error messages about a value from that variable.

use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::Arg;

use super::definition;
use tracer_terminal::error::Error;
use tracer_terminal::typed::variable;

/// The flag with this argument id, without its leading dashes.
fn flag_of(id: &str) -> String {
    match id {
        "causes" => "cause".into(),
        "probers" => "prober".into(),
        _ => id.replace('_', "-"),
    }
}

/// Whether the variable has a value that is not empty.
fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn leading_flag(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("--")?;
    let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// The variable that gave a flag (`--duration <TIME>`) its value, if the flag is not on the command line.
pub(super) fn that_gave(flag: &str, args: &[OsString]) -> Option<String> {
    let name = leading_flag(flag)?;
    let typed = |arg: &str| leading_flag(arg) == Some(name) || is_short(arg, name);
    let is_typed = args.iter().skip(1).filter_map(|arg| arg.to_str()).any(typed);
    Some(variable(name)).filter(|variable| !is_typed && is_set(variable))
}

/// The variable of this command with a value that is not UTF-8. Only paths need not be UTF-8.
pub(super) fn not_utf8(args: &[OsString]) -> Option<String> {
    let command = definition::from_environment();
    let used = args.iter().skip(1).find_map(|arg| command.find_subcommand(arg))?;
    let is_path = |arg: &&Arg| arg.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let variables = used.get_arguments().filter(|arg| !is_path(arg)).filter_map(Arg::get_env);
    let is_bad = |name: &&OsStr| std::env::var_os(name).is_some_and(|value| value.to_str().is_none());
    variables.into_iter().find(is_bad).map(|name| name.to_string_lossy().into_owned())
}

/// `-o`, `-oxml` for `--output`.
fn is_short(arg: &str, name: &str) -> bool {
    matches!(
        (arg.get(..2), name),
        (Some("-o"), "output") | (Some("-n"), "namespace") | (Some("-p"), "pod") | (Some("-c"), "container")
    )
}

/// Replaces the flag in the error by the name of its variable, if the flag is not on the command line.
pub fn named_by(error: Error, typed: &[String]) -> Error {
    let text = error.to_string();
    let Some(name) = leading_flag(&text).filter(|_| error.exit_code() == 2) else { return error };
    let variable = variable(name);
    if typed.iter().any(|id| flag_of(id) == name) || !is_set(&variable) {
        return error;
    }
    Error::Usage(format!("{variable}{}", &text[2 + name.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leading_flag_of_a_text_is_found() {
        assert_eq!(leading_flag("--output-file /x: no"), Some("output-file"));
        assert_eq!(leading_flag("--duration=5m"), Some("duration"));
        assert_eq!((leading_flag("-o"), leading_flag("record FILE"), leading_flag("--")), (None, None, None));
        assert_eq!((variable("node-name"), variable("kubelet-log")), ("NODE_NAME".into(), "TRACER_KUBELET_LOG".into()));
    }

    #[test]
    fn an_error_without_a_flag_is_unchanged() {
        let error = named_by(Error::Usage("explain `x`: no such cause".into()), &[]);
        assert_eq!(error.to_string(), "explain `x`: no such cause");
    }
}
