//! Rules and routes of the node that somebody removes in bulk, of every kind.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::or_warn;
use tracer_model::event::{Netns, RulesFlushed};
use tracer_netfilter::flushes::TablesWatch;
use tracer_node::flushes::RoutingWatch;
use tracer_node::procfs::NodeNetns;

/// Listens to all of them. What cannot be listened to is left out, with a warning.
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

    /// Takes in what was reported. Never blocks.
    pub(super) fn hear(&mut self) {
        if let Some(routing) = &mut self.routing {
            routing.read_reports();
        }
        if let Some(tables) = &mut self.tables {
            tables.hear();
        }
    }

    /// When something is to be taken.
    pub(super) fn due(&self) -> Option<Instant> {
        let routing = self.routing.as_ref().and_then(RoutingWatch::due);
        routing.into_iter().chain(self.tables.as_ref().and_then(TablesWatch::due)).min()
    }

    /// What was removed in bulk and has not come back.
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
