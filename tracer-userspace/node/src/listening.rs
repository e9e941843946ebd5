//! Whether a socket listens on a port.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::enter::in_netns;
use super::namespaces::{Namespaces, SLOW_AGE};
use super::procfs::netns_of;
use super::servers::{OF_NODE, holders};
use super::sock_diag::{LISTEN, dump};
use tracer_model::event::Listen;

/// Whether a socket of this process listens at this address now. `None` if the namespace is gone or cannot be read, or if
/// only other processes are known to listen there.
pub fn is_listening(socket: &Listen, namespaces: &mut Namespaces) -> Option<bool> {
    let (pid, own) = (socket.actor.pid, netns_of(socket.actor.pid));
    let of_process = (own == Some(socket.netns)).then(|| PathBuf::from(format!("/proc/{pid}/ns/net")));
    let path = of_process.or_else(|| namespaces.path_within(socket.netns, SLOW_AGE));
    let find = || {
        let mut found = BTreeSet::new();
        let read = dump(LISTEN, socket.addr.port(), |it| found.extend((it.local == socket.addr).then_some(it.inode)));
        (!found.is_empty() || read.is_ok()).then_some(found)
    };
    let found = in_netns(&path?, find).ok()??;
    // A child may have the socket of a process that is gone.
    let is_own = |own| !holders(&found, &[pid], own, &OF_NODE).held.is_empty();
    if found.is_empty() { Some(false) } else { own.is_none_or(is_own).then_some(true) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use tracer_model::event::{Actor, Netns};

    #[test]
    fn only_a_socket_that_listens_counts() {
        let (pid, mut namespaces) = (std::process::id(), Namespaces::default());
        let netns = netns_of(pid).expect("its namespace");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let addr = listener.local_addr().expect("its address");
        let actor = Actor { pid, tid: pid, comm: "test".into(), netns: None, cgroup: None, cgroup_memory: None };
        let mut socket = Listen::new(netns, addr, actor, true);
        assert_eq!(is_listening(&socket, &mut namespaces), Some(true));
        let nobodys = Listen { netns: Netns(1), ..socket.clone() };
        assert_eq!(is_listening(&nobodys, &mut namespaces), None, "nobody's namespace");
        socket.actor.pid = std::os::unix::process::parent_id();
        assert_eq!(
            is_listening(&socket, &mut namespaces),
            None,
            "a socket of another process, which may have the port"
        );
        socket.actor.pid = 0;
        assert_eq!(is_listening(&socket, &mut namespaces), Some(true), "another process of the namespace leads there");
        drop(listener);
        assert_eq!(is_listening(&socket, &mut namespaces), Some(false));
    }
}
