//! NodePorts and external addresses of Services, by the table they were read from.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tracer_model::event::{Netns, NodePort, NodePorts, ProxyMode};

/// The last reading of each table.
#[derive(Debug, Default)]
pub struct NodePortTables {
    last: BTreeMap<u8, (u64, NodePorts)>,
    lost: Option<LostNodePorts>,
}

/// The table that lost all its NodePorts last.
#[derive(Debug)]
pub struct LostNodePorts {
    /// As it was before.
    pub table: NodePorts,
    /// When it was read like that.
    pub read: u64,
}

impl NodePortTables {
    pub(super) fn observe(&mut self, time: u64, ports: &NodePorts) {
        let before = self.last.insert(ports.mode as u8, (time, ports.clone()));
        if let Some((read, table)) = before.filter(|(_, it)| ports.ports.is_empty() && !it.ports.is_empty()) {
            self.lost = Some(LostNodePorts { table, read });
        }
    }

    /// A NodePort that was in the rules of this namespace before they lost all of them.
    pub fn lost_at(&self, netns: Netns, port: u16) -> Option<(&LostNodePorts, &NodePort)> {
        let lost = self.lost.as_ref().filter(|it| it.table.netns == netns && self.all().next().is_none())?;
        Some((lost, lost.table.ports.iter().find(|it| it.port == port)?))
    }

    /// The last reading of one table.
    pub fn of(&self, mode: ProxyMode) -> Option<&NodePorts> {
        self.last.get(&(mode as u8)).map(|(_, table)| table)
    }

    /// The IPVS NodePort that a source address and port collides with.
    pub fn of_ipvs_at(&self, src: SocketAddr) -> Option<&NodePort> {
        let on_addr = |port: &&NodePort| port.addrs.is_empty() || port.addrs.contains(&src.ip());
        self.of(ProxyMode::Ipvs)?.ports.iter().filter(|port| port.port == src.port()).find(on_addr)
    }

    /// `namespace/name[:port]` of the Service that the rules of this node have at this external address and port.
    pub fn external_at(&self, dst: SocketAddr) -> Option<&str> {
        self.last.values().find_map(|(_, table)| table.external.get(&dst)).map(String::as_str)
    }

    /// The NodePorts of all tables.
    pub fn all(&self) -> impl Iterator<Item = (&NodePorts, &NodePort)> {
        self.last.values().flat_map(|(_, table)| table.ports.iter().map(move |port| (table, port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::{NODE, address};

    fn port(port: u16, addrs: &[&str]) -> NodePort {
        let addrs = addrs.iter().map(|ip| address(ip)).collect();
        NodePort { port, addrs, ..NodePort::default() }
    }

    #[test]
    fn only_a_node_port_of_ipvs_collides_with_a_source_port() {
        let mut tables = NodePortTables::default();
        tables.observe(7, &NodePorts::new(NODE, ProxyMode::Iptables, vec![port(30_001, &[])]));
        assert!(tables.of_ipvs_at(address("10.88.0.1:30001")).is_none());
        tables
            .observe(7, &NodePorts::new(NODE, ProxyMode::Ipvs, vec![port(30_002, &["10.88.0.1"]), port(30_003, &[])]));
        let taken = |at: &str| tables.of_ipvs_at(address(at)).is_some();
        assert_eq!(["10.88.0.1:30002", "10.88.0.9:30002", "10.88.0.9:30003"].map(taken), [true, false, true]);
        assert_eq!(tables.all().count(), 3);
    }

    #[test]
    fn a_reading_replaces_the_one_before() {
        let mut tables = NodePortTables::default();
        let table = |number| NodePorts::new(NODE, ProxyMode::Nftables, vec![port(number, &[])]);
        [30_001, 30_002].into_iter().for_each(|number| tables.observe(7, &table(number)));
        assert_eq!(tables.all().map(|(_, port)| port.port).collect::<Vec<_>>(), [30_002]);
    }

    #[test]
    fn the_node_ports_of_a_removed_table_are_known_until_there_are_others() {
        let mut tables = NodePortTables::default();
        let table = |mode, numbers: &[u16]| {
            NodePorts::new(NODE, mode, numbers.iter().map(|number| port(*number, &[])).collect())
        };
        let lost = |tables: &NodePortTables| [30_001, 30_002].map(|port| tables.lost_at(NODE, port).is_some());
        for numbers in [&[30_001, 30_002][..], &[30_002], &[]] {
            assert_eq!(lost(&tables), [false; 2]);
            tables.observe(7, &table(ProxyMode::Nftables, numbers));
        }
        assert_eq!((lost(&tables), tables.lost_at(Netns(NODE.0 + 1), 30_002).is_some()), ([false, true], false));
        tables.observe(7, &table(ProxyMode::Iptables, &[30_003]));
        assert_eq!(lost(&tables), [false; 2]);
    }
}
