//! The attempt failed and nothing decides why.

mod drops;

use super::super::SETTLE_NS;
use super::super::evidence::of_inspection;
use super::super::services::{find_translation, is_past_proxy, service_at, target_service, untranslated};
use super::super::serving::{held_answer, target_end_gone};
use super::route_unreachable::is_routing;
use super::*;
use std::net::IpAddr;
use tracer_model::event::{Flow, Observation, ObservationKind, PacketDrop};

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ((ended, end), lasted) = (attempt.ended?, attempt.lasted()?);
    let (reported, too_late) = (attempt.kubelet(), case.matched.is_too_late());
    let failed = case.matched.failed();
    if !case.settled || !(failed || reported.is_some()) || (reported.is_none() && is_cancelled(case)) {
        return None;
    }
    let mut evidence: Vec<Evidence> = attempt.observations.iter().filter_map(to_evidence).collect();
    evidence.extend(inspected(case).map(|(time, state)| of_inspection(time, state)));
    evidence.extend(attempt.last.as_ref().map(|state| of_state(ended, state)));
    evidence.extend(reported.map(|(_, reported)| of_outcome(reported)));
    // What was lost before the last byte of an answer that had begun was sent again.
    let since = case.matched.rest_lost_since().unwrap_or_default();
    let current = first_drop(drops(case).filter(|(time, _)| *time >= since), ended);
    let is_first = |(time, drop): &(u64, &PacketDrop)| {
        *time >= since && !is_deferred(attempt, drop) && !is_at_other_link(case, drop)
    };
    let first = first_drop(attempt.drops().filter(is_first), ended);
    let lost = current.or(first);
    let is_gone = first.is_some_and(|(time, drop)| !may_decide(case, time, drop));
    // The drop of the later SYN may be a lost event.
    let is_known_gone = is_gone && current.is_none() && case.node.lost_between(attempt.started, ended) == 0;
    let stray = stray_route(case);
    let by_drop = current.filter(|(_, drop)| stray.is_none() || !is_off_node(case, drop));
    let node = missing_address(case).or(stray);
    let (untranslated, proxy_fix) = lost.and_then(|(_, drop)| past_proxy(case, drop)).unzip();
    let summary = format!(
        "the attempt to {} failed after {} ({}); {}{}{}{}",
        attempt.flow.dst,
        ms(lasted),
        if too_late {
            describe_late_connection(attempt)
        } else if failed {
            let held = held_answer(case).map(|words| format!("{}; {words}", describe_request(attempt)));
            held.or_else(|| is_syn_lost(case).then(|| LOST_SYN.to_owned()))
                .unwrap_or_else(|| describe_end(attempt, end))
        } else {
            DISAGREES.to_owned()
        },
        untranslated.unwrap_or_default(),
        lost.map_or_else(|| describe_no_evidence(case), |(_, drop)| describe_lost(case, drop)),
        if is_known_gone { LATER_SYN } else { "" },
        node.as_ref().map(|(words, _)| words.as_str()).unwrap_or_default()
    );
    let service = target_service(case).filter(|_| lost.is_none_or(|(_, drop)| is_behind_service(case, drop)));
    let remediation = proxy_fix.or_else(|| by_drop.and_then(|(_, drop)| drops::fix(case, drop)));
    let remediation = remediation.or_else(|| service.map(|name| by_endpoint(case, &name)));
    let remediation = remediation.or_else(|| node.map(|(_, fix)| fix));
    let otherwise = || match is_syn_lost(case) && lost.is_none() {
        _ if lost.is_none() && is_lost_at_home(case) => find_translation(case),
        true => Cause::Unexplained.fix().reword(|text| format!("{SECOND_SYN}. {text}")),
        false if target_end_gone(case) => find_taken_port(case),
        false => Cause::Unexplained.fix(),
    };
    let remediation = remediation.unwrap_or_else(otherwise);
    let found = Finding::failure(Cause::Unexplained, evidence, summary, remediation);
    let (confidence, rests_on) = (Confidence::Possible, OBSERVING_HOOKS);
    let waits_for_close = super::mtu_blackhole::waits_for_close(case);
    Some(Finding { decided_at: ended, confidence, rests_on, earlier_drop_is_gone: is_gone, waits_for_close, ..found })
}

const LATER_SYN: &str = "; a later SYN was not dropped there, so that cause is gone; it got no answer either";

