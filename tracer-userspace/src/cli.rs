//! The command line and the environment, as clap reads them. [`crate::config`] gives them their meaning.

mod definition;
mod doctor;
mod flags;
mod help;
mod message;
mod overview;
pub mod pages;
mod unknown_variables;
mod variable;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, ColorChoice, FromArgMatches as _, Parser, Subcommand};

use tracer_output::serve::{HEALTH_SOCKET, Serve};
use tracer_output::sink::DestinationFlags;
use tracer_terminal::telemetry::Diagnostics;
use tracer_terminal::typed::{duration, size};

pub use doctor::DoctorArgs;
pub use flags::{
    BtfFlag, CauseFlag, DetailFlags, FileFlag, FilterFlags, KernelFlags, LiveFlags, NodeFlag, OutputFlags, ProberFlag,
    QuietFlag, RecordFlags, RotationFlags, SourceFlags,
};
pub use tracer_terminal::typed::Parsed;
pub use unknown_variables::unknown_variables;
pub use variable::named_by as named_by_variable;

/// Names the cause of each failed Kubernetes probe, from the kernel's own events.
#[derive(Debug, Parser)]
#[command(name = "tracer", version, subcommand_required = true, arg_required_else_help = false)]
#[command(after_help = help::TRACER)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Ids of the flags on the command line (not those of the environment).
    #[clap(skip)]
    pub typed: Vec<String>,
    /// How much tracer reports about itself.
    #[clap(skip)]
    pub diagnostics: Diagnostics,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch this node and print a verdict for each failed probe
    #[command(after_help = help::ATTACH)]
    Attach(Box<LiveFlags>),
    /// Run as the daemon of this node (DaemonSet, systemd)
    #[command(after_help = help::RUN)]
    Run {
        #[command(flatten)]
        live: Box<LiveFlags>,
        #[command(flatten)]
        serve: Serve,
        #[command(flatten)]
        destinations: DestinationFlags,
    },
    /// Ask the daemon of this node whether it is alive, or ready
    #[command(after_help = help::HEALTH)]
    Health {
        /// Ask whether it is ready (hooks attached, start record printed), not only alive
        #[arg(long)]
        ready: bool,
        /// Ask on this unix socket: the daemon's --health-socket
        #[arg(long = "health-socket", visible_alias = "socket", value_name = "PATH", default_value = HEALTH_SOCKET)]
        socket: PathBuf,
    },
    /// Attach, and also save all observations to FILE, for replay
    #[command(after_help = help::RECORD)]
    Record {
        /// The recording to create
        file: PathBuf,
        #[command(flatten)]
        live: Box<LiveFlags>,
    },
    /// Analyse a recording on any machine, without privileges
    #[command(after_help = help::REPLAY)]
    Replay {
        /// The recording; `-` reads stdin
        file: PathBuf,
        /// Compare the verdicts with the records (NDJSON) of an earlier run. If they differ: exit code 1, and the first difference on stderr
        #[arg(long, value_name = "FILE")]
        compare: Option<PathBuf>,
        #[command(flatten)]
        records: RecordFlags,
    },
    /// Print records (NDJSON) in the format of attach, with a summary
    #[command(after_help = help::SHOW)]
    Show {
        /// Records as NDJSON; `-` reads stdin
        #[arg(value_name = "FILE", default_value = "-")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: OutputFlags,
        #[command(flatten)]
        details: DetailFlags,
        #[command(flatten)]
        filters: FilterFlags,
    },
    /// Make one HTML page of the records of an incident
    #[command(after_help = help::REPORT)]
    Report {
        /// Records as NDJSON; `-` reads stdin
        #[arg(value_name = "FILE", default_value = "-")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        page: FileFlag,
        #[command(flatten)]
        quiet: QuietFlag,
        #[command(flatten)]
        filters: FilterFlags,
    },
    /// Check the network settings of this node, and print the fixes
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArgs),
    #[cfg(feature = "selftest")]
    /// Reproduce each failure here, and check that tracer proves it
    #[command(after_help = help::SELFTEST)]
    Selftest {
        #[command(flatten)]
        output: OutputFlags,
        #[command(flatten)]
        causes: CauseFlag,
        #[command(flatten)]
        node: NodeFlag,
        #[command(flatten)]
        btf: BtfFlag,
    },
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
    #[command(after_help = help::SCHEMA)]
    Schema,
    /// Print the completion script of a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page (roff) of tracer, or of one command
    #[command(after_help = help::MAN)]
    Man {
        /// The command
        command: Option<String>,
    },
    /// Explain causes: meaning, evidence, what looks alike, fix
    #[command(after_help = help::EXPLAIN)]
    Explain {
        /// Causes by name, in upper or lower case, with `-` or `_` [default: list all causes]
        #[arg(value_name = "CAUSE")]
        explained: Vec<String>,
        /// Print Markdown
        #[arg(long, hide = true)]
        markdown: bool,
    },
    /// Print the version
    #[command(after_help = help::VERSION)]
    Version,
}

