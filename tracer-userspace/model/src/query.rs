//! What the core wants to know and only the node can tell.

use std::net::SocketAddr;

use crate::event::{Flow, Netns};

/// A question. Its answer arrives as a fact, or never: nothing waits for it forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    /// Whether this port speaks TLS: [`ObservationKind::TlsHello`](crate::event::Fact::TlsHello).
    Tls(u16),
    /// What the answers to this process say: [`ObservationKind::Answer`](crate::event::Fact::Answer) from now on.
    Answers(u32),
    /// Who uses up ephemeral ports: [`ObservationKind::PortPressure`](crate::event::Fact::PortPressure).
    Ports,
    /// Who holds this port of a namespace, if no listener does: [`ObservationKind::PortHolders`](crate::event::Fact::PortHolders).
    PortHolders(Netns, u16),
    /// What can drop a packet of this flow there: [`ObservationKind::Firewall`](crate::event::Fact::Firewall).
    Firewall(Netns, Flow),
    /// The state of a target: [`ObservationKind::Inspection`](crate::event::Fact::Inspection). Where nothing is awaited of it,
    /// the sockets of its pod: [`ObservationKind::PodSockets`](crate::event::ObservationKind::PodSockets).
    Target(TargetQuery),
}

/// A target, as it is reached from a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetQuery {
    pub from: Netns,
    pub target: SocketAddr,
    /// Where the pods of the node have its address, if that is one namespace.
    pub reported: Option<Netns>,
    pub awaited: Awaited,
    /// The prober's end of an attempt that is in trouble; absent: none is.
    pub peer: Option<SocketAddr>,
}

/// What an attempt waits for when its target is queried. The more urgent comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// Its handshake: the look may name what no event tells, and is asked for once.
    Handshake,
    /// An answer: it is looked at over and over, and what the look says comes beside the cause.
    Answer,
    /// Nothing: it is over. What is read serves the next attempt.
    Nothing,
}
