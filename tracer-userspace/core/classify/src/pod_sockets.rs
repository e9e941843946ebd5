//! What tracer read of the target's pod after an attempt to it, this one or one before.

use std::net::{Ipv6Addr, SocketAddr};

use serde_json::json;

use super::case::Case;
use super::evidence::evidence_of;
use super::phrases::of_family;
use tracer_model::event::{Listener, ListenerAt, Netns, PodSockets};
use tracer_model::record::{Command, Evidence};

/// An older reading does not show why an attempt failed.
pub const FRESH_NS: u64 = 60_000_000_000;

/// How long a reading of a pod's address translation shows which process answers successful probes. tracer reads it
/// again sooner if that makes a difference.
pub const REDIRECT_NS: u64 = 600_000_000_000;

/// The last reading and its time, if it is not older than this.
pub(super) fn last_reading<'a>(case: &Case<'a>, oldest_ns: u64) -> Option<(u64, &'a PodSockets)> {
    let attempt = case.attempt;
    let (time, reading) = case.node.pod_sockets(attempt.netns?, attempt.flow.dst)?;
    (time.saturating_add(oldest_ns) >= attempt.started).then_some((time, reading))
}

/// Listeners that still listen in the namespace where nothing accepts the target, as a clause and as evidence.
pub(super) fn listeners_elsewhere(case: &Case<'_>, netns: Netns) -> Option<(String, Evidence)> {
    let (time, reading) = last_reading(case, FRESH_NS).filter(|(_, reading)| reading.netns == netns)?;
    let (port, v4) = (case.attempt.flow.dst.port(), case.attempt.flow.dst.is_ipv4());
    // A listener for both families would have accepted the connection.
    let only = |it: &ListenerAt| match &it.device {
        Some(device) => format!("on device {device} only (SO_BINDTODEVICE)"),
        None if v4 && it.addr.ip() == Ipv6Addr::UNSPECIFIED => "for IPv6 only".to_owned(),
        None => "only".to_owned(),
    };
    let still_listens = |it: &&ListenerAt| !case.node.listeners.changed_since(netns, it.addr.port(), time);
    let listeners: Vec<&ListenerAt> = reading.elsewhere.iter().filter(still_listens).collect();
    let here: Vec<String> = listeners
        .iter()
        .filter(|it| it.addr.port() == port)
        .map(|it| format!("{} listens on {} {}", name(&it.server), it.addr, only(it)))
        .collect();
    let others =
        || listeners.iter().map(|it| format!("{} on port {}", name(&it.server), it.addr.port())).collect::<Vec<_>>();
    let words = match here.as_slice() {
        [] if listeners.is_empty() => return None,
        [] => format!("other processes listen there: {}", others().join(", ")),
        _ => here.join(", "),
    };
    let text = format!("listeners of that network namespace: {words}");
    let addrs: Vec<SocketAddr> = listeners.iter().map(|it| it.addr).collect();
    Some((words, evidence_of("sock_diag", time, text, json!({ "listeners": addrs, "netns": netns }))))
}

/// Where a process listens on the target's port, but not for the target's address.
pub(super) fn address_elsewhere(case: &Case<'_>, netns: Netns) -> Option<SocketAddr> {
    let (time, reading) = last_reading(case, FRESH_NS).filter(|(_, reading)| reading.netns == netns)?;
    let port = case.attempt.flow.dst.port();
    let is_here = |it: &&ListenerAt| it.addr.port() == port && it.device.is_none();
    let found = reading.elsewhere.iter().find(is_here)?;
    (!case.node.listeners.changed_since(netns, port, time)).then_some(found.addr)
}

/// The address translation of the pod redirects a port to another process than the one that listens there.
pub(super) struct Detour<'a> {
    /// The process that gets the connection.
    server: &'a Listener,
    /// The process that listens on the target's port.
    passed_over: &'a Listener,
    /// The address on which `server` listens.
    to: SocketAddr,
    read: u64,
}

/// The detour of this attempt's target. None if nothing listens on the target's port: then the application may have
/// asked for the translation, to serve a port that only root can use.
pub(super) fn detour<'a>(case: &Case<'a>, oldest_ns: u64) -> Option<Detour<'a>> {
    let (read, reading) = last_reading(case, oldest_ns)?;
    let redirect = reading.redirect.as_ref()?;
    let (server, passed_over) = (redirect.server.as_ref()?, redirect.passed_over.as_ref()?);
    (server.pid != passed_over.pid).then_some(Detour { server, passed_over, to: redirect.to, read })
}

impl Detour<'_> {
    /// "envoy (pid 7) on 10.88.0.2:15006"
    pub(super) fn server(&self) -> String {
        format!("{} on {}", name(self.server), self.to)
    }

    /// "app (pid 8)"
    pub(super) fn passed_over(&self) -> String {
        name(self.passed_over)
    }

    pub(super) fn evidence(&self, case: &Case<'_>) -> Evidence {
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
    pub(super) fn commands(&self, case: &Case<'_>) -> [Command; 2] {
        let inside =
            |command: &str| format!("nsenter -t {} -n {}", self.server.pid, of_family(case, command.to_owned()));
        ["iptables-save -t nat", "nft list ruleset"].map(|command| Command::on_node(inside(command)))
    }
}

fn name(listener: &Listener) -> String {
    format!("{} (pid {})", listener.comm, listener.pid)
}
