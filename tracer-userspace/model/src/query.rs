//! The queries of the core to the node.

use std::net::SocketAddr;

use crate::event::{Flow, Netns, ServiceName};

/// A query to the node. Its answer arrives as an observation, or never: nothing waits for it without a limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    /// Whether this port speaks TLS: [`ObservationKind::TlsHello`](crate::event::ObservationKind::TlsHello).
    Tls(u16),
    /// The connects of this pod that fail, from now on:
    /// [`ObservationKind::PodConnectFailed`](crate::event::ObservationKind::PodConnectFailed).
    PodConnects(Netns),
    /// The answers to this process, from now on: [`ObservationKind::Answer`](crate::event::ObservationKind::Answer).
    Answers(u32),
    /// The processes that use up ephemeral ports:
    /// [`ObservationKind::PortPressure`](crate::event::ObservationKind::PortPressure).
    Ports,
    /// The limits of the container with this id, which has processes in this namespace:
    /// [`ObservationKind::Limits`](crate::event::ObservationKind::Limits).
    Limits(Netns, String),
    /// The connections that hold this port without a listener:
    /// [`ObservationKind::PortHolders`](crate::event::ObservationKind::PortHolders).
    PortHolders(Netns, u16),
    /// The programs of the device with this index:
    /// [`ObservationKind::DevicePrograms`](crate::event::ObservationKind::DevicePrograms).
    DevicePrograms(Netns, u32),
    /// The rules that can drop a packet of this flow:
    /// [`ObservationKind::Firewall`](crate::event::ObservationKind::Firewall).
    Firewall(Netns, Flow),
    /// The state of a target: [`ObservationKind::Inspection`](crate::event::ObservationKind::Inspection). With
    /// [`Awaited::Nothing`], the sockets of its pod:
    /// [`ObservationKind::PodSockets`](crate::event::ObservationKind::PodSockets).
    Target(TargetQuery),
    /// The endpoints of this Service, in the cluster API:
    /// [`ObservationKind::ServiceEndpoints`](crate::event::ObservationKind::ServiceEndpoints).
    Endpoints(ServiceName),
}

/// A target, as it is reached from a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetQuery {
    pub from: Netns,
    pub target: SocketAddr,
    /// The namespace of the pods with its address, if they share one.
    pub reported: Option<Netns>,
    pub awaited: Awaited,
    /// The prober's end of the attempt that waits or has failed; absent: there is none.
    pub peer: Option<SocketAddr>,
    /// The uid in the cgroups of the probed pod, if it is on the node's network and nobody listens on the target.
    pub pod: Option<String>,
}

/// What an attempt waits for when its target is queried, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// The handshake: queried once, as the inspection may show a cause that no event shows.
    Handshake,
    /// An answer: queried repeatedly. The result is listed beside the cause.
    Answer,
    /// Nothing, as it is over: the result helps with the next attempt.
    Nothing,
}
