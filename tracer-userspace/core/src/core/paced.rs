//! Limits records of repeated events: one of each kind per interval, the rest of the interval summed up in the next
//! one. While a ring overflows, each batch has a loss. A routing daemon can withdraw routes for hours.

use std::collections::BTreeMap;

use tracer_model::event::{Loss, RulesFlushed};

/// How many kinds are kept; a recording may name any number.
const MAX: usize = 16;

/// A kind of event that can be summed up.
pub(super) trait Sum: Clone {
    /// The interval between two records of a kind.
    const EVERY_NS: u64;

    /// The sum of this and a later event of the same kind.
    #[must_use]
    fn and(self, later: &Self) -> Self;
}

impl Sum for Loss {
    const EVERY_NS: u64 = 1_000_000_000;

    fn and(self, later: &Self) -> Self {
        self.and(later)
    }
}

impl Sum for RulesFlushed {
    const EVERY_NS: u64 = 60_000_000_000;

    fn and(self, later: &Self) -> Self {
        let (count, incomplete) = (self.count.saturating_add(later.count), self.incomplete || later.incomplete);
        Self { count, incomplete, ..self }
    }
}

/// When each kind was reported, and the sum that waits.
#[derive(Debug)]
pub(super) struct Paced<T>(BTreeMap<String, Reported<T>>);

impl<T> Default for Paced<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

#[derive(Debug)]
struct Reported<T> {
    /// When the next record may be emitted.
    next: u64,
    /// The sum of the waiting events, with the time of the last one.
    waiting: Option<(u64, T)>,
}

impl<T: Sum> Reported<T> {
    fn with_waiting(&mut self, one: &T) -> T {
        self.waiting.take().map_or_else(|| one.clone(), |(_, before)| before.and(one))
    }
}

impl<T: Sum> Paced<T> {
    /// Takes an event in; returns what to report now, if anything.
    pub(super) fn push(&mut self, kind: &str, time: u64, one: &T) -> Option<T> {
        if let Some(reported) = self.0.get_mut(kind).filter(|reported| time < reported.next) {
            let sum = reported.with_waiting(one);
            reported.waiting = Some((time, sum));
            return None;
        }
        let sum = self.0.get_mut(kind).map_or_else(|| one.clone(), |reported| reported.with_waiting(one));
        self.0.retain(|_, reported| reported.waiting.is_some() || time < reported.next);
        if self.0.len() < MAX {
            self.0.insert(kind.to_owned(), Reported { next: time.saturating_add(T::EVERY_NS), waiting: None });
        }
        Some(sum)
    }

    /// When the first waiting sum is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.0.values().filter(|reported| reported.waiting.is_some()).map(|reported| reported.next).min()
    }

    /// Takes the sums that are due, each with the time of its last event.
    pub(super) fn fire(&mut self, now: u64) -> Vec<(u64, T)> {
        let due = self.0.values_mut().filter(|reported| reported.next <= now);
        let take = |reported: &mut Reported<T>| {
            let (time, sum) = reported.waiting.take()?;
            reported.next = time.max(reported.next).saturating_add(T::EVERY_NS);
            Some((time, sum))
        };
        due.filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;

    const MS: u64 = 1_000_000;

    fn reported(losses: &[(u64, &str)], last: u64) -> Vec<(String, u64, u64, u64)> {
        let loss = |(at, place): &(u64, &str)| {
            let (from_boot_ns, to_boot_ns) = ((at - 10) * MS, at * MS);
            let loss = Loss { where_: (*place).into(), count: 1, from_boot_ns, to_boot_ns };
            Observation { time_boot_ns: to_boot_ns, kind: ObservationKind::Loss(loss) }
        };
        let mut observations: Vec<Observation> = losses.iter().map(loss).collect();
        observations.push(Observation { time_boot_ns: last * MS, kind: ObservationKind::Tick });
        let body = |loss: LossBody| (loss.where_, loss.count, loss.from_boot_ns / MS, loss.to_boot_ns / MS);
        let bodies = decide(&observations).into_iter().map(|decision| decision.body);
        bodies.filter_map(|it| if let Body::Loss(loss) = it { Some(body(loss)) } else { None }).collect()
    }

    /// Each batch that is read from an overflowing ring has a loss.
    #[test]
    fn losses_of_one_place_are_reported_once_a_second() {
        let flood: Vec<(u64, &str)> = (0..300).map(|n| (100 + 10 * n, "ring")).collect();
        let ring = |count, from, to| ("ring".to_owned(), count, from, to);
        let expected = [ring(1, 90, 100), ring(100, 100, 1100), ring(100, 1100, 2100), ring(99, 2100, 3090)];
        assert_eq!(reported(&flood, 5000), expected);
        assert_eq!(reported(&flood, 3090), expected, "the end of the stream reports what is left");
    }

    #[test]
    fn losses_of_different_places_are_reported_at_once() {
        let places: Vec<(String, u64)> =
            reported(&[(100, "ring"), (150, "map"), (200, "ring")], 5000).into_iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(places, [("ring".into(), 1), ("map".into(), 1), ("ring".into(), 1)]);
    }
}
