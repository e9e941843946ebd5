//! Whether the target may have answered an attempt that got nothing: its answer could not leave, or went elsewhere.

use crate::case::{Case, inspected};
use crate::links::{last_down_of_pod, node_end};
use crate::phrases::in_namespace;
use crate::serving::{connection, readings};
use tracer_attempts::correlate::links::{LostBy, LostRoutes};
use tracer_model::event::{Inspection, LinkChange, Netns};
use tracer_model::plural::counted;

/// The target's end of this connection was there, and a later reading did not find it: it was closed while the prober
/// still waited. Then the prober had to get its answer, its FIN or its RST.
pub fn target_end_gone(case: &Case<'_>) -> bool {
    let (all, src) = (readings(case), case.attempt.flow.src);
    let had = all.iter().rposition(|(_, it)| it.connection.as_ref().is_some_and(|it| it.peer == src));
    had.is_some_and(|at| all[at..].iter().any(|(_, it)| it.no_connection_of == Some(src)))
}

/// A clause if the failed attempt may have been answered: no acknowledgement came, or the target's address has gone.
/// The link that was set down meanwhile is named.
pub fn held_answer(case: &Case<'_>) -> Option<String> {
    case.attempt.established.and(case.matched.unanswered_since())?;
    let rest = if case.attempt.received().is_some_and(|n| n > 0) { " of the rest" } else { "" };
    let unacknowledged = connection(case).and_then(|it| it.unacknowledged).filter(|bytes| *bytes > 0);
    let no_address = lost_address(case).map(|place| format!("then no {place} had the target's address"));
    let mut words = match (unacknowledged, no_address) {
        // A FIN counts as one byte (`tcp_diag_get_info`, net/ipv4/tcp_diag.c).
        (Some(1), _) => "the target sent one byte, or closed without one, and nothing arrived".to_owned(),
        (Some(bytes), None) => sent(bytes, rest),
        (Some(bytes), Some(no_address)) => format!("{}; {no_address}", sent(bytes, rest)),
        (None, Some(no_address)) => no_address,
        (None, None) if target_end_gone(case) => {
            "then the target had no socket of this connection any more, and nothing arrived: its answer went elsewhere, or something else sent it a RST"
                .to_owned()
        }
        (None, None) => {
            moved(case).filter(|(is_late, _)| !is_late).map(|(_, words)| format!("then {words}"))?
        }
    };
    if let Some((_, LinkChange { name, netns, actor, .. })) = link_set_down(case) {
        words += &format!("; meanwhile {actor} set {name}{} down", in_namespace(case, Some(*netns)));
    }
    Some(words)
}

fn sent(bytes: u32, rest: &str) -> String {
    format!("the target sent {}{rest}, and none arrived", counted(u64::from(bytes), "byte"))
}

/// What had the target's address while the attempt waited, and has lost it: "link in pod shop/cart". A pod with a network
/// stack of its own (gVisor) has its address in no namespace, so something must show that it was there. If it went in the
/// second half of the wait, the target had been silent before.
pub fn lost_address(case: &Case<'_>) -> Option<String> {
    lost(case).filter(|(is_late, _)| !is_late).map(|(_, place)| place)
}

/// A clause about an address that went in the second half of the wait.
pub fn lost_late(case: &Case<'_>) -> Option<String> {
    match lost(case) {
        Some((is_late, place)) => is_late.then(|| format!("no {place} had the target's address any more")),
        None => moved(case).filter(|(is_late, _)| *is_late).map(|(_, words)| words),
    }
}

/// `true`: in the second half of the wait.
fn lost(case: &Case<'_>) -> Option<(bool, String)> {
    let (from, flow) = (case.attempt.netns?, case.attempt.flow);
    let dst = flow.dst.ip();
    let ended = case.attempt.ended.map_or(u64::MAX, |(ended, _)| ended);
    let lost_by = |netns| Some(format!("link{}", in_namespace(case, Some(netns))));
    let is_late = |time: u64| in_second_half(case, time) == Some(true);
    let own = case.node.links.lost_address(from, dst).filter(|at| flow.src.ip() == dst && case.attempt.overlaps(*at));
    if let Some(at) = own {
        return lost_by(from).filter(|_| at <= ended).map(|place| (is_late(at), place));
    }
    let (time, last) = inspected(case)?;
    let has_it = |it: &Inspection| it.links.is_empty() || it.link_with(dst).is_some();
    let mut all = case.node.targets.inspections(case.attempt).filter(|(time, _)| case.attempt.overlaps(*time));
    let was_there = all.any(|(time, it)| is_late(time) && it.netns.is_some() && has_it(it));
    if was_there && time > ended {
        return None;
    }
    let place = match last.netns {
        Some(netns) if has_it(last) || case.node.targets.holder(from, dst)?.0 != netns => None,
        Some(netns) => lost_by(netns),
        None if last.ambiguous || readings(case).is_empty() && link_set_down(case).is_none() => None,
        None => Some("network namespace of this node".to_owned()),
    };
    place.map(|place| (was_there, place))
}

