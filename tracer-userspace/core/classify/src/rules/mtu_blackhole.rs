//! Full-size segments do not get through.

use super::*;
use tracer_case::links::{is_at_other_end, show_other_end};
use tracer_model::event::{Flow, Icmp, PacketDrop, Retransmit, TcpState};

/// A segment with at least this much payload, in bytes, is large. TCP's default segment size is 536 (RFC 9293 3.7.1).
const LARGE_PAYLOAD: u32 = 1000;
/// This many retransmissions without an acknowledgement are more than a chance loss.
const MIN_RETRANSMITS: usize = 2;

pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    case.attempt.established?;
    too_big(case).or_else(|| at_other_end(case)).or_else(|| sent_again(case))
}

/// A packet of this attempt was too big for a device, and the attempt failed. If the request was acknowledged, its
/// sender learned of the smaller MTU.
fn too_big(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let since = case.matched.unanswered_since()?;
    let is_lost = |at: u64, flow: Flow| at >= since && !(attempt.leads_out(flow) && attempt.request_taken());
    let dropped = |at: u64, d: &PacketDrop| d.reason.as_deref() == Some("PKT_TOO_BIG") && is_lost(at, d.flow);
    let refused = |at: u64, i: &Icmp| is_too_big(i) && is_lost(at, i.flow);
    let drop = attempt.drops().find(|(t, d)| dropped(*t, d));
    let icmp = attempt.icmp().find(|(t, i)| refused(*t, i));
    let of_drop_place = drop.map(|(_, d)| (d.flow, d.netns));
    let (flow, netns) = of_drop_place.or_else(|| icmp.map(|(_, i)| (i.flow, i.netns)))?;
    let evidence = drop.map(|(t, d)| of_drop(t, d)).into_iter().chain(icmp.map(|(t, i)| of_icmp(t, i))).collect();
    let what = if attempt.leads_out(flow) { "the request" } else { "the target's answer" };
    let place = in_namespace(case, netns);
    Some(finding(case, evidence, &format!("a packet of {what} was too big for its next link{place}")))
}

/// The other end of a link took no segment with data, though small packets passed in the same direction. The kernel
/// neither splits such a packet nor reports it (`is_skb_forwardable`, include/linux/netdevice.h).
fn at_other_end(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let ((ended, _), since) = (attempt.ended?, case.matched.unanswered_since()?);
    let refused =
        |at: u64, d: &PacketDrop| at >= since && at <= ended && is_at_other_end(case, d) && d.flags.has_data();
    let (time, drop, device) =
        attempt.drops().find_map(|(at, d)| Some((at, d, d.device.as_ref()?)).filter(|_| refused(at, d)))?;
    let is_request = attempt.leads_out(drop.flow);
    // The handshake passed before, and the acknowledgement of the prober's FIN after the segments of an answer.
    let is_large = |r: &Retransmit| !r.by_target && r.payload.is_some_and(|n| n >= LARGE_PAYLOAD);
    let passed = match is_request {
        true => !attempt.request_taken() && attempt.retransmitted().any(|(_, r)| is_large(r)),
        false => attempt.close_acknowledged().is_some(),
    };
    let is_only = attempt.drops().all(|(at, d)| at > ended || is_at_other_end(case, d) || is_deferred(attempt, d));
    if !passed || !is_only {
        return None;
    }
    let (what, name) = (if is_request { "the request" } else { "the target's answer" }, &device.name);
    let (dst, place) = (attempt.flow.dst, in_namespace(case, drop.netns));
    let summary = format!(
        "the handshake with {dst} got through, but the other end of {name}{place} does not take the segments of {what}: its MTU is smaller"
    );
    let text = format!(
        "Compare the MTU of {name} and of the other end of that link (its number follows the @ in the name), and set both to the same value. A CNI sets both when it makes the pod: find what changed one"
    );
    let show = [run_in(case, drop.netns, format!("ip link show dev {}", shell::link(name)))];
    let fix = Remediation::from(text).run(show).run(show_other_end(case, drop));
    Some(Finding::likely(Cause::MtuBlackhole, vec![of_drop(time, drop)], summary, fix).rests_on_lost_packet())
}

