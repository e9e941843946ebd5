//! What people type: the command line, times and sizes with their units.

pub mod duration;
pub mod nearest;
pub mod size;

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
    message.unwrap_or_default().trim_start_matches("error:").split_whitespace().collect::<Vec<_>>().join(" ")
}
