//! Netfilter drops or rejects the SYN, its answer or the request, in the pod or on the node.

use anyhow::Result;
use tracer_model::record::Cause;

use super::needs::TPROXY;
use super::{Fixture, Need, Scenario};
use crate::pods::{HTTP, TLS};
use crate::probe::{Ending, Kind};

const DROP: Option<Cause> = Some(Cause::FirewallDrop);
const REJECT: Option<Cause> = Some(Cause::FirewallReject);

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("firewall_drop_pod_nft", DROP, |s| pod_nft(s, "drop", Ending::Timeout))
        .needs(&[Need::Nft])
        .smoke()
        .and_v6_on_every_kernel(),
    Scenario::new("firewall_drop_request", DROP, |s| pod_nft(s, "tcp flags & psh == psh drop", Ending::Timeout))
        .needs(&[Need::Nft]),
    Scenario::new("firewall_drop_node_output", DROP, |s| node_nft(s, "output", "daddr {ip} drop", Ending::Timeout))
        .needs(&[Need::Nft]),
    Scenario::new("firewall_drop_syn_ack", DROP, |s| {
        node_nft(s, "input", "saddr {ip} tcp flags & (syn|ack) == syn|ack drop", Ending::Timeout)
    })
    .needs(&[Need::Nft]),
    Scenario::new("firewall_drop_tls_answer", DROP, tls_answer).needs(&[Need::Nft]),
    Scenario::new("firewall_drop_iptables_nft", DROP, |s| iptables(s, "iptables-nft", &["DROP"], Ending::Timeout))
        .needs(&[Need::Iptables]),
    Scenario::new("firewall_drop_iptables_legacy", DROP, |s| {
        iptables(s, "iptables-legacy", &["DROP"], Ending::Timeout)
    })
    .needs(&[Need::LegacyIptables]),
    Scenario::new("firewall_drop_tproxy", DROP, tproxy).needs(&[Need::TransparentProxy]),
    Scenario::new("firewall_reject_iptables_reset", REJECT, |s| iptables(s, "iptables-nft", RESET, Ending::Refused))
        .needs(&[Need::Iptables]),
    Scenario::new("firewall_reject_legacy_reset", REJECT, |s| iptables(s, "iptables-legacy", RESET, Ending::Refused))
        .needs(&[Need::LegacyIptables]),
    Scenario::new("firewall_reject_pod_nft_reset", REJECT, |s| pod_nft(s, RST, Ending::Refused))
        .needs(&[Need::Nft])
        .and_v6(),
    Scenario::new("firewall_reject_request", REJECT, |s| {
        pod_nft(s, "tcp flags & psh == psh reject with tcp reset", Ending::Reset)
    })
    .needs(&[Need::Nft]),
    Scenario::new("firewall_reject_ack", REJECT, |s| {
        pod_nft(s, "tcp flags & (syn | psh | ack) == ack reject with tcp reset", Ending::Reset)
    })
    .own()
    .needs(&[Need::Nft]),
    Scenario::new("firewall_reject_pod_icmp", REJECT, |s| pod_nft(s, ICMP, Ending::Refused))
        .needs(&[Need::Nft])
        .on_every_kernel()
        .and_v6_on_every_kernel(),
    Scenario::new("firewall_reject_lost_reset", REJECT, lost_reset).needs(&[Need::Nft]),
    Scenario::new("connection_refused_lost_reset", Some(Cause::ConnectionRefused), lost_refusal)
        .own()
        .needs(&[Need::Nft]),
    Scenario::new("firewall_reject_netdev_icmp", REJECT, netdev_icmp).own().needs(&[Need::Nft]),
    Scenario::new("firewall_reject_held_back", REJECT, held_back).needs(&[Need::Nft]),
    Scenario::new("firewall_reject_node_icmp", REJECT, |s| {
        node_nft(s, "output", "daddr {ip} tcp dport 8080 reject with icmp port-unreachable", Ending::Refused)
    })
    .needs(&[Need::Nft]),
    // As if fail2ban on the node had banned the pod's address. The pod gets the RST, the prober gets nothing.
    Scenario::new("firewall_reject_answer", REJECT, |s| {
        node_nft(s, "input", "saddr {ip} tcp sport 8080 reject with tcp reset", Ending::Timeout)
    })
    .needs(&[Need::Nft]),
    Scenario::new("firewall_reject_node_reset", REJECT, |s| {
        node_nft(s, "output", "daddr {ip} tcp dport 8080 reject with tcp reset", Ending::Refused)
    })
    .needs(&[Need::Nft]),
    Scenario::new("firewall_drop_own_port", DROP, own_port).needs(&[Need::Nft]),
    Scenario::new("firewall_drop_on_lo", DROP, on_lo).needs(&[Need::Nft]),
    Scenario::new("firewall_drop_source_below_target", DROP, source_below_target).own().needs(&[Need::Nft]),
];

