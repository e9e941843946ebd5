//! The sources on this kernel: network namespaces of a process that stands in for the kubelet and of a pod, and tables
//! as kube-proxy writes them. Needs root, `ip`, `nft` and iptables.
//!
//! Run with `cargo test -p tracer-userspace --test sources_live -- --ignored`.

mod common;

use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tracer_model::event::{Links, NodePort, NodePorts, ObservationKind, Pod, ProxyMode};
use tracer_model::query::{Awaited, TargetQuery};
use tracer_node::enter::{enter_on_this_thread, in_netns};
use tracer_node::namespaces::{Namespaces, Place};
use tracer_node::procfs::netns_of;
use tracer_node::throttle::Throttling;
use tracer_node::{inspect, pod_sockets};
use tracer_sources::{Snapshot, SourceConfig, snapshot, watch};
use tracer_testing::{TestFile, address};

use common::netns::Netns;
use common::{Killed, NamedProcess, PATIENCE, Scratch};

struct Namespace(NamedProcess, Netns);

impl Namespace {
    fn start(name: &str) -> Self {
        let inside = Netns::new();
        Self(NamedProcess::start(&mut inside.command("env"), name), inside)
    }

    fn pid(&self) -> u32 {
        self.0.child.id()
    }

    fn run(&self, script: &str) {
        self.1.run(script);
    }
}

fn config(prober: &str) -> SourceConfig {
    SourceConfig { probers: vec![prober.into()], ..SourceConfig::default() }
}

fn tables(snapshot: &Snapshot, mode: ProxyMode) -> impl Iterator<Item = &NodePorts> {
    snapshot.observations.iter().filter_map(move |kind| match kind {
        ObservationKind::NodePorts(table) if table.mode == mode => Some(table),
        _ => None,
    })
}

fn ports(snapshot: &Snapshot, mode: ProxyMode) -> Vec<(u16, Option<&str>)> {
    let ports = tables(snapshot, mode).flat_map(|table| &table.ports);
    ports.map(|NodePort { port, service, .. }| (*port, service.as_deref())).collect()
}

/// External addresses of Services that are the node's own, `ADDRESS:PORT SERVICE` each.
fn external(snapshot: &Snapshot, mode: ProxyMode) -> Vec<String> {
    let external = tables(snapshot, mode).flat_map(|table| &table.external);
    external.map(|(at, service)| format!("{at} {service}")).collect()
}

fn lo_is_up(links: &Links) -> bool {
    links.links.iter().any(|link| link.loopback && link.up)
}

fn find<T>(snapshot: &Snapshot, wanted: impl Fn(&ObservationKind) -> Option<T>) -> T {
    snapshot.observations.iter().find_map(wanted).expect("the observation")
}

fn links(kind: &ObservationKind) -> Option<Links> {
    if let ObservationKind::Links(links) = kind { Some(links.clone()) } else { None }
}

fn pods(kind: &ObservationKind) -> Option<Vec<Pod>> {
    if let ObservationKind::Pods(pods) = kind { Some(pods.pods.clone()) } else { None }
}

/// Addresses of the node: the first ones of each family are also external addresses of Services.
const ADDRESSES: &str = "for addr in 192.0.2.1/32 192.0.2.2/32 fd00:88::1/128 fd00:88::2/128 fd00:88::7/128; do ip addr add $addr dev lo; done";

const KUBE_PROXY_NFT: &str = r#"
nft -f - <<'RULES'
table ip kube-proxy {
  chain services { accept; accept; accept; }
  chain external-42NFTM6N-ns2/svc2/tcp/p80 { }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30001 : goto external-42NFTM6N-ns2/svc2/tcp/p80, udp . 30002 : goto external-42NFTM6N-ns2/svc2/tcp/p80 }
  }
  chain service-42NFTM6N-ns2/svc2/tcp/p80 { }
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"
    elements = { 10.96.0.1 . tcp . 80 : goto service-42NFTM6N-ns2/svc2/tcp/p80,
                 192.0.2.1 . tcp . 80 : goto external-42NFTM6N-ns2/svc2/tcp/p80,
                 192.0.2.1 . udp . 80 : goto external-42NFTM6N-ns2/svc2/tcp/p80,
                 198.51.100.1 . tcp . 80 : goto external-42NFTM6N-ns2/svc2/tcp/p80 }
  }
  map no-endpoint-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30001 comment "ns2/svc2:p80" : drop, tcp . 30003 comment "ns2/empty:https" : drop }
  }
}
table ip6 kube-proxy {
  chain service-ULMVA6XW-ns6/svc6/tcp/p { }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30006 : goto service-ULMVA6XW-ns6/svc6/tcp/p }
  }
  chain external-ULMVA6XW-ns6/svc6/tcp/p { }
  map service-ips {
    type ipv6_addr . inet_proto . inet_service : verdict
    elements = { fd00:88::7 . tcp . 443 : goto external-ULMVA6XW-ns6/svc6/tcp/p }
  }
}
RULES
"#;

