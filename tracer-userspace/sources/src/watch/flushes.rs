//! Watches for rules and routes of the node that somebody removes in bulk.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::or_warn;
use tracer_model::event::{Netns, RulesFlushed};
use tracer_netfilter::flushes::TablesWatch;
use tracer_node::flushes::RoutingWatch;
use tracer_node::procfs::NodeNetns;

/// The subscriptions. One that cannot be made is left out, with a warning.
#[derive(Default)]
pub(super) struct Flushes {
    /// The namespace of the rules and routes.
    pub(super) netns: Option<Netns>,
    routing: Option<RoutingWatch>,
    tables: Option<TablesWatch>,
}

impl Flushes {
    pub(super) fn open(node: &NodeNetns) -> Self {
        let (routing, tables) = (or_warn(RoutingWatch::open(node)), or_warn(TablesWatch::open(node)).flatten());
        Self { netns: Some(node.netns), routing, tables }
    }

    /// Takes in the kernel's reports. Never blocks.
    pub(super) fn read_reports(&mut self) {
        if let Some(routing) = &mut self.routing {
            routing.read_reports();
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
        let mut flushed = self.routing.as_mut().map(RoutingWatch::take).unwrap_or_default();
        flushed.extend(self.tables.as_mut().map(TablesWatch::take).unwrap_or_default());
        flushed
    }

    /// For `poll(2)`.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let routing = self.routing.as_ref().map(RoutingWatch::as_fd);
        routing.into_iter().chain(self.tables.iter().flat_map(TablesWatch::fds))
    }
}
