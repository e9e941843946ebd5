//! The target's stack found no socket for the SYN: nobody listens there.

use std::net::IpAddr;

use super::super::evidence::{of_drop, of_reset_sent, plain};
use super::super::kubectl::with_log;
use super::{Case, Finding, Label, by_subject, enter, in_namespace};
use crate::event::{Listen, Netns, PacketDrop, Pod};
use crate::record::{Confidence, Evidence};
use crate::shell;

/// The rule.
pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Refused { seen, netns, sure } = refused_by_any(case)?;
    if let Some((netns, pod)) = netns.and_then(|netns| Some((netns, not_asked(case, netns)?))) {
        return Some(by_the_node(case, seen, netns, &pod));
    }
    let dst = case.attempt.flow.dst;
    let summary = format!(
        "nobody listens on {dst}{}: its kernel answered the SYN with a RST{}",
        in_namespace(case, netns),
        netns.and_then(|netns| elsewhere(case, netns)).unwrap_or_default()
    );
    let otherwise = by_subject(case, OF_A_PROBE, |who| {
        format!("correct the port that {who} dials, or have it try again if the process there only starts slowly")
    });
    let remediation =
        format!("make the process listen on {}{}, {otherwise}", dst.port(), where_to_listen(case, dst.ip()));
    let found = Finding::failure(Label::ConnectionRefused, seen, summary, with_log(case, remediation));
    Some(found.with_confidence(sure))
}

const OF_A_PROBE: &str = "correct the probe's port, or add a startupProbe if it only starts slowly";

/// The pod that has the address by all that is known of pods, and was not asked: the node, on whose network it is not, has the
/// address, too, and refused it itself.
fn not_asked(case: &Case<'_>, netns: Netns) -> Option<String> {
    let addr = case.attempt.flow.dst.ip();
    // By a list: who may set up a network of his own can take the node's address there.
    let name = case.node.pods.at(addr).find(|pod| pod.has_specs()).and_then(Pod::full_name)?;
    let elsewhere = |pod: &Pod| !pod.host_network && pod.netns != Some(netns);
    let own = case.attempt.netns == Some(netns) && case.node.is_a_node(netns) && case.node.owns(netns, addr);
    (own && case.node.pods.at(addr).all(elsewhere)).then_some(name)
}

fn by_the_node(case: &Case<'_>, seen: Vec<Evidence>, netns: Netns, pod: &str) -> Finding {
    let addr = case.attempt.flow.dst.ip();
    let mut links = case.node.links.get(&netns).into_iter().flatten();
    let device = links.find(|link| link.addrs.contains(&addr)).map(|link| link.name.as_str());
    let summary = format!(
        "{addr}, the address of pod {pod}, is an address of the node itself, too{}: the SYN never left it, and the node's own kernel answered it with a RST, since nobody listens on port {} there",
        device.map(|name| format!(" (on {name})")).unwrap_or_default(),
        case.attempt.flow.dst.port()
    );
    let remediation = format!(
        "{}sh -c 'ip route get {addr}; ip addr show to {addr}': if the CNI left it there, take it away (ip addr del {addr} dev {}) and restart the CNI's agent; if it is the node's own, leave it, delete the pod and take the address out of the CNI's range; the process in the pod was not asked",
        enter(case, Some(netns)),
        device.map_or("DEVICE", shell::link)
    );
    Finding::failure(Label::ConnectionRefused, seen, summary, remediation).with_confidence(Confidence::Likely)
}