const KUBE_PROXY_IPTABLES: &str = r#"
$IPTABLES-restore --noflush <<'RULES'
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-EXT-GEMNODEPORT0000 - [0:0]
:KUBE-SVC-GEMNODEPORT0000 - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-NODEPORTS -m comment --comment default/web:http -m tcp -p tcp --dport 30080 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-NODEPORTS -m comment --comment "kube-system/kubernetes-dashboard" -m tcp -p tcp -d 127.0.0.0/8 --dport 36704 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-NODEPORTS -m comment --comment kube-system/dns:dns -m udp -p udp --dport 30053 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-SERVICES -m comment --comment "default/web:http cluster IP" -m tcp -p tcp -d 10.96.0.1 --dport 80 -j KUBE-SVC-GEMNODEPORT0000
-A KUBE-SERVICES -m comment --comment "default/web:http external IP" -m tcp -p tcp -d 192.0.2.1 --dport 80 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-SERVICES -m comment --comment "default/web:http loadbalancer IP" -m tcp -p tcp -d 192.0.2.2 --dport 80 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-SERVICES -m comment --comment "default/web:http loadbalancer IP" -m tcp -p tcp -d 198.51.100.1 --dport 80 -j KUBE-EXT-GEMNODEPORT0000
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-MARK-MASQ -p tcp --dport 9 -j RETURN
COMMIT
RULES
"#;

#[test]
#[ignore = "needs root"]
fn node_ports_of_kube_proxy_in_nftables_mode() {
    let node = Namespace::start("live-nft");
    node.run(&format!("{ADDRESSES}{KUBE_PROXY_NFT}"));
    let snapshot = snapshot(&config("live-nft")).expect("snapshot");
    let expected = [(30001, Some("ns2/svc2:p80")), (30003, Some("ns2/empty:https")), (30006, Some("ns6/svc6:p"))];
    assert_eq!(ports(&snapshot, ProxyMode::Nftables), expected, "{snapshot:?}");
    let expected = ["192.0.2.1:80 ns2/svc2:p80", "[fd00:88::7]:443 ns6/svc6:p"];
    assert_eq!(external(&snapshot, ProxyMode::Nftables), expected, "{snapshot:?}");
    assert_eq!(ports(&snapshot, ProxyMode::Iptables), []);
}

#[test]
#[ignore = "needs root"]
fn node_ports_of_kube_proxy_in_iptables_mode() {
    let expected = [(30080, Some("default/web:http")), (36704, Some("kube-system/kubernetes-dashboard"))];
    let cases = [
        ("live-nft4", "iptables-nft"),
        ("live-nft6", "ip6tables-nft"),
        ("live-old4", "iptables-legacy"),
        ("live-old6", "ip6tables-legacy"),
    ];
    for (name, iptables) in cases {
        let node = Namespace::start(name);
        let v6 = |text: &str| {
            text.replace("127.0.0.0/8", "::1/128")
                .replace("192.0.2.", "fd00:88::")
                .replace("198.51.100.1", "fd00:99::1")
                .replace("10.96.0.1", "fd00:96::1")
        };
        let (rules, at) = if iptables.starts_with("ip6") {
            (v6(KUBE_PROXY_IPTABLES), ["[fd00:88::1]", "[fd00:88::2]"])
        } else {
            (KUBE_PROXY_IPTABLES.into(), ["192.0.2.1", "192.0.2.2"])
        };
        node.run(&format!("{ADDRESSES}{}", rules.replace("$IPTABLES", iptables)));
        let snapshot = snapshot(&config(name)).expect("snapshot");
        assert_eq!(ports(&snapshot, ProxyMode::Iptables), expected, "{iptables}: {snapshot:?}");
        let addresses = at.map(|addr| format!("{addr}:80 default/web:http"));
        assert_eq!(external(&snapshot, ProxyMode::Iptables), addresses, "{iptables}: {snapshot:?}");
    }
}

