//! A hook of netfilter began to drop or reject packets of watched connections. A rule that rejects drops them, too, and
//! only its answer tells the two apart.

use tracer_attempts::correlate::node::Node;
use tracer_attempts::enrich::{describe_netns, netns_ref};
use tracer_case::drop_reason::{at_hook, is_netfilter, netfilter_hook};
use tracer_model::decision::Decision;
use tracer_model::event::{Netns, Observation, ObservationKind, PacketDrop};
use tracer_model::recent::Recent;
use tracer_model::record::{Body, NodeBody};

/// If a hook dropped nothing for this long, its next drop is reported again.
const QUIET_NS: u64 = 300_000_000_000;
const MAX_HOOKS: usize = 1024;

/// A netfilter hook in a namespace; either is absent if the kernel does not show it.
type Place = (Option<Netns>, Option<&'static str>);

/// When each hook last dropped a packet.
#[derive(Debug, Default)]
pub(crate) struct Dropping(Recent<Place, u64, MAX_HOOKS>);

impl Dropping {
    /// A record of the first packet that a hook dropped, or of the first in a while.
    pub(crate) fn new_records(&mut self, observation: &Observation, node: &Node) -> Option<Decision> {
        let ObservationKind::Drop(drop) = &observation.kind else { return None };
        let time_boot_ns = observation.time_boot_ns;
        let begins = is_netfilter(drop) && self.is_new(time_boot_ns, (drop.netns, netfilter_hook(drop)));
        let body = || Body::Node(Box::new(began(drop, node)));
        begins.then(|| Decision::new(time_boot_ns, None, body()))
    }

    /// Whether this hook had dropped nothing for a while.
    fn is_new(&mut self, time: u64, place: Place) -> bool {
        let is_new = self.0.get(&place).is_none_or(|last| time.saturating_sub(*last) > QUIET_NS);
        self.0.insert(place, time);
        is_new
    }
}

fn began(drop: &PacketDrop, node: &Node) -> NodeBody {
    let netns = drop.netns.map(|netns| netns_ref(netns, node));
    let place = netns.as_ref().map(|it| format!(" in {}", describe_netns(it.inum, it.name.as_deref())));
    let place = place.unwrap_or_default();
    let first = format!("{} {}", drop.flags.name(), drop.flow);
    NodeBody {
        event: "firewall_block_began".to_owned(),
        summary: format!(
            "netfilter began to drop or reject packets{}{place}, the first of them {first}",
            at_hook(drop)
        ),
        netns,
        ..NodeBody::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    #[test]
    fn a_hook_that_begins_to_drop_is_reported_once_for_a_while() {
        let mut stream = Stream::new().connect().filtered(SYN, POD).wait_ms(1000).filtered(SYN, POD).clone();
        let first = stream.node_events();
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!(first[0].event, "firewall_block_began");
        assert_starts(&first[0].summary, "netfilter began to drop or reject packets");
        assert!(first[0].summary.contains("SYN ") && first[0].netns.is_some(), "{first:?}");
        stream.wait_ms(400_000).filtered(SYN, POD);
        assert_eq!(stream.node_events().len(), 2);
    }

    #[test]
    fn a_drop_without_netfilter_is_no_firewall_event() {
        assert!(Stream::new().connect().drop(SYN, "IP_RPFILTER", POD).node_events().is_empty());
    }
}
