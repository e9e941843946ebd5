//! The times at which probers connected to a target. A probe does so once a period, a lifecycle handler once in a
//! container's life.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tracer_model::recent::{Recent, remember};

const MAX_TARGETS: usize = 1024;
const MAX_TIMES: usize = 32;
/// A connect is on time if it differs from the period by at most this part of it. The kubelet's ticker is exact to some
/// milliseconds. One in fifty connects at random times counts as on time.
const TOLERANCE: u64 = 100;
/// How late a connect on a busy node may be.
const LATE_NS: u64 = 50_000_000;

/// The last connects of each target, in order.
#[derive(Clone, Debug, Default)]
pub struct RecentConnects(Recent<SocketAddr, VecDeque<u64>, MAX_TARGETS>);

impl RecentConnects {
    pub(super) fn add(&mut self, dst: SocketAddr, time: u64) {
        remember(MAX_TIMES, self.0.or_default(dst), time);
    }

    /// How many connects to a target came within one period up to `time`, with the one at `time`.
    pub fn within(&self, dst: SocketAddr, time: u64, period_ns: u64) -> usize {
        let from = time.saturating_sub(period_ns).saturating_add(tolerance(period_ns));
        let is_within = |at: &&u64| (from..=time).contains(*at);
        self.0.get(&dst).map_or(0, |times| times.iter().filter(is_within).count())
    }

    /// The last connect was one period before `time`.
    pub fn any_a_period_before(&self, dst: SocketAddr, time: u64, period_ns: u64) -> bool {
        let is_due = |before: &u64| time.saturating_sub(*before).abs_diff(period_ns) <= tolerance(period_ns);
        period_ns > 0 && self.0.get(&dst).is_some_and(|times| times.iter().any(is_due))
    }
}

fn tolerance(period_ns: u64) -> u64 {
    (period_ns / TOLERANCE).max(LATE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn target(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 88, 0, 2], port))
    }

    #[test]
    fn a_connect_is_due_one_period_after_another() {
        let mut recent_connects = RecentConnects::default();
        recent_connects.add(target(8080), 5 * SECOND_NS);
        let due = |time, period_s| recent_connects.any_a_period_before(target(8080), time, period_s * SECOND_NS);
        assert!(
            due(15 * SECOND_NS, 10) && due(15 * SECOND_NS + 90_000_000, 10) && due(15 * SECOND_NS - 90_000_000, 10)
        );
        assert!(!due(15 * SECOND_NS + 110_000_000, 10) && !due(15 * SECOND_NS, 5) && !due(15 * SECOND_NS, 0));
        assert!(!due(5 * SECOND_NS, 10), "itself");
        recent_connects.add(target(8080), 15 * SECOND_NS);
        let within = |time, period_s| recent_connects.within(target(8080), time, period_s * SECOND_NS);
        assert_eq!((within(15 * SECOND_NS, 10), within(15 * SECOND_NS, 11), within(14 * SECOND_NS, 5)), (1, 2, 0));
        assert!(!recent_connects.any_a_period_before(target(8081), 15 * SECOND_NS, 10 * SECOND_NS));
    }
}
