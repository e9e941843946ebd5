//! Reads the NodePorts of the node from kube-proxy's tables in the kernel: IPVS, iptables, nftables.
//! For a dropped packet, [`firewall`] finds the rules that can have dropped it.
//!
//! A table that does not exist costs one refused request. For NodePorts, tracer reads only the chain and the maps of
//! kube-proxy, never a whole ruleset. Reading needs `CAP_NET_ADMIN`. A kernel that has nf_tables as a module loads it at the
//! first request, as with `iptables -L`.

pub mod firewall;
pub mod flushes;
mod ipvs;
mod legacy;
mod nft;
mod node_ports;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

pub use firewall::fuzzing;
pub use firewall::survey::{Survey, SurveyChain, SurveyTable, survey};

use node_ports::{of_iptables_legacy, of_iptables_nft, of_nftables};
use tracer_model::event::{NodePort, NodePorts, ProxyMode};
use tracer_node::enter::NetnsError;
use tracer_node::links::Link;
use tracer_node::procfs::NodeNetns;
use tracer_node::sock_diag::listening_ports;
use tracer_terminal::error::os_message;

const TCP: u8 = 6;

#[derive(Debug, thiserror::Error)]
pub enum NetfilterError {
    #[error(transparent)]
    Netns(#[from] NetnsError),
    #[error("cannot read the IPVS services of the node from {path}: {}", os_message(source))]
    Ipvs { path: String, source: io::Error },
    #[error("cannot read {what} of the node over nfnetlink: {} (needs CAP_NET_ADMIN)", os_message(source))]
    Nft { what: &'static str, source: io::Error },
    #[error("cannot subscribe to changes of the node's nftables rules: {} (needs CAP_NET_ADMIN); tracer will not see who removes them", os_message(.0))]
    Flushes(#[source] io::Error),
    #[error("cannot read {what} over nfnetlink: {} (needs CAP_NET_ADMIN)", os_message(source))]
    Firewall { what: &'static str, source: io::Error },
    #[error("cannot read the legacy iptables table {table}: {} (needs CAP_NET_ADMIN)", os_message(source))]
    Legacy { table: String, source: io::Error },
    #[error("the legacy iptables table {table} has {size} bytes, more than tracer reads: its rules are not known")]
    LegacyTooLarge { table: String, size: usize },
}

impl NetfilterError {
    /// The missing capability, if that is the reason of the error.
    pub fn needs(&self) -> Option<&'static str> {
        let source = match self {
            Self::Netns(error) => return error.needs(),
            Self::Flushes(source)
            | Self::Ipvs { source, .. }
            | Self::Nft { source, .. }
            | Self::Firewall { source, .. } => source,
            Self::Legacy { source, .. } => source,
            Self::LegacyTooLarge { .. } => return None,
        };
        (source.kind() == io::ErrorKind::PermissionDenied).then_some("CAP_NET_ADMIN")
    }
}

/// NodePorts, each with the Service's name if the table has it.
type Named = BTreeMap<u16, Option<String>>;

/// The NodePorts of one table, and the virtual services of IPVS without a backend.
type Ports = (Vec<NodePort>, Vec<SocketAddr>);

/// Reads the NodePorts of each table that has some, and lists what could not be read.
pub fn read(node: &NodeNetns, links: &[Link]) -> (Vec<NodePorts>, Vec<NetfilterError>) {
    let mut problems = Vec::new();
    let mut found = Vec::new();
    let mut add = |mode, read: Result<Ports, NetfilterError>| match read {
        Ok((ports, without_backend)) if ports.is_empty() && without_backend.is_empty() => {}
        Ok((ports, without_backend)) => found.push(NodePorts { netns: node.netns, mode, ports, without_backend }),
        Err(error) => problems.push(error),
    };
    add(ProxyMode::Ipvs, ipvs::read(node, links).map(|found| mark_listened(found, node)));
    match node.enter(|| (of_nftables(), of_iptables_nft(), of_iptables_legacy())) {
        Ok((nft, iptables, legacy)) => {
            add(ProxyMode::Nftables, nft.map(to_ports));
            let (ports, refused) = merge_backends(iptables, legacy);
            add(ProxyMode::Iptables, Ok(to_ports(ports)));
            refused.into_iter().for_each(|error| add(ProxyMode::Iptables, Err(error)));
        }
        Err(error) => add(ProxyMode::Nftables, Err(error.into())),
    }
    (found, problems)
}

/// Marks the ports on which a process listens, on any address: connect() does not take them (`__inet_hash_connect`). If the
/// listeners cannot be read, no port is marked.
fn mark_listened((mut ports, without_backend): Ports, node: &NodeNetns) -> Ports {
    if !ports.is_empty() {
        let listened = node.enter(listening_ports).ok().and_then(Result::ok).unwrap_or_default();
        ports.iter_mut().for_each(|port| port.listened = listened.contains(&port.port));
    }
    (ports, without_backend)
}

/// kube-proxy uses one backend of iptables, and a former kube-proxy may have left rules in the other. The ports of a readable
/// backend count, even if the other one cannot be read.
fn merge_backends(
    nft: Result<Named, NetfilterError>,
    legacy: Result<Named, NetfilterError>,
) -> (Named, Vec<NetfilterError>) {
    let (mut ports, mut refused) = (Named::new(), Vec::new());
    for read in [legacy, nft] {
        match read {
            Ok(more) => ports.extend(more),
            Err(error) => refused.push(error),
        }
    }
    (ports, refused)
}

fn to_ports(named: Named) -> Ports {
    let port = |(port, service)| NodePort { port, service, ..NodePort::default() };
    (named.into_iter().map(port).collect(), Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_one_iptables_backend_count_if_the_other_cannot_be_read() {
        let refused = || NetfilterError::LegacyTooLarge { table: "nat".into(), size: 1 };
        let has = |port| Ok(Named::from([(port, None)]));
        assert_eq!(merge_backends(has(30080), has(30081)).0.len(), 2);
        let (ports, errors) = merge_backends(has(30080), Err(refused()));
        assert_eq!((ports.into_keys().collect::<Vec<_>>(), errors.len()), (vec![30080], 1));
        assert_eq!(merge_backends(Err(refused()), Err(refused())).1.len(), 2);
    }
}
