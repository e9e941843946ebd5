//! What was typed: the command line and the environment, as clap reads them. What it means is in
//! [`crate::config`].

mod definition;
mod doctor;
mod flags;
mod hooks;
mod message;
mod namespace;
mod otlp;
pub mod pages;
#[cfg(feature = "selftest")]
mod selftest;
mod serve;
mod variable;
mod write;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, FromArgMatches as _, Parser, Subcommand};

use tracer_terminal::typed::{duration, size};

pub use doctor::{DoctorArgs, FailOn};
pub use flags::{FileFlag, FilterFlags, LiveFlags, OutputFlags, RecordFlags, RotationFlags, SourceFlags};
pub use hooks::HooksArgs;
pub use otlp::{Compression, OtlpFlags};
#[cfg(feature = "selftest")]
pub use selftest::SelftestArgs;
pub use serve::ServeFlags;
pub use variable::named_by as named_by_variable;
pub use write::WriteFlags;

/// Names the cause of a failed Kubernetes probe from the kernel's own events, as it happens.
#[derive(Debug, Parser)]
#[command(name = "tracer", version, subcommand_required = true, arg_required_else_help = false)]
#[command(after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Ids of the flags that stood on the command line (not in the environment).
    #[clap(skip)]
    pub typed: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  tracer attach                          what fails on this node, until Ctrl-C
  tracer attach -n shop -p cart-7d9 --until-failure --duration 10m
  tracer record incident.ndjson          the same, and keep what was seen
  tracer replay incident.ndjson -o json | jq -c '.verdict.cause // empty'
  tracer show tracer.ndjson -n shop      records as people read them
  tracer report tracer.ndjson --output-file incident.html
  tracer explain connection_refused
  tracer doctor                          what is wrong here, and what fixes it
  tracer hooks                           what this kernel shows, and the cost
  tracer selftest                        whether that proves each failure

Exit codes:
  0  done
  1  a finding: --until-failure met one, a replay differs, a check of doctor or
     a row of selftest failed, the daemon is not alive or ready
  2  wrong usage, unreadable input, or output that could not be written where
     it was to go
  3  this kernel or these privileges do not allow it

