//! The definition of the command line for clap: the types of [`super`], with layout and variables.

use clap::{Arg, Command, CommandFactory as _};

use super::{Cli, overview};
use tracer_terminal::typed::{help_columns, with_variable, without_empty};

/// The command line, without variables that have an empty value, as in some manifests.
pub(super) fn from_environment() -> Command {
    of_everything().mut_subcommands(|sub| sub.mut_args(without_empty))
}

/// The command line with the layout, variables and help texts of each command.
pub(super) fn of_everything() -> Command {
    let command = Cli::command();
    let head = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}", overview::groups(&command));
    let template = head + "Options:\n{options}{after-help}";
    command.help_template(template).term_width(help_columns()).mut_subcommands(|sub| {
        let name = sub.get_name().to_owned();
        sub.mut_args(|arg| with_own_help(&name, with_variable(arg)))
    })
}

/// Names of the commands that are shown.
pub(super) fn names() -> Vec<String> {
    Cli::command().get_subcommands().filter(|sub| !sub.is_hide_set()).map(|sub| sub.get_name().to_owned()).collect()
}

/// Changes the help of a flag in commands that use it in another way.
fn with_own_help(command: &str, arg: Arg) -> Arg {
    match (command, arg.get_id().as_str()) {
        ("report", "output_file") => arg.help("Write the page to this file (mode 0600) instead of stdout"),
        // These commands do not reopen a file at SIGHUP, because they end by themselves.
        ("replay" | "show" | "doctor" | "selftest", "output_file") => {
            arg.help("Append the records to this file (mode 0600) instead of stdout")
        }
        ("doctor", "pods") => arg
            .help("Read the pods of this node from this file, as `kubectl get pods -A -o json` (or yaml) prints them"),
        ("doctor", "prober") => arg.help("Find the node's network namespace by processes with this name; repeatable"),
        ("show", "output") => {
            arg.help("Print records in this format [default: pretty, also in a pipe: show is for people]")
        }
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_commands_mention_reopening_and_reloading_files() {
        let mentions = |command: &str, phrase: &str| {
            let command = of_everything().find_subcommand(command).cloned();
            command.is_some_and(|it| it.term_width(1000).render_help().to_string().contains(phrase))
        };
        for name in names() {
            let live = ["attach", "run", "record"].contains(&name.as_str());
            assert_eq!(
                (mentions(&name, "SIGHUP reopens it"), mentions(&name, "when it changes")),
                (live, live),
                "{name}"
            );
        }
    }
}
