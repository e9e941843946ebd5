//! The command line of `kubectl tracer`, for clap.

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

use super::target::Target;
use tracer_model::record::Cause;
use tracer_output::explain;
use tracer_output::sink::choices;
use tracer_terminal::typed::{Parsed, duration, help_columns, size, with_variable, without_empty, without_usage};

/// Names the cause of a failing pod, on any node, from the logs of tracer's DaemonSet.
#[derive(Debug, Parser)]
#[command(name = "kubectl tracer", bin_name = "kubectl tracer", version, subcommand_required = true)]
#[command(after_help = "Exit codes:
  0  done, also where nothing was found
  2  wrong usage, or something could not be read: no such pod, no tracer on its
     node, no answer, refused credentials
  3  RBAC does not allow it: the missing right is named
deploy/operators.yaml has the rights that each command needs.

Examples:
  kubectl tracer why deploy/cart -n shop
  kubectl tracer top --since 15m
  kubectl tracer report --output-file incident.html")]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Print why a pod is not ready: the answer first, then its verdicts
    #[command(after_help = "Examples:
  kubectl tracer why cart-7d9f8b6c5d-x2x4z -n shop
  kubectl tracer why deploy/cart -n shop -c web
  kubectl tracer why sts/db -n shop -o json | jq .verdict.cause")]
    Why(Why),
    /// Count causes over all nodes: how many pods and nodes, which culprit, since when
    #[command(after_help = "Examples:
  kubectl tracer top
  kubectl tracer top --since 15m -o json | jq '.causes[0]'
  kubectl tracer top node-1 node-2")]
    Top(Top),
    /// Run tracer on a node for a while, also where the DaemonSet is not
    #[command(
        after_help = "The pod has the rights of deploy/daemonset.yaml and no token. It is deleted at the end and after Ctrl-C. If the connection is lost, its own deadline ends it.

Examples:
  kubectl tracer attach node-3 -n shop -p 'cart-*'
  kubectl tracer attach node-3 --all-connections --duration 2m
  kubectl tracer attach node-3 --duration 30m --image REGISTRY/tracer:0.1.0"
    )]
    Attach(Attach),
    /// Make one HTML page of the logs of all nodes, or of those named
    #[command(after_help = "Example:
  kubectl tracer report node-1 node-2 --since 2h --output-file incident.html")]
    Report(Report),
    /// Explain causes: meaning, evidence, what looks alike, fix
    #[command(after_help = "Examples:
  kubectl tracer explain
  kubectl tracer explain connection_refused")]
    Explain(Explain),
}

impl Cli {
    /// A namespace on the command line overrides `TRACER_ALL_NAMESPACES`.
    fn prefer_typed_namespace(&mut self, matches: &ArgMatches) {
        let (Command::Attach(attach), Some((_, matches))) = (&mut self.command, matches.subcommand()) else { return };
        let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if is_typed("namespace") && !is_typed("all_namespaces") {
            attach.all_namespaces = false;
        }
    }
}

/// Access to the cluster API.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct Access {
    /// Use this kubeconfig [default: KUBECONFIG, ~/.kube/config, in a pod its service account]
    #[arg(long, value_name = "PATH")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Use this context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Give up a request that receives nothing for this time, such as 10s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(super) timeout: Duration,
}

/// Where tracer's DaemonSet is.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct DaemonSet {
    /// Find tracer's DaemonSet in this namespace
    #[arg(
        id = "daemonset_namespace",
        long = "daemonset-namespace",
        value_name = "NAMESPACE",
        default_value = "tracer"
    )]
    pub(super) namespace: String,
    /// Find the pods of the DaemonSet by these labels
    #[arg(
        id = "daemonset_selector",
        long = "daemonset-selector",
        value_name = "SELECTOR",
        default_value = "app.kubernetes.io/name=tracer"
    )]
    pub(super) selector: String,
}

/// Which logs are read, and how much of them.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logs")]
pub(super) struct Logs {
    /// Read only these nodes [default: all]
    #[arg(value_name = "NODE", help_heading = "Arguments")]
    pub(super) nodes: Vec<String>,
    /// Read only records of the last TIME, such as 15m
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub(super) since: Duration,
    /// Read this much of each node's log at most, such as 64MiB
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = size)]
    pub(super) limit_bytes: u64,
    /// Read this many logs at once
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) parallel: u32,
}

