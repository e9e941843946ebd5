//! Checks the flags of [`crate::cli`] and applies the defaults.

mod doctor;
mod inputs;
mod live;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anstream::{AutoStream, ColorChoice};

use crate::cli::{
    BtfFlag, Cli, Command, DetailFlags, FilterFlags, KernelFlags, NodeFlag, OutputFlags, ProberFlag, RecordFlags,
    RotationFlags, pages,
};
use crate::pipeline::LiveConfig;
use crate::replay::ReplayConfig;
use tracer_bpf::ebpf::LoadOptions;
use tracer_doctor::command::DoctorConfig;
use tracer_model::event::KNOWN_PROBERS;
use tracer_model::record::Cause;
use tracer_output::sink::filter::Filter;
use tracer_output::sink::output::Rotation;
use tracer_output::sink::{Format, SinkConfig};
use tracer_output::{explain, schema};
use tracer_report::{ReportConfig, ShowConfig};
use tracer_terminal::error::Error;
use tracer_terminal::screen::{Screen, columns_variable};
#[cfg(feature = "selftest")]
use tracer_testbed::command::SelftestConfig;
#[cfg(feature = "selftest")]
use tracer_testbed::helper::Role;

/// The longest process name that the kernel keeps (`TASK_COMM_LEN` without the final NUL).
const COMM_MAX: usize = 15;

/// How many rotated files are kept without --output-max-files.
const KEPT_FILES: u32 = 5;

/// A command with everything it needs.
#[derive(Debug)]
pub enum Plan {
    /// `attach`, `run`, `record`.
    Live(Box<LiveConfig>),
    Replay(Box<ReplayConfig>),
    Report(Box<ReportConfig>),
    Show(Box<ShowConfig>),
    Doctor(Box<DoctorConfig>),
    #[cfg(feature = "selftest")]
    Selftest(Box<SelftestConfig>),
    #[cfg(feature = "selftest")]
    /// A process that `selftest` starts.
    Helper {
        role: Role,
        /// The name of the process.
        comm: String,
        args: Vec<String>,
    },
    /// Text that is printed unchanged.
    Text(String),
    Health {
        ready: bool,
        socket: PathBuf,
    },
}

/// Makes a plan of the command line.
///
/// # Errors
/// An invalid value, a file that cannot be read, or a flag that has no meaning for this command.
pub fn plan(cli: Cli) -> Result<Plan, Error> {
    inputs::refuse_as_output(&cli.command)?;
    if let Command::Attach(live) | Command::Run { live, .. } | Command::Record { live, .. } = &cli.command {
        live::refuse_unread_kubeconfig(&live.sources, &cli.typed)?;
    }
    let planned = |live| Plan::Live(Box::new(live));
    match cli.command {
        Command::Doctor(args) => doctor::plan(args).map(|doctor| Plan::Doctor(Box::new(doctor))),
        Command::Show { files, output: flags, details, filters } => {
            // `show` is for people, so the default is pretty also in a pipe.
            let format = flags.output.unwrap_or(Format::Pretty);
            let output = SinkConfig { format, filter: filter(&filters)?, ..with_details(output(&flags), &details) };
            Ok(Plan::Show(Box::new(ShowConfig { files, output })))
        }
        Command::Report { files, page, filters, quiet: _ } => {
            let output_file = page.output_file.filter(|path| !path.as_os_str().is_empty());
            Ok(Plan::Report(Box::new(ReportConfig { files, output_file, filter: filter(&filters)? })))
        }
        #[cfg(feature = "selftest")]
        Command::Selftest { output: flags, causes: named, node, btf: types } => {
            let filter = Filter { causes: causes(&named.causes)?, ..Filter::default() };
            let output = SinkConfig { filter, ..output(&flags) };
            let node_name = node_name(node)?;
            Ok(Plan::Selftest(Box::new(SelftestConfig { output, node_name, btf: btf(types)? })))
        }
        #[cfg(feature = "selftest")]
        Command::Helper { role, comm, args } => Ok(Plan::Helper { role, comm, args }),
        Command::Schema => Ok(Plan::Text(format!("{}\n", schema::text()))),
        Command::Version => Ok(Plan::Text(format!("tracer {}\n", env!("CARGO_PKG_VERSION")))),
        Command::Completions { shell } => Ok(Plan::Text(pages::completions(shell))),
        Command::Man { command } => Ok(Plan::Text(pages::man(command.as_deref())?)),
        Command::Health { ready, socket } => Ok(Plan::Health { ready, socket }),
        Command::Explain { explained, markdown } => {
            let causes = explained.iter().map(|name| known_cause(name, "explain")).collect::<Result<Vec<_>, _>>()?;
            Ok(Plan::Text(explain::text(&causes, markdown, Screen::of_stdout())))
        }
        Command::Replay { file, compare, records: flags } => {
            Ok(Plan::Replay(Box::new(ReplayConfig { output: records(&flags)?, file, compare })))
        }
        Command::Attach(flags) => {
            live::refuse_api_flags_without_kubeconfig("attach", &flags.sources, &cli.typed)?;
            live::plan(*flags, None, None).map(planned)
        }
        Command::Run { live, serve, destinations } => live::plan(*live, Some((serve, destinations)), None).map(planned),
        Command::Record { file, live: flags } => {
            live::refuse_api_flags_without_kubeconfig("record", &flags.sources, &cli.typed)?;
            if file == Path::new("-") {
                live::plan(*flags, None, None)?;
                return Err(Error::Usage("record FILE: stdout belongs to the records: name a file".into()));
            }
            live::plan(*flags, None, Some(file)).map(planned)
        }
    }
}

