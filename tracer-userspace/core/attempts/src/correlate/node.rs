//! What is known of the node, in one place for the rules: each part of it has its owner beside this file.
//!
//! Filled from snapshots that sources read and from kernel events; every collection is bounded.

use std::net::{IpAddr, SocketAddr};

use super::firewalls::Firewalls;
use super::flushes::Flushes;
use super::links::KnownLinks;
use super::listeners::Listeners;
use super::losses::Losses;
use super::namespaces::Namespaces;
use super::node_ports::NodePortTables;
use super::pods::KnownPods;
use super::recent_connects::RecentConnects;
use super::targets::Targets;
use super::tls_ports::TlsPorts;
use tracer_common::names::Hook;
use tracer_model::event::{
    FindingBody, Findings, Listen, Loss, Netns, NetnsOp, NetnsOpKind, NodePort, NodeSettings, Observation,
    ObservationKind, PodSockets, PortHolders, PortPressure, Service, Start, WITH_API_SERVER,
};
use tracer_model::recent::Recent;

/// Namespaces kept that ended: what a list says of them is older.
const MAX_ENDED: usize = 1024;
const MAX_PORTS: usize = 256;

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
    pub links: KnownLinks,
    /// Namespaces that were made, and the paths by which processes came into them.
    pub namespaces: Namespaces,
    /// Namespaces that ended, until something happens in another one of that number.
    ended: Recent<Netns, (), MAX_ENDED>,
    /// The listeners that were seen to come and go.
    pub listeners: Listeners,
    /// Which listeners speak TLS.
    pub tls: TlsPorts,
    /// What was read of targets.
    pub targets: Targets,
    /// Events that were lost.
    pub losses: Losses,
    /// Bulk removals of rules and routes.
    pub flushes: Flushes,
    /// NodePorts of every table.
    pub node_ports: NodePortTables,
    /// Pods.
    pub pods: KnownPods,
    /// Services.
    pub services: Vec<Service>,
    /// Settings that verdicts quote.
    pub settings: NodeSettings,
    /// What can drop packets in the namespaces that were asked about.
    pub firewalls: Firewalls,
    /// Who used up ephemeral ports, as of the last time that was read.
    pub ports: Option<PortPressure>,
    /// When probers dialled what not only probes dial.
    pub recent_connects: RecentConnects,
    /// What the last check of the node came to, and when.
    checked: Option<(u64, Findings)>,
    /// Who held a port on which nobody listened, and when that was read.
    port_holders: Recent<(Netns, u16), (u64, PortHolders), MAX_PORTS>,
}

impl Node {
    /// Takes in an observation that is about the node and not about one attempt.
    pub fn observe(&mut self, observation: &Observation) {
        let time = observation.time_boot_ns;
        match &observation.kind {
            ObservationKind::Start(start) => {
                self.netns = start.node_netns;
                self.start = Some((**start).clone());
                self.since = time;
            }
            ObservationKind::Links(links) => {
                // Links are read in the prober's namespace only; it can change when the prober comes back elsewhere.
                self.netns = Some(links.netns);
                self.cookie = links.cookie.map(|cookie| (links.netns, cookie));
                self.links.observe(links);
            }
            ObservationKind::LinkChange(change) => self.links.observe_change(time, change, self.netns),
            ObservationKind::NodePorts(ports) => self.node_ports.observe(ports),
            ObservationKind::Pods(pods) => self.pods.replace(&pods.pods),
            ObservationKind::Services(services) => self.services.clone_from(&services.services),
            ObservationKind::NodeSettings(settings) => self.settings = settings.clone(),
            ObservationKind::NetnsOpen(open) => self.namespaces.observe_open(time, open),
            ObservationKind::NetnsOp(op) => self.observe_netns_op(time, op),
            ObservationKind::Inspection(seen) => self.targets.observe(time, seen),
            ObservationKind::PodSockets(seen) => self.targets.observe_sockets(time, seen),
            ObservationKind::TlsHello(hello) => self.tls.observe_hello(time, hello),
            ObservationKind::Connect(connect) if connect.prober => {
                self.observe_connect(time, connect.flow.dst, &connect.actor.comm)
            }
            ObservationKind::ConnectFailed(failed) if failed.prober && failed.conn.is_none() => {
                self.observe_connect(time, failed.dst, &failed.actor.comm);
            }
            ObservationKind::Listen(listen) => self.observe_listen(time, listen),
            ObservationKind::Firewall(firewall) => self.firewalls.observe(time, firewall),
            ObservationKind::Findings(findings) => self.checked = Some((time, (**findings).clone())),
            ObservationKind::PortPressure(pressure) => self.ports = Some((**pressure).clone()),
            ObservationKind::Loss(loss) => self.losses.observe(loss),
            ObservationKind::PortHolders(seen) => {
                self.port_holders.insert((seen.netns, seen.port), (time, (**seen).clone()))
            }
            ObservationKind::RulesFlushed(flushed) => self.flushes.observe(flushed),
            _ => {}
        }
    }

    /// What not only probes dial is noted.
    fn observe_connect(&mut self, time: u64, dst: SocketAddr, comm: &str) {
        let api_server = || WITH_API_SERVER.contains(&comm) && self.pods.are_probed_at(dst);
        if self.pods.have_handler_on(dst.port()) || self.pods.is_api_server(dst) || api_server() {
            self.recent_connects.note(dst, time);
        }
    }

    fn observe_listen(&mut self, time: u64, listen: &Listen) {
        if !listen.begins {
            self.tls.forget(listen);
        }
        self.listeners.observe(time, listen);
    }