Every flag can be given as TRACER_<FLAG>, e.g. TRACER_DURATION=5m; the command line wins.
TRACER_LOG (e.g. debug) sets what tracer logs about itself on stderr.";

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch this node now: attach, print verdicts as they happen, end with a summary
    #[command(
        after_help = "Needs root (CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN on some kernels), no cluster API (but --kubeconfig uses it) and no configuration.\n\nExamples:\n  tracer attach --duration 5m\n  tracer attach --pods pods.json --until-failure"
    )]
    Attach(Box<LiveFlags>),
    /// The daemon: the same under a DaemonSet; one on each node
    #[command(
        after_help = "Prints NDJSON to stdout, or to --output-file (SIGHUP opens it again after a rotation).\nNothing listens but a unix socket for `tracer health`, unless --metrics-listen is given.\n\nExamples:\n  tracer run --output-file /var/log/tracer.ndjson --output-max-size 64MiB\n  tracer run --metrics-listen 127.0.0.1:9464"
    )]
    Run {
        /// What it watches.
        #[command(flatten)]
        live: Box<LiveFlags>,
        /// What it answers.
        #[command(flatten)]
        serve: ServeFlags,
        /// What it writes to the cluster API.
        #[command(flatten)]
        write: WriteFlags,
        /// Where it pushes records to.
        #[command(flatten)]
        otlp: OtlpFlags,
    },
    /// Whether the `tracer run` of this node is alive, or ready
    #[command(
        after_help = "Asks over a unix socket, so that nothing between a TCP client and the daemon can fail. Prints the daemon's report as one line of JSON; exit code 0 if it is alive (with --ready: ready), 1 if not, 2 if it cannot be asked.\n\nExample, in a manifest:\n  livenessProbe: {exec: {command: [tracer, health]}}\n  readinessProbe: {exec: {command: [tracer, health, --ready]}}"
    )]
    Health {
        /// Ready (hooks attached, start record printed) and not only alive
        #[arg(long, env = "TRACER_READY", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
        ready: bool,
        /// The daemon's --health-socket
        #[arg(long = "health-socket", visible_alias = "socket", value_name = "PATH", env = "TRACER_HEALTH_SOCKET", hide_env_values = true, default_value = tracer_output::serve::HEALTH_SOCKET)]
        socket: PathBuf,
    },
    /// Like attach, and keep everything that was seen in FILE, for `tracer replay`
    #[command(
        after_help = "FILE is made with mode 0600 and must not exist: a recording names pods, addresses and processes of this node. It holds nothing that a pod sent or received.\n\nExample:\n  tracer record incident.ndjson --duration 10m"
    )]
    Record {
        /// The recording to make
        file: PathBuf,
        /// What it watches.
        #[command(flatten)]
        live: Box<LiveFlags>,
    },
    /// Run the same analysis over a recording: offline, anywhere, without privileges
    #[command(
        after_help = "A recording that was cut is replayed as far as it goes; exit code 2 and one line on stderr say where it ends.\n\nExamples:\n  tracer replay incident.ndjson\n  zcat incident.ndjson.gz | tracer replay -\n  tracer replay incident.ndjson -o json --compare expected.ndjson"
    )]
    Replay {
        /// The recording; `-` reads stdin
        file: PathBuf,
        /// Compare the verdicts with the records (NDJSON) of an earlier run; exit code 1 and the first difference on stderr if they differ
        #[arg(long, value_name = "FILE", env = "TRACER_COMPARE", hide_env_values = true)]
        compare: Option<PathBuf>,
        /// The records.
        #[command(flatten)]
        records: RecordFlags,
    },
    /// Show records as people read them, with the filters and the summary of attach
    #[command(
        after_help = "FILE holds records (NDJSON) of attach, run or replay, or the log of tracer's pod. Lines that are no record are counted on stderr. Exit code 2 if a file has records of another schema version, or none.\n\nExamples:\n  tracer show tracer.ndjson\n  kubectl -n tracer logs ds/tracer | tracer show -n shop\n  tracer show node-1.ndjson node-2.ndjson --cause loopback_down"
    )]
    Show {
        /// Records as NDJSON; `-` is stdin
        #[arg(value_name = "FILE", default_value = "-")]
        files: Vec<PathBuf>,
        /// Form and place.
        #[command(flatten)]
        output: OutputFlags,
        /// Also print attempts that succeeded
        #[arg(long, env = "TRACER_ATTEMPTS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
        attempts: bool,
        /// Which of them.
        #[command(flatten)]
        filters: FilterFlags,
    },
    /// Make one HTML page of an incident out of the records that attach, run or replay printed
    #[command(
        after_help = "The page needs no network and no scripts: causes with their fix, a timeline for each pod with the events of the node, evidence. Several files (nodes, rotated files) become one page; their size does not matter.\n--output-file replaces an earlier page, and no other file. Exit code 2 if a line could not be read; the page is then made of the rest, and says so.\n\nExamples:\n  tracer report tracer.ndjson* --output-file incident.html\n  tracer replay incident.ndjson -o json | tracer report - > incident.html\n  tracer report node-1.ndjson node-2.ndjson -n shop --output-file shop.html"
    )]
    Report {
        /// Records as NDJSON; `-` is stdin
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The page.
        #[command(flatten)]
        page: FileFlag,
        /// Which records.
        #[command(flatten)]
        filters: FilterFlags,
    },
    /// Report what is wrong with this node's network prerequisites, and the command that fixes each finding
    #[command(
        after_help = "Without privileges much is unknown; what cannot be read is never called ok. Changes nothing.\n\nExamples:\n  tracer doctor\n  tracer doctor --check port_overlap --check base_policy --fail-on warn\n  tracer doctor -o json | jq 'select(.status != \"ok\")'"
    )]
    Doctor(DoctorArgs),
    /// Attach for 5 s (--duration), and report each hook's program type, what the kernel refused before it, and its cost
    #[command(
        after_help = "Has the kernel count the runs of all BPF programs meanwhile (BPF_ENABLE_STATS), and detaches at the end. A hook that is missing is a warning: exit code 1 with --fail-on warn; exit code 3 if a capability is what is missing.\n\nExamples:\n  tracer hooks\n  tracer hooks --duration 1m --all-connections\n  tracer hooks -o json | jq 'select(.status != \"ok\") | .check, .fields.tried'"
    )]
    Hooks(HooksArgs),
    #[cfg(feature = "selftest")]
    /// Make each failure in network namespaces of its own, and show which hooks of this kernel prove it
    #[command(
        after_help = "For after the installation, before trusting it: needs root, touches nothing outside, takes a minute or two. One row for each cause: passed and which hooks proved it, failed, or why it cannot be shown here. --cause runs only those.\n\nExamples:\n  tracer selftest\n  tracer selftest --cause connection_refused --cause loopback_down\n  tracer selftest -o json | jq -r 'select(.status == \"fail\") | .check'"
    )]
    Selftest(SelftestArgs),
    #[cfg(feature = "selftest")]
    /// A process of `selftest`
    #[command(name = tracer_testbed::helper::COMMAND, hide = true)]
    Helper {
        /// What it is for
        role: tracer_testbed::helper::Role,
        /// What its process is called
        comm: String,
        /// Its own arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print the JSON Schema of the records
    Schema,
    /// Print the completion script of a shell
    #[command(
        after_help = "Examples:\n  tracer completions bash > /usr/share/bash-completion/completions/tracer\n  tracer completions zsh > /usr/share/zsh/site-functions/_tracer\n  tracer completions fish > /usr/share/fish/vendor_completions.d/tracer.fish"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a man page (roff): of COMMAND, or the first one
    #[command(
        after_help = "Examples:\n  tracer man > /usr/share/man/man1/tracer.1\n  tracer man attach > /usr/share/man/man1/tracer-attach.1"
    )]
    Man {
        /// The command
        command: Option<String>,
    },
    /// Explain causes: the meaning, the deciding evidence, what looks alike, the fix; without CAUSE: list all
    Explain {
        /// Causes, as verdicts have them; upper case and `-` are understood, too
        #[arg(value_name = "CAUSE")]
        explained: Vec<String>,
        /// Print Markdown
        #[arg(long, hide = true)]
        markdown: bool,
    },
}

