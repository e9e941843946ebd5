//! ufw and firewalld from their packages: what they close on a node, which owner `tracer` names, and whether its fix
//! works. Needs root, `ip`, `nft`, iptables and the packages (`cargo xtask setup`).
//!
//! Run with `cargo test -p tracer-userspace --test firewalls_live -- --ignored --test-threads=1`.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::thread;

use serde_json::Value;

mod common;

use common::netns::Netns;
use common::root::Root;
use common::{Killed, Signal, printed, signal};

const KUBELET: &str = "10.201.0.1:10250";
const POD: &str = "10.202.1.2:8080";
const API_SERVER: &str = "10.201.0.2:6443";
/// kube-proxy's rules send it on to the pod.
const SERVICE: &str = "10.203.0.1:80";
/// An API server on the node itself.
const OWN_API_SERVER: &str = "10.201.0.1:6443";
/// The networks of the pods and of the nodes.
const PODS: &str = "10.202.0.0/16";
const NODES: &str = "10.201.0.0/24";

/// A node with routes to two pods, and another node with the API server.
struct TestNode {
    node: Netns,
    other_node: Netns,
    pod: Netns,
    other_pod: Netns,
    _listeners: [TcpListener; 4],
}

impl TestNode {
    fn new() -> Self {
        let [node, other_node, pod, other_pod] = std::array::from_fn(|_| Netns::new());
        let links = [("up0", &other_node, "10.201.0"), ("pod1", &pod, "10.202.1"), ("pod2", &other_pod, "10.202.2")];
        for (link, peer, net) in links {
            node.run(&format!(
                "ip link add {link} type veth peer name eth0 netns {}
                 ip addr add {net}.1/24 dev {link}
                 ip link set {link} up",
                peer.name
            ));
            peer.run(&format!(
                "ip addr add {net}.2/24 dev eth0; ip link set eth0 up; ip route add default via {net}.1"
            ));
        }
        node.run("ip link set lo up; ip route add default via 10.201.0.2; sysctl -qw net.ipv4.ip_forward=1");
        let to_pod = format!("type nat hook prerouting priority -100; ip daddr 10.203.0.1 tcp dport 80 dnat to {POD};");
        node.run(&format!("nft 'table ip proxy {{ chain services {{ {to_pod} }}; }}'"));
        let listeners =
            [node.listen(KUBELET), node.listen(OWN_API_SERVER), pod.listen(POD), other_node.listen(API_SERVER)];
        Self { node, other_node, pod, other_pod, _listeners: listeners }
    }