/// Which records are emitted, and where they go.
fn records(flags: &RecordFlags) -> Result<SinkConfig, Error> {
    let output = with_details(output(&flags.output), &flags.details);
    Ok(SinkConfig {
        rotation: rotation(&flags.rotation, output.file.is_some())?,
        filter: filter(&flags.filters)?,
        until_failure: flags.until_failure,
        repeat_interval: flags.repeat_interval,
        ..output
    })
}

/// Where all records go, without a filter.
fn output(flags: &OutputFlags) -> SinkConfig {
    let file = flags.file.output_file.clone().filter(|path| !path.as_os_str().is_empty());
    let terminal = file.is_none() && std::io::stdout().is_terminal();
    let format = if terminal { Format::Pretty } else { Format::Ndjson };
    SinkConfig {
        columns: columns_variable(),
        // --color decides, else NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM as in other programs.
        colour: (file.is_none() || flags.color == clap::ColorChoice::Always)
            && AutoStream::choice(&std::io::stdout()) != ColorChoice::Never,
        ..SinkConfig::new(flags.output.unwrap_or(format), file)
    }
}

/// Adds the flags for records of more than failures.
fn with_details(output: SinkConfig, flags: &DetailFlags) -> SinkConfig {
    SinkConfig { attempts: flags.attempts, verbose: flags.verbose, ..output }
}

fn filter(flags: &FilterFlags) -> Result<Filter, Error> {
    // An empty variable is absent already. An empty argument is often a variable of the shell that was not set.
    for (flag, name) in [("--namespace", &flags.namespace), ("--pod", &flags.pod), ("--container", &flags.container)] {
        refuse_empty(flag, name.as_slice())?;
    }
    let pod =
        flags.pod.as_ref().map(|pod| pod.parse().map_err(|problem| Error::Usage(format!("--pod `{pod}`: {problem}"))));
    Ok(Filter {
        namespace: flags.namespace.clone().filter(|_| !flags.all_namespaces),
        pod: pod.transpose()?,
        container: flags.container.clone(),
        causes: causes(&flags.causes.causes)?,
    })
}

fn causes(names: &[String]) -> Result<Vec<Cause>, Error> {
    refuse_empty("--cause", names)?;
    names.iter().map(|name| known_cause(name, "--cause")).collect()
}

/// When `--output-file` is rotated.
fn rotation(flags: &RotationFlags, to_file: bool) -> Result<Option<Rotation>, Error> {
    let needs = |flag: &str, other: &str| Err(Error::Usage(format!("{flag} has no meaning without {other}")));
    match (flags.output_max_size, flags.output_max_files) {
        (Some(_), _) if !to_file => needs("--output-max-size", "--output-file PATH"),
        (None, Some(_)) => needs("--output-max-files", "--output-max-size SIZE"),
        (size, files) => Ok(size.map(|max_bytes| Rotation { max_bytes, max_files: files.unwrap_or(KEPT_FILES) })),
    }
}

