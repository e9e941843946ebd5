//! What tracer read of the target's pod after an attempt to it, this one or one before.

use std::net::{Ipv6Addr, SocketAddr};

use serde_json::json;

use crate::case::Case;
use crate::evidence::evidence_of;
use crate::phrases::of_family;
use tracer_model::event::{Container, Listener, ListenerAt, Loss, Netns, PodSockets, process_name};
use tracer_model::record::{Cause, Command, Evidence, Remediation, Scope};

/// An older reading does not show why an attempt failed.
pub const FRESH_NS: u64 = 60_000_000_000;

/// How long a reading of a pod's address translation shows which process answers successful probes. tracer reads it
/// again sooner if that makes a difference.
pub const REDIRECT_NS: u64 = 600_000_000_000;

/// The last reading and its time, if it is not older than this.
pub fn last_reading<'a>(case: &Case<'a>, oldest_ns: u64) -> Option<(u64, &'a PodSockets)> {
    let attempt = case.attempt;
    let (time, reading) = case.node.pod_sockets(attempt.netns?, attempt.flow.dst)?;
    (time.saturating_add(oldest_ns) >= attempt.started).then_some((time, reading))
}

/// The translation in this reading is that of this attempt, and not of an earlier connection to the target.
pub fn is_of_this(case: &Case<'_>, time: u64, reading: &PodSockets) -> bool {
    let attempt = case.attempt;
    time >= attempt.started && reading.peer.is_none_or(|peer| peer == attempt.flow.src)
}

/// The last reading of the listeners in the namespace where nothing accepts the target, and those that still listen. On
/// the node's network they are the probed pod's own.
fn elsewhere<'a>(case: &Case<'a>, netns: Netns) -> Option<(u64, &'a PodSockets, Vec<&'a ListenerAt>)> {
    let (time, reading) = last_reading(case, FRESH_NS).filter(|(_, reading)| reading.netns == Some(netns))?;
    let is_of_probed = |uid: &String| case.matched.only_pod_on_node().is_some_and(|pod| pod.has_uid(uid));
    let still_listens = |it: &&ListenerAt| !case.node.listeners.changed_since(netns, it.addr, time);
    let listeners = reading.elsewhere.iter().filter(still_listens).collect();
    reading.pod.as_ref().is_none_or(is_of_probed).then_some((time, reading, listeners))
}

/// Listeners that still listen in the namespace where nothing accepts the target, as a clause and as evidence.
pub fn listeners_elsewhere(case: &Case<'_>, netns: Netns) -> Option<(String, Evidence)> {
    let (time, reading, listeners) = elsewhere(case, netns)?;
    let (port, v4) = (case.attempt.flow.dst.port(), case.attempt.flow.dst.is_ipv4());
    // A listener for both families would have accepted the connection.
    let only = |it: &ListenerAt| match &it.device {
        Some(device) => format!("on device {device} only (SO_BINDTODEVICE)"),
        None if v4 && it.addr.ip() == Ipv6Addr::UNSPECIFIED => "for IPv6 only".to_owned(),
        None => "only".to_owned(),
    };
    let of_pod = if reading.pod.is_some() { " of the pod" } else { "" };
    let here: Vec<String> = listeners
        .iter()
        .filter(|it| it.addr.port() == port)
        .map(|it| format!("{} listens on {} {}", name(&it.server), it.addr, only(it)))
        .collect();
    let other = |it: &&ListenerAt| {
        let of = other_container(case, it).and_then(|of| of.name.as_ref()).map(|of| format!(" of container {of}"));
        let of = of.as_deref().unwrap_or(of_pod);
        format!("{}{of} listens on port {}", name(&it.server), it.addr.port())
    };
    // A process of another container has its own port.
    let instead = if listeners.iter().all(|it| other_container(case, it).is_some()) { "" } else { " instead" };
    let words = match here.as_slice() {
        [] if listeners.is_empty() => return None,
        [] => format!("{}{instead}", listeners.iter().map(other).collect::<Vec<_>>().join(", ")),
        _ => here.join(", "),
    };
    let text = format!("in that network namespace, {words}");
    let addrs: Vec<SocketAddr> = listeners.iter().map(|it| it.addr).collect();
    Some((words, evidence_of("sock_diag", time, text, json!({ "listeners": addrs, "netns": netns }))))
}

