//! Address translation. After source NAT, the packets of an attempt have another source address and the same source
//! port. After a redirect, they have another port of the target.

use std::net::{IpAddr, SocketAddr};

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

    /// The flow of a packet from the client's side. Behind a redirect, the target has another port, behind a Service
    /// another address. A packet to another address that was found by its socket may have a translated source port, too.
    pub(super) fn seen_by_client(&self, packet: Flow, via: Via) -> Option<Flow> {
        let (own, target) = (self.flow.src.ip(), self.flow.dst);
        let both = [packet, packet.reversed()];
        let is_target = |ip: IpAddr| ip == target.ip() || ip != own && via != Via::Socket;
        let redirected = |it: &&Flow| it.src.ip() == own && is_target(it.dst.ip()) && own != target.ip();
        both.iter().find(|it| it.dst == target).or_else(|| both.iter().find(redirected)).copied()
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
