//! Reads the queueing discipline and the filters of a link. They hold packets back, drop them or take them.

use std::io;

use super::links;
use super::netlink::consistent;
use super::programs::{EGRESS, INGRESS, each_filter};

/// The kernel gives a link one of these by itself (`net.core.default_qdisc`), and they drop only what is too much.
const USUAL: [&str; 6] = ["noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq"];

/// The kind of the link's own queueing discipline, except [`USUAL`] ones, and "filters" if it has some at `clsact` or
/// `ingress`. The link is one of the calling thread's namespace.
///
/// A dump of queueing disciplines has those of all links of the namespace (`tc_dump_qdisc`, net/sched/sch_api.c): on a
/// node with 500 pods it takes half a millisecond under RTNL. A query for a single one also notifies all who listen.
pub(super) fn unusual(ifindex: u32) -> io::Result<Vec<String>> {
    let own = links::root_qdisc(ifindex)?.filter(|kind| !USUAL.contains(&kind.as_str()));
    // A kernel without filters has no dump of them.
    let filters = [INGRESS, EGRESS].into_iter().any(|at| has_filters(ifindex, at).unwrap_or_default());
    Ok(own.into_iter().chain(filters.then(|| "filters".to_owned())).collect())
}

fn has_filters(ifindex: u32, parent: u32) -> io::Result<bool> {
    consistent(|| {
        let mut any = false;
        each_filter(ifindex, parent, |_| any = true)?;
        Ok(any)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_usual_one() {
        assert_eq!(unusual(1).expect("rtnetlink"), Vec::<String>::new());
        assert_eq!(links::root_qdisc(1).expect("rtnetlink").as_deref(), Some("noqueue"));
    }
}