/// When a listener was read that would have accepted the target's connections, and where it listens. None that changed
/// since `at`, or may have changed, counts.
pub fn accepting(case: &Case<'_>, netns: Netns, at: u64) -> Option<(u64, SocketAddr)> {
    let (time, reading, _) = elsewhere(case, netns)?;
    let (from, places) = (at.min(time), [Loss::RING, Loss::PROGRAM, Loss::LISTEN]);
    let is_lost = case.node.losses.between(from, time).any(|loss| places.contains(&loss.where_.as_str()));
    let is_same = !is_lost && !case.node.listeners.changed_since(netns, case.attempt.flow.dst, from);
    reading.accepts.filter(|_| is_same).map(|addr| (time, addr))
}

/// The same if a reading after `at` found the target's address in that other namespace, too. A sandbox that was made
/// again takes the address over from the earlier one.
pub fn accepting_beside(case: &Case<'_>, netns: Netns, other: Netns, at: u64) -> Option<(u64, SocketAddr)> {
    let (_, reading) = last_reading(case, FRESH_NS)?;
    let have_it = [netns, other].iter().all(|it| reading.holders.contains(it));
    accepting(case, netns, at).filter(|(time, _)| have_it && *time > at)
}

/// When the sockets of the namespace were last read after `began`, and whether this listener was among them.
pub fn still_listens(case: &Case<'_>, netns: Netns, began: u64, addr: SocketAddr) -> Option<(u64, bool)> {
    let (time, reading, listeners) = elsewhere(case, netns).filter(|(time, ..)| *time > began)?;
    let listens = reading.accepts.is_some() || listeners.iter().any(|it| it.addr == addr);
    // On the node's network, and behind a redirection, not all listeners are read.
    let is_read = !case.node.is_a_node(netns) && reading.redirect.is_none() && reading.holders.is_empty();
    let is_whole = is_read && !reading.incomplete;
    (listens || is_whole).then_some((time, listens))
}

/// A process of the probed container still listens in the namespace, by its cgroup: on another port or address.
pub fn container_listens(case: &Case<'_>, netns: Netns) -> bool {
    let id = case.matched.probed_container().and_then(|(_, it)| it.id.as_ref());
    let is_own = |it: &&ListenerAt| id.is_some() && it.container.as_ref() == id;
    elsewhere(case, netns).is_some_and(|(.., listeners)| listeners.iter().any(is_own))
}

/// The container of the process that listens there, if it is another one of the pod than the probed one. The list of pods
/// can be older than a new run of the probed container.
fn other_container<'a>(case: &Case<'a>, listener: &ListenerAt) -> Option<&'a Container> {
    let ((pod, own), id) = (case.matched.probed_container()?, listener.container.as_ref()?);
    pod.containers.iter().find(|it| it.id.as_ref() == Some(id)).filter(|_| own.id.as_ref() != Some(id))
}

/// A process of another container listens on the target's port at another address: a clause, and what to
/// do about it. A server that binds to all addresses cannot have the port then.
pub fn other_container_listens(case: &Case<'_>, netns: Netns) -> Option<(String, String)> {
    let (.., listeners) = elsewhere(case, netns)?;
    let dst = case.attempt.flow.dst;
    let is_other = |it: &&ListenerAt| {
        // [::] stands for all addresses of both families.
        let is_of_family = dst.is_ipv6() || it.addr.is_ipv4();
        other_container(case, it).is_some() && it.addr.port() == dst.port() && is_of_family && it.device.is_none()
    };
    let found = listeners.into_iter().find(is_other)?;
    let who = name(&found.server);
    let clause = format!("; bind() to all addresses would fail, as {who} of another container has {}", found.addr);
    let fix = format!("If the server binds to all addresses: give it or {who} another port");
    Some((clause, fix))
}

/// Where a process listens on the target's port, but not for the target's address.
pub fn address_elsewhere(case: &Case<'_>, netns: Netns) -> Option<SocketAddr> {
    let port = case.attempt.flow.dst.port();
    let (.., listeners) = elsewhere(case, netns)?;
    listeners.iter().find(|it| it.addr.port() == port && it.device.is_none()).map(|it| it.addr)
}

