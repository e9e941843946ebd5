//! A router on the way refused the SYN or its answer.

use std::net::IpAddr;

use crate::case::{Case, drops, holds_target, is_of_handshake};
use crate::drop_reason::{dropped_in, is_blackhole, is_routing};
use crate::evidence::{errno_text, of_drop, of_icmp, of_state};
use crate::finding::Finding;
use crate::phrases::{in_namespace, run_in};
use crate::reject_answer::RejectAnswer;
use crate::services::{by_endpoint, is_past_proxy, stale_endpoint, target_service, untranslated};
use tracer_common::names::Hook;
use tracer_model::event::{Flow, Icmp, Netns, PacketDrop};
use tracer_model::record::{Cause, Command, Confidence, Evidence, Remediation, Scope};
use tracer_model::shell;

/// Time exceeded in transit (RFC 792, RFC 4443).
const fn is_time_exceeded(icmp: &Icmp) -> bool {
    icmp.code == 0 && icmp.icmp_type == if icmp.v6 { 3 } else { 11 }
}

/// A router refused the SYN.
pub fn by_router(case: &Case<'_>) -> Option<Finding> {
    by_icmp(case).or_else(|| by_drop(case)).or_else(|| by_error(case))
}

/// A router of this node (the node itself, or another namespace on the way) refused the SYN.
fn by_icmp(case: &Case<'_>) -> Option<Finding> {
    let (time, icmp) =
        case.attempt.icmp().find(|(_, i)| i.flags.is_syn() && (is_unreachable(i) || is_time_exceeded(i)))?;
    if !case.settled || dropped_on_this_node(case) {
        return None;
    }
    let (dst, place) = (icmp.flow.dst.ip(), in_namespace(case, icmp.netns));
    let proven = |what, fix| RefusedRoute { what, confidence: Confidence::Proven, fix };
    let route = if is_time_exceeded(icmp) {
        let what = format!("the SYN to {dst} passed too many routers, the last{place}");
        proven(what, Remediation::from("Look for a routing loop, or a small net.ipv4.ip_default_ttl"))
    } else if let Some(link) = at_wireguard(case) {
        let what = format!("{link} (WireGuard){place} has no peer for {dst}, or one without an endpoint");
        let fix = Remediation::from(
            "Give the peer that has the pod the address (AllowedIPs) and an endpoint, as the CNI's agent should have done. Or correct the route that leads into that link",
        );
        proven(what, fix.run([run_in(case, icmp.netns, format!("wg show {}", shell::link(link)))]))
    } else {
        refusal(case, icmp, "")
    };
    let how = format!("{} was sent about the SYN", RejectAnswer::of(icmp));
    let found = of_syn(case, (icmp.flow, icmp.netns), (route.what, how), of_icmp(time, icmp), route.fix);
    Some(found.with_confidence(route.confidence).resting_on(&[Hook::KfreeSkb]))
}

/// What the ICMP error says about the route there (`back`) in that namespace, and the fix.
fn refusal(case: &Case<'_>, icmp: &Icmp, back: &str) -> RefusedRoute {
    let (to, place) = (icmp.flow.dst.ip(), in_namespace(case, icmp.netns));
    let (what, confidence, fix) = if is_prohibited(icmp) {
        let what = format!("the route{place}{back} to {to}, or an `ip rule` there, is `prohibit`");
        (what, Confidence::Proven, show_routes(case, icmp.netns, to, REMOVE))
    } else if may_be_unresolved(case, icmp) {
        let what = format!("no route{place}{back} to {to}, or nobody answered there for a link-layer address");
        let fix = format!("See whether the route{back} is right. If it is, find why its next hop does not answer");
        (what, Confidence::Possible, Remediation::from(fix).run([run_in(case, icmp.netns, "ip neigh")]))
    } else if !icmp.v6 && icmp.code == 1 {
        // `fib_props`: a missing route, or an `ip rule`, gives network unreachable.
        let what = format!("the route{place}{back} to {to} is `unreachable`");
        (what, Confidence::Proven, show_routes(case, icmp.netns, to, REMOVE))
    } else {
        let refusing = if icmp.v6 { "or one that is" } else { "or an `ip rule` there is" };
        let what = format!("no route{place}{back} to {to}, {refusing} `unreachable`");
        (what, Confidence::Proven, show_routes(case, icmp.netns, to, ADD))
    };
    RefusedRoute { what, confidence, fix }
}

