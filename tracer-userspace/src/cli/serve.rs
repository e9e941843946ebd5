//! The flags of the daemon alone: what it answers, and where.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

/// What `tracer run` answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
pub struct ServeFlags {
    /// Serve /metrics (Prometheus), /healthz and /readyz here, e.g. 127.0.0.1:9464 [default: nothing listens]
    #[arg(long, value_name = "ADDR:PORT", env = "TRACER_METRICS_LISTEN", hide_env_values = true, value_parser = address)]
    pub metrics_listen: Option<SocketAddr>,
    /// Cause verdicts and attempts with the pod's name and namespace: many more series
    #[arg(long, env = "TRACER_METRICS_POD_LABELS", hide_env_values = true, action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub metrics_pod_labels: bool,
    /// Unix socket (mode 0600) that `tracer health` asks
    #[arg(long, value_name = "PATH", env = "TRACER_HEALTH_SOCKET", hide_env_values = true, default_value = tracer_output::serve::HEALTH_SOCKET)]
    pub health_socket: PathBuf,
}

/// An address and a port; a name would have to be resolved, which may fail later.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, e.g. 127.0.0.1:9464, 0.0.0.0:9464 or [::]:9464".to_owned())
}