/// Not on 127.0.0.1 only, where another address was dialled.
fn where_to_listen(case: &Case<'_>, dst: IpAddr) -> &'static str {
    match dst.is_loopback() {
        true => "",
        false if case.node.has_pod(dst) => " (on the pod's address, not only 127.0.0.1)",
        false => " (on that address, not only 127.0.0.1)",
    }
}

/// Somebody listens on that port, and on another address.
fn elsewhere(case: &Case<'_>, netns: Netns) -> Option<String> {
    let dst = case.attempt.flow.dst;
    let (_, listen) = case.node.listeners().last(netns, dst.port()).filter(|(_, last)| last.begins)?;
    let who = &listen.actor;
    (!serves(listen, dst.ip())).then(|| format!("; {} (pid {}) listens on {} only", who.comm, who.pid, listen.addr))
}

/// A connection to that address gets there: a process that listens on 127.0.0.1 refuses those to the pod's address.
pub(super) fn serves(listen: &Listen, dst: IpAddr) -> bool {
    takes(listen.addr.ip(), dst)
}

/// A socket bound to the one takes connections to the other. `0.0.0.0` takes none to an IPv6 address; `::` takes both, as
/// long as it is not for IPv6 only, which the kernel's event does not tell.
pub(super) fn takes(bound: IpAddr, dst: IpAddr) -> bool {
    let (bound, dst) = (bound.to_canonical(), dst.to_canonical());
    bound == dst || (bound.is_unspecified() && (bound.is_ipv6() || dst.is_ipv4()))
}

/// That nobody listens there.
pub(super) struct Refused {
    /// What shows it.
    pub(super) seen: Vec<Evidence>,
    /// Where nobody listens.
    pub(super) netns: Option<Netns>,
    /// How sure that makes.
    pub(super) sure: Confidence,
}

/// The evidence that nobody listens there, if it was the target that was asked.
pub(super) fn refused(case: &Case<'_>) -> Option<Refused> {
    refused_by_any(case).filter(|it| it.netns.and_then(|netns| not_asked(case, netns)).is_none())
}

fn refused_by_any(case: &Case<'_>) -> Option<Refused> {
    if case.attempt.established.is_some() {
        return None;
    }
    by_reset(case).or_else(|| by_drop(case))
}

/// A RST without a socket in answer to this attempt's SYN.
fn by_reset(case: &Case<'_>) -> Option<Refused> {
    let (time, reset) = case
        .attempt
        .resets_sent()
        .find(|(_, r)| r.no_socket && r.answered.is_syn() && r.flow.src == case.attempt.flow.dst)?;
    Some(Refused { seen: vec![of_reset_sent(time, reset)], netns: reset.netns, sure: Confidence::Proven })
}

/// The SYN freed for want of a socket, and a RST that came back.
fn by_drop(case: &Case<'_>) -> Option<Refused> {
    let syns = case.attempt.drops().filter(|(_, d)| d.flags.is_syn() && d.flow.dst == case.attempt.flow.dst);
    let (time, drop, sure) = syns.filter_map(|(time, d)| Some((time, d, for_want_of_a_socket(d)?))).next()?;
    case.attempt.reset_received()?;
    Some(Refused { seen: vec![of_drop(time, drop)], netns: drop.netns, sure })
}

/// By the kernel's reason (6.1 and later), or by the place before there were reasons (5.17): a SYN is freed there when it was
/// answered with a RST, or without an answer; a socket in TIME_WAIT may have been what refused it (`tcp_v4_rcv`,
/// net/ipv4/tcp_ipv4.c, v5.10).
fn for_want_of_a_socket(drop: &PacketDrop) -> Option<Confidence> {
    match (drop.reason.as_deref(), drop.location.as_deref().map(plain)) {
        (Some("NO_SOCKET"), _) => Some(Confidence::Proven),
        (None, Some("tcp_v4_rcv" | "tcp_v6_rcv")) => Some(Confidence::Likely),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::event::{Fact, Runs, TcpState};
    use crate::record::Confidence;
    use crate::testing::{NODE, POD, SYN, SYN_ACK, Stream};

    #[test]
    fn a_rst_without_a_socket_decides_before_it_arrives() {
        let labels = Stream::new().connect().reset_sent(SYN, true, None).labels();
        assert_eq!(labels, ["connection_refused"]);
    }

    #[test]
    fn the_prober_s_own_rst_for_a_late_syn_ack_is_not_a_refusal() {
        let mut stream = Stream::new();
        let flow = stream_flow();
        stream.connect().gives_up().reset_sent_on(flow, SYN_ACK, true, None);
        assert_eq!(stream.labels(), ["unexplained"]);
    }

    #[test]
    fn the_freed_syn_alone_is_enough_only_with_a_rst() {
        assert_eq!(Stream::new().connect().drop(SYN, "NO_SOCKET", POD).gives_up().labels(), ["unexplained"]);
        let labels = Stream::new().connect().drop(SYN, "NO_SOCKET", POD).reset_received(TcpState::SynSent, 0).labels();
        assert_eq!(labels, ["connection_refused"]);
    }

    /// 5.10, where no program can sit on a function.
    #[test]
    fn without_reasons_the_place_tells_and_a_rst() {
        let told = |place: &str, answered: bool| {
            let mut stream = Stream::new();
            stream.missing("tcp_v4_send_reset").connect();
            stream.drop_with(SYN, POD, |drop| (drop.reason, drop.location) = (None, Some(place.into())));
            if answered {
                stream.reset_received(TcpState::SynSent, 0)
            } else {
                stream.gives_up()
            };
            let told = stream.verdicts().remove(0).verdict;
            (told.label.name(), told.confidence)
        };
        assert_eq!(told("tcp_v4_rcv", true), ("connection_refused", Confidence::Likely));
        assert_eq!(told("tcp_v4_rcv", false).0, "unexplained");
        assert_eq!(told("tcp_v4_do_rcv", true).0, "handshake_rst");
    }

    #[test]
    fn a_connection_is_told_nothing_of_probes() {
        let mend = |stream: &Stream| stream.verdicts()[0].verdict.remediation.clone();
        let mut connection = Stream::new();
        connection.connect().others().reset_sent(SYN, true, None);
        let words = mend(&connection);
        assert!(words.contains("correct the port that kubelet dials") && !words.contains("robe"), "{words}");
        let mut probe = Stream::new();
        probe.http_readiness().connect().reset_sent(SYN, true, None);
        assert!(mend(&probe).contains("correct the probe's port, or add a startupProbe"), "{}", mend(&probe));
        let log = "; the log: kubectl logs -n default web -c app --since=5m";
        assert!(mend(&probe).ends_with(log) && !words.contains("kubectl"), "{} {words}", mend(&probe));
        let mut fresh = Stream::new();
        fresh.http_readiness().runs(Runs::default()).connect().reset_sent(SYN, true, None);
        assert!(mend(&fresh).ends_with(log), "no run of it has ended: {}", mend(&fresh));
    }

    /// cozystack#3615: the route to the pod was `local`, and its process, which is well, was killed again and again.
    #[test]
    fn a_refusal_by_the_node_itself_is_not_the_pod_s() {
        let told = |addrs: &[&str], fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            fill(stream.links(true, addrs).http_readiness());
            stream.connect().reset_sent(SYN, true, None);
            if let Some(Fact::ResetSent(reset)) = stream.observations.last_mut().map(|it| &mut it.fact) {
                reset.netns = Some(NODE);
            }
            let told = stream.verdicts().remove(0).verdict;
            assert_eq!(told.label.name(), "connection_refused");
            told
        };
        let own = told(&["10.88.0.1", "10.88.0.2"], |_| {});
        assert_eq!(own.confidence, Confidence::Likely);
        let words = "10.88.0.2, the address of pod default/web, is an address of the node itself, too (on lo): the SYN never left";
        assert!(own.summary.starts_with(words), "{}", own.summary);
        assert!(own.remediation.starts_with("sh -c 'ip route get 10.88.0.2; "), "{}", own.remediation);
        assert!(!own.remediation.contains("make the process listen"), "{}", own.remediation);
        assert!(own.remediation.contains("if it is the node's own, leave it, delete the pod"), "{}", own.remediation);
        for other in [told(&["10.88.0.1"], |_| {}), told(&["10.88.0.2"], |stream| _ = stream.on_host_network())] {
            assert!(other.summary.starts_with("nobody listens on 10.88.0.2:8080"), "{}", other.summary);
            assert_eq!(other.confidence, Confidence::Proven);
        }
    }

    fn stream_flow() -> crate::event::Flow {
        let addr = |t: &str| t.parse().expect("an address");
        crate::event::Flow { src: addr("10.88.0.1:40000"), dst: addr("10.88.0.2:8080") }
    }
}
