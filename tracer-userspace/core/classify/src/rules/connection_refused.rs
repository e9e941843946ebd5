//! The target's stack found no socket for the SYN: nobody listens there.

mod former;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use self::former::{Former, Owner};
use super::*;
use tracer_attempts::correlate::listeners::serves;
use tracer_case::ended::last_listener;
use tracer_case::flushed::add_lost_node_port;
use tracer_case::other_stack::by_other_stack;
use tracer_case::refusal::{Refused, by_any_stack, is_on_its_way, pod_elsewhere};
use tracer_case::services::{lost_node_port, unserved_node_port};
use tracer_case::shared_address::FIX;
use tracer_case::startup_probe::may_be_startup_probe;
use tracer_case::{EndedByProbe, history, pod_sockets, sidecar};
use tracer_model::event::{Handler, Listen, Netns, ProbeSpec};
use tracer_model::record::Trait;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let Some(refused) = by_any_stack(case) else {
        return redirected::find(case).filter(|_| !is_on_its_way(case));
    };
    if let Some(found) = by_other_stack(case, &refused).or_else(|| by_node_port(case, &refused)) {
        return Some(found).filter(|found| found.cause == Cause::ConnectionRefused);
    }
    let Refused { mut evidence, netns, confidence } = refused;
    if let Some((summary, fix)) = sidecar::agent_is_down(case, &in_namespace(case, netns)) {
        let found = Finding::failure(Cause::ConnectionRefused, evidence, summary, fix);
        return Some(found.with_confidence(confidence));
    }
    let dst = case.attempt.flow.dst;
    let refused_at = evidence.iter().map(|e| e.time_boot_ns).max().unwrap_or_default();
    let killed = history::out_of_memory(case, refused_at).map(|why| (why, history::more_memory(case)));
    let is_killed = killed.is_some();
    let former = netns.and_then(|netns| Some(Former::new(case, netns, earlier_listener(case, netns, &evidence)?)));
    // In another namespace than the pod's, and in the node's, it may have been a process of an earlier pod.
    let is_pods = netns.is_some_and(|netns| pod_elsewhere(case, netns).is_none()) && !shares_node(case);
    let passed_over = former.filter(|it| !it.has_stopped());
    // It may have ended since an older reading, without a trace: a newer one is asked for.
    let accepted = netns.and_then(|netns| Some((netns, pod_sockets::accepting(case, netns, refused_at)?)));
    let accepting = accepted.filter(|(_, (time, _))| *time > refused_at);
    let stopped = former.filter(|it| it.has_stopped() && !is_killed && is_pods && accepting.is_none());
    evidence.splice(0..0, stopped.iter().flat_map(Former::evidence));
    evidence.extend(accepting.map(|(netns, (time, addr))| {
        evidence_of("sock_diag", time, accepts_over_any_device(addr), json!({ "netns": netns }))
    }));
    let listens = || {
        let (words, read) = pod_sockets::listeners_elsewhere(case, netns?)?;
        evidence.push(read);
        Some(format!("; {words}"))
    };
    let by_itself = || Some((history::ended_by_itself(case, refused_at)?, history::find_own_end(case)));
    let (ended, own_fix) = killed.or_else(|| by_itself().filter(|_| stopped.is_none())).unzip();
    let by_probe = stopped.and_then(|it| it.ended_by_probe(case));
    let ended = ended.or_else(|| Some(stopped?.describe_stopped(by_probe)));
    let ended =
        ended.or_else(|| accepting.map(|(_, (_, addr))| format!("; a process listens on {addr} there, {NOT_CHOSEN}")));
    let why = ended.or_else(|| {
        let elsewhere = netns.and_then(|netns| listener_on_other_address(case, netns));
        let listens = elsewhere.map(|listen| format!("; {} listens on {} only", listen.actor, listen.addr));
        listens.or_else(|| pods_namespace(case, netns?))
    });
    let why = why.or_else(listens).or_else(|| Some(passed_over?.describe_passed_over(dst.ip())));
    let is_held = netns.filter(|_| own_fix.is_none() && stopped.or(passed_over).is_none() && accepting.is_none());
    let held = is_held.and_then(|netns| held_elsewhere(case, netns, refused_at));
    let what =
        if passed_over.is_some() || accepting.is_some() { "no socket takes the SYN to" } else { "nobody listens on" };
    let fix = own_fix
        .or_else(|| Some(stopped?.fix_stopped(case, by_probe)))
        .or_else(|| Some(find_refuser(case, accepting?.0)))
        .or_else(|| Some(passed_over?.fix_passed_over(case)))
        .or_else(|| listen_there(case, netns.filter(|_| held.is_none())?))
        .unwrap_or_else(|| with_log(case, let_listen(case, netns, false)));
    let (by_holder, fix) = with_holder(held, fix, &mut evidence);
    let (place, why) = (in_namespace(case, netns), why.unwrap_or_default());
    let summary = format!("{what} {dst}{place}: the kernel answered the SYN with a RST{why}{by_holder}");
    let confidence = if accepting.is_some() { confidence.min(Confidence::Likely) } else { confidence };
    let found = Finding::failure(Cause::ConnectionRefused, evidence, summary, fix).with_confidence(confidence);
    Some(Finding { lacks_acceptor: passed_over.is_some() || accepted.is_some(), ..found })
}

