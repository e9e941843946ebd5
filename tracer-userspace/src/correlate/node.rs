//! What is known of the node: links, namespaces, NodePorts, pods, listeners, losses.
//!
//! Filled from snapshots that sources read and from kernel events; every collection is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::dials::Dials;
use super::firewalls::Firewalls;
use super::listeners::Listeners;
use super::pods::KnownPods;
use crate::event::{
    Fact, FindingBody, Findings, Inspection, LinkChange, LinkState, Links, Listen, Loss, Netns, NetnsOp, NetnsOpKind,
    NetnsOpen, NodePort, NodePorts, NodeSettings, Observation, PortPressure, ProxyMode, Service, Start, Throttled,
};

/// Namespace operations and opens kept for naming a culprit.
const MAX_HISTORY: usize = 512;
/// Readings of one target's counters kept.
const MAX_READINGS: usize = 8;
/// Listeners and TLS ports kept.
const MAX_LISTENERS: usize = 4096;
/// Targets of which the state is kept.
const MAX_TARGETS: usize = 1024;
/// Namespaces whose links are kept.
const MAX_LINK_TABLES: usize = 256;
/// How far back an open of a namespace path may lie from the operation it explains.
const OPEN_WINDOW_NS: u64 = 10_000_000_000;

/// The throttling of a target's cgroups, as read at several times.
type Readings = VecDeque<(u64, Vec<Throttled>)>;

/// What is known of the node.
#[derive(Debug, Default)]
pub struct Node {
    /// What the stream was seen with.
    pub start: Option<Start>,
    /// When that was.
    since: u64,
    /// The prober's namespace.
    netns: Option<Netns>,
    /// The cookie of a namespace, the prober's.
    cookie: Option<(Netns, u64)>,
    /// Links of each namespace that was read.
    pub links: BTreeMap<Netns, Vec<LinkState>>,
    /// The last time somebody set a link of this name up or down, by namespace and name.
    link_changes: BTreeMap<(Netns, String), (u64, LinkChange)>,
    /// NodePorts by the table they were read from.
    node_ports: BTreeMap<u8, NodePorts>,
    /// Pods.
    pub pods: KnownPods,
    /// Services.
    pub services: Vec<Service>,
    /// Settings that verdicts quote.
    pub settings: NodeSettings,
    opens: VecDeque<(u64, NetnsOpen)>,
    entries: VecDeque<(u64, NetnsOp)>,
    /// When a ClientHello was last seen: by port, the listener's namespace if known, and address.
    tls: BTreeMap<(u16, Option<Netns>, IpAddr), u64>,
    https: BTreeMap<SocketAddr, u64>,
    listeners: Listeners,
    /// When a namespace was first heard of, if it was made while the tracer watched.
    made: BTreeMap<Netns, u64>,
    inspections: BTreeMap<(Netns, SocketAddr), (u64, Inspection)>,
    throttling: BTreeMap<(Netns, SocketAddr), Readings>,
    losses: VecDeque<Loss>,
    /// What can drop packets in the namespaces that were asked about.
    pub firewalls: Firewalls,
    /// Who used up ephemeral ports, as of the last time that was read.
    pub ports: Option<PortPressure>,
    /// When probers dialled what lifecycle hooks dial, too.
    dials: Dials,
    /// What the last check of the node came to, and when.
    checked: Option<(u64, Findings)>,
}

impl Node {
    /// Takes in an observation that is about the node and not about one attempt.
    pub fn see(&mut self, observation: &Observation) {
        let time = observation.time_boot_ns;
        match &observation.fact {
            Fact::Start(start) => {
                self.netns = start.node_netns;
                self.start = Some((**start).clone());
                self.since = time;
            }
            Fact::Links(links) => {
                // Links are read in the prober's namespace only; it can change when the prober comes back elsewhere.
                self.netns = Some(links.netns);
                self.cookie = links.cookie.map(|cookie| (links.netns, cookie));
                self.see_links(links);
            }
            Fact::LinkChange(change) => self.see_link_change(time, change),
            Fact::NodePorts(ports) => {
                self.node_ports.insert(ports.mode as u8, ports.clone());
            }
            Fact::Pods(pods) => self.pods.replace(&pods.pods),
            Fact::Services(services) => self.services.clone_from(&services.services),
            Fact::NodeSettings(settings) => self.settings = settings.clone(),
            Fact::NetnsOpen(open) => remember(&mut self.opens, (time, open.clone())),
            Fact::NetnsOp(op) => self.see_netns_op(time, op),
            Fact::Inspection(seen) => {
                self.see_throttling(time, seen);
                insert_up_to(MAX_TARGETS, &mut self.inspections, (seen.from, seen.target), (time, (**seen).clone()));
            }
            Fact::TlsHello(hello) => {
                bounded_insert(&mut self.tls, (hello.addr.port(), hello.netns, hello.addr.ip()), time);
            }
            Fact::Connect(connect) if connect.prober => self.see_dial(time, connect.flow.dst),
            Fact::ConnectFailed(failed) if failed.prober && failed.conn.is_none() => self.see_dial(time, failed.dst),
            Fact::Listen(listen) => self.see_listen(time, listen),
            Fact::Firewall(firewall) => self.firewalls.see(time, firewall),
            Fact::Findings(findings) => self.checked = Some((time, (**findings).clone())),
            Fact::PortPressure(pressure) => self.ports = Some((**pressure).clone()),
            Fact::Loss(loss) => remember(&mut self.losses, loss.clone()),
            _ => {}
        }
    }