/// The prober waited, and gave up before the kernel sent the SYN again, which it does after one second
/// (`TCP_TIMEOUT_INIT`).
fn is_syn_lost(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let waited = attempt.lasted().is_some_and(|lasted| lasted >= AT_ONCE_NS);
    let (no_error, once) = (attempt.errno().is_none(), sent_again(attempt) == 0);
    matches!(attempt.ended, Some((_, End::NotEstablished)))
        && waited
        && no_error
        && once
        && attempt.reset_received().is_none()
        && !case.lacks(&[Hook::TcpRetransmit])
}

/// How often the prober sent its SYN again. Before 6.17 the kernel reports only those that left: a firewall of the
/// prober's own namespace drops each of them before that.
fn sent_again(attempt: &Attempt) -> u32 {
    let mut last = attempt.started;
    let mut is_next = |time: u64| {
        let is_later = time >= last.saturating_add(LEAST_RTO_NS);
        last = if is_later { time } else { last };
        is_later
    };
    let own = attempt.drops().filter(|(_, drop)| drop.flags.is_syn() && drop.netns == attempt.netns);
    let again = own.filter(|(time, _)| is_next(*time)).count();
    attempt.retransmits.0.max(u32::try_from(again).unwrap_or(u32::MAX))
}

/// `TCP_RTO_MIN`. A bridge drops several copies of one SYN at once.
const LEAST_RTO_NS: u64 = 200_000_000;

const LOST_SYN: &str = "no answer to the SYN, and the prober gave up before it was sent again";
const SECOND_SYN: &str =
    "If the timeout is one second, a single lost packet fails the probe. With timeoutSeconds 2, a second SYN is sent";

/// No SYN of an attempt from a namespace to itself had an answer: no link can have lost them.
fn is_lost_at_home(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let waited = attempt.lasted().is_some_and(|lasted| lasted >= AT_ONCE_NS) && attempt.errno().is_none();
    in_handshake(case) && waited && silent(case) && case.node.is_to_itself(attempt)
}

/// A prober that closes this soon may have got an error that left no trace on the socket (`sk_err_soft`).
const AT_ONCE_NS: u64 = 10_000_000;

/// The prober closed the connection long before its timeout, and nothing had gone wrong: it stopped by itself.
fn is_cancelled(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let Some((ended, End::NotEstablished | End::ClosedByProber)) = attempt.ended else { return false };
    if case.node.lost_between(attempt.started, ended.saturating_add(SETTLE_NS)) > 0 {
        return false;
    }
    let own = attempt.last.as_ref().is_some_and(|last| last.own_context && last.errno == Some(0));
    let at_once = attempt.established.is_none() && attempt.lasted().is_some_and(|lasted| lasted < AT_ONCE_NS);
    own && !at_once && attempt.connect_failed().is_none() && is_undisturbed(attempt, ended) && gave_up_early(case)
}

/// Nothing was dropped or answered with an error before the end. A later packet finds no socket.
fn is_undisturbed(attempt: &Attempt, ended: u64) -> bool {
    let dropped = attempt.drops().any(|(time, drop)| time <= ended && !is_deferred(attempt, drop));
    let refused = attempt.icmp().any(|(time, _)| time <= ended);
    !dropped && !refused && attempt.reset_received().is_none_or(|(time, _)| time > ended)
}

/// Says that nothing decides. Behind a Service, tracer does not recognize a packet of this attempt after the handshake,
/// or if its source was translated, too.
fn describe_no_evidence(case: &Case<'_>) -> String {
    let why = match target_service(case) {
        Some(name) if is_hairpin(case) => format!(
            "; the target is Service {name}, and the client is its only ready endpoint: its packets must come back over the link that they left by (hairpin)"
        ),
        Some(name) => {
            format!(
                "; the target is Service {name}: tracer may not see what becomes of a packet on its way to an endpoint"
            )
        }
        None if is_lost_at_home(case) => format!(
            "; {} is an address of this network namespace itself: most likely an address translation sends it elsewhere",
            case.attempt.flow.dst
        ),
        None => String::new(),
    };
    format!("nothing that was seen decides why{why}")
}

