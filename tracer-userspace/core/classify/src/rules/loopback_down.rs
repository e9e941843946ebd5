//! `lo` of the attempt's namespace is down, and the route to the target leads over it.

use super::*;
use tracer_case::culprit::{self, culprit_of};
use tracer_case::netfilter::is_needed;
use tracer_model::event::{Netns, PacketDrop, process_name};

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let netns = case.attempt.netns?;
    dropped(case, netns).or_else(|| unanswered(case, netns))
}

/// A packet that this attempt needed was dropped on a loopback device that is down: a SYN, the request or its answer.
fn dropped(case: &Case<'_>, netns: Netns) -> Option<Finding> {
    let needed = |(time, d): &(u64, &PacketDrop)| is_unanswered(case, *time) && is_needed(case, *time, d);
    let on_lo = |d: &PacketDrop| d.device.as_ref().is_some_and(|dev| dev.loopback && !dev.up);
    let (time, drop) = drops(case).filter(needed).find(|(_, d)| d.netns == Some(netns) && on_lo(d))?;
    Some(finding(case, netns, of_drop(time, drop), Confidence::Proven))
}

/// By the link table `lo` is down. The target is an address of this namespace, and no answer came.
fn unanswered(case: &Case<'_>, netns: Netns) -> Option<Finding> {
    let attempt = case.attempt;
    let lo = case.node.links.loopback(netns)?;
    let silent = attempt.reset_received().is_none() && drops(case).next().is_none();
    let (ended, _) = attempt.ended.filter(|_| attempt.established.is_none())?;
    if lo.up || !silent || !case.settled || !case.node.owns(netns, attempt.flow.dst.ip()) {
        return None;
    }
    let text = format!("link {} of the attempt's namespace is down", lo.name);
    let evidence =
        evidence_of("rtnetlink", ended, text, json!({ "ifindex": lo.ifindex, "name": lo.name, "up": lo.up }));
    Some(finding(case, netns, evidence, Confidence::Likely))
}

fn finding(case: &Case<'_>, netns: Netns, first: Evidence, confidence: Confidence) -> Finding {
    let decided_at = first.time_boot_ns;
    let mut evidence = vec![first];
    let (ifindex, lo) = case.node.links.loopback(netns).map_or((1, "lo"), |l| (l.ifindex, l.name.as_str()));
    let change = case.node.links.down(netns, ifindex);
    let culprit = change.and_then(|(time, change)| culprit_of(case.node, *time, change));
    evidence.splice(0..0, change.map(|(time, change)| culprit::evidence(*time, change)));
    let by = culprit.as_ref().map(describe).unwrap_or_default();
    let owner = if case.node.netns() == Some(netns) { "this node" } else { "this namespace" };
    let (dst, place) = (case.attempt.flow.dst, in_namespace(case, Some(netns)));
    let summary = format!("{lo}{place} is down{by}; {dst} is an address of {owner} and is reached over {lo}");
    let blame = change.zip(culprit.as_ref()).map(|((_, change), culprit)| culprit::fix(case.node, change, culprit));
    let text = format!("Set {lo} up{place}{}", blame.unwrap_or_default());
    let up = run_in(case, Some(netns), format!("ip link set {} up", shell::link(lo)));
    let remediation = Remediation::from(text).run([up]);
    let found = Finding::failure(Cause::LoopbackDown, evidence, summary, remediation)
        .with_confidence(confidence)
        .with_culprit(culprit)
        .rests_on_lost_packet();
    Finding { decided_at, ..found }
}

fn describe(culprit: &Culprit) -> String {
    let parent =
        culprit.ancestors.first().map(|a| format!(", child of {}", process_name(&a.comm, a.pid))).unwrap_or_default();
    let path = culprit
        .netns_path
        .as_ref()
        .map(|p| format!(", which entered the namespace after opening {p}"))
        .unwrap_or_default();
    format!(", set down by {}{parent}{path}", culprit::name(Some(culprit)))
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    #[test]
    fn the_owner_of_the_address_is_reported() {
        let summary = |netns| {
            let mut stream = Stream::to("127.0.0.1:4").links(true, &["10.88.0.1"]).connect().clone();
            for reading in &mut stream.observations {
                if let ObservationKind::Connect(connect) = &mut reading.kind {
                    connect.netns = netns;
                }
            }
            stream.drop_on(SYN, "QDISC_DROP", netns, lo(false)).verdict().summary.clone()
        };
        assert_has(&summary(NODE), &["127.0.0.1:4 is an address of this node"]);
        assert_has(&summary(POD), &["127.0.0.1:4 is an address of this namespace"]);
    }

    #[test]
    fn lo_that_is_up_or_in_another_namespace_is_not_the_cause() {
        let up = Stream::new().connect().drop_on(SYN, "QDISC_DROP", NODE, lo(true)).gives_up().clone();
        assert_eq!(up.causes(), ["unexplained"]);
        let pod = Stream::new().connect().drop_on(SYN, "QDISC_DROP", POD, lo(false)).gives_up().clone();
        assert_eq!(pod.causes(), ["unexplained"]);
    }

    /// An answer of the node's own server, while the attempt waits for it.
    fn answer_dropped(up: bool, end: fn(&mut Stream) -> &mut Stream) -> Vec<(&'static str, Confidence)> {
        let mut stream = Stream::to("10.88.0.1:10256").links(true, &["10.88.0.1"]).connect().established().clone();
        stream.wait_ms(500).link_set(NODE, 1, "lo", up).wait_ms(100);
        stream.drop_back(TcpFlags(0x18), "QDISC_DROP");
        stream.last_drop().device = lo(up);
        end(stream.wait_ms(400)).settles();
        let culprits = stream.verdicts().iter().filter(|it| it.culprit.is_some()).count();
        assert_eq!(culprits, usize::from(stream.causes().contains(&"loopback_down")));
        stream.all_decided()
    }

    #[test]
    fn an_answer_that_is_dropped_on_lo_is_lost() {
        let (found, not) = (("loopback_down", Confidence::Proven), ("unexplained", Confidence::Possible));
        assert_eq!(answer_dropped(false, |stream| stream.closes((100, 101, 0))), [found]);
        assert_eq!(answer_dropped(true, |stream| stream.closes((100, 101, 0))), [not], "a full queue");
        assert_eq!(answer_dropped(false, |stream| stream.closes((100, 101, 200))), [], "it was sent again");
    }

    #[test]
    fn the_link_table_alone_makes_it_likely() {
        let mut stream = Stream::to("10.88.0.1:10256").links(false, &["10.88.0.1"]).clone();
        assert_eq!(stream.connect().gives_up().decided(), ("loopback_down", Confidence::Likely));
    }
}