#[derive(Debug, Args)]
pub(super) struct Why {
    /// POD, pod/NAME, deploy/NAME, ds/NAME or sts/NAME
    #[arg(value_name = "POD|KIND/NAME")]
    pub(super) target: Target,
    /// Namespace of the pod [default: that of the context]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = name)]
    pub(super) namespace: Option<String>,
    /// Show only this container
    #[arg(short, long, value_name = "CONTAINER", value_parser = name)]
    pub(super) container: Option<String>,
    /// Read only records of the last TIME, such as 15m [default: all that the log has]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) since: Option<Duration>,
    /// Print this many of the newest verdicts of each pod
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(super) tail: u32,
    /// Print records in this format [default: pretty on a terminal, else json]
    #[arg(short, long, value_enum, value_name = choices::<Format>(), hide_possible_values = true)]
    pub(super) output: Option<Format>,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) daemonset: DaemonSet,
}

#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    pub(super) logs: Logs,
    /// Print in this format [default: pretty on a terminal, else json]
    #[arg(short, long, value_enum, value_name = choices::<Format>(), hide_possible_values = true)]
    pub(super) output: Option<Format>,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) daemonset: DaemonSet,
}

#[derive(Debug, Args)]
pub(super) struct Attach {
    /// The node
    #[arg(value_name = "NODE")]
    pub(super) node: String,
    /// Show only this namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = name)]
    pub(super) namespace: Option<String>,
    /// Show all namespaces: the default, unless -n or TRACER_NAMESPACE names one
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,
    /// Show only this pod; PREFIX* selects every pod with this prefix
    #[arg(short, long, value_name = "POD|PREFIX*", value_parser = name)]
    pub(super) pod: Option<String>,
    /// Also report failed connections of processes other than the prober
    #[arg(long)]
    pub(super) all_connections: bool,
    /// Make tracer's pod in this namespace; its Pod Security level must be privileged
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    pub(super) attach_namespace: String,
    /// Run this image [default: that of the DaemonSet's pods]
    #[arg(long, value_name = "IMAGE", value_parser = name)]
    pub(super) image: Option<String>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub(super) duration: Duration,
    /// Print records in this format [default: pretty on a terminal, else json]
    #[arg(short, long, value_enum, value_name = choices::<Format>(), hide_possible_values = true)]
    pub(super) output: Option<Format>,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) daemonset: DaemonSet,
}

#[derive(Debug, Args)]
pub(super) struct Report {
    #[command(flatten)]
    pub(super) logs: Logs,
    /// Write the page to this file [default: stdout]
    #[arg(long, value_name = "PATH")]
    pub(super) output_file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) access: Access,
    #[command(flatten)]
    pub(super) daemonset: DaemonSet,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The causes [default: list all causes]
    #[arg(value_name = "CAUSE", value_parser = cause)]
    pub(super) causes: Vec<Cause>,
}

/// An empty name is often a variable of the shell that was not set.
fn name(name: &str) -> Result<String, &'static str> {
    if name.is_empty() { Err("an empty name: write one, or leave the flag out") } else { Ok(name.to_owned()) }
}