/// `inet_lookup_listener` compares the VRF, too, and a program at sk_lookup comes before it.
const NOT_CHOSEN: &str = "and the kernel did not choose its socket: most likely the SYN came through a VRF (net.ipv4.tcp_l3mdev_accept=0), or a BPF program at sk_lookup refused it";

fn find_refuser(case: &Case<'_>, netns: Netns) -> Remediation {
    let show = ["ip -d link show type vrf", "sysctl net.ipv4.tcp_l3mdev_accept", "bpftool link"];
    Remediation::from(
        "Find what keeps the SYN from that listener. With a VRF, let the process listen in it, or set net.ipv4.tcp_l3mdev_accept=1. Else look for a BPF program at sk_lookup",
    )
    .run(show.map(|command| run_in(case, Some(netns), command)))
}

fn accepts_over_any_device(addr: std::net::SocketAddr) -> String {
    format!("a process listens on {addr} in that network namespace, over any device")
}

/// Adds what holds the port: returns its clause, and the fix that begins with it.
fn with_holder(
    held: Option<(String, Option<Evidence>, String)>,
    fix: Remediation,
    evidence: &mut Vec<Evidence>,
) -> (String, Remediation) {
    let Some((clause, read, before)) = held else { return (String::new(), fix) };
    evidence.extend(read);
    (clause, fix.reword(|text| format!("{before}. Otherwise: {}", text.replacen("Let", "let", 1))))
}

/// What keeps a server from the port that binds to all addresses: a clause, its evidence, and what to do then.
fn held_elsewhere(case: &Case<'_>, netns: Netns, at: u64) -> Option<(String, Option<Evidence>, String)> {
    let by_connection = port_taken::held_at_other_address(case, netns, at);
    let by_connection = by_connection.map(|(clause, read, fix)| (clause, Some(read), fix));
    let by_listener = || pod_sockets::other_container_listens(case, netns);
    by_connection.or_else(|| by_listener().map(|(clause, fix)| (clause, None, fix)))
}

/// `is_passed_over`: a process listens on the port, and the kernel did not choose its socket.
fn let_listen(case: &Case<'_>, netns: Option<Netns>, is_passed_over: bool) -> Remediation {
    let dst = case.attempt.flow.dst;
    let place = match is_passed_over {
        true => " on all devices (without SO_BINDTODEVICE), and for IPv4 and IPv6",
        false => where_to_listen(case, dst.ip()),
    };
    let text = format!("Let the process listen on {}{place}, {}", dst.port(), otherwise(case));
    match netns.and_then(|netns| pod_elsewhere(case, netns)) {
        Some((pod, own)) => compare_namespaces(case, [netns, Some(own)], &pod, &text),
        None => Remediation::from(text),
    }
}

/// What to do if no process is to listen there, or if it starts slowly.
fn otherwise(case: &Case<'_>) -> String {
    let probe_fix = if may_be_startup_probe(case) { STARTUP_PROBE_FIX } else { PROBE_FIX };
    by_subject(case, probe_fix, |who| {
        format!("correct the port that {who} connects to, or have it try again if the process there starts slowly")
    })
}

/// The Service proxy does not serve the NodePort at this address, and no process was seen to listen there. A probe of a
/// hostNetwork pod is for that pod.
fn by_node_port(case: &Case<'_>, refused: &Refused) -> Option<Finding> {
    let (dst, place) = (case.attempt.flow.dst, in_namespace(case, refused.netns));
    let (words, fix) = unserved_node_port(case, refused.netns)?;
    let is_probe = case.matched.probed_pod().is_some();
    if is_probe || earlier_listener(case, refused.netns?, &refused.evidence).is_some() {
        return None;
    }
    let summary = format!("nobody listens on {dst}{place}: the kernel answered the SYN with a RST{words}");
    let mut found = Finding::failure(Cause::ConnectionRefused, refused.evidence.clone(), summary, fix);
    if let Some((lost, _)) = lost_node_port(case) {
        add_lost_node_port(case, &mut found, lost);
    }
    Some(found.with_confidence(refused.confidence))
}

