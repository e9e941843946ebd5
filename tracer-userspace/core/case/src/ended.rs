//! The end of the listener, and what it shows about its process.

use crate::case::Case;
use crate::phrases::ms;
use tracer_model::event::{Listen, Loss, Netns};

/// Why a listener ended, unless more is known: follows the sentence.
pub const ENDED: &str = ": it exited, crashed or was stopped";

/// A clause about a listener that ended together with the connection.
pub fn process_ended_text(case: &Case<'_>, end: &(u64, Listen)) -> String {
    format!(", and its listener ended at the same time{}", why_ended(case, end))
}

/// A process that hands its port over to another one stops to listen, and may run on.
pub(crate) fn why_ended(case: &Case<'_>, end: &(u64, Listen)) -> String {
    match case.node.successor(end, case.attempt.flow.dst) {
        None => ENDED.to_owned(),
        Some((began, next)) => format!(
            ": it exited, crashed, was stopped, or handed the port over to {}, which began to listen there {} before",
            next.actor,
            ms(end.0.saturating_sub(*began))
        ),
    }
}

/// The listener ended for the same reason as the connection if less time than this is between the two ends.
const SAME_END_NS: u64 = 1_000_000_000;

/// The listener of that port ended at about the time of the close.
pub fn listener_ended<'a>(case: &Case<'a>, ended: u64) -> Option<&'a (u64, Listen)> {
    listeners_ended(case, ended).min_by_key(|(at, _)| at.abs_diff(ended))
}

/// The listeners of that port that ended at about the time of the close.
pub(crate) fn listeners_ended<'a>(case: &Case<'a>, ended: u64) -> impl Iterator<Item = &'a (u64, Listen)> + use<'a> {
    let (node, attempt) = (case.node, case.attempt);
    let target = attempt.netns.and_then(|from| node.netns_of_addr(from, attempt.flow.dst.ip()));
    let ends = target.into_iter().flat_map(move |netns| node.listener_ends(netns, attempt));
    ends.filter(move |(at, _)| at.abs_diff(ended) < SAME_END_NS)
}

/// The last process that began or stopped to listen on the port. Absent if an event was lost since that may have
/// reported the end of its namespace (another pod can have the number then), or the end of the listener.
pub fn last_listener<'a>(case: &Case<'a>, netns: Netns) -> Option<&'a (u64, Listen)> {
    let last = case.node.listeners.last(netns, case.attempt.flow.dst.port())?;
    let of_namespace = [Loss::RING, Loss::NAMESPACE];
    let of_listener = [Loss::PROGRAM, Loss::LISTEN].as_slice();
    let may_be = |loss: &Loss| {
        let place = loss.where_.as_str();
        of_namespace.contains(&place) || last.1.begins && of_listener.contains(&place)
    };
    (!case.node.losses.between(last.0, case.attempt.started).any(may_be)).then_some(last)
}