/// The address translation of the pod redirects a port to another process than the one that listens there.
pub struct Detour<'a> {
    /// The process that gets the connection.
    server: &'a Listener,
    /// The process that listens on the target's port.
    passed_over: &'a Listener,
    /// The address on which `server` listens.
    to: SocketAddr,
    /// The process that gets the connection is in another network namespace.
    outside: bool,
    read: u64,
    /// It is that of an earlier connection.
    earlier: bool,
}

/// The detour of this attempt's target. None if nothing listens on the target's port: then the application may have
/// asked for the translation, to serve a port that only root can use.
pub fn detour<'a>(case: &Case<'a>, oldest_ns: u64) -> Option<Detour<'a>> {
    let (read, reading) = last_reading(case, oldest_ns)?;
    let redirect = reading.redirect.as_ref()?;
    let (server, passed_over) = (redirect.server.as_ref()?, redirect.passed_over.as_ref()?);
    (server.pid != passed_over.pid).then_some(Detour {
        server,
        passed_over,
        to: redirect.to,
        outside: redirect.outside,
        read,
        earlier: !is_of_this(case, read, reading),
    })
}

impl Detour<'_> {
    /// "envoy (pid 7) on 10.88.0.2:15006"
    pub fn server(&self) -> String {
        let outside = if self.outside { " (a process of another network namespace)" } else { "" };
        format!("{} on {}{outside}", name(self.server), self.to)
    }

    /// Who has to act.
    pub const fn scope(&self) -> Scope {
        if self.outside { Scope::Node } else { Scope::Pod }
    }

    /// What to do about a probe that the proxy should not get.
    pub fn fix(&self, case: &Case<'_>, usual: Cause) -> Remediation {
        if !self.outside {
            return usual.fix().run(self.commands(case));
        }
        Remediation::from(OF_NODE_PROXY).run(show_exemption(case).map(Command::on_node)).run(self.commands(case))
    }

    /// A clause if it may not be true of this attempt.
    pub const fn of_earlier(&self) -> &'static str {
        if self.earlier { "; tracer read that of an earlier connection" } else { "" }
    }

    /// "app (pid 8)"
    pub fn passed_over(&self) -> String {
        name(self.passed_over)
    }

    pub fn evidence(&self, case: &Case<'_>) -> Evidence {
        let text = format!(
            "the pod's address translation sent a connection to {} on to {}; {} listens on port {}",
            case.attempt.flow.dst,
            self.server(),
            self.passed_over(),
            case.attempt.flow.dst.port()
        );
        let fields = json!({ "to": self.to, "pid": self.server.pid, "passed_over": self.passed_over.pid });
        evidence_of("conntrack", self.read, text, fields)
    }

    /// Commands that show the rule, which is in one of the two lists.
    pub fn commands(&self, case: &Case<'_>) -> [Command; 2] {
        let inside =
            |command: &str| format!("nsenter -t {} -n {}", self.passed_over.pid, of_family(case, command.to_owned()));
        ["iptables-save -t nat", "nft list ruleset"].map(|command| Command::on_node(inside(command)))
    }
}

/// Istio's ztunnel is such a proxy. istio-cni gives the kubelet's connections to pods of its ipset another source
/// address, and the rules in the pods let that address pass (cni/pkg/iptables).
const OF_NODE_PROXY: &str = "With Istio's ambient mode (ztunnel): find why the kubelet's probes are not exempt. The node has to have the chain ISTIO_POSTRT and the pod's address in the ipset; if one is missing, restart istio-cni-node on this node. With another proxy: its log says why it closed";

fn show_exemption(case: &Case<'_>) -> [String; 2] {
    let version = if case.attempt.flow.dst.is_ipv4() { 4 } else { 6 };
    let rules = of_family(case, "iptables-save -t nat | grep ISTIO_POSTRT".to_owned());
    [rules, format!("ipset list istio-inpod-probes-v{version}")]
}

fn name(listener: &Listener) -> String {
    process_name(&listener.comm, listener.pid)
}
