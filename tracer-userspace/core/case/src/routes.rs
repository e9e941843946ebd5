//! The routes between the prober's namespace and the pod.

use std::net::IpAddr;

use crate::case::Case;
use tracer_model::event::StrayRoute;

/// The node's end of the link behind which the pod is, as the last inspection found it.
pub fn own_end(case: &Case<'_>) -> Option<u32> {
    let mut readings = case.node.targets.inspections(case.attempt.netns?, case.attempt.flow.dst);
    readings.find_map(|(_, reading)| reading.link_with(case.attempt.flow.dst.ip())?.peer_ifindex)
}

/// An attempt began after that route was read, and succeeded: the gateway there can lead back to the prober.
pub fn has_worked(case: &Case<'_>, stray: &StrayRoute) -> bool {
    let (from, dst) = (case.attempt.netns, case.attempt.flow.dst);
    let mut readings = from.into_iter().flat_map(|from| case.node.targets.inspections(from, dst));
    readings.any(|(at, it)| it.stray_way_back.as_ref() == Some(stray) && case.node.has_succeeded_since(dst, at))
}

/// No link of the attempt's namespace has a loopback address of the target's family, and `lo` is up.
pub fn lacks_loopback(case: &Case<'_>) -> bool {
    let dst = case.attempt.flow.dst.ip();
    let Some(links) = case.attempt.netns.and_then(|netns| case.node.links.get(&netns)) else { return false };
    let is_own = |addr: &IpAddr| addr.is_loopback() && addr.is_ipv4() == dst.is_ipv4();
    dst.is_loopback()
        && links.iter().any(|link| link.loopback && link.up)
        && !links.iter().any(|link| link.addrs.iter().any(is_own))
}
