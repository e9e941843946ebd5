//! A frame of the handshake reached the right host, but its link-layer address is not that host's. The sender's
//! neighbour entry is old.

use super::*;
use tracer_model::event::PacketDrop;

/// The kernel drops such a frame as one for another host (`ip_rcv_core`, net/ipv4/ip_input.c, OTHERHOST). It also drops
/// the copies that a bridge floods, but not in the namespace that has the packet's address.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let attempt = case.attempt;
    let has_waited = attempt.retransmits.0 > 0 || attempt.ended.is_some();
    if !case.settled || !has_waited || !in_handshake(case) || !silent(case) {
        return None;
    }
    // An answer after the end is late.
    let in_time = |time: u64| attempt.ended.is_none_or(|(ended, _)| time <= ended);
    let mut frames = attempt.for_other_hosts.iter().filter(|(time, _)| in_time(*time));
    let (time, drop) = frames.find(|(_, drop)| is_at_destination(case, drop) && !may_be_copy(case, drop))?;
    let (to, place, device) = (drop.flow.dst.ip(), in_namespace(case, drop.netns), device(drop));
    let summary = format!(
        "the {} {} arrived{place} in a frame for another link-layer address than that of {device}: the sender's neighbour entry of {to} is wrong",
        drop.flags.name(),
        drop.flow
    );
    let (evidence, fix) = (vec![of_drop(*time, drop)], fix(case, drop, &device));
    Some(Finding::likely(Cause::NeighbourFailure, evidence, summary, fix).until_answered())
}

/// The namespace has the address that the packet was sent to.
fn is_at_destination(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let (Some(from), target) = (case.attempt.netns, case.attempt.flow.dst) else { return false };
    let to = match drop.flow {
        back if back.src == target => Some(from),
        there if there.dst == target => case.node.netns_of_addr(from, target.ip()),
        _ => None,
    };
    drop.netns.is_some() && drop.netns == to
}

/// The answer arrived on another device than the one that the node's route to the target leads over, or one of the two
/// is not known. A process that forwards frames itself (AF_PACKET) reads them there, and the kernel gets a copy.
fn may_be_copy(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let device = drop.device.as_ref().map(|device| device.ifindex);
    let mut routes = inspections(case).filter_map(|(_, reading)| Some(reading.neighbour.as_ref()?.ifindex));
    drop.netns == case.attempt.netns && !routes.any(|route| device == Some(route))
}

fn device(drop: &PacketDrop) -> String {
    drop.device.as_ref().map_or_else(|| "its link".to_owned(), |device| device.name.clone())
}

fn fix(case: &Case<'_>, drop: &PacketDrop, device: &str) -> Remediation {
    let show = drop.device.as_ref().map_or_else(String::new, |_| format!(" {}", shell::link(device)));
    Remediation::from(format!(
        "Compare the link's address with that of {to} in the sender's `ip neigh`. Delete the entry, or restart the CNI's \
         agent that wrote it. Where systemd gives veths another address after the CNI (MACAddressPolicy=persistent), set \
         MACAddressPolicy=none for them in a .link file of /etc/systemd/network",
        to = drop.flow.dst.ip()
    ))
    .run([run_in(case, drop.netns, format!("ip link show{show}"))])
}

#[cfg(test)]
mod tests {
    use tracer_core::testing::*;

    /// A forwarder in userspace reads the frames of the pod's link and delays them.
    #[test]
    fn a_copy_that_may_be_of_another_device_than_that_of_the_route_proves_nothing() {
        let verdict = |ifindex: Option<u32>, entry: Option<NeighbourState>| {
            let device = |ifindex| device(ifindex, "veth1");
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|reading| reading.neighbour = entry);
            stream.drop_on(SYN_ACK, "OTHERHOST", NODE, ifindex.map(device)).syn_again().gives_up().verdict()
        };
        let route = Some(neighbour("reachable"));
        let wrong = verdict(Some(2), route.clone());
        assert_eq!(wrong.cause, Cause::NeighbourFailure);
        assert_has(&wrong.summary, &["another link-layer address than that of veth1"]);
        for (ifindex, route) in [(Some(3), route.clone()), (None, route), (Some(2), None)] {
            assert_eq!(verdict(ifindex, route).cause, Cause::Unexplained);
        }
    }

    #[test]
    fn the_route_is_known_from_an_earlier_inspection() {
        let mut stream = Stream::new().connect().wait_ms(200).clone();
        stream.inspection(|reading| reading.neighbour = Some(neighbour("reachable"))).syn_again().wait_ms(200);
        stream.inspection(|_| ()).drop_on(SYN_ACK, "OTHERHOST", NODE, Some(device(2, "veth1"))).gives_up();
        assert_eq!(stream.causes(), ["neighbour_failure"]);
    }

    #[test]
    fn a_syn_for_another_link_address_is_a_wrong_entry() {
        let mut stream = Stream::new().http_readiness().pod_in(POD).clone();
        let verdict = stream.connect().drop(SYN, "OTHERHOST", POD).syn_again().gives_up().verdict();
        assert_eq!(verdict.cause, Cause::NeighbourFailure);
    }

    #[test]
    fn a_frame_after_the_end_does_not_count() {
        let mut stream = Stream::new();
        stream.connect().syn_again().gives_up().wait_ms(10).drop(SYN_ACK, "OTHERHOST", NODE).settles();
        assert!(!stream.causes().contains(&"neighbour_failure"));
    }

    #[test]
    fn a_flooded_copy_in_another_pod_does_not_count() {
        let stream = Stream::new().connect().drop(SYN_ACK, "OTHERHOST", POD).syn_again().gives_up().clone();
        assert_eq!(stream.causes(), ["unexplained"]);
    }

    #[test]
    fn an_established_handshake_is_no_neighbour_failure() {
        assert!(Stream::new().connect().drop(SYN_ACK, "OTHERHOST", NODE).established().causes().is_empty());
    }
}
