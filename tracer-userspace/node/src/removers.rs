//! Which process sent a request over netlink.

use std::fs;
use std::iter::{once, successors};

use super::procfs::{NodeNetns, every_pid, read_text};
use super::servers::{comm, holder_of};
use tracer_model::event::{Ancestor, Remover};

/// How many ancestors of a process are reported.
const MOST_ANCESTORS: usize = 3;

/// The process that holds the rtnetlink socket with this port in the node's namespace. The port is often the process's
/// own pid (`netlink_autobind`), but the pid in its own pid namespace. Only the socket's inode proves the process.
pub(super) fn of_port(port: u32, node: &NodeNetns) -> Option<Remover> {
    let table = fs::read_to_string(node.net_file("netlink")).ok()?;
    let inode = inode_of(&table, port)?;
    let pids: Vec<u32> = once(port).chain(every_pid().filter(|pid| *pid != port)).collect();
    let pid = holder_of(inode, &pids)?;
    Some(of_pid(pid, comm(pid)?))
}

/// `sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode`, of protocol 0: rtnetlink.
fn inode_of(table: &str, port: u32) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&"0") && fields.get(2)?.parse() == Ok(port);
        fields.get(9).filter(|_| is_it)?.parse().ok()
    })
}

/// Describes a process with a known name: adds its executable and its ancestors from `/proc`.
pub fn of_pid(pid: u32, comm: String) -> Remover {
    let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
    Remover { pid, comm, exe: exe.map(|path| path.display().to_string()), ancestors: ancestors(pid) }
}

fn ancestors(pid: u32) -> Vec<Ancestor> {
    let above = successors(parent(pid), |pid| parent(*pid)).take(MOST_ANCESTORS);
    above.map_while(|pid| Some(Ancestor { pid, comm: comm(pid)? })).collect()
}

/// Parses `7 (a name) S 1 …`; the name may have brackets and spaces. Process 1 has no parent.
fn parent(pid: u32) -> Option<u32> {
    let stat = read_text(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::super::procfs::node_netns;
    use super::*;
    use netlink_sys::Socket;
    use netlink_sys::protocols::NETLINK_ROUTE;

    #[test]
    fn the_holder_of_a_socket_is_found_whatever_its_port() {
        let node = node_netns(&[]).expect("own namespace");
        let mut sockets = [NETLINK_ROUTE; 2].map(|protocol| Socket::new(protocol).expect("a socket"));
        let ports = sockets.each_mut().map(|socket| socket.bind_auto().expect("a port").port_number());
        assert_ne!(ports[0], ports[1]);
        for port in ports {
            let found = of_port(port, &node).expect("ourselves");
            assert_eq!(found.pid, std::process::id());
            assert!(found.exe.is_some() && !found.ancestors.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn only_sockets_of_rtnetlink_count() {
        let table = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n\
                     0000000000000000 16  700        00000000 0        0        0     2        0        11\n\
                     0000000000000000 0   700        00000440 0        0        0     2        0        12\n";
        assert_eq!((inode_of(table, 700), inode_of(table, 701), inode_of("", 700)), (Some(12), None, None));
    }
}