    /// A prober that comes back elsewhere all the time must not fill the memory.
    fn see_links(&mut self, links: &Links) {
        if self.links.len() >= MAX_LINK_TABLES && !self.links.contains_key(&links.netns) {
            self.links.pop_first();
        }
        self.links.insert(links.netns, links.links.clone());
    }

    fn see_link_change(&mut self, time: u64, change: &LinkChange) {
        if let Some(link) =
            self.links.get_mut(&change.netns).and_then(|links| links.iter_mut().find(|l| l.name == change.name))
        {
            link.up = change.up;
        }
        let key = (change.netns, change.name.clone());
        if self.link_changes.len() >= MAX_HISTORY && !self.link_changes.contains_key(&key) {
            self.forget_oldest_link_change();
        }
        self.link_changes.insert(key, (time, change.clone()));
    }

    /// Pods' links come and go by the hundred: the oldest of them goes first, the node's own last.
    fn forget_oldest_link_change(&mut self) {
        let rank = |netns: Netns, time: u64| (self.netns == Some(netns), time);
        let oldest =
            self.link_changes.iter().min_by_key(|(key, (time, _))| rank(key.0, *time)).map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.link_changes.remove(&key);
        }
    }

    fn see_dial(&mut self, time: u64, dst: SocketAddr) {
        if self.pods.have_hook_on(dst.port()) {
            self.dials.note(dst, time);
        }
    }

    fn see_listen(&mut self, time: u64, listen: &Listen) {
        let key = (listen.netns, listen.addr.port());
        if !listen.begins {
            // A new process may serve something else on that port.
            self.tls.retain(|(port, netns, _), _| *port != key.1 || netns.is_some_and(|n| n != key.0));
            self.https.retain(|dst, _| dst.port() != listen.addr.port());
        }
        self.listeners.see(time, listen);
    }

    /// A namespace that nobody was in at the start and that was not heard of since is new. An inode
    /// number is used again: an end makes it unknown, and takes its listeners along.
    fn see_netns_op(&mut self, time: u64, op: &NetnsOp) {
        remember(&mut self.entries, (time, op.clone()));
        let old = self.start.as_ref().is_none_or(|start| start.namespaces.contains(&op.netns));
        match op.op {
            NetnsOpKind::End => {
                self.made.remove(&op.netns);
                self.listeners.forget(op.netns);
            }
            NetnsOpKind::Unshare | NetnsOpKind::Clone => {
                self.links.remove(&op.netns);
                self.listeners.forget(op.netns);
                bounded_insert(&mut self.made, op.netns, time);
            }
            NetnsOpKind::Switch if !old && !self.made.contains_key(&op.netns) => {
                bounded_insert(&mut self.made, op.netns, time);
            }
            NetnsOpKind::Switch | NetnsOpKind::Setns => {}
        }
    }

    /// Since when the tracer watches.
    #[must_use]
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// When a namespace was made, if the tracer saw it.
    #[must_use]
    pub fn netns_made(&self, netns: Netns) -> Option<u64> {
        self.made.get(&netns).copied()
    }

    /// It is a node's own namespace: a prober lives there, or did. Links are read nowhere else.
    #[must_use]
    pub fn is_a_node(&self, netns: Netns) -> bool {
        self.netns == Some(netns) || self.links.contains_key(&netns)
    }

    /// When probers dialled what lifecycle hooks dial, too.
    #[must_use]
    pub const fn dials(&self) -> &Dials {
        &self.dials
    }

    /// The listeners that were seen to come and go.
    #[must_use]
    pub const fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// The end of the listener that a target address leads to, as far as its namespace is known.
    #[must_use]
    pub fn listener_end(&self, from: Netns, target: SocketAddr) -> Option<&(u64, Listen)> {
        let netns = self.netns_of_addr(from, target.ip())?;
        self.listeners.last(netns, target.port()).filter(|(_, listen)| !listen.begins)
    }

    /// Readings of how often the target's cgroups were throttled, oldest first.
    pub fn throttling(&self, from: Netns, target: SocketAddr) -> impl Iterator<Item = (u64, &[Throttled])> {
        let readings = self.throttling.get(&(from, target)).into_iter().flatten();
        readings.map(|(time, throttled)| (*time, throttled.as_slice()))
    }

    fn see_throttling(&mut self, time: u64, seen: &Inspection) {
        if seen.throttled.is_empty() {
            return;
        }
        let key = (seen.from, seen.target);
        if !self.throttling.contains_key(&key) {
            insert_up_to(MAX_TARGETS, &mut self.throttling, key, VecDeque::new());
        }
        if let Some(readings) = self.throttling.get_mut(&key) {
            if readings.len() == MAX_READINGS {
                readings.pop_front();
            }
            readings.push_back((time, seen.throttled.clone()));
        }
    }

    /// The address is that of a pod of this node with a network of its own.
    #[must_use]
    pub fn has_pod(&self, addr: IpAddr) -> bool {
        self.pods.at(addr).any(|pod| !pod.host_network)
    }

    /// The state of a target, as it was last read.
    #[must_use]
    pub fn inspection(&self, from: Netns, target: SocketAddr) -> Option<(u64, &Inspection)> {
        self.inspections.get(&(from, target)).map(|(time, seen)| (*time, seen))
    }

    /// The prober's namespace, which is the node's.
    #[must_use]
    pub const fn netns(&self) -> Option<Netns> {
        self.netns
    }

    /// `net_cookie` of a namespace, where it is known.
    #[must_use]
    pub fn cookie(&self, netns: Netns) -> Option<u64> {
        self.cookie.filter(|(of, _)| *of == netns).map(|(_, cookie)| cookie)
    }

    /// Addresses of a namespace's links, if it was read.
    #[must_use]
    pub fn owns(&self, netns: Netns, addr: IpAddr) -> bool {
        addr.is_loopback() || self.links.get(&netns).is_some_and(|l| l.iter().any(|l| l.addrs.contains(&addr)))
    }

    /// The loopback device of a namespace, if it was read.
    #[must_use]
    pub fn loopback(&self, netns: Netns) -> Option<&LinkState> {
        self.links.get(&netns)?.iter().find(|l| l.loopback)
    }

    /// The last link-down of a device in a namespace.
    #[must_use]
    pub fn link_down(&self, netns: Netns, name: &str) -> Option<&(u64, LinkChange)> {
        self.link_changes.get(&(netns, name.to_owned())).filter(|(_, change)| !change.up)
    }

    /// The path by which this process (or one of those above it) last named a namespace that is not
    /// its own, before `time`.
    #[must_use]
    pub fn netns_path(&self, pids: &[u32], time: u64) -> Option<&str> {
        self.opens
            .iter()
            .rev()
            .filter(|(at, _)| *at <= time && time - at <= OPEN_WINDOW_NS)
            .find(|(_, open)| pids.contains(&open.actor.pid) && !names_itself(open))
            .map(|(_, open)| open.path.as_str())
    }

    /// The IPVS NodePort that a source address and port collides with.
    #[must_use]
    pub fn ipvs_node_port(&self, src: SocketAddr) -> Option<&NodePort> {
        let table = self.node_ports.get(&(ProxyMode::Ipvs as u8))?;
        let on_addr = |p: &&NodePort| p.addrs.is_empty() || p.addrs.contains(&src.ip());
        table.ports.iter().filter(|p| p.port == src.port()).find(on_addr)
    }

    /// What one table said last.
    #[must_use]
    pub fn node_ports(&self, mode: ProxyMode) -> Option<&NodePorts> {
        self.node_ports.get(&(mode as u8))
    }

    /// All NodePorts, of every table.
    pub fn all_node_ports(&self) -> impl Iterator<Item = (&NodePorts, &NodePort)> {
        self.node_ports.values().flat_map(|table| table.ports.iter().map(move |p| (table, p)))
    }

    /// `namespace/name` of the Service behind a NodePort.
    #[must_use]
    pub fn service_of(&self, port: &NodePort) -> Option<String> {
        port.service.clone().or_else(|| {
            self.services
                .iter()
                .find(|s| s.ports.iter().any(|p| p.node_port == Some(port.port)))
                .map(|s| format!("{}/{}", s.namespace, s.name))
        })
    }

    /// When a ClientHello was last seen at this listener: by its namespace, or, where one of the two is
    /// not known, by its address, if that is not one that every namespace has.
    #[must_use]
    pub fn tls_hello(&self, netns: Option<Netns>, dst: SocketAddr) -> Option<u64> {
        let from = (dst.port(), None, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.tls
            .range(from..)
            .take_while(|((port, ..), _)| *port == dst.port())
            .filter(|((_, at, ip), _)| match (at, netns) {
                (Some(at), Some(netns)) => *at == netns,
                _ => *ip == dst.ip() && !ip.is_loopback(),
            })
            .map(|(_, time)| *time)
            .max()
    }

    /// A probe that speaks HTTPS got an answer from there.
    pub fn answered_https(&mut self, dst: SocketAddr, time: u64) {
        bounded_insert(&mut self.https, dst, time);
    }

    /// When a probe that speaks HTTPS last got an answer from there.
    #[must_use]
    pub fn https_answer(&self, dst: SocketAddr) -> Option<u64> {
        self.https.get(&dst).copied()
    }

    /// The namespace that owns an address: a pod's, or one whose links were read.
    #[must_use]
    pub fn netns_of_addr(&self, from: Netns, addr: IpAddr) -> Option<Netns> {
        if self.owns(from, addr) {
            return Some(from);
        }
        let pod = self.pods.at(addr).next().and_then(|p| p.netns);
        pod.or_else(|| {
            let mut here = self.inspections.values().map(|(_, seen)| seen).filter(|seen| seen.from == from);
            here.find(|seen| seen.target.ip() == addr && seen.netns.is_some()).and_then(|seen| seen.netns)
        })
    }

    /// Events lost between two moments.
    #[must_use]
    pub fn lost_between(&self, from: u64, to: u64) -> u64 {
        self.losses_between(from, to).map(|loss| loss.count).sum()
    }

    /// The losses themselves.
    pub fn losses_between(&self, from: u64, to: u64) -> impl Iterator<Item = &Loss> {
        self.losses.iter().filter(move |loss| loss.from_boot_ns <= to && loss.to_boot_ns >= from)
    }

    /// A finding of the last check of the node, and when that was.
    #[must_use]
    pub fn finding(&self, check: &str, like: impl Fn(&FindingBody) -> bool) -> Option<(u64, &FindingBody)> {
        let (time, checked) = self.checked.as_ref()?;
        let found = checked.findings.iter().find(|finding| finding.check == check && like(finding))?;
        Some((*time, found))
    }

    /// Those of these hooks that are missing.
    #[must_use]
    pub fn missing_of(&self, hooks: &[&str]) -> Vec<String> {
        let Some(start) = &self.start else { return Vec::new() };
        start.missing_hooks.iter().map(|m| m.hook.clone()).filter(|m| hooks.contains(&m.as_str())).collect()
    }
}

