//! The attempt failed and nothing decides why.

mod drops;
mod end;
mod service;

use self::end::{is_lost_at_home, is_syn_lost};
use super::*;
use tracer_case::culprit;
use tracer_case::evidence::of_inspection;
use tracer_case::held_answer::{held_answer, link_set_down, lost_address, target_end_gone};
use tracer_case::hints::{missing_address, unusual_qdisc};
use tracer_case::services::{find_taken_port, find_translation};
use tracer_model::event::{Observation, ObservationKind, PacketDrop};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (ended, end) = case.attempt.ended?;
    let is_reported = case.attempt.kubelet().is_some();
    let is_failure = is_reported || case.matched.failed() && !end::is_cancelled(case);
    if !case.settled || !is_failure {
        return None;
    }
    let lost = Lost::of(case, ended);
    let found =
        Finding::failure(Cause::Unexplained, evidence(case, ended), summary(case, end, &lost), fix(case, &lost));
    Some(Finding {
        decided_at: ended,
        confidence: Confidence::Possible,
        rests_on: OBSERVING_HOOKS,
        waits_for_close: mtu_blackhole::waits_for_close(case),
        ..found
    })
}

/// All that was seen of the attempt.
fn evidence(case: &Case<'_>, ended: u64) -> Vec<Evidence> {
    let attempt = case.attempt;
    let mut evidence: Vec<Evidence> = attempt.observations.iter().filter_map(to_evidence).collect();
    evidence.extend(held_answer(case).and_then(|_| link_set_down(case)).map(|(at, it)| culprit::evidence(at, it)));
    evidence.extend(inspected(case).map(|(time, state)| of_inspection(time, state)));
    evidence.extend(attempt.last.as_ref().map(|state| of_state(ended, state)));
    evidence.extend(attempt.kubelet().map(|(_, reported)| of_outcome(reported)));
    evidence
}

fn summary(case: &Case<'_>, end: End, lost: &Lost<'_>) -> String {
    let (dst, lasted) = (case.attempt.flow.dst, ms(case.attempt.lasted().unwrap_or_default()));
    let how = end::describe(case, end);
    let untranslated = lost.drop.and_then(|drop| service::past_proxy(case, drop)).map(|(words, _)| words);
    let why = match lost.drop {
        Some(drop) => drops::describe(case, drop) + service::describe_drop(case, drop),
        None => format!("nothing that was seen decides why{}", describe_way(case).unwrap_or_default()),
    };
    let later = if lost.is_known_gone { LATER_SYN } else { "" };
    // What explains all of it comes first.
    let missing = missing_address(case).map(|(words, _)| words);
    let begin = missing.as_ref().map(|words| format!("{}; ", words.trim_start_matches("; "))).unwrap_or_default();
    let hint = || asymmetric_route::hint(case, false).or_else(|| qdisc(case, lost)).map(|(words, _)| words);
    let last = missing.is_none().then(hint).flatten().unwrap_or_default();
    let first = untranslated.unwrap_or_default();
    format!("{begin}the attempt to {dst} failed after {lasted} ({how}); {first}{why}{later}{last}")
}

const LATER_SYN: &str = "; a later SYN was not dropped there, so that cause is gone; it got no answer either";

/// What is special about the way to the target.
fn describe_way(case: &Case<'_>) -> Option<String> {
    const AT_HOME: &str =
        "is an address of this network namespace itself: most likely an address translation sends it elsewhere";
    let at_home = || is_lost_at_home(case).then(|| format!("; {} {AT_HOME}", case.attempt.flow.dst));
    service::describe(case).or_else(at_home)
}

/// What is nearest to the failure comes first.
fn fix(case: &Case<'_>, lost: &Lost<'_>) -> Remediation {
    let by_proxy = lost.drop.and_then(|drop| service::past_proxy(case, drop)).map(|(_, fix)| fix);
    let stray = asymmetric_route::hint(case, false);
    // A packet that had left the node, or came back from a router, is a consequence of the node's own route.
    let is_on_node = |drop: &PacketDrop| drop.netns == case.attempt.netns && !service::came_back(drop);
    let deciding = lost.current.filter(|drop| stray.is_none() || is_on_node(drop));
    let tc = qdisc(case, lost);
    let known = by_proxy
        .or_else(|| Some(drops::fix(case, deciding?)?.run(tc.map(|(_, fix)| fix.commands).unwrap_or_default())))
        .or_else(|| service::fix(case, lost.drop))
        .or_else(|| Some(missing_address(case).or(stray)?.1));
    known.unwrap_or_else(|| guess(case, lost))
}

/// What may have become of a packet, if no drop shows it. That of a second SYN shows only that no answer to the first one
/// came.
fn qdisc(case: &Case<'_>, lost: &Lost<'_>) -> Option<(String, Remediation)> {
    let is_without_trace = lost.drop.is_none_or(|drop| is_second_syn(case, drop));
    let is_answered = case.attempt.established.is_some() && held_answer(case).is_none();
    let is_silent = case.matched.failed() && case.attempt.reset_received().is_none() && !is_answered;
    unusual_qdisc(case).filter(|_| is_without_trace && is_silent)
}