/// Large segments were sent again several times: by the prober (its request) or by the target (its answer). An answer is
/// lost with all that the target sends if the way back is broken. So the target must acknowledge the prober's FIN.
fn sent_again(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let (time, last, times) = lost_segments(case)?;
    let acknowledged = attempt.close_acknowledged().filter(|_| last.by_target);
    let (content, small_ones) = match (last.by_target, acknowledged) {
        (false, _) => ("the request", ""),
        (true, Some(_)) => ("the target's answer", ", and small ones do"),
        (true, None) => return None,
    };
    let payload = last.payload.unwrap_or_default();
    let text =
        format!("segments of {content} ({payload} bytes) were sent again {times} times without an acknowledgement");
    let mut evidence =
        vec![evidence_of(Hook::TcpRetransmit.name(), time, text, json!({ "payload": payload, "times": times }))];
    evidence.extend(attempt.ended.zip(attempt.last.as_ref()).map(|((ended, _), state)| of_state(ended, state)));
    evidence.extend(acknowledged.map(|(at, state)| of_state(at, state)));
    let found =
        finding(case, evidence, &format!("large segments of {content} ({payload} bytes) do not arrive{small_ones}"));
    // Nothing shows that small segments of a request still get through.
    let confidence = if last.by_target { Confidence::Likely } else { Confidence::Possible };
    Some(found.with_confidence(confidence).resting_on(&[Hook::KfreeSkb]))
}

/// Large segments of the answer are lost, and whether small ones arrive shows only after the end.
pub(super) fn waits_for_close(case: &Case<'_>) -> bool {
    let has_closed = case.attempt.last.as_ref().is_some_and(|last| last.new == TcpState::FinWait1);
    let is_answer = || lost_segments(case).is_some_and(|(_, last, _)| last.by_target);
    let is_refused = |d: &PacketDrop| is_at_other_end(case, d) && d.flags.has_data() && !case.attempt.leads_out(d.flow);
    let is_lost = || is_answer() || case.attempt.drops().any(|(_, drop)| is_refused(drop));
    has_closed && case.attempt.close_acknowledged().is_none() && is_lost()
}

/// The last large segment that was sent again without an acknowledgement, with its time and how many there were, if
/// nothing else explains the loss.
fn lost_segments<'a>(case: &Case<'a>) -> Option<(u64, &'a Retransmit, usize)> {
    let attempt = case.attempt;
    let ((ended, _), since) = (attempt.ended?, case.matched.unanswered_since()?);
    let is_lost = |at: u64, r: &Retransmit| at >= since && (r.by_target || !attempt.request_taken());
    let is_large = |r: &Retransmit| r.payload.is_some_and(|n| n >= LARGE_PAYLOAD);
    let large: Vec<_> = attempt.retransmitted().filter(|(at, r)| is_large(r) && is_lost(*at, r)).collect();
    let (time, last) = large.last().copied()?;
    let has_other_cause = |d: &PacketDrop| !d.flags.is_rst() && !is_deferred(attempt, d);
    // A request for another link-layer address is lost, whatever its size.
    let is_stray = || {
        !last.by_target
            && attempt.for_other_hosts.iter().any(|(at, d)| (since..=ended).contains(at) && d.flags.has_data())
    };
    let is_explained = attempt.drops().any(|(at, d)| at <= ended && has_other_cause(d)) || is_stray();
    (large.len() >= MIN_RETRANSMITS && !is_explained).then_some((time, last, large.len()))
}

/// ICMP fragmentation needed (RFC 1191), ICMPv6 packet too big (RFC 8201).
const fn is_too_big(icmp: &Icmp) -> bool {
    if icmp.v6 { icmp.icmp_type == 2 } else { icmp.icmp_type == 3 && icmp.code == 4 }
}