/// Whether this time lies in the second half of the wait for an answer, which begins with the handshake. What a reading of
/// the first half shows may have changed. What happened in the second half came after a longer silence of the target.
pub fn in_second_half(case: &Case<'_>, time: u64) -> Option<bool> {
    let (established, (ended, _)) = (case.attempt.established_at()?, case.attempt.ended?);
    Some(time >= established + ended.saturating_sub(established) / 2)
}

/// The last link of the target's pod that was set down while the prober waited for its answer, or the other end of its
/// link on the node.
pub fn link_set_down<'a>(case: &Case<'a>) -> Option<(u64, &'a LinkChange)> {
    let (attempt, from) = (case.attempt, case.attempt.netns?);
    let established = attempt.established_at()?;
    let ended = attempt.ended.map_or(u64::MAX, |(ended, _)| ended);
    let in_time = |at: u64| (established..=ended).contains(&at);
    let end = || node_end(case);
    let other_end = |it: &'a LostRoutes| match &it.why {
        LostBy::SetDown(change) if in_time(it.time) && Some(it.ifindex) == end() => Some((it.time, &**change)),
        LostBy::SetDown(_) | LostBy::Addresses(_) | LostBy::Bridge(_) => None,
    };
    let own = last_down_of_pod(case).filter(|(at, _)| in_time(*at));
    own.or_else(|| {
        case.node.links.lost_routes(from, u64::MAX, (attempt.flow.dst.ip(), attempt.until())).find_map(other_end)
    })
}

/// A clause if one namespace had the target's address earlier in this attempt, and another one later. `true`: in the
/// second half of the wait.
fn moved(case: &Case<'_>) -> Option<(bool, String)> {
    let holders = case.node.targets.moved(case.attempt.netns?, case.attempt.flow.dst.ip())?;
    let in_attempt = holders.iter().all(|holder| case.attempt.overlaps(holder.read));
    let [Netns(from), Netns(to)] = holders.map(|holder| holder.netns);
    let is_late = in_second_half(case, holders[0].read) == Some(true);
    in_attempt.then(|| (is_late, format!("network namespace {to} had the target's address, and no longer {from}")))
}

