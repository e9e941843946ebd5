//! The state of the node, in one place for the rules. Each part has a file of its own beside this one.
//!
//! Sources and kernel events fill it. Every collection is bounded.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::attempt::Attempt;
use super::endpoints::Endpoints;
use super::firewalls::Firewalls;
use super::flushes::Flushes;
use super::links::KnownLinks;
use super::listeners::Listeners;
use super::losses::Losses;
use super::namespaces::Namespaces;
use super::node_ports::NodePortTables;
use super::pod_connects::PodConnects;
use super::pods::KnownPods;
use super::recent_connects::RecentConnects;
use super::targets::Targets;
use super::tls_ports::TlsPorts;
use tracer_common::names::Hook;
use tracer_model::event::{
    Actor, DeviceProgram, DevicePrograms, FindingBody, Findings, Listen, Loss, Netns, NetnsOp, NetnsOpKind, NodePort,
    NodeSettings, Observation, ObservationKind, PodSockets, PortHolders, PortPressure, Service, Start, WITH_API_SERVER,
};
use tracer_model::recent::Recent;

/// How many ended namespaces are kept. A list of pods can still name them.
const MAX_ENDED: usize = 1024;
const MAX_PORTS: usize = 256;
const MAX_DEVICES: usize = 256;
const MAX_TARGETS: usize = 4096;
const MAX_KILLED: usize = 256;

/// The state of the node.
#[derive(Debug, Default)]
pub struct Node {
    /// The kernel, hooks and namespaces at the start of the stream.
    pub start: Option<Start>,
    /// When the stream started.
    since: u64,
    /// The prober's namespace.
    netns: Option<Netns>,
    /// The prober's namespace and its cookie.
    cookie: Option<(Netns, u64)>,
    /// Links of each namespace that was read.
    pub links: KnownLinks,
    /// Namespaces that were made, and the paths by which processes entered them.
    pub namespaces: Namespaces,
    /// Namespaces that ended, until there is an event of another one with that number.
    ended: Recent<Netns, (), MAX_ENDED>,
    /// Listeners that began or ended.
    pub listeners: Listeners,
    /// Which listeners speak TLS.
    pub tls: TlsPorts,
    /// Inspections of targets.
    pub targets: Targets,
    /// When the last attempt of a prober that succeeded began, by target.
    succeeded: Recent<SocketAddr, u64, MAX_TARGETS>,
    /// Processes that were killed for lack of memory, and when.
    killed: Recent<u32, (u64, Actor), MAX_KILLED>,
    /// Connects of failing pods that failed.
    pub pod_connects: PodConnects,
    /// Events that were lost.
    pub losses: Losses,
    /// Hooks that were attached after the start, and when.
    attached: BTreeMap<Hook, u64>,
    /// Bulk removals of rules and routes.
    pub flushes: Flushes,
    /// NodePorts of every table.
    pub node_ports: NodePortTables,
    pub pods: KnownPods,
    pub services: Vec<Service>,
    /// The endpoints of Services that were asked for.
    pub endpoints: Endpoints,
    /// Settings that verdicts quote.
    pub settings: NodeSettings,
    /// The firewalls of the namespaces that were queried.
    pub firewalls: Firewalls,
    /// The last reading of the processes that use up ephemeral ports.
    pub ports: Option<PortPressure>,
    /// When probers connected to targets that not only probes use.
    pub recent_connects: RecentConnects,
    /// The findings of the last check of the node, and its time.
    checked: Option<(u64, Findings)>,
    /// The sockets that held a port without a listener, and when they were read.
    port_holders: Recent<(Netns, u16), (u64, PortHolders), MAX_PORTS>,
    /// The programs of the devices that were queried, and when they were read.
    programs: Recent<(Netns, u32), (u64, DevicePrograms), MAX_DEVICES>,
}