/// The command that looks up the route as the router did: a rule may be for a source or for a link.
fn look_up(case: &Case<'_>, Flow { src, dst }: Flow, netns: Option<Netns>) -> Command {
    let mut dropped = case.attempt.drops().filter(|(_, drop)| drop.netns == netns && drop.flow.dst.ip() == dst.ip());
    let link = dropped.find(|(_, drop)| is_routing(drop)).and_then(|(_, drop)| drop.device.as_ref());
    let link = link.map_or("DEVICE", |device| shell::link(&device.name));
    run_in(case, netns, format!("ip route get {} from {} iif {link}", dst.ip(), src.ip()))
}

/// A router of this node refused the SYN of this flow: what it has for a route, and how that is known.
fn of_syn(
    case: &Case<'_>,
    (flow, netns): (Flow, Option<Netns>),
    (what, how): (String, String),
    evidence: Evidence,
    fix: Remediation,
) -> Finding {
    // Behind a Service the SYN goes to an endpoint.
    let (dst, target) = (flow.dst.ip(), case.attempt.flow.dst);
    let is_behind = dst != target.ip();
    let behind = if is_behind { format!(", where {target} leads") } else { String::new() };
    let summary = format!("{what}{behind}: {how}");
    let fix = fix.run([look_up(case, flow, netns)]);
    let by_service = stale_endpoint(case, dst, fix.clone()).filter(|_| is_behind);
    let (words, remediation) = by_service.unwrap_or_else(|| (String::new(), fix));
    let untranslated = untranslated(case, flow).filter(|_| is_past_proxy(case, netns, true));
    let scope = untranslated.is_some().then_some(Scope::Node);
    let (summary, remediation) = match untranslated {
        Some((first, fix)) => (first + &summary, fix),
        None => (summary + &words, remediation),
    };
    let found = Finding::failure(Cause::RouteUnreachable, vec![evidence], summary, remediation);
    Finding { scope, ..found }
}

/// The routing code of a namespace on the way dropped the SYN. No ICMP error need be seen: a blackhole route sends none,
/// the kernel limits the rate of the others, and some kernels lack the hook.
fn by_drop(case: &Case<'_>) -> Option<Finding> {
    let (time, drop, route) = discarded(case, |drop| drop.flags.is_syn())?;
    let words = (route.what, describe(drop));
    let found = of_syn(case, (drop.flow, drop.netns), words, of_drop(time, drop), route.fix);
    Some(found.with_confidence(route.confidence).rests_on_lost_packet())
}

fn describe(drop: &PacketDrop) -> String {
    let on = drop.device.as_ref().map(|device| format!(" that came in on {}", device.name)).unwrap_or_default();
    format!("the kernel there dropped the {} {}{on}", drop.flags.name(), drop.flow)
}

/// What a namespace has for a route, how sure that is, and the fix.
struct RefusedRoute {
    what: String,
    confidence: Confidence,
    fix: Remediation,
}

