//! Observations in words and numbers, for the `evidence` of a verdict.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::drop_reason::{is_nameless, netfilter_hook};
use crate::reject_answer::RejectAnswer;
use tracer_common::names::Hook;
use tracer_model::event::{
    Icmp, Inspection, Ipvs, IpvsOp, KubeletProbe, Listen, PacketDrop, ResetReceived, ResetSent, State, TcpState,
};
use tracer_model::record::Evidence;

/// One row of evidence, without the fields that are null.
pub fn evidence_of(hook: &str, time_boot_ns: u64, text: String, fields: Value) -> Evidence {
    let fields = match fields {
        Value::Object(map) => map.into_iter().filter(|(_, v)| !v.is_null()).collect(),
        _ => BTreeMap::new(),
    };
    Evidence { hook: hook.to_owned(), time_boot_ns, text, fields }
}

const HIDDEN: &str = "no reason given by this kernel, which also hides the function (kernel.kptr_restrict)";

/// A dropped packet, as evidence.
pub fn of_drop(time: u64, drop: &PacketDrop) -> Evidence {
    let unknown = if is_nameless(drop) { HIDDEN } else { "no reason given by this kernel" };
    let why = drop.reason.as_deref().or(drop.location.as_deref()).unwrap_or(unknown);
    let down = |up: bool| if up { "" } else { " (down)" };
    let on = drop.device.as_ref().map(|d| format!(" on {}{}", d.name, down(d.up))).unwrap_or_default();
    let text = format!("{} {} dropped{on}: {why}", drop.flags.name(), drop.flow);
    let fields = json!({
        "reason": drop.reason, "location": drop.location, "netns": drop.netns,
        "device": drop.device.as_ref().map(|d| d.name.clone()), "netfilter_hook": netfilter_hook(drop), "via": drop.via,
    });
    evidence_of(Hook::KfreeSkb.name(), time, text, fields)
}

/// A RST that a stack of this node sent, and who sent it, as evidence.
pub fn of_reset_sent(time: u64, reset: &ResetSent) -> Evidence {
    // A process that closes its socket sets the state to CLOSE before.
    let open = reset.state.filter(|state| reset.actor.is_some() && *state != TcpState::Close);
    let from = match (&reset.actor, reset.no_socket, open.or(reset.state)) {
        (Some(actor), _, Some(state)) if open.is_some() => format!("{actor}, by a socket in {}", state_name(state)),
        (Some(actor), ..) => actor.to_string(),
        (None, true, _) => "the stack, which found no socket".to_owned(),
        (None, false, Some(state)) => format!("a socket in {}", state_name(state)),
        (None, false, None) => "a socket".to_owned(),
    };
    let why = reset.reason.as_deref().map(|r| format!(", reason {r}")).unwrap_or_default();
    let text = format!("RST {} sent by {from}{why}", reset.flow);
    let fields = json!({
        "reason": reset.reason, "netns": reset.netns, "no_socket": reset.no_socket, "unread": reset.unread,
        "answered": (reset.answered.0 != 0).then(|| reset.answered.name()), "via": reset.via,
    });
    evidence_of(reset.hook.name(), time, text, fields)
}

/// A RST that the prober's socket received, as evidence.
pub fn of_reset_received(time: u64, reset: &ResetReceived) -> Evidence {
    let text = format!("RST from {} received in {}", reset.flow.dst, state_name(reset.state));
    let fields = json!({ "state": reset.state, "bytes_received": reset.bytes_received });
    evidence_of(Hook::TcpReceiveReset.name(), time, text, fields)
}

/// An ICMP error that this node sent, as evidence.
pub fn of_icmp(time: u64, icmp: &Icmp) -> Evidence {
    let text = format!("{} sent about the {} {}", RejectAnswer::of(icmp), icmp.flags.name(), icmp.flow);
    let fields = json!({ "type": icmp.icmp_type, "code": icmp.code, "netns": icmp.netns });
    let hook = if icmp.v6 { Hook::Icmp6Send } else { Hook::IcmpSend };
    evidence_of(hook.name(), time, text, fields)
}

/// What IPVS did.
pub fn of_ipvs(time: u64, ipvs: &Ipvs) -> Evidence {
    let (hook, did) = match ipvs.op {
        IpvsOp::Translate => ("ip_vs_nat_xmit", "taken by IPVS and sent to a backend of the Service"),
        IpvsOp::NoBackend => ("ip_vs_leave", "taken by IPVS for a Service that has no backend for new connections"),
    };
    let text = format!("{} {} {did}", ipvs.flags.name(), ipvs.flow);
    evidence_of(hook, time, text, json!({ "op": ipvs.op, "netns": ipvs.netns, "via": ipvs.via }))
}

const MOST_NAMED: usize = 8;

