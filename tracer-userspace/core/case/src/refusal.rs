//! The evidence that nobody listens: a stack found no socket for the SYN and refused it.

use crate::case::{ANSWER_NS, Case, REFUSAL_HOOKS, inspections};
use crate::drop_reason::is_at_socket;
use crate::evidence::{of_drop, of_reset_received, of_reset_sent};
use crate::finding::Finding;
use crate::neighbour::waiting_reset;
use crate::netfilter::{dropper, lost_reset};
use crate::phrases::run_in;
use tracer_attempts::correlate::attempt::End;
use tracer_attempts::correlate::listeners::takes;
use tracer_model::event::{Netns, PacketDrop, Pod, TcpState};
use tracer_model::record::{Cause, Confidence, Evidence};

/// A refusal: nobody listens on the target's port.
pub struct Refused {
    pub evidence: Vec<Evidence>,
    /// Where nobody listens.
    pub netns: Option<Netns>,
    /// The confidence that the evidence allows.
    pub confidence: Confidence,
}

/// The refusal, by the target or by another stack with its address.
pub fn by_any_stack(case: &Case<'_>) -> Option<Refused> {
    if case.attempt.established.is_some() || is_on_its_way(case) {
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

/// The RST of the target's stack may still arrive, or tracer may still see who drops it.
pub fn is_on_its_way(case: &Case<'_>) -> bool {
    !case.settled && case.attempt.reset_received().is_none() && case.attempt.ended.is_none()
}

/// If the RST of a refusal did not reach the prober: notes it, and why if that is known. The prober sends its SYN again,
/// and a process may listen then.
pub fn add_lost_reset(case: &Case<'_>, found: &mut Finding) {
    use Cause::{ConnectionRefused, NotListeningYet, PortTaken, ProbeMisconfigured, StartupBudgetExceeded};
    let by_refusal = [ConnectionRefused, NotListeningYet, PortTaken, ProbeMisconfigured, StartupBudgetExceeded];
    if !by_refusal.contains(&found.cause) || case.attempt.reset_received().is_some() {
        return;
    }
    let Some(refused) = by_any_stack(case) else { return };
    let dropped = lost_reset(case)
        .map(|(time, drop)| (of_drop(time, drop), format!("{} drops the RST of the refusal", dropper(case, drop))));
    if let Some((evidence, lost)) = dropped.or_else(|| waiting_reset(case, refused.netns?)) {
        found.summary += &format!("; {lost}: the prober gets no answer");
        found.evidence.push(evidence);
    } else if is_unanswered(case, &refused) {
        found.summary += NO_RESET;
        let (src, dst) = (case.attempt.flow.src.ip(), case.attempt.flow.dst.ip());
        let show = [format!("ip route get {src} from {dst}"), "ip neigh".to_owned()];
        let show = show.map(|command| run_in(case, refused.netns, command));
        found.change_fix(|fix| fix.reword(|text| format!("{text}. {FIND_RESET}")).run(show));
    } else {
        return;
    }
    found.rests_on_lost_packet = true;
}

const NO_RESET: &str = "; that RST did not reach the prober, which gave up without an answer; something on the way back loses it, and may lose other answers";

const FIND_RESET: &str = "Find what loses the answers, too: the target's route to the prober, its neighbour entry, or a filter on the way back";

/// The prober gave up long after the refusal, and its socket had got no error: a RST gives it one.
fn is_unanswered(case: &Case<'_>, refused: &Refused) -> bool {
    let attempt = case.attempt;
    let Some((ended, End::NotEstablished)) = attempt.ended else { return false };
    let at = refused.evidence.iter().map(|it| it.time_boot_ns).min();
    let is_late = at.is_some_and(|at| ended >= at.saturating_add(ANSWER_NS));
    let no_error = attempt.last.as_ref().and_then(|it| it.errno) == Some(0) && attempt.errno().is_none();
    is_late && no_error && attempt.icmp().next().is_none()
}

/// A RST without a socket in answer to this attempt's SYN.
fn by_reset(case: &Case<'_>) -> Option<Refused> {
    let dst = case.attempt.flow.dst;
    let (time, reset) =
        case.attempt.resets_sent().find(|(_, r)| r.no_socket && r.answered.is_syn() && r.flow.src == dst)?;
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
    let listening = drop.netns.and_then(|netns| case.node.listeners.open_at(netns, dst));
    let listened = listening.is_some_and(|(began, _)| *began <= time);
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
pub fn listed<'a>(case: &Case<'a>) -> Option<&'a Pod> {
    case.node.pods.at(case.attempt.flow.dst.ip()).find(|pod| pod.has_specs())
}

/// The listed pod and its namespace. Present if `netns` is no node's, and all pods with the address are known to be in
/// other namespaces.
pub fn pod_elsewhere(case: &Case<'_>, netns: Netns) -> Option<(String, Netns)> {
    let pod = listed(case).filter(|pod| !pod.host_network)?;
    let elsewhere = |pod: &Pod| pod.netns.is_some_and(|own| own != netns && !case.node.has_ended(own));
    let mut own = case.node.pods.at(case.attempt.flow.dst.ip()).filter(|pod| !pod.host_network);
    let known = !case.node.is_a_node(netns) && own.all(elsewhere);
    known.then_some((pod.full_name()?, pod.netns?))
}
