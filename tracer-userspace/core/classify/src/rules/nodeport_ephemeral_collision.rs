//! The attempt's source port is a NodePort of this node, and IPVS or a rule of kube-proxy took the SYN-ACK.
//!
//! Mechanism (net/netfilter/ipvs/ip_vs_proto_tcp.c `tcp_conn_schedule`, seen on 5.10 to 7.2): the SYN-ACK has the SYN bit,
//! so a virtual service that matches its destination schedules it as a new connection. The prober itself never gets a RST.

mod overlap;
mod reservation;

use std::net::SocketAddr;

use self::overlap::describe_overlap;
use self::reservation::{remediation, reserve_port};
use super::*;
use crate::rules::service_no_endpoints::service_of;
use tracer_case::blocked::Blame;
use tracer_case::drop_reason::is_out_of_window;
use tracer_case::netfilter::{blocked, takes_requests_of_ipvs};
use tracer_model::event::{Ipvs, IpvsOp, NodePort, NodePorts, PacketDrop, ProxyMode, TcpState, Via};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    if attempt.flow.src.port() == 0 || !in_handshake(case) {
        return None;
    }
    let port = case.node.node_ports.of_ipvs_at(attempt.flow.src);
    taken(case, port)
        .or_else(|| freed(case, port))
        .or_else(|| by_rule(case))
        .or_else(|| backend_reset(case, port?))
        .or_else(|| dropped(case, port?))
        .or_else(|| half_open(case, port?))
        .or_else(|| unanswered(case, port?))
}

/// IPVS took a SYN-ACK that carries this attempt's own tuple.
fn taken(case: &Case<'_>, port: Option<&NodePort>) -> Option<Finding> {
    let back = case.attempt.flow.reversed();
    let (time, ipvs) =
        case.attempt.ipvs().find(|(_, i)| i.flags.is_syn_ack() && i.flow == back && i.via != Via::Destination)?;
    let is_of_table = |it: &NodePorts| ipvs.netns.is_none_or(|netns| netns == it.netns);
    if port.is_none() && case.node.node_ports.of(ProxyMode::Ipvs).is_some_and(is_of_table) {
        return Some(by_other_service(case, time, ipvs));
    }
    let is_empty = port.is_some_and(|it| it.backends.is_empty());
    let fate = match ipvs.op {
        IpvsOp::NoBackend if !is_empty => format!("{TOOK} sent it to no backend (none takes new connections)"),
        _ => sent_to(port),
    };
    Some(finding(case, port, &fate, vec![of_ipvs(time, ipvs)]))
}

/// IPVS took the SYN-ACK, and its table as it was read has no service at the attempt's source. Services by firewall
/// mark have no address in it (`ip_vs_service_find`).
fn by_other_service(case: &Case<'_>, time: u64, ipvs: &Ipvs) -> Finding {
    let (src, dst) = (case.attempt.flow.src, case.attempt.flow.dst);
    let summary = format!(
        "IPVS took the SYN-ACK of this attempt to {dst} for a service of its own; its table, as it was read before, has none at {src}: one by firewall mark took it (FWM), or a NodePort {} that is newer; {} retransmits its SYN",
        src.port(),
        client_name(case.attempt)
    );
    let text = format!(
        "If `ipvsadm -Ln` lists a service at {src}, reserve that port (net.ipv4.ip_local_reserved_ports). Else it is one by firewall mark (FWM): find the rule that sets the mark, and let it leave out answers (--ctdir ORIGINAL, ct direction original)"
    );
    let show = ["ipvsadm -Ln", "iptables-save -t mangle", "nft list ruleset"];
    let fix = Remediation::from(text).run(show.map(|command| run_in(case, case.attempt.netns, command)));
    Finding::failure(Cause::NodeportEphemeralCollision, vec![of_ipvs(time, ipvs)], summary, fix)
        .rests_on_lost_packet()
        .with_confidence(Confidence::Possible)
}