impl Cli {
    /// A namespace on the command line overrides `TRACER_ALL_NAMESPACES`.
    fn prefer_typed_namespace(&mut self) {
        let is_typed = |id: &str| self.typed.iter().any(|typed| typed == id);
        if is_typed("namespace")
            && !is_typed("all_namespaces")
            && let Some(filters) = self.command.filters_mut()
        {
            filters.all_namespaces = false;
        }
    }
}

impl Command {
    const fn filters_mut(&mut self) -> Option<&mut FilterFlags> {
        match self {
            Self::Attach(live) | Self::Run { live, .. } | Self::Record { live, .. } => Some(&mut live.records.filters),
            Self::Replay { records, .. } => Some(&mut records.filters),
            Self::Show { filters, .. } | Self::Report { filters, .. } => Some(filters),
            _ => None,
        }
    }
}

/// Reads the command line and the environment.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Parsed<Cli> {
    let args: Vec<OsString> = args.into_iter().collect();
    let parsed = definition::from_environment().try_get_matches_from(&args).and_then(|matches| {
        let mut cli = Cli::from_arg_matches(&matches)?;
        cli.typed = typed(&matches);
        cli.prefer_typed_namespace();
        cli.diagnostics = diagnostics(&matches);
        Ok(cli)
    });
    match parsed {
        Ok(cli) => Parsed::Command(Box::new(cli)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Parsed::Text(error.render().to_string())
        }
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => {
            Parsed::Text(overview::text(&definition::of_everything()))
        }
        Err(error) => Parsed::Wrong(message::one_line(&error, &args)),
    }
}

/// The settings of tracer's own messages, from the flags of the command.
fn diagnostics(matches: &ArgMatches) -> Diagnostics {
    let Some((_, sub)) = matches.subcommand() else { return Diagnostics::default() };
    let is_set = |id| sub.try_get_one::<bool>(id).ok().flatten().copied().unwrap_or_default();
    let colour = match sub.try_get_one("color").ok().flatten() {
        Some(ColorChoice::Always) => anstream::ColorChoice::Always,
        Some(ColorChoice::Never) => anstream::ColorChoice::Never,
        Some(ColorChoice::Auto) | None => anstream::ColorChoice::Auto,
    };
    Diagnostics { quiet: is_set("quiet"), verbose: is_set("verbose"), colour }
}

/// Ids of the command's arguments (and of their groups) on the command line.
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
    fn every_flag_is_in_the_documentation() {
        let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
        let pages: String = pages.filter_map(|page| std::fs::read_to_string(page.unwrap().path()).ok()).collect();
        let shown = flags().into_iter().filter(|arg| !arg.is_hide_set());
        let names = shown.map(|arg| format!("--{}", arg.get_long().unwrap()));
        let missing: Vec<_> = names.filter(|name| !pages.contains(name)).collect();
        assert!(missing.is_empty(), "no page of docs/ names {missing:?}");
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
    fn help_fits_a_terminal() {
        for name in definition::names() {
            let Parsed::Text(text) = parse(["tracer", &name, "--help"].map(OsString::from)) else { panic!("{name}") };
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    /// clap would continue a longer line at the left edge, where it looks like a command.
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
    fn the_error_of_a_misplaced_flag_names_the_right_place() {
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

    #[test]
    fn a_header_or_url_that_may_be_a_secret_is_not_in_the_error() {
        for (flag, value) in
            [("--otlp-header", "Bearer  abc"), ("--otlp-header", "a b=abc"), ("--otlp-endpoint", "https://u:abc@h/")]
        {
            let args = ["tracer", "run", "--otlp-endpoint", "http://c", flag, value];
            let args = if flag == "--otlp-endpoint" { &[&args[..2], &args[4..]].concat() } else { &args[..] };
            let Parsed::Wrong(text) = parse(args.iter().map(OsString::from)) else { panic!("{value}") };
            assert!(text.starts_with(&format!("invalid value for '{flag} ")) && !text.contains("abc"), "{text}");
        }
    }
}
