//! A RST before the connection was established, if no nearer cause explains it.

use std::net::SocketAddr;

use super::*;
use tracer_case::pod_sockets::{FRESH_NS, last_reading};
use tracer_case::services::{find_translation, sent_by_ipvs, service_at, target_service};
use tracer_model::event::{Netns, PacketDrop, TcpState};

/// If these hooks report nothing, no socket of this node sent a RST, and no packet was dropped.
const RST_AND_DROP_HOOKS: &[Hook] = &[Hook::TcpSendReset, Hook::KfreeSkb];

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if case.attempt.established.is_some() {
        return None;
    }
    by_socket(case).or_else(|| from_outside(case))
}

/// A socket of this node answered the SYN with a RST, for a reason of its own.
fn by_socket(case: &Case<'_>) -> Option<Finding> {
    let (time, reset) = case
        .attempt
        .resets_sent()
        .find(|(_, r)| !r.no_socket && r.answered.is_syn() && r.flow.src == case.attempt.flow.dst)?;
    let (at, received) = case.attempt.reset_received().filter(|(_, r)| r.state == TcpState::SynSent)?;
    let why = reset.reason.as_deref().map(|r| format!(" (kernel reason {r})")).unwrap_or_default();
    let summary =
        format!("{} has a socket for this attempt and answered its SYN with a RST{why}", case.attempt.flow.dst);
    let evidence = vec![of_reset_sent(time, reset), of_reset_received(at, received)];
    let port = case.attempt.flow.dst.port();
    let show = run_in(case, reset.netns, format!("ss -tanp 'sport = :{port}'"));
    let fix = Remediation::from(
        "No other host and no proxy is involved. See which sockets have that port, in which state, and what their process did at that time: it may have closed the listener. The kernel's reason in the verdict names the check that failed",
    );
    Some(Finding::failure(Cause::HandshakeRst, evidence, summary, fix.run([show])))
}

/// A RST came, and no hook saw a sender on this node.
fn from_outside(case: &Case<'_>) -> Option<Finding> {
    let (at, received) = case.attempt.reset_received().filter(|(_, r)| r.state == TcpState::SynSent)?;
    if !case.settled || drops(case).any(|(_, d)| is_netfilter(d)) || case.attempt.icmp().next().is_some() {
        return None;
    }
    if may_be_refused(case) {
        return None;
    }
    let dst = case.attempt.flow.dst;
    // Behind an address translation the backend's RST has other addresses, so tracer does not match it to this attempt.
    let by_ipvs = sent_by_ipvs(case);
    let by_nat = translation(case);
    let (who, remediation) = match (target_service(case), by_ipvs, by_nat) {
        (Some(service), ..) => (
            format!("{dst} is Service {service}{}: most likely nobody listens at the endpoint that it was sent to", none_ready(case)),
            Remediation::from(format!("Connect to each endpoint of Service {service} in turn: one of them refuses"))
                .run(kubectl::endpoints(Some(&service))),
        ),
        (None, Some((_, ipvs)), _) => (
            format!(
                "IPVS{} sent it to a backend of virtual service {dst}: most likely nobody listens there",
                in_namespace(case, ipvs.netns)
            ),
            Remediation::from(format!("Connect to each backend of virtual service {dst} in turn: one of them refuses"))
                .run([run_in(case, ipvs.netns, format!("ipvsadm -Ln -t {dst}"))]),
        ),
        (None, None, Some((_, to, netns))) => (
            format!(
                "an address translation{} sends {dst} on to {to}: most likely nobody listens there",
                in_namespace(case, Some(netns))
            ),
            Remediation::from(format!(
                "Let the process behind that rule listen on {to} (a hostPort's pod, a sidecar's proxy), or remove the rule that sends {dst} there"
            ))
            .run(["iptables-save -t nat", "nft list ruleset"].map(|rules| run_in(case, Some(netns), rules))),
        ),
        (None, None, None) if case.node.is_to_itself(case.attempt) => (
            format!("{dst} is an address of this network namespace itself: an address translation sends it elsewhere"),
            find_translation(case),
        ),
        // With `--random-fully`, a masquerade changes the port, too, and the RST goes to another flow.
        (None, None, None) => (
            "it can be a process behind an address translation (masquerade, sidecar, hostPort), a middlebox, a user-space stack, or another host"
                .to_owned(),
            Cause::HandshakeRst.fix().reword(|text| format!("{CHECK_SOURCE_NAT}. Otherwise: {text}")).run(
                ["iptables-save -t nat", "nft list ruleset"].map(|rules| run_in(case, case.attempt.netns, rules)),
            ),
        ),
    };
    let summary = format!("the SYN to {dst} was answered with a RST, and no hook saw a sender on this node; {who}");
    let mut evidence = vec![of_reset_received(at, received)];
    evidence.extend(by_ipvs.map(|(time, ipvs)| of_ipvs(time, ipvs)));
    evidence.extend(by_nat.map(|(time, to, netns)| {
        let text = format!("a connection to {dst} was sent on to {to}");
        evidence_of("conntrack", time, text, json!({ "to": to, "netns": netns }))
    }));
    Some(Finding::likely(Cause::HandshakeRst, evidence, summary, remediation).resting_on(RST_AND_DROP_HOOKS))
}

