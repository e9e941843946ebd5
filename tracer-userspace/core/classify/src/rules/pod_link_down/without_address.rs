//! The pod has lost its address, and its link is up.

use super::*;
use tracer_case::drop_reason;

/// The kernel tells when somebody last answered in ticks of 10 ms.
const TICKS_NS: u64 = 50_000_000;

/// The pod's namespace had the address, and has it no longer, while its link is up: `ip addr del`, or a CNI plugin's DEL for
/// an earlier sandbox. The last reading shows that, or its kernel dropped the SYN for want of the address. A pod with a
/// network stack of its own (gVisor) takes the address away when it starts, and answers for it. Reported at the end only,
/// because an inspection shows who answers.
pub(super) fn without_address(case: &Case<'_>) -> Option<Finding> {
    case.attempt.ended?;
    let (attempt, from) = (case.attempt, case.attempt.netns?);
    let target = attempt.flow.dst.ip();
    let is_pod = |netns: Netns| netns != from && !case.node.is_a_node(netns) && !case.node.has_ended(netns);
    let in_time = |at: u64| in_time(case, at);
    let lacks =
        |drop: &PacketDrop| drop.reason.as_deref() == Some("IP_INADDRERRORS") && drop.flow.dst == attempt.flow.dst;
    let held = case.node.targets.holder(from, target).map(|(netns, ifindex)| (netns, Some(ifindex)));
    // A stack of the pod's own has no listener in the kernel.
    let listens = |netns: &Netns| case.node.listeners.open_at(*netns, attempt.flow.dst).is_some();
    // A wrong route may have led the SYN to another pod that listens on that port.
    let is_own = |netns: &Netns| case.node.pods.in_netns(*netns).is_none_or(|pod| pod.addrs.contains(&target));
    let at_listener = |drop: &PacketDrop| drop.netns.filter(|netns| listens(netns) && is_own(netns));
    let by_listener = || drops(case).filter(|(_, drop)| lacks(drop)).find_map(|(_, drop)| at_listener(drop));
    let held = held.or_else(|| Some((by_listener()?, None)));
    let (netns, ifindex) = held.filter(|(netns, _)| case.settled && is_pod(*netns))?;
    let is_there = |drop: &PacketDrop| drop.netns == Some(netns) && drop.flow.dst == attempt.flow.dst;
    let refused = |drop: &PacketDrop| lacks(drop) && is_there(drop);
    let is_of_it = |drop: &PacketDrop| {
        refused(drop) || is_there(drop) && drop_reason::is_routing(drop) || drop_reason::is_unresolved(drop)
    };
    let last = inspected(case);
    let answers = |entry: &NeighbourState| {
        let confirmed = last.and_then(|(time, _)| confirmed_at(time, entry));
        entry.addr == target && confirmed.is_some_and(|at| at > attempt.started.saturating_add(TICKS_NS))
    };
    let is_answered = last.and_then(|(_, it)| it.neighbour.as_ref()).is_some_and(answers)
        || attempt.reset_received().is_some()
        || attempt.icmp().any(|(at, icmp)| in_time(at) && icmp.netns != Some(netns));
    // An `ip rule` before that of the local table may refuse what the namespace itself should take.
    let first = || drops(case).find(|(_, drop)| refused(drop)).map(|(at, _)| at);
    let has_it = last.is_some_and(|(time, it)| {
        it.netns == Some(netns) && it.link_with(target).is_some() && first().is_some_and(|at| at <= time)
    });
    if has_it || is_answered || !drops(case).all(|(at, drop)| is_of_it(drop) || !in_time(at)) {
        return None;
    }
    let here = last.filter(|(_, it)| it.netns == Some(netns) && it.link_with(target).is_none());
    let link = here.and_then(|(_, it)| it.links.iter().find(|link| Some(link.ifindex) == ifindex && link.up));
    let read = here.zip(link).map(|((time, _), link)| (no_address(case, time), link.name.as_str()));
    let dropped = drops(case).find(|(at, drop)| refused(drop) && in_time(*at));
    let device = dropped.and_then(|(_, drop)| Some(drop.device.as_ref()?.name.as_str()));
    let name = read.as_ref().map(|(_, name)| *name).or(device)?;
    let place = in_namespace(case, Some(netns));
    let summary = format!("{name}{place} has lost the address {target}: its kernel takes no packets for it any more");
    let text = "Delete the pod, so that its sandbox is made again. Find what took the address away: the DEL of a CNI plugin for an earlier sandbox, or a process in the pod";
    let show = run_in(case, Some(netns), format!("ip addr show dev {}", shell::link(name)));
    let fix = Remediation::from(text).run([show, runtime_log()]).run(delete(case));
    let evidence = dropped.map(|(at, drop)| of_drop(at, drop)).into_iter().chain(read.map(|(row, _)| row)).collect();
    Some(Finding::likely(Cause::PodLinkDown, evidence, summary, fix).rests_on_lost_packet())
}

