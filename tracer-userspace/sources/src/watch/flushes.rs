//! Watches for rules and routes of the node that somebody removes in bulk.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::or_warn;
use tracer_model::event::RulesFlushed;
use tracer_netfilter::flushes::TablesWatch;
use tracer_node::flushes::RoutingWatch;
use tracer_node::procfs::NodeNetns;

/// The subscriptions. One that cannot be made is left out, with a warning.
#[derive(Default)]
pub(super) struct Flushes {
    /// The node of the rules and routes.
    node: Option<NodeNetns>,
    routing: Option<RoutingWatch>,
    tables: Option<TablesWatch>,
}

impl Flushes {
    pub(super) fn open(node: &NodeNetns) -> Self {
        let (routing, tables) = (or_warn(RoutingWatch::open(node)), or_warn(TablesWatch::open(node)).flatten());
        Self { node: Some(node.clone()), routing, tables }
    }

    /// Subscribes again if the node is another namespace now. A prober that restarts has a new process in the same one.
    pub(super) fn follow(&mut self, node: Option<&NodeNetns>) {
        let netns = |node: Option<&NodeNetns>| node.map(|node| node.netns);
        if netns(self.node.as_ref()) != netns(node) {
            *self = node.map(Self::open).unwrap_or_default();
        }
        self.node = node.cloned();
    }

    /// Takes in the kernel's reports. Never blocks.
    pub(super) fn read_reports(&mut self) {
        let Some(node) = &self.node else { return };
        if let Some(routing) = &mut self.routing {
            routing.read_reports(node);
        }
        if let Some(tables) = &mut self.tables {
            tables.read_reports();
        }
    }

    /// When the next flush can be taken.
    pub(super) fn due(&self) -> Option<Instant> {
        let routing = self.routing.as_ref().and_then(RoutingWatch::due);
        routing.into_iter().chain(self.tables.as_ref().and_then(TablesWatch::due)).min()
    }

    /// The rules that were removed in bulk and have not come back.
    pub(super) fn take(&mut self) -> Vec<RulesFlushed> {
        let Some(node) = &self.node else { return Vec::new() };
        let routing = self.routing.as_mut().map(|watch| watch.take(node)).unwrap_or_default();
        let tables = self.tables.as_mut().map(|watch| watch.take(node)).unwrap_or_default();
        [routing, tables].concat()
    }

    /// For `poll(2)`.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let routing = self.routing.as_ref().map(RoutingWatch::as_fd);
        routing.into_iter().chain(self.tables.iter().flat_map(TablesWatch::fds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_node::procfs::node_netns;

    #[test]
    fn the_process_of_the_node_changes_without_a_new_subscription() {
        let node = node_netns(&[]).expect("own namespace");
        let mut flushes = Flushes { node: Some(node.clone()), ..Flushes::default() };
        let restarted = NodeNetns { pid: node.pid + 1, ..node };
        flushes.follow(Some(&restarted));
        assert_eq!((flushes.node.as_ref(), flushes.routing.is_none()), (Some(&restarted), true));
        flushes.follow(None);
        assert_eq!(flushes.node, None);
    }
}