const CHECK_SOURCE_NAT: &str = "See whether a rule translates the source of the prober's connections (MASQUERADE, SNAT). If so, tracer cannot tie the RST to its sender: check first that a process listens in the target";

/// kube-proxy sends connections to endpoints that end, where no other one is left.
fn none_ready(case: &Case<'_>) -> &'static str {
    match service_at(case, case.attempt.flow.dst).and_then(|service| service.ready_endpoints.as_ref()) {
        Some(ready) if ready.is_empty() => ", which has no ready endpoint",
        _ => "",
    }
}

/// Where an address translation sent an attempt shortly before, and the namespace that has it. conntrack keeps nothing
/// of an attempt that was refused (`nf_conntrack_tcp_packet`).
fn translation(case: &Case<'_>) -> Option<(u64, SocketAddr, Netns)> {
    let (time, reading) = last_reading(case, FRESH_NS)?;
    let in_pod = reading.redirect.as_ref().zip(reading.netns).map(|(it, netns)| (it.to, netns));
    let (to, netns) = in_pod.or_else(|| Some((reading.acceptor.as_ref()?.to?, reading.from)))?;
    Some((time, to, netns))
}

/// A refusal by a stack or a rule of this node would look the same. Either the SYN was dropped at an unknown place, or where a
/// stack frees a SYN that it refuses: at the time of the RST, if all hooks that show a RST are there. Or no hook shows a RST
/// without a socket, nor that drop.
fn may_be_refused(case: &Case<'_>) -> bool {
    let (reset, unseen) = (case.attempt.reset_received().map(|(at, _)| at), case.lacks(REFUSAL_HOOKS));
    let answered = |time: u64| unseen || reset.is_none_or(|at| time.abs_diff(at) < ANSWER_NS);
    let is_refused = |time: u64, drop: &PacketDrop| match is_at_socket(drop) {
        true => answered(time),
        false => drop.reason.is_none() && drop.location.is_none(),
    };
    unseen && case.lacks(&[Hook::KfreeSkb])
        || drops(case).any(|(time, drop)| drop.flags.is_syn() && is_refused(time, drop))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_rst_without_a_sender_on_this_node_is_the_cause_if_nothing_was_missed() {
        let reset = |stream: &mut Stream| stream.reset_received(TcpState::SynSent, 0).verdict();
        assert_eq!(reset(Stream::new().connect()).cause.name(), "handshake_rst");
        let lossy = reset(Stream::new().connect().lost(3));
        assert_eq!((lossy.cause.name(), lossy.lost_events), ("unexplained", 3));
        let without_hook = reset(Stream::new().missing(Hook::KfreeSkb).connect());
        assert_eq!((without_hook.cause.name(), without_hook.confidence), ("handshake_rst", Confidence::Possible));
        assert_eq!(without_hook.missing_hooks, ["kfree_skb"]);
    }

    /// Seen on 6.18: the RST of the pod's own stack went to the port that a masquerade had chosen.
    #[test]
    fn a_source_nat_comes_before_a_middlebox() {
        let verdict = Stream::new().connect().reset_received(TcpState::SynSent, 0).verdict();
        assert_has(&verdict.summary, &["a process behind an address translation (masquerade, "]);
        assert_starts(&verdict.remediation, "See whether a rule translates the source of the prober's connections");
        assert_has(
            &verdict.remediation,
            &["check first that a process listens", "Otherwise: Follow", "iptables-save -t nat"],
        );
    }

    #[test]
    fn at_an_address_of_the_node_an_address_translation_comes_first() {
        let reset = |dst: &str| {
            let mut stream = Stream::to(dst).links(true, &["10.88.0.1"]).clone();
            stream.service(80, |it| it.external_ips = vec![address("203.0.113.11")]);
            stream.connect().reset_received(TcpState::SynSent, 0).verdict()
        };
        let own = reset("10.88.0.1:9103");
        assert_ends(
            &own.summary,
            "; 10.88.0.1:9103 is an address of this network namespace itself: an address translation sends it elsewhere",
        );
        assert_has(&own.remediation, &["Find the rule that translates 10.88.0.1:9103", "iptables-save -t nat"]);
        assert_has(&reset("203.0.113.11:80").summary, &["203.0.113.11:80 is Service shop/cart: most likely nobody"]);
    }

    #[test]
    fn a_rst_of_a_socket_of_this_node_leads_to_that_socket() {
        let mut stream = Stream::new().connect().reset_sent(SYN, false, None).clone();
        stream.reset_received(TcpState::SynSent, 0);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("handshake_rst", Confidence::Proven));
        assert_has(&verdict.remediation, &["No other host", "ss -tanp 'sport = :8080'"]);
        assert_lacks(&verdict.remediation, &["Follow the path"]);
    }

    /// The hooks do not show who answered: the RST has the addresses of the backend.
    #[test]
    fn a_backend_of_ipvs_that_refuses_is_no_middlebox() {
        let mut stream = Stream::new();
        stream.connect().ipvs(SYN, IpvsOp::Translate).reset_received(TcpState::SynSent, 0);
        let verdict = stream.verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("handshake_rst", Confidence::Likely));
        assert_has(&verdict.summary, &["sent it to a backend of virtual service 10.88.0.2:8080"]);
        assert_lacks(&verdict.summary, &["middlebox"]);
        assert_has(&verdict.remediation, &["ipvsadm -Ln -t 10.88.0.2:8080"]);
    }

    /// A hostPort, or a rule of the node, leads to another address: no hook ties that RST to the attempt.
    #[test]
    fn a_known_address_translation_is_no_middlebox() {
        let decided = |fill: fn(&mut PodSockets)| {
            let mut stream = Stream::new().http_readiness().pod_sockets(fill).clone();
            stream.wait_ms(9_000).connect().reset_received(TcpState::SynSent, 0).verdict()
        };
        let of_node = decided(|reading| {
            let to = Some(address("10.88.0.9:3128"));
            reading.acceptor = Some(Acceptor { to, netns: Netns(9), processes: Vec::new() });
        });
        assert_eq!((of_node.cause.name(), of_node.confidence), ("handshake_rst", Confidence::Likely));
        assert_ends(
            &of_node.summary,
            "on the node sends 10.88.0.2:8080 on to 10.88.0.9:3128: most likely nobody listens there",
        );
        assert_has(&of_node.remediation, &["listen on 10.88.0.9:3128", "iptables-save -t nat"]);
        assert_lacks(&of_node.remediation, &["Follow the path", "nsenter"]);
        let of_pod = decided(|reading| reading.redirect = Some(redirect(7, 8)));
        assert_has(&of_pod.summary, &["sends 10.88.0.2:8080 on to 10.88.0.2:15006"]);
        assert_has(&of_pod.remediation, &["nsenter"]);
    }

    /// If no hook shows a refusal, a refused connection looks like this cause.
    #[test]
    fn without_the_hooks_for_a_refusal_it_is_less_sure_or_unexplained() {
        let reported = |missing: &[Hook], fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            missing.iter().for_each(|hook| _ = stream.missing(*hook));
            fill(stream.connect());
            stream.reset_received(TcpState::SynSent, 0).gives_up().decided()
        };
        let without_place = |stream: &mut Stream| _ = stream.drop_with(SYN, POD, |_| ());
        assert_eq!(reported(&[Hook::TcpV4SendReset], |_| ()), ("handshake_rst", Confidence::Likely));
        assert_eq!(reported(&[Hook::TcpV6SendReset, Hook::KfreeSkb], |_| ()), ("handshake_rst", Confidence::Possible));
        assert_eq!(reported(&[Hook::TcpV4SendReset], without_place).0, "unexplained");
        assert_eq!(reported(&[], without_place).0, "unexplained", "a rule may have dropped it");
        let unspecified = |stream: &mut Stream| _ = stream.drop_in(SYN, "NOT_SPECIFIED", POD, "tcp_v6_rcv");
        assert_eq!(reported(&[Hook::TcpV4SendReset], unspecified).0, "unexplained");
        assert_eq!(reported(&[Hook::TcpV4SendReset, Hook::KfreeSkb], |_| ()).0, "unexplained");
    }
}
