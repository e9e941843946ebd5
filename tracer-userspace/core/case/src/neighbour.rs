//! The neighbour entry that the way back needs.

use serde_json::json;

use crate::case::{Case, inspected};
use crate::evidence::evidence_of;
use crate::phrases::in_namespace;
use tracer_model::event::{NeighbourState, Netns};
use tracer_model::record::Evidence;

/// The entry that the target's answer waits for, with the target's namespace and the time at which it was read.
pub fn entry_back<'a>(case: &Case<'a>) -> Option<(u64, Netns, &'a NeighbourState)> {
    let (time, reading) = inspected(case)?;
    Some((time, reading.netns?, reading.neighbour_back.as_ref()?))
}

/// The entry that the answer waits for, as evidence.
pub fn of_entry_back(case: &Case<'_>, time: u64, netns: Netns, entry: &NeighbourState) -> Evidence {
    let text = format!("the neighbour entry of {}{} is {}", entry.addr, in_namespace(case, Some(netns)), entry.state);
    let fields = json!({ "state": entry.state, "ifindex": entry.ifindex, "netns": netns });
    evidence_of("rtnetlink", time, text, fields)
}

/// The RST of a refusal in this namespace waits for that link-layer address.
pub(crate) fn waiting_reset(case: &Case<'_>, refused: Netns) -> Option<(Evidence, String)> {
    let (time, netns, entry) =
        entry_back(case).filter(|(_, netns, entry)| *netns == refused && entry.state == "incomplete")?;
    let place = in_namespace(case, Some(netns));
    let words = format!("the RST of the refusal{place} waits for the link-layer address of {}", entry.addr);
    Some((of_entry_back(case, time, netns, entry), words))
}

/// What the state of an entry without an address shows.
pub fn describe_state(entry: &NeighbourState) -> &'static str {
    if entry.state == "failed" { "nobody answered" } else { "it sent requests, and nobody answered" }
}