/// A packet like that which a namespace on the way dropped for its routes. Until the end of the attempt, an inspection can
/// show that the node's own route led there.
fn discarded<'a>(
    case: &Case<'a>,
    is_packet: impl Fn(&PacketDrop) -> bool,
) -> Option<(u64, &'a PacketDrop, RefusedRoute)> {
    let nearer = |(_, drop): (u64, &PacketDrop)| is_packet(drop) && !is_routing(drop);
    if !case.settled || case.attempt.ended.is_none() || drops(case).any(nearer) {
        return None;
    }
    // A target that has lost its address is another matter, and so is such a prober.
    let (own, dst) = (case.attempt.netns?, case.attempt.flow.dst.ip());
    let holder = case.node.targets.holder(own, dst).map(|(holder, _)| holder);
    let is_on_the_way = |netns: Netns| netns != own && Some(netns) != holder && !holds_target(case, netns);
    drops(case).find_map(|(time, drop)| {
        let counts = is_packet(drop) && drop.netns.is_some_and(is_on_the_way) && is_of_handshake(case, time, drop);
        Some((time, drop, refused_route(case, drop).filter(|_| counts)?))
    })
}

fn refused_route(case: &Case<'_>, drop: &PacketDrop) -> Option<RefusedRoute> {
    let (to, netns) = (drop.flow.dst.ip(), drop.netns);
    let place = in_namespace(case, netns);
    let is = |action: &str| format!("the route{place} to {to}, or an `ip rule` there, is `{action}`");
    let (what, confidence, text) = match (drop.reason.as_deref(), dropped_in(drop)) {
        _ if is_blackhole(drop) => {
            // A route that is just going away does the same. No second SYN meets it.
            let again = case.attempt.drops().filter(|(_, it)| is_blackhole(it) && it.netns == netns).count() > 1;
            (is("blackhole"), if again { Confidence::Proven } else { Confidence::Likely }, REMOVE)
        }
        // `ip6_pkt_drop`, net/ipv6/route.c: the code of its ICMP error is the error of the socket.
        (Some("IP_INNOROUTES"), _) | (_, Some("ip6_pkt_drop")) if to.is_ipv6() => match case.attempt.errno() {
            Some(libc::EACCES) => (is("prohibit"), Confidence::Proven, REMOVE),
            _ => (format!("no route{place} to {to}, or one that refuses"), Confidence::Proven, ADD),
        },
        (Some("IP_INNOROUTES"), _) => (format!("no route{place} to {to}"), Confidence::Proven, ADD),
        _ => return None,
    };
    Some(RefusedRoute { what, confidence, fix: show_routes(case, netns, to, text) })
}

const ADD: &str = "Add the route that is missing there, or correct the one that refuses. If that namespace should have the address itself, restore it, or delete the pod, so that its sandbox is made again";

fn show_routes(case: &Case<'_>, netns: Option<Netns>, to: IpAddr, text: &str) -> Remediation {
    Remediation::from(text).run(refusing(case, netns, to)).run([run_in(case, netns, "ip rule")])
}

/// A router of this node had no route for the SYN-ACK.
pub fn by_router_back(case: &Case<'_>) -> Option<Finding> {
    by_icmp_about_answer(case).or_else(|| by_drop_of_answer(case))
}

/// The prober's own namespace is none: it has lost the address.
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
    let back = refusal(case, icmp, " back");
    let summary = format!(
        "{}: {} was sent about the SYN-ACK of {}, which listens",
        back.what,
        RejectAnswer::of(icmp),
        attempt.flow.dst
    );
    let route = look_up(case, icmp.flow, icmp.netns);
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_icmp(time, icmp)], summary, back.fix.run([route]));
    Some(found.with_confidence(back.confidence).resting_on(&[Hook::KfreeSkb]))
}

/// See [`by_drop`].
fn by_drop_of_answer(case: &Case<'_>) -> Option<Finding> {
    let back = case.attempt.flow.reversed();
    let (time, drop, route) = discarded(case, |drop| drop.flags.is_syn_ack() && drop.flow == back)?;
    let summary = format!("{}: {}, though {} listens", route.what, describe(drop), case.attempt.flow.dst);
    let fix = route.fix.run([look_up(case, back, drop.netns)]);
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_drop(time, drop)], summary, fix);
    Some(found.with_confidence(route.confidence).rests_on_lost_packet())
}

