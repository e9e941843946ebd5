//! Limits of what is written: 15,000 nodes share one API server, and each Event is a write to its store.

use std::time::Duration;

use tokio::time::Instant;

/// Times and limits of writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// How long a note waits for a revision of its verdict.
    pub(super) settle: Duration,
    /// The shortest time between two writes for one container and cause. Failures in between are counted.
    pub(super) every: Duration,
    /// After this time, a note that could not be written is dropped.
    pub(super) give_up: Duration,
    /// After this time without a failure, the next one is a new Event: the API has deleted the old one.
    pub(super) forget: Duration,
    /// Events that may be written at once.
    pub(super) burst: u32,
    /// The time after which one more Event may be written.
    pub(super) refill: Duration,
    /// The shortest wait before a retry if a permission is missing.
    pub(super) refused: Duration,
    /// How often an unchanged condition is written again, as the kubelet does.
    pub(super) heartbeat: Duration,
    /// The shortest time between two writes of a changing condition.
    pub(super) gap: Duration,
    /// How long a fault that a verdict shows counts.
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
    /// When the bucket is full again. Each taken token makes this later.
    full: Instant,
}

impl Bucket {
    pub(super) const fn new(rates: Rates, now: Instant) -> Self {
        Self { rates, full: now }
    }

    /// When the next token can be taken.
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
    fn after_a_burst_one_token_comes_per_refill_time() {
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
