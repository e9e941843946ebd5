//! Reads the NodePorts of the node, and the external addresses of Services, from kube-proxy's tables in the kernel: IPVS,
//! iptables, nftables. For a dropped packet, [`firewall`] finds the rules that can have dropped it.
//!
//! A table that does not exist costs one refused request. Of kube-proxy, tracer reads only the chains and maps of Services,
//! never a whole ruleset. Reading needs `CAP_NET_ADMIN`. A kernel that has nf_tables as a module loads it at the first request,
//! as with `iptables -L`.

pub mod firewall;
pub mod flushes;
pub mod fuzzing;
mod ipvs;
mod legacy;
mod nft;
mod node_ports;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

pub use firewall::survey::{Survey, SurveyChain, SurveyTable, survey};

use node_ports::{of_iptables, of_nftables};
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
    #[error("cannot subscribe to changes of the node's nftables rules: {} (needs CAP_NET_ADMIN); tracer will not see who removes them", os_message(.0))]
    Flushes(#[source] io::Error),
    #[error("cannot read {what} over nfnetlink: {} (needs CAP_NET_ADMIN)", os_message(source))]
    Nft { what: &'static str, source: io::Error },
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
            | Self::Legacy { source, .. } => source,
            Self::LegacyTooLarge { .. } => return None,
        };
        (source.kind() == io::ErrorKind::PermissionDenied).then_some("CAP_NET_ADMIN")
    }
}

/// What a table has, each with the Service's name if the table has it. A NodePort is at the unspecified address of its
/// family.
type Named = BTreeMap<SocketAddr, Option<String>>;

/// The NodePorts of IPVS, and its virtual services without a backend.
type Ports = (Vec<NodePort>, Vec<SocketAddr>);

/// Reads the NodePorts and external addresses of each table that has some, and lists what could not be read.
pub fn read(node: &NodeNetns, links: &[Link]) -> (Vec<NodePorts>, Vec<NetfilterError>) {
    let mut problems = Vec::new();
    let mut found = Vec::new();
    let empty = |mode| NodePorts::new(node.netns, mode, Vec::new());
    let mut add = |read: Result<NodePorts, NetfilterError>| match read {
        Ok(table) if table == empty(table.mode) => {}
        Ok(table) => found.push(table),
        Err(error) => problems.push(error),
    };
    add(ipvs::read(node, links).map(|found| {
        let (ports, without_backend) = mark_listened(found, node);
        NodePorts { ports, without_backend, ..empty(ProxyMode::Ipvs) }
    }));
    match node.enter(|| (of_nftables(), of_iptables())) {
        Ok((nft, backends)) => {
            let fill = |mode, named| add_named(empty(mode), named, links);
            add(nft.map(|named| fill(ProxyMode::Nftables, named)));
            let (named, refused) = merge_backends(backends);
            add(Ok(fill(ProxyMode::Iptables, named)));
            refused.into_iter().for_each(|error| add(Err(error)));
        }
        Err(error) => add(Err(error.into())),
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
fn merge_backends(backends: [Result<Named, NetfilterError>; 2]) -> (Named, Vec<NetfilterError>) {
    let (mut ports, mut refused) = (Named::new(), Vec::new());
    for read in backends {
        match read {
            Ok(more) => ports.extend(more),
            Err(error) => refused.push(error),
        }
    }
    (ports, refused)
}

/// Adds the NodePorts, and the addresses that are the node's own: ClusterIPs and those of a load balancer beyond are not.
fn add_named(mut table: NodePorts, named: Named, links: &[Link]) -> NodePorts {
    let of_node: BTreeSet<IpAddr> = links.iter().flat_map(|link| link.state.addrs.iter().copied()).collect();
    let mut ports = BTreeMap::new();
    for (at, service) in named {
        if at.ip().is_unspecified() {
            let number = at.port();
            let port = ports.entry(number).or_insert_with(|| NodePort { port: number, ..NodePort::default() });
            port.addrs.push(at.ip());
            port.service = port.service.take().or(service);
        } else if of_node.contains(&at.ip()) {
            table.external.extend(service.map(|it| (at, it)));
        }
    }
    table.ports = ports.into_values().collect();
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::Netns;

    #[test]
    fn ports_of_one_iptables_backend_count_if_the_other_cannot_be_read() {
        let refused = || NetfilterError::LegacyTooLarge { table: "nat".into(), size: 1 };
        let at = |port| SocketAddr::from(([0; 4], port));
        let has = |port| Ok(Named::from([(at(port), None)]));
        assert_eq!(merge_backends([has(30080), has(30081)]).0.len(), 2);
        let (ports, errors) = merge_backends([has(30080), Err(refused())]);
        assert_eq!((ports.into_keys().collect::<Vec<_>>(), errors.len()), (vec![at(30080)], 1));
        assert_eq!(merge_backends([Err(refused()), Err(refused())]).1.len(), 2);
    }

    /// A Service of both families, and one of IPv6.
    #[test]
    fn a_node_port_has_the_families_of_its_rules() {
        let at = |addr: &str| (addr.parse().expect("an address"), Some("shop/cart".to_owned()));
        let named = ["0.0.0.0:30081", "[::]:30080", "[::]:30081"].map(at).into();
        let table = add_named(NodePorts::new(Netns(7), ProxyMode::Nftables, Vec::new()), named, &[]);
        let found = table.ports.iter().map(|it| (it.port, [true, false].map(|v4| it.is_of_family(v4))));
        assert_eq!(found.collect::<Vec<_>>(), [(30080, [false, true]), (30081, [true; 2])]);
    }
}
