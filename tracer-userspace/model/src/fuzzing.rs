//! What each fuzz target of a parser asserts of the facts that it reads.

use crate::event::{Fact, Observation};

/// Asserts that a recording keeps this fact as it is.
pub fn check_recorded(fact: Fact) {
    let observation = Observation { time_boot_ns: 1, fact };
    let line = serde_json::to_string(&observation).unwrap_or_default();
    let read: Result<Observation, _> = serde_json::from_str(&line);
    let is_same = read.as_ref().is_ok_and(|it| *it == observation);
    assert!(is_same, "{observation:?} is written as {line} and read as {read:?}");
}