    /// It can have been there at the start; what has ended since is not.
    fn may_be_old(&self, netns: Netns) -> bool {
        let unlisted = |start: &Start| start.namespaces_incomplete && !self.has_ended(netns);
        self.start.as_ref().is_none_or(|start| start.namespaces.contains(&netns) || unlisted(start))
    }

    /// A namespace that ends takes its listeners along; one that is made has neither listeners nor links that were read
    /// under its number before.
    fn observe_netns_op(&mut self, time: u64, op: &NetnsOp) {
        self.namespaces.observe(time, op, self.may_be_old(op.netns));
        if op.begins_again() && op.op != NetnsOpKind::End {
            self.links.forget(op.netns);
        }
        match op.op {
            NetnsOpKind::End => self.ended.insert(op.netns, ()),
            _ => _ = self.ended.remove(&op.netns),
        }
        if op.begins_again() {
            // A number is given again.
            if let Some(start) = &mut self.start {
                start.namespaces.retain(|there| *there != op.netns);
            }
            self.listeners.forget(op.netns);
            self.firewalls.forget(op.netns);
            self.port_holders.retain(|(netns, _), _| *netns != op.netns);
        }
    }

    /// Since when the tracer watches.
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// The tracer saw it end.
    pub fn has_ended(&self, netns: Netns) -> bool {
        self.ended.contains_key(&netns)
    }

    /// It is a node's own namespace: a prober lives there, or did. Links are read nowhere else.
    pub fn is_a_node(&self, netns: Netns) -> bool {
        self.netns == Some(netns) || self.links.get(&netns).is_some()
    }

    /// The end of the listener that a target address leads to, as far as its namespace is known.
    pub fn listener_end(&self, from: Netns, target: SocketAddr) -> Option<&(u64, Listen)> {
        let netns = self.netns_of_addr(from, target.ip())?;
        self.listeners.last(netns, target.port()).filter(|(_, listen)| !listen.begins)
    }

    /// The address is that of a pod of this node with a network of its own.
    pub fn has_pod(&self, addr: IpAddr) -> bool {
        self.pods.at(addr).any(|pod| !pod.host_network)
    }

    /// The sockets of a target's pod, as they were last read, unless the pod has ended since. Where no hook reports the end of
    /// a namespace, the list of pods shows that another pod has the address now.
    pub fn pod_sockets(&self, from: Netns, target: SocketAddr) -> Option<(u64, &PodSockets)> {
        let holder = self.pods.netns_at(target.ip());
        let is_same = |seen: &PodSockets| holder.is_none_or(|netns| netns == seen.netns);
        self.targets.sockets(from, target).filter(|(_, seen)| !self.has_ended(seen.netns) && is_same(seen))
    }

    /// The prober's namespace, which is the node's.
    pub const fn netns(&self) -> Option<Netns> {
        self.netns
    }

    /// `net_cookie` of a namespace, where it is known.
    pub fn cookie(&self, netns: Netns) -> Option<u64> {
        self.cookie.filter(|(of, _)| *of == netns).map(|(_, cookie)| cookie)
    }

    /// Addresses of a namespace's links, if it was read.
    pub fn owns(&self, netns: Netns, addr: IpAddr) -> bool {
        addr.is_loopback() || self.links.have(netns, addr)
    }

    /// `namespace/name` of the Service behind a NodePort.
    pub fn service_of(&self, port: &NodePort) -> Option<String> {
        port.service.clone().or_else(|| self.service_of_number(port.port))
    }

    /// The same by the number alone, where no table that was read has the NodePort yet.
    pub fn service_of_number(&self, node_port: u16) -> Option<String> {
        let has_it = |service: &&Service| service.ports.iter().any(|it| it.node_port == Some(node_port));
        self.services.iter().find(has_it).map(|it| format!("{}/{}", it.namespace, it.name))
    }

    /// The namespace that owns an address: a pod's, one with links that were read, or the one that a query found.
    pub fn netns_of_addr(&self, from: Netns, addr: IpAddr) -> Option<Netns> {
        if self.owns(from, addr) {
            return Some(from);
        }
        self.pods.netns_at(addr).or_else(|| self.targets.netns_of(from, addr))
    }

    /// Events lost between two moments, any of which may have been an attempt's own.
    pub fn lost_between(&self, from: u64, to: u64) -> u64 {
        Loss::total(self.losses.between(from, to).filter(|loss| loss.concerns_attempts()))
    }

    /// A finding of the last check of the node, and when that was.
    pub fn finding(&self, check: &str, like: impl Fn(&FindingBody) -> bool) -> Option<(u64, &FindingBody)> {
        let (time, checked) = self.checked.as_ref()?;
        let found = checked.findings.iter().find(|finding| finding.check == check && like(finding))?;
        Some((*time, found))
    }

    /// Who held a port of a namespace when it was last read.
    #[must_use]
    pub fn port_holders(&self, netns: Netns, port: u16) -> Option<(u64, &PortHolders)> {
        self.port_holders.get(&(netns, port)).map(|(time, seen)| (*time, seen))
    }

    /// Those of these hooks that are missing.
    pub fn missing_of(&self, hooks: &[Hook]) -> Vec<Hook> {
        let Some(start) = &self.start else { return Vec::new() };
        let of = |name: &str| hooks.iter().copied().find(|hook| hook.name() == name);
        start.missing_hooks.iter().filter_map(|missing| of(&missing.hook)).collect()
    }
}

#[cfg(test)]
mod tests;
