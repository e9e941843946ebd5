//! Times by the clock of a node, which records have, and by that of the API server.

use std::time::Duration;

use jiff::Timestamp;

use super::objects::Pod;
use tracer_model::plural::duration;

/// Smaller differences can be normal delays.
const TOLERATED_S: i64 = 5;

/// `12 s ago`
pub(super) fn ago(time: &str, now: Timestamp) -> String {
    let seconds = time.parse::<Timestamp>().map_or(0, |time| (now.as_second() - time.as_second()).max(0));
    format!("{} ago", duration(Duration::from_secs(seconds.unsigned_abs())))
}

/// How many seconds at least the clock of a pod's node is ahead (negative: behind); absent if no difference is visible.
/// The kubelet writes `startTime` by the node's clock. It cannot be before the API server created the pod, and a record
/// cannot be from the future.
pub(super) fn skew(pod: &Pod, newest: Option<Timestamp>, now: Timestamp) -> Option<i64> {
    let behind = pod.status.start_time.zip(pod.metadata.creation_timestamp);
    let behind = behind.map(|(started, made)| started.as_second() - made.as_second()).filter(|s| *s < -TOLERATED_S);
    let ahead = newest.map(|newest| newest.as_second() - now.as_second()).filter(|s| *s > TOLERATED_S);
    ahead.or(behind)
}

/// `node-3 is at least 95 s behind`
pub(super) fn skew_text(node: &str, seconds: i64) -> String {
    let way = if seconds < 0 { "behind" } else { "ahead" };
    format!("{node} is at least {} s {way}", seconds.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(started: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"creationTimestamp":"2026-01-02T03:04:05Z"}},"status":{{"startTime":"{started}"}}}}"#
        );
        serde_json::from_str(&text).expect("a pod")
    }

    #[test]
    fn impossible_times_show_a_difference_of_the_clocks() {
        let at = |time: &str| time.parse::<Timestamp>().expect("a time");
        let now = at("2026-01-02T04:00:00Z");
        let (fine, behind) = (pod("2026-01-02T03:30:00Z"), pod("2026-01-02T03:02:30Z"));
        assert_eq!(skew(&fine, Some(at("2026-01-02T03:59:59Z")), now), None);
        assert_eq!(skew(&behind, None, now), Some(-95));
        assert_eq!(skew(&fine, Some(at("2026-01-02T04:02:00Z")), now), Some(120));
        assert_eq!(skew_text("n1", -95), "n1 is at least 95 s behind");
    }
}
