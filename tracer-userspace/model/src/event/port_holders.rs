//! The connections that hold a port without a listener.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Netns;

/// The connections of a namespace with this local port, read when a connection to the port was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortHolders {
    pub netns: Netns,
    pub port: u16,
    /// `net.ipv4.ip_local_port_range` of the namespace. It contains the port, so connect() can take it.
    pub range: (u16, u16),
    /// Connections that a process holds, a few at most.
    pub holders: Vec<PortHolder>,
}

/// A connection, and the process that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortHolder {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub pid: u32,
    pub comm: String,
}

impl PortHolders {
    /// The holder's process surely called connect(): the remote port is outside of the range of connect(). For a connection that
    /// a server accepted, it is the other way round.
    pub const fn is_client(&self, holder: &PortHolder) -> bool {
        let other = holder.remote.port();
        other < self.range.0 || other > self.range.1
    }
}
