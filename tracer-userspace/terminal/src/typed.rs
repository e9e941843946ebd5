//! What people type: the command line, times and sizes with their units.

pub mod duration;
pub mod nearest;
pub mod size;

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction};

use crate::screen::columns;

/// Columns of help without a terminal.
const COLUMNS: usize = 80;
/// Longer lines are hard to read.
const MOST_COLUMNS: usize = 100;

/// A command line, as far as it could be read.
#[derive(Debug)]
pub enum Parsed<C> {
    Command(Box<C>),
    /// The text of `--help` or `--version`.
    Text(String),
    /// The message about wrong usage, in one line.
    Wrong(String),
}

/// clap's message with its tips, without its usage block, in one line.
pub fn without_usage(rendered: &str) -> String {
    let message = rendered.split("\nUsage:").next().and_then(|it| it.split("\nFor more information").next());
    let message = message.unwrap_or_default().trim_start_matches("error:");
    // clap's message for a wrong boolean does not name the right ones.
    let message = message.replace("value was not a boolean", "write true or false");
    let parts = message.split("\n  tip:").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.collect::<Vec<_>>().join("; tip: ")
}

pub fn help_columns() -> usize {
    columns(std::io::stdout()).map_or(COLUMNS, |columns| columns.min(MOST_COLUMNS))
}

/// The variable of a flag without its leading dashes.
pub fn variable(flag: &str) -> String {
    match flag {
        "node-name" => "NODE_NAME".to_owned(),
        _ => format!("TRACER_{}", flag.to_uppercase().replace('-', "_")),
    }
}

/// Adds the variable of each flag. For a flag without a value it is yes or no. The hidden `--markdown` has none.
pub fn with_variable(arg: Arg) -> Arg {
    let Some(variable) = arg.get_long().filter(|long| *long != "markdown").map(variable) else { return arg };
    let arg = arg.env(variable).hide_env_values(true);
    match arg.get_action() {
        ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    }
}

/// A variable with an empty value, as in some manifests, counts as unset.
pub fn without_empty(arg: Arg) -> Arg {
    match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::without_usage;

    #[test]
    fn tips_follow_a_semicolon() {
        let rendered = "error: a 'x' found\n\n  tip: one\n  tip: two\n\nUsage: y\n";
        assert_eq!(without_usage(rendered), "a 'x' found; tip: one; tip: two");
    }
}