impl Node {
    /// Takes in an observation about the node.
    pub fn observe(&mut self, observation: &Observation) {
        let time = observation.time_boot_ns;
        match &observation.kind {
            ObservationKind::Start(start) => {
                self.netns = start.node_netns;
                self.endpoints.enabled = start.asks_for_endpoints;
                self.start = Some((**start).clone());
                self.since = time;
            }
            ObservationKind::Links(links) => {
                // tracer reads links only in the prober's namespace. A restarted prober can be in another one.
                self.netns = Some(links.netns);
                self.cookie = links.cookie.map(|cookie| (links.netns, cookie));
                self.links.observe(time, links);
            }
            ObservationKind::LinkChange(change) => {
                // Nothing sets a link of an ended namespace up: another one has its number, and no entry into it was seen.
                if change.up && self.has_ended(change.netns) {
                    self.begin_again(change.netns);
                    self.namespaces.observe_new(time, change.netns);
                }
                self.links.observe_change(time, change, self.netns);
            }
            ObservationKind::NodePorts(ports) => self.node_ports.observe(time, ports),
            ObservationKind::Pods(pods) => self.pods.replace(time, &pods.pods),
            ObservationKind::KubeletProbe(probe) => self.pods.observe_reported(&probe.pod),
            ObservationKind::Services(services) => self.services.clone_from(&services.services),
            ObservationKind::ServiceEndpoints(service) => self.endpoints.observe(time, service),
            ObservationKind::NodeSettings(settings) => self.settings = settings.clone(),
            ObservationKind::NetnsOpen(open) => self.namespaces.observe_open(time, open),
            ObservationKind::NetnsOp(op) => self.observe_netns_op(time, op),
            ObservationKind::Inspection(reading) => self.targets.observe(time, reading),
            ObservationKind::PodSockets(reading) => self.targets.observe_sockets(time, reading),
            ObservationKind::Limits(reading) => self.targets.observe_limits(time, reading),
            ObservationKind::OomKill(victim) => self.killed.insert(victim.pid, (time, victim.clone())),
            ObservationKind::PodConnectFailed(failed) => self.pod_connects.observe(time, failed),
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
            ObservationKind::PortPressure(pressure) => self.observe_ports(pressure),
            ObservationKind::Loss(loss) => self.losses.observe(loss),
            ObservationKind::HooksAttached(attached) => {
                let hooks = Hook::ALL.iter().filter(|hook| attached.hooks.iter().any(|name| name == hook.name()));
                self.attached.extend(hooks.map(|hook| (*hook, time)));
            }
            ObservationKind::PortHolders(reading) => {
                self.port_holders.insert((reading.netns, reading.port), (time, (**reading).clone()))
            }
            ObservationKind::DevicePrograms(reading) => {
                self.programs.insert((reading.netns, reading.ifindex), (time, (**reading).clone()))
            }
            ObservationKind::RulesFlushed(flushed) => self.flushes.observe(flushed),
            _ => {}
        }
    }

    /// Keeps the time of a connect to a target that not only probes use.
    fn observe_connect(&mut self, time: u64, dst: SocketAddr, comm: &str) {
        let api_server = || WITH_API_SERVER.contains(&comm) && self.pods.are_probed_at(dst);
        if self.pods.have_handler_on(dst.port()) || self.pods.is_api_server(dst) || api_server() {
            self.recent_connects.add(dst, time);
        }
    }

    fn observe_ports(&mut self, pressure: &PortPressure) {
        self.settings.local_port_range = pressure.local_port_range.or(self.settings.local_port_range);
        self.ports = Some(pressure.clone());
    }

    fn observe_listen(&mut self, time: u64, listen: &Listen) {
        if !listen.begins {
            let mut tls = std::mem::take(&mut self.tls);
            tls.forget(listen, |addr| self.netns_at(addr) == Some(listen.netns));
            self.tls = tls;
        }
        self.listeners.observe(time, listen);
    }

    /// The namespace that has an address, by the view of the prober.
    fn netns_at(&self, addr: IpAddr) -> Option<Netns> {
        self.netns_of_addr(self.netns?, addr)
    }

    /// The namespace may have existed at the start, and has not ended since.
    fn may_be_old(&self, netns: Netns) -> bool {
        let unlisted = |start: &Start| start.namespaces_incomplete && !self.has_ended(netns);
        self.start.as_ref().is_none_or(|start| start.namespaces.contains(&netns) || unlisted(start))
    }

    fn observe_netns_op(&mut self, time: u64, op: &NetnsOp) {
        let old = self.may_be_old(op.netns);
        if op.op == NetnsOpKind::End {
            self.ended.insert(op.netns, ());
            self.forget_state(op.netns);
        } else if op.begins_again() || self.has_ended(op.netns) {
            self.begin_again(op.netns);
        }
        self.namespaces.observe(time, op, old);
    }

    /// A namespace that ends has no listeners any more.
    fn forget_state(&mut self, netns: Netns) {
        if let Some(start) = &mut self.start {
            start.namespaces.retain(|there| *there != netns);
        }
        self.listeners.forget(netns);
        self.firewalls.forget(netns);
        self.port_holders.retain(|(of, _), _| *of != netns);
        self.programs.retain(|(of, _), _| *of != netns);
    }

