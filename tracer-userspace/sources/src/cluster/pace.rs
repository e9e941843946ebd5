//! How fast the API is asked, and how long it may stay silent. 15,000 nodes follow one API server: whatever
//! happens to it, they must not all come back in the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Times of one follower.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Wait after the first failure; doubles with each one in a row.
    pub(crate) first: Duration,
    /// It doubles up to this.
    pub(crate) most: Duration,
    /// A session that lasted this long ends the row of failures.
    pub stable: Duration,
    /// After a watch that ended as planned, a random part of this passes before the next.
    pub(crate) rewatch: Duration,
    /// Changes within this time are reported as one.
    pub debounce: Duration,
    /// An answer begins within this time, and a list goes on within it.
    pub answer: Duration,
    /// The objects of a streaming list follow each other within this time, else the server does not know what that is.
    pub sync: Duration,
    /// A watch is silent at most this long: bookmarks come about every minute.
    pub silence: Duration,
}

impl Default for Pace {
    /// First, most and stable are those of client-go's reflector, but for the shorter time to be stable.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(800),
            most: Duration::from_secs(30),
            stable: Duration::from_secs(10),
            rewatch: Duration::from_secs(1),
            debounce: Duration::from_millis(100),
            answer: Duration::from_secs(30),
            sync: Duration::from_secs(10),
            silence: Duration::from_secs(180),
        }
    }
}

/// A server that asks for more is not believed.
const WAIT_MAX: Duration = Duration::from_mins(10);

impl Pace {
    /// The wait after this many failures in a row: between once and twice the doubled time.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.most);
        doubled + part(doubled)
    }

    /// The wait after a failure: never shorter than what the server asked for.
    pub fn after(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let backoff = self.backoff(failures);
        asked.map_or(backoff, |asked| backoff.max(asked.min(WAIT_MAX) + part(self.rewatch)))
    }

    /// The wait after a watch that ended as planned.
    pub(super) fn rewatch(&self) -> Duration {
        part(self.rewatch)
    }
}

/// A random part of a time.
pub fn part(time: Duration) -> Duration {
    time.mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

/// Random enough to spread load: the seed of the standard library's hash maps.
pub(super) fn random() -> u32 {
    RandomState::new().hash_one(0_u8) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_differ() {
        let pace = Pace::default();
        for (failures, least) in [(1, 0.8), (2, 1.6), (3, 3.2), (6, 25.6), (7, 30.0), (u32::MAX, 30.0)] {
            let least = Duration::from_secs_f64(least);
            let wait = pace.backoff(failures);
            assert!(wait >= least && wait <= 2 * least, "{failures}: {wait:?}");
        }
        let waits: std::collections::BTreeSet<_> = (0..16).map(|_| pace.backoff(1)).collect();
        assert!(waits.len() > 8, "no jitter: {waits:?}");
    }

    #[test]
    fn the_server_is_given_the_time_it_asks_for_within_reason() {
        let pace = Pace::default();
        let asked = Duration::from_secs(120);
        assert!(pace.after(1, Some(asked)) >= asked);
        assert!(pace.after(1, Some(Duration::from_secs(1 << 30))) <= WAIT_MAX + pace.rewatch);
        assert!(pace.after(7, Some(Duration::ZERO)) >= Duration::from_secs(30));
    }
}
