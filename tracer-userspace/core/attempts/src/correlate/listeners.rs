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
pub struct Listeners(Recent<(Netns, u16), Port, MAX>);

impl Listeners {
    pub(super) fn observe(&mut self, time: u64, listen: &Listen) {
        let key = (listen.netns, listen.addr.port());
        let event = (time, listen.clone());
        match self.0.get_mut(&key) {
            Some(port) => port.last = event,
            None => self.0.insert(key, Port { first: listen.begins.then(|| event.clone()), last: event }),
        }
    }

    /// The namespace is gone, or another one has its number now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.0.retain(|(at, _), _| *at != netns);
    }

    /// The last begin or end on a port.
    pub fn last(&self, netns: Netns, port: u16) -> Option<&(u64, Listen)> {
        self.0.get(&(netns, port)).map(|port| &port.last)
    }

    /// The first begin on a port, if no earlier listener ended there.
    pub fn first(&self, netns: Netns, port: u16) -> Option<(u64, &Listen)> {
        self.0.get(&(netns, port))?.first.as_ref().map(|(time, listen)| (*time, listen))
    }

    /// A process listens on the port or has listened there.
    pub fn knows(&self, netns: Netns, port: u16) -> bool {
        self.0.contains_key(&(netns, port))
    }

    /// A process began or stopped to listen on the port at or after `from`.
    pub fn changed_since(&self, netns: Netns, port: u16, from: u64) -> bool {
        self.last(netns, port).is_some_and(|(time, _)| *time >= from)
    }

    /// A process listens on some port of the namespace, since `from` or later.
    pub fn any_since(&self, netns: Netns, from: u64) -> bool {
        let mut ports = self.0.range((netns, 0)..=(netns, u16::MAX));
        ports.any(|(_, port)| port.last.1.begins && port.last.0 >= from)
    }

    /// A process listens on some port of the namespace.
    pub fn any_in(&self, netns: Netns) -> bool {
        self.0.range((netns, 0)..=(netns, u16::MAX)).any(|(_, port)| port.last.1.begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::event::Actor;

    fn listen(netns: u32, begins: bool) -> Listen {
        let actor = Actor { pid: 5, tid: 5, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None };
        Listen { netns: Netns(netns), addr: ([0, 0, 0, 0], 80).into(), actor, begins }
    }

    #[test]
    fn the_port_with_the_oldest_event_is_dropped_first() {
        let mut listeners = Listeners::default();
        (1..=4096).for_each(|netns| listeners.observe(u64::from(netns), &listen(netns, true)));
        listeners.observe(5_000, &listen(1, false));
        listeners.observe(5_001, &listen(0, true));
        assert_eq!([0, 1, 2, 3].map(|netns| listeners.knows(Netns(netns), 80)), [true, true, false, true]);
        assert_eq!(listeners.first(Netns(1), 80).map(|(time, _)| time), Some(1), "its begin is kept");
        assert!(!listeners.any_in(Netns(1)) && listeners.any_in(Netns(3)));
    }
}
