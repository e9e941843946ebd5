//! Flags that mean the same everywhere, and the commands in which they would do nothing: typed there, they are refused.

use crate::cli::{Cli, Command, Form};
use crate::error::Error;

/// Flags that have a meaning in the same commands.
type Group = &'static [&'static str];

const DURATION: Group = &["duration"];
const PROBERS: Group = &["probers"];
/// How the kernel is watched.
const KERNEL: Group = &["all_connections", "no_syscall_hooks", "ring_kib"];
const PODS: Group = &["pods"];
/// Where else facts come from.
const SOURCES: Group =
    &["services", "kubelet_log", "kubelet_api", "kubelet_ca", "kubeconfig", "no_api", "api_services", "api_events"];
const NODE: Group = &["node_name"];
const FORM: Group = &["output"];
const FILE: Group = &["output_file"];
const ROTATION: Group = &["output_max_size", "output_max_files"];
const FORMAT: Group = &["format"];
const FILTERS: Group = &["namespace", "pod", "container"];
const LABELS: Group = &["labels"];
/// What is made of attempts.
const ATTEMPTS: Group = &["until_failure", "attempts"];

/// All that belongs to a live run.
const LIVE: &[Group] = &[DURATION, PROBERS, KERNEL, PODS, SOURCES, NODE];
/// All of what is printed.
const PRINTED: &[Group] = &[FORM, FILE, ROTATION, FORMAT, FILTERS, LABELS, ATTEMPTS];

/// What a command has no use for, and why.
fn useless(command: &Command) -> (&'static [Group], &'static [Group], &'static str) {
    match command {
        Command::Replay { .. } => (LIVE, &[], ": the recording has it"),
        Command::Report { .. } => {
            (LIVE, &[FORM, ROTATION, FORMAT, ATTEMPTS], ": it makes a page of what a run printed")
        }
        Command::Schema
        | Command::Explain { .. }
        | Command::Health { .. }
        | Command::Completions { .. }
        | Command::Man { .. } => (LIVE, PRINTED, ""),
        Command::Doctor(_) => (&[DURATION, KERNEL, SOURCES], &[FORMAT, FILTERS, LABELS, ATTEMPTS], ""),
        Command::Hooks(_) => (&[PODS, SOURCES], &[ROTATION, FORMAT, FILTERS, LABELS, ATTEMPTS], ""),
        Command::Selftest => (&[DURATION, PROBERS, KERNEL, PODS, SOURCES], &[ROTATION, FORMAT, FILTERS, ATTEMPTS], ""),
        _ => (&[], &[], ""),
    }
}

/// Refuses flags that were typed for a command in which they would do nothing.
///
/// # Errors
/// The first of them.
pub(super) fn refuse(cli: &Cli) -> Result<(), Error> {
    // From the environment of a daemon it may well meet an `attach -o pretty`.
    if cli.flags.output == Some(Form::Pretty) && cli.typed.iter().any(|id| id == "format") {
        return Err(Error::Usage("--format names the fields of NDJSON: it has no meaning with `-o pretty`".into()));
    }
    let (first, second, why) = useless(&cli.command);
    let is_useless = |id: &&String| first.iter().chain(second).any(|group| group.contains(&id.as_str()));
    cli.typed.iter().find(is_useless).map_or(Ok(()), |id| {
        Err(Error::Usage(format!("--{} has no meaning for `tracer {}`{why}", flag(id), cli.command.name())))
    })
}

/// As it is typed: of a list one is.
fn flag(id: &str) -> String {
    match id {
        "labels" => "label".into(),
        "probers" => "prober".into(),
        _ => id.replace('_', "-"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_flag_that_means_the_same_everywhere_is_in_a_group() {
        let command = Cli::command();
        let flags = command.get_arguments().filter(|arg| arg.is_global_set());
        let flags: BTreeSet<String> = flags.map(|arg| arg.get_id().to_string()).collect();
        let grouped = LIVE.iter().chain(PRINTED).flat_map(|group| group.iter().map(ToString::to_string)).collect();
        assert!(flags.len() > 10, "{flags:?}");
        assert_eq!(flags, grouped);
    }
}
