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

/// What `tracer explain` and the label pages say.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// One line.
    pub title: &'static str,
    /// What happened.
    pub meaning: &'static str,
    /// What decides it.
    pub evidence: &'static str,
    /// What looks alike, and how it is told apart.
    pub lookalikes: &'static str,
    /// What mends it.
    pub mend: &'static str,
}

impl Label {
    /// All labels, nearest cause first.
    pub const ALL: &[Self] = &[
        Self::NodeportEphemeralCollision,
        Self::LoopbackDown,
        Self::FirewallDrop,
        Self::FirewallReject,
        Self::ConnectionRefused,
        Self::HandshakeRst,
        Self::MidStreamRst,
        Self::SlowResponse,
        Self::TlsEofNoise,
        Self::Unexplained,
    ];

    /// The name in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeportEphemeralCollision => "nodeport_ephemeral_collision",
            Self::LoopbackDown => "loopback_down",
            Self::FirewallDrop => "firewall_drop",
            Self::FirewallReject => "firewall_reject",
            Self::ConnectionRefused => "connection_refused",
            Self::HandshakeRst => "handshake_rst",
            Self::MidStreamRst => "mid_stream_rst",
            Self::SlowResponse => "slow_response",
            Self::TlsEofNoise => "tls_eof_noise",
            Self::Unexplained => "unexplained",
        }
    }

    /// The label of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|label| label.name() == name)
    }

    /// Its page.
    #[must_use]
    pub const fn page(self) -> &'static Page {
        &Page {
            title: "stub title",
            meaning: "stub meaning",
            evidence: "stub evidence",
            lookalikes: "stub lookalikes",
            mend: "stub mend",
        }
    }
}