/// A pod on this node's network is listed with the address, or its probe names it, and no link of the node has it.
pub(super) fn missing_address(case: &Case<'_>) -> Option<(String, Remediation)> {
    let (addr, netns) = (case.attempt.flow.dst.ip(), case.node.netns()?);
    let listed = case.node.pods.at(addr).next();
    let known = case.attempt.netns == Some(netns) && case.node.links.get(&netns).is_some();
    if !known || case.node.owns(netns, addr) || !case.node.pods.at(addr).all(|pod| pod.host_network) {
        return None;
    }
    let by_host = || case.matched.probed_pod().filter(|pod| pod.host_network && target_service(case).is_none());
    let pod = listed.or_else(by_host)?;
    let name = pod.full_name().unwrap_or_else(|| "a pod".to_owned());
    if listed.is_none() {
        let words = format!(
            "; the probe of {name} names host {addr}: that pod is on this node's network, and no link of the node has that address"
        );
        let fix = Remediation::from(
            "If this node should have that address (a virtual IP may be on another one), restore it, and find what removed its link (NodeLocal DNSCache removes its own when it ends). Else correct `host` of the probe",
        );
        let show = [format!("ip addr show to {addr}"), format!("ip route get {addr}")];
        return Some((words, fix.run(show.map(Command::on_node))));
    }
    let words = format!("; {name} is on this node's network, and no link of the node has its address {addr}");
    let fix = Remediation::from(
        "If the node's address has changed, correct the kubelet's --node-ip (or restore the node's address) and restart the kubelet",
    )
    .run([Command::on_node(format!("ip addr show to {addr}")), Command::in_cluster("kubectl get nodes -o wide")]);
    Some((words, fix))
}

/// The node's route to the pod leads out of another device than the pod's. That is right where a CNI takes the packet
/// there.
pub(super) fn stray_route(case: &Case<'_>) -> Option<(String, Remediation)> {
    let (_, stray) = super::asymmetric_route::stray_route(case)?;
    let (flow, device) = (case.attempt.flow, &stray.device);
    let (src, dst) = (flow.src.ip(), flow.dst.ip());
    let words =
        format!("; the node's route to {dst} leads out of {device}, while the pod is behind {}", stray.pod_device);
    // The VPC CNI of AWS names the links of such pods so. The node's routes do not lead to them.
    let through_vpc = match stray.pod_device.starts_with("vlan") {
        true => {
            "If the pod has AWS security groups of its own, its probes go through the VPC: the groups must admit the node on that port. "
        }
        false => "",
    };
    let fix = Remediation::from(format!(
        "{through_vpc}If the CNI takes packets to its pods at {device} (as Cilium does at cilium_host), the route is right. If not, the pod's own route is missing, or something else took the pods' subnet, such as a VPN or docker0: correct that route"
    ))
    .run([format!("ip route get {dst} from {src}"), format!("ip route show to match {dst}")]
        .map(|command| run_in(case, case.attempt.netns, command)));
    Some((words, fix))
}

/// The target's end was closed by a packet that the prober did not send. A translation took it for another connection.
pub(super) fn find_taken_port(case: &Case<'_>) -> Remediation {
    let port = case.attempt.flow.src.port();
    let text = format!(
        "Check whether {port}, the source port of the connection, is a NodePort or a hostPort. If so, an answer that conntrack no longer knows is sent to that port's pod: reserve those ports (net.ipv4.ip_local_reserved_ports), and find what flushes conntrack"
    );
    let show = [
        "nft list ruleset".to_owned(),
        "iptables-save -t nat".to_owned(),
        format!("conntrack -L -p tcp --dport {port}"),
    ];
    Remediation::from(text).run(show.map(|command| run_in(case, case.attempt.netns, command)))
}

/// The packet had left the node, or came back from a router: a consequence of the node's own route.
fn is_off_node(case: &Case<'_>, drop: &PacketDrop) -> bool {
    drop.netns != case.attempt.netns || came_back(drop)
}

fn came_back(drop: &PacketDrop) -> bool {
    drop.reason.as_deref() == Some("IP_LOCAL_SOURCE")
}

/// The Service proxy had not translated the packet when it should have.
fn past_proxy(case: &Case<'_>, drop: &PacketDrop) -> Option<(String, Remediation)> {
    let is_past = came_back(drop) || is_past_proxy(case, drop.netns, is_routing(drop));
    untranslated(case, drop.flow).filter(|_| is_past)
}

