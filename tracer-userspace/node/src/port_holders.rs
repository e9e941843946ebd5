//! Finds the processes with connections on a local port without a listener.

use super::enter::in_netns;
use super::namespaces::{Namespaces, SLOW_AGE};
use super::servers::{comm, holder_of};
use super::settings::local_port_range;
use super::sock_diag::{TcpSocket, dump};
use tracer_model::event::{Netns, PortHolder, PortHolders};

/// How many connections are reported: one is enough to keep a server from binding the port.
const MOST: usize = 4;
/// ESTABLISHED, SYN_SENT and CLOSE_WAIT: states in which a process holds the socket. TIME_WAIT ends within a minute.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 8;

/// The holders of a port in this namespace; `None` if connect() never chooses that port, or the sockets cannot be read.
///
/// For the dump the kernel walks every connection of the machine (`inet_diag_dump_icsk`). Therefore tracer first checks
/// that the port is in the range of ephemeral ports, which is cheap.
pub fn read(netns: Netns, port: u16, namespaces: &mut Namespaces) -> Option<PortHolders> {
    let path = namespaces.path_within(netns, SLOW_AGE)?;
    let find = || {
        let range = local_port_range().filter(|(first, last)| (*first..=*last).contains(&port))?;
        let mut found = Vec::new();
        dump(STATES, port, |it| found.extend((it.inode != 0 && found.len() < MOST).then_some(it))).ok()?;
        Some((range, found))
    };
    let (range, found) = in_netns(&path, find).ok()??;
    let pids = namespaces.pids(netns, SLOW_AGE);
    let holder = |socket: TcpSocket| {
        let pid = holder_of(socket.inode, pids)?;
        Some(PortHolder { local: socket.local, remote: socket.remote, pid, comm: comm(pid)? })
    };
    Some(PortHolders { netns, port, range, holders: found.into_iter().filter_map(holder).collect() })
}

#[cfg(test)]
mod tests {
    use super::super::procfs::netns_of;
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_holds_its_port_until_it_is_closed() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let client = TcpStream::connect(server.local_addr().expect("its address")).expect("a connection");
        let ends = (client.local_addr().expect("own end"), client.peer_addr().expect("other end"));
        let netns = netns_of(std::process::id()).expect("our namespace");
        let find = || read(netns, ends.0.port(), &mut Namespaces::default()).expect("an ephemeral port");
        let holders = find().holders;
        let own = holders.iter().find(|it| (it.local, it.remote) == ends).expect("ourselves");
        assert_eq!(own.pid, std::process::id());
        drop(client);
        assert!(!find().holders.iter().any(|it| (it.local, it.remote) == ends));
    }

    #[test]
    fn a_port_outside_of_the_ephemeral_range_is_not_searched() {
        let netns = netns_of(std::process::id()).expect("our namespace");
        assert_eq!(read(netns, 80, &mut Namespaces::default()), None);
    }
}
