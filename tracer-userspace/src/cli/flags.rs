//! Groups of flags that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Args, ColorChoice};

use tracer_bpf::ebpf::ProberHooksWhen;
use tracer_output::sink::{Format, choices};
use tracer_sources::NamedLog;
use tracer_sources::cluster::Namespace;

/// The flags of the commands that watch a node.
#[derive(Debug, Args)]
pub struct LiveFlags {
    #[command(flatten)]
    pub records: RecordFlags,
    /// Stop after this time, such as 30s, 5m or 1h30m
    #[arg(long, value_name = "TIME", value_parser = super::duration, help_heading = "Stop conditions")]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub probers: ProberFlag,
    #[command(flatten)]
    pub kernel: KernelFlags,
    #[command(flatten)]
    pub pods: PodsFlag,
    #[command(flatten)]
    pub sources: SourceFlags,
    #[command(flatten)]
    pub node: NodeFlag,
}

/// Which records are emitted, and where they go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct RecordFlags {
    #[command(flatten)]
    pub output: OutputFlags,
    #[command(flatten)]
    pub rotation: RotationFlags,
    #[command(flatten)]
    pub details: DetailFlags,
    /// After the first minute, print identical verdicts only once in this time, with their number; 0 prints all
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = interval)]
    pub repeat_interval: Duration,
    #[command(flatten)]
    pub filters: FilterFlags,
    /// Stop after the first failure, with exit code 1
    #[arg(long, help_heading = "Stop conditions")]
    pub until_failure: bool,
}

/// What is printed beside failures.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct DetailFlags {
    /// Also print attempts that succeeded
    #[arg(long)]
    pub attempts: bool,
    /// Also print who uses the ports of a healthy node; on stderr more about tracer itself
    #[arg(short, long)]
    pub verbose: bool,
}

/// Format and place of the records.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Print records in this format [default: pretty on a terminal, else json]
    #[arg(short, long, value_enum, value_name = choices::<Format>(), hide_possible_values = true)]
    pub output: Option<Format>,
    #[command(flatten)]
    pub file: FileFlag,
    /// Use colour; auto: on a terminal
    #[arg(long, value_enum, value_name = choices::<ColorChoice>(), default_value = "auto", hide_possible_values = true)]
    pub color: ColorChoice,
    #[command(flatten)]
    pub quiet: QuietFlag,
}

/// Less on stderr.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct QuietFlag {
    /// Print errors on stderr, but no warnings and no status line
    #[arg(short, long)]
    pub quiet: bool,
}

/// The file of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct FileFlag {
    /// Append the records to this file (mode 0600) instead of stdout; SIGHUP reopens it
    #[arg(long, value_name = "PATH", value_parser = output_file())]
    pub output_file: Option<PathBuf>,
}

/// Rotation of the file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct RotationFlags {
    /// Rotate --output-file before it grows beyond this size, such as 64MiB: PATH becomes PATH.1, PATH.1 becomes PATH.2
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    pub output_max_size: Option<u64>,
    /// Keep this many rotated files [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub output_max_files: Option<u32>,
}

/// Which verdicts and attempts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterFlags {
    /// Show only this namespace
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Show all namespaces: the default, unless -n or TRACER_NAMESPACE names one
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Show only this pod; PREFIX* selects every pod with this prefix; KIND/NAME is the pods of a workload, such as deploy/cart (also ds, sts, rs, job)
    #[arg(short, long, value_name = "POD|PREFIX*|KIND/NAME")]
    pub pod: Option<String>,
    /// Show only this container
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    #[command(flatten)]
    pub causes: CauseFlag,
}

/// Which causes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filters")]
pub struct CauseFlag {
    /// Show only this cause; repeatable (`tracer explain` lists all)
    #[arg(long = "cause", value_name = "CAUSE", value_delimiter = ',', value_parser = name_of_list())]
    pub causes: Vec<String>,
}

/// Which processes probe.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct ProberFlag {
    /// Treat connections of processes with this name as probe attempts; repeatable [default: every known kubelet]
    #[arg(long = "prober", value_name = "NAME", value_delimiter = ',', value_parser = name_of_list())]
    pub probers: Vec<String>,
}

