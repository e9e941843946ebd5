//! What was asked for: the flags of [`crate::cli`] checked, with defaults applied.

mod cluster_flags;
mod doctor;
mod hooks;
mod report;
mod selftest;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};

use crate::classify::label::Label;
use crate::cli::{Cli, Command, Flags, Form, Format, ServeFlags, WriteFlags, pages};
use crate::error::Error;
use crate::explain;
use crate::selftest::helper::Role;
use crate::serve::Serve;
use crate::sink::cluster::ClusterOutput;
use crate::sink::filter::Filter;
use crate::sink::output::{Rotation, columns};
use crate::sink::screen::Screen;

use crate::sources::cluster::{self, Access, ClusterConfig};
use crate::sources::kubelet_api::KubeletApiConfig;
use crate::sources::{KNOWN_PROBERS, NamedLog, journal_in};

use cluster_flags::{kubelet_api, namespaces, written};
pub use doctor::Doctor;
pub use hooks::Hooks;
pub use report::Report;
pub use selftest::Selftest;

/// The longest process name that the kernel keeps (`TASK_COMM_LEN` less its end).
const COMM_MAX: usize = 15;

/// Rotated files that are kept where nobody says how many.
const KEPT_FILES: u32 = 5;

/// A command with everything it needs.
#[derive(Debug)]
pub enum Plan {
    /// `attach`, `run`, `record`.
    Live(Box<Live>),
    /// `replay`.
    Replay(Box<Replay>),
    /// `report`.
    Report(Box<Report>),
    /// `doctor`.
    Doctor(Box<Doctor>),
    /// `hooks`.
    Hooks(Box<Hooks>),
    /// `selftest`.
    Selftest(Box<Selftest>),
    /// A process of it.
    Helper {
        /// What it is for.
        role: Role,
        /// What its process is called.
        comm: String,
        /// Its own arguments.
        args: Vec<String>,
    },
    /// `schema`.
    Schema,
    /// Text that is printed as it is.
    Text(String),
    /// `health`.
    Health {
        /// Not only alive.
        ready: bool,
        /// Whom to ask.
        socket: PathBuf,
    },
    /// `explain`.
    Explain {
        /// One label, or all.
        label: Option<Label>,
        /// As Markdown.
        markdown: bool,
        /// Where it is shown.
        screen: Screen,
    },
}

/// Where records go and which.
#[derive(Clone, Debug)]
pub struct Output {
    /// Their form.
    pub form: Form,
    /// With colour.
    pub colour: bool,
    /// Columns of what people read where there is no terminal that says.
    pub columns: Option<usize>,
    /// `--output-file`.
    pub file: Option<PathBuf>,
    /// Which are printed.
    pub filter: Filter,
    /// Attempts, too.
    pub attempts: bool,
    /// End at the first failure.
    pub until_failure: bool,
    /// `--output-max-size`, `--output-max-files`.
    pub rotation: Option<Rotation>,
    /// Names of the fields in NDJSON.
    pub format: Format,
}

/// `attach`, `run` or `record`.
#[derive(Clone, Debug)]
pub struct Live {
    /// Where records go.
    pub output: Output,
    /// The daemon: one on a node.
    pub daemon: bool,
    /// What the daemon answers; nobody else answers anything.
    pub serve: Option<Serve>,
    /// `record FILE`.
    pub record: Option<PathBuf>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// Process names of the prober.
    pub probers: Vec<String>,
    /// Every process's connections.
    pub all_connections: bool,
    /// No `syscalls:*` tracepoints.
    pub no_syscall_hooks: bool,
    /// Size of the ring of events, where the usual one is not wanted.
    pub ring_bytes: Option<u32>,
    /// `--pods`.
    pub pods: Option<PathBuf>,
    /// `--services`.
    pub services: Option<PathBuf>,
    /// `--kubelet-log`.
    pub kubelet_log: Option<NamedLog>,
    /// The cluster API, where it is used.
    pub cluster: Option<ClusterConfig>,
    /// `--kubelet-api`.
    pub kubelet_api: Option<KubeletApiConfig>,
    /// What is written to it.
    pub cluster_output: Option<ClusterOutput>,
    /// Name of this node.
    pub node_name: String,
}

/// `replay FILE`.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Where records go.
    pub output: Output,
    /// The recording; `-` is stdin.
    pub file: PathBuf,
    /// Records to compare with.
    pub compare: Option<PathBuf>,
}

