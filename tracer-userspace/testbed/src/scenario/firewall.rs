//! Netfilter drops or rejects the SYN, its answer or the request, in the pod or on the node.

use anyhow::Result;
use tracer_model::record::Cause;

use super::Rules::{Input, Iptables, Legacy, Nft};
use super::{Fixture, Need, Scenario};
use crate::pods::{HTTP, TLS};
use crate::probe::{Ending, Kind};

const DROP: Option<Cause> = Some(Cause::FirewallDrop);
const REJECT: Option<Cause> = Some(Cause::FirewallReject);

pub(super) const ALL: &[Scenario] = &[
    drops("firewall_drop_pod_nft").in_pod(Input("tcp dport 8080 drop;")).smoke().and_v6_on_every_kernel(),
    drops("firewall_drop_request").in_pod(Input("tcp dport 8080 tcp flags & psh == psh drop;")),
    drops("firewall_drop_node_output")
        .on_node(Nft("table ip hostfw { chain out { type filter hook output priority 0; ip daddr {ip} drop; }; }")),
    drops("firewall_drop_syn_ack").on_node(Nft("table ip hostfw { chain in { type filter hook input priority 0; \
         ip saddr {ip} tcp flags & (syn|ack) == syn|ack drop; }; }")),
    Scenario::new("firewall_drop_tls_answer", DROP, tls_answer).needs(&[Need::Nft]),
    drops("firewall_drop_iptables_nft").in_pod(Iptables("*filter\n-A INPUT -p tcp --dport 8080 -j DROP\nCOMMIT\n")),
    drops("firewall_drop_iptables_legacy").in_pod(Legacy("*filter\n-A INPUT -p tcp --dport 8080 -j DROP\nCOMMIT\n")),
    // As Istio's TPROXY mode does it, while the sidecar does not run: no transparent socket listens on the proxy's port.
    drops("firewall_drop_tproxy")
        .in_pod(Iptables("*mangle\n-A PREROUTING -p tcp --dport 8080 -j TPROXY --on-port 15006\nCOMMIT\n"))
        .needs(&[Need::TransparentProxy])
        .names(&["listens on its port 15006 with IP_TRANSPARENT"]),
    // As after the end of an intrusion prevention system's process.
    drops("firewall_drop_queue_without_reader")
        .in_pod(Iptables("*filter\n-A INPUT -p tcp --dport 8080 -j NFQUEUE --queue-num 7\nCOMMIT\n"))
        .names(&["(NFQUEUE), and no process reads that queue, or it is full"])
        .own(),
    rejects("firewall_reject_iptables_reset", Ending::Refused).in_pod(Iptables(RESET)),
    rejects("firewall_reject_legacy_reset", Ending::Refused).in_pod(Legacy(RESET)),
    rejects("firewall_reject_pod_nft_reset", Ending::Refused)
        .in_pod(Input("tcp dport 8080 reject with tcp reset;"))
        .and_v6(),
    rejects("firewall_reject_request", Ending::Reset)
        .in_pod(Input("tcp dport 8080 tcp flags & psh == psh reject with tcp reset;")),
    rejects("firewall_reject_ack", Ending::Reset)
        .in_pod(Input("tcp dport 8080 tcp flags & (syn | psh | ack) == ack reject with tcp reset;"))
        .own(),
    rejects("firewall_reject_pod_icmp", Ending::Refused)
        .in_pod(Input("tcp dport 8080 reject with icmpx port-unreachable;"))
        .on_every_kernel()
        .and_v6_on_every_kernel(),
    // The node drops the RST with which the pod rejects the SYN, so the prober waits in vain.
    rejects("firewall_reject_lost_reset", Ending::Timeout)
        .in_pod(Input("tcp dport 8080 reject with tcp reset;"))
        .on_node(Input("ip saddr {ip} tcp flags & rst == rst drop;"))
        .names(&["with a RST, which netfilter at INPUT on the node drops: the prober gets no answer"]),
    // Nobody listens, and the node drops the RST of the pod's stack.
    Scenario::probed("connection_refused_lost_reset", Some(Cause::ConnectionRefused), "http", Ending::Timeout)
        .without_server()
        .on_node(Input("ip saddr {ip} tcp flags & rst == rst drop;"))
        .names(&["netfilter at INPUT on the node drops the RST of the refusal: the prober gets no answer"])
        .own(),
    // netfilter makes the ICMP error itself, without the stack's `icmp_send`.
    rejects("firewall_reject_netdev_icmp", Ending::Error)
        .succeeds_first()
        .in_pod(Nft("table netdev hostfw { chain arrival { type filter hook ingress device eth0 priority 0;
           tcp dport 8080 reject with icmp type host-prohibited; }; }"))
        .names(&["with an answer that tracer cannot see here; it is the rule with handle"])
        .own(),
    // The rule rejects, and the rate limit suppresses its ICMP error. A token bucket starts with 60 s (`inet_getpeer`),
    // and an error costs 600 s here.
    rejects("firewall_reject_held_back", Ending::Timeout)
        .fault(|s, pod| s.inside(pod)?.sysctl(&[("ipv4/icmp_ratelimit", "600000")]))
        .in_pod(Input("tcp dport 8080 reject with icmp port-unreachable;")),
    rejects("firewall_reject_node_icmp", Ending::Refused)
        .on_node(Nft("table ip hostfw { chain out { type filter hook output priority 0; \
         ip daddr {ip} tcp dport 8080 reject with icmp port-unreachable; }; }")),
    // As if fail2ban on the node had banned the pod's address. The pod gets the RST, the prober gets nothing.
    rejects("firewall_reject_answer", Ending::Timeout)
        .on_node(Nft("table ip hostfw { chain in { type filter hook input priority 0; \
         ip saddr {ip} tcp sport 8080 reject with tcp reset; }; }")),
    rejects("firewall_reject_node_reset", Ending::Refused)
        .on_node(Nft("table ip hostfw { chain out { type filter hook output priority 0; \
         ip daddr {ip} tcp dport 8080 reject with tcp reset; }; }")),
    Scenario::new("firewall_drop_limit", DROP, limited).needs(&[Need::Nft]),
    drops("firewall_drop_share")
        .in_pod(Input("tcp dport 8080 numgen inc mod 1000 < 999 drop;"))
        .names(&["chance, or a count of packets, decides which packets it takes: only some attempts fail"]),
    Scenario::new("firewall_drop_own_port", DROP, own_port).needs(&[Need::Nft]),
    Scenario::new("firewall_drop_on_lo", DROP, on_lo).needs(&[Need::Nft]),
    // As with gRPC's usual port 50051: the port of the target is above the source port.
    drops("firewall_drop_source_below_target")
        .in_pod(Input("tcp dport 9 drop comment \"other\"; tcp dport 8080 drop comment \"this\";"))
        .fault(|s, pod| s.node.set_source_port(pod.port() - 1))
        .names(&["it is the rule with handle", "\"this\" in chain"])
        .own(),
];

