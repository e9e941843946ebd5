//! One file for each label.

pub(super) mod connection_refused;
pub(super) mod firewall_drop;
pub(super) mod firewall_reject;
pub(super) mod handshake_rst;
pub(super) mod loopback_down;
pub(super) mod mid_stream_rst;
pub(super) mod nodeport_ephemeral_collision;
pub(super) mod slow_response;
pub(super) mod tls_eof_noise;
pub(super) mod unexplained;

use super::Case;
use super::finding::Finding;
use super::label::Label;
use crate::correlate::attempt::Phase;
use crate::event::{Netns, PacketDrop};

/// Hooks whose silence says that no stack of this node sent a RST and no rule dropped a packet.
const RST_AND_DROP_HOOKS: &[&str] = &["tcp_send_reset", "tcp_v4_send_reset", "tcp_v6_send_reset", "kfree_skb"];

/// The attempt never came past its handshake.
fn in_handshake(case: &Case<'_>) -> bool {
    case.attempt.established.is_none() && case.attempt.phase() != Phase::Established
}

/// The dropped packet went from the prober to the target.
fn outbound(case: &Case<'_>, drop: &PacketDrop) -> bool {
    drop.flow.dst == case.attempt.flow.dst
}

/// "in the node's namespace", "in the namespace of pod default/web", "in namespace 4026532000".
fn in_namespace(case: &Case<'_>, netns: Option<Netns>) -> String {
    let Some(inum) = netns else { return String::new() };
    match crate::enrich::netns_ref(inum, case.node).name.as_deref() {
        Some("host") => " in the node's network namespace".to_owned(),
        Some(pod) => format!(" in the network namespace of pod {pod}"),
        None => format!(" in network namespace {}", inum.0),
    }
}

/// The namespace a packet was dropped in as a command prefix for the remediation.
fn enter(case: &Case<'_>, netns: Option<Netns>) -> String {
    match netns {
        Some(inum) if case.node.netns() == Some(inum) => String::new(),
        Some(inum) => format!("in network namespace {} (lsns -t net; nsenter -t PID -n): ", inum.0),
        None => String::new(),
    }
}

/// Milliseconds with one decimal.
fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}
