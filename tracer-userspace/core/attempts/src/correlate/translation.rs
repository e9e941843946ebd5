//! A source NAT on an attempt's way: its packets have another source address behind it, and the port as it was.

use std::net::SocketAddr;

use super::attempt::Attempt;
use tracer_model::event::{Flow, ObservationKind, Via};

impl Attempt {
    /// The client's side of a packet that this tells of, where it was translated.
    pub fn translated_in(&self, kind: &ObservationKind) -> Option<SocketAddr> {
        match kind {
            ObservationKind::Drop(drop) => self.translated(drop.flow),
            // By the destination alone it is an IPVS backend's own flow: nothing of it is the client's.
            ObservationKind::ResetSent(reset) if reset.via != Via::Destination => self.translated(reset.flow),
            ObservationKind::Icmp(icmp) => self.translated(icmp.flow),
            _ => None,
        }
    }

    /// The same of a packet of this flow.
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
