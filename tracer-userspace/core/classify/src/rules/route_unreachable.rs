//! There is no route to the target, or the route refuses.

use std::net::IpAddr;

use super::super::culprit;
use super::super::held_answer::held_answer;
use super::super::reject_answer::RejectAnswer;
use super::super::services::{is_past_proxy, stale_endpoint, target_service, untranslated};
use super::asymmetric_route::is_astray;
use super::neighbour_failure::{is_unresolved, note};
use super::rp_filter_drop::may_be_filter;
use super::unexplained::{by_endpoint, missing_address};
use super::*;
use tracer_attempts::correlate::links::LostBy;
use tracer_model::event::{ConnectFailed, Icmp, LinkState, Netns, PacketDrop, Prefix, is_kubelet_name};
use tracer_model::record::Scope;

pub(in super::super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return held_answer(case).and_then(|_| no_way_back(case));
    }
    by_connect(case)
        .or_else(|| without_loopback(case))
        .or_else(|| by_router(case).filter(|_| !is_astray(case)).map(|found| note(found, missing_address(case))))
        .or_else(|| by_icmp_about_answer(case))
        .or_else(|| no_way_back(case))
}

/// An inspection during the attempt found no route from the target's namespace to the prober. The kernel drops a SYN
/// that it cannot answer, without a trace. Its reverse-path filter, strict or loose, drops the SYN before that.
fn no_way_back(case: &Case<'_>) -> Option<Finding> {
    let mut without = inspections(case).filter_map(|(time, it)| Some((time, it, it.netns?, it.no_way_back?)));
    let (time, reading, netns, back) = without.next()?;
    let is_filtered = |drop: &PacketDrop| drop.netns == Some(netns) && may_be_filter(drop);
    if !case.settled || !got_no_answer(case) || !drops(case).all(|(_, drop)| is_filtered(drop)) {
        return None;
    }
    let error = errno_text(back.errno);
    let place = in_namespace(case, Some(netns));
    let text = format!("a look-up of the route from {} to {}{place}: {error}", case.attempt.flow.dst.ip(), back.to);
    let evidence = evidence_of("inspection", time, text, json!({ "errno": back.errno, "netns": netns, "to": back.to }));
    let what = if in_handshake(case) { "the SYN" } else { "the answer" };
    let filtered = drops(case).next();
    let lost = match filtered {
        Some(_) => {
            "the reverse-path filter there drops what comes from it, and without the filter no answer could go back"
                .to_owned()
        }
        None => format!("the kernel of {} drops {what} without a trace", case.attempt.flow.dst),
    };
    // Routes over the pod's other links do not lead back to the prober.
    let own = reading.links.iter().find(|link| link.addrs.contains(&case.attempt.flow.dst.ip()));
    let mut of_pod = case.node.links.lost_routes(netns, case.attempt.started, back.to);
    let set_down = of_pod.find_map(|it| match &it.why {
        LostBy::SetDown(change) if own.is_some_and(|own| own.ifindex == it.ifindex) => Some((it.time, change)),
        LostBy::SetDown(_) | LostBy::Addresses(_) => None,
    });
    let culprit = set_down.map(|(time, change)| culprit::culprit_of(case.node, time, change));
    let by = set_down.zip(culprit.as_ref()).map(|((_, change), by)| {
        format!("; {} there was set down before (by pid {} `{}`), and routes go with it", change.name, by.pid, by.comm)
    });
    let (state, fix) = match refusing_route(back.errno) {
        Some(action) => {
            let rule = refusing_rule(back.errno).map_or("", |_| ", or an `ip rule` there,");
            let fix = Remediation::from(REMOVE).run(refusing(case, Some(netns), back.to)).run([run_in(
                case,
                Some(netns),
                "ip rule",
            )]);
            (format!("the route back{place} to {}{rule} is `{action}`", back.to), fix)
        }
        None => {
            let fix = Remediation::from(
                "Add or correct the route (the CNI's default route in the pod), or delete the pod, so that its sandbox is made again",
            );
            (format!("there is no route back{place} to {}", back.to), fix)
        }
    };
    let summary = format!("{state} ({error}): {lost}{}", by.unwrap_or_default());
    let remediation = fix.run([run_in(case, Some(netns), format!("ip route get {}", back.to))]);
    let before = set_down.map(|(time, change)| culprit::evidence(time, change)).into_iter();
    let evidence = before.chain(filtered.map(|(time, drop)| of_drop(time, drop))).chain([evidence]).collect();
    let found = Finding::likely(Cause::RouteUnreachable, evidence, summary, remediation).with_culprit(culprit);
    Some(found.resting_on(&[Hook::KfreeSkb]))
}

