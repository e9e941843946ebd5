//! The attempt failed and nothing decides why.

use super::super::SETTLE_NS;
use super::super::evidence::of_inspection;
use super::super::netfilter;
use super::super::serving::held_answer;
use super::network_policy_drop::ovs_reason;
use super::pod_link_down::is_wrong_bridge;
use super::*;
use tracer_model::event::{Observation, ObservationKind, PacketDrop};

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
    let lost = first_drop(attempt, ended);
    let missing = missing_address(case);
    let summary = format!(
        "the attempt to {} failed after {} ({}) and {}{}",
        attempt.flow.dst,
        ms(lasted),
        if too_late {
            describe_late_connection(attempt)
        } else if failed {
            let held = held_answer(case).map(|words| format!("established and the request acknowledged; {words}"));
            held.or_else(|| is_syn_lost(case).then(|| LOST_SYN.to_owned()))
                .unwrap_or_else(|| describe_end(attempt, end))
        } else {
            DISAGREES.to_owned()
        },
        lost.map_or_else(|| describe_no_evidence(case), |(_, drop)| describe_drop(case, drop)),
        missing.as_ref().map(|(words, _)| words.as_str()).unwrap_or_default()
    );
    let service = super::service_no_endpoints::target_service(case).filter(|_| lost.is_none());
    let remediation =
        lost.and_then(|(_, drop)| fix_of_drop(case, drop)).or_else(|| service.map(|name| by_endpoint(&name)));
    let remediation = remediation.or_else(|| missing.map(|(_, fix)| fix));
    let otherwise = || match is_syn_lost(case) {
        true => Cause::Unexplained.fix().reword(|text| format!("{SECOND_SYN}. {text}")),
        false => Cause::Unexplained.fix(),
    };
    let remediation = remediation.unwrap_or_else(otherwise);
    let found = Finding::failure(Cause::Unexplained, evidence, summary, remediation);
    let (confidence, rests_on) = (Confidence::Possible, OBSERVING_HOOKS);
    Some(Finding { decided_at: ended, confidence, rests_on, ..found })
}

/// The prober waited, and gave up before the kernel sent the SYN again, which it does after one second
/// (`TCP_TIMEOUT_INIT`).
fn is_syn_lost(case: &Case<'_>) -> bool {
    let attempt = case.attempt;
    let waited = attempt.lasted().is_some_and(|lasted| lasted >= AT_ONCE_NS);
    let (no_error, once) = (attempt.errno().is_none(), attempt.retransmits.0 == 0);
    matches!(attempt.ended, Some((_, End::NotEstablished)))
        && waited
        && no_error
        && once
        && attempt.reset_received().is_none()
        && !case.lacks(&[Hook::TcpRetransmit])
}

const LOST_SYN: &str = "no answer to the SYN, and the prober gave up before it was sent again";
const SECOND_SYN: &str =
    "If the timeout is one second, a single lost packet fails the probe. With timeoutSeconds 2, a second SYN is sent";

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
    let dropped = attempt.drops().any(|(time, _)| time <= ended);
    let refused = attempt.icmp().any(|(time, _)| time <= ended);
    !dropped && !refused && attempt.reset_received().is_none_or(|(time, _)| time > ended)
}

/// Says that nothing decides. Behind a Service, tracer does not recognize a translated packet as one of this attempt.
fn describe_no_evidence(case: &Case<'_>) -> String {
    let service = super::service_no_endpoints::target_service(case);
    let service = service.map(|name| {
        format!(
            "; the target is Service {name}: tracer does not see what becomes of a packet on its way to an endpoint"
        )
    });
    format!("nothing that was seen decides why{}", service.unwrap_or_default())
}

