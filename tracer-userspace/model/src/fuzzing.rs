//! What each fuzz target of a parser asserts about the observations that it reads.

use crate::event::{Observation, ObservationKind};

/// Asserts that a recording keeps this observation as it is.
pub fn check_recorded(kind: ObservationKind) {
    let observation = Observation { time_boot_ns: 1, kind };
    let line = serde_json::to_string(&observation).unwrap_or_default();
    let read: Result<Observation, _> = serde_json::from_str(&line);
    let is_same = read.as_ref().is_ok_and(|it| *it == observation);
    assert!(is_same, "{observation:?} is written as {line} and read as {read:?}");
}