/// The state of the target as it was read while the attempt waited.
pub fn of_inspection(time: u64, reading: &Inspection) -> Evidence {
    let holds = || reading.link_with(reading.target.ip()).is_some();
    let is = if reading.links.is_empty() || holds() { "is" } else { "was" };
    let place = match reading.netns {
        Some(netns) => format!("it {is} in network namespace {}", netns.0),
        None if reading.ambiguous => "it is not known which network namespace of this node has its address".to_owned(),
        None => "no network namespace of this node has its address".to_owned(),
    };
    let down: Vec<&str> =
        reading.links.iter().filter(|l| !l.up || l.running == Some(false)).map(|l| l.name.as_str()).collect();
    let links = match down.get(..MOST_NAMED).filter(|_| down.len() > MOST_NAMED) {
        Some(first) => format!(", {} and {} more links down", first.join(", "), down.len() - MOST_NAMED),
        None if down.is_empty() => String::new(),
        None => format!(", {} down", down.join(", ")),
    };
    let listens = match reading.listeners.as_deref() {
        Some([]) => format!(", nobody listens on port {}", reading.target.port()),
        Some([first, ..]) => format!(", {} listens ({} of {} waiting)", first.addr, first.waiting, first.backlog),
        None => String::new(),
    };
    let neighbour = match (&reading.neighbour, reading.gateway()) {
        (Some(entry), None) => format!(", its neighbour entry is {}", entry.state),
        (Some(entry), Some(gateway)) => format!(", the neighbour entry of its gateway {gateway} is {}", entry.state),
        (None, _) => String::new(),
    };
    let text = format!("{} as it was read: {place}{links}{listens}{neighbour}", reading.target);
    evidence_of("inspection", time, text, json!({ "netns": reading.netns, "down": down }))
}

/// Evidence that a process began to listen, or stopped.
pub fn of_listener(time: u64, listen: &Listen) -> Evidence {
    let Listen { actor, addr, netns, begins, .. } = listen;
    let what = if *begins { "began to listen" } else { "stopped listening" };
    let text = format!("{actor} {what} on port {}", addr.port());
    evidence_of(Hook::InetSockSetState.name(), time, text, json!({ "pid": actor.pid, "netns": netns }))
}

/// The state change that ended the attempt.
pub fn of_state(time: u64, state: &State) -> Evidence {
    let text = format!("the attempt's own socket went from {} to {}", state_name(state.old), state_name(state.new));
    let fields = json!({
        "errno": state.errno, "bytes_sent": state.bytes_sent, "bytes_acked": state.bytes_acked, "bytes_received": state.received(),
    });
    evidence_of(Hook::InetSockSetState.name(), time, text, fields)
}

/// An errno in words, the same on every libc: a replay must print what the live run printed.
pub fn errno_text(errno: i32) -> String {
    // ERESTARTSYS to ERESTART_RESTARTBLOCK (include/linux/errno.h): numbers within the kernel.
    if (512..=516).contains(&errno) {
        return "a signal interrupted it".to_owned();
    }
    format!("{} (os error {errno})", nix::errno::Errno::from_raw(errno).desc())
}

/// The kernel's own name of a state.
fn state_name(state: TcpState) -> &'static str {
    match state {
        TcpState::Established => "ESTABLISHED",
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynRecv => "SYN_RECV",
        TcpState::FinWait1 => "FIN_WAIT1",
        TcpState::FinWait2 => "FIN_WAIT2",
        TcpState::TimeWait => "TIME_WAIT",
        TcpState::Close => "CLOSE",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::LastAck => "LAST_ACK",
        TcpState::Listen => "LISTEN",
        TcpState::Closing => "CLOSING",
        TcpState::NewSynRecv => "NEW_SYN_RECV",
        TcpState::Unknown => "an unknown state",
    }
}

/// What the kubelet reported of a probe, as evidence.
pub fn of_outcome(probe: &KubeletProbe) -> Evidence {
    let output = probe.output.as_ref().map_or_else(String::new, |it| format!(": {it}"));
    let place = probe.event_count.map_or_else(String::new, |n| format!(", in an Event that counts {n},"));
    let how = if probe.is_counted() { "failed" } else { "errored, a result that it ignores" };
    let text = format!("the kubelet reports{place} that the {} probe {how}{output}", probe.probe_type);
    let fields = json!({ "result": probe.result, "container": probe.container, "event_count": probe.event_count });
    evidence_of("kubelet", probe.written_boot_ns, text, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::*;

    fn text_of(fill: impl FnOnce(&mut Inspection)) -> String {
        let mut reading = Inspection::nothing(NODE, address("10.88.0.2:80"));
        fill(&mut reading);
        of_inspection(1, &reading).text
    }

    #[test]
    fn an_address_of_two_namespaces_is_not_reported_as_absent() {
        assert_ends(&text_of(|_| ()), "no network namespace of this node has its address");
        assert_has(&text_of(|reading| reading.ambiguous = true), &["not known which"]);
    }

    #[test]
    fn the_first_of_many_links_that_are_down_are_named() {
        let link = |number| LinkState { name: format!("d{number}"), ..LinkState::default() };
        let down = |count| text_of(|reading| reading.links = (0..count).map(link).collect());
        assert!(down(2).ends_with(", d0, d1 down") && down(8).ends_with("d6, d7 down"));
        assert_ends(&down(100), "d6, d7 and 92 more links down");
    }
}