/// IPVS took an answer with this attempt's own tuple, and freed it. It is no SYN-ACK, see [`half_open`].
fn freed(case: &Case<'_>, port: Option<&NodePort>) -> Option<Finding> {
    let back = case.attempt.flow.reversed();
    let by_ipvs = |drop: &PacketDrop| drop.location.as_deref().is_some_and(|place| place.starts_with("ip_vs_nat_xmit"));
    let (time, drop) = case.attempt.drops().find(|(_, drop)| drop.flow == back && by_ipvs(drop))?;
    Some(finding(case, port, "took an answer of the target for its traffic and freed it", vec![of_drop(time, drop)]))
}

/// The target dropped each SYN, since it has a half-open connection of an earlier attempt from this port. It answers with
/// an ACK (`tcp_check_req`, net/ipv4/tcp_minisocks.c), and IPVS takes that as it took the SYN-ACK. The hooks of IPVS show
/// only segments of a handshake. A prober that gets such an ACK answers with a RST, and its next SYN succeeds.
fn half_open(case: &Case<'_>, port: &NodePort) -> Option<Finding> {
    let attempt = case.attempt;
    let (ended, _) = attempt.ended.filter(|_| case.settled)?;
    let at_target = |drop: &PacketDrop| {
        let at_socket = drop.reason.is_some() && is_at_socket(drop);
        drop.flags.is_syn() && drop.flow == attempt.flow && (at_socket || is_out_of_window(drop))
    };
    let first = attempt.drops().next()?;
    // A retransmitted SYN is dropped in the same way if this attempt's own SYN-ACK was lost.
    let all =
        attempt.drops().all(|(_, drop)| at_target(drop)) && attempt.drops().count() > attempt.retransmits.0 as usize;
    let is_silent = attempt.icmp().next().is_none() && attempt.reset_received().is_none();
    (all && is_silent && attempt.resets_sent().next().is_none()).then(|| {
        let found = finding(case, Some(port), HALF_OPEN, vec![of_drop(first.0, first.1)]);
        Finding { decided_at: ended, ..found.with_confidence(Confidence::Likely) }
    })
}

const HALF_OPEN: &str =
    "takes the target's answers for its traffic; the target drops the SYN, as it still has a connection from this port";

/// A rule of kube-proxy for a NodePort without endpoints stopped the SYN-ACK. Current rules match new connections only,
/// and let it pass.
fn by_rule(case: &Case<'_>) -> Option<Finding> {
    let blocked = blocked(case)?;
    let syn_ack = blocked.answer_dropped(case).filter(|drop| drop.flags.is_syn_ack())?;
    let blame = blocked.blame.as_ref().filter(|blame| blame.all(|rule| service_of(rule).is_some()))?;
    let (src, dst) = (case.attempt.flow.src, case.attempt.flow.dst);
    if syn_ack.flow.dst != src {
        return None;
    }
    let listed = case.node.service_of_number(src.port());
    let named = || blame.rules.iter().find_map(|rule| service_of(rule)).filter(|name| name.contains('/'));
    let service = listed.or_else(|| named().map(str::to_owned));
    let service = service.map_or_else(|| "a Service".to_owned(), |name| format!("Service {name}"));
    // A rule for a NodePort has no address: that is any of the node's. One for an external IP or a load balancer has.
    let is_external = blame.all(|rule| rule.when.dst.is_some());
    let (subject, fix) = match is_external {
        true => {
            (format!("the source {src} of this attempt to {dst} is an external address and port"), reserve_port(case))
        }
        false => (format!("source port {} of this attempt to {dst} is the NodePort", src.port()), remediation(case)),
    };
    let overlap = if is_external { String::new() } else { describe_overlap(case) };
    let summary = format!(
        "{subject} of {service}, which has no endpoint; kube-proxy's rule{}; {} keeps retransmitting its SYN{overlap}",
        blocked.action(case),
        client_name(case.attempt)
    );
    let found = blocked.finding(case, Cause::NodeportEphemeralCollision, summary, fix);
    let confidence = if blame.certain().is_some() { Confidence::Proven } else { Confidence::Likely };
    Some(Finding { confidence, rests_on: &[], by_absence: false, ..found }.rests_on_lost_packet())
}

