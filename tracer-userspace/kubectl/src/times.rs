//! Times of records as people read them.

use std::time::Duration;

use jiff::Timestamp;
use tracer_model::plural::duration;

/// `2026-01-02 03:04:05`, of an RFC 3339 time in UTC.
pub(super) fn date_and_time(time: &str) -> String {
    time.get(..19).unwrap_or(time).replace('T', " ")
}

/// `12 s ago`
pub(super) fn ago(time: &str, now: Timestamp) -> String {
    let seconds = time.parse::<Timestamp>().map_or(0, |time| (now.as_second() - time.as_second()).max(0));
    format!("{} ago", duration(Duration::from_secs(seconds.unsigned_abs())))
}
