//! The configuration of a live run.

use std::path::PathBuf;
use std::time::Duration;

use tracer_bpf::ebpf::LoadOptions;
use tracer_output::serve::Serve;
use tracer_output::sink::{Destinations, SinkConfig};
use tracer_sources::NamedLog;
use tracer_sources::cluster::ClusterConfig;

/// The configuration of `tracer attach`, `run` or `record`.
#[derive(Clone, Debug, Default)]
pub struct LiveConfig {
    pub output: SinkConfig,
    /// Whether this is the daemon, of which a node has one.
    pub daemon: bool,
    /// The endpoints of the daemon; other commands have none.
    pub serve: Option<Serve>,
    pub record: Option<PathBuf>,
    /// End after this time.
    pub duration: Option<Duration>,
    pub load: LoadOptions,
    pub pods: Option<PathBuf>,
    pub services: Option<PathBuf>,
    pub kubelet_log: Option<NamedLog>,
    /// Absent if the cluster API is not used.
    pub cluster: Option<ClusterConfig>,
    /// A warning about a flag that needs the cluster API without access to it; reported at the start.
    pub unavailable_source: Option<String>,
    /// The destinations of the daemon; other commands have none.
    pub destinations: Destinations,
    pub node_name: String,
}