pub(super) fn by_endpoint(case: &Case<'_>, service: &str) -> Remediation {
    let dst = case.attempt.flow.dst;
    let entries = format!("conntrack -L -p tcp -d {} --dport {}", dst.ip(), dst.port());
    if is_hairpin(case) {
        let text = "Let the bridge send the pod its own packets back (hairpinMode of the CNI's bridge plugin), and let kube-proxy masquerade them";
        return Remediation::from(text).run(["bridge -d link", &entries].map(Command::on_node));
    }
    // The rules of a NodePort have no address.
    let has_addr = service_at(case, dst).is_some_and(|service| service.has_addr(dst.ip()));
    let key = if has_addr { dst.ip().to_string() } else { dst.port().to_string() };
    let text = format!(
        "Connect to each endpoint of Service {service} by itself: the verdict on that connection names the cause. If all of them answer, see whether the rules of this node have {key}. If they do, the translation of the answers is lost: br_netfilter is off, or a rule sets notrack or a zone"
    );
    let show = [
        format!("nft list ruleset | grep -F {key}"),
        format!("iptables-save -t nat | grep -F {key}"),
        entries,
        "sysctl net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables".to_owned(),
        "iptables-save -t raw".to_owned(),
    ];
    Remediation::from(text)
        .run(kubectl::endpoints(Some(service)))
        .run(show.map(|command| run_in(case, case.node.netns(), command)))
}

fn describe_lost(case: &Case<'_>, drop: &PacketDrop) -> String {
    let to_sender =
        if is_sent_back(case, drop) { "; a Service had sent it back to its own sender (hairpin)" } else { "" };
    drops::describe(case, drop) + to_sender
}

/// The packet went between the client and an endpoint.
fn is_behind_service(case: &Case<'_>, drop: &PacketDrop) -> bool {
    ![drop.flow.src, drop.flow.dst].contains(&case.attempt.flow.dst)
}

/// A translation had given the packet the address of the client, a pod, as its target, too.
fn is_sent_back(case: &Case<'_>, drop: &PacketDrop) -> bool {
    drop.flow.src.ip() == drop.flow.dst.ip() && is_sent_elsewhere(case, drop) && !is_from_node(case)
}

fn is_from_node(case: &Case<'_>) -> bool {
    case.attempt.netns.is_some_and(|netns| case.node.is_a_node(netns))
}

/// The client itself is the endpoint, or the only ready one: a pod with its own network.
fn is_hairpin(case: &Case<'_>) -> bool {
    if case.attempt.drops().any(|(_, drop)| is_sent_back(case, drop)) {
        return true;
    }
    let Flow { src, dst } = case.attempt.flow;
    let of_family = |addr: &&IpAddr| addr.is_ipv4() == dst.is_ipv4();
    let ready = service_at(case, dst).and_then(|service| service.ready_endpoints.as_ref());
    let mut ready = ready.into_iter().flatten().filter(of_family);
    ready.next() == Some(&src.ip()) && ready.next().is_none() && !is_from_node(case)
}

/// The first dropped packet of the handshake or with data; else the first dropped packet.
fn first_drop<'a>(drops: impl Iterator<Item = (u64, &'a PacketDrop)>, ended: u64) -> Option<(u64, &'a PacketDrop)> {
    let drops: Vec<_> = drops.filter(|(time, d)| *time <= ended && !d.flags.is_rst()).collect();
    let is_needed = |d: &PacketDrop| d.flags.is_syn() || d.flags.is_syn_ack() || d.flags.has_data();
    drops.iter().find(|(_, d)| is_needed(d)).or_else(|| drops.first()).copied()
}

/// What the kernel saw of an attempt that only the kubelet calls failed.
const DISAGREES: &str = "as the kubelet reports; the kernel saw a connection on which nothing went wrong";

/// The connection was established when the probe had timed out.
fn describe_late_connection(attempt: &Attempt) -> String {
    let took = attempt.established.map_or(0, |at| at.saturating_sub(attempt.started));
    let again = match attempt.retransmits.0 {
        0 => String::new(),
        times => format!(", its SYN sent again {}", counted(times.into(), "time")),
    };
    format!(
        "connected after {}{again}: the probe had timed out by then, and {} closed it unused",
        ms(took),
        client_name(attempt)
    )
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

/// An answer had begun.
fn has_begun(attempt: &Attempt) -> bool {
    attempt.received().is_some_and(|n| n > 0)
}

fn describe_request(attempt: &Attempt) -> &'static str {
    match has_begun(attempt) {
        true => "established and the answer begun",
        false => "established and the request acknowledged",
    }
}