    /// Of a new namespace, nothing is known that was read or reported of an older one with its number.
    fn begin_again(&mut self, netns: Netns) {
        self.ended.remove(&netns);
        self.forget_state(netns);
        self.namespaces.forget_paths(netns);
        self.links.forget(netns);
        self.targets.forget(netns);
        self.pod_connects.forget(netns);
        self.tls.forget_namespace(netns);
        self.pods.forget_namespace(netns);
    }

    /// Since when tracer watches.
    pub const fn since(&self) -> u64 {
        self.since
    }

    /// An attempt of a prober succeeded.
    pub fn observe_success(&mut self, attempt: &Attempt) {
        if attempt.prober {
            self.succeeded.insert(attempt.flow.dst, attempt.started);
        }
    }

    /// An attempt of a prober to this target has succeeded at or after `from`.
    pub fn has_succeeded_since(&self, dst: SocketAddr, from: u64) -> bool {
        self.succeeded.get(&dst).is_some_and(|at| *at >= from)
    }

    /// tracer saw the namespace end.
    pub fn has_ended(&self, netns: Netns) -> bool {
        self.ended.contains_key(&netns)
    }

    /// A prober is or was in the namespace: it is a node's own. tracer reads links only in such namespaces.
    pub fn is_a_node(&self, netns: Netns) -> bool {
        self.netns == Some(netns) || self.links.get(&netns).is_some()
    }

    /// The ends of listeners that may have taken this attempt, in the namespace of its target. One that ended before the
    /// handshake did not take it.
    pub fn listener_ends(&self, netns: Netns, attempt: &Attempt) -> impl Iterator<Item = &(u64, Listen)> {
        let from = attempt.established_at().unwrap_or(attempt.started);
        self.listeners.ends_at(netns, attempt.flow.dst).filter(move |(time, _)| *time >= from)
    }

    /// The process that may have taken the port over; see [`Listeners::successor`].
    pub fn successor(&self, end: &(u64, Listen), dst: SocketAddr) -> Option<&(u64, Listen)> {
        let is_listener = |loss: &Loss| [Loss::RING, Loss::PROGRAM, Loss::LISTEN].contains(&loss.where_.as_str());
        let is_watched = |made: u64| !self.losses.between(made, end.0).any(is_listener);
        self.listeners.successor(end, dst, self.namespaces.made(end.1.netns).is_some_and(is_watched))
    }

    /// The processes that were killed for lack of memory between two times, and when.
    pub fn killed_between(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &Actor)> {
        let all = self.killed.range(..).map(|(_, (time, victim))| (*time, victim));
        all.filter(move |(time, _)| (from..=to).contains(time))
    }

    /// A pod of this node with a network namespace of its own has the address.
    pub fn has_pod(&self, addr: IpAddr) -> bool {
        self.pods.at(addr).any(|pod| !pod.host_network)
    }

    /// The attempt goes to an address of its own namespace. A packet to such an address has it as its source, too.
    pub fn is_to_itself(&self, attempt: &Attempt) -> bool {
        let (src, dst) = (attempt.flow.src.ip(), attempt.flow.dst.ip());
        src == dst || attempt.netns.is_some_and(|from| self.is_a_node(from) && self.owns(from, dst))
    }

    /// The attempt goes to a pod of this node, which may have the node's network. The API server is none of them: others
    /// connect to it, too.
    pub fn is_at_pod(&self, attempt: &Attempt) -> bool {
        let dst = attempt.flow.dst;
        let is_own = || attempt.netns.is_some_and(|it| self.owns(it, dst.ip())) && !self.pods.is_api_server(dst);
        self.has_pod(dst.ip()) || is_own()
    }

    /// tracer reads the servers of targets: it says so, or it has read one.
    pub fn reads_servers(&self) -> bool {
        self.start.as_ref().is_some_and(|start| start.reads_servers) || self.targets.all_servings().next().is_some()
    }

    /// The last reading of the sockets of a target's pod, unless the pod has ended since. Without a hook for the end of
    /// namespaces, the list of pods shows if another pod has the address now. For an address of the prober's own, the
    /// namespace that was read is that of the process that accepts: an address translation may lead to any.
    pub fn pod_sockets(&self, from: Netns, target: SocketAddr) -> Option<(u64, &PodSockets)> {
        let holder = self.pods.netns_at(target.ip());
        let is_same = |reading: &PodSockets| holder.is_none_or(|netns| netns == from || reading.netns == Some(netns));
        let has_ended = |reading: &PodSockets| reading.netns.is_some_and(|netns| self.has_ended(netns));
        self.targets.sockets(from, target).filter(|(_, reading)| !has_ended(reading) && is_same(reading))
    }

