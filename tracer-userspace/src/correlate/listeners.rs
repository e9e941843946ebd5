//! Who began and ceased to listen where, as the kernel told while the tracer watched.

use std::collections::BTreeMap;

use crate::event::{Listen, Netns};

/// Ports kept.
const MAX: usize = 4096;

/// What is known of one port of a namespace.
#[derive(Clone, Debug)]
struct Port {
    /// The first begin that was seen; `None` if the first event was an end.
    first: Option<(u64, Listen)>,
    last: (u64, Listen),
}

/// Listeners by namespace and port.
#[derive(Clone, Debug, Default)]
pub struct Listeners(BTreeMap<(Netns, u16), Port>);

impl Listeners {
    pub(super) fn see(&mut self, time: u64, listen: &Listen) {
        let key = (listen.netns, listen.addr.port());
        if self.0.len() >= MAX && !self.0.contains_key(&key) {
            self.forget_oldest();
        }
        let event = (time, listen.clone());
        self.0
            .entry(key)
            .and_modify(|port| port.last = event.clone())
            .or_insert_with(|| Port { first: listen.begins.then(|| event.clone()), last: event });
    }

    fn forget_oldest(&mut self) {
        let oldest = self.0.iter().min_by_key(|(_, port)| port.last.0).map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.0.remove(&key);
        }
    }

    /// The namespace is gone, or another one by now.
    pub(super) fn forget(&mut self, netns: Netns) {
        self.0.retain(|(at, _), _| *at != netns);
    }

    /// The last begin or end on a port.
    #[must_use]
    pub fn last(&self, netns: Netns, port: u16) -> Option<&(u64, Listen)> {
        self.0.get(&(netns, port)).map(|port| &port.last)
    }

    /// The first that was seen to begin there, if nobody had listened before it.
    #[must_use]
    pub fn first(&self, netns: Netns, port: u16) -> Option<(u64, &Listen)> {
        self.0.get(&(netns, port))?.first.as_ref().map(|(time, listen)| (*time, listen))
    }

    /// Somebody has been seen to listen there, now or before.
    #[must_use]
    pub fn knows(&self, netns: Netns, port: u16) -> bool {
        self.0.contains_key(&(netns, port))
    }

    /// Somebody began or ceased to listen there at or after `from`.
    #[must_use]
    pub fn heard_since(&self, netns: Netns, port: u16, from: u64) -> bool {
        self.last(netns, port).is_some_and(|(time, _)| *time >= from)
    }

    /// Somebody listens in the namespace since `from` or later, on whatever port.
    #[must_use]
    pub fn any_since(&self, netns: Netns, from: u64) -> bool {
        let mut ports = self.0.range((netns, 0)..=(netns, u16::MAX));
        ports.any(|(_, port)| port.last.1.begins && port.last.0 >= from)
    }

    /// Somebody listens in the namespace, on whatever port.
    #[must_use]
    pub fn any_in(&self, netns: Netns) -> bool {
        self.0.range((netns, 0)..=(netns, u16::MAX)).any(|(_, port)| port.last.1.begins)
    }
}