impl Command {
    /// As it is typed.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Attach(_) => "attach",
            Self::Run { .. } => "run",
            Self::Health { .. } => "health",
            Self::Record { .. } => "record",
            Self::Replay { .. } => "replay",
            Self::Report { .. } => "report",
            Self::Show { .. } => "show",
            Self::Doctor(_) => "doctor",
            Self::Hooks(_) => "hooks",
            #[cfg(feature = "selftest")]
            Self::Selftest(_) => "selftest",
            #[cfg(feature = "selftest")]
            Self::Helper { .. } => tracer_testbed::helper::COMMAND,
            Self::Schema => "schema",
            Self::Completions { .. } => "completions",
            Self::Man { .. } => "man",
            Self::Explain { .. } => "explain",
        }
    }
}

/// What came of the command line.
#[derive(Debug)]
pub enum Parsed {
    /// A command.
    Command(Box<Cli>),
    /// Text that was asked for (`--help`, `--version`).
    Text(String),
    /// Wrong usage, in one line.
    Wrong(String),
}

/// Reads the command line and the environment.
#[must_use]
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = definition::from_environment().try_get_matches_from(&args).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.typed = typed(&matches);
        Ok(cli)
    });
    match parsed {
        Ok(cli) => Parsed::Command(Box::new(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Parsed::Text(error.render().to_string())
        }
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => Parsed::Wrong(message::no_command()),
        Err(error) => Parsed::Wrong(message::one_line(&error, &args)),
    }
}