/// A pod on this node's network is listed with the address, and no link of the node has it.
pub(super) fn missing_address(case: &Case<'_>) -> Option<(String, Remediation)> {
    let (addr, netns) = (case.attempt.flow.dst.ip(), case.node.netns()?);
    let pod = case.node.pods.at(addr).next()?;
    let known = case.attempt.netns == Some(netns) && case.node.links.get(&netns).is_some();
    if !known || case.node.owns(netns, addr) || !case.node.pods.at(addr).all(|pod| pod.host_network) {
        return None;
    }
    let name = pod.full_name().unwrap_or_else(|| "a pod".to_owned());
    let words = format!("; {name} is on this node's network, and no link of the node has its address {addr}");
    let fix = Remediation::from(
        "If the node's address has changed, correct the kubelet's --node-ip (or restore the node's address) and restart the kubelet",
    )
    .run([Command::on_node(format!("ip addr show to {addr}")), Command::in_cluster("kubectl get nodes -o wide")]);
    Some((words, fix))
}

fn by_endpoint(service: &str) -> Remediation {
    Remediation::from(format!(
        "Connect to each endpoint of Service {service} by itself: the verdict on that connection names the cause"
    ))
    .run(kubectl::endpoints(Some(service)))
}

/// The first dropped packet of the handshake or with data; else the first dropped packet.
fn first_drop(attempt: &Attempt, ended: u64) -> Option<(u64, &PacketDrop)> {
    let drops = || attempt.drops().filter(|(time, d)| *time <= ended && !d.flags.is_rst());
    drops().find(|(_, d)| d.flags.is_syn() || d.flags.is_syn_ack() || d.flags.has_data()).or_else(|| drops().next())
}

/// Describes a packet that the kernel dropped for a reason that no cause stands for.
fn describe_drop(case: &Case<'_>, drop: &PacketDrop) -> String {
    let why = match (drop.reason.as_deref(), drop.location.as_deref()) {
        (Some(reason), Some(place)) => format!(" ({reason}, in {place})"),
        (Some(one), None) | (None, Some(one)) => format!(" ({one})"),
        (None, None) => String::new(),
    };
    let on = drop.device.as_ref().map(|device| format!(" on {}", device.name)).unwrap_or_default();
    let (flags, flow, place) = (drop.flags.name(), drop.flow, in_namespace(case, drop.netns));
    let meaning = match drop {
        _ if is_early_demux(case, drop) => EARLY_DEMUX,
        _ if may_be_rerouted(case, drop) => REROUTED,
        _ if is_on_wrong_bridge(case, drop) => {
            ": that bridge has other addresses, since a route or a mark led the SYN to a wrong device"
        }
        _ if is_second_syn(drop) && case.attempt.established.is_some() => {
            ": the target had taken an earlier SYN, and its SYN-ACK was lost or came late"
        }
        _ if is_taken_by_another(case, drop) => {
            ": that namespace has the prober's address, too, and took the answer for its own"
        }
        _ if is_in_wrong_namespace(case, drop) => {
            ": another namespace has that address, and this one does not forward (net.ipv4.ip_forward is 0, or a stale neighbour entry led it here)"
        }
        _ => meaning(drop),
    };
    format!("the kernel dropped its {flags} {flow}{on}{place}{why}{meaning}")
}

/// `ip_forward` drops a packet that has a socket already, and gives no reason (net/ipv4/ip_forward.c). Early demux had
/// found the socket by the addresses, and the table of a rule then sent the packet on. The AWS VPC CNI routes pods with
/// security groups of their own like that.
fn is_early_demux(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let forwarded = drop.location.as_deref().map(plain) == Some("ip_forward");
    let own = drop.flags.is_syn_ack() && drop.flow.dst == case.attempt.flow.src && drop.netns == case.attempt.netns;
    forwarded && own && drop.netns.is_some() && drop.reason.as_deref() == Some("NOT_SPECIFIED")
}

/// The SYN to a pod of this node came to a bridge with other addresses, which has no port for it.
fn is_on_wrong_bridge(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let is_here = case.node.has_pod(drop.flow.dst.ip()) && outbound(case, drop);
    is_here && drop.reason.as_deref() == Some("NO_TX_TARGET") && is_wrong_bridge(case, drop)
}

