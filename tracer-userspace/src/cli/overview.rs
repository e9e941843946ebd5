//! All commands on one screen, grouped by purpose: for `tracer` without a command, and at the top of `tracer --help`.

use std::fmt::Write as _;

use clap::Command;

/// The purposes, each with its commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("Watch a node", &["attach", "record", "run", "health"]),
    ("Read what was recorded", &["replay", "show", "report"]),
    ("Check a node", &["doctor", "selftest"]),
    ("Look up", &["explain", "schema", "completions", "man", "version"]),
];

const EXAMPLES: &str = "Examples:
  tracer attach                  print what fails on this node, until Ctrl-C
  tracer doctor --problems       print what is wrong with it now, and the fix
  tracer explain loopback_down   print what a cause means

`tracer COMMAND --help` lists the flags and examples of a command.
";

pub(super) fn groups(command: &Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "{heading}:");
        for known in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = known.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:<11}  {about}", known.get_name());
        }
        text.push('\n');
    }
    text
}

/// The text that `tracer` prints without a command.
pub(super) fn text(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    format!("{about}\n\nUsage: tracer COMMAND [OPTIONS]\n\n{}{EXAMPLES}", groups(command))
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::*;

    #[test]
    fn every_command_is_in_one_group_on_one_line() {
        let command = definition::of_everything();
        let text = text(&command);
        for name in definition::names() {
            let lines = text.lines().filter(|line| line.split_whitespace().next() == Some(&name));
            assert_eq!(lines.count(), 1, "{name}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.matches("\n  tracer ").count(), 3, "{text}");
    }
}
