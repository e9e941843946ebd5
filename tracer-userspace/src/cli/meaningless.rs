//! Flags that mean the same everywhere, and the commands in which they would do nothing: typed there, they are refused,
//! and their `--help` does not name them.

use super::{Cli, Command};
use tracer_terminal::error::Error;

/// Flags that have a meaning in the same commands.
type Group = &'static [&'static str];

const DURATION: Group = &["duration"];
const PROBERS: Group = &["probers"];
/// How the kernel is watched.
const KERNEL: Group = &["all_connections", "no_syscall_hooks", "ring_kib"];
const PODS: Group = &["pods"];
/// Where else facts come from.
const SOURCES: Group =
    &["services", "kubelet_log", "kubeconfig", "no_api", "api_services", "api_events"];
const NODE: Group = &["node_name"];
const FORM: Group = &["output"];
const FILE: Group = &["output_file"];
const ROTATION: Group = &["output_max_size", "output_max_files"];
const FILTERS: Group = &["namespace", "pod", "container"];
const CAUSES: Group = &["causes"];
/// What is made of attempts.
const ATTEMPTS: Group = &["until_failure", "attempts"];

/// All that belongs to a live run.
const LIVE: &[Group] = &[DURATION, PROBERS, KERNEL, PODS, SOURCES, NODE];
/// All of what is printed.
const PRINTED: &[Group] = &[FORM, FILE, ROTATION, FILTERS, CAUSES, ATTEMPTS];

/// What a command has no use for, and why.
fn useless(command: &str) -> (&'static [Group], &'static [Group], &'static str) {
    match command {
        "replay" => (LIVE, &[], ": the recording has it"),
        "report" => (LIVE, &[FORM, ROTATION, ATTEMPTS], ": it makes a page of what a run printed"),
        "schema" | "explain" | "health" | "completions" | "man" | "selftest-helper" => (LIVE, PRINTED, ""),
        "doctor" => (&[DURATION, KERNEL, SOURCES], &[FILTERS, CAUSES, ATTEMPTS], ""),
        "hooks" => (&[PODS, SOURCES], &[ROTATION, FILTERS, CAUSES, ATTEMPTS], ""),
        "selftest" => (&[DURATION, PROBERS, KERNEL, PODS, SOURCES], &[ROTATION, FILTERS, ATTEMPTS], ""),
        _ => (&[], &[], ""),
    }
}

/// The flag would do nothing in this command.
pub(super) fn is_useless(command: &str, id: &str) -> bool {
    let (first, second, _) = useless(command);
    first.iter().chain(second).any(|group| group.contains(&id))
}

/// The flag's variable counts in this command.
pub(super) fn heeds_variable(command: &str, id: &str) -> bool {
    !is_useless(command, id)
}

/// Refuses flags that were typed for a command in which they would do nothing.
///
/// # Errors
/// The first of them.
pub(crate) fn refuse(cli: &Cli) -> Result<(), Error> {
    if let Some(id) = without_api(cli) {
        let (flag, command) = (flag(id), cli.command.name());
        return Err(Error::Usage(format!("--{flag} has no meaning for `tracer {command}` without --kubeconfig PATH")));
    }
    let command = cli.command.name();
    let (_, _, why) = useless(command);
    cli.typed
        .iter()
        .find(|id| is_useless(command, id))
        .map_or(Ok(()), |id| Err(Error::Usage(format!("--{} has no meaning for `tracer {command}`{why}", flag(id)))))
}

/// Asks the cluster API, in a command that asks it as a kubeconfig says or not at all. From the environment of a daemon,
/// which has an account, it may well meet an `attach`.
fn without_api(cli: &Cli) -> Option<&'static str> {
    let named = cli.flags.kubeconfig.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
    if named || !matches!(cli.command, Command::Attach | Command::Record { .. }) {
        return None;
    }
    ["api_services", "api_events"].into_iter().find(|id| is_typed(cli, id))
}

/// It stood on the command line.
fn is_typed(cli: &Cli, id: &str) -> bool {
    cli.typed.iter().any(|typed| typed == id)
}

/// As it is typed: of a list one is.
pub(super) fn flag(id: &str) -> String {
    match id {
        "causes" => "cause".into(),
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
    fn every_command_that_has_no_use_for_a_flag_is_one() {
        let known: Vec<String> = Cli::command().get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
        for name in
            ["replay", "report", "schema", "explain", "health", "completions", "man", "doctor", "hooks", "selftest"]
        {
            assert!(known.contains(&name.to_owned()) && is_useless(name, "services"), "{name}");
        }
        assert!(!is_useless("attach", "services") && !is_useless("doctor", "pods"));
    }

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