/// By how the attempt ended alone.
fn guess(case: &Case<'_>, lost: &Lost<'_>) -> Remediation {
    let without_trace = lost.drop.is_none();
    let at_last = || {
        let known = qdisc(case, lost).map(|(_, fix)| fix).or_else(|| find_answer(case));
        known.unwrap_or_else(|| Cause::Unexplained.fix())
    };
    if without_trace && is_lost_at_home(case) {
        find_translation(case)
    } else if without_trace && is_syn_lost(case) {
        at_last().reword(|text| format!("{SECOND_SYN}. {text}"))
    } else if target_end_gone(case) {
        find_taken_port(case)
    } else if case.attempt.established.is_some() && lost_address(case).is_some() {
        restore_address(case)
    } else {
        at_last()
    }
}

/// The target sent an answer, which did not arrive.
fn find_answer(case: &Case<'_>) -> Option<Remediation> {
    held_answer(case)?;
    let (src, dst) = (case.attempt.flow.src.ip(), case.attempt.flow.dst.ip());
    let (_, reading) = inspected(case).filter(|(_, reading)| reading.netns.is_some())?;
    let text = "Find where the answer goes: the target's route and neighbour entry for the prober, and what its links drop. Compare the MTU of its links with those on the way";
    let show = [
        format!("ip route get {src} from {dst}"),
        "ip neigh".to_owned(),
        "ip -s link".to_owned(),
        "tc -s qdisc".to_owned(),
    ];
    Some(Remediation::from(text).run(show.map(|command| run_in(case, reading.netns, command))))
}

const SECOND_SYN: &str =
    "If the timeout is one second, a single lost packet fails the probe. With timeoutSeconds 2, a second SYN is sent";

/// The target's address went while the prober waited.
fn restore_address(case: &Case<'_>) -> Remediation {
    let (flow, from) = (case.attempt.flow, case.attempt.netns);
    let addr = flow.dst.ip();
    let (text, netns) = if flow.src.ip() == addr {
        let who = "keepalived, kube-vip, DHCP";
        (format!("Find what took {addr} from the node ({who}). Probe an address that stays"), from)
    } else {
        let text = "Find what took the address away. Restore it, or delete the pod, so that its sandbox is made again";
        (text.to_owned(), inspected(case).map_or(from, |(_, reading)| reading.netns))
    };
    Remediation::from(text).run(netns.map(|_| run_in(case, netns, format!("ip addr show to {addr}"))))
}

/// The packet of the attempt that was lost.
struct Lost<'a> {
    /// Dropped in a way that still stops the attempt.
    current: Option<&'a PacketDrop>,
    /// The same; else the first one that was dropped at all.
    drop: Option<&'a PacketDrop>,
    /// What dropped the first one did not drop a later SYN, which is known not to have been dropped.
    is_known_gone: bool,
}

impl<'a> Lost<'a> {
    fn of(case: &Case<'a>, ended: u64) -> Self {
        let attempt = case.attempt;
        // What was lost before the last byte of an answer that had begun was sent again.
        let since = case.matched.rest_lost_since().unwrap_or_default();
        let current = first_drop(drops(case), since, ended).map(|(_, drop)| drop);
        let counts = |(_, drop): &(u64, &PacketDrop)| !is_deferred(attempt, drop) && !is_at_other_link(case, drop);
        let first = first_drop(attempt.drops().filter(counts), since, ended);
        // The drop of the later SYN may be a lost event.
        let is_unlost = case.node.lost_between(attempt.started, ended) == 0;
        let is_known_gone = earlier_drop_is_gone(case) && current.is_none() && is_unlost;
        Self { current, drop: current.or(first.map(|(_, drop)| drop)), is_known_gone }
    }
}

/// The first dropped packet of the handshake or with data; else the first dropped packet.
fn first_drop<'a>(
    drops: impl Iterator<Item = (u64, &'a PacketDrop)>,
    since: u64,
    ended: u64,
) -> Option<(u64, &'a PacketDrop)> {
    let drops: Vec<_> = drops.filter(|(time, d)| (since..=ended).contains(time) && !d.flags.is_rst()).collect();
    let is_needed = |d: &PacketDrop| d.flags.is_syn() || d.flags.is_syn_ack() || d.flags.has_data();
    drops.iter().find(|(_, d)| is_needed(d)).or_else(|| drops.first()).copied()
}

/// Without these hooks an observation that decides can be missing.
const OBSERVING_HOOKS: &[Hook] = &[
    Hook::TcpSendReset,
    Hook::TcpV4SendReset,
    Hook::TcpV6SendReset,
    Hook::TcpReceiveReset,
    Hook::KfreeSkb,
    Hook::IcmpSend,
    Hook::Icmp6Send,
    Hook::IpvsNatXmit,
    Hook::IpvsNatXmitV6,
    Hook::IpvsLeave,
    Hook::TcpRetransmit,
    Hook::TcpConnRequest,
    Hook::SysConnect,
];

