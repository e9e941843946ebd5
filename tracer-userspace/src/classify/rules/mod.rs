//! One file for each label.

pub(super) mod accept_queue_overflow;
pub(super) mod app_status_failure;
pub(super) mod closed_without_answer;
pub(super) mod connection_refused;
pub(super) mod conntrack_invalid;
pub(super) mod conntrack_table_full;
pub(super) mod cpu_throttled;
pub(super) mod ephemeral_ports_exhausted;
pub(super) mod firewall_drop;
pub(super) mod firewall_reject;
pub(super) mod handshake_rst;
pub(super) mod kubelet_delayed;
pub(super) mod loopback_down;
pub(super) mod mid_stream_rst;
pub(super) mod missing_node_prerequisite;
pub(super) mod mtu_blackhole;
pub(super) mod neighbour_failure;
pub(super) mod network_policy_drop;
pub(super) mod nodeport_ephemeral_collision;
pub(super) mod not_listening_yet;
pub(super) mod pod_link_down;
pub(super) mod route_unreachable;
pub(super) mod rp_filter_drop;
pub(super) mod service_no_endpoints;
pub(super) mod slow_response;
pub(super) mod startup_budget_exceeded;
pub(super) mod syn_backlog_overflow;
pub(super) mod tls_eof_noise;
pub(super) mod tls_handshake_slow;
pub(super) mod unexplained;

use serde_json::json;

use super::Case;
use super::evidence::{evidence, netfilter_hook};
use super::finding::Finding;
use super::label::Label;
use super::stopped::ANSWER_NS;
use crate::correlate::attempt::{Attempt, End};
use crate::enrich;
use crate::event::{Flow, Inspection, Netns, PacketDrop, ResetSent, TcpState};
use crate::record::{Evidence, Subject};

/// Hooks whose silence says that no stack of this node sent a RST and no rule dropped a packet.
const RST_AND_DROP_HOOKS: &[&str] = &["tcp_send_reset", "tcp_v4_send_reset", "tcp_v6_send_reset", "kfree_skb"];

/// How long after its end a look at its target, asked for while it waited, may come.
const LATE_NS: u64 = 100_000_000;

/// The attempt never came past its handshake.
pub(super) fn in_handshake(case: &Case<'_>) -> bool {
    let ended = case.attempt.ended.is_none_or(|(_, end)| end == End::NotEstablished);
    case.attempt.established.is_none() && ended
}

/// No packet of it was dropped or complained about, and no RST came: the network says nothing.
fn silent(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    attempt.drops().next().is_none() && attempt.icmp().next().is_none() && attempt.reset_received().is_none()
}

/// The state of the target as it was read while this attempt waited.
fn inspected<'a>(case: &Case<'a>) -> Option<(u64, &'a Inspection)> {
    let (time, seen) = case.node.inspection(case.attempt.netns?, case.attempt.flow.dst)?;
    // What was read for a later attempt says nothing of this one.
    let over = case.attempt.ended.is_some_and(|(end, _)| time > end.saturating_add(LATE_NS));
    (time >= case.attempt.started && !over).then_some((time, seen))
}

/// No RST came for a later SYN than the one of this time. What comes with it is the answer of whoever dropped it.
fn is_unanswered(case: &Case<'_>, time: u64) -> bool {
    let reset = case.attempt.reset_received().filter(|(_, reset)| reset.state == TcpState::SynSent);
    reset.is_none_or(|(at, _)| at < time.saturating_add(ANSWER_NS))
}

/// The packet is one of a handshake that never came to its end or to another answer.
fn is_of_handshake(case: &Case<'_>, time: u64, drop: &PacketDrop) -> bool {
    case.attempt.established.is_none() && is_unanswered(case, time) && (drop.flags.is_syn() || drop.flags.is_syn_ack())
}

/// The dropped packet went from the prober to the target.
pub(super) fn outbound(case: &Case<'_>, drop: &PacketDrop) -> bool {
    leads_out(case, drop.flow)
}