/// A backend of this NodePort answered the target's SYN-ACK with a RST. Only IPVS can have sent the SYN-ACK there.
fn backend_reset(case: &Case<'_>, port: &NodePort) -> Option<Finding> {
    let (time, reset) = case.attempt.resets_sent().find(|(_, r)| {
        r.answered.is_syn_ack()
            && r.flow.dst == case.attempt.flow.dst
            && port.backends.contains(&r.flow.src)
            && (r.no_socket || r.state == Some(TcpState::Listen))
    })?;
    let evidence = vec![of_reset_sent(time, reset)];
    Some(finding(case, Some(port), &sent_to(Some(port)), evidence).with_confidence(Confidence::Likely))
}

/// IPVS dropped the SYN-ACK, which looks like a drop by netfilter. Either the NodePort has no backend and the hook for
/// that case is missing, or all rules were read and none of them fits.
fn dropped(case: &Case<'_>, port: &NodePort) -> Option<Finding> {
    // Before the case is settled, a rule may still turn out to be the cause.
    if !case.settled {
        return None;
    }
    let blame = blocked(case).and_then(|it| it.blame.as_ref());
    // A rule that fits is the nearer cause.
    if blame.is_some_and(|blame| !blame.rules.is_empty()) {
        return None;
    }
    let without_hook = port.backends.is_empty() && case.lacks(&[Hook::IpvsLeave]);
    let by_no_rule = blame.is_some_and(Blame::fits_no_rule);
    if !without_hook && !by_no_rule {
        return None;
    }
    let back = case.attempt.flow.reversed();
    let (time, drop) = case
        .attempt
        .drops()
        .find(|(_, d)| d.flags.is_syn_ack() && d.flow == back && d.netns == case.attempt.netns && is_netfilter(d))?;
    if !without_hook && !takes_requests_of_ipvs(drop) {
        return None;
    }
    let fate = if port.backends.is_empty() { sent_to(Some(port)) } else { GONE.to_owned() };
    let found = finding(case, Some(port), &fate, vec![of_drop(time, drop)]).with_confidence(Confidence::Likely);
    let waits_for = drop.netns.map(|netns| (netns, time));
    let rests_on: &[Hook] = if without_hook { &[Hook::IpvsLeave] } else { &[] };
    Some(Finding { rests_on, waits_for, ..found })
}

/// `ip_vs_in_hook` drops packets of a connection that it knows in two cases. Its backend is gone, or the packet has a
/// conntrack entry of its own (`ip_vs_conn_uses_old_conntrack`).
const GONE: &str =
    "took the SYN-ACK for its traffic and dropped it, as it does for an earlier connection to a backend that is gone";

/// Only the table of IPVS shows the collision: the handshake had no answer, and hooks of IPVS are missing.
fn unanswered(case: &Case<'_>, port: &NodePort) -> Option<Finding> {
    let (ended, _) = case.attempt.ended?;
    if !case.settled || !silent(case) || !case.lacks(IPVS_HOOKS) {
        return None;
    }
    let found = finding(case, Some(port), &sent_to(Some(port)), Vec::new());
    Some(Finding { decided_at: ended, rests_on: IPVS_HOOKS, ..found.with_confidence(Confidence::Possible) })
}

/// The hooks that show where IPVS sends a packet, and what it drops.
const IPVS_HOOKS: &[Hook] = &[Hook::IpvsNatXmit, Hook::IpvsNatXmitV6, Hook::IpvsLeave];

/// `action`: what IPVS does.
fn finding(case: &Case<'_>, port: Option<&NodePort>, action: &str, mut evidence: Vec<Evidence>) -> Finding {
    let src = case.attempt.flow.src;
    let decided_at = evidence.iter().map(|e| e.time_boot_ns).max();
    evidence.extend(port.map(|p| table_entry(case, p, decided_at.unwrap_or(case.attempt.started))));
    let listed = || case.node.service_of_number(src.port());
    let service = port
        .and_then(|p| case.node.service_of(p))
        .or_else(listed)
        .map(|s| format!(" of Service {s}"))
        .unwrap_or_default();
    let summary = format!(
        "source port {} of this attempt to {} is a NodePort{service}; IPVS {action}; {} retransmits its SYN{}",
        src.port(),
        case.attempt.flow.dst,
        client_name(case.attempt),
        describe_overlap(case)
    );
    let found = Finding::failure(Cause::NodeportEphemeralCollision, evidence, summary, remediation(case));
    Finding { decided_at: decided_at.unwrap_or(found.decided_at), ..found }.rests_on_lost_packet()
}