    /// The prober's namespace, which is the node's.
    pub const fn netns(&self) -> Option<Netns> {
        self.netns
    }

    /// `net_cookie` of a namespace, if known.
    pub fn cookie(&self, netns: Netns) -> Option<u64> {
        self.cookie.filter(|(of, _)| *of == netns).map(|(_, cookie)| cookie)
    }

    /// A link of the namespace has the address, as far as the links were read.
    pub fn owns(&self, netns: Netns, addr: IpAddr) -> bool {
        addr.is_loopback() || self.links.have(netns, addr)
    }

    /// `namespace/name` of the Service behind a NodePort.
    pub fn service_of(&self, port: &NodePort) -> Option<String> {
        port.service.clone().or_else(|| self.service_of_number(port.port))
    }

    /// `namespace/name` of the Service with this NodePort, if no table has the NodePort yet.
    pub fn service_of_number(&self, node_port: u16) -> Option<String> {
        let has_it = |service: &&Service| service.ports.iter().any(|it| it.node_port == Some(node_port));
        self.services.iter().find(has_it).map(|it| format!("{}/{}", it.namespace, it.name))
    }

    /// The namespace that has an address: that of the client, a pod's, or the one that a query found.
    pub fn netns_of_addr(&self, from: Netns, addr: IpAddr) -> Option<Netns> {
        if self.owns(from, addr) {
            return Some(from);
        }
        self.pods.netns_at(addr).or_else(|| self.targets.netns_of(from, addr))
    }

    /// How many events were lost between two times that may have belonged to an attempt.
    pub fn lost_between(&self, from: u64, to: u64) -> u64 {
        Loss::total(self.losses.between(from, to).filter(|loss| loss.concerns_attempts()))
    }

    /// A finding of the last check of the node, and its time.
    pub fn finding(&self, check: &str, like: impl Fn(&FindingBody) -> bool) -> Option<(u64, &FindingBody)> {
        let (time, checked) = self.checked.as_ref()?;
        let found = checked.findings.iter().find(|finding| finding.check == check && like(finding))?;
        Some((*time, found))
    }

    /// The last reading of the sockets that hold a port, and its time.
    #[must_use]
    pub fn port_holders(&self, netns: Netns, port: u16) -> Option<(u64, &PortHolders)> {
        self.port_holders.get(&(netns, port)).map(|(time, reading)| (*time, reading))
    }

    /// The last reading of the programs of a device, and its time.
    #[must_use]
    pub fn programs(&self, netns: Netns, ifindex: u32) -> Option<(u64, &[DeviceProgram])> {
        self.programs.get(&(netns, ifindex)).map(|(time, reading)| (*time, reading.programs.as_slice()))
    }

    /// The module of IPVS is loaded, as far as its hooks show.
    pub fn has_ipvs(&self) -> bool {
        let at_start = self.start.iter().flat_map(|start| &start.hooks).any(|it| it.hook == Hook::IpvsLeave.name());
        at_start || self.attached.contains_key(&Hook::IpvsLeave)
    }

    /// Which of these hooks are missing.
    pub fn missing_of(&self, hooks: &[Hook]) -> Vec<Hook> {
        self.missing_at(hooks, u64::MAX, |_| false)
    }

    /// Which of these hooks were missing at this time. `in_use`: whether the kernel module of a hook is in use although it was
    /// not loaded at the start.
    pub fn missing_at(&self, hooks: &[Hook], at: u64, in_use: impl Fn(Hook) -> bool) -> Vec<Hook> {
        let Some(start) = &self.start else { return Vec::new() };
        let awaited = start.awaited_hooks.iter().map(|name| (name, true));
        let missing = start.missing_hooks.iter().map(|missing| (&missing.hook, false)).chain(awaited);
        let of = |(name, awaited): (&String, bool)| {
            let hook = hooks.iter().copied().find(|hook| hook.name() == name.as_str())?;
            let is_missing = self.attached.get(&hook).is_none_or(|attached| *attached > at);
            (is_missing && (!awaited || in_use(hook))).then_some(hook)
        };
        missing.filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