#[cfg(test)]
mod tests {
    use super::super::tests::eth0;
    use tracer_core::testing::*;

    /// `ip addr del` in the pod, or a CNI plugin's DEL for an earlier sandbox.
    #[test]
    fn a_link_that_has_lost_the_address_is_named() {
        let with = |listens: bool, had: bool, answered_ms_ago: u64, netns: Netns| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
            if listens {
                stream.listens(POD, 8080, true);
            }
            if had {
                stream.connect().wait_ms(200).inspection(|reading| reading.links = vec![eth0(true, true)]);
                stream.established().answers(200).wait_ms(5_000).again(8);
            }
            stream.connect().drop_on(SYN, "IP_INADDRERRORS", netns, Some(device(2, "eth0"))).wait_ms(200).inspection(
                |reading| {
                    reading.netns = Some(netns);
                    reading.links = vec![LinkState { addrs: vec![], prefixes: vec![], ..eth0(true, true) }];
                    let confirmed_ms_ago = Some(answered_ms_ago);
                    reading.neighbour = Some(NeighbourState { confirmed_ms_ago, ..neighbour("reachable") });
                },
            );
            stream.gives_up().settles().last_verdict()
        };
        let reported = |had, answered_ms_ago, netns| with(false, had, answered_ms_ago, netns);
        assert_eq!(with(true, false, 5_000, POD).cause.name(), "pod_link_down", "no stack of its own listens there");
        let lost = reported(true, 5_000, POD);
        assert_eq!((lost.cause.name(), lost.confidence), ("pod_link_down", Confidence::Likely));
        assert_has(&lost.summary, &["eth0 in ", " has lost the address 10.88.0.2"]);
        assert_has(&lost.remediation, &["Delete the pod", "ip addr show dev eth0"]);
        assert_ne!(reported(false, 5_000, POD).cause.name(), "pod_link_down", "it may never have had it (gVisor)");
        assert_ne!(reported(true, 100, POD).cause.name(), "pod_link_down", "somebody answers for it");
        assert_ne!(reported(true, 5_000, Netns(900)).cause.name(), "pod_link_down", "another namespace");
    }

    /// Seen on 6.18: a rule of priority 1 led the marked SYN past the local table, to a blackhole.
    #[test]
    fn an_address_that_is_read_after_the_drop_is_not_lost() {
        let cause = |read_ms: u64| {
            let mut stream = Stream::new().http_readiness().pod_in(POD).listens(POD, 8080, true).connect().clone();
            let dropped =
                |stream: &mut Stream| _ = stream.drop_on(SYN, "IP_INADDRERRORS", POD, Some(device(2, "eth0")));
            if read_ms == 0 {
                stream.inspection(|reading| reading.links = vec![eth0(true, true)]).wait_ms(5);
            }
            dropped(&mut stream);
            if read_ms > 0 {
                stream.wait_ms(read_ms).inspection(|reading| reading.links = vec![eth0(true, true)]);
            }
            stream.gives_up().settles().last_verdict().cause.name()
        };
        assert_eq!((cause(0), cause(200)), ("pod_link_down", "unexplained"));
    }
}