/// What the command line means.
///
/// # Errors
/// A value that means nothing, a file that cannot be read, a flag that this command does not take.
pub fn plan(cli: Cli) -> Result<Plan, Error> {
    crate::cli::refuse_meaningless(&cli)?;
    match cli.command {
        Command::Doctor(args) => doctor::plan(args, cli.flags).map(|doctor| Plan::Doctor(Box::new(doctor))),
        Command::Hooks(args) => hooks::plan(&args, cli.flags).map(|hooks| Plan::Hooks(Box::new(hooks))),
        Command::Report { files } => report::plan(files, cli.flags).map(|report| Plan::Report(Box::new(report))),
        Command::Selftest => Ok(Plan::Selftest(Box::new(selftest::plan(cli.flags)?))),
        Command::Helper { role, comm, args } => Ok(Plan::Helper { role, comm, args }),
        Command::Schema => Ok(Plan::Schema),
        Command::Completions { shell } => Ok(Plan::Text(pages::completions(shell))),
        Command::Man { command } => Ok(Plan::Text(pages::man(command.as_deref())?)),
        Command::Health { ready, socket } => Ok(Plan::Health { ready, socket }),
        Command::Explain { label, markdown } => {
            let label = label.map(|name| known_label(&name, "explain")).transpose()?;
            let screen = Screen { colour: false, columns: columns(std::io::stdout()).or_else(asked_columns) };
            Ok(Plan::Explain { label, markdown, screen })
        }
        Command::Replay { file, compare } => {
            Ok(Plan::Replay(Box::new(Replay { output: output(&cli.flags)?, file, compare })))
        }
        Command::Attach => live(cli.flags, None, None),
        Command::Run { serve, write } => live(cli.flags, Some((served(serve), write)), None),
        Command::Record { file } if file == Path::new("-") => {
            live(cli.flags, None, None)?;
            Err(Error::Usage("record FILE: stdout belongs to the records: name a file".into()))
        }
        Command::Record { file } => live(cli.flags, None, Some(file)),
    }
}

/// The live commands.
fn live(flags: Flags, daemon: Option<(Serve, WriteFlags)>, record: Option<PathBuf>) -> Result<Plan, Error> {
    let (serve, write) = daemon.unzip();
    let output = output(&flags)?;
    let pods = readable("--pods", flags.pods)?;
    let services = readable("--services", flags.services)?;
    let kubelet_log = kubelet_log(flags.kubelet_log)?;
    let kubelet_ca = readable("--kubelet-ca", flags.kubelet_ca)?;
    let kubeconfig = readable("--kubeconfig", flags.kubeconfig)?;
    // Without the cluster API the kubelet can be asked all the same.
    let of_kubelet = kubeconfig.clone();
    let kubeconfig = kubeconfig.filter(|_| !flags.no_api);
    let in_cluster = || (serve.is_some() && !flags.no_api && cluster::in_cluster()).then_some(Access::InCluster);
    let node_name = filled(flags.node_name).unwrap_or_else(host_name);
    let access = kubeconfig.map(Access::Kubeconfig).or_else(in_cluster);
    let cluster_output = write.map(|flags| written(flags, access.clone(), &node_name)).transpose()?.flatten();
    let cluster = access.map(|access| ClusterConfig {
        access,
        node_name: node_name.clone(),
        pods: pods.is_none(),
        services: flags.api_services && services.is_none(),
        events: namespaces(flags.api_events),
    });
    let probers = probers(flags.probers)?;
    let kubelet_api = kubelet_api(flags.kubelet_api, kubelet_ca, of_kubelet)?.map(|config| KubeletApiConfig {
        node_name: node_name.clone(),
        probers: probers.clone(),
        pods: pods.is_none(),
        ..config
    });
    Ok(Plan::Live(Box::new(Live {
        output,
        daemon: serve.is_some(),
        serve,
        record,
        duration: flags.duration,
        probers,
        all_connections: flags.all_connections,
        no_syscall_hooks: flags.no_syscall_hooks,
        ring_bytes: flags.ring_kib.map(|kib| kib << 10),
        pods,
        services,
        kubelet_log,
        // Files that give everything leave nothing to ask.
        cluster: cluster.filter(ClusterConfig::asks_something),
        kubelet_api,
        cluster_output,
        node_name,
    })))
}

/// What the daemon answers.
fn served(flags: ServeFlags) -> Serve {
    Serve { metrics: flags.metrics_listen, health: flags.health_socket, pod_labels: flags.metrics_pod_labels }
}