    /// The paths of a cluster's traffic that the firewall closes.
    fn closed(&self) -> Vec<&'static str> {
        let paths = [
            ("API server to kubelet", &self.other_node, KUBELET),
            ("other node to API server", &self.other_node, OWN_API_SERVER),
            ("pod to node", &self.pod, KUBELET),
            ("pod to pod", &self.other_pod, POD),
            ("other node to pod", &self.other_node, POD),
            ("pod to API server", &self.pod, API_SERVER),
            ("kubelet to pod", &self.node, POD),
            ("kubelet to API server", &self.node, API_SERVER),
        ];
        thread::scope(|scope| {
            let connects = paths.map(|(name, from, to)| scope.spawn(move || (!from.reaches(to)).then_some(name)));
            connects.into_iter().filter_map(|connect| connect.join().expect("a connect")).collect()
        })
    }

    /// Hook and fix of each finding of doctor about a base chain of IPv4.
    fn found(&self, owner: &str) -> Vec<(String, String)> {
        let (findings, _) = self.node.doctor(&["--check", "base_policy"]);
        let bad = findings.iter().filter(|it| it["status"] != "ok" && it["fields"]["family"] != "ip6");
        bad.map(|it| {
            assert_eq!(it["fields"]["owner"], owner, "{it}");
            let text = |it: &Value| it.as_str().expect("text").to_owned();
            (text(&it["fields"]["hook"]), text(&it["remediation"]["commands"][0]["run"]))
        })
        .collect()
    }

    fn hooks(&self, owner: &str) -> Vec<String> {
        self.found(owner).into_iter().map(|(hook, _)| hook).collect()
    }

    fn fix(&self, root: &Root, owner: &str) {
        for (_, fix) in self.found(owner) {
            root.run(&fix.replace("POD_CIDR", PODS).replace("NODE_CIDR", NODES));
        }
    }

    fn verdict(&self, from: &Netns, to: &str) -> Value {
        let mut command = self.node.command(env!("CARGO_BIN_EXE_tracer"));
        command.args(["attach", "--all-connections", "-o", "json", "--duration", "30s"]);
        let mut tracer = Killed(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tracer"));
        let records = printed(&mut tracer);
        assert_eq!(records.recv().expect("a start record")["type"], "start");
        assert!(!from.reaches(to));
        // Other tests of this machine connect to the same ports.
        let dst = to.parse::<SocketAddr>().expect("an address");
        let is_dst = |it: &Value| it["addr"] == dst.ip().to_string() && it["port"] == dst.port();
        let mine = |it: &Value| it["type"] == "verdict" && is_dst(&it["dst"]);
        let found = records.iter().find(mine).expect("a verdict");
        signal(&tracer, Signal::SIGTERM);
        assert!(tracer.wait().expect("its end").success());
        found["verdict"].clone()
    }

    /// Checks that a verdict names the cause, and the owner and chain of the rule. The chain is empty if tracer has
    /// several candidates. Then runs the command of the verdict, which must work.
    fn check_and_fix(&self, root: &Root, from: &Netns, to: &str, expected: [&str; 3]) {
        let verdict = self.verdict(from, to);
        let row = verdict["evidence"].as_array().into_iter().flatten().find(|it| it["hook"] == "netfilter");
        let fields = &row.expect("a rule")["fields"];
        let chain = if fields["candidates"].is_null() { &fields["chain"] } else { &Value::from("") };
        assert_eq!([&verdict["cause"], &fields["owner"], chain], expected, "{verdict}");
        assert_eq!(verdict["confidence"], "proven");
        let command = verdict["remediation"]["commands"][0]["run"].as_str().expect("a command");
        root.run(command);
        assert!(from.reaches(to), "{command}");
    }
}

const ALL: [&str; 8] = [
    "API server to kubelet",
    "other node to API server",
    "pod to node",
    "pod to pod",
    "other node to pod",
    "pod to API server",
    "kubelet to pod",
    "kubelet to API server",
];
/// So many of them come to the node or pass it. The node makes the others.
const FROM_OTHERS: usize = 6;

/// Selects the iptables backend that ufw and firewalld use.
fn use_iptables(root: &Root, kind: &str) {
    root.run(&format!(
        "for s in '' 6; do for c in '' -save -restore; do
           ln -sf /usr/sbin/ip${{s}}tables-{kind}$c /etc/alternatives/ip${{s}}tables$c
         done; done"
    ));
}

fn ufw(kind: &str) {
    let node = TestNode::new();
    let Some(root) = Root::with_packages(&node.node) else { return };
    use_iptables(&root, kind);
    assert!(node.closed().is_empty() && node.found("nobody").is_empty());
    root.run("ufw --force enable");
    assert_eq!(node.closed(), ALL[..FROM_OTHERS], "as it is installed");
    assert_eq!(node.hooks("ufw"), ["INPUT", "FORWARD"]);
    // On INPUT, ufw also has rules that tracer cannot evaluate. With legacy iptables, a zero counter does not exclude
    // them, so the verdict names no chain.
    let input = if kind == "legacy" { "" } else { "INPUT" };
    let paths =
        [(&node.other_node, KUBELET, input), (&node.other_node, POD, "FORWARD"), (&node.other_pod, SERVICE, "FORWARD")];
    for (from, to, chain) in paths {
        node.check_and_fix(&root, from, to, ["firewall_drop", "ufw", chain]);
    }
    // `ufw reload` keeps only rules that its own command added.
    root.run("ufw reload");
    assert!(paths.iter().all(|(from, to, _)| from.reaches(to)));
    node.fix(&root, "ufw");
    root.run("ufw reload");
    assert_eq!((node.closed(), node.hooks("ufw")), (vec![], vec!["INPUT".to_owned()]));
    root.run("ufw default deny outgoing");
    assert_eq!((node.closed(), node.hooks("ufw").len()), (ALL[FROM_OTHERS..].to_vec(), 2), "probes go out");
    node.check_and_fix(&root, &node.node, POD, ["firewall_drop", "ufw", "OUTPUT"]);
    root.run("ufw delete 1");
    node.fix(&root, "ufw");
    assert!(node.closed().is_empty());
    root.run("ufw disable");
    assert!(node.found("nobody").is_empty());
}