/// The packet came to a namespace that does not have its address, while another is known to have it.
fn is_in_wrong_namespace(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let holder = inspected(case).and_then(|(_, reading)| reading.netns).filter(|_| outbound(case, drop));
    drop.reason.as_deref() == Some("IP_INADDRERRORS") && holder.is_some() && drop.netns != holder
}

/// The SYN-ACK came to another namespace than the prober's. The kernel there found no socket for it.
fn is_taken_by_another(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let elsewhere = drop.netns.is_some() && case.attempt.netns.is_some() && drop.netns != case.attempt.netns;
    let answer = drop.flags.is_syn_ack() && drop.flow.dst == case.attempt.flow.src;
    elsewhere && answer && drop.reason.as_deref() == Some("NO_SOCKET")
}

const EARLY_DEMUX: &str = ": it is for a socket of this namespace, but was forwarded. Most likely an `ip rule` for that device sends it into another table (or table local has lost its address), and net.ipv4.tcp_early_demux had found the socket before";

/// Netfilter dropped it at OUTPUT, and no rule can have done it.
fn may_be_rerouted(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let stopped = netfilter::dropped(case).filter(|stopped| stopped.may_be_rerouted());
    stopped.and_then(|stopped| stopped.drop).is_some_and(|(_, dropped)| std::ptr::eq(dropped, drop))
}

const REROUTED: &str = " at OUTPUT, but no rule that was read there fits. If a rule sets a mark, the kernel looks up the route again, and that route may refuse the packet (ip rule). A program or module at that hook may also drop it";

/// A SYN that is sent again while the handshake is half done (`tcp_check_req`, net/ipv4/tcp_minisocks.c).
fn is_second_syn(drop: &PacketDrop) -> bool {
    let at_socket = matches!(drop.location.as_deref().map(plain), Some("tcp_v4_rcv" | "tcp_v6_rcv"));
    drop.flags.is_syn() && at_socket
}

/// What a drop reason means, if its name says little (include/net/dropreason-core.h).
fn meaning(drop: &PacketDrop) -> &'static str {
    match drop.reason.as_deref() {
        Some("NOT_SPECIFIED") | None if is_second_syn(drop) => {
            ": most likely the target had taken an earlier SYN, and its SYN-ACK does not arrive (check the way back, and the pod's neighbour entry for the node)"
        }
        // `br_forward`, net/bridge/br_forward.c
        Some("NOT_SPECIFIED") if drop.location.as_deref().map(plain) == Some("br_dev_xmit") => {
            ": the bridge may not send it through its port (disabled, blocked by spanning tree, or of another VLAN)"
        }
        // `ip_error`, net/ipv4/route.c
        Some("NOT_SPECIFIED") if drop.location.as_deref().map(plain) == Some("ip_error") => {
            ": a rule or route of that namespace refuses what comes in by that device (ip rule, ip route)"
        }
        Some(reason) if reason.starts_with("XFRM_") => {
            ": an IPsec policy of that namespace blocks it, or takes it only encrypted (ip xfrm policy)"
        }
        // `make_blackhole` and bundles without a state, net/xfrm/xfrm_policy.c
        Some("NOT_SPECIFIED") if drop.location.as_deref().map(plain) == Some("dst_discard_out") => {
            ": its route was going away, or an IPsec policy waits for keys (ip xfrm policy)"
        }
        Some("NO_TX_TARGET") => {
            ": the bridge has no port for it: it was sent to a link-layer address that nobody has (check the sender's ip neigh)"
        }
        Some("IP_INADDRERRORS") => {
            ": the kernel there does not have the address it was sent to (it was taken away, or a network stack of its own in the pod holds it)"
        }
        Some("IPV6DISABLED") => ": IPv6 is switched off there (net.ipv6.conf.*.disable_ipv6), and the address with it",
        Some("TCP_MD5NOTFOUND" | "TCP_AONOTFOUND" | "TCP_AOREQUIRED") => {
            ": the listener there takes only signed segments from that address (TCP-MD5 or TCP-AO, as BGP uses it), and a probe signs none"
        }
        // `tcp_validate_incoming`, net/ipv4/tcp_input.c
        Some("TCP_INVALID_SYN") if drop.flags.is_syn_ack() => {
            ": it is a second SYN-ACK, so that what the prober sent after the first one did not reach the target"
        }
        Some("TCP_CSUM") => {
            ": its checksum is wrong. Something on the way changed it, or a device claims a checksum offload that does not work"
        }
        Some("IP_LOCAL_SOURCE") => ": it came back to its sender: the next hop's route to the target leads here again",
        Some("IP_INNOROUTES") if drop.flow.dst.is_ipv6() => {
            ": that namespace has no route for it. If it is the pod's, its address is gone (IPv6 addresses go with a link that is set down)"
        }
        Some("IP_INNOROUTES" | "IP_OUTNOROUTES") => ": that namespace has no route for it",
        Some("QDISC_DROP" | "QDISC_OVERLIMIT") => ": the device's queue is full, limited, or made to lose packets",
        Some(_) if ovs_reason(drop).is_some() => {
            ": an error or a limit of Open vSwitch, not a flow that drops on purpose (its number: enum ovs_drop_reason, net/openvswitch/drop.h; ovs-appctl dpctl/dump-flows and the log of ovs-vswitchd on this node)"
        }
        _ => "",
    }
}