/// The socket ended with the error of an ICMP message that nobody on this node sent.
fn by_error(case: &Case<'_>) -> Option<Finding> {
    let (ended, _) = case.attempt.ended?;
    let state = case.attempt.last.as_ref()?;
    let (dst, error) = (case.attempt.flow.dst, state.errno?);
    if !case.settled || dropped_on_this_node(case) || case.attempt.icmp().next().is_some() {
        return None;
    }
    // `icmp_err_convert` (net/ipv4/icmp.c): host unreachable (code 1) is one error with host prohibited (10) and
    // administratively prohibited (13), by which firewalld and others reject. For IPv6: `tab_unreach` (net/ipv6/icmp.c).
    let (sender, codes, confidence) = match (error, dst.is_ipv6()) {
        (libc::ENETUNREACH, _) => ("a router on the way", "", Confidence::Likely),
        (libc::EHOSTUNREACH, false) => (
            CANNOT_REACH,
            ", the error for ICMP code 1 (host unreachable) and for 10 and 13 (prohibited)",
            Confidence::Possible,
        ),
        (libc::EHOSTUNREACH, true) => {
            (CANNOT_REACH, ", the error for ICMPv6 code 3 (address unreachable)", Confidence::Possible)
        }
        (libc::EACCES, true) => (
            "a router on the way with a `prohibit` route, or a firewall there,",
            ", the error for ICMPv6 code 1 (administratively prohibited)",
            Confidence::Possible,
        ),
        _ => return None,
    };
    let service = target_service(case);
    let named = service.as_ref().map(|name| format!(", Service {name},")).unwrap_or_default();
    let summary = format!("{sender} refused the SYN to {dst}{named}: {}{codes}", errno_text(error));
    let fix = service.map_or_else(|| fix(case), |name| by_endpoint(case, &name));
    let found = Finding::failure(Cause::RouteUnreachable, vec![of_state(ended, state)], summary, fix);
    Some(found.with_confidence(confidence).resting_on(&[Hook::KfreeSkb, Hook::IcmpSend, Hook::Icmp6Send]))
}

const CANNOT_REACH: &str = "a router on the way that cannot reach it, or a firewall there,";

/// A nearer cause than the route dropped the SYN: netfilter, or an address that could not be resolved.
fn dropped_on_this_node(case: &Case<'_>) -> bool {
    drops(case).any(|(_, d)| d.flags.is_syn() && !is_routing(d) && !is_wireguard(d))
}

/// `wg_xmit` refuses with host unreachable what no peer has in its AllowedIPs, and what is for a peer without an
/// endpoint (drivers/net/wireguard/device.c).
fn is_wireguard(drop: &PacketDrop) -> bool {
    dropped_in(drop) == Some("wg_xmit")
}

/// The WireGuard link that refused the SYN.
fn at_wireguard<'a>(case: &Case<'a>) -> Option<&'a str> {
    let (_, drop) = drops(case).find(|(_, it)| it.flags.is_syn() && is_wireguard(it))?;
    Some(drop.device.as_ref().map_or("a link", |it| it.name.as_str()))
}

/// Network, host, protocol unreachable or administratively prohibited, but not port unreachable (RFC 792, RFC 4443).
fn is_unreachable(icmp: &Icmp) -> bool {
    if icmp.v6 { icmp.icmp_type == 1 && icmp.code != 4 } else { icmp.icmp_type == 3 && !matches!(icmp.code, 3 | 4) }
}

/// Host unreachable, or address unreachable of ICMPv6, where no drop shows that it is about a route. The kernel sends the
/// same where nobody answers for the link-layer address (`arp_error_report`, net/ipv4/arp.c; `ndisc_error_report`,
/// net/ipv6/ndisc.c), and that drop can come later.
fn may_be_unresolved(case: &Case<'_>, icmp: &Icmp) -> bool {
    let is_refused = |drop: &PacketDrop| drop.flags == icmp.flags && (is_routing(drop) || is_wireguard(drop));
    icmp.code == if icmp.v6 { 3 } else { 1 } && !case.attempt.drops().any(|(_, drop)| is_refused(drop))
}