fn finding(case: &Case<'_>, evidence: Vec<Evidence>, what: &str) -> Finding {
    let dst = case.attempt.flow.dst;
    let summary = format!("the handshake with {dst} got through, but {what}; the sender did not learn of it");
    let error = if dst.is_ipv4() { "ICMP `fragmentation needed`" } else { "ICMPv6 `packet too big`" };
    let remediation = Remediation::from(format!(
        "Set the CNI's MTU to that of the smallest link between the node and {}, less the encapsulation. Let {error} pass",
        dst.ip()
    ))
    .run([Command::on_node("ip link"), Command::on_node(format!("tracepath {}", dst.ip()))]);
    Finding::failure(Cause::MtuBlackhole, evidence, summary, remediation)
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    fn gives_up(stream: &mut Stream) -> Vec<&'static str> {
        closes(stream, (100, 101, 0))
    }

    fn closes(stream: &mut Stream, bytes: (u64, u64, u64)) -> Vec<&'static str> {
        stream.wait_ms(1000).closes(bytes).wait_ms(40).close_acknowledged().causes()
    }

    #[test]
    fn a_packet_that_was_too_big_is_proof_once_the_attempt_failed() {
        let mut stream = Stream::new().connect().established().drop(TcpFlags(0x10), "PKT_TOO_BIG", NODE).clone();
        assert_eq!(closes(&mut stream, (1800, 1, 0)), ["mtu_blackhole"]);
        assert_has(&stream.verdict().remediation, &["Let ICMP `fragmentation needed` pass"]);
        let mut six = Stream::to("[fd00::2]:8080");
        six.connect().established().drop(TcpFlags(0x10), "PKT_TOO_BIG", NODE);
        assert_eq!(closes(&mut six, (1800, 1, 0)), ["mtu_blackhole"]);
        assert_has(&six.verdict().remediation, &["Let ICMPv6 `packet too big` pass"]);
        let mut answer = Stream::new();
        answer.connect().established().drop_with(TcpFlags(0x10), NODE, |drop| {
            (drop.reason, drop.flow) = (Some("PKT_TOO_BIG".into()), drop.flow.reversed());
        });
        assert_eq!(gives_up(&mut answer), ["mtu_blackhole"]);
    }

    /// The sender learned of the smaller MTU, sent the request again in smaller segments, and waited for an answer.
    #[test]
    fn a_request_that_was_acknowledged_got_through() {
        let mut smaller = Stream::new();
        smaller.connect().established().drop(TcpFlags(0x18), "PKT_TOO_BIG", NODE).icmp(3, 4).sent_again(1400, false);
        assert_eq!(closes(&mut smaller, (1800 + 1400, 1801, 0)), ["slow_response"]);
        let again = |acked| {
            let mut stream = Stream::new();
            stream.connect().established().sent_again(1400, false).sent_again(1400, false);
            closes(&mut stream, (1800 + 2 * 1400, acked, 0))
        };
        assert_eq!(again(1801), ["slow_response"]);
        assert_eq!(again(401), ["mtu_blackhole"]);
    }

    /// The server writes its head and its body apart. The head arrives.
    #[test]
    fn the_rest_of_an_answer_that_does_not_arrive_is_lost() {
        let decided = |probed: fn(&mut Stream) -> &mut Stream, bytes: u32, quiet_ms: u64| {
            let mut stream = Stream::new();
            probed(&mut stream).connect().established().answer(AnswerKind::Http, Some(200));
            stream.wait_ms(200).sent_again(bytes, true).wait_ms(400).sent_again(bytes, true).wait_ms(405);
            stream.closes_quiet((100, 101, 80), quiet_ms * 1_000_000).close_acknowledged().settles();
            stream.all_decided().pop()
        };
        let lost = ("mtu_blackhole", Confidence::Likely);
        assert_eq!(decided(Stream::http_readiness, 1448, 1_000), Some(lost));
        assert_eq!(decided(Stream::http_readiness, 1448, 300), None, "the second one got through");
        assert_eq!(decided(|it| it.http_readiness_on(81), 1448, 1_000), None, "no probe is known");
        let unclear = Some(("unexplained", Confidence::Possible));
        assert_eq!(decided(Stream::http_readiness, 100, 1_000), unclear);
        let mut too_big = Stream::new();
        too_big.http_readiness().connect().established().answer(AnswerKind::Http, Some(200));
        too_big.drop_back(TcpFlags(0x10), "PKT_TOO_BIG").wait_ms(200).sent_again(1448, true);
        too_big.drop_back(TcpFlags(0x10), "PKT_TOO_BIG").wait_ms(805);
        let mut reported = too_big.clone();
        assert_eq!(too_big.closes_quiet((100, 101, 80), 1_005_000_000).decided(), lost);
        reported.closes_quiet((100, 101, 80), 1_005_000_000).kubelet(ProbeOutput::TimeoutInBody).settles();
        assert_eq!(reported.last_decided(), ("mtu_blackhole", Confidence::Proven));
    }

    #[test]
    fn only_large_retransmitted_segments_are_an_mtu_blackhole() {
        let mut large = Stream::new().connect().established().sent_again(1448, true).sent_again(1448, true).clone();
        assert_eq!(gives_up(&mut large), ["mtu_blackhole"]);
        let mut small = Stream::new().connect().established().sent_again(100, true).sent_again(100, true).clone();
        assert_eq!(gives_up(&mut small), ["unexplained"]);
    }

    /// The sender's neighbour entry is wrong: small segments of the request do not arrive either.
    #[test]
    fn a_request_in_frames_for_another_host_is_no_mtu_blackhole() {
        let decided = |strays: bool| {
            let mut stream = Stream::new().connect().established().clone();
            if strays {
                stream.drop(TcpFlags(0x18), "OTHERHOST", Netns(900));
            }
            stream.sent_again(1448, false).sent_again(1448, false);
            closes(&mut stream, (1800 + 2 * 1400, 401, 0));
            stream.last_decided()
        };
        assert_eq!(decided(false), ("mtu_blackhole", Confidence::Possible));
        assert_eq!(decided(true), ("unexplained", Confidence::Possible));
    }

    /// The pod's way back is broken: its acknowledgement of the FIN is lost with its answer.
    #[test]
    fn an_answer_that_is_lost_with_all_that_the_target_sends_is_unexplained() {
        let closed = |ms: u64, acknowledged: bool| {
            let mut stream = Stream::new();
            stream.connect().established().sent_again(1448, true).sent_again(1448, true).wait_ms(1_000);
            stream.closes((100, 101, 0)).wait_ms(ms).tick();
            if acknowledged {
                stream.close_acknowledged();
            }
            stream.verdicts_before_the_end().iter().map(|it| it.verdict.cause.name()).collect::<Vec<_>>()
        };
        assert!(closed(490, false).is_empty(), "the acknowledgement may still come");
        assert_eq!(closed(490, true), ["mtu_blackhole"]);
        assert_eq!(closed(500, false), ["unexplained"]);
        let mut refused = Stream::new();
        refused.connect().established().sent_again(1448, true).sent_again(1448, true).wait_ms(1_000);
        refused.closes((100, 101, 0)).reset_received(TcpState::FinWait1, 0);
        refused.state(TcpState::FinWait1, TcpState::Close, libc::ECONNRESET, (100, 101, 0));
        assert_eq!(refused.settles().causes(), ["mtu_blackhole"], "the server had closed before");
        assert_eq!(closed(500, true), ["unexplained", "mtu_blackhole"]);
    }

    /// Jumbo frames on one end of a veth only.
    #[test]
    fn the_other_end_of_a_veth_with_a_smaller_mtu_takes_only_small_packets() {
        let refused_in = |flags, netns, place: &str, payload| {
            let mut stream = Stream::new();
            stream.connect().established().drop_with(TcpFlags(flags), netns, |drop| {
                (drop.reason, drop.location) = (Some("NOT_SPECIFIED".into()), Some(place.into()));
                drop.device = Some(device(2, "eth0"));
                drop.flow = if netns == POD { drop.flow.reversed() } else { drop.flow };
            });
            stream.sent_again(payload, netns == POD);
            let causes = closes(&mut stream, if netns == POD { (100, 101, 0) } else { (100, 1, 0) });
            (causes, stream.last_decided().1, stream.verdict())
        };
        for netns in [POD, NODE] {
            let (causes, confidence, verdict) = refused_in(0x18, netns, "__dev_forward_skb2", 1448);
            assert_eq!((causes, confidence), (vec!["mtu_blackhole"], Confidence::Likely), "{}", verdict.summary);
            assert_has(&verdict.summary, &["the other end of eth0", "its MTU is smaller"]);
            assert_has(&verdict.remediation, &["ip link show dev eth0"]);
        }
        let (causes, _, small) = refused_in(0x18, NODE, "__dev_forward_skb2", 100);
        assert_eq!(causes, ["unexplained"]);
        assert_has(&small.summary, &["it is down, or its MTU is smaller than the packet"]);
        assert_eq!(refused_in(0x18, POD, "tcp_v4_rcv", 1448).0, ["unexplained"]);
        assert_eq!(refused_in(0x10, POD, "__dev_forward_skb2", 1448).0, ["unexplained"], "a bare acknowledgement");
    }

    /// `macvlan_queue_xmit` (drivers/net/macvlan.c) forwards the packet to the parent.
    #[test]
    fn a_macvlan_has_no_other_end() {
        let refused_on = |kind: Option<&str>| {
            let parent = kind.map(|kind| ParentLink { kind: kind.into(), ifindex: 3, is_of_prober: false });
            let mut stream = Stream::new();
            stream.connect().established().inspection(|reading| {
                reading.links = vec![LinkState { parent, peer_ifindex: Some(3), ..link(2, "eth0", &["10.88.0.2"]) }];
            });
            stream.drop_with(TcpFlags(0x18), POD, |drop| {
                drop.location = Some("__dev_forward_skb2".into());
                (drop.device, drop.flow) = (Some(device(2, "eth0")), drop.flow.reversed());
            });
            closes(stream.sent_again(1448, true), (100, 101, 0));
            stream.verdict().summary
        };
        assert_has(&refused_on(None), &["the other end of eth0", "its MTU is smaller"]);
        assert_lacks(&refused_on(Some("macvlan")), &["the other end"]);
    }

    /// With TCP_DEFER_ACCEPT, the listener drops the bare acknowledgement that ends the handshake.
    #[test]
    fn an_acknowledgement_that_the_listener_does_not_need_is_no_other_cause() {
        let decided = |flags, place: &str| {
            let mut stream = Stream::new();
            stream.connect().established().drop_with(flags, POD, |drop| drop.location = Some(place.into()));
            stream.sent_again(1448, true).sent_again(1448, true);
            gives_up(&mut stream)
        };
        assert_eq!(decided(TcpFlags(0x10), "tcp_v4_rcv"), ["mtu_blackhole"]);
        assert_eq!(decided(TcpFlags(0x10), "ip_rcv_finish_core"), ["unexplained"]);
        assert_eq!(decided(TcpFlags(0x18), "tcp_v4_rcv"), ["unexplained"]);
    }
}