fn describe_end(attempt: &Attempt, end: End) -> String {
    let errno = attempt.errno().map(|e| format!(", {}", errno_text(e))).unwrap_or_default();
    let stage = match end {
        End::NotEstablished if sent_again(attempt) > 0 => {
            format!("no answer to the SYN, sent again {}", counted(sent_again(attempt).into(), "time"))
        }
        End::NotEstablished => "before the connection was established".to_owned(),
        End::Reset => "reset after it was established".to_owned(),
        End::ClosedByProber if attempt.retransmits.1 > 0 => {
            let segments = counted(attempt.retransmits.1.into(), "segment");
            format!("established, then {segments} sent again without an acknowledgement")
        }
        End::ClosedByProber if attempt.answer_lost() => {
            let again = match attempt.retransmitted().filter(|(_, segment)| segment.by_target).count() {
                0 => String::new(),
                times => format!(", sent again {}", counted(times as u64, "time")),
            };
            let rest = if has_begun(attempt) { "the rest of " } else { "" };
            format!("{}; {rest}the target's answer did not arrive{again}", describe_request(attempt))
        }
        End::ClosedByProber => format!("established, and {} closed it without an answer", client_name(attempt)),
        End::ClosedByServer => "established, and the target closed it without an answer".to_owned(),
    };
    format!("{stage}{errno}")
}

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

    /// The kubelet goes on connecting after its probe has timed out, and closes the connection unused. That is no
    /// success.
    #[test]
    fn a_connection_that_came_too_late_for_its_probe_failed() {
        let touched = |after_ms: u64| {
            let mut stream = Stream::new();
            stream.http_readiness().connect().wait_ms(after_ms).syn_again().wait_ms(25).established();
            stream.closes((0, 1, 0)).wait_ms(50).tick().verdicts()
        };
        assert!(touched(900).is_empty(), "in time");
        let late = touched(1_000);
        let verdict = &late[0].verdict;
        assert_eq!((late.len(), verdict.cause.name()), (1, "unexplained"));
        let words = "(connected after 1025.0 ms, its SYN sent again 1 time: the probe had timed out by then";
        assert_has(&verdict.summary, &[words]);
        assert_eq!(late[0].probe.as_ref().and_then(|probe| probe.consecutive_failures), Some(1));
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

    #[test]
    fn a_syn_that_is_dropped_in_the_probers_namespace_again_was_sent_again() {
        let noted = |drops: usize| {
            let mut stream = Stream::new().connect().clone();
            (0..drops).for_each(|_| _ = stream.drop(SYN, "QDISC_DROP", NODE).wait_ms(500));
            stream.gives_up().verdict().summary
        };
        assert_has(&noted(1), &["gave up before it was sent again"]);
        assert_has(&noted(3), &["no answer to the SYN, sent again 2 times"]);
    }

    #[test]
    fn silence_is_unexplained() {
        let verdict = Stream::new().connect().wait_ms(1000).syn_again().gives_up().verdict();
        assert_eq!(verdict.cause.name(), "unexplained");
        assert_has(&verdict.summary, &["sent again 1 time"]);
    }

    /// openshift/origin#6939: the node had got another address, and its pods were listed with the old one.
    #[test]
    fn a_host_network_pods_address_that_the_node_does_not_have_is_reported() {
        let noted = |addrs: &[&str], host: bool| {
            let mut stream = Stream::new().links(true, addrs).http_readiness().clone();
            if host {
                stream.on_host_network();
            }
            stream.connect().gives_up().verdict()
        };
        let moved = noted(&["10.88.0.1"], true);
        let words = "; default/web is on this node's network, and no link of the node has its address 10.88.0.2";
        assert!(moved.cause.name() == "unexplained" && moved.summary.ends_with(words), "{}", moved.summary);
        assert_has(&moved.remediation, &["--node-ip"]);
        for other in [noted(&["10.88.0.1"], false), noted(&["10.88.0.1", "10.88.0.2"], true)] {
            assert_lacks(&other.summary, &["no link of the node"]);
        }
    }

    /// A probe of a pod on the node's network names the address of a link that is gone, as NodeLocal DNSCache removes it.
    #[test]
    fn the_host_of_a_probe_that_no_link_has_is_reported() {
        let noted = |addrs: &[&str], host: bool, refused: bool| {
            let mut stream = Stream::new().links(true, addrs).http_readiness().clone();
            let pod = &mut stream.last_pods().pods[0];
            pod.addrs = vec![address("10.88.0.1")];
            pod.containers[0].probes[0].host = Some("10.88.0.2".into());
            if host {
                stream.on_host_network();
            }
            stream.connect();
            if refused {
                stream.state(TcpState::SynSent, TcpState::Close, libc::EHOSTUNREACH, (0, 0, 0));
            }
            stream.gives_up().verdict()
        };
        let words = "the probe of default/web names host 10.88.0.2: that pod is on this node's network, and no link of";
        for (refused, cause) in [(false, "unexplained"), (true, "route_unreachable")] {
            let gone = noted(&["10.88.0.1"], true, refused);
            assert_eq!(gone.cause.name(), cause);
            assert_has(&gone.summary, &[words]);
            assert_has(&gone.remediation, &["restore it", "ip addr show to 10.88.0.2"]);
        }
        for other in [noted(&["10.88.0.1"], false, false), noted(&["10.88.0.1", "10.88.0.2"], true, false)] {
            assert_lacks(&other.summary, &["no link of the node"]);
        }
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

    #[test]
    fn a_client_that_is_the_only_endpoint_needs_a_hairpin() {
        let verdict = |ready: &[&str]| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| {
                it.cluster_ips = vec![address("10.96.0.9")];
                it.ready_endpoints = Some(ready.iter().map(|addr| address(addr)).collect());
            });
            stream.connect().last_connect().netns = POD;
            stream.gives_up().verdict()
        };
        let own = verdict(&["10.88.0.1", "fd00::1"]);
        assert_has(
            &own.summary,
            &["Service shop/cart, and the client is its only ready endpoint: its packets must come"],
        );
        assert_has(&own.remediation, &["hairpinMode", "bridge -d link"]);
        let mut dropped =
            Stream::to("10.96.0.9:80").service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).clone();
        dropped.connect().last_connect().netns = POD;
        dropped.drop_with(SYN, NODE, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("br_handle_frame_finish".into()));
            drop.flow.dst = address("10.88.0.1:8080");
        });
        let dropped = dropped.gives_up().verdict();
        assert_has(
            &dropped.summary,
            &["in br_handle_frame_finish); a Service had sent it back to its own sender (hairpin)"],
        );
        assert_has(&dropped.remediation, &["hairpinMode"]);
        let other = verdict(&["10.88.0.1", "10.88.0.2"]);
        assert_lacks(&other.summary, &["hairpin"]);
        assert_has(&other.remediation, &["the translation of the answers is lost", "conntrack -L -p tcp -d 10.96.0.9"]);
    }

    #[test]
    fn a_cluster_ip_that_left_the_node_lacks_the_rules_of_the_proxy() {
        let dropped = |netns, reason: &str, place: Option<&str>| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.service(80, |it| it.cluster_ips = vec![address("10.96.0.9")]).connect().drop(SYN, reason, netns);
            stream.last_drop().location = place.map(str::to_owned);
            let verdict = stream.gives_up().verdict();
            assert_eq!(verdict.cause.name(), "unexplained");
            (
                verdict.summary.contains("); no rule of this node translated 10.96.0.9:80, Service shop/cart"),
                verdict.remediation,
            )
        };
        for (netns, reason, place) in [(POD, "NOT_SPECIFIED", Some("ip_error")), (NODE, "IP_LOCAL_SOURCE", None)] {
            let (is_named, fix) = dropped(netns, reason, place);
            assert!(is_named, "{reason}");
            assert_starts(&fix, "Find out why kube-proxy on this node is behind or stands still");
            assert_has(&fix, &["nft list ruleset | grep -F 10.96.0.9"]);
        }
        assert!(!dropped(NODE, "QDISC_DROP", None).0, "before the rules of the node");
    }

    #[test]
    fn a_syn_that_was_sent_once_is_reported_as_that() {
        let noted = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().http_readiness().connect().clone();
            fill(&mut stream);
            stream.gives_up().verdict()
        };
        let once = noted(|_| ());
        assert_has(
            &once.summary,
            &["after 1000.0 ms (no answer to the SYN, and the prober gave up before it was sent again)"],
        );
        assert_has(&once.remediation, &["a single lost packet fails the probe", "timeoutSeconds 2"]);
        let again = noted(|stream| _ = stream.syn_again());
        assert_has(&again.summary, &["no answer to the SYN, sent again 1 time"]);
        assert_lacks(&again.remediation, &["timeoutSeconds 2"]);
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
