//! What a live run was asked for.

use std::path::PathBuf;
use std::time::Duration;

use tracer_bpf::ebpf::LoadOptions;
use tracer_output::serve::Serve;
use tracer_output::sink::SinkConfig;
use tracer_output::sink::cluster::ClusterOutput;
use tracer_output::sink::otlp::OtlpConfig;
use tracer_sources::NamedLog;
use tracer_sources::cluster::ClusterConfig;

/// What `tracer attach`, `run` or `record` was asked for.
#[derive(Clone, Debug, Default)]
pub struct LiveConfig {
    pub output: SinkConfig,
    /// The daemon: one on a node.
    pub daemon: bool,
    /// The endpoints of the daemon; other commands have none.
    pub serve: Option<Serve>,
    /// `record FILE`.
    pub record: Option<PathBuf>,
    /// End after this time.
    pub duration: Option<Duration>,
    pub load: LoadOptions,
    /// `--pods`.
    pub pods: Option<PathBuf>,
    /// `--services`.
    pub services: Option<PathBuf>,
    /// `--kubelet-log`.
    pub kubelet_log: Option<NamedLog>,
    /// The cluster API, where it is used.
    pub cluster: Option<ClusterConfig>,
    /// The flag that asks for the cluster API where there is no access to it, and why not: reported at the start.
    pub unavailable_source: Option<String>,
    /// What is written to it.
    pub cluster_output: Option<ClusterOutput>,
    /// `--otlp-endpoint`.
    pub otlp: Option<OtlpConfig>,
    pub node_name: String,
}
