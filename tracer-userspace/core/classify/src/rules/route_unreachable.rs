//! There is no route to the target, or the route refuses.

mod connect;

use std::net::IpAddr;

use self::connect::by_connect;
use super::*;
use crate::rules::asymmetric_route::{is_astray, is_queue_full};
use tracer_attempts::correlate::links::LostBy;
use tracer_case::culprit;
use tracer_case::drop_reason::may_be_rp_filter;
use tracer_case::held_answer::held_answer;
use tracer_case::hints::{missing_address, note};
use tracer_case::links::lacks_loopback;
use tracer_case::router::{REMOVE, by_router, by_router_back, fix, refusing};
use tracer_model::event::PacketDrop;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    if !in_handshake(case) {
        return held_answer(case).and_then(|_| no_way_back(case));
    }
    by_connect(case)
        .or_else(|| without_loopback(case))
        .or_else(|| by_router(case).filter(|_| !is_astray(case)).map(|found| note(found, missing_address(case))))
        .or_else(|| by_router_back(case))
        .or_else(|| no_way_back(case))
}

/// An inspection during the attempt found no route from the target's namespace to the prober. The kernel drops a SYN
/// that it cannot answer, without a trace. Its reverse-path filter, strict or loose, drops the SYN before that.
fn no_way_back(case: &Case<'_>) -> Option<Finding> {
    let mut without = inspections(case).filter_map(|(time, it)| Some((time, it, it.netns?, it.no_way_back?)));
    let (time, reading, netns, back) = without.next()?;
    let is_filtered = |drop: &PacketDrop| drop.netns == Some(netns) && may_be_rp_filter(drop);
    let is_explained = is_queue_full(case) || !drops(case).all(|(_, drop)| is_filtered(drop));
    if !case.settled || !got_no_answer(case) || is_explained {
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
    let own = reading.link_with(case.attempt.flow.dst.ip());
    let mut of_pod = case.node.links.lost_routes(netns, case.attempt.started, (back.to, case.attempt.until()));
    let set_down = of_pod.find_map(|it| match &it.why {
        LostBy::SetDown(change) if own.is_some_and(|own| own.ifindex == it.ifindex) => Some((it.time, change)),
        LostBy::SetDown(_) | LostBy::Addresses(_) | LostBy::Bridge(_) => None,
    });
    let culprit = set_down.and_then(|(time, change)| culprit::culprit_of(case.node, time, change));
    let by = set_down.map(|(_, change)| {
        let who = culprit::name(culprit.as_ref());
        format!("; {who} had set down {} there before, and routes go with it", change.name)
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
    let remediation =
        fix.run([run_in(case, Some(netns), format!("ip route get {} from {}", back.to, case.attempt.flow.dst.ip()))]);
    let before = set_down.map(|(time, change)| culprit::evidence(time, change)).into_iter();
    let evidence = before.chain(filtered.map(|(time, drop)| of_drop(time, drop))).chain([evidence]).collect();
    let found = Finding::likely(Cause::RouteUnreachable, evidence, summary, remediation).with_culprit(culprit);
    Some(found.resting_on(&[Hook::KfreeSkb]))
}

fn got_no_answer(case: &Case<'_>) -> bool {
    case.attempt.icmp().next().is_none() && case.attempt.reset_received().is_none()
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

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

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
        assert_has(&flapped.verdict.summary, &[" had set down eth0 there before, and routes go with it"]);
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
}