/// How to fix the drop, and the commands that show more.
fn fix_of_drop(case: &Case<'_>, drop: &PacketDrop) -> Option<Remediation> {
    if may_be_rerouted(case, drop) {
        let show = ["ip rule", "ip route show table all", "nft list ruleset", "iptables-save -t mangle"];
        return Some(
            Remediation::from(
                "Find a rule that sets a mark for this packet (meta mark set, MARK), and the routing table that `ip rule` gives packets with that mark",
            )
            .run(show.map(|command| run_in(case, drop.netns, command.to_owned()))),
        );
    }
    let (reason, device) = (drop.reason.as_deref()?, drop.device.as_ref()?);
    if is_early_demux(case, drop) {
        let (dst, src, device) = (drop.flow.dst.ip(), drop.flow.src.ip(), shell::link(&device.name));
        let show = ["ip rule".to_owned(), format!("ip route get {dst} from {src} iif {device}")];
        return Some(
            Remediation::from(
                "If that is a CNI's rule, set net.ipv4.tcp_early_demux to 0 (AWS VPC CNI with security groups for pods: DISABLE_TCP_EARLY_DEMUX=true on the init container of aws-node). Else fix the rule",
            )
            .run(show.map(|command| run_in(case, drop.netns, command))),
        );
    }
    let name = shell::link(&device.name);
    let (text, show) = match reason {
        "NO_TX_TARGET" if is_on_wrong_bridge(case, drop) => (
            "Find the route or the mark that leads there, and correct it",
            format!("ip route get {} from {}", drop.flow.dst.ip(), drop.flow.src.ip()),
        ),
        "NOT_SPECIFIED" if is_second_syn(drop) && case.attempt.established.is_none() => (
            "Compare the pod's neighbour entry for the prober, or for its gateway, with the link-layer address of the node's link. Delete the entry if they differ",
            format!("ip neigh show {}", drop.flow.src.ip()),
        ),
        "NO_SOCKET" if is_taken_by_another(case, drop) => (
            "Find which of the two should have the prober's address, and remove it from the other. Never remove the node's own address",
            format!("ip addr show to {}", drop.flow.dst.ip()),
        ),
        "NOT_SPECIFIED" if drop.location.as_deref().map(plain) == Some("ip_error") => (
            "Find the rule or route that refuses it, and correct it",
            format!("ip route get {} from {} iif {name}", drop.flow.dst.ip(), drop.flow.src.ip()),
        ),
        _ if reason.starts_with("XFRM_") => ("Correct the IPsec policy, or what makes it", "ip xfrm policy".to_owned()),
        "IPV6DISABLED" => (
            "Set disable_ipv6 of that device and of `all` to 0 there. A pod gets its address back when it is deleted and made again",
            format!("sysctl net.ipv6.conf.all.disable_ipv6 net.ipv6.conf.{name}.disable_ipv6"),
        ),
        "TCP_CSUM" => (
            "Find the device that sends it with a wrong checksum, such as a VXLAN device. Switch its offload off, and see if the attempts succeed (ethtool -K LINK tx-checksum-ip-generic off)",
            "nstat -az TcpInCsumErrors".to_owned(),
        ),
        "IP_LOCAL_SOURCE" => {
            ("Correct the next hop's route to the target", format!("ip route get {}", drop.flow.dst.ip()))
        }
        _ if reason.starts_with("QDISC") => (
            "Find the queue that counts drops: a rate limit (the CNI's bandwidth plugin), a full queue or netem",
            format!("tc -s qdisc show dev {name}"),
        ),
        _ => return None,
    };
    Some(Remediation::from(text).run([run_in(case, drop.netns, show)]))
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
];

