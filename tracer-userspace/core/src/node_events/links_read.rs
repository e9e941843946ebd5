//! Links that changed while no hook saw the process that did it.

use super::{event_name, netns_ref};
use tracer_attempts::correlate::links::FLAG_LAG_NS;
use tracer_attempts::correlate::node::Node;
use tracer_model::decision::Decision;
use tracer_model::event::{LinkState, Netns, Observation, ObservationKind};
use tracer_model::record::{Body, LinkRef, NodeBody};

const MAX_DOUBTFUL: usize = 256;
const MAX_NEW: usize = 256;

/// What readings of the node's links leave open.
#[derive(Debug, Default)]
pub(crate) struct LinksRead {
    /// Read as up right after they were set down.
    doubtful: Vec<Doubtful>,
    /// Made while tracer ran, and not up yet.
    new: Vec<LinkState>,
}

#[derive(Debug)]
struct Doubtful {
    due: u64,
    netns: Netns,
    link: LinkState,
}

impl LinksRead {
    /// The records that follow from a reading; `node` is what was known before it.
    pub(crate) fn new_records(&mut self, observation: &Observation, node: &Node) -> Vec<Decision> {
        let ObservationKind::Links(read) = &observation.kind else { return Vec::new() };
        let (time, netns) = (observation.time_boot_ns, read.netns);
        let Some(before) = node.links.get(&netns).filter(|_| node.netns() == Some(netns)) else { return Vec::new() };
        let is_known = |link: &LinkState| before.iter().any(|old| is_same(old, link));
        self.new.retain(|new| read.links.iter().any(|link| is_same(new, link)));
        let made = read.links.iter().filter(|link| !link.up && !is_known(link)).cloned();
        self.new.extend(made.take(MAX_NEW.saturating_sub(self.new.len())));
        let mut records = Vec::new();
        for link in read.links.iter().filter(|link| before.iter().any(|old| is_same(old, link) && old.up != link.up)) {
            // A link is down when it is made. Then whoever made it sets it up.
            if self.new.extract_if(.., |new| is_same(new, link)).count() > 0 && link.up {
                continue;
            }
            let set_down = node.links.down(netns, link.ifindex).map(|(at, _)| at.saturating_add(FLAG_LAG_NS));
            match set_down.filter(|due| time < *due) {
                Some(due) if link.up && self.doubtful.len() < MAX_DOUBTFUL => {
                    self.doubtful.push(Doubtful { due, netns, link: link.clone() });
                }
                // The record of the change names the process.
                Some(_) => {}
                None => records.push(record(time, netns, link, node)),
            }
        }
        records
    }

    /// When the first doubtful reading is due.
    pub(crate) fn due(&self) -> Option<u64> {
        self.doubtful.iter().map(|it| it.due).min()
    }

    /// The records that are due: of links that still are as they were read.
    pub(crate) fn fire(&mut self, now: u64, node: &Node) -> Vec<Decision> {
        let due = self.doubtful.extract_if(.., |it| it.due <= now);
        let is_up = |it: &Doubtful| {
            let mut links = node.links.get(&it.netns).into_iter().flatten();
            let changed = node.links.down(it.netns, it.link.ifindex).is_none();
            !changed && links.any(|link| is_same(link, &it.link) && link.up)
        };
        due.filter(is_up).map(|it| record(it.due, it.netns, &it.link, node)).collect()
    }
}

fn is_same(left: &LinkState, right: &LinkState) -> bool {
    left.ifindex == right.ifindex && left.name == right.name
}

fn record(time: u64, netns: Netns, link: &LinkState, node: &Node) -> Decision {
    let event = event_name(link.up);
    let state = if link.up { "up" } else { "down" };
    let body = NodeBody {
        event: event.to_owned(),
        summary: format!("{} of the node is {state}; who did it was not seen", link.name),
        netns: Some(netns_ref(netns, node)),
        link: Some(LinkRef { ifindex: link.ifindex, name: link.name.clone(), up: link.up }),
        ..NodeBody::default()
    };
    Decision::new(time, None, Body::Node(Box::new(body)))
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    /// The states of the node's veth1 in this order: `Some` of a reading, which may lack it.
    fn read(stream: &mut Stream, up: Option<bool>) {
        let veth = |up| LinkState { up, ..link(7, "veth1", &[]) };
        stream.node_links(up.map(veth).into_iter().collect());
    }

    fn events(fill: fn(&mut Stream)) -> Vec<String> {
        let mut stream = Stream::new();
        read(&mut stream, Some(true));
        fill(&mut stream);
        stream.wait_ms(1_000).tick().node_events().into_iter().map(|it| it.summary).collect()
    }

    const UP: &str = "veth1 of the node is up; who did it was not seen";
    const DOWN: &str = "veth1 of the node is down; who did it was not seen";

    #[test]
    fn a_change_that_no_hook_saw_is_reported() {
        assert_eq!(events(|stream| read(stream, Some(false))), [DOWN]);
        assert_eq!(events(|stream| [Some(false), Some(true)].into_iter().for_each(|up| read(stream, up))), [DOWN, UP]);
        assert!(events(|stream| [None, Some(true)].into_iter().for_each(|up| read(stream, up))).is_empty());
    }

    /// Seen with a real kubelet: the veth of a new pod.
    #[test]
    fn a_new_link_that_is_set_up_is_no_change() {
        let made: fn(&mut Stream) =
            |stream| [None, Some(false), Some(true)].into_iter().for_each(|up| read(stream, up));
        assert!(events(made).is_empty());
        let fails = events(|stream| {
            [None, Some(false), Some(true), Some(false), Some(true)].into_iter().for_each(|up| read(stream, up));
        });
        assert_eq!(fails, [DOWN, UP]);
    }

    /// The reading came between the hook and the change of the flag.
    #[test]
    fn a_link_that_is_set_down_or_deleted_is_not_called_up() {
        for after in [None, Some(false)] {
            let mut stream = Stream::new();
            read(&mut stream, Some(true));
            stream.link_set(NODE, 7, "veth1", false).wait_ms(5);
            read(&mut stream, Some(true));
            stream.wait_ms(30);
            read(&mut stream, after);
            let events = stream.wait_ms(1_000).tick().node_events();
            assert_eq!(events.len(), 1, "{events:?}");
            assert!(events[0].culprit.is_some());
        }
    }

    /// Without function probes, no hook shows that a link is set up.
    #[test]
    fn a_link_that_was_down_for_a_moment_is_up_again() {
        let flap: fn(&mut Stream) = |stream| {
            stream.link_set(NODE, 7, "veth1", false).wait_ms(30);
            read(stream, Some(true));
        };
        assert_eq!(events(flap)[1..], [UP]);
        let reading = events(|stream| {
            stream.link_set(NODE, 7, "veth1", false).wait_ms(5);
            read(stream, Some(true));
            stream.link_set(NODE, 7, "veth1", true);
        });
        assert_eq!(reading.len(), 2, "{reading:?}");
        assert!(!reading.contains(&UP.to_owned()), "the hook showed who did it");
    }
}
