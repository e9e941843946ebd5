//! Whether a socket listens on a port.

use std::path::PathBuf;

use super::enter::in_netns;
use super::namespaces::{Namespaces, SLOW_AGE};
use super::procfs::netns_of;
use super::sock_diag::{LISTEN, dump};
use tracer_model::event::Listen;

/// Whether a socket listens at this address now. `None` if the namespace is gone or cannot be read.
pub fn is_listening(socket: &Listen, namespaces: &mut Namespaces) -> Option<bool> {
    let pid = socket.actor.pid;
    let of_process = (netns_of(pid) == Some(socket.netns)).then(|| PathBuf::from(format!("/proc/{pid}/ns/net")));
    let path = of_process.or_else(|| namespaces.path_within(socket.netns, SLOW_AGE));
    let find = || {
        let mut found = false;
        let read = dump(LISTEN, socket.addr.port(), |it| found |= it.local == socket.addr);
        (found || read.is_ok()).then_some(found)
    };
    in_netns(&path?, find).ok()?
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
        let mut socket = Listen { netns, addr, actor, begins: true, bound: false };
        assert_eq!(is_listening(&socket, &mut namespaces), Some(true));
        let nobodys = Listen { netns: Netns(1), ..socket.clone() };
        assert_eq!(is_listening(&nobodys, &mut namespaces), None, "nobody's namespace");
        socket.actor.pid = 0;
        assert_eq!(is_listening(&socket, &mut namespaces), Some(true), "another process of the namespace leads there");
        drop(listener);
        assert_eq!(is_listening(&socket, &mut namespaces), Some(false));
    }
}