#[test]
#[ignore = "needs root"]
fn only_the_chain_of_kube_proxy_is_read_from_a_large_table() {
    let node = Namespace::start("live-large");
    let mut rules = String::from("iptables-nft-restore <<'RULES'\n*nat\n:KUBE-NODEPORTS - [0:0]\n:BULK - [0:0]\n");
    for n in 0..50_000_u32 {
        let _ = writeln!(rules, "-A BULK -p tcp -d 10.{}.{}.1 --dport 80 -j RETURN", n >> 8, n & 255);
    }
    rules += "-A KUBE-NODEPORTS -m comment --comment a/b:c -m tcp -p tcp --dport 30080 -j BULK\nCOMMIT\nRULES\n";
    node.run(&rules);
    let snapshot = snapshot(&config("live-large")).expect("snapshot");
    assert_eq!(ports(&snapshot, ProxyMode::Iptables), [(30080, Some("a/b:c"))]);
}

#[test]
#[ignore = "needs root"]
fn a_snapshot_has_the_probers_namespace_and_the_pods() {
    let node = Namespace::start("live-node");
    let pod = Namespace::start("live-pod");
    node.run("echo 1024 65000 > /proc/sys/net/ipv4/ip_local_port_range; ip addr add 192.0.2.1/32 dev lo");
    pod.run("ip link set lo up; ip addr add 10.88.7.4/32 dev lo; ip -6 addr add fd00:88::7/128 dev lo");
    let snapshot = snapshot(&config("live-node")).expect("snapshot");
    assert_eq!(snapshot.node.as_ref().map(|node| node.pid), Some(node.pid()));
    assert_eq!(snapshot.probers[0].comm, "live-node");
    let links = find(&snapshot, links);
    assert!(!lo_is_up(&links), "lo of a new namespace is down: {links:?}");
    assert_eq!(Some(links.netns), snapshot.node.as_ref().map(|node| node.netns));
    assert!(links.links[0].addrs.contains(&address("192.0.2.1")), "{links:?}");
    let settings = |kind: &ObservationKind| {
        if let ObservationKind::NodeSettings(settings) = kind { settings.local_port_range } else { None }
    };
    assert_eq!(find(&snapshot, settings), (1024, 65000));
    let all = find(&snapshot, pods);
    let found = all.iter().find(|pod| pod.addrs.contains(&address("10.88.7.4")));
    let found = found.expect("the pod's namespace");
    assert!(found.name.is_none() && found.netns.is_some() && found.addrs.len() == 2, "{found:?}");
}

