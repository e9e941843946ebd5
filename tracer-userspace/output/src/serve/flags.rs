//! Flags of the daemon only: its endpoints and their addresses.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};

/// Where `tracer run` answers.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Endpoints")]
pub struct Serve {
    /// Serve /metrics (Prometheus), /healthz and /readyz on this address, such as localhost:9464; :9464 is every address [default: no port is open]
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub metrics_listen: Option<SocketAddr>,
    /// Add the pod's name and namespace to the metrics: many more series
    #[arg(long)]
    pub metrics_pod_labels: bool,
    /// Listen on this unix socket (mode 0600) for `tracer health`
    #[arg(long, value_name = "PATH", default_value = super::HEALTH_SOCKET, value_parser = PathBufValueParser::new().try_map(socket))]
    pub health_socket: PathBuf,
}

/// Parses an address and a port. Names are refused, because resolving one may fail later; only `localhost` has a fixed address
/// (RFC 6761). Without an address, all addresses of the node are used. `$(NODE_IP):9464` in a manifest has no brackets around an
/// IPv6 address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let text = &match text.rsplit_once(':') {
        Some(("", port)) => format!("{}:{port}", every_address()),
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    let bare =
        || text.rsplit_once(':').and_then(|(ip, port)| Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?)));
    text.parse().ok().or_else(bare).ok_or_else(|| {
        "write an address and a port, such as localhost:9464, 10.0.0.1:9464, or :9464 for every address".to_owned()
    })
}

/// The path of a unix socket, which the kernel limits.
fn socket(path: PathBuf) -> Result<PathBuf, &'static str> {
    let is_path = !path.as_os_str().is_empty() && std::os::unix::net::SocketAddr::from_pathname(&path).is_ok();
    if is_path { Ok(path) } else { Err("a unix socket has a path of 1 to 107 bytes") }
}

/// If IPv6 is on, a socket on `[::]` accepts IPv4 clients, too, unless `net.ipv6.bindv6only` is set.
fn every_address() -> &'static str {
    let bind_v6_only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    let has_v6 = std::net::UdpSocket::bind("[::]:0").is_ok();
    if has_v6 && bind_v6_only.is_ok_and(|only| only.trim() == "0") { "[::]" } else { "0.0.0.0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_written_in_short() {
        let taken = |text: &str| address(text).map(|address| address.to_string());
        assert_eq!(taken("fd00::1:9464").as_deref(), Ok("[fd00::1]:9464"));
        assert_eq!(taken("[::]:9464").as_deref(), Ok("[::]:9464"));
        assert_eq!(taken("10.0.0.1:9464").as_deref(), Ok("10.0.0.1:9464"));
        assert_eq!(taken("localhost:9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(taken(":9464"), Ok(format!("{}:9464", every_address())));
        for wrong in ["", "9464", "::1", "fd00::1", "node-1:9464", ":port", "localhost", "10.0.0.1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_that_cannot_be_that_of_a_socket_is_refused() {
        assert_eq!([0, 1, 107, 108].map(|bytes| socket("a".repeat(bytes).into()).is_ok()), [false, true, true, false]);
    }
}
