//! A router on the way refused the SYN or its answer.

use super::super::super::reject_answer::RejectAnswer;
use super::super::super::services::{is_past_proxy, stale_endpoint, target_service, untranslated};
use super::super::neighbour_failure::is_unresolved;
use super::super::unexplained::by_endpoint;
use super::*;
use tracer_model::event::Icmp;
use tracer_model::record::Scope;

/// Time exceeded in transit (RFC 792, RFC 4443).
const fn is_time_exceeded(icmp: &Icmp) -> bool {
    icmp.code == 0 && icmp.icmp_type == if icmp.v6 { 3 } else { 11 }
}

/// A router refused the SYN.
pub(in super::super) fn by_router(case: &Case<'_>) -> Option<Finding> {
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
pub(super) fn by_icmp_about_answer(case: &Case<'_>) -> Option<Finding> {
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
pub(in super::super) fn is_routing(drop: &PacketDrop) -> bool {
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
}