/// The target is on this node, and a reading after the handshake found its address in no namespace.
pub fn is_nowhere(case: &Case<'_>) -> bool {
    let is_later = |time| case.attempt.established_at().is_some_and(|established| time > established);
    let nobody = inspected(case).is_some_and(|(time, it)| it.netns.is_none() && !it.ambiguous && is_later(time));
    nobody && readings(case).is_empty() && case.node.is_at_pod(case.attempt)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// IPv6 was switched off in the pod after an earlier attempt.
    #[test]
    fn no_answer_is_held_before_the_handshake_is_over() {
        let mut stream = Stream::to("[fd00:10:88::2]:8080").http_readiness().connect().established().clone();
        stream.inspection(|it| it.links = vec![link(2, "eth0", &["fd00:10:88::2"])]).answers(200);
        stream.wait_ms(1_000).again(8).connect().drop_in(SYN, "IPV6DISABLED", POD, "ip6_rcv_core");
        stream.wait_ms(200).inspection(|it| it.links = vec![link(2, "eth0", &[])]).gives_up();
        let verdict = stream.last_verdict();
        assert_has(&verdict.summary, &["(no answer to the SYN, "]);
        assert_lacks(&verdict.summary, &["established"]);
    }

    /// conntrack was flushed: the answer went to another pod, which reset it. The prober sees nothing of that.
    #[test]
    fn a_connection_that_the_target_has_no_longer_is_not_slow() {
        let reported = |readings: &[bool], step_ms: u64| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).http_readiness().connect().established();
            for has in readings {
                let held = ServedConnection { unacknowledged: Some(0), ..served(0, true) };
                stream.wait_ms(step_ms).serving(Serving {
                    no_connection_of: Some(held.peer).filter(|_| !has),
                    connection: Some(held).filter(|_| *has),
                    processes: vec![server_process(7, 1)],
                    ..Serving::default()
                });
            }
            let rest = 1_000 - step_ms * readings.len() as u64;
            stream.wait_ms(rest).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let gone = reported(&[true, false], 300);
        assert_eq!(gone.cause.name(), "unexplained");
        assert_has(&gone.summary, &["the target had no socket of this connection any more, and nothing arrived"]);
        assert_has(&gone.remediation, &["40000, the source port", "conntrack -L -p tcp --dport 40000"]);
        let (late, early) = (reported(&[true, true], 300), reported(&[true], 300));
        assert_eq!((late.cause.name(), late.confidence), ("slow_response", Confidence::Proven));
        assert_eq!(
            (early.cause.name(), early.confidence),
            ("slow_response", Confidence::Likely),
            "it may have answered"
        );
    }

    /// The pod lost its link, its route or its address while its process worked: the answer could not leave.
    #[test]
    fn an_answer_that_cannot_leave_is_not_slow() {
        let noted_with = |bytes: u32, read: fn(&mut Inspection)| {
            let mut stream = Stream::new();
            stream.links(true, &["10.88.0.1"]).http_readiness().connect().established().wait_ms(200);
            let serving = |bytes| {
                let connection = Some(ServedConnection { unacknowledged: Some(bytes), ..served(0, true) });
                Some(Box::new(Serving { connection, ..Serving::default() }))
            };
            stream.inspection(|reading| {
                reading.serving = serving(0);
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
            });
            stream.wait_ms(500);
            stream.inspection(|reading| {
                reading.serving = serving(bytes);
                read(reading);
            });
            stream.wait_ms(300).closes((100, 101, 0)).wait_ms(5).tick();
            stream.verdict()
        };
        let noted = |read| noted_with(42, read);
        let stuck = noted(|_| ());
        assert_has(
            &noted_with(1, |_| ()).summary,
            &["the target sent one byte, or closed without one, and nothing arrived"],
        );
        assert_eq!(stuck.cause.name(), "unexplained");
        assert_has(
            &stuck.summary,
            &["(established and the request acknowledged; the target sent 42 bytes, and none arrived)"],
        );
        let no_route = noted(|reading| {
            let to = address("10.88.0.1");
            reading.no_way_back = Some(NoWayBack { to, errno: libc::ENETUNREACH });
        });
        assert_eq!((no_route.cause.name(), no_route.confidence), ("route_unreachable", Confidence::Likely));
        assert_has(&no_route.summary, &["drops the answer without a trace"]);
        let no_link = noted(|reading| {
            reading.links = vec![LinkState { up: false, ..link(2, "eth0", &["10.88.0.2"]) }];
        });
        assert_eq!((no_link.cause.name(), no_link.confidence), ("pod_link_down", Confidence::Likely));
        let gone = noted(|reading| (reading.netns, reading.serving) = (None, None));
        assert_eq!(gone.cause.name(), "unexplained");
        assert_has(&gone.summary, &["no network namespace of this node had the target's address"]);
        let moved = noted(in_another);
        assert_eq!(moved.cause.name(), "unexplained", "another pod has its address now");
        assert_has(&moved.summary, &["then network namespace 9 had the target's address, and no longer 2"]);
        assert_eq!(
            noted(|reading| reading.serving = None).cause.name(),
            "slow_response",
            "the target had sent nothing at the last inspection"
        );
    }

    fn in_another(reading: &mut Inspection) {
        (reading.netns, reading.serving) = (Some(Netns(9)), None);
        reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
    }

    /// Until then the target was silent, with its address.
    #[test]
    fn an_address_that_moves_late_leaves_a_slow_target_slow() {
        let moved_after = |held_ms: u64| {
            let mut stream = Stream::new().http_readiness().connect().established().clone();
            stream.wait_ms(held_ms).inspection(|reading| {
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.serving = Some(Box::new(Serving { connection: Some(served(0, true)), ..Serving::default() }));
            });
            stream.wait_ms(900 - held_ms).inspection(in_another);
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        assert_eq!(moved_after(400).cause.name(), "unexplained");
        let late = moved_after(700);
        assert_eq!((late.cause.name(), late.confidence), ("slow_response", Confidence::Likely));
        assert_has(&late.summary, &["second half of that time, network namespace 9 had the target's address, and no"]);
    }

    /// A SYN was lost: one second of five had passed before the handshake.
    #[test]
    fn the_halves_of_the_wait_begin_with_the_handshake() {
        let read_after = |ms: u64| {
            let mut stream = Stream::new().http_readiness().clone();
            stream.last_pods().pods[0].containers[0].probes[0].timeout_s = 5;
            let processes = || vec![server_process(7, 1)];
            stream.connect().wait_ms(200).serving(Serving { processes: processes(), ..Serving::default() });
            stream.wait_ms(800).syn_again().established().wait_ms(ms - 1_000);
            let connection = Some(served(0, true));
            stream.serving(Serving { connection, processes: processes(), ..Serving::default() });
            stream.wait_ms(5_000 - ms).closes((100, 101, 0)).verdict().confidence
        };
        assert_eq!([2_700, 3_100].map(read_after), [Confidence::Likely, Confidence::Proven]);
    }

    /// The address or the link went before tracer had read the server.
    #[test]
    fn a_target_that_nobody_has_before_the_first_reading_is_not_proven_slow() {
        let waits = |stream: &mut Stream, goes: fn(&mut Stream)| {
            stream.connect().established().wait_ms(100);
            goes(stream);
            for _ in 0..3 {
                stream.wait_ms(250).inspection(|reading| reading.netns = None);
            }
            stream.wait_ms(150).closes((100, 101, 0)).wait_ms(5).tick().verdict()
        };
        let of_pod = |goes| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().clone();
            let pod = &mut stream.last_pods().pods[0];
            (pod.uid, pod.netns) = (Some("uid".into()), Some(POD));
            waits(&mut stream, goes)
        };
        let removed = of_pod(|stream| {
            // The next list does not find the pod's address.
            let mut list = stream.observations.iter().find_map(|it| match &it.kind {
                ObservationKind::Pods(pods) => Some(pods.clone()),
                _ => None,
            });
            list.iter_mut().for_each(|list| list.pods[0].netns = None);
            stream.link_set(POD, 2, "eth0", false).push(ObservationKind::Pods(list.expect("a list")));
        });
        assert_eq!((removed.cause.name(), removed.confidence), ("pod_link_down", Confidence::Likely));
        assert_has(&removed.summary, &["eth0 in pod default/web is gone or down, set down by "]);
        let unknown = of_pod(|_| ());
        assert_eq!((unknown.cause.name(), unknown.confidence), ("slow_response", Confidence::Likely));
        assert_has(&unknown.summary, &["the pod lost it meanwhile, or has a network stack of its own"]);
        let mut own = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).http_readiness().clone();
        let own = waits(own.on_host_network(), |stream| _ = stream.links(true, &[]));
        assert_eq!(own.cause.name(), "unexplained");
        assert_has(&own.summary, &["then no link on the node had the target's address"]);
        let mut unlisted = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).clone();
        let fix = waits(&mut unlisted, |stream| _ = stream.links(true, &[])).remediation;
        assert_has(&fix, &["Find what took 10.88.0.1 from the node (keepalived", "ip addr show to 10.88.0.1"]);
        assert_lacks(&fix, &["sandbox"]);
    }

    /// Until then the target was silent, with its address.
    #[test]
    fn an_address_that_goes_late_leaves_a_slow_target_slow() {
        let own = |gone_ms: u64| {
            let mut stream = Stream::to("10.88.0.1:8080").links(true, &["10.88.0.1"]).connect().established().clone();
            stream.wait_ms(gone_ms);
            let gone = |stream: &mut Stream| _ = stream.links(true, &[]);
            if gone_ms < 1_000 {
                gone(&mut stream);
                stream.wait_ms(1_000 - gone_ms).closes((100, 101, 0));
            } else {
                gone(stream.closes((100, 101, 0)));
            }
            stream.wait_ms(5).tick().last_decided()
        };
        let [late, after] = [700, 1_000].map(own);
        assert_eq!((own(400).0, late.0, after.0), ("unexplained", "slow_response", "slow_response"));
        assert!(late.1 < after.1, "an answer after the loss could not arrive");
        let of_pod = |held_ms: u64| {
            let mut stream = Stream::new().links(true, &["10.88.0.1"]).http_readiness().connect().established().clone();
            stream.wait_ms(held_ms).inspection(|reading| {
                reading.links = vec![link(2, "eth0", &["10.88.0.2"])];
                reading.serving = Some(Box::new(Serving { connection: Some(served(0, true)), ..Serving::default() }));
            });
            stream.wait_ms(900 - held_ms).inspection(|reading| reading.netns = None);
            stream.wait_ms(100).closes((100, 101, 0)).wait_ms(5).tick().verdict().cause.name()
        };
        assert_eq!([400, 700].map(of_pod), ["unexplained", "slow_response"]);
    }

    /// The reading was of a server of another host, or it came before the handshake was over: a SYN was lost.
    #[test]
    fn only_a_target_on_this_node_is_expected_in_a_namespace() {
        let silent = |is_pod: bool, is_later: bool| {
            let mut stream = Stream::new();
            if is_pod {
                stream.links(true, &["10.88.0.1"]).http_readiness();
                stream.last_pods().pods[0].containers[0].probes[0].timeout_s = 5;
            }
            let read = |stream: &mut Stream| _ = stream.inspection(|reading| reading.netns = None);
            stream.connect().wait_ms(500);
            if !is_later {
                read(&mut stream);
            }
            stream.wait_ms(520).syn_again().established().wait_ms(2_000);
            if is_later {
                read(&mut stream);
            }
            stream.wait_ms(1_980).closes((100, 101, 0)).wait_ms(5).tick().verdict().confidence
        };
        assert_eq!([silent(false, false), silent(true, false), silent(false, true)], [Confidence::Proven; 3]);
        assert_eq!(silent(true, true), Confidence::Likely);
    }
}