/// Rules of nftables that answer with an ICMP error and with a RST.
const ICMP: &str = "reject with icmpx port-unreachable";
const RST: &str = "reject with tcp reset";
/// A target of iptables that answers with a RST.
const RESET: &[&str] = &["REJECT", "--reject-with", "tcp-reset"];

/// A rule for the server's port in the pod's own namespace. The server listens.
fn pod_nft(fixture: &mut Fixture<'_>, rule: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.input_rule(pod, &format!("tcp dport {HTTP} {rule};"))?;
    fixture.fails(Kind::Http, pod, how)
}

/// The rule rejects, and the rate limit suppresses its ICMP error. A token bucket starts with 60 s (`inet_getpeer`),
/// and an error costs 600 s here.
fn held_back(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let inside = fixture.inside(pod)?;
    inside.sysctl(&[("ipv4/icmp_ratelimit", "600000")])?;
    inside.input_rule("tcp dport 8080 reject with icmp port-unreachable;")?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The node drops the RST with which the pod rejects the SYN, so the prober waits in vain.
fn lost_reset(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.input_rule(pod, "tcp dport 8080 reject with tcp reset;")?;
    fixture.node.node.input_rule(&format!("ip saddr {} tcp flags & rst == rst drop;", pod.ip()))?;
    fixture.mentions(&["with a RST, which netfilter at INPUT on the node drops: the prober gets no answer"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// Nobody listens, and the node drops the RST of the pod's stack.
fn lost_refusal(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.pod(HTTP)?;
    fixture.node.node.input_rule(&format!("ip saddr {} tcp flags & rst == rst drop;", pod.ip()))?;
    fixture.mentions(&["netfilter at INPUT on the node drops the RST of the refusal: the prober gets no answer"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// netfilter makes the ICMP error itself, without the stack's `icmp_send`.
fn netdev_icmp(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.succeeds(Kind::Http, pod)?;
    fixture.inside(pod)?.nft("table netdev hostfw { chain arrival { type filter hook ingress device eth0 priority 0; tcp dport 8080 reject with icmp type host-prohibited; }; }\n")?;
    fixture.mentions(&["with an answer that no hook here shows; it is the rule with handle"]);
    fixture.fails(Kind::Http, pod, Ending::Error)
}

/// A rule in the namespace of the node.
fn node_nft(fixture: &mut Fixture<'_>, hook: &str, rule: &str, how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let rule = rule.replace("{ip}", &pod.ip().to_string());
    let chain = format!("type filter hook {hook} priority 0; ip {rule};");
    fixture.node.node.nft(&format!("table ip hostfw {{ chain {hook}-fw {{ {chain} }}; }}\n"))?;
    fixture.fails(Kind::Http, pod, how)
}

/// The rule comes after the handshake of TLS, while the server works on its answer.
fn tls_answer(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("tls-slow:400", TLS)?;
    fixture.fails_while(pod, fixture.options.probe_timeout, &[Ending::Timeout], |fixture| {
        fixture.wait_for_request(pod)?;
        fixture.node.node.input_rule(&format!("tcp sport {TLS} ip saddr {} drop;", pod.ip()))
    })
}

fn iptables(fixture: &mut Fixture<'_>, program: &str, target: &[&str], how: Ending) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let rule = [&["-A", "INPUT", "-p", "tcp", "--dport", "8080", "-j"], target].concat();
    fixture.inside(pod)?.run(program, &rule, "")?;
    fixture.fails(Kind::Http, pod, how)
}

/// As with gRPC's usual port 50051: the port of the target is above the source port.
fn source_below_target(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.input_rule(pod, "tcp dport 9 drop comment \"other\"; tcp dport 8080 drop comment \"this\";")?;
    fixture.node.set_source_port(HTTP - 1)?;
    fixture.mentions(&["it is the rule with handle", "\"this\" in chain"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As Istio's TPROXY mode does it, while the sidecar does not run: no transparent socket listens on the proxy's port.
fn tproxy(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.inside(pod)?.run("iptables-nft", TPROXY, "")?;
    fixture.mentions(&["listens on its port 15006 with IP_TRANSPARENT"]);
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
