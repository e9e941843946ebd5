//! The labels: one row each, from which `tracer explain`, the label pages and the JSON Schema are made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cause of a failed (or misleading) attempt. Once released, a name is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The attempt's source port is a NodePort and IPVS took its SYN-ACK.
    NodeportEphemeralCollision,
    /// `lo` of the attempt's namespace is down and its route goes over it.
    LoopbackDown,
    /// A netfilter rule dropped a packet of this flow.
    FirewallDrop,
    /// A netfilter rule answered for this flow with a RST or an ICMP error.
    FirewallReject,
    /// The target's kernel has nobody listening on that address and port.
    ConnectionRefused,
    /// Any other RST before the connection was established.
    HandshakeRst,
    /// A RST after the connection was established and before the answer.
    MidStreamRst,
    /// Request taken, no byte of an answer before the prober gave up.
    SlowResponse,
    /// A tcpSocket attempt that succeeded at a TLS listener: the EOF in the server's log is this probe.
    TlsEofNoise,
    /// None of these.
    Unexplained,
}