fn got_no_answer(case: &Case<'_>) -> bool {
    case.attempt.icmp().next().is_none() && case.attempt.reset_received().is_none()
}

/// `connect(2)` failed before any SYN. The rule waits until the case is settled: the observation that a link went down,
/// and the route with it, may come a moment later.
fn by_connect(case: &Case<'_>) -> Option<Finding> {
    let (time, failed) = case.attempt.connect_failed_at().filter(|_| case.settled)?;
    let meaning = meaning(case, failed)?;
    let dst = failed.dst.ip();
    let error = errno_text(failed.errno);
    let text = format!("connect({}) failed at once: {error}", failed.dst);
    let evidence = evidence_of(Hook::SysConnect.name(), time, text, json!({ "errno": failed.errno }));
    let (route, place) = (meaning.route, in_namespace(case, case.attempt.netns));
    let found = |summary, fix: Remediation| Finding::failure(Cause::RouteUnreachable, vec![evidence], summary, fix);
    if let Some(link) = link_with_broadcast(case, dst).filter(|_| failed.errno == libc::ENETUNREACH) {
        let summary =
            format!("{dst} is a broadcast address of {}{place}: the kernel connects to no such address", link.name);
        return Some(found(summary, other_address(case, link)));
    }
    let may_be_rule = !dst.is_loopback() && !is_link_local(dst);
    let by_rule = refusing_rule(failed.errno).filter(|_| may_be_rule);
    let rule = by_rule.map(|action| format!(", or an `ip rule` there is `{action}`")).unwrap_or_default();
    let fix = match refusing_route(failed.errno).filter(|_| may_be_rule) {
        Some(_) => fix(case).reword(|_| REMOVE.to_owned()).run(refusing(case, case.attempt.netns, dst)),
        None if by_rule.is_some() => {
            fix(case).reword(|text| format!("{text}. If `ip rule` shows a rule that refuses, correct what made it"))
        }
        None => fix(case),
    };
    let fix = fix.run(may_be_rule.then(|| run_in(case, case.attempt.netns, "ip rule".to_owned())));
    let Some(other) = meaning.other else { return Some(found(format!("{route}{place} for {dst}{rule}"), fix)) };
    let summary = format!("{route}{place} for {dst}{rule}, or {other}; the error came before a SYN was sent: {error}");
    let (check, command) = meaning.check;
    let fix = fix.reword(|text| format!("{text}. If the route is good, {check}")).run([Command::on_node(command)]);
    Some(found(summary, fix).with_confidence(Confidence::Likely))
}

/// The target is a loopback address, and `lo` has lost it. The default route took the SYN.
fn without_loopback(case: &Case<'_>) -> Option<Finding> {
    let (time, _) = case.attempt.ended.filter(|_| case.settled && got_no_answer(case) && lacks_loopback(case))?;
    let (dst, place) = (case.attempt.flow.dst.ip(), in_namespace(case, case.attempt.netns));
    let what = if dst.is_ipv4() { "a loopback address" } else { "the address ::1" };
    let text = format!("no link{place} has {what}");
    let summary = format!("{text}: the SYN to {dst} did not go over lo, but left by another route");
    let evidence = evidence_of("rtnetlink", time, text, json!({ "address": dst }));
    Some(Finding::likely(Cause::RouteUnreachable, vec![evidence], summary, fix(case)))
}

/// No link of the attempt's namespace has a loopback address of the target's family, and `lo` is up.
pub(super) fn lacks_loopback(case: &Case<'_>) -> bool {
    let dst = case.attempt.flow.dst.ip();
    let Some(links) = case.attempt.netns.and_then(|netns| case.node.links.get(&netns)) else { return false };
    let is_own = |addr: &IpAddr| addr.is_loopback() && addr.is_ipv4() == dst.is_ipv4();
    dst.is_loopback()
        && links.iter().any(|link| link.loopback && link.up)
        && !links.iter().any(|link| link.addrs.iter().any(is_own))
}

/// What an error of connect() means.
struct Meaning {
    /// What the error says about the route.
    route: &'static str,
    /// What else returns the same error. Absent if nothing does.
    other: Option<&'static str>,
    /// How to check that, and the command for it.
    check: (&'static str, &'static str),
}