/// The next observation that `wanted` accepts.
async fn next<T>(
    observations: &mut mpsc::Receiver<ObservationKind>,
    wanted: impl Fn(&ObservationKind) -> Option<T>,
) -> T {
    let search = async {
        loop {
            let kind = observations.recv().await.expect("the watcher lives");
            if let Some(found) = wanted(&kind) {
                return found;
            }
        }
    };
    tokio::time::timeout(PATIENCE, search).await.expect("an observation in time")
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_watch_sends_changes_and_ends_with_its_future() {
    let node = Namespace::start("live-watch");
    node.run("ip link set lo up");
    let place = Scratch::new();
    let file = place.path("pods.yaml");
    std::fs::write(&file, "kind: PodList\nitems: []\n").expect("file");
    let config = SourceConfig { pods: Some(file.clone()), ..config("live-watch") };
    let snapshot = snapshot(&config).expect("snapshot");
    let (tx, mut rx) = mpsc::channel(64);
    let refresh = Arc::new(Notify::new());
    let watcher = tokio::spawn(watch(config, snapshot, refresh.clone(), tx, tracer_sources::Supervisor::new().0));
    let lo = |kind: &ObservationKind| links(kind).map(|links| lo_is_up(&links));
    // The watch sends the links again at its start, because they may have changed since the snapshot.
    assert!(next(&mut rx, lo).await);

    node.run("ip link set lo down");
    assert!(!next(&mut rx, lo).await);

    std::fs::write(&file, "kind: PodList\nitems: [{metadata: {name: from-file}}]\n").expect("file");
    let named =
        |kind: &ObservationKind| pods(kind)?.iter().any(|pod| pod.name.as_deref() == Some("from-file")).then_some(());
    next(&mut rx, named).await;
    std::fs::write(&file, "kind: PodList\nitems: [{\n").expect("file");

    node.run(KUBE_PROXY_NFT);
    refresh.notify_one();
    let count = |kind: &ObservationKind| {
        if let ObservationKind::NodePorts(ports) = kind { Some(ports.ports.len()) } else { None }
    };
    // The watch first sends an empty list, and then the change.
    assert_eq!(next(&mut rx, count).await, 0);
    assert_eq!(next(&mut rx, count).await, 3);
    // A bulk removal lets the node be read soon, without a request.
    let removed = Instant::now();
    node.run("nft delete table ip kube-proxy; nft delete table ip6 kube-proxy");
    assert_eq!(next(&mut rx, count).await, 0);
    assert!(removed.elapsed() < Duration::from_secs(7), "it is read each ten seconds anyway: {:?}", removed.elapsed());

    drop(node);
    let node = Namespace::start("live-watch");
    node.run("ip link set lo up");
    refresh.notify_one();
    let own = std::fs::read_link(format!("/proc/{}/ns/net", node.pid())).expect("namespace");
    let back =
        |kind: &ObservationKind| links(kind).filter(|links| own.to_string_lossy().contains(&links.netns.0.to_string()));
    assert!(lo_is_up(&next(&mut rx, back).await), "the prober came back in another namespace");

    watcher.abort();
    let end = async { while rx.recv().await.is_some() {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the thread ends with its future");
}

fn list_of_pods(count: usize) -> String {
    let sample: Value = serde_json::from_str(include_str!("../testdata/kubelet-pods.json")).expect("sample");
    let pod = |n: usize| {
        let mut pod = sample["items"][1].clone();
        pod["kind"] = "Pod".into();
        pod["metadata"]["uid"] = format!("{n:032x}").into();
        pod["metadata"]["name"] = format!("pod-{n}").into();
        pod
    };
    json!({"kind": "List", "items": (0..count).map(pod).collect::<Vec<_>>()}).to_string()
}

/// A thread that enters namespaces itself is back after each visit, even after a panic. A thread that stays in a pod's
/// namespace would keep the namespace and its link alive.
#[test]
#[ignore = "needs root"]
fn a_thread_leaves_each_namespace_that_it_entered() {
    let pod = Namespace::start("trsrc-visited");
    let path = PathBuf::from(format!("/proc/{}/ns/net", pod.pid()));
    let at = |path: &str| std::fs::read_link(path).expect("a namespace");
    let visits = move || {
        let here = || (std::thread::current().id(), at("/proc/thread-self/ns/net"));
        let (thread, home) = here();
        let there = at(&path.to_string_lossy());
        assert_ne!(in_netns(&path, here).expect("by another thread").0, thread);
        enter_on_this_thread();
        assert_eq!(in_netns(&path, here).expect("by this one"), (thread, there.clone()));
        assert_eq!(here(), (thread, home.clone()));
        let nested = || in_netns(Path::new("/proc/self/ns/net"), here).expect("that of the process").1;
        let seen = in_netns(&path, || (nested(), here().1)).expect("by this one");
        assert_eq!(seen, (home.clone(), there));
        assert!(in_netns(&path, || panic!("on purpose")).is_err());
        assert_eq!(here(), (thread, home));
    };
    std::thread::spawn(visits).join().expect("every visit");
}

/// A masquerade of the node changes the prober's address and port. The pod has no route to the prober's own address, and
/// redirects the port.
#[test]
#[ignore = "needs root"]
fn a_target_is_read_with_the_source_that_it_sees() {
    let (node, pod) = (Namespace::start("trsrc-nat"), Namespace::start("trsrc-seen"));
    node.run(&format!("ip link add v0 type veth peer name eth0 netns {}", pod.pid()));
    pod.run("ip addr add 10.88.0.2/24 dev eth0; ip link set eth0 up; ip link set lo up");
    pod.run(
        "nft 'table ip t { chain pre { type nat hook prerouting priority dstnat; tcp dport 8080 redirect to :15006; }; }'",
    );
    node.run("ip addr add 10.88.0.1/24 dev v0; ip addr add 192.0.2.1/32 dev lo; ip link set lo up; ip link set v0 up");
    node.run("ip route replace 10.88.0.0/24 dev v0 src 192.0.2.1");
    node.run(
        "nft 'table ip t { chain post { type nat hook postrouting priority srcnat; oif v0 tcp dport 8080 snat to 10.88.0.1:20000-20100; }; }'",
    );
    let (_proxy, target) = (pod.1.listen("0.0.0.0:15006"), address("10.88.0.2:8080"));
    let connection = node.1.within(|| TcpStream::connect(target)).expect("a connection");
    let peer = connection.local_addr().expect("its address");
    assert_eq!(peer.ip().to_string(), "192.0.2.1");
    let from = netns_of(node.pid()).expect("a namespace");
    let at = Place { netns: from, path: format!("/proc/{}/ns/net", node.pid()).into() };
    let ask = |awaited| TargetQuery { from, target, reported: None, awaited, peer: Some(peer), pod: None };
    let sockets = pod_sockets::read(&ask(Awaited::Nothing), &at, &mut Namespaces::default());
    assert_eq!(sockets.redirect.map(|it| it.to), Some(address("10.88.0.2:15006")));
    let (mut namespaces, mut throttling) = (Namespaces::default(), Throttling::default());
    let inspection = inspect::read(&ask(Awaited::Answer), &at, &mut namespaces, &mut throttling);
    let is_read = inspection.netns.is_some();
    assert_eq!((is_read, inspection.no_way_back, inspection.stray_way_back), (true, None, None));
}

#[test]
#[ignore = "needs root"]
fn a_snapshot_of_a_full_node_has_all_pods() {
    let file = TestFile::new("pods.json", &list_of_pods(250));
    let _sleepers: Vec<_> = (0..500).filter_map(|_| Command::new("sleep").arg("60").spawn().ok()).map(Killed).collect();
    let snapshot = snapshot(&SourceConfig { pods: Some(file.path.clone()), ..config("nobody") }).expect("snapshot");
    assert!(find(&snapshot, pods).len() >= 250);
}

/// A cgroup of version 1 or 2 as the kubelet's cgroupfs driver makes it. It is removed when the test ends.
struct PodGroup(PathBuf);

impl PodGroup {
    fn make(uid: &str, container: &str) -> Self {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists()).expect("a cgroup hierarchy");
        let group = Self(root.join("tracer-live").join(format!("pod{uid}")).join(container));
        std::fs::create_dir_all(&group.0).expect("cgroup");
        group
    }

    fn add(&self, resident: &Namespace) {
        std::fs::write(self.0.join("cgroup.procs"), resident.pid().to_string()).expect("cgroup.procs");
    }
}

impl Drop for PodGroup {
    fn drop(&mut self) {
        for directory in self.0.ancestors().take(3) {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[test]
#[ignore = "needs root"]
fn a_pod_is_found_by_its_cgroup_and_named_by_the_file() {
    let (uid, container) = ("761c395d27727576796af2646f1186d4", "f".repeat(64));
    let node = Namespace::start("live-kubelet");
    let group = PodGroup::make(uid, &container);
    let pod = Namespace::start("live-app");
    pod.run("ip link set lo up; ip addr add 10.88.0.5/32 dev lo");
    group.add(&pod);
    let first = snapshot(&config("live-kubelet")).expect("snapshot");
    let find_pod = |snapshot: &Snapshot| {
        find(snapshot, pods).into_iter().find(|pod| pod.uid.as_deref() == Some(uid)).expect("the pod")
    };
    let found = find_pod(&first);
    assert_eq!((found.name.as_deref(), found.host_network), (None, false));
    assert_eq!(found.containers[0].id.as_deref(), Some(container.as_str()));
    assert_eq!(found.addrs, [address::<std::net::IpAddr>("10.88.0.5")]);

    let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/kubelet-pods.json"));
    let second = snapshot(&SourceConfig { pods: Some(file), ..config("live-kubelet") }).expect("snapshot");
    let joined = find_pod(&second);
    assert_eq!(joined.name.as_deref(), Some("target-rig-node"));
    assert_eq!(joined.netns, found.netns);
    assert_eq!(joined.containers[0].probes.len(), 3);
    drop((pod, node));
}