/// Where records go.
fn output(flags: &Flags) -> Result<Output, Error> {
    let file = flags.output_file.clone().filter(|path| !path.as_os_str().is_empty());
    let terminal = file.is_none() && std::io::stdout().is_terminal();
    let format = flags.format.unwrap_or(Format::Tracer);
    let form = if terminal && flags.format.is_none() { Form::Pretty } else { Form::Ndjson };
    Ok(Output {
        form: flags.output.unwrap_or(form),
        // NO_COLOR, CLICOLOR, CLICOLOR_FORCE, TERM: as for other programs.
        columns: asked_columns(),
        colour: file.is_none() && AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        rotation: rotation(flags, file.is_some())?,
        format,
        file,
        filter: filter(flags)?,
        attempts: flags.attempts,
        until_failure: flags.until_failure,
    })
}

/// `COLUMNS`, for what people read where no terminal says how wide it is.
fn asked_columns() -> Option<usize> {
    std::env::var_os("COLUMNS").and_then(|text| text.to_str()?.parse().ok()).filter(|&columns| columns > 0)
}

/// Which verdicts and attempts are asked for.
fn filter(flags: &Flags) -> Result<Filter, Error> {
    let labels = flags.labels.iter().filter(|name| !name.is_empty());
    Ok(Filter {
        namespace: filled(flags.namespace.clone()),
        pod: filled(flags.pod.clone()),
        container: filled(flags.container.clone()),
        labels: labels.map(|name| known_label(name, "--label")).collect::<Result<_, _>>()?,
    })
}

/// When `--output-file` is rotated.
fn rotation(flags: &Flags, to_file: bool) -> Result<Option<Rotation>, Error> {
    let needs = |flag: &str, other: &str| Err(Error::Usage(format!("{flag} has no meaning without {other}")));
    match (flags.output_max_size, flags.output_max_files) {
        (Some(_), _) if !to_file => needs("--output-max-size", "--output-file PATH"),
        (None, Some(_)) => needs("--output-max-files", "--output-max-size SIZE"),
        (size, files) => Ok(size.map(|max_bytes| Rotation { max_bytes, max_files: files.unwrap_or(KEPT_FILES) })),
    }
}

/// The label of this name.
fn known_label(name: &str, place: &str) -> Result<Label, Error> {
    Label::from_name(name).ok_or_else(|| {
        let known: Vec<_> = Label::ALL.iter().map(|label| label.name()).collect();
        let nearest = explain::nearest(name).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        Error::Usage(format!("{place} `{name}`: no such label; {nearest}known: {}", known.join(", ")))
    })
}

/// The prober's names, as the kernel can compare them.
fn probers(names: Vec<String>) -> Result<Vec<String>, Error> {
    let names: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
    if let Some(name) = names.iter().find(|name| name.len() > COMM_MAX) {
        let cut: String = name
            .chars()
            .scan(0, |n, c| {
                *n += c.len_utf8();
                (*n <= COMM_MAX).then_some(c)
            })
            .collect();
        return Err(Error::Usage(format!(
            "--prober `{name}`: the kernel keeps {COMM_MAX} bytes of a process name; write `{cut}` (see /proc/PID/comm)"
        )));
    }
    if names.is_empty() {
        return Ok(KNOWN_PROBERS.iter().map(|&name| name.to_owned()).collect());
    }
    Ok(names)
}

/// A file that can be read, checked now: later nobody looks at stderr.
fn readable(flag: &'static str, path: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(None) };
    let directory = || std::io::Error::from_raw_os_error(libc::EISDIR);
    let opened = File::open(&path).and_then(|file| file.metadata());
    match opened {
        Ok(meta) if meta.is_dir() => Err(Error::file(flag, path, directory())),
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(Error::file(flag, path, error)),
    }
}

/// A file must be there, and a directory have a journal in it; the node's own may still come.
fn kubelet_log(named: Option<NamedLog>) -> Result<Option<NamedLog>, Error> {
    match named {
        Some(NamedLog::File(path)) => Ok(readable("--kubelet-log", Some(path))?.map(NamedLog::File)),
        Some(NamedLog::Journal(Some(directory))) if journal_in(&directory).is_none() => {
            let missing = std::io::Error::other("no system.journal in it, nor in a machine's directory below it");
            Err(Error::file("--kubelet-log", directory, missing))
        }
        named => Ok(named),
    }
}

/// Absent if empty: a manifest that sets a variable to nothing has not set it.
fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// The host's name.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    filled(Some(name.trim().to_owned())).unwrap_or_else(|| "localhost".to_owned())
}