const PROGRAMS: (&str, &str) = (
    "find the program at cgroup/connect: Cilium refuses a connect to a Service without a backend",
    "bpftool cgroup tree",
);
const MODULES: (&str, &str) = ("find what the security module denied (the audit log)", "ausearch -m avc");
const CALLS: (&str, &str) =
    ("see how the client binds and connects its socket", "strace -f -e trace=bind,connect -p PID");

/// The action of an `ip rule` that gives this error (`fib4_rule_action`, net/ipv4/fib_rules.c; the same for IPv6).
const fn refusing_rule(errno: i32) -> Option<&'static str> {
    match errno {
        libc::ENETUNREACH => Some("unreachable"),
        libc::EACCES => Some("prohibit"),
        libc::EINVAL => Some("blackhole"),
        _ => None,
    }
}

/// The type of a route that gives this error (`fib_props`, net/ipv4/fib_semantics.c; the same in net/ipv6/route.c).
const fn refusing_route(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EHOSTUNREACH => Some("unreachable"),
        libc::EACCES => Some("prohibit"),
        libc::EINVAL => Some("blackhole"),
        _ => None,
    }
}

/// Calico has such a route for its block of addresses. It refuses if the pod's own route is missing.
const REMOVE: &str = "Remove the route or rule that refuses, or correct what made it. If the route is for a whole subnet, the target's own route may be missing instead: restart the CNI agent that should have made it";

/// The routes for this address in all tables: `ip route get` repeats the error only.
fn refusing(case: &Case<'_>, netns: Option<Netns>, to: IpAddr) -> [Command; 1] {
    [run_in(case, netns, format!("ip route show table all match {to}"))]
}

/// What the errno says about the route (`fib_props`, net/ipv4/fib_semantics.c; the same in net/ipv6/route.c). A program
/// at cgroup/connect returns EHOSTUNREACH for a Service without a backend, too (Cilium, `bpf_set_retval` of 5.18). A
/// security module returns EACCES, too (SELinux; Landlock's rules of TCP ports, 6.7). EINVAL is that of a blackhole
/// route, and of many other things: it counts only where no SYN was sent.
///
/// The socket of a kubelet is not bound, and its calls are right. Another client gets ENETUNREACH if it is bound to an
/// address that the namespace lacks, and EINVAL for an address of a wrong length (`ip_route_output_key_hash_rcu`,
/// net/ipv4/route.c; `tcp_v4_connect`, net/ipv4/tcp_ipv4.c).
fn meaning(case: &Case<'_>, failed: &ConnectFailed) -> Option<Meaning> {
    let only = |route| Meaning { route, other: None, check: ("", "") };
    let is_kubelet = is_kubelet_name(&case.attempt.actor.comm);
    let of_client = |route, other| match is_kubelet {
        true => only(route),
        false => Meaning { route, other: Some(other), check: CALLS },
    };
    let meaning = match failed.errno {
        // A SYN was sent: a blocking connect() returns what came back.
        _ if failed.conn.is_some() => return None,
        libc::ENETUNREACH => {
            of_client("there is no route", "the client had bound its socket to an address that is not there")
        }
        libc::EHOSTUNREACH => {
            let other = Some("a program at cgroup/connect refused the connect");
            Meaning { route: "the route is `unreachable`", other, check: PROGRAMS }
        }
        libc::EACCES => {
            let other = Some("a security module (SELinux, Landlock) refused the connect");
            Meaning { route: "the route is `prohibit`", other, check: MODULES }
        }
        // `tcp_v6_connect`: "connect to link-local address requires an interface".
        libc::EINVAL if is_link_local(failed.dst.ip()) => {
            only("no interface was named, without which there is no route")
        }
        libc::EINVAL => of_client("the route is `blackhole`", "the client's call was wrong"),
        libc::EADDRNOTAVAIL => only("there is no source address"),
        _ => return None,
    };
    Some(meaning)
}

/// A link of the prober's namespace that has this address as a broadcast address: the last one of its subnet, and before
/// 5.14 also the first. `tcp_v4_connect` returns ENETUNREACH for it.
fn link_with_broadcast<'a>(case: &Case<'a>, dst: IpAddr) -> Option<&'a LinkState> {
    let IpAddr::V4(dst) = dst else { return None };
    let is_broadcast = |(own, len): (&IpAddr, &u8)| {
        let all = u32::MAX.checked_shr((*len).into()).unwrap_or(0);
        let host = all & u32::from(dst);
        *len < 31 && Prefix { addr: *own, len: *len }.holds(dst.into()) && (host == 0 || host == all)
    };
    let mut links = case.node.links.get(&case.attempt.netns?).into_iter().flatten();
    links.find(|link| link.addrs.iter().zip(&link.prefixes).any(is_broadcast))
}

