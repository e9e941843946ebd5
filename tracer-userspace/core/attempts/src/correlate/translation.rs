//! Source NAT: after it, the packets of an attempt have another source address and the same source port.

use std::net::SocketAddr;

use super::attempt::Attempt;
use tracer_model::event::{Flow, ObservationKind, Via};

impl Attempt {
    /// The translated client address in the packet of this observation.
    pub fn translated_in(&self, kind: &ObservationKind) -> Option<SocketAddr> {
        match kind {
            ObservationKind::Drop(drop) => self.translated(drop.flow),
            // A packet that was found by its destination only is of an IPVS backend's own flow, without the client's
            // address.
            ObservationKind::ResetSent(reset) if reset.via != Via::Destination => self.translated(reset.flow),
            ObservationKind::Icmp(icmp) => self.translated(icmp.flow),
            _ => None,
        }
    }

    /// The translated client address in a packet of this flow.
    pub fn translated(&self, packet: Flow) -> Option<SocketAddr> {
        let (own, target) = (self.flow.src, self.flow.dst);
        let client = match (packet.dst == target, packet.src == target) {
            (true, false) => packet.src,
            (false, true) => packet.dst,
            _ => return None,
        };
        let same_port = own.port() == 0 || own.port() == client.port();
        (same_port && client.ip() != own.ip() && !own.ip().is_unspecified()).then_some(client)
    }
}
