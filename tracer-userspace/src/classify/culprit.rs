//! Who changed a link, and by which path it came into the namespace it hit.

use crate::correlate::node::Node;
use crate::enrich::netns_ref;
use crate::event::LinkChange;
use crate::record::Culprit;

/// The process that changed a link. The path is the last one that it, or a process above it, opened
/// to name a network namespace other than its own; where opens are not seen, the one that the runtime
/// gave it.
#[must_use]
pub fn culprit_of(node: &Node, time: u64, change: &LinkChange) -> Culprit {
    let mut pids = vec![change.actor.pid];
    pids.extend(change.ancestors.iter().map(|a| a.pid).filter(|&p| p > 1));
    Culprit {
        pid: change.actor.pid,
        comm: change.actor.comm.clone(),
        exe: change.exe.clone(),
        ancestors: change.ancestors.clone(),
        op: if change.up { "link_up" } else { "link_down" }.to_owned(),
        netns_path: node.netns_path(&pids, time).map(str::to_owned).or_else(|| change.cni_netns.clone()),
        netns: Some(netns_ref(change.netns, node)),
        time_boot_ns: Some(time),
    }
}
