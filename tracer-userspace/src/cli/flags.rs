//! Flags that mean the same on several commands, each with its variable: groups that a command takes or not.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, StringValueParser, TypedValueParser};
use clap::{ArgAction, Args};

use tracer_output::sink::Form;
use tracer_sources::NamedLog;
use tracer_sources::cluster::Namespace;

/// The flags of the commands that watch a node.
#[derive(Debug, Args)]
pub struct LiveFlags {
    /// The records.
    #[command(flatten)]
    pub records: RecordFlags,
    /// When it ends.
    #[command(flatten)]
    pub end: DurationFlag,
    /// Who probes.
    #[command(flatten)]
    pub probers: ProberFlag,
    /// How the kernel is watched.
    #[command(flatten)]
    pub kernel: KernelFlags,
    /// The pods.
    #[command(flatten)]
    pub pods: PodsFlag,
    /// Where else observations come from.
    #[command(flatten)]
    pub sources: SourceFlags,
    /// This node.
    #[command(flatten)]
    pub node: NodeFlag,
}

/// Which records are emitted, and where they go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct RecordFlags {
    /// Where they go.
    #[command(flatten)]
    pub output: OutputFlags,
    /// Rotation of the file.
    #[command(flatten)]
    pub rotation: RotationFlags,
    /// Also print attempts that succeeded
    #[arg(long, env = "TRACER_ATTEMPTS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub attempts: bool,
    /// After a minute, print identical verdicts that go on once in this time, with their number; 0 prints all
    #[arg(long, value_name = "TIME", env = "TRACER_REPEAT_INTERVAL", hide_env_values = true, default_value = "1m", value_parser = interval)]
    pub repeat_interval: Duration,
    /// Which of them.
    #[command(flatten)]
    pub filters: FilterFlags,
    /// End with exit code 1 once a failure was printed
    #[arg(long, env = "TRACER_UNTIL_FAILURE", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "End")]
    pub until_failure: bool,
}

/// Form and place of the records.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Form of the records [default: pretty on a terminal, else json]
    #[arg(
        short,
        long,
        value_enum,
        value_name = "pretty|json|otlp",
        hide_possible_values = true,
        env = "TRACER_OUTPUT",
        hide_env_values = true
    )]
    pub output: Option<Form>,
    /// The file.
    #[command(flatten)]
    pub file: FileFlag,
}

/// The file of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct FileFlag {
    /// Append the records to this file (mode 0600) in place of stdout; SIGHUP opens it again
    #[arg(long, value_name = "PATH", env = "TRACER_OUTPUT_FILE", hide_env_values = true)]
    pub output_file: Option<PathBuf>,
}

/// Rotation of the file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct RotationFlags {
    /// Rotate --output-file before it grows beyond this, e.g. 64MiB: PATH becomes PATH.1, PATH.1 becomes PATH.2
    #[arg(long, value_name = "SIZE", env = "TRACER_OUTPUT_MAX_SIZE", hide_env_values = true, value_parser = super::size::size)]
    pub output_max_size: Option<u64>,
    /// How many rotated files are kept beside it [default: 5]
    #[arg(long, value_name = "N", env = "TRACER_OUTPUT_MAX_FILES", hide_env_values = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub output_max_files: Option<u32>,
}

/// Which verdicts and attempts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterFlags {
    /// Only verdicts and attempts of pods in this namespace
    #[arg(short, long, value_name = "NAMESPACE", env = "TRACER_NAMESPACE", hide_env_values = true)]
    pub namespace: Option<String>,
    /// Only of the pod of this name
    #[arg(short, long, value_name = "POD", env = "TRACER_POD", hide_env_values = true)]
    pub pod: Option<String>,
    /// Only of the container of this name
    #[arg(short, long, value_name = "CONTAINER", env = "TRACER_CONTAINER", hide_env_values = true)]
    pub container: Option<String>,
    /// Which causes.
    #[command(flatten)]
    pub causes: CauseFlag,
}

