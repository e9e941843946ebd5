//! Which processes have connections with a local port on which nobody listens.

use std::net::SocketAddr;
use std::time::Duration;

use super::enter::in_netns;
use super::inspect::{diag, inode, other_end, own_end};
use super::namespaces::Namespaces;
use super::servers::{comm, holder_of};
use super::settings::local_port_range;
use tracer_model::event::{Netns, PortHolder, PortHolders};

/// Connections that are looked at: one is enough to keep a server from its port.
const MOST: usize = 4;
/// ESTABLISHED, SYN_SENT and CLOSE_WAIT: what a process holds. TIME_WAIT is over within a minute.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 8;
/// All of `/proc` is not looked through again within this.
const KEPT: Duration = Duration::from_secs(2);

/// The holders of a port of this namespace; `None` if connect() takes no such port there, or that cannot be read.
///
/// The kernel goes through every connection of the machine for it (`inet_diag_dump_icsk`): only where the port can be a
/// client's, which is cheap to know.
pub fn read(netns: Netns, port: u16, namespaces: &mut Namespaces) -> Option<PortHolders> {
    let path = namespaces.path_unless_since(netns, KEPT)?;
    let look = || {
        let range = local_port_range().filter(|(first, last)| (*first..=*last).contains(&port))?;
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            diag(family, STATES, port, |message| found.extend(ends(message).filter(|_| found.len() < MOST))).ok()?;
        }
        Some((range, found))
    };
    let (range, found) = in_netns(&path, look).ok()??;
    let pids = namespaces.pids(netns, KEPT);
    let holder = |(local, remote, inode): (SocketAddr, SocketAddr, u64)| {
        let pid = holder_of(inode, pids)?;
        Some(PortHolder { local, remote, pid, comm: comm(pid)? })
    };
    Some(PortHolders { netns, port, range, holders: found.into_iter().filter_map(holder).collect() })
}

/// Own end, other end, inode: none of a socket that no process holds any more.
fn ends(message: &[u8]) -> Option<(SocketAddr, SocketAddr, u64)> {
    Some((own_end(message)?, other_end(message)?, inode(message).filter(|inode| *inode != 0)?))
}

#[cfg(test)]
mod tests {
    use super::super::procfs::netns_of;
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn our_own_connection_holds_its_port_until_it_is_closed() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let client = TcpStream::connect(server.local_addr().expect("its address")).expect("a connection");
        let ends = (client.local_addr().expect("own end"), client.peer_addr().expect("other end"));
        let netns = netns_of(std::process::id()).expect("our namespace");
        let look = || read(netns, ends.0.port(), &mut Namespaces::default()).expect("a port that connect() takes");
        let holders = look().holders;
        let own = holders.iter().find(|it| (it.local, it.remote) == ends).expect("ourselves");
        assert_eq!(own.pid, std::process::id());
        drop(client);
        assert!(!look().holders.iter().any(|it| (it.local, it.remote) == ends));
    }

    #[test]
    fn a_port_that_connect_does_not_take_is_not_looked_for() {
        let netns = netns_of(std::process::id()).expect("our namespace");
        assert_eq!(read(netns, 80, &mut Namespaces::default()), None);
    }
}