fn describe_end(attempt: &Attempt, end: End) -> String {
    let errno = attempt.errno().map(|e| format!(", {}", errno_text(e))).unwrap_or_default();
    let stage = match end {
        End::NotEstablished if attempt.retransmits.0 > 0 => {
            format!("no answer to the SYN, sent again {}", counted(attempt.retransmits.0.into(), "time"))
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
            format!("established and the request acknowledged; the target's answer did not arrive{again}")
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
    use crate::testing::*;

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

    #[test]
    fn silence_is_unexplained() {
        let verdict = Stream::new().connect().wait_ms(1000).syn_again().gives_up().verdict();
        assert_eq!(verdict.cause.name(), "unexplained");
        assert_has(&verdict.summary, &["sent again 1 time"]);
    }

    /// Security groups for pods on AWS: amazon-vpc-cni-k8s#1212.
    #[test]
    fn a_forwarded_answer_with_a_socket_of_early_demux_is_explained() {
        let noted = |netns, reason: &str| {
            let device = Device { ifindex: 7, name: "vlaneni1".into(), up: true, loopback: false };
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).connect().drop_with(SYN_ACK, netns, |drop| {
                (drop.reason, drop.location) = (Some(reason.into()), Some("ip_forward".into()));
                drop.device = Some(device);
            });
            stream.gives_up().verdict()
        };
        let (own, other, reason) =
            (noted(NODE, "NOT_SPECIFIED"), noted(POD, "NOT_SPECIFIED"), noted(NODE, "XFRM_POLICY"));
        assert!(own.cause.name() == "unexplained" && own.summary.contains("tcp_early_demux"), "{}", own.summary);
        let commands = ": ip rule; ip route get 10.88.0.1 from 10.88.0.2 iif vlaneni1";
        assert_ends(&own.remediation, commands);
        assert!(!other.summary.contains("early_demux") && !reason.summary.contains("early_demux"));
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

    /// With timeoutSeconds 1 the attempt ends just before the first retransmission.
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

    #[test]
    fn a_hook_of_the_other_family_is_not_missed() {
        let missed = |mut stream: Stream| {
            for hook in [
                Hook::IcmpSend,
                Hook::Icmp6Send,
                Hook::IpvsNatXmit,
                Hook::IpvsNatXmitV6,
                Hook::TcpV4SendReset,
                Hook::TcpV6SendReset,
            ] {
                stream.missing(hook);
            }
            stream.connect().drop_on(SYN, "QDISC_DROP", NODE, None).gives_up();
            stream.verdict().missing_hooks
        };
        assert_eq!(missed(Stream::new()), ["icmp_send", "ip_vs_nat_xmit", "tcp_v4_send_reset"]);
        assert_eq!(missed(Stream::to("[fd00::2]:8080")), ["icmp6_send", "ip_vs_nat_xmit_v6", "tcp_v6_send_reset"]);
    }

    #[test]
    fn the_meaning_of_a_reason_is_explained() {
        let noted = |reason: &str, place: &str| {
            let device = Device { ifindex: 7, name: "eth0".into(), up: true, loopback: false };
            let mut stream = Stream::new();
            stream.connect().drop_with(SYN, POD, |drop| {
                (drop.reason, drop.location, drop.device) = (Some(reason.into()), Some(place.into()), Some(device));
            });
            let noted = stream.gives_up().verdict();
            assert_eq!(noted.cause.name(), "unexplained");
            format!("{} {}", noted.summary, noted.remediation)
        };
        assert_has(
            &noted("IPV6DISABLED", "ip6_rcv_core"),
            &["IPv6 is switched off there", "net.ipv6.conf.eth0.disable_ipv6"],
        );
        assert_has(&noted("TCP_MD5NOTFOUND", "tcp_v4_rcv"), &["takes only signed segments"]);
        assert_has(
            &noted("IP_LOCAL_SOURCE", "ip_rcv_finish_core"),
            &["came back to its sender", "ip route get 10.88.0.2"],
        );
        assert_has(&noted("NOT_SPECIFIED", "br_dev_xmit"), &["blocked by spanning tree"]);
        assert_has(&noted("NOT_SPECIFIED", "tcp_v4_rcv"), &["its SYN-ACK does not arrive", "ip neigh show 10.88.0.1"]);
        assert_has(&noted("TCP_CSUM", "tcp_v4_rcv"), &["its checksum is wrong", "tx-checksum-ip-generic off"]);
        assert_has(&noted("NOT_SPECIFIED", "ip_error"), &["refuses what comes in by that device", "iif eth0"]);
        assert_has(&noted("XFRM_POLICY", "xfrm4_policy_check"), &["an IPsec policy of that namespace blocks it"]);
        assert_has(&noted("NOT_SPECIFIED", "dst_discard_out"), &["an IPsec policy waits for keys"]);
        let on_its_way = |holder| {
            let mut stream = Stream::new();
            stream.connect().drop(SYN, "IP_INADDRERRORS", Netns(7)).wait_ms(200);
            stream.inspection(|reading| reading.netns = holder).gives_up().verdict().summary
        };
        assert_has(&on_its_way(Some(POD)), &["another namespace has that address, and this one does not forward"]);
        let mut slow = Stream::new();
        slow.http_readiness().connect().wait_ms(900).syn_again().drop_with(SYN, POD, |drop| {
            (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("tcp_v4_rcv".into()));
        });
        slow.wait_ms(125).established().closes((0, 1, 0)).wait_ms(50).tick();
        assert_has(&slow.verdict().summary, &["its SYN-ACK was lost or came late"]);
        let again = Stream::new().connect().drop(SYN_ACK, "TCP_INVALID_SYN", NODE).gives_up().verdict();
        assert_has(&again.summary, &["it is a second SYN-ACK"]);
        assert_has(&on_its_way(None), &["the kernel there does not have the address"]);
    }

    /// A pod has the node's address, too, and another pod's neighbour entry leads there.
    #[test]
    fn an_answer_that_another_namespace_took_is_reported() {
        let noted = |netns| {
            let device = Device { ifindex: 7, name: "eth0".into(), up: true, loopback: false };
            let stream = Stream::new().connect().drop_on(SYN_ACK, "NO_SOCKET", netns, Some(device)).gives_up().clone();
            let verdict = stream.verdict();
            format!("{} {}", verdict.summary, verdict.remediation)
        };
        assert_has(&noted(Netns(7)), &["has the prober's address, too", "ip addr show to 10.88.0.1"]);
        assert!(!noted(NODE).contains("has the prober's address"));
    }

    #[test]
    fn a_drop_that_no_cause_stands_for_is_named() {
        let device = Device { ifindex: 7, name: "v7".into(), up: true, loopback: false };
        let mut stream = Stream::new();
        stream.links(true, &["10.88.0.1"]).connect().drop_on(SYN, "QDISC_DROP", NODE, Some(device)).gives_up();
        let verdict = stream.verdict();
        let named = "the kernel dropped its SYN 10.88.0.1:40000 -> 10.88.0.2:8080 on v7 on the node (QDISC_DROP)";
        assert!(verdict.cause.name() == "unexplained" && verdict.summary.contains(named), "{}", verdict.summary);
        assert_ends(&verdict.remediation, ": tc -s qdisc show dev v7");
    }
}
