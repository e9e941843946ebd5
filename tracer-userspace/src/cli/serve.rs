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

/// An address and a port; a name would have to be resolved, which may fail later. `$(NODE_IP):9464` in a manifest has no
/// brackets around an IPv6 address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let bare =
        || text.rsplit_once(':').and_then(|(ip, port)| Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?)));
    text.parse()
        .ok()
        .or_else(bare)
        .ok_or_else(|| "write an address and a port, e.g. 127.0.0.1:9464, 0.0.0.0:9464 or [::]:9464".to_owned())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_ipv6_address_needs_no_brackets() {
        let taken = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(taken("fd00::1:9464").as_deref(), Ok("[fd00::1]:9464"));
        assert_eq!(taken("[::]:9464").as_deref(), Ok("[::]:9464"));
        assert_eq!(taken("10.0.0.1:9464").as_deref(), Ok("10.0.0.1:9464"));
        for wrong in ["", "9464", "::1", "fd00::1", "localhost:9464", "10.0.0.1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
