//! The evidence that nobody listens: a stack found no socket for the SYN and refused it.

use std::net::IpAddr;

use super::*;
use tracer_model::event::{Listen, Netns, PacketDrop, Pod, TcpState};

/// A refusal: nobody listens on the target's port.
pub(super) struct Refused {
    /// The evidence.
    pub(super) evidence: Vec<Evidence>,
    /// Where nobody listens.
    pub(super) netns: Option<Netns>,
    /// The confidence that the evidence allows.
    pub(super) confidence: Confidence,
}

/// The refusal, by the target or by another stack with its address.
pub(super) fn by_any_stack(case: &Case<'_>) -> Option<Refused> {
    if case.attempt.established.is_some() {
        return None;
    }
    let refused = by_reset(case).or_else(|| by_drop(case)).or_else(|| by_freeing_function(case))?;
    // A refusal in another namespace than the pod's proves nothing about the pod.
    let elsewhere = refused.netns.is_some_and(|netns| pod_elsewhere(case, netns).is_some());
    Some(if elsewhere {
        Refused { confidence: refused.confidence.min(Confidence::Likely), ..refused }
    } else {
        refused
    })
}

/// A RST without a socket in answer to this attempt's SYN.
fn by_reset(case: &Case<'_>) -> Option<Refused> {
    let (time, reset) = case
        .attempt
        .resets_sent()
        .find(|(_, r)| r.no_socket && r.answered.is_syn() && r.flow.src == case.attempt.flow.dst)?;
    Some(Refused { evidence: vec![of_reset_sent(time, reset)], netns: reset.netns, confidence: Confidence::Proven })
}

/// The kernel freed the SYN with the reason NO_SOCKET (6.1 and later), and a RST came back.
fn by_drop(case: &Case<'_>) -> Option<Refused> {
    let (time, drop) = dropped_syns(case).find(|(_, d)| d.reason.as_deref() == Some("NO_SOCKET"))?;
    case.attempt.reset_received()?;
    Some(Refused { evidence: vec![of_drop(time, drop)], netns: drop.netns, confidence: Confidence::Proven })
}

/// For kernels without drop reasons (before 5.17), if no hook shows the RST of a stack without a socket. The kernel
/// freed the SYN in the function that looks for a socket, and a RST came back at that moment.
///
/// That function frees other SYNs, too. They get no answer, an ACK, or a RST by a socket: one in TIME_WAIT, or one of a
/// handshake in progress. Then a process listens.
fn by_freeing_function(case: &Case<'_>) -> Option<Refused> {
    let (attempt, dst) = (case.attempt, case.attempt.flow.dst);
    let (at, reset) = attempt.reset_received().filter(|(_, reset)| reset.state == TcpState::SynSent)?;
    let here = |(time, d): &(u64, &PacketDrop)| d.reason.is_none() && is_at_socket(d) && time.abs_diff(at) < ANSWER_NS;
    let (time, drop) = dropped_syns(case).find(here)?;
    let by_socket = attempt.resets_sent().any(|(_, sent)| !sent.no_socket && sent.answered.is_syn());
    let last = drop.netns.and_then(|netns| case.node.listeners.last(netns, dst.port()));
    let listened = last.is_some_and(|(began, last)| *began <= time && last.begins && serves(last, dst.ip()));
    if !case.lacks(REFUSAL_HOOKS) || by_socket || listened || had_listener(case, time) {
        return None;
    }
    let evidence = vec![of_drop(time, drop), of_reset_received(at, reset)];
    Some(Refused { evidence, netns: drop.netns, confidence: Confidence::Likely })
}

/// An inspection before that moment found a listener. Events do not show a listener that is older than the tracer.
fn had_listener(case: &Case<'_>, before: u64) -> bool {
    let dst = case.attempt.flow.dst;
    let read = inspections(case).filter(|(at, _)| *at <= before);
    let mut listeners = read.filter_map(|(_, reading)| reading.listeners.as_ref()).flatten();
    listeners.any(|it| takes(it.addr.ip(), dst.ip()))
}

/// SYNs to the target that were dropped.
fn dropped_syns<'a>(case: &Case<'a>) -> impl Iterator<Item = (u64, &'a PacketDrop)> {
    let dst = case.attempt.flow.dst;
    case.attempt.drops().filter(move |(_, d)| d.flags.is_syn() && d.flow.dst == dst)
}

/// The pod with this address in the list of pods. An address that was read in a namespace does not count: a pod that
/// may configure its network can take any address.
pub(super) fn listed<'a>(case: &Case<'a>) -> Option<&'a Pod> {
    case.node.pods.at(case.attempt.flow.dst.ip()).find(|pod| pod.has_specs())
}

/// The listed pod and its namespace. Present if `netns` is no node's, and all pods with the address are known to be in
/// other namespaces.
pub(super) fn pod_elsewhere(case: &Case<'_>, netns: Netns) -> Option<(String, Netns)> {
    let pod = listed(case).filter(|pod| !pod.host_network)?;
    let elsewhere = |pod: &Pod| pod.netns.is_some_and(|own| own != netns && !case.node.has_ended(own));
    let mut own = case.node.pods.at(case.attempt.flow.dst.ip()).filter(|pod| !pod.host_network);
    let known = !case.node.is_a_node(netns) && own.all(elsewhere);
    known.then_some((pod.full_name()?, pod.netns?))
}

/// The listener gets connections to that address. A listener on 127.0.0.1 gets none to the pod's address.
pub(super) fn serves(listen: &Listen, dst: IpAddr) -> bool {
    takes(listen.addr.ip(), dst)
}

/// A socket bound to `bound` takes connections to `dst`. `0.0.0.0` takes none to an IPv6 address. `::` takes both,
/// unless the socket is for IPv6 only, which the kernel's event does not show.
pub(super) fn takes(bound: IpAddr, dst: IpAddr) -> bool {
    let (bound, dst) = (bound.to_canonical(), dst.to_canonical());
    bound == dst || (bound.is_unspecified() && (bound.is_ipv6() || dst.is_ipv4()))
}