/// Rules drop what a healthy pod gets or sends.
pub(super) const fn drops(name: &'static str) -> Scenario {
    Scenario::probed(name, DROP, "http", Ending::Timeout)
}

/// Rules reject it.
const fn rejects(name: &'static str, how: Ending) -> Scenario {
    Scenario::probed(name, REJECT, "http", how)
}

const RESET: &str = "*filter\n-A INPUT -p tcp --dport 8080 -j REJECT --reject-with tcp-reset\nCOMMIT\n";

/// The rule comes after the handshake of TLS, while the server works on its answer.
fn tls_answer(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("tls-slow:400", TLS)?;
    fixture.fails_while(pod, fixture.options.probe_timeout, &[Ending::Timeout], |fixture| {
        fixture.wait_for_request(pod)?;
        fixture.node.node.input_rule(&format!("tcp sport {TLS} ip saddr {} drop;", pod.ip()))
    })
}

/// A rule against floods of SYNs: the first probe succeeds.
fn limited(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.input_rule(pod, "tcp dport 8080 tcp flags syn limit rate over 1/hour burst 1 packets drop;")?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.mentions(&["a limit of the rate decides which packets it takes: only some attempts fail"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A rule for the pod's own port of the bridge: it drops no copy for another pod.
fn own_port(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let own = fixture.pod_of(pod)?.index;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.node.node.nft(&format!(
        "table bridge ports {{ chain out {{ type filter hook output priority 0; oifname v{own} ip protocol tcp drop; }}; }}\n"
    ))?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A rule drops on `lo`. It looks like a `lo` that is down.
fn on_lo(fixture: &mut Fixture<'_>) -> Result<()> {
    let target = fixture.serving_on_node("http")?;
    fixture.succeeds(Kind::Http, target)?;
    fixture.node.node.input_rule("iif lo tcp dport 10256 drop;")?;
    fixture.fails(Kind::Http, target, Ending::Timeout)
}
