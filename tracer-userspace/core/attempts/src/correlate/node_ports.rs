//! NodePorts and external addresses of Services, by the table they were read from.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tracer_model::event::{Netns, NodePort, NodePorts, ProxyMode};

/// The last reading of each table.
#[derive(Debug, Default)]
pub struct NodePortTables {
    last: BTreeMap<u8, (u64, NodePorts)>,
    /// By address family; `true`: IPv4.
    lost: BTreeMap<bool, LostNodePorts>,
}

/// The table that lost all its NodePorts of one address family last.
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
        let has = |table: &NodePorts, v4| table.ports.iter().any(|port| port.is_of_family(v4));
        for (v4, (read, table)) in [true, false].into_iter().flat_map(|v4| Some((v4, before.as_ref()?))) {
            if has(table, v4) && !has(ports, v4) {
                self.lost.insert(v4, LostNodePorts { table: table.clone(), read: *read });
            }
        }
    }

    /// A NodePort that was in the rules of this namespace before they lost all of this address family.
    pub fn lost_at(&self, netns: Netns, dst: SocketAddr) -> Option<(&LostNodePorts, &NodePort)> {
        let v4 = dst.is_ipv4();
        let lost = self.lost.get(&v4).filter(|it| it.table.netns == netns && !self.has_some_of_family(v4))?;
        let is_same = |it: &&NodePort| it.port == dst.port() && it.is_of_family(v4);
        Some((lost, lost.table.ports.iter().find(is_same)?))
    }

    fn has_some_of_family(&self, v4: bool) -> bool {
        self.all().any(|(_, port)| port.is_of_family(v4))
    }

    /// The last reading of one table.
    pub fn of(&self, mode: ProxyMode) -> Option<&NodePorts> {
        self.last.get(&(mode as u8)).map(|(_, table)| table)
    }

    /// The IPVS NodePort that a source address and port collides with.
    pub fn of_ipvs_at(&self, src: SocketAddr) -> Option<&NodePort> {
        self.of(ProxyMode::Ipvs)?.ports.iter().find(|port| port.port == src.port() && port.is_at(src.ip()))
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
        let at = |port| SocketAddr::new(address("10.88.0.1"), port);
        let lost = |tables: &NodePortTables| [30_001, 30_002].map(|port| tables.lost_at(NODE, at(port)).is_some());
        for numbers in [&[30_001, 30_002][..], &[30_002], &[]] {
            assert_eq!(lost(&tables), [false; 2]);
            tables.observe(7, &table(ProxyMode::Nftables, numbers));
        }
        assert_eq!((lost(&tables), tables.lost_at(Netns(NODE.0 + 1), at(30_002)).is_some()), ([false, true], false));
        tables.observe(7, &table(ProxyMode::Iptables, &[30_003]));
        assert_eq!(lost(&tables), [false; 2]);
    }

    /// Somebody deleted the table of one family. That of the other is still there.
    #[test]
    fn the_node_ports_of_one_family_can_be_lost() {
        let mut tables = NodePortTables::default();
        let mut read = |addrs: &[&[&str]]| {
            let ports = addrs.iter().zip(30_001..).map(|(addrs, number)| port(number, addrs)).collect();
            tables.observe(7, &NodePorts::new(NODE, ProxyMode::Nftables, ports));
            ["10.88.0.1:30001", "[fd00::1]:30001", "10.88.0.1:30002", "[fd00::1]:30002"]
                .map(|at| tables.lost_at(NODE, address(at)).is_some())
        };
        assert_eq!(read(&[&["0.0.0.0", "::"], &["::"]]), [false; 4]);
        assert_eq!(read(&[&["::"], &["::"]]), [true, false, false, false]);
        assert_eq!(read(&[]), [true, true, false, true]);
        assert_eq!(read(&[&["0.0.0.0"]]), [false, true, false, true]);
    }
}