/// The cause with this name, in upper or lower case, with `-` or `_`.
fn known_cause(name: &str, place: &str) -> Result<Cause, Error> {
    Cause::from_name(&name.to_lowercase().replace('-', "_")).ok_or_else(|| {
        let near = explain::nearest(name).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Error::Usage(format!("{place} `{name}`: no such cause{near} (`tracer explain` lists all)"))
    })
}

/// Refuses empty names: they could mean none or all.
fn refuse_empty(flag: &str, names: &[String]) -> Result<(), Error> {
    if names.iter().any(String::is_empty) {
        return Err(Error::Usage(format!("{flag}: an empty name: write one, or leave the flag out")));
    }
    Ok(())
}

/// The name of the node: by default that of the machine.
fn node_name(flag: NodeFlag) -> Result<String, Error> {
    refuse_empty("--node-name", flag.node_name.as_slice())?;
    Ok(flag.node_name.unwrap_or_else(host_name))
}

/// The names of the probers, each no longer than the kernel's process names.
fn probers(names: Vec<String>) -> Result<Vec<String>, Error> {
    refuse_empty("--prober", &names)?;
    let is_path = |name: &&String| name.contains('/');
    if let Some((path, name)) =
        names.iter().find(is_path).and_then(|path| Some((path, path.trim_end_matches('/').rsplit('/').next()?)))
    {
        return Err(Error::Usage(format!("--prober `{path}`: a path, not the name of a process; write `{name}`")));
    }
    if let Some(name) = names.iter().find(|name| name.len() > COMM_MAX) {
        let cut = &name[..name.floor_char_boundary(COMM_MAX)];
        return Err(Error::Usage(format!(
            "--prober `{name}`: the kernel keeps {COMM_MAX} bytes of a process name; write `{cut}` (see /proc/PID/comm)"
        )));
    }
    if names.is_empty() {
        return Ok(KNOWN_PROBERS.iter().map(|&name| name.to_owned()).collect());
    }
    Ok(names)
}

fn load_options(named: ProberFlag, kernel: KernelFlags) -> Result<LoadOptions, Error> {
    Ok(LoadOptions {
        probers_are_named: !named.probers.is_empty(),
        probers: probers(named.probers)?,
        all_connections: kernel.all_connections,
        no_syscall_hooks: kernel.no_syscall_hooks,
        prober_hooks: kernel.prober_hooks,
        btf: btf(kernel.btf)?,
        ring_bytes: kernel.ring_kib.map(|kib| kib << 10),
    })
}

/// Checks at the start that the file can be read: later errors on stderr are easily missed.
fn readable(flag: &'static str, path: Option<PathBuf>) -> Result<Option<PathBuf>, Error> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(None) };
    if is_named_pipe(&path) {
        return Err(Error::file(flag, path, std::io::Error::other("a named pipe: give a plain file")));
    }
    let directory = || std::io::Error::from_raw_os_error(libc::EISDIR);
    let opened = File::open(&path).and_then(|file| file.metadata());
    match opened {
        Ok(meta) if meta.is_dir() => Err(Error::file(flag, path, directory())),
        Ok(_) => Ok(Some(path)),
        Err(error) => Err(Error::file(flag, path, error)),
    }
}

/// `--btf`: a file with the magic number of BTF, in this machine's byte order.
fn btf(flag: BtfFlag) -> Result<Option<PathBuf>, Error> {
    const MAGIC: [u8; 2] = 0xeb9f_u16.to_ne_bytes();
    let Some(path) = readable("--btf", flag.btf)? else { return Ok(None) };
    // What is read from a pipe is gone.
    if std::fs::metadata(&path).is_ok_and(|it| it.file_type().is_fifo()) {
        return Ok(Some(path));
    }
    let mut magic = [0; 2];
    match File::open(&path).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) if magic == MAGIC => Ok(Some(path)),
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(Error::file("--btf", path, error)),
        _ => Err(Error::file("--btf", path, std::io::Error::other("not a BTF file of this machine"))),
    }
}

/// Opening a named pipe waits for a writer, here and at each read. The pipe of the shell's `<(…)` has no name in the file system
/// and is open already.
fn is_named_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo()) && path.canonicalize().is_ok()
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost").to_owned()
}