fn cause(name: &str) -> Result<Cause, String> {
    Cause::from_name(name).ok_or_else(|| match explain::nearest(name) {
        Some(near) => format!("no such cause; did you mean {near}?"),
        None => "no such cause".to_owned(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Pretty,
    #[value(alias = "ndjson")]
    Json,
}

impl Format {
    /// The default: pretty on a terminal, else JSON.
    pub(super) fn of_stdout() -> Self {
        if stdout().is_terminal() { Self::Pretty } else { Self::Json }
    }
}

/// The arguments after `kubectl tracer`. They are absent if the program is not the plugin: neither by its name nor by the
/// hidden command `tracer kubectl`.
pub fn plugin_args(args: &[OsString]) -> Option<Vec<OsString>> {
    let name = args.first().map(std::path::Path::new).and_then(std::path::Path::file_name);
    if name.is_some_and(|name| name == "kubectl-tracer") {
        return Some(args[1..].to_vec());
    }
    args.get(1).filter(|command| *command == "kubectl").map(|_| args[2..].to_vec())
}

fn definition() -> clap::Command {
    Cli::command().mut_subcommands(|sub| sub.mut_args(with_variable))
}

/// The environment variables of the plugin's flags.
pub fn variables() -> Vec<OsString> {
    let command = definition();
    let flags = command.get_subcommands().flat_map(clap::Command::get_arguments).filter_map(Arg::get_env);
    flags.map(OsString::from).collect()
}

pub(super) fn parse(args: Vec<OsString>) -> Parsed<Command> {
    let command = definition().term_width(help_columns()).mut_subcommands(|sub| sub.mut_args(without_empty));
    let name = args.first().and_then(|it| it.to_str()).filter(|it| command.find_subcommand(it).is_some());
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    let named = std::iter::once(OsString::from("kubectl tracer")).chain(args);
    let parsed = command.try_get_matches_from(named).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.prefer_typed_namespace(&matches);
        Ok(cli)
    });
    match parsed {
        Ok(cli) => Parsed::Command(Box::new(cli.command)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Parsed::Text(error.to_string()),
            _ => Parsed::Wrong(format!("{} (see `kubectl tracer{name} --help`)", without_usage(&error.to_string()))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugin_is_known_by_its_name_or_the_hidden_command() {
        let args = |words: &[&str]| {
            let given: Vec<OsString> = words.iter().map(OsString::from).collect();
            plugin_args(&given).map(|rest| rest.len())
        };
        assert_eq!(args(&["/usr/local/bin/kubectl-tracer", "why", "a"]), Some(2));
        assert_eq!(args(&["tracer", "kubectl", "why", "a"]), Some(2));
        assert_eq!((args(&["tracer", "why", "kubectl"]), args(&["kubectl-tracer"])), (None, Some(0)));
    }

    /// Pretty on a terminal, else JSON: the same for each command.
    #[test]
    fn the_default_format_depends_on_stdout() {
        for words in [&["why", "cart-0"][..], &["top"], &["attach", "n1"]] {
            let output = match Cli::try_parse_from([&["kubectl tracer"], words].concat()).expect("arguments").command {
                Command::Why(why) => why.output,
                Command::Top(top) => top.output,
                Command::Attach(attach) => attach.output,
                other => unreachable!("{other:?}"),
            };
            assert_eq!(output, None, "{words:?}");
        }
    }

    #[test]
    fn without_a_command_there_is_help() {
        let Parsed::Text(help) = parse(Vec::new()) else { unreachable!("no command") };
        assert!(Cli::command().get_subcommands().all(|it| help.contains(it.get_name())), "{help}");
    }

    #[test]
    fn an_error_points_to_the_help_of_its_command() {
        let wrong = |words: &[&str]| match parse(words.iter().map(OsString::from).collect()) {
            Parsed::Wrong(message) => message,
            _ => unreachable!("{words:?}"),
        };
        assert!(wrong(&["why"]).ends_with("(see `kubectl tracer why --help`)"), "{}", wrong(&["why"]));
        assert!(wrong(&["version"]).ends_with("(see `kubectl tracer --help`)"), "{}", wrong(&["version"]));
        let empty = wrong(&["why", "cart-0", "-c", ""]);
        assert!(empty.contains("an empty name"), "{empty}");
        let other = wrong(&["attach", "n1", "--tail", "3"]);
        assert!(other.contains("--tail") && other.contains("kubectl tracer attach --help"), "{other}");
        let near = wrong(&["explain", "loopback_dow"]);
        assert!(near.contains("did you mean loopback_down?"), "{near}");
    }

    #[test]
    fn every_flag_has_its_variable() {
        let command = definition();
        let flags: Vec<_> = command.get_subcommands().flat_map(clap::Command::get_arguments).collect();
        assert!(flags.len() > 20 && flags.iter().all(|arg| arg.get_long().is_some() == arg.get_env().is_some()));
        let known = variables();
        assert!(
            ["TRACER_SINCE", "TRACER_DAEMONSET_NAMESPACE"].iter().all(|name| known.contains(&name.into())),
            "{known:?}"
        );
    }
}