/// A packet of this flow goes from the prober to the target.
fn leads_out(case: &Case<'_>, packet: Flow) -> bool {
    let flow = case.attempt.flow;
    // What was dialled may have been translated by then; where it comes from has not.
    packet.dst == flow.dst || (packet.src == flow.src && packet.src != flow.dst)
}

/// "in the node's namespace", "in the namespace of pod default/web", "in namespace 4026532000".
pub(super) fn in_namespace(case: &Case<'_>, netns: Option<Netns>) -> String {
    netns.map(|inum| format!(" in {}", namespace(case, inum))).unwrap_or_default()
}

/// "the node's network namespace", "the network namespace of pod default/web", "network namespace 4026532000".
fn namespace(case: &Case<'_>, inum: Netns) -> String {
    let name = enrich::netns_ref(inum, case.node).name;
    match name.or_else(|| target(case).filter(|_| holds_target(case, inum))).as_deref() {
        Some("host") => "the node's network namespace".to_owned(),
        Some(pod) => format!("the network namespace of pod {pod}"),
        None => format!("network namespace {}", inum.0),
    }
}

/// The name of the pod that has the target's address.
fn target(case: &Case<'_>) -> Option<String> {
    case.node.pods.only_at(case.attempt.flow.dst.ip())?.full_name()
}

/// The pod that was probed has no network of its own: who listens in its namespace on another port is anybody on the node.
fn shares_node(case: &Case<'_>) -> bool {
    enrich::probed_pod(case.attempt, case.node).is_some_and(|pod| pod.host_network)
}

/// The target's address is one of this namespace's own: so it was read, or its stack took packets to it for itself. A list of
/// pods has no namespaces, and they are found on the node a moment later.
fn holds_target(case: &Case<'_>, netns: Netns) -> bool {
    let dst = case.attempt.flow.dst;
    let read = || case.attempt.netns.and_then(|from| case.node.netns_of_addr(from, dst.ip())) == Some(netns);
    let local = |d: &PacketDrop| netfilter_hook(d) == Some("INPUT") || d.reason.as_deref() == Some("NO_SOCKET");
    let took = |d: &PacketDrop| d.netns == Some(netns) && d.flow.dst == dst && local(d);
    let refused = |r: &ResetSent| r.netns == Some(netns) && r.no_socket && r.flow.src == dst;
    read() || case.attempt.drops().any(|(_, d)| took(d)) || case.attempt.resets_sent().any(|(_, r)| refused(r))
}

/// A namespace was made, as evidence.
fn of_namespace(case: &Case<'_>, netns: Netns, made: u64) -> Evidence {
    evidence("netns", made, format!("{} was made", namespace(case, netns)), json!({ "netns": netns }))
}

/// What is to be done: of a probe, whose spec can be changed, or of the connection of a process, by its name.
fn by_subject(case: &Case<'_>, probe: &str, connection: impl FnOnce(&str) -> String) -> String {
    match enrich::name(case.attempt, case.node).subject {
        Subject::Probe => probe.to_owned(),
        Subject::Connection => connection(&case.attempt.actor.comm),
    }
}

/// Who dialled, in sentences.
const fn dialler(attempt: &Attempt) -> &'static str {
    if attempt.prober { "the prober" } else { "the client" }
}

/// "in the network namespace of pod default/web: nsenter …", to be followed by one command. A process of it is looked up
/// when the command is run: one that was seen there may be gone, and its number another's.
pub(super) fn enter(case: &Case<'_>, netns: Option<Netns>) -> String {
    let elsewhere = netns.filter(|inum| case.node.netns() != Some(*inum));
    elsewhere.map(|inum| format!("in {}: {}", namespace(case, inum), nsenter(inum))).unwrap_or_default()
}

fn nsenter(inum: Netns) -> String {
    format!("nsenter -t $(lsns -no PID {} | head -n1) -n ", inum.0)
}

/// Milliseconds with one decimal.
fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}
