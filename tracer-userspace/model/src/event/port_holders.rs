//! Who holds a port on which nobody listens.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::Netns;

/// The connections of a namespace that have a port as their own end, read when a connection to that port was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortHolders {
    pub netns: Netns,
    pub port: u16,
    /// `net.ipv4.ip_local_port_range` of the namespace, which has the port in it: connect() can take it.
    pub range: (u16, u16),
    /// Those that a process holds, a few at most.
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
    /// Its process surely dialled: connect() took the port, and the other end's port is none that connect() takes here. What a
    /// server accepted has it the other way round.
    pub const fn is_dialled(&self, holder: &PortHolder) -> bool {
        let other = holder.remote.port();
        other < self.range.0 || other > self.range.1
    }
}