/// An observation as evidence, if it shows anything about a failure.
fn to_evidence(observation: &Observation) -> Option<Evidence> {
    let time = observation.time_boot_ns;
    match &observation.kind {
        ObservationKind::Drop(drop) => Some(of_drop(time, drop)),
        ObservationKind::Icmp(icmp) => Some(of_icmp(time, icmp)),
        ObservationKind::ResetSent(reset) => Some(of_reset_sent(time, reset)),
        ObservationKind::ResetReceived(reset) => Some(of_reset_received(time, reset)),
        ObservationKind::ConnectFailed(failed) => {
            let text = format!("connect() failed: {}", errno_text(failed.errno));
            Some(evidence_of(Hook::SysConnect.name(), time, text, json!({ "errno": failed.errno })))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// Found on sid: the program's run at CLOSE was skipped, and the next connection on the same memory was refused.
    #[test]
    fn another_connection_on_the_sockets_memory_is_not_this_attempt() {
        let mut stream = Stream::new().connect().state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0)).clone();
        stream.last_state().flow.src.set_port(50_000);
        assert!(stream.causes().is_empty());
        let mut reset = Stream::new().connect().established().reset_received(TcpState::Established, 0).clone();
        reset.last_reset_received().flow.src.set_port(50_000);
        assert!(reset.causes().is_empty());
    }

    /// With TCP_DEFER_ACCEPT, the listener drops the bare acknowledgement that ends the handshake. Then an answer of the
    /// target is lost.
    #[test]
    fn an_acknowledgement_that_the_listener_does_not_need_is_not_named() {
        let summary = |acked: u64, place: Option<&str>| {
            let mut stream = Stream::new();
            stream.connect().established().drop(TcpFlags(0x10), "NOT_SPECIFIED", POD);
            (stream.last_drop().location, stream.last_drop().stack) = (place.map(str::to_owned), vec!["?".into()]);
            stream.wait_ms(500).sent_again(80, true).wait_ms(500).closes((100, acked, 0)).settles();
            stream.verdict().summary
        };
        assert_has(
            &summary(101, Some("tcp_v4_rcv")),
            &["the target's answer did not arrive", "nothing that was seen decides why"],
        );
        assert_has(&summary(1, Some("tcp_v4_rcv")), &["the kernel dropped its segment"]);
        assert_has(&summary(101, None), &["nothing that was seen decides why"]);
    }

    /// tracer remembers who had an address that nobody has now.
    #[test]
    fn evidence_says_whether_the_namespace_still_has_the_address() {
        let read = |addrs: &[&str]| {
            let mut stream = Stream::new().connect().wait_ms(200).clone();
            stream.inspection(|reading| reading.links = vec![link(2, "eth0", addrs)]).gives_up();
            stream.verdict().evidence[0].text.clone()
        };
        assert_has(&read(&["10.88.0.2"]), &["it is in network namespace 2"]);
        assert_has(&read(&["10.88.0.3"]), &["it was in network namespace 2"]);
    }

    /// With timeoutSeconds 1 the attempt ends just before the first retransmission.
    #[test]
    fn a_syn_that_never_left_the_node_was_not_lost_on_a_link() {
        let verdict = Stream::to("10.88.0.1:9102").links(true, &["10.88.0.1"]).connect().gives_up().verdict();
        assert_has(&verdict.summary, &["10.88.0.1:9102 is an address of this network namespace itself: most likely"]);
        assert_starts(&verdict.remediation, "Find the rule that translates 10.88.0.1:9102");
    }

    /// The lost event may be the drop of the second SYN.
    #[test]
    fn with_lost_events_a_later_syn_proves_nothing() {
        let summary = |lost| {
            let mut stream = Stream::new().connect().drop(SYN, "QDISC_DROP", NODE).wait_ms(1_000).syn_again().clone();
            if lost {
                stream.lost(1);
            }
            stream.gives_up().last_verdict().summary
        };
        assert_has(&summary(false), &["QDISC_DROP", "so that cause is gone"]);
        assert_has(&summary(true), &["QDISC_DROP"]);
        assert_lacks(&summary(true), &["that cause is gone"]);
    }

    #[test]
    fn a_hook_of_the_other_family_is_not_missed() {
        let missed = |mut stream: Stream| {
            super::OBSERVING_HOOKS.iter().for_each(|hook| _ = stream.missing(*hook));
            stream.connect().drop_on(SYN, "QDISC_DROP", NODE, None).gives_up();
            stream.verdict().missing_hooks
        };
        let (of_v4, of_v6) = (missed(Stream::new()), missed(Stream::to("[fd00::2]:8080")));
        let without = |all: &[String], others: &[String]| {
            all.iter().filter(|hook| !others.contains(hook)).cloned().collect::<Vec<_>>()
        };
        assert_eq!(without(&of_v4, &of_v6), ["tcp_v4_send_reset", "icmp_send", "ip_vs_nat_xmit"]);
        assert_eq!(without(&of_v6, &of_v4), ["tcp_v6_send_reset", "icmp6_send", "ip_vs_nat_xmit_v6"]);
        assert!(of_v4.contains(&"tcp_conn_request".to_owned()), "{of_v4:?}");
    }
}
