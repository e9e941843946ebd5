//! Processes that began or stopped to listen while tracer watched.

use tracer_model::event::{Listen, Netns};
use tracer_model::recent::Recent;

const MAX: usize = 4096;

/// The events of one port of a namespace.
#[derive(Clone, Debug)]
struct Port {
    /// The first begin; `None` if the first event was an end.
    first: Option<(u64, Listen)>,
    last: (u64, Listen),
}

/// Listeners by namespace and port.
#[derive(Clone, Debug, Default)]
pub struct Listeners {
    ports: Recent<(Netns, u16), Port, MAX>,
    /// Ports that a process has bound, and when. Whether it listens is not known yet.
    bound: Recent<(Netns, u16), u64, MAX>,
}

impl Listeners {
    pub(super) fn observe(&mut self, time: u64, listen: &Listen) {
        let key = (listen.netns, listen.addr.port());
        if listen.bound && listen.begins {
            return self.bound.insert(key, time);
        }
        let bound = self.bound.remove(&key);
        if listen.bound {
            return;
        }
        let since = bound.filter(|_| listen.begins);
        let event = (since.unwrap_or(time), listen.clone());
        match self.ports.get_mut(&key) {
            Some(port) => port.last = event,
            None => self.ports.insert(key, Port { first: listen.begins.then(|| event.clone()), last: event }),
        }
    }

    /// The namespace is gone, or another one has its number now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.ports.retain(|(at, _), _| *at != netns);
        self.bound.retain(|(at, _), _| *at != netns);
    }

    /// The last begin or end on a port.
    pub fn last(&self, netns: Netns, port: u16) -> Option<&(u64, Listen)> {
        self.ports.get(&(netns, port)).map(|port| &port.last)
    }

    /// The first begin on a port, if no earlier listener ended there.
    pub fn first(&self, netns: Netns, port: u16) -> Option<(u64, &Listen)> {
        self.ports.get(&(netns, port))?.first.as_ref().map(|(time, listen)| (*time, listen))
    }

    /// A process listens on the port or has listened there, or may do so.
    pub fn knows(&self, netns: Netns, port: u16) -> bool {
        self.ports.contains_key(&(netns, port)) || self.bound.contains_key(&(netns, port))
    }

    /// A process began or stopped to listen on the port at or after `from`, or may have done so.
    pub fn changed_since(&self, netns: Netns, port: u16, from: u64) -> bool {
        let bound = self.bound.get(&(netns, port)).is_some_and(|time| *time >= from);
        bound || self.last(netns, port).is_some_and(|(time, _)| *time >= from)
    }

    /// A process listens on some port of the namespace, since `from` or later.
    pub fn any_since(&self, netns: Netns, from: u64) -> bool {
        let mut ports = self.ports.range((netns, 0)..=(netns, u16::MAX));
        ports.any(|(_, port)| port.last.1.begins && port.last.0 >= from)
    }

    /// A process listens on some port of the namespace.
    pub fn any_in(&self, netns: Netns) -> bool {
        self.ports.range((netns, 0)..=(netns, u16::MAX)).any(|(_, port)| port.last.1.begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::Actor;

    fn listen(netns: u32, begins: bool) -> Listen {
        let actor = Actor { pid: 5, tid: 5, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None };
        Listen { netns: Netns(netns), addr: ([0, 0, 0, 0], 80).into(), actor, begins, bound: false }
    }

    #[test]
    fn a_port_that_is_bound_may_have_a_listener() {
        let mut listeners = Listeners::default();
        let bound = |begins| Listen { bound: true, ..listen(1, begins) };
        let first = |listeners: &Listeners| listeners.first(Netns(1), 80).map(|(time, _)| time);
        listeners.observe(1, &bound(true));
        assert!(listeners.knows(Netns(1), 80) && listeners.changed_since(Netns(1), 80, 1));
        assert!(first(&listeners).is_none() && !listeners.any_in(Netns(1)));
        listeners.observe(2, &bound(false));
        assert!(!listeners.knows(Netns(1), 80), "it does not listen");
        listeners.observe(3, &listen(1, true));
        assert_eq!(first(&listeners), Some(3), "it listens late");
        let mut listeners = Listeners::default();
        listeners.observe(1, &bound(true));
        listeners.observe(2, &listen(1, true));
        assert_eq!(first(&listeners), Some(1), "it listens since its bind");
        assert!(listeners.any_in(Netns(1)));
        listeners.observe(3, &listen(1, false));
        assert!(!listeners.any_in(Netns(1)) && listeners.knows(Netns(1), 80));
        assert_eq!(first(&listeners), Some(1), "its begin is kept");
    }
}
