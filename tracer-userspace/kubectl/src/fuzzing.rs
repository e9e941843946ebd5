//! Fuzz target for a pod's log: any process in the container can write to it.

use std::convert::Infallible;
use std::time::Duration;

use super::logs::Sink as _;
use super::objects::Pod;
use super::records::{LINE_MAX, Reading};
use super::top::{Answers, Causes, NodeTally, Page};
use super::why::{Collected, Effect};
use tracer_model::lines::Lines;

/// Verdicts that are kept for the screen.
const TAIL: usize = 3;

/// `why` and `top` read any log in pieces of any size, keep a bounded part, and print valid JSON.
pub fn podlog(bytes: &[u8]) {
    let pod: Pod = serde_json::from_str(r#"{"metadata":{"namespace":"shop","name":"cart-0"}}"#).unwrap_or_default();
    let (mut collected, mut tally, mut lines) =
        (Collected::new(vec![pod], None, TAIL), NodeTally::default(), Lines::new(LINE_MAX));
    let mut reading = Reading::default();
    let size = bytes.first().map_or(1, |byte| usize::from(*byte).max(1));
    for chunk in bytes.chunks(size) {
        let Ok(()) = lines.feed(chunk, |line| {
            if let Some(line) = line {
                collected.take(line);
                if let Some(head) = reading.take(line) {
                    tally.take(&head, line);
                }
            }
            Ok::<_, Infallible>(())
        });
    }
    let of_pod = &collected.pods[0];
    assert!(of_pod.kept.len() <= TAIL && (of_pod.is_known() || of_pod.failure(Effect::Unready).is_none()));
    let mut causes = Causes::default();
    causes.add("n1", tally.finish());
    let page = Page::new(causes, Answers::default(), Duration::from_secs(60), jiff::Timestamp::UNIX_EPOCH).json();
    assert!(serde_json::from_str::<serde_json::Value>(&page).is_ok(), "{page}");
}