/// The pod with the address may not have got the SYN: a process that listens there does not help.
fn compare_namespaces(case: &Case<'_>, places: [Option<Netns>; 2], pod: &str, otherwise: &str) -> Remediation {
    let addr = case.attempt.flow.dst.ip();
    let text = format!(
        "Check which network namespace has {addr} now. If it is not only that of pod {pod}, take it away from the other one, {FIX}. Otherwise: {otherwise}"
    );
    Remediation::from(text).run(places.map(|netns| run_in(case, netns, format!("ip addr show to {addr}"))))
}

const PROBE_FIX: &str = "correct the probe's port, or add a startupProbe if it starts slowly";

const STARTUP_PROBE_FIX: &str =
    "correct the probe's port, or raise failureThreshold of the startupProbe if it starts slowly";

/// The process listens on that port at another address: the port is right, and it has started.
fn listen_there(case: &Case<'_>, netns: Netns) -> Option<Remediation> {
    let dst = case.attempt.flow.dst;
    let of_probed = |listen: &&Listen| Owner::of(case, listen).is_probed();
    let seen = listener_on_other_address(case, netns).filter(of_probed).map(|it| it.addr);
    let bound = seen.or_else(|| pod_sockets::address_elsewhere(case, netns))?;
    if dst.ip().is_loopback() || pod_elsewhere(case, netns).is_some() {
        return None;
    }
    let all = SocketAddr::new(
        if dst.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
        dst.port(),
    );
    let place = match (bound.ip().is_unspecified(), bound.is_ipv4()) {
        (true, true) => format!("{all}: a socket on {bound} gets no connections over IPv6"),
        (true, false) => format!("{all}, too: its socket on {bound} has IPV6_V6ONLY set"),
        (false, _) => {
            let own = if case.node.has_pod(dst.ip()) { "the pod's address" } else { "that address" };
            format!("{all} or on {own}, not only on {bound}")
        }
    };
    let has_host = |probe: &&ProbeSpec| matches!(probe.handler, Handler::Http | Handler::Tcp);
    let on_node = bound.ip().is_loopback() && case.matched.only_pod_on_node().is_some();
    let by_host = if on_node && case.matched.possible_probes().iter().all(has_host) {
        format!(". Or set `host: {}` in the probe: the pod is on the node's network", bound.ip())
    } else {
        String::new()
    };
    Some(format!("Let the process listen on {place}{by_host}").into())
}

/// A note for the fix: a listener on 127.0.0.1 gets no connections to another address.
fn where_to_listen(case: &Case<'_>, dst: IpAddr) -> &'static str {
    match dst.is_loopback() {
        true => "",
        false if case.node.has_pod(dst) => " (on the pod's address, not only 127.0.0.1)",
        false => " (on that address, not only 127.0.0.1)",
    }
}

/// A process listens on that port, but on another address. On the node's network it may be of another pod.
fn listener_on_other_address<'a>(case: &Case<'a>, netns: Netns) -> Option<&'a Listen> {
    let (_, listen) = last_listener(case, netns).filter(|(_, last)| last.begins && !shares_node(case))?;
    (!serves(listen, case.attempt.flow.dst.ip())).then_some(listen)
}

/// The last process that began or stopped to listen on that port and address before the refusal, when that was, and how
/// long before. If it still listens, the kernel did not choose its socket.
fn earlier_listener<'a>(case: &Case<'a>, netns: Netns, refused: &[Evidence]) -> Option<(u64, &'a Listen, u64)> {
    let at = refused.iter().map(|it| it.time_boot_ns).max()?;
    let (time, listen) = last_listener(case, netns)?;
    (*time < at && serves(listen, case.attempt.flow.dst.ip())).then(|| (*time, listen, at - time))
}