fn other_address(case: &Case<'_>, link: &LinkState) -> Remediation {
    let text = format!(
        "Correct the prefix length of {}, or delete the pod and take the address out of the CNI's range",
        link.name
    );
    let show = format!("ip addr show dev {}", shell::link(&link.name));
    Remediation::from(text).run(
        [show, format!("ip route get {}", case.attempt.flow.dst.ip())]
            .map(|command| run_in(case, case.attempt.netns, command)),
    )
}

/// Time exceeded in transit (RFC 792, RFC 4443).
const fn is_time_exceeded(icmp: &Icmp) -> bool {
    icmp.code == 0 && icmp.icmp_type == if icmp.v6 { 3 } else { 11 }
}

fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

/// A router refused the SYN.
pub(super) fn by_router(case: &Case<'_>) -> Option<Finding> {
    by_icmp(case).or_else(|| by_error(case))
}

/// A router of this node (the node itself, or another namespace on the way) refused the SYN.
fn by_icmp(case: &Case<'_>) -> Option<Finding> {
    let (time, icmp) =
        case.attempt.icmp().find(|(_, i)| i.flags.is_syn() && (is_unreachable(i) || is_time_exceeded(i)))?;
    if !case.settled || dropped_on_this_node(case) {
        return None;
    }
    // Behind a Service the SYN goes to an endpoint.
    let (dst, place, answer) = (icmp.flow.dst.ip(), in_namespace(case, icmp.netns), RejectAnswer::of(icmp));
    let (what, fix) = if is_time_exceeded(icmp) {
        let what = format!("the SYN to {dst} passed too many routers, the last{place}");
        (what, "Look for a routing loop, or a small net.ipv4.ip_default_ttl")
    } else {
        (format!("no route{place} to {dst}"), "Add or correct the route")
    };
    let target = case.attempt.flow.dst;
    let is_behind = dst != target.ip();
    let behind = if is_behind { format!(", where {target} leads") } else { String::new() };
    let summary = format!("{what}{behind}: {answer} was sent about the SYN");
    let route = run_in(case, icmp.netns, format!("ip route get {dst}"));
    let fix = Remediation::from(fix).run([route]);
    let by_service = stale_endpoint(case, dst, fix.clone()).filter(|_| is_behind);
    let (words, remediation) = by_service.unwrap_or_else(|| (String::new(), fix));
    let untranslated = untranslated(case, icmp.flow).filter(|_| is_past_proxy(case, icmp.netns, true));
    let scope = untranslated.is_some().then_some(Scope::Node);
    let (summary, remediation) = match untranslated {
        Some((first, fix)) => (first + &summary, fix),
        None => (summary + &words, remediation),
    };
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_icmp(time, icmp)], summary, remediation);
    Some(Finding { scope, ..found.resting_on(&[Hook::KfreeSkb]) })
}

/// A router of this node had no route for the SYN-ACK. The prober's own namespace is none: it has lost the address.
fn by_icmp_about_answer(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let is_of_router = |i: &Icmp| {
        let is_answer = i.flags.is_syn_ack() && i.flow == attempt.flow.reversed();
        is_answer && is_unreachable(i) && i.netns.is_some() && i.netns != attempt.netns
    };
    let (time, icmp) = attempt.icmp().find(|(_, i)| is_of_router(i))?;
    let dropped = |(_, d): (u64, &PacketDrop)| d.flags.is_syn_ack() && !is_routing(d);
    if !case.settled || dropped_on_this_node(case) || drops(case).any(dropped) {
        return None;
    }
    let (back, place, answer) = (attempt.flow.src.ip(), in_namespace(case, icmp.netns), RejectAnswer::of(icmp));
    let summary = format!(
        "no route{place} back to {back}: {answer} was sent about the SYN-ACK of {}, which listens",
        attempt.flow.dst
    );
    let route = run_in(case, icmp.netns, format!("ip route get {back}"));
    let fix = Remediation::from("Add or correct the route back").run([route]);
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_icmp(time, icmp)], summary, fix);
    Some(found.resting_on(&[Hook::KfreeSkb]))
}