/// Which hooks are attached, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct KernelFlags {
    /// Also report failed connections of processes other than the prober
    #[arg(long)]
    pub all_connections: bool,
    /// Attach no syscalls:* tracepoints: on kernels without function probes they slow every system call of the node
    #[arg(long)]
    pub no_syscall_hooks: bool,
    /// Watch probers at their own cgroups, so that other processes pay less; auto: kubelets, if none is in the root cgroup; without a value: always
    #[arg(
        long,
        value_name = "auto|always|never",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always",
        hide_possible_values = true,
        value_parser = prober_hooks()
    )]
    pub prober_hooks: ProberHooksWhen,
    #[command(flatten)]
    pub btf: BtfFlag,
    /// Size of the ring of events, a power of two from 4 on: for tests of what happens when it overflows
    #[arg(long, value_name = "KIB", hide = true, value_parser = ring_size)]
    pub ring_kib: Option<u32>,
}

fn prober_hooks() -> impl TypedValueParser<Value = ProberHooksWhen> {
    PossibleValuesParser::new(["auto", "always", "never"]).map(|value| match value.as_str() {
        "always" => ProberHooksWhen::Always,
        "never" => ProberHooksWhen::Never,
        _ => ProberHooksWhen::Auto,
    })
}

/// The types of the kernel.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is watched")]
pub struct BtfFlag {
    /// Read the BTF of this kernel from this file: for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}

/// The pods of the node.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sources")]
pub struct PodsFlag {
    /// Read the pods of this node from this file, as `kubectl get pods -A -o json` (or yaml) prints them; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    pub pods: Option<PathBuf>,
}

/// Where else observations come from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sources")]
pub struct SourceFlags {
    /// Read Services from this file, as `kubectl get services,endpointslices -A -o json` (or yaml) prints them; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    pub services: Option<PathBuf>,
    /// Read how each probe ended from this log of the kubelet: a file, `journal` or `journal:/DIR` [default: where the kubelet's stderr goes]
    #[arg(long, value_name = "FILE|journal")]
    pub kubelet_log: Option<NamedLog>,
    /// Read the pods of this node from the cluster API, with this kubeconfig [default of `run` in a pod: its service account]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,
    /// Never ask the cluster API
    #[arg(long)]
    pub no_api: bool,
    /// Read the kubelet's Events of this namespace (`*`: all) from the API, where its log cannot be read; repeatable. Each node then makes the API server scan all Events there
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = namespace)]
    pub api_events: Vec<Namespace>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Sources")]
pub struct NodeFlag {
    /// Give this node this name [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}

/// Where FILE may be `-` for stdin, this would make a file of that name.
fn output_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        if path.as_os_str() == "-" {
            Err("for stdout, leave the flag out; a file of this name is ./-")
        } else {
            Ok(path)
        }
    })
}

/// A name of a list that may have spaces around its commas.
pub(super) fn name_of_list() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|name| name.trim().to_owned())
}

/// A time, or 0 for none.
fn interval(text: &str) -> Result<Duration, String> {
    if ["0", "0s"].contains(&text.trim()) { Ok(Duration::ZERO) } else { super::duration(text) }
}

/// The kernel accepts only a power of two of whole pages.
fn ring_size(text: &str) -> Result<u32, String> {
    let kib: u32 = text.parse().map_err(|_| "not a number".to_owned())?;
    if kib.is_power_of_two() && (4..=1 << 20).contains(&kib) {
        Ok(kib)
    } else {
        Err("not a power of two from 4 on".into())
    }
}

/// Accepts only names that the API allows (RFC 1123 labels), because the name becomes a part of an API path.
fn namespace(text: &str) -> Result<Namespace, String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = text.len() <= 63
        && text.chars().all(|c| plain(c) || c == '-')
        && text.starts_with(plain)
        && text.ends_with(plain);
    match text {
        "*" => Ok(Namespace::All),
        name if is_label => Ok(Namespace::Named(name.to_owned())),
        _ => Err("write the name of a namespace, or `*` for all of them".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_names_of_namespaces_are_accepted() {
        assert_eq!(namespace("shop-1"), Ok(Namespace::Named("shop-1".into())));
        assert_eq!(namespace(" shop-1 "), Ok(Namespace::Named("shop-1".into())), "one of a list");
        assert_eq!(namespace("*"), Ok(Namespace::All));
        for wrong in ["", "-a", "a-", "A", "a/b", "a?b", "**", "..", &"a".repeat(64)] {
            assert!(namespace(wrong).is_err(), "{wrong}");
        }
    }
}
