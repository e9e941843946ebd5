//! What was sent to the core, so that an observation is sent again only when it changed.

use tokio::sync::mpsc::Sender;

use tracer_model::event::{Netns, NodePorts, ObservationKind};

/// The receiver is gone.
pub(super) struct Closed;

/// The observations that hold, and where the next ones go.
pub(super) struct Sent {
    last: Vec<ObservationKind>,
    tx: Sender<ObservationKind>,
}

impl Sent {
    /// `last` is known to the receiver of `tx`.
    pub(super) const fn new(last: Vec<ObservationKind>, tx: Sender<ObservationKind>) -> Self {
        Self { last, tx }
    }

    /// Sends an observation if it differs from the last one of its table.
    pub(crate) fn send(&mut self, kind: ObservationKind) -> Result<(), Closed> {
        let known = self.last.iter_mut().find(|last| is_same_table(last, &kind));
        match known {
            Some(known) if *known == kind => return Ok(()),
            Some(known) => known.clone_from(&kind),
            None => self.last.push(kind.clone()),
        }
        if let ObservationKind::Pods(known) = &kind {
            tracing::debug!("pods that are known now: {}", known.pods.len());
        }
        self.send_once(kind)
    }

    /// Sends an event, which is not remembered.
    pub(super) fn send_once(&self, kind: ObservationKind) -> Result<(), Closed> {
        self.tx.blocking_send(kind).map_err(|_| Closed)
    }

    /// Whether an observation of the same table was sent.
    pub(super) fn has(&self, kind: &ObservationKind) -> bool {
        self.last.iter().any(|last| is_same_table(last, kind))
    }

    /// Makes the next links be sent, even if they did not change.
    pub(super) fn forget_links(&mut self) {
        self.last.retain(|kind| !matches!(kind, ObservationKind::Links(_)));
    }

    /// The tables that had NodePorts and are no longer observed, each as an empty table.
    pub(super) fn emptied(&self, observations: &[ObservationKind]) -> Vec<ObservationKind> {
        let gone = |last: &&ObservationKind| {
            matches!(last, ObservationKind::NodePorts(_)) && !observations.iter().any(|kind| is_same_table(kind, last))
        };
        self.last.iter().filter(gone).filter_map(without_ports).collect()
    }

    /// The tables with their first NodePorts, each as an empty table, which is sent before the full one. Only tables of
    /// the namespace `tables_of` of the previous reading: of another, nobody knows whether it was empty.
    pub(super) fn newly_filled(
        &self,
        observations: &[ObservationKind],
        tables_of: Option<Netns>,
    ) -> Vec<ObservationKind> {
        let is_first = |kind: &&ObservationKind| {
            matches!(kind, ObservationKind::NodePorts(table) if Some(table.netns) == tables_of) && !self.has(kind)
        };
        observations.iter().filter(is_first).filter_map(without_ports).collect()
    }
}

/// A table of NodePorts without any.
fn without_ports(kind: &ObservationKind) -> Option<ObservationKind> {
    match kind {
        ObservationKind::NodePorts(NodePorts { netns, mode, .. }) => {
            Some(ObservationKind::NodePorts(NodePorts::new(*netns, *mode, Vec::new())))
        }
        _ => None,
    }
}

/// Whether one observation replaces the other.
fn is_same_table(left: &ObservationKind, right: &ObservationKind) -> bool {
    match (left, right) {
        (ObservationKind::NodePorts(left), ObservationKind::NodePorts(right)) => {
            left.mode == right.mode && left.netns == right.netns
        }
        (ObservationKind::ListTrouble(left), ObservationKind::ListTrouble(right)) => left.list == right.list,
        _ => std::mem::discriminant(left) == std::mem::discriminant(right),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use tracer_model::event::{NodePort, ProxyMode};

    #[test]
    fn a_table_that_had_no_node_ports_is_reported_as_empty_first() {
        let sent = |last: &[ObservationKind]| Sent::new(last.to_vec(), mpsc::channel(1).0);
        let port = NodePort { port: 30080, ..NodePort::default() };
        let table = |ports| ObservationKind::NodePorts(NodePorts::new(Netns(7), ProxyMode::Nftables, ports));
        let first = [table(vec![port])];
        assert_eq!(sent(&[]).newly_filled(&first, Some(Netns(7))), [table(Vec::new())]);
        assert_eq!(sent(&first).newly_filled(&first, Some(Netns(7))), [], "it had some already");
        for unknown in [None, Some(Netns(8))] {
            assert_eq!(sent(&[]).newly_filled(&first, unknown), [], "nobody knows what it had");
        }
    }

    #[test]
    fn an_observation_is_sent_once_until_it_changes_or_is_forgotten() {
        let (tx, mut rx) = mpsc::channel(4);
        let mut sent = Sent::new(Vec::new(), tx);
        let links = |netns| {
            ObservationKind::Links(tracer_model::event::Links { netns: Netns(netns), cookie: None, links: Vec::new() })
        };
        // A prober that comes back to its namespace: the last links that are reported are those of the node.
        for netns in [7, 8, 7] {
            for expected in [Some(links(netns)), None] {
                assert!(sent.send(links(netns)).is_ok());
                assert_eq!(rx.try_recv().ok(), expected);
            }
        }
        sent.forget_links();
        assert!(sent.send(links(7)).is_ok() && sent.has(&links(7)));
        assert_eq!(rx.try_recv().ok(), Some(links(7)));
    }
}