/// The socket ended with the error of an ICMP message that nobody on this node sent.
fn by_error(case: &Case<'_>) -> Option<Finding> {
    let (ended, _) = case.attempt.ended?;
    let state = case.attempt.last.as_ref()?;
    let error = state.errno.filter(|e| matches!(*e, libc::ENETUNREACH | libc::EHOSTUNREACH))?;
    if !case.settled || dropped_on_this_node(case) || case.attempt.icmp().next().is_some() {
        return None;
    }
    // `icmp_err_convert` (net/ipv4/icmp.c): host unreachable (code 1) is one error with host prohibited (10) and
    // administratively prohibited (13), by which firewalld and others reject.
    let (sender, confidence) = match error {
        libc::EHOSTUNREACH => {
            ("a router on the way without a route to it, or a firewall there that answers so,", Confidence::Possible)
        }
        _ => ("a router on the way", Confidence::Likely),
    };
    let dst = case.attempt.flow.dst;
    let service = target_service(case);
    let named = service.as_ref().map(|name| format!(", Service {name},")).unwrap_or_default();
    let summary = format!("{sender} refused the SYN to {dst}{named}: {}", errno_text(error));
    let fix = service.map_or_else(|| fix(case), |name| by_endpoint(case, &name));
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_state(ended, state)], summary, fix);
    Some(found.with_confidence(confidence).resting_on(&[Hook::KfreeSkb, Hook::IcmpSend, Hook::Icmp6Send]))
}

/// A nearer cause than the route dropped the SYN: netfilter, or an address that could not be resolved.
fn dropped_on_this_node(case: &Case<'_>) -> bool {
    drops(case).any(|(_, d)| d.flags.is_syn() && !is_routing(d))
}

/// The routing code dropped the packet, along with its ICMP error. The drop reason shows that. Without one, the function
/// does: tunnels (`ip_tunnel_xmit`, `wg_xmit`) also answer with host unreachable, for a peer that is down or unknown.
pub(super) fn is_routing(drop: &PacketDrop) -> bool {
    let place = drop.location.as_deref().map(plain);
    let by_reason = match drop.reason.as_deref() {
        // IP_INHDR: the time to live expired (`ip_forward`).
        Some("IP_INNOROUTES" | "IP_OUTNOROUTES" | "IP_INADDRERRORS" | "IP_INHDR") => true,
        Some("NOT_SPECIFIED") => {
            matches!(place, None | Some("ip_error" | "ip6_pkt_drop" | "ip_forward" | "ip6_forward"))
        }
        Some(_) => false,
        None => return matches!(place, Some("ip_error" | "ip6_pkt_drop")),
    };
    by_reason && !is_netfilter(drop) && !is_unresolved(drop)
}

/// Network, host, protocol unreachable or administratively prohibited, but not port unreachable (RFC 792, RFC 4443).
fn is_unreachable(icmp: &Icmp) -> bool {
    if icmp.v6 { icmp.icmp_type == 1 && icmp.code != 4 } else { icmp.icmp_type == 3 && !matches!(icmp.code, 3 | 4) }
}

