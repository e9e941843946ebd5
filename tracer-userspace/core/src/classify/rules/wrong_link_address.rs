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
    // An answer after the end is late, and the next attempt may have replaced the inspection that `is_copy` needs.
    let in_time = |time: u64| attempt.ended.is_none_or(|(ended, _)| time <= ended);
    let mut frames = attempt.for_other_hosts.iter().filter(|(time, _)| in_time(*time));
    let (time, drop) = frames.find(|(_, drop)| is_at_destination(case, drop) && !is_copy(case, drop))?;
    let (to, place, device) = (drop.flow.dst.ip(), in_namespace(case, drop.netns), device(drop));
    let summary = format!(
        "the {} {} arrived{place} in a frame for another link-layer address than that of {device}: the sender's neighbour entry of {to} is wrong",
        drop.flags.name(),
        drop.flow
    );
    let (seen, fix) = (vec![of_drop(*time, drop)], fix(case, drop, &device));
    Some(Finding::likely(Cause::NeighbourFailure, seen, summary, fix).until_answered())
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

/// The answer arrived on another device than the one that the node's route to the target leads over. A process that
/// forwards frames itself (AF_PACKET) reads them there, and the kernel gets a copy.
fn is_copy(case: &Case<'_>, drop: &PacketDrop) -> bool {
    let route = inspected(case).and_then(|(_, seen)| Some(seen.neighbour.as_ref()?.ifindex));
    let elsewhere = drop.device.as_ref().zip(route).is_some_and(|(device, route)| device.ifindex != route);
    elsewhere && drop.netns == case.attempt.netns
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
    use crate::testing::*;

    #[test]
    fn an_answer_for_another_link_address_is_a_wrong_entry() {
        let verdict = Stream::new().connect().drop(SYN_ACK, "OTHERHOST", NODE).syn_again().gives_up().verdict();
        assert_eq!(verdict.cause, Cause::NeighbourFailure);
        assert_has(&verdict.summary, &["another link-layer address"]);
    }

    /// A forwarder in userspace reads the frames of the pod's link and delays them.
    #[test]
    fn a_copy_on_another_device_than_that_of_the_route_proves_nothing() {
        let cause = |ifindex| {
            let device = Device { ifindex, name: "veth1".into(), up: true, loopback: false };
            let mut stream = Stream::new();
            stream.connect().wait_ms(200).inspection(|seen| seen.neighbour = Some(neighbour("reachable")));
            stream.drop_on(SYN_ACK, "OTHERHOST", NODE, Some(device)).syn_again().gives_up().verdict().cause
        };
        assert_eq!((cause(2), cause(3)), (Cause::NeighbourFailure, Cause::Unexplained));
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