/// `/proc/self/…`, `/proc/thread-self/…` or the opener's own pid: how a plugin remembers the way back.
fn names_itself(open: &NetnsOpen) -> bool {
    let Some(rest) = open.path.strip_prefix("/proc/") else { return false };
    let first = rest.split('/').next().unwrap_or_default();
    first == "self"
        || first == "thread-self"
        || first.parse() == Ok(open.actor.pid)
        || first.parse() == Ok(open.actor.tid)
}

fn remember<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == MAX_HISTORY {
        queue.pop_front();
    }
    queue.push_back(item);
}

fn bounded_insert<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V) {
    insert_up_to(MAX_LISTENERS, map, key, value);
}

fn insert_up_to<K: Ord, V>(most: usize, map: &mut BTreeMap<K, V>, key: K, value: V) {
    if map.len() >= most && !map.contains_key(&key) {
        map.pop_first();
    }
    map.insert(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Actor;

    #[test]
    fn the_last_link_down_is_known_however_many_pods_came_and_went() {
        let mut node = Node { netns: Some(Netns(1)), ..Node::default() };
        let actor = Actor { pid: 5, tid: 5, comm: "x".into(), netns: None, cgroup: None, cgroup_memory: None };
        let down = |netns| LinkChange {
            netns: Netns(netns),
            ifindex: 1,
            name: "lo".into(),
            up: false,
            actor: actor.clone(),
            ancestors: Vec::new(),
            exe: None,
            cni_netns: None,
            hook: "qdisc_reset".into(),
        };
        node.see(&Observation { time_boot_ns: 0, fact: Fact::LinkChange(down(1)) });
        for number in 1..20_000_u32 {
            let fact = Fact::LinkChange(down(1_000 + number));
            node.see(&Observation { time_boot_ns: u64::from(number), fact });
        }
        assert!(node.link_down(Netns(1), "lo").is_some(), "the node's own stays");
        assert!(node.link_down(Netns(20_999), "lo").is_some(), "the newest is taken in");
        assert!(node.link_changes.len() <= MAX_HISTORY);
    }
}
