//! Fuzz target of the kubelet's own API.

use super::super::cluster::{Failure, Lines};
use super::counters::{Counters, Reading};
use super::poll::PodList;
use tracer_model::event::{Fact, Pods};
use tracer_model::fuzzing::check_recorded;

/// An answer, read as counters and as a list of pods.
pub fn kubelet(bytes: &[u8]) {
    let mut counters = Counters::default();
    // The second reading is half of the first: counters that began again or are gone.
    for part in [bytes, &bytes[..bytes.len() / 2], bytes] {
        if let Ok(reading) = reading(part)
            && let Some(counts) = counters.take(reading, 1, 2)
        {
            check_recorded(Fact::ProbeCounts(Box::new(counts)));
        }
    }
    let mut list = PodList::default();
    if let Ok(pods) = list.feed(bytes).and_then(|()| list.end()) {
        check_recorded(Fact::Pods(Pods { pods }));
    }
}

fn reading(bytes: &[u8]) -> Result<Reading, Failure> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    [bytes, b"\n"].into_iter().try_for_each(|piece| lines.feed(piece, |line| reading.line(line)))?;
    Ok(reading)
}
