//! The labels: one row each, from which `tracer explain`, the label pages and the JSON Schema are made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an operator is told about a label.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// One line.
    pub title: &'static str,
    /// What happened.
    pub meaning: &'static str,
    /// What decides it, and what each confidence rests on.
    pub evidence: &'static str,
    /// What looks the same from outside and gets another label.
    pub lookalikes: &'static str,
    /// What mends it.
    pub mend: &'static str,
}

/// Declares the labels: variant, name, page.
macro_rules! labels {
    ($($(#[$doc:meta])* $variant:ident = $name:literal { title: $title:expr, meaning: $meaning:expr, evidence: $evidence:expr, lookalikes: $look:expr, mend: $mend:expr $(,)? })*) => {
        /// The cause of a failed (or misleading) attempt. Once released, a name is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Label { $($(#[$doc])* $variant,)* }

        impl Label {
            /// Every label, in the order of decision.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in records.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The label of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// What an operator is told about it.
            #[must_use]
            pub const fn page(self) -> &'static Page {
                match self {
                    $(Self::$variant => &Page { title: $title, meaning: $meaning, evidence: $evidence, lookalikes: $look, mend: $mend },)*
                }
            }
        }
    };
}

labels! {
    /// The attempt's source port is a NodePort and IPVS took its SYN-ACK.
    NodeportEphemeralCollision = "nodeport_ephemeral_collision" {
        title: "the probe's source port is also a NodePort, and IPVS took the answer",
        meaning: "The kernel gave the probe a source port that is also a NodePort of this node. kube-proxy in IPVS mode has a \
            virtual service on every address of the node for it, so the pod's SYN-ACK, which is addressed to that port, was taken for \
            new traffic to the Service and sent to one of its backends. The prober never sees an answer: it retransmits its SYN and \
            times out. A capture in the pod shows a RST that seems to come from the kubelet; it comes from the backend, whose listener \
            does not know the SYN-ACK, and IPVS translates it back.",
        evidence: "proven: `ip_vs_nat_xmit`, or `ip_vs_leave` for a Service without backends, on a SYN-ACK addressed to the attempt's own \
            source address and port. likely (no function probes on this kernel): the source port is a virtual service of /proc/net/ip_vs \
            and a backend of it answered the same pod's SYN-ACK with a RST from a listening socket. possible: the source port is in that table and the handshake \
            stayed without an answer.",
        lookalikes: "The same coincidence under kube-proxy's iptables or nftables mode is harmless (the SYN-ACK belongs to a known conntrack \
            entry) and gets no label. A SYN-ACK dropped by a rule is `firewall_drop`. A client that dials the NodePort on purpose sends a SYN, not a SYN-ACK.",
        mend: "sysctl -w net.ipv4.ip_local_reserved_ports=<NodePort range>, or move net.ipv4.ip_local_port_range off it; make it permanent in /etc/sysctl.d.",
    }
    /// `lo` of the attempt's namespace is down and its route goes over it.
    LoopbackDown = "loopback_down" {
        title: "the loopback device of the node is down",
        meaning: "The kubelet dialled an address of its own node (127.0.0.1, or the node's address, which Linux delivers over `lo` too), and \
            `lo` in that network namespace is down. Every such probe times out although the process is healthy. It is typically set down by a CNI \
            plugin's DEL that ran in the wrong network namespace: a recorded /proc/PID/ns/net whose PID has meanwhile been given to a host process.",
        evidence: "proven: a SYN of this attempt was dropped on a loopback device whose IFF_UP is clear, in the attempt's own namespace. likely: \
            the node's link table says `lo` is down and the attempt, to an address of the node, had no answer. The culprit is the process in \
            whose context `lo` was set down (`__dev_notify_flags` or `qdisc_reset`), with its ancestors and the namespace path it had opened.",
        lookalikes: "`lo` down in a pod's namespace does not concern probes of that pod. A rule that drops on `lo` is `firewall_drop`. Nobody listening is `connection_refused`.",
        mend: "ip link set lo up (in the namespace named in the verdict); then update the container runtime or plugin named as culprit, which used a stale namespace path.",
    }
    /// A netfilter rule answered for this flow with a RST or an ICMP error.
    FirewallReject = "firewall_reject" {
        title: "a firewall rule rejected the connection",
        meaning: "A netfilter rule (iptables REJECT, nftables reject) in the node's or the pod's network namespace answered the SYN with a RST or an \
            ICMP error and dropped it. To the prober this looks exactly like nobody listening: connection refused.",
        evidence: "proven: netfilter dropped this attempt's SYN (`kfree_skb` NETFILTER_DROP; on 5.10 its location) and the prober received a RST for it, or \
            the kernel sent an ICMP port-unreachable error for it (the TCP stack itself never sends that one for a SYN).",
        lookalikes: "Nobody listening gives a RST by the target's own stack: `connection_refused`. A dropped SYN without any answer is `firewall_drop`.",
        mend: "Find the rule in the namespace named in the verdict (nft list ruleset; iptables-save), and allow the node's address in that chain.",
    }
    /// A netfilter rule dropped a packet of this flow.
    FirewallDrop = "firewall_drop" {
        title: "a firewall rule dropped the probe's packets",
        meaning: "A netfilter rule in the node's or the pod's network namespace dropped a packet that this attempt needs: its SYN, the SYN-ACK, or data. The prober times out.",
        evidence: "proven: `kfree_skb` with reason NETFILTER_DROP (on 5.10: at `nf_hook_slow` or `nft_do_chain`) for a packet of this attempt's own flow, and no answer made by netfilter for it.",
        lookalikes: "With an answer it is `firewall_reject`. A drop by reverse-path filter, queue or routing has another reason and is not this label.",
        mend: "Allow the node's address in the chain of the namespace named in the verdict (nft list ruleset; iptables-save -c shows which counter rises).",
    }
    /// The target's kernel has nobody listening on that address and port.
    ConnectionRefused = "connection_refused" {
        title: "nobody listens on that address and port",
        meaning: "The SYN reached the target's network namespace and its TCP stack found no socket for it, so it answered with a RST.",
        evidence: "proven: a RST without a socket (`tcp_send_reset` NO_SOCKET, or `tcp_v4_send_reset`/`tcp_v6_send_reset` with a null socket), or the SYN freed with \
            reason NO_SOCKET, for this attempt's own flow.",
        lookalikes: "A REJECT rule gives the same error to the prober: `firewall_reject`. A RST made by a middlebox: `handshake_rst`.",
        mend: "Let the process listen on that port and on the pod's address (not only 127.0.0.1), correct the probe's port, or give a slow start a startupProbe.",
    }
    /// Any other RST before ESTABLISHED.
    HandshakeRst = "handshake_rst" {
        title: "the handshake was reset, and not by the target's own stack for want of a listener",
        meaning: "The prober received a RST in SYN_SENT. No stack of this node sent it for want of a socket and no netfilter rule of this node made it: it came from a \
            middlebox, from a user-space network stack, from another node, or from a socket of the target for a reason the kernel names.",
        evidence: "proven: `tcp_receive_reset` on this attempt's own socket in SYN_SENT while every hook that sees this node's own RSTs and drops was in force and silent; \
            or `tcp_send_reset` with a socket and the kernel's reason. likely: one of those hooks is missing.",
        lookalikes: "`connection_refused` (RST without a socket by the target's stack), `firewall_reject` (RST made by netfilter).",
        mend: "Follow the path to the target: a proxy, virtual machine, load balancer or security appliance between prober and process answers for it.",
    }
    /// A RST after ESTABLISHED, before the answer.
    MidStreamRst = "mid_stream_rst" {
        title: "the connection was reset after it was established and before any answer",
        meaning: "The handshake went through; then a RST came before a single byte of an answer. Usually the application closed the socket with unread data, with SO_LINGER 0, or was killed.",
        evidence: "proven: `tcp_receive_reset` on this attempt's own socket after ESTABLISHED with no byte received; the sender, where it is on this node, by `tcp_send_reset` in its own context.",
        lookalikes: "A RST after (part of) an answer is no failure of the probe. A RST during the handshake is `handshake_rst`. A late answer that meets the prober's closed socket is a consequence of `slow_response`.",
        mend: "Look at the process named in the verdict: it closed the connection without reading the request (or was killed); or at the proxy in between.",
    }
    /// Request taken, no byte of an answer before the prober gave up.
    SlowResponse = "slow_response" {
        title: "the process took the request and gave no byte of an answer in time",
        meaning: "The connection was established at once and the request was acknowledged by the target's stack, but not a byte came back before the prober closed the connection at its timeout.",
        evidence: "proven: the prober's own socket left ESTABLISHED by its own close with its request sent and acknowledged and no byte received.",
        lookalikes: "An unacknowledged, retransmitted request is lost on the way and not this label. A RST is `mid_stream_rst`.",
        mend: "Raise timeoutSeconds above the handler's real latency, give the container more CPU, or make the health handler independent of slow work.",
    }
    /// A tcpSocket attempt that succeeded at a TLS listener.
    TlsEofNoise = "tls_eof_noise" {
        title: "a tcpSocket probe of a TLS port: the EOF in the server's log is this probe",
        meaning: "The attempt succeeded. It connected, sent no byte and closed, which is what a tcpSocket probe does; the server expects TLS and logs an EOF during the handshake. Nothing is wrong.",
        evidence: "likely: this attempt sent and received no byte, and a TLS ClientHello of another connection arrived at the same listener, or an HTTPS probe was answered by it. possible: another probe of the pod is to speak HTTPS to that port, and was not answered yet.",
        lookalikes: "A tcpSocket probe of a plain port leaves no such line and gets no label. A TLS handshake that began and was cut is a failure.",
        mend: "Use an httpGet probe with scheme HTTPS (or a gRPC probe), or filter that line from the server's log.",
    }
    /// None of these.
    Unexplained = "unexplained" {
        title: "the attempt failed and no evidence decides why",
        meaning: "The attempt failed and nothing that was seen decides the cause. That is an answer: the causes that the hooks in force would have shown are excluded.",
        evidence: "What was seen is listed, and so are the hooks that are missing on this kernel and the events that were lost.",
        lookalikes: "Every other label needs evidence that decides it; without it, it is this one.",
        mend: "Start from the evidence in the verdict. `tracer record FILE` keeps the observations: a report with that file can be replayed.",
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Label;

    #[test]
    fn names_round_trip_and_agree_with_serde() {
        for &label in Label::ALL {
            assert_eq!(Label::from_name(label.name()), Some(label));
            assert_eq!(serde_json::to_value(label).ok(), Some(serde_json::Value::from(label.name())));
        }
        assert_eq!(Label::from_name("no_such_label"), None);
    }
}
