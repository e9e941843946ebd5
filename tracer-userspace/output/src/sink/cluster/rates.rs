//! How much is written: 15,000 nodes share one API server, and each Event is a write to its store.

use std::time::Duration;

use tokio::time::Instant;

/// Times and bounds of what is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// A verdict may be revised within this time: what is then known is reported.
    pub(super) settle: Duration,
    /// One write at most in this time for each container and cause; what comes meanwhile is counted.
    pub(super) every: Duration,
    /// What could not be written for so long is given up.
    pub(super) give_up: Duration,
    /// After so long without another failure the next is a new Event: the API has forgotten the old one.
    pub(super) forget: Duration,
    /// Events that may be written at once.
    pub(super) burst: u32,
    /// Each so often one more.
    pub(super) refill: Duration,
    /// A permission that is missing is tried again after this.
    pub(super) refused: Duration,
    /// The node's condition is confirmed so often, as kubelets do.
    pub(super) heartbeat: Duration,
    /// A changed condition is not written sooner after the last.
    pub(super) gap: Duration,
    /// A node's fault that showed in a verdict is held true for so long.
    pub(super) hold: Duration,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(2),
            every: Duration::from_mins(10),
            give_up: Duration::from_mins(10),
            forget: Duration::from_mins(60),
            burst: 10,
            refill: Duration::from_secs(20),
            refused: Duration::from_mins(10),
            heartbeat: Duration::from_mins(5),
            gap: Duration::from_secs(10),
            hold: Duration::from_mins(10),
        }
    }
}

/// A token bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    rates: Rates,
    /// When it is full again: each token taken moves it on.
    full: Instant,
}

impl Bucket {
    pub(super) const fn new(rates: Rates, now: Instant) -> Self {
        Self { rates, full: now }
    }

    /// When there is one to be taken.
    pub(super) fn ready(&self) -> Instant {
        let all_but_one = self.rates.refill * self.rates.burst.saturating_sub(1);
        self.full.checked_sub(all_but_one).unwrap_or(self.full)
    }

    pub(super) fn take(&mut self, now: Instant) {
        self.full = self.full.max(now) + self.rates.refill;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_one_at_a_time() {
        let now = Instant::now();
        let rates = Rates { burst: 3, refill: Duration::from_secs(20), ..Rates::default() };
        let mut bucket = Bucket::new(rates, now);
        for _ in 0..3 {
            assert!(bucket.ready() <= now);
            bucket.take(now);
        }
        assert_eq!(bucket.ready(), now + Duration::from_secs(20));
        let later = now + Duration::from_secs(25);
        bucket.take(later);
        assert_eq!(bucket.ready(), now + Duration::from_secs(40));
        let rested = now + Duration::from_secs(3600);
        bucket.take(rested);
        assert!(bucket.ready() <= rested);
    }
}