fn fix(case: &Case<'_>) -> Remediation {
    let (to, netns) = (case.attempt.flow.dst, case.attempt.netns);
    let dst = to.ip();
    // Rules can be for ports.
    let route = run_in(case, netns, format!("ip route get {dst} ipproto tcp dport {}", to.port()));
    if dst.is_loopback() {
        let add = if dst.is_ipv4() { "ip addr add 127.0.0.1/8 dev lo" } else { "ip addr add ::1/128 dev lo" };
        let add = run_in(case, netns, add);
        let text = "lo has lost its address: restore it (the last command)";
        if dst.is_ipv4() {
            return Remediation::from(text).run([route, add]);
        }
        let text =
            format!("{text}. With an MTU of lo below 1280, or disable_ipv6, it cannot have one: correct that first");
        let show = run_in(case, netns, "ip link show lo".to_owned());
        return Remediation::from(text).run([route, show, add]);
    }
    Remediation::from("Add or correct the route, or restart the CNI agent that should have made it").run([route])
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn a_routing_loop_is_route_unreachable() {
        let mut stream = Stream::new();
        let verdict = stream.connect().drop(SYN, "IP_INHDR", POD).icmp(11, 0).gives_up().verdict();
        assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Proven));
        assert_has(
            &verdict.summary,
            &["the SYN to 10.88.0.2 passed too many routers, the last in ", "ICMP type 11 code 0"],
        );
        assert_has(&verdict.remediation, &["a routing loop"]);
    }

    #[test]
    fn loopback_without_its_address_gets_it_back() {
        let fix = Stream::to("127.0.0.1:8080").connect_failed(libc::ENETUNREACH).verdict().remediation;
        assert_has(&fix, &["lo has lost its address", "ip addr add 127.0.0.1/8 dev lo"]);
    }

    /// The default route takes the SYN: its gateway does not answer for its address, or drops the SYN.
    #[test]
    fn loopback_without_its_address_is_the_cause_beside_a_default_route() {
        let reported = |lo: &[&str], up: bool, state: &str| {
            let mut stream = Stream::to("127.0.0.1:8080");
            stream.links(up, lo).connect().wait_ms(200).inspection(|reading| {
                reading.netns = Some(NODE);
                reading.neighbour = Some(NeighbourState { addr: address("10.77.0.2"), ..neighbour(state) });
            });
            stream.gives_up().verdict()
        };
        for state in ["incomplete", "reachable"] {
            let verdict = reported(&["::1"], true, state);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Likely));
            assert_has(&verdict.remediation, &["lo has lost its address", "ip addr add 127.0.0.1/8 dev lo"]);
        }
        assert_eq!(reported(&["127.0.0.1"], true, "incomplete").cause.name(), "neighbour_failure");
        assert_eq!(reported(&["127.0.0.1"], true, "reachable").cause.name(), "unexplained");
        assert_eq!(reported(&[], false, "incomplete").cause.name(), "loopback_down");
        let mut refused = Stream::to("127.0.0.1:8080");
        refused.links(true, &["::1"]).connect().refused();
        assert_ne!(refused.causes(), ["route_unreachable"], "a route of table local, or a NAT rule, leads to a host");
    }

    #[test]
    fn an_error_of_connect_itself_decides() {
        for errno in [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::EADDRNOTAVAIL] {
            assert_eq!(Stream::new().connect_failed(errno).causes(), ["route_unreachable"], "errno {errno}");
        }
        assert_eq!(Stream::new().connect_failed(libc::ENOMEM).causes(), ["unexplained"]);
        let blocking = Stream::new().connect().wait_ms(3000).no_port(libc::EHOSTUNREACH).clone();
        assert_ne!(blocking.causes(), ["route_unreachable"], "a SYN was sent");
    }

    /// A rule that refuses gives the errors of routes. It never gives that of an unreachable route.
    #[test]
    fn a_rule_that_refuses_may_be_the_reason() {
        for (errno, action) in
            [(libc::ENETUNREACH, "unreachable"), (libc::EACCES, "prohibit"), (libc::EINVAL, "blackhole")]
        {
            let verdict = Stream::new().connect_failed(errno).verdict();
            assert_has(&verdict.summary, &[&format!("or an `ip rule` there is `{action}`")]);
            assert_has(&verdict.remediation, &["rule that refuses", "ip rule"]);
            let refuses = errno != libc::ENETUNREACH;
            let begins = if refuses { "Remove the route or rule that refuses" } else { "Add or correct the route" };
            assert_starts(&verdict.remediation, begins);
            let shown = verdict.remediation.to_string().contains("ip route show table all match 10.88.0.2");
            assert_eq!(shown, refuses, "`ip route get` repeats the error only");
        }
        assert_lacks(&Stream::new().connect_failed(libc::EHOSTUNREACH).verdict().summary, &["ip rule"]);
    }

    #[test]
    fn a_link_local_address_without_its_interface_is_no_blackhole() {
        let reported = |target: &str| Stream::to(target).connect_failed(libc::EINVAL).verdict().summary;
        assert_starts(&reported("[fe80::1]:80"), "no interface was named");
        assert_starts(&reported("[fd00::1]:80"), "the route is `blackhole`");
    }

    /// firewalld on another node answers with host prohibited, which is the same error.
    #[test]
    fn host_unreachable_from_elsewhere_may_be_a_firewall() {
        let reported = |errno: i32| {
            let mut stream = Stream::new();
            stream.connect().wait_ms(3).state(TcpState::SynSent, TcpState::Close, errno, (0, 0, 0)).decided()
        };
        assert_eq!(reported(libc::EHOSTUNREACH), ("route_unreachable", Confidence::Possible));
        assert_eq!(reported(libc::ENETUNREACH), ("route_unreachable", Confidence::Likely));
    }

    /// WireGuard has no peer for the address, or the other end of a tunnel is down: there is a route.
    #[test]
    fn host_unreachable_from_a_tunnel_is_no_missing_route() {
        let reported = |place: &str| {
            let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, place).clone();
            stream.icmp(3, 1).gives_up().verdict().cause.name()
        };
        let causes = ["ip_error", "wg_xmit", "ip_tunnel_xmit"].map(reported);
        assert_eq!(causes, ["route_unreachable", "unexplained", "unexplained"]);
    }

    /// Seen on a node: a router between the node and the pod forwards the SYN, and has no route for the SYN-ACK.
    #[test]
    fn a_router_without_a_route_back_is_route_unreachable() {
        let decided = |reason: &str, fill: fn(&mut Stream)| {
            let mut stream = Stream::new().connect().drop(SYN_ACK, reason, POD).icmp(3, 0).clone();
            let icmp = stream.last_icmp();
            (icmp.flags, icmp.flow) = (SYN_ACK, icmp.flow.reversed());
            fill(&mut stream);
            stream.gives_up().verdict()
        };
        let verdict = decided("IP_INNOROUTES", |_| ());
        assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Proven));
        assert_has(&verdict.summary, &["back to 10.88.0.1: ", "about the SYN-ACK of 10.88.0.2:8080"]);
        let lost = decided("IP_INNOROUTES", |stream| stream.last_icmp().netns = Some(NODE));
        assert_eq!(lost.cause.name(), "unexplained", "the prober's namespace has lost the address");
        let about_other = decided("IP_INNOROUTES", |stream| stream.last_icmp().flow.dst.set_port(1));
        assert_eq!(about_other.cause.name(), "unexplained");
        assert_ne!(decided("NETFILTER_DROP", |_| ()).cause.name(), "route_unreachable", "a rule rejected it");
    }

    #[test]
    fn a_pod_without_a_route_back_cannot_answer() {
        let to = address("10.88.0.1");
        let no_way = Some(NoWayBack { to, errno: libc::ENETUNREACH });
        let mut stream =
            Stream::new().connect().wait_ms(200).inspection(|reading| reading.no_way_back = no_way).clone();
        assert_eq!(stream.gives_up().causes(), ["route_unreachable"]);
        let mut refused =
            Stream::new().connect().wait_ms(200).inspection(|reading| reading.no_way_back = no_way).clone();
        refused.reset_sent(SYN, true, None).reset_received(TcpState::SynSent, 0);
        assert_eq!(refused.causes().last(), Some(&"connection_refused"), "it did answer");
    }

    /// Seen on 6.18: a route that refuses is there, and must go.
    #[test]
    fn a_route_back_that_refuses_is_to_be_removed() {
        let verdict = |errno| {
            let back = NoWayBack { to: address("10.88.0.1"), errno };
            let mut stream = Stream::new().connect().wait_ms(200).clone();
            stream.inspection(|reading| reading.no_way_back = Some(back)).gives_up().verdict()
        };
        for (errno, state) in [
            (
                libc::EINVAL,
                "the route back in network namespace 2 to 10.88.0.1, or an `ip rule` there, is `blackhole` (",
            ),
            (
                libc::EACCES,
                "the route back in network namespace 2 to 10.88.0.1, or an `ip rule` there, is `prohibit` (",
            ),
            (libc::EHOSTUNREACH, "the route back in network namespace 2 to 10.88.0.1 is `unreachable` ("),
        ] {
            let verdict = verdict(errno);
            assert_starts(&verdict.summary, state);
            assert_has(&verdict.remediation, &["Remove the route or rule", "ip route show table all match 10.88.0.1"]);
        }
        let none = verdict(libc::ENETUNREACH);
        assert_starts(&none.summary, "there is no route back in network namespace 2 to 10.88.0.1 (");
        assert_lacks(&none.remediation, &["Remove the route"]);
    }

    /// A pod that lives sets its link down and up: its default route is gone.
    #[test]
    fn a_pods_link_that_was_set_down_has_lost_the_route_back() {
        let decided = |name: &str, up: bool, reached: bool| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            let links = ["eth0", "net1"].map(|it| link(if it == name { 2 } else { 3 }, it, &[]));
            stream.link_set(POD, 2, name, false);
            if up {
                stream.link_set(POD, 2, name, true);
            }
            if reached {
                stream.connect().established().answers(200).wait_ms(5_000).again(8);
            }
            let no_way = Some(NoWayBack { to: address("10.88.0.1"), errno: libc::ENETUNREACH });
            stream.connect().wait_ms(200).inspection(|reading| {
                reading.no_way_back = no_way;
                reading.links = links.to_vec();
                reading.links[0].addrs = vec![reading.target.ip()];
            });
            stream.gives_up().verdicts().pop().expect("a verdict")
        };
        let flapped = decided("eth0", true, false);
        assert_eq!(flapped.verdict.cause.name(), "route_unreachable");
        assert_has(&flapped.verdict.summary, &["eth0 there was set down before (by pid"]);
        assert!(flapped.culprit.is_some_and(|it| it.op == "link_down"));
        assert!(decided("eth0", false, false).culprit.is_none() && decided("eth0", true, true).culprit.is_none());
        assert!(decided("net1", true, false).culprit.is_none(), "no route of the pod's own link went with it");
    }

    /// The filter drops the SYN before the kernel looks for the way back. It helps nothing to switch it off.
    #[test]
    fn a_filter_does_not_hide_that_there_is_no_route_back() {
        let reported = |reason: Option<&str>, netns, no_way: bool| {
            let mut stream = Stream::new();
            stream.connect().drop_with(SYN, netns, |drop| {
                (drop.reason, drop.location) = (reason.map(str::to_owned), Some("ip_rcv_finish_core".into()));
            });
            // It was asked for by an earlier attempt.
            stream.inspection(|_| ());
            stream.wait_ms(200).inspection(|reading| {
                let back = NoWayBack { to: address("10.88.0.1"), errno: libc::ENETUNREACH };
                reading.no_way_back = Some(back).filter(|_| no_way);
            });
            stream.gives_up().causes()
        };
        for reason in [Some("IP_RPFILTER"), None] {
            assert_eq!(reported(reason, POD, true), ["route_unreachable"], "{reason:?}");
        }
        assert_eq!(reported(Some("IP_RPFILTER"), POD, false), ["rp_filter_drop"], "over another link");
        assert_eq!(reported(Some("IP_RPFILTER"), NODE, true), ["rp_filter_drop"], "the node's own filter");
        assert_eq!(reported(Some("IP_LOCAL_SOURCE"), POD, true), ["unexplained"]);
    }

    /// Seen on 6.18: a client that is bound to a foreign address gets ENETUNREACH although there is a route.
    #[test]
    fn an_error_that_the_client_can_have_caused_itself_is_less_sure() {
        let reported = |errno, comm: &str| {
            let mut stream = Stream::new().connect_failed(errno).clone();
            comm.clone_into(&mut stream.last_connect_failed().actor.comm);
            stream.verdict()
        };
        for (errno, other) in [(libc::ENETUNREACH, "bound its socket"), (libc::EINVAL, "the client's call was wrong")] {
            assert_eq!(reported(errno, "kubelet").confidence, Confidence::Proven);
            let verdict = reported(errno, "prober");
            assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Likely));
            assert_has(&verdict.summary, &[other]);
        }
    }

    /// Seen on 6.18: connect() to the last address of a subnet of the node.
    #[test]
    fn a_broadcast_address_does_not_lack_a_route() {
        let reported = |dst: &str, len: u8| {
            let bridge = LinkState { prefixes: vec![len], ..link(3, "cni0", &["10.88.0.1"]) };
            Stream::to(dst).node_links(vec![bridge]).connect_failed(libc::ENETUNREACH).verdict()
        };
        let broadcast = reported("10.88.0.255:80", 24);
        assert_starts(&broadcast.summary, "10.88.0.255 is a broadcast address of cni0 on the node");
        assert_lacks(&broadcast.remediation, &["Add or correct the route"]);
        for (dst, len) in [("10.88.0.255:80", 16), ("10.88.0.7:80", 24), ("10.88.1.255:80", 24), ("10.88.0.1:80", 31)] {
            assert_starts(&reported(dst, len).summary, "there is no route");
        }
    }

    /// Programs of Cilium at cgroup/connect and security modules return the errors of some routes, too.
    #[test]
    fn an_ambiguous_error_names_its_other_source_and_is_less_sure() {
        let reported = |errno| Stream::new().connect_failed(errno).verdict();
        for (errno, other) in [(libc::EHOSTUNREACH, "a program at cgroup/connect"), (libc::EACCES, "a security module")]
        {
            let verdict = reported(errno);
            assert_eq!(verdict.confidence, Confidence::Likely, "errno {errno}");
            assert_has(&verdict.summary, &[other, "the route is"]);
        }
        assert_eq!(reported(libc::ENETUNREACH).confidence, Confidence::Proven);
    }
}
