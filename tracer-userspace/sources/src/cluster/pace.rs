//! How often the API is asked, and how long it may be silent. 15,000 nodes may follow one API server. After an outage
//! they must not all return at the same moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The times of a follower.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The wait after the first failure. It doubles with each further one.
    pub(crate) first: Duration,
    /// The longest wait.
    pub(crate) most: Duration,
    /// After a session of this length, failures are counted from 0 again.
    pub stable: Duration,
    /// The wait after a watch that ended as planned is a random part of this.
    pub(crate) rewatch: Duration,
    /// Changes within this time are reported as one.
    pub debounce: Duration,
    /// An answer must begin within this time, and so must each next piece of a list.
    pub answer: Duration,
    /// Each next object of a streaming list must come within this time. Otherwise the server does not know such lists.
    pub sync: Duration,
    /// A watch may be silent this long: a bookmark comes about every minute.
    pub silence: Duration,
}

impl Default for Pace {
    /// `first` and `most` are those of client-go's reflector; `stable` is shorter.
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

/// The longest wait that a server can ask for.
const WAIT_MAX: Duration = Duration::from_mins(10);

impl Pace {
    /// The wait after this many failures: between one and two times the doubled time.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(self.most);
        doubled + part(doubled)
    }

    /// The wait after a failure: at least what the server asked for.
    pub fn after(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let backoff = self.backoff(failures);
        asked.map_or(backoff, |asked| backoff.max(asked.min(WAIT_MAX) + part(self.rewatch)))
    }
}

pub fn part(time: Duration) -> Duration {
    time.mul_f64(f64::from(random()) / f64::from(u32::MAX))
}

/// The seed of the standard library's hash maps: random enough to spread the load.
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