fn sent_to(port: Option<&NodePort>) -> String {
    match port {
        Some(p) if p.backends.is_empty() => format!("{TOOK} sent it to no backend (the Service has none)"),
        Some(p) => format!(
            "{TOOK} sent it to one of its backends ({})",
            p.backends.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ")
        ),
        None => format!("{TOOK} sent it to one of its backends"),
    }
}

const TOOK: &str = "took the SYN-ACK for its traffic and";

fn table_entry(case: &Case<'_>, port: &NodePort, time: u64) -> Evidence {
    let text = format!(
        "/proc/net/ip_vs: virtual service {} with {}",
        SocketAddr::new(case.attempt.flow.src.ip(), port.port),
        counted(port.backends.len() as u64, "backend")
    );
    let fields = json!({ "node_port": port.port, "backends": port.backends, "service": case.node.service_of(port) });
    evidence_of("ip_vs", time, text, fields)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A rule of kube-proxy without `ctstate NEW` matches the answer of another pod, too: the answer goes to that port.
    #[test]
    fn a_rule_for_a_node_port_without_endpoints_stops_the_answer() {
        let reported = |flags: TcpFlags, chain: &str, verdict: RuleVerdict, text: &str| {
            let rule = FirewallRule { comment: Some(text.into()), ..rule(chain, verdict) };
            let mut stream = Stream::new();
            stream.connect().drop(flags, "NETFILTER_DROP", NODE).push(firewall(NODE, vec![rule])).wait_ms(5).tick();
            stream.gives_up().last_verdict()
        };
        let chain = "KUBE-EXTERNAL-SERVICES";
        for (verdict, text) in
            [(RuleVerdict::Reject, "has no endpoints"), (RuleVerdict::Drop, "has no local endpoints")]
        {
            let taken = reported(SYN_ACK, chain, verdict, &format!("kube-system/dashboard:https {text}"));
            assert_eq!((taken.cause.name(), taken.confidence), ("nodeport_ephemeral_collision", Confidence::Proven));
            let words = "source port 40000 of this attempt to 10.88.0.2:8080 is the NodePort of Service kube-system/dashboard:https";
            assert_has(&taken.summary, &[words, "the SYN-ACK 10.88.0.2:8080 -> 10.88.0.1:40000"]);
            assert_has(&taken.remediation, &["Then reserve that range"]);
            let to_service = reported(SYN, chain, verdict, &format!("kube-system/dashboard:https {text}"));
            assert_eq!(to_service.cause.name(), "service_no_endpoints");
        }
        assert_eq!(reported(SYN_ACK, "INPUT", RuleVerdict::Drop, "no guests").cause.name(), "firewall_drop");
    }

    /// The rule of an external IP or a load balancer, which is an address of the node.
    #[test]
    fn an_external_address_is_not_called_a_node_port() {
        let comment = Some("shop/cart:http has no endpoints".into());
        let dst = Some(Prefix { addr: address("10.88.0.1"), len: 32 });
        let when = When { dst, dport: Some(40_000), ..When::default() };
        let rule = FirewallRule { comment, when, ..rule("KUBE-EXTERNAL-SERVICES", RuleVerdict::Reject) };
        let mut stream = Stream::new();
        stream.connect().filtered(SYN_ACK, NODE).push(firewall(NODE, vec![rule])).wait_ms(5).tick();
        let verdict = stream.gives_up().last_verdict();
        assert_eq!(verdict.cause.name(), "nodeport_ephemeral_collision");
        let words = "the source 10.88.0.1:40000 of this attempt to 10.88.0.2:8080 is an external address and port of Service shop/cart:http,";
        assert_starts(&verdict.summary, words);
        assert_lacks(&verdict.summary, &["NodePort"]);
        assert_starts(&verdict.remediation, "Reserve port 40000, so");
    }

    /// The table was read before the Service was made.
    #[test]
    fn the_list_of_services_names_a_node_port_that_no_table_has() {
        let mut stream = Stream::new().service(80, |it| it.ports[0].node_port = Some(40_000)).clone();
        let verdict = stream.connect().ipvs(SYN_ACK, IpvsOp::Translate).verdict();
        assert_has(&verdict.summary, &["is a NodePort of Service shop/cart;"]);
    }

    /// kube-proxy sets the weight of a backend that ends to 0 (`ip_vs_schedule` skips it).
    #[test]
    fn backends_that_take_no_new_connections_are_not_named() {
        let mut stream = Stream::new();
        stream.node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]).connect().ipvs(SYN_ACK, IpvsOp::NoBackend);
        let verdict = stream.verdict();
        assert_eq!(verdict.cause.name(), "nodeport_ephemeral_collision");
        assert_has(&verdict.summary, &["sent it to no backend (none takes new connections)"]);
        assert_lacks(&verdict.summary, &["10.88.0.9"]);
    }

    #[test]
    fn neither_a_client_of_the_node_port_nor_iptables_is_the_cause() {
        let mut client = Stream::new().connect().ipvs(SYN, IpvsOp::Translate).established().clone();
        assert!(client.closes((10, 11, 20)).causes().is_empty(), "it sends a SYN");
        let mut iptables = Stream::new().node_port(ProxyMode::Iptables, 40000, &[]).clone();
        assert_eq!(iptables.connect().gives_up().causes(), ["unexplained"]);
    }

    /// The table shows a possibility only. The full queue of the listener was observed.
    #[test]
    fn without_the_ipvs_hooks_the_table_is_a_possibility() {
        let mut stream = Stream::new().missing(Hook::IpvsNatXmit).missing(Hook::IpvsLeave).clone();
        stream.node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]).connect();
        assert_eq!(stream.clone().gives_up().decided(), ("nodeport_ephemeral_collision", Confidence::Possible));
        stream.wait_ms(200).inspection(|reading| reading.listeners = Some(vec![listener(2, 1)]));
        assert_eq!(stream.gives_up().causes(), ["accept_queue_overflow"], "an observed cause goes first");
    }

    #[test]
    fn a_rule_that_drops_the_syn_ack_is_nearer_than_the_table() {
        let reported = |rules| {
            let mut stream = Stream::new();
            stream.missing(Hook::IpvsLeave).node_port(ProxyMode::Ipvs, 40000, &[]).connect();
            stream.filtered(SYN_ACK, NODE).push(firewall(NODE, rules)).settles();
            stream.gives_up().last_verdict().cause.name()
        };
        assert_eq!(reported(vec![rule("INPUT", RuleVerdict::Drop)]), "firewall_drop");
        assert_eq!(reported(vec![]), "nodeport_ephemeral_collision");
    }

    /// Seen on 6.12: a service by firewall mark (`ipvsadm -A -f`) took the SYN-ACK. The table had been read.
    #[test]
    fn a_service_by_firewall_mark_makes_no_node_port() {
        let verdict = |listed: Option<u16>, op| {
            let mut stream = Stream::new();
            listed.into_iter().for_each(|port| _ = stream.node_port(ProxyMode::Ipvs, port, &["10.88.0.9:80"]));
            stream.connect().ipvs(SYN_ACK, op).verdict()
        };
        let mut empty = Stream::new().node_port(ProxyMode::Ipvs, 30_001, &[]).clone();
        empty.last_node_ports().ports.clear();
        let verdict_of_empty = empty.connect().ipvs(SYN_ACK, IpvsOp::Translate).verdict();
        assert_eq!(verdict_of_empty.confidence, Confidence::Possible);
        let other = verdict(Some(30_001), IpvsOp::Translate);
        assert_eq!((other.cause.name(), other.confidence), ("nodeport_ephemeral_collision", Confidence::Possible));
        assert_has(&other.summary, &["has none at 10.88.0.1:40000: one by firewall mark took it (FWM)"]);
        assert_lacks(&other.summary, &["40000 of this attempt", "live NodePort"]);
        assert_has(&other.remediation, &["ipvsadm -Ln"]);
        assert_lacks(&other.remediation, &["are in use", "is in use", "sysctl -w"]);
        for listed in [None, Some(40_000)] {
            assert_eq!(verdict(listed, IpvsOp::Translate).confidence, Confidence::Proven);
            let left = verdict(listed, IpvsOp::NoBackend).summary;
            assert_has(&left, &["sent it to no backend (none takes new connections)"]);
        }
    }

    /// A Service lost its backends after an earlier collision of the same ports: `ip_vs_in_hook` drops by itself,
    /// without `ip_vs_leave`.
    #[test]
    fn a_drop_that_no_rule_fits_is_by_ipvs() {
        let reported = |rules, place: &str, node_port| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).node_port(ProxyMode::Ipvs, node_port, &["10.88.0.9:80"]).connect();
            stream.filtered_at(SYN_ACK, NODE, place).push(firewall(NODE, rules)).settles();
            stream.gives_up().last_verdict()
        };
        let gone = reported(vec![], "ip_local_deliver", 40000);
        assert_eq!((gone.cause.name(), gone.confidence), ("nodeport_ephemeral_collision", Confidence::Likely));
        assert_has(&gone.summary, &["for its traffic and dropped it, as it does"]);
        assert_eq!(
            reported(vec![rule("INPUT", RuleVerdict::Drop)], "ip_local_deliver", 40000).cause.name(),
            "firewall_drop"
        );
        assert_eq!(reported(vec![], "ip_forward", 40000).cause.name(), "firewall_drop", "IPVS takes no requests there");
        assert_eq!(reported(vec![], "ip_local_deliver", 40002).cause.name(), "firewall_drop", "no NodePort");
    }

    /// An earlier attempt from the same port left a half-open connection in the target.
    #[test]
    fn an_answer_that_is_no_syn_ack_is_taken_too() {
        let reported = |node_port, fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            stream.node_port(ProxyMode::Ipvs, node_port, &["10.88.0.9:80"]).connect();
            fill(&mut stream);
            stream.gives_up().settles().last_decided()
        };
        let at_socket = |stream: &mut Stream| _ = stream.drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v4_rcv");
        let likely = ("nodeport_ephemeral_collision", Confidence::Likely);
        assert_eq!(reported(40000, at_socket), likely);
        let from_6_15 = |stream: &mut Stream| _ = stream.drop(SYN, "TCP_OVERWINDOW", POD);
        assert_eq!((reported(40000, from_6_15), reported(40002, from_6_15).0), (likely, "unexplained"));
        assert_eq!(reported(40002, at_socket).0, "unexplained", "no NodePort");
        let second_only =
            |stream: &mut Stream| _ = stream.wait_ms(900).syn_again().drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v4_rcv");
        assert_eq!(reported(40000, second_only).0, "unexplained", "its own SYN-ACK was lost");
        let by_ipvs = |stream: &mut Stream| {
            stream.drop_with(TcpFlags(0x10), NODE, |drop| {
                (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some("ip_vs_nat_xmit".into()));
                drop.flow = drop.flow.reversed();
            });
        };
        assert_eq!(reported(40000, by_ipvs), ("nodeport_ephemeral_collision", Confidence::Proven));
    }

    /// Without hooks on functions the source port is not known yet, and a backend looks like any pod of this node.
    #[test]
    fn a_backends_rst_before_the_port_is_known_is_kept() {
        let backend: std::net::SocketAddr = address("10.88.0.9:80");
        let mut stream = Stream::new();
        stream.missing(Hook::IpvsNatXmit).missing(Hook::IpvsLeave).http_readiness().pod_without_specs("10.88.0.9");
        stream.node_port(ProxyMode::Ipvs, 40000, &["10.88.0.9:80"]).connect();
        stream.last_connect().flow.src.set_port(0);
        let target = address("10.88.0.2:8080");
        stream.reset_sent_on(Flow { src: backend, dst: target }, SYN_ACK, false, None);
        stream.last_reset_sent().via = Via::Destination;
        let verdict = stream.gives_up().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("nodeport_ephemeral_collision", Confidence::Likely));
        assert_lacks(&verdict.summary, &["had been translated"]);
    }
}
