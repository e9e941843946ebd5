//! The verdict names the rule that dropped the packet, its chain and its owner, for each backend and hook.

use std::net::SocketAddr;

use anyhow::Result;
use tracer_model::record::Cause;
use tracer_node::programs::{EGRESS, INGRESS};

use super::Rules::{Input, Iptables, Legacy, Nft};
use super::firewall::drops;
use super::{Fixture, Need, Scenario};
use crate::ip::Route;
use crate::pods::HTTP;
use crate::probe::{Ending, Kind};
use crate::program::{self, SHOT, STOLEN};

const DROP: Option<Cause> = Some(Cause::FirewallDrop);
const POLICY: Option<Cause> = Some(Cause::NetworkPolicyDrop);

pub(super) const ALL: &[Scenario] = &[
    drops("blame_policy")
        .in_pod(Input("policy drop; meta l4proto { icmp, icmpv6 } accept; tcp dport 9 accept;"))
        .names(&["the policy in chain inet podpolicy ingress"])
        .and_v6(),
    // Other rules drop, too, but cannot match this packet. The rule that matches is two jumps away.
    drops("blame_jump")
        .in_pod(Nft("table inet fw { chain web { tcp dport 8080 drop comment \"no web\"; };
           chain services { tcp dport 22 drop; tcp dport 1-9000 goto web; };
           chain in { type filter hook input priority 10; ip saddr 192.0.2.0/24 drop; udp dport 8080 drop;
           ip6 saddr 2001:db8::/32 drop; tcp dport 8080 counter jump services; };
           chain out { type filter hook output priority 0; tcp dport 8080 drop; }; }"))
        .names(&["\"no web\" in chain inet fw web"])
        .on_every_kernel()
        .and_v6(),
    drops("blame_verdict_map")
        .in_pod(Nft("table inet fw { chain deny { drop; }; chain in { type filter hook input priority 0;
           tcp dport vmap { 22 : accept, 8080 : goto deny, 9090 : drop }; }; }"))
        .names(&["; it is a rule in chain inet fw in"]),
    // The chains of a dormant table are read like others, and do nothing.
    drops("blame_beside_dormant_table")
        .in_pod(Nft("table inet panic { flags dormant;
           chain in { type filter hook input priority -10; policy drop; }; }
           table inet b { chain in { type filter hook input priority 10; tcp dport 8080 drop comment \"mine\"; }; }"))
        .names(&["; it is the rule with handle", "\"mine\" in chain inet b in"])
        .own(),
    // The name of a link has 16 bytes in the key. The first chain accepts.
    drops("blame_beside_joint_key")
        .in_pod(Nft("table inet a { chain in { type filter hook input priority 0;
           iifname . tcp dport { \"eth0\" . 8080 } accept; meta l4proto tcp drop comment \"others\"; }; }
           table inet b { chain in { type filter hook input priority 10; tcp dport 8080 drop comment \"mine\"; }; }"))
        .names(&["; it is one of these: ", "\"mine\" in chain inet b in"])
        .own(),
    // The kernel keeps the range of all addresses as one element without an end.
    drops("blame_beside_range_of_all")
        .in_pod(Nft("table inet a { set trusted { type ipv4_addr; flags interval; elements = { 0.0.0.0/0 }; }
           chain in { type filter hook input priority 0; policy drop; ip saddr @trusted accept; }; }
           table inet b { chain in { type filter hook input priority 10; tcp dport 8080 drop comment \"mine\"; }; }"))
        .names(&["; it is the rule with handle", "\"mine\" in chain inet b in"])
        .own(),
    Scenario::new("blame_beside_verdict_maps", DROP, beside_maps).needs(&[Need::Nft]),
    Scenario::new("blame_counters", DROP, counters).needs(&[Need::Nft]),
    drops("blame_ufw").in_pod(Iptables(UFW)).names(&["chain ufw-user-input of table filter", "made by ufw"]),
    drops("blame_ufw_legacy")
        .in_pod(Legacy(UFW))
        .names(&["chain ufw-user-input of table filter", "made by ufw"])
        .on_every_kernel(),
    drops("blame_beside_inverted_rules")
        .in_pod(Iptables(INVERTED))
        .names(&["it is the rule with handle", "\"mine\" in chain INPUT of table filter"]),
    drops("blame_beside_inverted_rules_legacy")
        .in_pod(Legacy(INVERTED))
        .names(&["it is rule 8 \"mine\"", "\"mine\" in chain INPUT of table filter"]),
    // The chains that firewalld writes for a zone that rejects.
    Scenario::probed("blame_firewalld", Some(Cause::FirewallReject), "http", Ending::Error)
        .in_pod(Nft("table inet firewalld { chain filter_IN_public { tcp dport 22 accept; };
           chain filter_INPUT_POLICIES { jump filter_IN_public; meta l4proto { icmp, ipv6-icmp } accept;
           reject with icmpx admin-prohibited; };
           chain filter_INPUT { type filter hook input priority 10; iifname \"lo\" accept; jump filter_INPUT_POLICIES;
           reject with icmpx admin-prohibited; }; }"))
        .names(&["in chain inet firewalld filter_INPUT_POLICIES (made by firewalld)"]),
    drops("blame_prerouting")
        .in_pod(Nft("table inet early { chain c { type filter hook prerouting priority -150; tcp dport 8080 drop; }; }"))
        .names(&["rule at PREROUTING", "in chain inet early c"]),
    drops("blame_ingress")
        .in_pod(Nft("table netdev early { chain c { type filter hook ingress device eth0 priority -150;
           tcp dport 8080 drop; }; }"))
        .names(&["rule at INGRESS", "in chain netdev early c"]),
    Scenario::new("blame_forward", DROP, forward).own().needs(&[Need::Nft]),
    Scenario::new("blame_of_fifty_thousand_rules", DROP, fifty_thousand_rules).needs(&[Need::Nft]),
    policy("network_policy_calico", Ending::Timeout)
        .on_node(Iptables(CALICO))
        .names(&["calico", "Drop if no policies passed packet"]),
    policy("network_policy_calico_legacy", Ending::Timeout)
        .on_node(Legacy(CALICO))
        .names(&["calico", "Drop if no policies passed packet"])
        .own(),
    // Calico's agent has chains for another pod only. What comes from this one is dropped, also its answers.
    drops("blame_calico_unknown_interface")
        .on_node(Iptables("*filter\n:cali-INPUT - [0:0]\n:cali-wl-to-host - [0:0]\n:cali-from-wl-dispatch - [0:0]\n\
        :cali-fw-cali1a2b3c4d5e6 - [0:0]\n-A INPUT -m comment --comment \"cali:Cz_u1IQiXIMmKD4c\" -j cali-INPUT\n\
        -A cali-INPUT -s {ip} -m comment --comment \"cali:d4znnv6_6rx6sE6M\" -g cali-wl-to-host\n\
        -A cali-wl-to-host -m comment --comment \"cali:Ee9Sbo10IpVujdIY\" -j cali-from-wl-dispatch\n\
        -A cali-from-wl-dispatch -i cali1a2b3c4d5e6 -m comment --comment \"cali:Xy11\" -g cali-fw-cali1a2b3c4d5e6\n\
        -A cali-from-wl-dispatch -m comment --comment \"cali:Xy12\" -m comment --comment \"Unknown interface\" -j DROP\n\
        -A cali-fw-cali1a2b3c4d5e6 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
        -A cali-fw-cali1a2b3c4d5e6 -m comment --comment \"cali:A2 Drop if no profiles matched\" -j DROP\nCOMMIT\n"))
        .names(&["\"Unknown interface\" in chain cali-from-wl-dispatch"]),
    // kube-router rejects connections that no policy allows.
    policy("network_policy_kube_router", Ending::Refused)
        .on_node(Iptables("*filter\n:KUBE-ROUTER-OUTPUT - [0:0]\n:KUBE-POD-FW-ABCDEFGHIJ - [0:0]\n\
        -A OUTPUT -j KUBE-ROUTER-OUTPUT\n-A KUBE-ROUTER-OUTPUT -d {ip} -j KUBE-POD-FW-ABCDEFGHIJ\n\
        -A KUBE-POD-FW-ABCDEFGHIJ -m comment --comment \"rule to REJECT traffic destined for POD name:web-0 \
        namespace: shop\" -j REJECT\nCOMMIT\n"))
        .names(&["kube-router", "POD name:web-0"]),
    Scenario::new("network_policy_tc", POLICY, |s| tc(s, INGRESS)).needs(&[Need::TcProgram]).on_every_kernel().and_v6(),
    Scenario::new("network_policy_tc_egress", POLICY, |s| tc(s, EGRESS)).needs(&[Need::TcProgram]),
    Scenario::new("network_policy_tc_aws", POLICY, aws).needs(&[Need::TcProgram]),
    Scenario::new("unexplained_tc_taken", Some(Cause::Unexplained), taken).own().needs(&[Need::TcProgram]),
    Scenario::new("network_policy_tcx", POLICY, tcx).needs(&[Need::Tcx]),
];

const fn policy(name: &'static str, how: Ending) -> Scenario {
    Scenario::probed(name, POLICY, "http", how)
}

/// The chains that ufw writes for `ufw deny 8080/tcp`.
const UFW: &str = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n:ufw-before-input - [0:0]\n\
        :ufw-after-input - [0:0]\n:ufw-user-input - [0:0]\n:ufw-skip-to-policy-input - [0:0]\n\
        -A INPUT -j ufw-before-input\n-A INPUT -j ufw-after-input\n-A ufw-before-input -i lo -j ACCEPT\n\
        -A ufw-before-input -j ufw-user-input\n\
        -A ufw-after-input -p tcp -m tcp --dport 139 -j ufw-skip-to-policy-input\n-A ufw-skip-to-policy-input -j DROP\n\
        -A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n-A ufw-user-input -p tcp -m tcp --dport 8080 -j DROP\n\
        COMMIT\n";

/// Rules with a negated match, as the kubelet's in KUBE-FIREWALL. Each drop rule counted packets before, but only
/// the last one matches this packet.
const INVERTED: &str = "*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n\
        [3:180] -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet \
        connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n\
        [3:180] -A INPUT ! -s 10.0.0.0/8 -j DROP\n[3:180] -A INPUT -s 192.0.2.0/24 ! -d 192.0.2.1 -j DROP\n\
        [3:180] -A INPUT -d 192.0.2.1/32 ! -i lo -j DROP\n[3:180] -A INPUT ! -p tcp -j DROP\n\
        [3:180] -A INPUT -p tcp -m tcp ! --dport 8080 -j DROP\n-A INPUT ! -s 10.0.0.0/8 -j RETURN\n\
        [3:180] -A INPUT -p tcp -m tcp --dport 8080 -m comment --comment mine -j DROP\nCOMMIT\n";

/// Calico's chains for a workload endpoint. Its policies do not allow the node.
const CALICO: &str = "*filter\n:cali-OUTPUT - [0:0]\n:cali-to-wl-dispatch - [0:0]\n:cali-tw-cali1a2b3c4d5e6 - [0:0]\n\
        :cali-pi-default.deny - [0:0]\n-A OUTPUT -m comment --comment \"cali:tVnHkvAo15HuiPy0\" -j cali-OUTPUT\n\
        -A cali-OUTPUT -d {ip} -m comment --comment \"cali:jL9a\" -g cali-to-wl-dispatch\n\
        -A cali-to-wl-dispatch -d {ip} -m comment --comment \"cali:Z1\" -g cali-tw-cali1a2b3c4d5e6\n\
        -A cali-to-wl-dispatch -m comment --comment \"cali:Z2 Unknown interface\" -j DROP\n\
        -A cali-tw-cali1a2b3c4d5e6 -m comment --comment \"cali:A1 Policy default.deny ingress\" -j cali-pi-default.deny\n\
        -A cali-tw-cali1a2b3c4d5e6 -m comment --comment \"cali:A2 Drop if no policies passed packet\" -j DROP\nCOMMIT\n";

/// Adds a pod with a server and these nftables rules.
fn pod_with(fixture: &mut Fixture<'_>, script: &str) -> Result<SocketAddr> {
    let pod = fixture.serving("http", HTTP)?;
    fixture.inside(pod)?.nft(script)?;
    Ok(pod)
}

/// tracer cannot evaluate these rules, so their counters decide. After the first failure, the rules that counted
/// something remain. After the second one, only the rule remains that counted again.
fn counters(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = pod_with(
        fixture,
        "table inet fw { chain in { type filter hook input priority 0; meta mark 5 counter packets 3 bytes 180 drop; \
         meta mark 6 counter drop; meta length 1-1000 counter drop; }; }\n",
    )?;
    fixture.mentions(&["one of these: the rule with handle 2 in chain inet fw in; the rule with handle 4"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)?;
    fixture.mentions(&["; it is the rule with handle 4 in chain inet fw in"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// The pod is a router, and its forward policy drops.
fn forward(fixture: &mut Fixture<'_>) -> Result<()> {
    let router = fixture.serving("http", HTTP)?;
    let inside = fixture.inside(router)?;
    inside.sysctl(&[("ipv4/ip_forward", "1")])?;
    inside.ip(|ip| {
        ip.bridge("far", None)?;
        ip.address([10, 99, 0, 1], 24, "far")?;
        ip.up("far")
    })?;
    inside.nft("table ip fw { chain forwarded { type filter hook forward priority 0; policy drop; }; }\n")?;
    fixture.node.node.ip(|ip| ip.add(&Route::to([10, 99, 0, 0], 24).via(router.ip())))?;
    fixture.mentions(&["rule at FORWARD", "the policy in chain ip fw forwarded"]);
    fixture.fails_without_probe(Kind::Http, ([10, 99, 0, 5], HTTP).into(), Ending::Timeout)
}

/// A blocklist of 50,000 addresses before the rule that drops. To read it may take longer than a verdict waits. Then
/// the verdict names no rule, but has the same cause at the same time.
fn fifty_thousand_rules(fixture: &mut Fixture<'_>) -> Result<()> {
    let mut script = String::from("table inet fw { chain in { type filter hook input priority 0;\n");
    for n in 0..50_000_u32 {
        script.push_str(&format!("ip saddr 198.{}.{}.{} drop\n", 18 + (n >> 16), n >> 8 & 255, n & 255));
    }
    script.push_str("tcp dport 8080 drop comment \"the one\"\n}; }\n");
    let pod = pod_with(fixture, &script)?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)?;
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As many verdict maps as kube-proxy has with some hundred Services. The last map drops the packet.
fn beside_maps(fixture: &mut Fixture<'_>) -> Result<()> {
    let map = |port| format!("tcp dport vmap {{ {port} : drop, {} : drop }}\n", port + 10_000);
    let maps: String = (10_000..10_400_u32).map(map).collect();
    let last = "tcp dport vmap { 8080 : drop, 8081 : drop } comment \"the last\"";
    let chain = format!("type filter hook input priority 0;\n{maps}{last}");
    let pod = pod_with(fixture, &format!("table inet fw {{ chain in {{ {chain}\n}}; }}\n"))?;
    fixture.mentions(&["in chain inet fw in"]).fails(Kind::Http, pod, Ending::Timeout)
}

/// The filter has no name, the program has one.
fn tc(fixture: &mut Fixture<'_>, parent: u32) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let program = program::load(fixture.family, "drop_tcp", SHOT)?;
    program::filter(fixture.inside(pod)?, "eth0", parent, &program, None)?;
    fixture.mentions(&["a tc program or filter", "; programs there: drop_tcp (id "]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As the AWS network policy agent does: the filter has a name, the program has none.
fn aws(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let link = format!("v{}", fixture.pod_of(pod)?.index);
    let program = program::load(fixture.family, "", SHOT)?;
    program::filter(&fixture.node.node, &link, EGRESS, &program, Some("handle_ingress"))?;
    fixture.mentions(&[&format!("filter (egress) on {link} on the node"), "handle_ingress (id ", "AWS"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// A filter takes the pod's answers. The kernel calls that no drop.
fn taken(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let link = format!("v{}", fixture.pod_of(pod)?.index);
    let program = program::load(fixture.family, "take_tcp", STOLEN)?;
    program::filter(&fixture.node.node, &link, INGRESS, &program, None)?;
    fixture.mentions(&[&format!("{link} on the node has filters (tc)")]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}

/// As Cilium does where the kernel has tcx.
fn tcx(fixture: &mut Fixture<'_>) -> Result<()> {
    let pod = fixture.serving("http", HTTP)?;
    let program = program::load(fixture.family, "cil_from_contai", SHOT)?;
    program::tcx(fixture.inside(pod)?, "eth0", &program)?;
    fixture.mentions(&["filter (ingress) on eth0", "cil_from_contai (id ", "a name of Cilium"]);
    fixture.fails(Kind::Http, pod, Ending::Timeout)
}