/// RFC 792 and RFC 1812 (codes 9, 10 and 13), RFC 4443. The kernel's routing sends it for a `prohibit` route only.
const fn is_prohibited(icmp: &Icmp) -> bool {
    if icmp.v6 { icmp.code == 1 } else { matches!(icmp.code, 9 | 10 | 13) }
}

/// Calico has such a route for its block of addresses. It refuses if the pod's own route is missing.
pub const REMOVE: &str = "Remove the route or rule that refuses, or correct what made it. If it is the route of a whole subnet, the target's own may be missing: restart the CNI agent";

/// The routes for this address in all tables: `ip route get` repeats the error only.
pub fn refusing(case: &Case<'_>, netns: Option<Netns>, to: IpAddr) -> [Command; 1] {
    [run_in(case, netns, format!("ip route show table all match {to}"))]
}

pub fn fix(case: &Case<'_>) -> Remediation {
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

    /// A router in network namespace 900 drops the packet, which came in on its eth0, and the socket ends with this error.
    fn at_router(dst: &str, drops: &[(TcpFlags, Option<&str>, &str)], errno: i32) -> Verdict {
        let mut stream = Stream::to(dst).connect().clone();
        for (at, (flags, reason, function)) in drops.iter().enumerate() {
            if at > 0 {
                stream.wait_ms(1_000).syn_again();
            }
            stream.drop_with(*flags, Netns(900), |drop| {
                (drop.reason, drop.location) = (reason.map(str::to_owned), Some((*function).to_owned()));
                drop.device = Some(device(2, "eth0"));
            });
        }
        stream.wait_ms(500).state(TcpState::SynSent, TcpState::Close, errno, (0, 0, 0)).settles().verdict()
    }

    /// Seen on 6.18: a router with a blackhole, prohibit or unreachable route. No hook shows its ICMP errors there.
    #[test]
    fn a_router_that_drops_for_its_routes_is_named() {
        const V6: &str = "[fd00:77::5]:8080";
        const V4: &str = "10.77.0.5:8080";
        const NO_ROUTE: &str = "no route in network namespace 900 to fd00:77::5, or one that refuses: ";
        let refuses = |how: &str| {
            format!("the route in network namespace 900 to fd00:77::5, or an `ip rule` there, is `{how}`: ")
        };
        let (none, discard) = (Some("IP_INNOROUTES"), (SYN, Some("NOT_SPECIFIED"), "dst_discard_out"));
        let (v4, v6) = ((SYN, none, "ip_error"), (SYN, none, "ip6_pkt_drop"));
        let no_route_v4 = "no route in network namespace 900 to 10.77.0.5: ";
        let (proven, likely) = (Confidence::Proven, Confidence::Likely);
        for (dst, drops, errno, confidence, words) in [
            (V6, vec![v6], libc::ENETUNREACH, proven, NO_ROUTE.to_owned()),
            (V6, vec![(SYN, None, v6.2)], 0, proven, NO_ROUTE.to_owned()),
            (V6, vec![v6], libc::EACCES, proven, refuses("prohibit")),
            (V6, vec![discard], 0, likely, refuses("blackhole")),
            (V6, vec![discard; 2], 0, proven, refuses("blackhole")),
            (V4, vec![v4], libc::ENETUNREACH, proven, no_route_v4.to_owned()),
        ] {
            let verdict = at_router(dst, &drops, errno);
            assert_eq!(
                (verdict.cause.name(), verdict.confidence),
                ("route_unreachable", confidence),
                "{drops:?} {errno}"
            );
            assert_starts(&verdict.summary, &words);
            assert_has(&verdict.summary, &["the kernel there dropped the SYN ", "that came in on eth0"]);
            assert_has(
                &verdict.remediation,
                &[
                    "-inum 900",
                    &format!("ip route get {}", dst.parse::<std::net::SocketAddr>().expect("an address").ip()),
                ],
            );
        }
        let back = at_router(V4, &[(SYN_ACK, none, "ip_error")], 0);
        assert_starts(
            &back.summary,
            "no route in network namespace 900 to 10.88.0.1: the kernel there dropped the SYN-ACK ",
        );
        assert_has(&back.summary, &["though 10.77.0.5:8080 listens"]);
    }

    #[test]
    fn a_drop_that_the_route_does_not_decide_names_no_router() {
        let no_forwarding = at_router("10.77.0.5:8080", &[(SYN, Some("IP_INADDRERRORS"), "ip_error")], 0);
        assert_eq!(no_forwarding.cause.name(), "unexplained");
        // Before 6.0 the function gives no reason if the namespace does not forward.
        let refuses = at_router("10.77.0.5:8080", &[(SYN, Some("NOT_SPECIFIED"), "ip_error")], 0);
        assert_eq!(refuses.cause.name(), "unexplained");
        let v4 = at_router("10.77.0.5:8080", &[(SYN, Some("NOT_SPECIFIED"), "dst_discard_out")], 0);
        assert_eq!(v4.cause.name(), "unexplained");
        let dropped = |netns: Netns, on: Option<Device>| {
            let mut stream = Stream::to("[fd00:77::5]:8080").connect().clone();
            stream.drop_in(SYN, "NOT_SPECIFIED", netns, "dst_discard_out").last_drop().device = on;
            stream.gives_up().verdict().cause.name()
        };
        assert_eq!(dropped(Netns(900), None), "unexplained", "it was sent there");
        assert_eq!(dropped(NODE, Some(device(2, "eth0"))), "unexplained");
        let mut own = Stream::to("[fd00:77::5]:8080");
        own.connect().wait_ms(200).inspection(|_| ()).drop_in(SYN, "IP_INNOROUTES", POD, "ip6_pkt_drop");
        assert_eq!(own.gives_up().verdict().cause.name(), "unexplained", "the pod has lost its address");
    }

    /// RFC 1812 and RFC 4443: the way is prohibited, and not unknown.
    #[test]
    fn administratively_prohibited_is_not_called_no_route() {
        let reported = |v6: bool, code: u8, back: bool| {
            let mut stream = Stream::new().connect().icmp(if v6 { 1 } else { 3 }, code).clone();
            let icmp = stream.last_icmp();
            icmp.v6 = v6;
            if back {
                (icmp.flags, icmp.flow) = (SYN_ACK, icmp.flow.reversed());
            }
            stream.gives_up().verdict()
        };
        for (v6, code) in [(false, 13), (false, 10), (true, 1)] {
            let verdict = reported(v6, code, false);
            assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Proven));
            assert_has(&verdict.summary, &["to 10.88.0.2, or an `ip rule` there, is `prohibit`: ICMP"]);
            assert_has(&verdict.remediation, &["Remove the route or rule that refuses", "table all match 10.88.0.2"]);
            assert_has(&reported(v6, code, true).summary, &["back to 10.88.0.1, or an `ip rule` there, is `prohibit`"]);
        }
        assert_starts(&reported(true, 0, false).summary, "no route ");
        assert_has(
            &reported(false, 0, false).summary,
            &["no route ", ", or an `ip rule` there is `unreachable`: ICMP"],
        );
        let mut refused = Stream::new().connect().drop(SYN, "IP_INNOROUTES", POD).clone();
        refused.last_drop().device = Some(device(2, "eth0"));
        let verdict = refused.icmp_in(POD, 3, 1).gives_up().verdict();
        assert_has(&verdict.summary, &[" to 10.88.0.2 is `unreachable`: ICMP type 3 code 1"]);
        assert_has(
            &verdict.remediation,
            &["table all match 10.88.0.2", "ip route get 10.88.0.2 from 10.88.0.1 iif eth0"],
        );
    }

    #[test]
    fn the_error_of_a_prohibited_way_may_be_of_a_firewall() {
        let reported = |dst: &str| {
            let mut stream = Stream::to(dst).connect().wait_ms(3).clone();
            stream.state(TcpState::SynSent, TcpState::Close, libc::EACCES, (0, 0, 0)).settles().verdict()
        };
        let verdict = reported("[fd00:77::5]:8080");
        assert_eq!((verdict.cause.name(), verdict.confidence), ("route_unreachable", Confidence::Possible));
        assert_has(&verdict.summary, &["or a firewall there,", "ICMPv6 code 1 (administratively prohibited)"]);
        assert_eq!(reported("10.77.0.5:8080").cause.name(), "unexplained", "no ICMP code gives that");
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

    /// The other end of a tunnel is down: there is a route. WireGuard has no peer for the address.
    #[test]
    fn host_unreachable_from_a_tunnel_is_no_missing_route() {
        let reported = |place: &str| {
            let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, place).clone();
            stream.icmp(3, 1).gives_up().verdict().cause.name()
        };
        let causes = ["ip_error", "wg_xmit", "ip_tunnel_xmit"].map(reported);
        assert_eq!(causes, ["route_unreachable", "route_unreachable", "unexplained"]);
        let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, "wg_xmit").clone();
        stream.last_drop().device = Some(device(7, "wg0"));
        let refused = stream.clone().icmp(3, 1).gives_up().verdict();
        assert_starts(
            &refused.summary,
            "wg0 (WireGuard) in network namespace 2 has no peer for 10.88.0.2, or one without",
        );
        assert_has(&refused.remediation, &["AllowedIPs", "wg show wg0"]);
        assert_eq!(stream.gives_up().causes(), ["unexplained"], "a full queue of WireGuard, without an ICMP error");
    }

    /// Seen on a busy 6.12: the drop of the neighbour table came 105 ms after the end of the attempt.
    #[test]
    fn host_unreachable_without_a_drop_for_a_route_may_be_an_unanswered_request() {
        let ended = |wait_ms: u64| {
            let mut stream = Stream::new().connect().drop_in(SYN, "NOT_SPECIFIED", NODE, "br_dev_xmit").clone();
            stream.wait_ms(1_000).syn_again().wait_ms(2_000);
            stream.state(TcpState::SynSent, TcpState::Close, libc::EHOSTUNREACH, (0, 0, 0)).wait_ms(wait_ms).icmp(3, 1);
            stream.clone()
        };
        for wait_ms in [0, 97] {
            assert_eq!(ended(wait_ms).settles().decided(), ("route_unreachable", Confidence::Possible));
            let late = ended(wait_ms).wait_ms(8).drop(SYN, "NEIGH_FAILED", NODE).settles().last_verdict();
            assert_eq!(late.cause.name(), "neighbour_failure", "{wait_ms} {}", late.summary);
        }
        let by_route = Stream::new().connect().drop(SYN, "IP_INNOROUTES", POD).icmp(3, 1).gives_up().decided();
        assert_eq!(by_route, ("route_unreachable", Confidence::Proven));
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
        assert_has(&verdict.summary, &["back to 10.88.0.1, or ", "about the SYN-ACK of 10.88.0.2:8080"]);
        let lost = decided("IP_INADDRERRORS", |stream| stream.last_icmp().netns = Some(NODE));
        assert_eq!(lost.cause.name(), "unexplained", "the prober's namespace has lost the address");
        let about_other = decided("IP_INADDRERRORS", |stream| stream.last_icmp().flow.dst.set_port(1));
        assert_eq!(about_other.cause.name(), "unexplained");
        assert_ne!(decided("NETFILTER_DROP", |_| ()).cause.name(), "route_unreachable", "a rule rejected it");
    }
}