/// Which causes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub struct CauseFlag {
    /// Only with this cause; repeatable (`tracer explain` lists them)
    #[arg(long = "cause", value_name = "CAUSE", env = "TRACER_CAUSE", hide_env_values = true, value_delimiter = ',', value_parser = name_of_list())]
    pub causes: Vec<String>,
}

/// When a run ends.
#[derive(Debug, Args)]
#[command(next_help_heading = "End")]
pub struct DurationFlag {
    /// End after this time, e.g. 30s, 5m, 1h30m
    #[arg(long, value_name = "TIME", env = "TRACER_DURATION", hide_env_values = true, value_parser = super::duration::duration)]
    pub duration: Option<Duration>,
}

/// Who probes.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct ProberFlag {
    /// Name of the processes whose connections are probe attempts; repeatable [default: every known kubelet]
    #[arg(long = "prober", value_name = "NAME", env = "TRACER_PROBER", hide_env_values = true, value_delimiter = ',', value_parser = name_of_list())]
    pub probers: Vec<String>,
}

/// How the kernel is watched.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct KernelFlags {
    /// Verdicts for every process's failed connection, not the prober's alone
    #[arg(long, env = "TRACER_ALL_CONNECTIONS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub all_connections: bool,
    /// No `syscalls:*` tracepoints: on kernels without function probes they slow every system call of the node
    #[arg(long, env = "TRACER_NO_SYSCALL_HOOKS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub no_syscall_hooks: bool,
    /// Size of the ring of events, a power of two from 4 on: for tests of what happens when it overflows
    #[arg(long, value_name = "KIB", env = "TRACER_RING_KIB", hide = true, value_parser = ring_size)]
    pub ring_kib: Option<u32>,
}

/// The pods of the node.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct PodsFlag {
    /// Pods of this node: `kubectl get pods -A -o json`, JSON or YAML; read again when it changes
    #[arg(long, value_name = "FILE", env = "TRACER_PODS", hide_env_values = true)]
    pub pods: Option<PathBuf>,
}

/// Where else observations come from.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct SourceFlags {
    /// Services: `kubectl get services,endpointslices -A -o json`, JSON or YAML; read again when it changes
    #[arg(long, value_name = "FILE", env = "TRACER_SERVICES", hide_env_values = true)]
    pub services: Option<PathBuf>,
    /// The kubelet's log, for what it made of each probe: a file, `journal`, or `journal:/DIR` [default: what its stderr leads to]
    #[arg(long, value_name = "FILE|journal", env = "TRACER_KUBELET_LOG", hide_env_values = true)]
    pub kubelet_log: Option<NamedLog>,
    /// The cluster API by this kubeconfig: pods of this node with their probes [default of `run` in a pod: its service account]
    #[arg(long, value_name = "PATH", env = "TRACER_KUBECONFIG", hide_env_values = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Never ask the cluster API
    #[arg(long, env = "TRACER_NO_API", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub no_api: bool,
    /// Services and EndpointSlices of the whole cluster from its API, too: the node's own tables have most of it
    #[arg(long, env = "TRACER_API_SERVICES", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub api_services: bool,
    /// Events of this node's kubelet in this namespace, `*` for all, where its log cannot be read; repeatable. Each node that asks makes the API server scan every Event there
    #[arg(long, value_name = "NAMESPACE", env = "TRACER_API_EVENTS", hide_env_values = true, value_delimiter = ',', value_parser = super::namespace::namespace)]
    pub api_events: Vec<Namespace>,
}

/// This node.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct NodeFlag {
    /// Name of this node [default: its host name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true)]
    pub node_name: Option<String>,
}

/// One of a list, which may have blanks around its commas.
pub(super) fn name_of_list() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|name| name.trim().to_owned())
}

/// A time, or none.
fn interval(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" { Ok(Duration::ZERO) } else { super::duration::duration(text) }
}

/// The kernel takes whole pages, and a power of two of them.
fn ring_size(text: &str) -> Result<u32, String> {
    let kib: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    if kib.is_power_of_two() && (4..=1 << 20).contains(&kib) {
        Ok(kib)
    } else {
        Err("not a power of two from 4 on".into())
    }
}