/// Ids of the command's arguments (and of their groups) that stood on the command line.
fn typed(matches: &ArgMatches) -> Vec<String> {
    let Some((_, sub)) = matches.subcommand() else { return Vec::new() };
    let is_typed =
        |id: &&str| sub.try_contains_id(id).is_ok() && sub.value_source(id) == Some(ValueSource::CommandLine);
    sub.ids().map(|id| id.as_str()).filter(is_typed).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        definition::of_everything().debug_assert();
    }

    /// Every flag of the tool that a user may know of.
    fn flags() -> Vec<Arg> {
        let command = definition::of_everything();
        let all = command.get_subcommands().flat_map(|sub| sub.get_arguments()).filter(|arg| arg.get_long().is_some());
        all.filter(|arg| !matches!(arg.get_long(), Some("help" | "version" | "markdown"))).cloned().collect()
    }

    #[test]
    fn every_flag_has_its_variable() {
        let flags = flags();
        assert!(flags.len() > 30, "{flags:?}");
        for arg in flags {
            let long = arg.get_long().unwrap();
            let expected = match long {
                "node-name" => "NODE_NAME".to_owned(),
                _ => format!("TRACER_{}", long.to_uppercase().replace('-', "_")),
            };
            assert_eq!(arg.get_env().unwrap_or_else(|| panic!("{long}")).to_str().unwrap(), expected);
        }
    }

    #[test]
    fn help_names_what_has_a_meaning_there() {
        let help = |args: &[&str]| match parse(args.iter().map(OsString::from)) {
            Parsed::Text(text) => text,
            other => panic!("{other:?}"),
        };
        let (attach, replay) = (help(&["tracer", "attach", "--help"]), help(&["tracer", "replay", "--help"]));
        assert!(attach.contains("--duration") && attach.contains("--cause"), "{attach}");
        assert!(!replay.contains("--duration") && replay.contains("--cause"), "{replay}");
        assert!(!help(&["tracer", "schema", "--help"]).contains("--output"));
        for name in definition::names() {
            let text = help(&["tracer", &name, "--help"]);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    /// The second half of a broken line stands at the left edge, as a command does.
    #[test]
    fn examples_fit_a_line() {
        let definition = definition::of_everything();
        let helps = definition.get_subcommands().chain([&definition]).filter_map(|it| it.get_after_help());
        let text = helps.map(|help| format!("{help}\n")).collect::<String>();
        let examples: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
        assert!(examples.len() > 20, "{examples:#?}");
        let broken: Vec<_> = examples.iter().filter(|line| line.chars().count() > 80).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn what_is_wrong_says_where_help_is() {
        let wrong = |args: &[&str]| match parse(args.iter().map(OsString::from)) {
            Parsed::Wrong(text) => text,
            other => panic!("{other:?}"),
        };
        let none = wrong(&["tracer"]);
        assert!(none.starts_with("no command is given: attach, run, ") && !none.contains("helper"), "{none}");
        assert!(wrong(&["tracer", "replay"]).ends_with("(see `tracer replay --help`)"));
        assert!(wrong(&["tracer", "nothing"]).ends_with("(see `tracer --help`)"));
    }

    #[test]
    fn flags_are_seen_where_they_were_typed() {
        let args = ["tracer", "attach", "-n", "a", "--pods", "p"].map(OsString::from);
        let Parsed::Command(cli) = parse(args) else { unreachable!() };
        assert!(["namespace", "pods"].iter().all(|id| cli.typed.iter().any(|typed| typed == id)), "{:?}", cli.typed);
        assert!(!cli.typed.contains(&"duration".to_owned()));
    }

    #[test]
    fn a_flag_in_the_wrong_place_says_which_is_right() {
        let wrong = |args: &[&str]| match parse(args.iter().map(OsString::from)) {
            Parsed::Wrong(text) => text,
            other => panic!("{other:?}"),
        };
        let replay = wrong(&["tracer", "replay", "x", "--prober", "y"]);
        assert_eq!(replay, "--prober has no meaning for `tracer replay` (see `tracer replay --help`)");
        let before = wrong(&["tracer", "-n", "a", "attach"]);
        assert_eq!(before, "-n goes after the command, as in `tracer attach -n` (see `tracer attach --help`)");
        assert!(wrong(&["tracer", "--pods", "x"]).starts_with("--pods goes after the command, as in `tracer "));
        assert!(wrong(&["tracer", "attach", "--pod-list"]).starts_with("unexpected argument '--pod-list' found"));
    }
}