/// The pod with the address is in another namespace. It is not known whether a process listens there.
fn pods_namespace(case: &Case<'_>, netns: Netns) -> Option<String> {
    pod_elsewhere(case, netns).map(|(pod, own)| format!("; pod {pod} is in network namespace {}", own.0))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;
    use tracer_model::event::Listen;

    #[test]
    fn a_listener_for_ipv6_only_should_listen_for_ipv4_too() {
        let mut stream = Stream::new().clone();
        let listen = Listen::new(POD, address("[::]:8080"), prober(), true);
        stream.push(ObservationKind::Listen(Listen { only_v6: true, ..listen })).wait_ms(1);
        let verdict = stream.connect().reset_sent(SYN, true, None).verdict();
        assert_eq!(verdict.cause, Cause::ConnectionRefused);
        assert_has(&verdict.remediation, &["too: its socket on [::]:8080 has IPV6_V6ONLY set"]);
    }

    #[test]
    fn a_refusal_after_many_retransmissions_and_drops_is_the_cause() {
        let mut stream = Stream::new().connect().clone();
        for _ in 0..60 {
            stream.wait_ms(900).syn_again().drop(SYN, "QDISC_DROP", NODE);
        }
        assert_eq!(stream.wait_ms(900).syn_again().refused().verdict().cause, Cause::ConnectionRefused);
    }

    /// A rule drops the RST. A process listens before the next SYN.
    #[test]
    fn a_refusal_that_does_not_arrive_may_be_no_failure() {
        let lost =
            || Stream::new().connect().reset_sent(SYN, true, None).drop_back(TcpFlags(0x14), "NETFILTER_DROP").clone();
        let mut recovers = lost();
        recovers.wait_ms(1_000).syn_again().established().answers(200).closes((100, 101, 200));
        assert_eq!(recovers.outcomes(), [Outcome::Noise]);
        let mut fails = lost();
        let verdict = fails.wait_ms(1_000).syn_again().reset_sent(SYN, true, None).gives_up().verdict();
        assert_eq!((verdict.cause, verdict.confidence), (Cause::ConnectionRefused, Confidence::Proven));
        assert_ends(
            &verdict.summary,
            "with a RST; netfilter on the node drops the RST of the refusal: the prober gets no answer",
        );
        assert_eq!(verdict.evidence.len(), 2);
        assert_eq!(fails.causes(), ["connection_refused"]);
    }

    /// Seen in a run: nobody listened in the pod, and its route to the prober was `unreachable`.
    #[test]
    fn a_refusal_that_vanishes_has_two_faults() {
        let summary = |fill: fn(&mut Stream), ms: u64| {
            let mut stream = Stream::new().http_readiness().connect().reset_sent(SYN, true, None).clone();
            fill(stream.wait_ms(ms));
            (stream.settles().verdict().summary, stream.verdict().remediation)
        };
        let (words, fix) = (["; that RST did not reach the prober"], ["Find what loses the answers, too"]);
        let lost = summary(|stream| _ = stream.gives_up(), 0);
        assert_has(&lost.0, &words);
        assert_has(&lost.1, &fix);
        assert_has(&lost.1, &["ip route get 10.88.0.1 from 10.88.0.2"]);
        let arrives = summary(|stream| _ = stream.reset_received(TcpState::SynSent, 0), 0);
        let error = summary(|stream| _ = stream.state(TcpState::SynSent, TcpState::Close, 111, (0, 0, 0)), 900);
        let at_once = summary(|stream| _ = stream.state(TcpState::SynSent, TcpState::Close, 0, (0, 0, 0)), 1);
        for (summary, fix_of) in [arrives, error, at_once] {
            assert_lacks(&summary, &words);
            assert_lacks(&fix_of, &fix);
        }
    }

    /// kube-proxy serves a NodePort at some addresses of the node only.
    #[test]
    fn a_node_port_that_is_not_served_at_the_address_is_named() {
        let verdict = |netns, fill: fn(&mut Stream)| {
            let mut stream = Stream::to("127.0.0.1:30080");
            stream.node_port(ProxyMode::Nftables, 30080, &[]);
            fill(&mut stream);
            stream.wait_ms(50).connect().reset_sent(SYN, true, None).last_reset_sent().netns = Some(netns);
            stream.verdict()
        };
        let unserved = verdict(NODE, |_| ());
        assert_eq!((unserved.cause, unserved.confidence), (Cause::ConnectionRefused, Confidence::Proven));
        let words = "; 30080 is a NodePort of Service kube-system/dashboard, which the Service proxy does not serve at 127.0.0.1";
        assert_ends(&unserved.summary, words);
        assert_has(&unserved.remediation, &["--nodeport-addresses", "nft list set ip kube-proxy nodeport-ips"]);
        let listed = verdict(NODE, |stream| {
            stream.service(80, |it| it.ports[0].node_port = Some(30_090)).again_to(8, "127.0.0.1:30090");
        });
        assert_has(&listed.summary, &["30090 is a NodePort of Service shop/cart, and the rules on this node"]);
        fn external(stream: &mut Stream) {
            stream.links(true, &["10.88.0.1"]).service(9100, |it| it.external_ips = vec![address("10.88.0.1")]);
            stream.again_to(8, "10.88.0.1:9100");
        }
        let lacking = verdict(NODE, external);
        assert_has(&lacking.summary, &["; 10.88.0.1:9100 is an external address of Service shop/cart, and the rules"]);
        let in_rules = verdict(NODE, |stream| external(stream.external("10.88.0.1:9100")));
        assert_lacks(&in_rules.summary, &["the rules on this node"]);
        let stopped = verdict(NODE, |stream| _ = stream.listens(NODE, 30080, true).listens(NODE, 30080, false));
        assert_lacks(&stopped.summary, &["a NodePort of"]);
    }

    /// kube-proxy gives ClusterIPs to that link in IPVS mode. It stays when kube-proxy leaves that mode.
    #[test]
    fn an_address_of_no_other_link_is_most_likely_on_the_ipvs_link() {
        let verdict = |name, addrs: &[&str], netns| {
            let mut stream = Stream::to("10.96.0.9:80");
            stream.node_links(vec![link(3, name, &[]), link(2, "eth0", addrs)]).connect();
            stream.reset_sent(SYN, true, None).last_reset_sent().netns = Some(netns);
            stream.verdict()
        };
        let left_over = verdict("kube-ipvs0", &[], NODE);
        assert_has(
            &left_over.summary,
            &["; most likely kube-ipvs0, the link of kube-proxy's IPVS mode, has 10.96.0.9"],
        );
        assert_starts(&left_over.remediation, "If `ipvsadm -Ln` lists no Service, ");
        assert_lacks(&left_over.remediation, &["dev kube-ipvs0"]);
        for (name, addrs, netns) in
            [("cni0", &[] as &[_], NODE), ("kube-ipvs0", &["10.96.0.9"], NODE), ("kube-ipvs0", &[], POD)]
        {
            assert_lacks(&verdict(name, addrs, netns).summary, &["IPVS"]);
        }
    }

    /// A listener that is older than tracer.
    fn older(addr: &str) -> ListenerAt {
        ListenerAt {
            addr: address(addr),
            device: None,
            server: Listener { pid: 7, comm: "app".into() },
            container: None,
        }
    }

    #[test]
    fn a_listener_of_the_other_family_that_is_older_than_tracer_is_in_the_fix() {
        let fix = |v6: bool, bound: &str| {
            let mut stream = Stream::to(if v6 { "[fd00::2]:8080" } else { "10.88.0.2:8080" });
            stream.http_readiness().pod_in(POD);
            stream.pod_sockets(|reading| reading.elsewhere = vec![older(bound)]).wait_ms(10).connect().refused();
            stream.verdict().remediation
        };
        let v6 = "Let the process listen on [::]:8080: a socket on 0.0.0.0:8080 gets no connections over IPv6";
        assert_eq!(fix(true, "0.0.0.0:8080").to_string(), v6);
        let v4 = "Let the process listen on 0.0.0.0:8080, too: its socket on [::]:8080 has IPV6_V6ONLY set";
        assert_eq!(fix(false, "[::]:8080").to_string(), v4);
        let all = "Let the process listen on 0.0.0.0:8080 or on the pod's address, not only on 127.0.0.1:8080";
        assert_eq!(fix(false, "127.0.0.1:8080").to_string(), all);
    }

    #[test]
    fn a_listener_older_than_tracer_is_named_with_its_device() {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        let bound = ListenerAt { device: Some("eth1".into()), ..older("0.0.0.0:8080") };
        stream.pod_sockets(|reading| reading.elsewhere = vec![bound]).wait_ms(10).connect().refused();
        assert_ends(
            &stream.verdict().summary,
            "; app (pid 7) listens on 0.0.0.0:8080 on device eth1 only (SO_BINDTODEVICE)",
        );
    }

    /// The admin port of a sidecar is the port of the server, which goes on without it.
    #[test]
    fn a_listener_of_another_container_on_the_port_is_in_the_fix() {
        let verdict = |container: &str, bound: &str| {
            let mut stream = Stream::new().http_readiness().container_id("own").pod_in(POD).second_container().clone();
            stream.last_pods().pods[0].containers[1].id = Some("other".into());
            let bound = ListenerAt { container: Some(container.into()), ..older(bound) };
            stream.pod_sockets(|reading| reading.elsewhere = vec![bound]).wait_ms(10).connect().refused().verdict()
        };
        let other = verdict("other", "127.0.0.1:8080");
        assert_ends(
            &other.summary,
            "; bind() to all addresses would fail, as app (pid 7) of another container has 127.0.0.1:8080",
        );
        let words = "If the server binds to all addresses: give it or app (pid 7) another port. Otherwise: let the";
        assert_starts(&other.remediation, words);
        for (container, bound) in [("own", "127.0.0.1:8080"), ("new", "127.0.0.1:8080"), ("other", "[::1]:8080")] {
            assert_lacks(&verdict(container, bound).summary, &["bind()"]);
        }
    }

    /// A server binds 0.0.0.0 in a cluster that probes over IPv6.
    #[test]
    fn a_listener_on_ipv4_only_does_not_serve_ipv6() {
        let refused = |to: &str, bound: &str| {
            let mut stream = Stream::to(to).http_readiness().pod_in(POD).clone();
            stream.listens_on(POD, address(bound), true).connect().refused().verdict()
        };
        let ipv4 = refused("[fd00::2]:8080", "0.0.0.0:8080");
        assert_has(&ipv4.summary, &["listens on 0.0.0.0:8080 only"]);
        let fix = |to: &str, bound: &str| refused(to, bound).remediation.to_string();
        assert_ends(&ipv4.remediation, "on [::]:8080: a socket on 0.0.0.0:8080 gets no connections over IPv6");
        let v6 = "Let the process listen on [::]:8080 or on the pod's address, not only on [::1]:8080";
        assert_eq!(fix("[fd00::2]:8080", "[::1]:8080"), v6);
        let v4 = "Let the process listen on 0.0.0.0:8080 or on the pod's address, not only on 127.0.0.1:8080";
        assert_eq!(fix("10.88.0.2:8080", "127.0.0.1:8080"), v4, "the port is right, and it has started");
    }

    #[test]
    fn the_probers_own_rst_for_a_late_syn_ack_is_not_a_refusal() {
        let mut stream = Stream::new().connect().gives_up().reset_sent(SYN_ACK, true, None).clone();
        let reset = stream.last_reset_sent();
        reset.flow = reset.flow.reversed();
        assert_eq!(stream.causes(), ["unexplained"]);
    }

    #[test]
    fn a_syn_dropped_without_a_socket_needs_a_rst() {
        assert_eq!(Stream::new().connect().drop(SYN, "NO_SOCKET", POD).gives_up().causes(), ["unexplained"]);
        let causes = Stream::new().connect().drop(SYN, "NO_SOCKET", POD).reset_received(TcpState::SynSent, 0).causes();
        assert_eq!(causes, ["connection_refused"]);
    }

    /// A kernel without drop reasons (5.10) freed the SYN in this function.
    fn freed_at(place: &str, hooks: &[Hook], fill: impl FnOnce(&mut Stream)) -> (&'static str, Confidence) {
        let mut stream = Stream::new();
        hooks.iter().for_each(|hook| _ = stream.missing(*hook));
        stream.connect().drop_with(SYN, POD, |drop| (drop.reason, drop.location) = (None, Some(place.into())));
        fill(&mut stream);
        stream.gives_up().decided()
    }

    /// A kernel where no program can attach to the function that sends the RST.
    #[test]
    fn without_drop_reasons_the_freeing_function_and_a_rst_show_a_refusal() {
        let missing = &[Hook::TcpV4SendReset][..];
        let reset = |stream: &mut Stream| _ = stream.reset_received(TcpState::SynSent, 0);
        assert_eq!(freed_at("tcp_v4_rcv", missing, reset), ("connection_refused", Confidence::Likely));
        assert_eq!(freed_at("tcp_v4_rcv", missing, |_| ()).0, "unexplained", "no answer");
        let late = |stream: &mut Stream| _ = stream.wait_ms(3000).reset_received(TcpState::SynSent, 0);
        assert_eq!(freed_at("tcp_v4_rcv", missing, late).0, "unexplained", "of another SYN");
        assert_eq!(freed_at("tcp_v4_do_rcv", missing, reset).0, "handshake_rst");
    }

    #[test]
    fn the_freeing_function_shows_no_refusal_if_a_hook_shows_the_rst() {
        let reset = |stream: &mut Stream| _ = stream.reset_received(TcpState::SynSent, 0);
        assert_eq!(freed_at("tcp_v4_rcv", &[], reset).0, "unexplained", "the hook missed it");
        let by_listener = |stream: &mut Stream| reset(stream.reset_sent(SYN, false, None));
        assert_eq!(freed_at("tcp_v4_rcv", &[Hook::TcpV4SendReset], by_listener), ("handshake_rst", Confidence::Proven));
    }

    #[test]
    fn the_freeing_function_shows_no_refusal_if_a_process_listens() {
        let mut stream = Stream::new();
        stream.missing(Hook::TcpV4SendReset).listens(POD, 8080, true).wait_ms(5).connect();
        stream.drop_with(SYN, POD, |drop| (drop.reason, drop.location) = (None, Some("tcp_v4_rcv".into())));
        stream.reset_received(TcpState::SynSent, 0).gives_up();
        assert_eq!(stream.causes(), ["unexplained"]);
        let read = |addr: &str| {
            let addr = address(addr);
            let mut stream = Stream::new();
            stream.missing(Hook::TcpV4SendReset).connect().inspection(|reading| {
                reading.listeners = Some(vec![ListenerState { addr, ..listener(0, 128) }]);
            });
            stream.wait_ms(1).drop_with(SYN, POD, |drop| drop.location = Some("tcp_v4_rcv".into()));
            stream.reset_received(TcpState::SynSent, 0).gives_up().causes().remove(0)
        };
        assert_eq!((read("0.0.0.0:8080"), read("127.0.0.1:8080")), ("unexplained", "connection_refused"));
    }

    /// The listeners are older than the tracer. An inspection found them after an earlier refusal.
    #[test]
    fn listeners_elsewhere_in_the_pod_are_named() {
        let noted = |addrs: &[&str], ended: bool| {
            let mut stream = Stream::new();
            stream.http_readiness().pod_in(POD).connect().reset_sent(SYN, true, None).pod_sockets(|reading| {
                reading.elsewhere = addrs.iter().map(|addr| older(addr)).collect();
            });
            if ended {
                stream.listens(POD, 8081, false);
            }
            stream.wait_ms(1_000).again(8).connect().reset_sent(SYN, true, None);
            let verdict = stream.last_verdict();
            assert_eq!((verdict.cause.name(), verdict.confidence), ("connection_refused", Confidence::Proven));
            verdict.summary
        };
        assert_has(&noted(&["[::1]:8080", "0.0.0.0:8081"], false), &["; app (pid 7) listens on [::1]:8080 only"]);
        assert_has(&noted(&["[::]:8080"], false), &["; app (pid 7) listens on [::]:8080 for IPv6 only"]);
        assert_has(&noted(&["0.0.0.0:8081"], false), &["; app (pid 7) listens on port 8081 instead"]);
        assert_lacks(&noted(&["0.0.0.0:8081"], true), &["8081"]);
        assert_lacks(&noted(&[], false), &["listen there"]);
    }

    /// Seen with a real kubelet: both containers of the pod ran the same program.
    #[test]
    fn a_listener_of_another_container_does_not_listen_on_the_wrong_port() {
        let noted = |containers: &[&str]| {
            let mut stream = Stream::new();
            stream.http_readiness().container_id("own").pod_in(POD).second_container();
            stream.last_pods().pods[0].containers[1].id = Some("other".into());
            stream.connect().reset_sent(SYN, true, None).pod_sockets(|reading| {
                let at = |id: &&str| ListenerAt { container: Some((*id).into()), ..older("0.0.0.0:8081") };
                reading.elsewhere = containers.iter().map(at).collect();
            });
            stream.wait_ms(1_000).again(8).connect().reset_sent(SYN, true, None).last_verdict().summary
        };
        let other = "; app (pid 7) of container sidecar listens on port 8081";
        assert_ends(&noted(&["other"]), other);
        assert_ends(&noted(&["own"]), "; app (pid 7) listens on port 8081 instead");
        assert_ends(&noted(&["other", "own"]), &format!("{other}, app (pid 7) listens on port 8081 instead"));
    }

    /// Any process of the node may listen there.
    #[test]
    fn on_the_nodes_network_only_listeners_of_the_probed_pod_are_named() {
        let refused = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new().links(true, &["10.88.0.2"]).http_readiness().on_host_network().clone();
            stream.last_pods().pods[0].uid = Some("own".into());
            fill(&mut stream);
            stream.wait_ms(1_000).connect().reset_sent(SYN, true, None).last_reset_sent().netns = Some(NODE);
            stream.verdict()
        };
        fn reads(stream: &mut Stream, uid: &str, addr: &str) {
            stream.pod_sockets(|it| {
                (it.netns, it.pod, it.elsewhere) = (Some(NODE), Some(uid.into()), vec![older(addr)]);
            });
        }
        let own = refused(|stream| reads(stream, "own", "127.0.0.1:8080"));
        assert_ends(&own.summary, "; app (pid 7) listens on 127.0.0.1:8080 only");
        let fix = "Let the process listen on 0.0.0.0:8080 or on that address, not only on 127.0.0.1:8080. Or set `host: 127.0.0.1` in the probe: the pod is on the node's network";
        assert_eq!(own.remediation.to_string(), fix);
        let port = refused(|stream| reads(stream, "own", "0.0.0.0:8081"));
        assert_ends(&port.summary, "; app (pid 7) of the pod listens on port 8081 instead");
        let others: [fn(&mut Stream); 3] = [
            |stream| reads(stream, "before", "127.0.0.1:8080"),
            |stream| _ = stream.listens_on(NODE, address("127.0.0.1:8080"), true),
            |stream| {
                let second = Pod { uid: Some("second".into()), ..stream.last_pods().pods[0].clone() };
                stream.last_pods().pods.push(second);
                reads(stream, "own", "127.0.0.1:8080");
            },
        ];
        for other in others {
            assert_lacks(&refused(other).summary, &["(pid"]);
        }
    }

    /// A lost event may have been the end of the namespace, and another pod's may have its number.
    #[test]
    fn a_listener_of_before_a_loss_is_not_named() {
        let refused = |place: &str, begins: bool| {
            let mut stream = Stream::new().http_readiness().listens(POD, 8080, begins).wait_ms(50).clone();
            stream.lost_in(place, 1).wait_ms(50).connect().refused().verdict().summary.contains("app (pid 99)")
        };
        let places = [Loss::RING, Loss::NAMESPACE, Loss::PROGRAM, Loss::LISTEN, Loss::MAP];
        assert_eq!(places.map(|place| refused(place, false)), [false, false, true, true, true]);
        assert_eq!(places.map(|place| refused(place, true)), [false, false, false, false, true]);
    }

    /// A pod with a fixed address was deleted and made again, and its namespace has the number of the earlier one.
    #[test]
    fn listeners_of_an_earlier_pod_with_the_same_address_and_number_are_not_named() {
        let refused = |fill: fn(&mut Stream)| {
            let mut stream = Stream::new();
            stream.http_readiness().pod_in(POD).connect().refused();
            stream.pod_sockets(|reading| reading.elsewhere = vec![older("127.0.0.1:8080")]);
            fill(&mut stream);
            stream.wait_ms(1_000).again(8).connect().refused().last_verdict().summary
        };
        assert_has(&refused(|_| ()), &["app (pid 7) listens on 127.0.0.1:8080 only"]);
        let entered: fn(&mut Stream) = |stream| _ = stream.netns_ends(POD).netns_entered(POD).pod_in(POD);
        let unshared: fn(&mut Stream) = |stream| _ = stream.netns_made(POD).pod_in(POD);
        for again in [entered, unshared] {
            assert_lacks(&refused(again), &["app (pid 7)"]);
        }
    }

    #[test]
    fn the_fix_of_a_connection_does_not_mention_probes() {
        let fix = |stream: &Stream| stream.verdict().remediation.clone();
        let connection = Stream::new().connect().by_other_process().reset_sent(SYN, true, None).clone();
        let words = fix(&connection);
        assert_has(&words, &["correct the port that kubelet connects to"]);
        assert_lacks(&words, &["robe"]);
        let probe = Stream::new().http_readiness().connect().reset_sent(SYN, true, None).clone();
        assert_has(&fix(&probe), &["correct the probe's port, or add a startupProbe"]);
        let log = ": kubectl logs -n default web -c app --since=5m";
        assert!(
            fix(&probe).to_string().ends_with(log) && !words.to_string().contains("kubectl"),
            "{} {words}",
            fix(&probe)
        );
        let startup = Stream::new().http_startup().connect().reset_sent(SYN, true, None).clone();
        assert_has(&fix(&startup), &["or raise failureThreshold of the startupProbe"]);
        let fresh = Stream::new().http_readiness().runs(Runs::default()).connect().reset_sent(SYN, true, None).clone();
        assert!(fix(&fresh).to_string().ends_with(log), "no run of it has ended: {}", fix(&fresh));
    }
}
