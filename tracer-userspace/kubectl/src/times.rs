//! Times of records as people read them.

use std::time::Duration;

use jiff::Timestamp;
use tracer_model::plural::duration;

/// `12 s ago`
pub(super) fn ago(time: &str, now: Timestamp) -> String {
    let seconds = time.parse::<Timestamp>().map_or(0, |time| (now.as_second() - time.as_second()).max(0));
    format!("{} ago", duration(Duration::from_secs(seconds.unsigned_abs())))
}