#[test]
#[ignore = "needs root"]
fn ufw_over_nftables() {
    ufw("nft");
}

#[test]
#[ignore = "needs root"]
fn ufw_over_legacy_iptables() {
    ufw("legacy");
}

#[test]
#[ignore = "needs root"]
fn ufw_that_rejects() {
    let node = TestNode::new();
    let Some(root) = Root::with_packages(&node.node) else { return };
    root.run("ufw default reject incoming; ufw default reject routed; ufw --force enable");
    assert_eq!(
        (node.closed(), node.hooks("ufw")),
        (ALL[..FROM_OTHERS].to_vec(), vec!["INPUT".into(), "FORWARD".into()])
    );
    node.check_and_fix(&root, &node.other_node, POD, ["firewall_reject", "ufw", "ufw-reject-forward"]);
    node.fix(&root, "ufw");
    assert!(node.closed().is_empty());
}

/// Starts firewalld as its unit does, with its own D-Bus.
fn start_firewalld(root: &Root, backend: &str) {
    root.run(&format!(
        "sed -i s/^FirewallBackend=.*/FirewallBackend={backend}/ /etc/firewalld/firewalld.conf
         dbus-daemon --system --fork
         firewalld --nofork --nopid > /dev/null 2>&1 &
         for n in $(seq 300); do firewall-cmd --state > /dev/null 2>&1 && exit; sleep 0.1; done
         cat /var/log/firewalld; exit 1"
    ));
}

fn firewalld(backend: &str, chains: [&str; 2]) {
    let node = TestNode::new();
    let Some(root) = Root::with_packages(&node.node) else { return };
    start_firewalld(&root, backend);
    assert_eq!(node.closed(), ALL[..FROM_OTHERS], "as it is installed");
    assert_eq!(node.hooks("firewalld"), ["INPUT", "FORWARD"]);
    let [input, forward] = chains;
    node.check_and_fix(&root, &node.other_node, KUBELET, ["firewall_reject", "firewalld", input]);
    let verdict = node.verdict(&node.other_node, POD);
    let reported =
        [&verdict["summary"], &verdict["remediation"]["commands"][0]["run"]].map(|it| it.as_str().expect("text"));
    assert!(reported[0].contains(forward) && reported[0].contains("made by firewalld"), "{verdict}");
    assert!(reported[1].contains("tracer doctor --check base_policy"), "{verdict}");
    node.fix(&root, "firewalld");
    assert!(node.closed().is_empty(), "{:?}", node.closed());
    root.run("firewall-cmd --reload");
    assert!(node.closed().is_empty());
    // The fix gave pods and nodes a zone of their own, so the new default zone does not close them.
    root.run("firewall-cmd --set-default-zone=drop");
    assert!(node.closed().is_empty());
    root.run(&format!("firewall-cmd --zone=trusted --remove-source={NODES}"));
    assert_eq!(node.closed(), ALL[..2]);
    let end = input.replace("public", "drop");
    node.check_and_fix(&root, &node.other_node, KUBELET, ["firewall_drop", "firewalld", &end]);
}

#[test]
#[ignore = "needs root"]
fn firewalld_over_nftables() {
    firewalld("nftables", ["filter_IN_public", "filter_FWD_public"]);
}

#[test]
#[ignore = "needs root"]
fn firewalld_over_iptables() {
    firewalld("iptables", ["IN_public", "FWD_public"]);
}

#[test]
#[ignore = "needs root"]
fn firewalld_in_panic_mode() {
    let node = TestNode::new();
    let Some(root) = Root::with_packages(&node.node) else { return };
    start_firewalld(&root, "nftables");
    root.run("firewall-cmd --panic-on");
    assert_eq!(node.closed(), ALL);
    let (_, fix) =
        node.found("firewalld").into_iter().find(|(hook, _)| hook == "OUTPUT").expect("a finding about OUTPUT");
    let verdict = node.verdict(&node.node, POD);
    assert!(verdict["summary"].as_str().is_some_and(|it| it.contains("made by firewalld")), "{verdict}");
    root.run(&fix);
    assert!(node.node.reaches(POD) && node.hooks("firewalld") == ["INPUT", "FORWARD"]);
}
